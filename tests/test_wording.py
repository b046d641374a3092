"""Numbers, and values found in files, as text for messages."""

import pytest

from sa1bpack.wording import brief, counted, printable, size_text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 shards"), (1, "1 shard"), (2, "2 shards"), (12345, "12,345 shards")]
)
def test_a_noun_is_singular_for_one_only(number, text):
    assert counted(number, "shard") == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (43_912_345, "43.9 MB"), (999_600, "1 MB"),
        (3.67e12, "3.67 TB"), (5e15, "5 PB"),
    ],
)  # fmt: skip
def test_sizes_are_in_the_largest_unit_in_which_they_are_at_least_1(nbytes, text):
    assert size_text(nbytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"), ("a", "'a'"), ([1, 2, 3], "[1, 2, 3]"), ({"a": None}, "{'a': None}"),
        ("\x1b[2J", r"'\x1b[2J'"), ([[[[[1]]]]], "[[[[...]]]]"),
    ],
)  # fmt: skip
def test_a_small_value_is_shown_as_python_writes_it(value, text):
    assert brief(value) == text


@pytest.mark.parametrize("value", ["x" * 10**6, 10**4000, list(range(10**5)), {"x" * 10**5: 1}])
def test_a_value_of_any_size_is_shown_briefly(value):
    assert len(brief(value)) < 250


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sa_1 é 雪", "sa_1 é 雪"), ("two\nlines", "two\nlines"), ("a\x1b[2Jb\r", r"a\x1b[2Jb\r"),
        ("\udcff.jpg", r"\udcff.jpg"), ("\u202egpj", r"\u202egpj"),
    ],
)  # fmt: skip
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown
