"""What a program prints in a loop that shows its progress is on the terminal as it was printed."""

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from terminals import as_standard_streams, seen

from sa1bpack import Loader
from sa1bpack.finalizers import settle
from sa1bpack.progress import report

# Streams and texts that are printed after each batch.
PRINTED = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr"]),
            st.sampled_from(["", "loss 0.5", ".", "two\nlines", "a line of some length " * 2]),
            st.sampled_from(["\n", "", " "]),
        ),
        max_size=3,
    ),
    min_size=4,
    max_size=4,
)


def looped(ds, printed) -> None:
    """A loop of 4 batches over 12 samples, which prints."""
    with Loader(ds, 3, progress=None) as loader:
        for _, of_batch in zip(loader, printed, strict=False):
            for stream, text, end in of_batch:
                print(text, end=end, file=getattr(sys, stream))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(printed=PRINTED)
def test_what_is_printed_is_seen_as_without_the_line(ds, monkeypatch, printed):
    with as_standard_streams(monkeypatch) as text:
        looped(ds, printed)
    plain = "".join(words + end for of_batch in printed for _, words, end in of_batch)
    assert seen(text[0]) == seen(plain.replace("\n", "\r\n"))
    assert "epoch 0:" in text[0]


def test_the_line_is_below_what_is_printed(ds, monkeypatch):
    with as_standard_streams(monkeypatch) as text, Loader(ds, 3, progress=None) as loader:
        for number, _ in enumerate(loader):
            print("number", number)
            if number == 2:
                break
        report("a line of the package")
    *before, rest = text[0].split("number 2\r\n")
    assert seen(before[0])[:2] == ["number 0", "number 1"]
    assert rest.startswith("\repoch 0:")
    assert seen(text[0]) == ["number 0", "number 1", "number 2", "sa1bpack: a line of the package"]


def test_loops_within_loops_print_above_both_lines(ds, monkeypatch):
    with as_standard_streams(monkeypatch) as text:
        outer = Loader(ds, 6, progress=None)
        inner = Loader(ds, 6, progress=None)
        for _ in outer:
            print("outer")
            for _ in inner:
                print("inner")
        outer.close()
        inner.close()
    assert seen(text[0]) == ["outer", "inner", "inner"] * 2


def test_streams_that_are_no_terminal_are_left_alone(ds, capsys):
    streams = (sys.stdout, sys.stderr)
    with Loader(ds, 6, progress=True) as loader:
        for _ in loader:
            assert (sys.stdout, sys.stderr) == streams
            print("text")
    assert capsys.readouterr().out == "text\n" * 2


class Minimal:
    """Enough for `print`."""

    def write(self, text):
        return len(text)


@pytest.mark.parametrize("stdout", [None, Minimal()], ids=["none", "minimal"])
def test_what_a_program_has_in_place_of_standard_output_is_left_alone(ds, monkeypatch, stdout):
    with as_standard_streams(monkeypatch) as text:
        with monkeypatch.context() as patch, Loader(ds, 6, progress=None) as loader:
            patch.setattr(sys, "stdout", stdout)
            for _ in loader:
                print("nowhere")
                assert sys.stdout is stdout
        settle()
    assert "epoch 0:" in text[0] and seen(text[0]) == []


def test_a_stream_that_a_program_keeps_can_be_used_after_the_line(ds, monkeypatch):
    with as_standard_streams(monkeypatch) as text:
        with Loader(ds, 6, progress=None) as loader:
            for _ in loader:
                kept = sys.stdout
        kept.writelines(["after", " it\n"])
        with pytest.raises(AttributeError):
            _ = kept.no_such_name
        assert kept.isatty()
    assert seen(text[0]) == ["after it"]
