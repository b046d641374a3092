"""Numbers, and values found in files, as text for messages; and words that this project avoids."""

import re
from pathlib import Path

import pytest

from sa1bpack.wording import brief, counted, printable, size_text, span_text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 shards"), (1, "1 shard"), (2, "2 shards"), (12345, "12,345 shards")]
)
def test_a_noun_is_singular_for_one_only(number, text):
    assert counted(number, "shard") == text
    assert counted(number, "batch") == text.replace("shards", "batches").replace("shard", "batch")


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


REPOSITORY = Path(__file__).parents[1]
AVOIDED = {
    r"\banew\b": "again",
    r"\bwhoever\b": "name who",
    r"\blies? to (one another|each other)\b": "relate",
    r"\bspeaks? against\b": "what the case is",
    r"\b(is|are|was|were) told\b": "is notified, is announced",
    r"\bmended\b": "repaired",
    r"\b(so many|that many) seconds\b": "at most `name` seconds",
    r"\bwhole (packs|runs?)\b": "sound, complete",
    r"\bgives\b": "returns, yields, produces, assigns",
    r'(""" ?|: )As of [A-Z`]|\bas of [`A-Z]': "as in, like",
    r"\bgo(es)? on\b": "resume, continue",
}


@pytest.mark.parametrize("avoided", AVOIDED)
def test_code_and_documents_use_the_words_of_a_native_engineer(avoided):
    """In all text of the package, the documents, benchmarks and scripts but performance.md."""
    texts = [*REPOSITORY.glob("*.md")]
    texts += [path for folder in ("sa1bpack", "docs", "benchmarks", "scripts")
              for path in sorted((REPOSITORY / folder).rglob("*"))
              if path.suffix in (".py", ".md")]  # fmt: skip
    assert len(texts) > 200
    found = [
        f"{path.relative_to(REPOSITORY)}: {match[0]!r}; write {AVOIDED[avoided]}"
        for path in texts
        for match in re.finditer(avoided, re.sub(r"\n[ #]*", " ", path.read_text()))
    ]
    assert found == []


def test_names_are_shown_as_a_span():
    assert span_text([]) == "none"
    assert span_text({"sa_0"}) == "sa_0"
    assert span_text({f"sa_{n:06}" for n in range(1000)}) == "sa_000000 to sa_000999 (1,000)"
