"""A terminal with bars of progress: what a program prints appears above them.

A bar stays where the cursor is, so that a `print` would continue its line, and the next change of
the bar would overwrite that. While bars are shown, `sys.stdout` and `sys.stderr` remove them before
they write, and draw them again below complete lines. An incomplete one (`print(".", end="")`) hides
them until it ends.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol, TextIO


class ShownBar(Protocol):
    """What is drawn on the last line of a terminal."""

    def clear(self, nolock: bool = False) -> None:
        """Remove it."""

    def refresh(self, nolock: bool = False) -> Any:
        """Draw it again."""

    def get_lock(self) -> Any:
        """The lock under which it is drawn."""


class Screen:
    """The bars that this process shows on its terminal, and what is printed meanwhile.

    Attributes:
        bars: the bars that are shown.
        in_line: the line of the cursor has been begun by what was printed last: no bar can be drawn
            there.
    """

    def __init__(self) -> None:
        self.bars: list[ShownBar] = []
        self.in_line = False
        self._pid = os.getpid()

    def stream_of_bars(self) -> Any:
        """Standard error, for a bar."""
        stream = sys.stderr
        if isinstance(stream, AboveBars):
            stream = stream.stream
        return BarStream(stream, self)

    def show(self, bar: ShownBar) -> None:
        """Note that a bar is shown from now on."""
        with bar.get_lock():
            if self._pid != os.getpid():  # what the parent showed is the parent's
                self.bars = []
                self._pid = os.getpid()
            if not self.bars:
                self.in_line = False
            self.bars.append(bar)
            sys.stdout = self._above_bars(sys.stdout)
            sys.stderr = self._above_bars(sys.stderr)

    def hide(self, bar: ShownBar) -> None:
        """Note that a bar is no longer shown, if it was."""
        with bar.get_lock():
            others = [shown for shown in self.bars if shown is not bar]
            was_last = len(self.bars) > len(others) == 0
            self.bars = others
            if not was_last or self._pid != os.getpid():
                return
            self.in_line = False
            # A program may keep and use these: without bars they change nothing.
            if isinstance(sys.stdout, AboveBars):
                sys.stdout = sys.stdout.stream
            if isinstance(sys.stderr, AboveBars):
                sys.stderr = sys.stderr.stream

    def _above_bars(self, stream: TextIO) -> Any:
        """What stands for a standard stream while bars are shown, if it leads to a terminal."""
        if isinstance(stream, AboveBars) or not is_terminal(stream):
            return stream
        return AboveBars(stream, self)

    @property
    def is_drawn_on(self) -> bool:
        """True if this process shows a bar."""
        return bool(self.bars) and self._pid == os.getpid()


class AboveBars:
    """A standard stream whose text appears above the bars of a screen.

    Everything else is that of the stream.

    Attributes:
        stream: the stream.
    """

    def __init__(self, stream: TextIO, screen: Screen):
        self.stream = stream
        self._screen = screen

    def write(self, text: str) -> int:
        """Write text, and draw the bars again where it has ended a line."""
        screen = self._screen
        if not text or not screen.is_drawn_on:
            return self.stream.write(text)
        bars = list(screen.bars)
        with bars[0].get_lock():
            for bar in bars:
                bar.clear(nolock=True)
            count = self.stream.write(text)
            self.stream.flush()
            screen.in_line = not text.endswith("\n")
            for bar in bars:
                bar.refresh(nolock=True)
        return count

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class BarStream:
    """The stream that a bar is drawn on, unless it would be drawn over what was printed.

    Everything else is that of the stream.
    """

    def __init__(self, stream: TextIO, screen: Screen):
        self._stream = stream
        self._screen = screen

    def write(self, text: str) -> int:
        """Draw. No work ends for a bar: where it cannot be drawn, as on a full disk, it is not."""
        if not self._screen.in_line and self._stream is not None:
            with suppress(OSError):
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was drawn, if that can be."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_terminal(stream: TextIO | None) -> bool:
    """True if what is written to a stream is seen on a terminal."""
    if stream is None:
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # what a program has put in its place, or it is closed
        return False


SCREEN = Screen()
