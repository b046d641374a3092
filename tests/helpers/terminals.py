"""A terminal that keeps what is seen on it."""

import os
import pty
import re
import sys
import termios
import threading
from contextlib import contextmanager, suppress

from sa1bpack.finalizers import settle

# Cursor up, a new line, back to its beginning, or text.
_PIECES = re.compile(r"\x1b\[A|\n|\r|[^\x1b\n\r]+")


def seen(text: str) -> list[str]:
    """The lines of a terminal after it has received a text, without spaces at their ends."""
    lines = [""]
    row = 0
    column = 0
    for piece in _PIECES.findall(text):
        if piece == "\x1b[A":
            row = max(0, row - 1)
        elif piece == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\r":
            column = 0
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + piece + line[column + len(piece) :]
            column += len(piece)
    lines = [line.rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


class Terminal:
    """A pseudo-terminal of 80 columns, which a thread reads."""

    def __init__(self):
        self._mine, self.its = pty.openpty()
        termios.tcsetwinsize(self.its, (24, 80))
        self._received = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        with suppress(OSError):  # how Linux reports that the other end is closed
            while piece := os.read(self._mine, 65536):
                self._received += piece

    def close(self) -> str:
        """What it has received."""
        os.close(self.its)
        self._thread.join(20)
        os.close(self._mine)
        return self._received.decode()


@contextmanager
def as_standard_streams(monkeypatch):
    """Standard output and error lead to a terminal. Yields a list, to which its text is added."""
    terminal = Terminal()
    text = []
    with (
        os.fdopen(os.dup(terminal.its), "w", buffering=1, encoding="utf-8") as out,
        os.fdopen(os.dup(terminal.its), "w", buffering=1, encoding="utf-8") as err,
        monkeypatch.context() as patch,
    ):
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        yield text
        settle()
        assert (sys.stdout, sys.stderr) == (out, err)
    text.append(terminal.close())
