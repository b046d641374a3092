"""Entry point of the `sa1bpack` command."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import TextIO

from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import in_flags, parse
from sa1bpack.errors import OptionError, PackError
from sa1bpack.wording import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = argparse.Namespace(shown_names={})
    show = sys.unraisablehook
    try:
        sys.unraisablehook = lambda lost: _show_unless_recorded(lost, show)
        _open_closed_streams()
        _handle_signals()
        with redirect_stdout(_Output(sys.stdout)):
            with interrupts.interrupts_held():  # while modules load, which may catch anything
                options = parse(list(sys.argv[1:] if arguments is None else arguments))
            code = options.run()
            interrupts.check()
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        return exits.FAILED
    except exits.ERRORS as error:
        _complain(error, options)
        return exits.code_of(error)
    finally:
        sys.unraisablehook = show


def _show_unless_recorded(lost: "sys.UnraisableHookArgs", show: Callable) -> None:
    """Leave out an interruption that Python lost in a finalizer: `interrupts.check` raises it."""
    if not issubclass(lost.exc_type, (KeyboardInterrupt, exits.Terminated)):
        show(lost)


def _open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that the caller has closed.

    Otherwise the next file opened, one of the pack, would become standard output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


class _Output:
    """Standard output that escapes what its encoding lacks, and whose errors name it.

    Those of a stream name no file. After an error, buffered output is discarded, so that the
    interpreter does not fail on it too.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        shown = text.encode(encoding, "backslashreplace").decode(encoding)
        return self._named(self._stream.write, shown)

    def flush(self) -> None:
        self._named(self._stream.flush)

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def _named(self, call: Callable, *arguments):
        try:
            return call(*arguments)
        except OSError as error:
            error.filename = "standard output"
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise


def _handle_signals() -> None:
    """Let SIGINT and SIGTERM end the command, unless the caller had them ignored (nohup)."""
    interrupts.forget()
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def _on_signal(number, frame):
    interrupts.record(number)
    raise KeyboardInterrupt if number == signal.SIGINT else exits.Terminated


def _complain(error: BaseException, options: argparse.Namespace) -> None:
    """Print to stderr what happened, the remedy, and the notes added to the error."""
    match error:
        case KeyboardInterrupt():
            what = "interrupted"
        case exits.Terminated():
            what = "terminated"
        case OptionError() | PackError():
            what = in_flags(str(error), options.shown_names)
        case _:
            what = error
    for line in (what, exits.remedy(error), *getattr(error, "__notes__", ())):
        if line is not None:
            print(f"sa1bpack: {printable(line)}", file=sys.stderr)
