"""Entry point of the `sa1bpack` command."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper

from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import in_flags, parse
from sa1bpack.cli.exits import discard_output, warn
from sa1bpack.errors import OptionError, PackError, UserCodeError

_ENDED_BY = {KeyboardInterrupt: "interrupted", exits.Terminated: "terminated"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = argparse.Namespace(shown_names={})
    try:
        _open_closed_streams()
        _handle_signals()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with interrupts.interrupts_held():  # while modules load, which may catch anything
            options = parse(list(sys.argv[1:] if arguments is None else arguments))
        code: int = options.run()
        interrupts.check()
        return code
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        discard_output()
        return exits.FAILED
    except exits.ERRORS as error:
        text = _ENDED_BY.get(type(error), str(error))
        if isinstance(error, UserCodeError) and error.__cause__ is not None:
            with suppress(OSError):  # as `warn`
                traceback.print_exception(error.__cause__)  # of the user's function, to correct it
        if isinstance(error, OptionError | PackError):
            text = in_flags(text, options.shown_names)
        warn(text)
        if remedy := exits.remedy(error):
            warn(remedy)
        for note in getattr(error, "__notes__", ()):
            warn(note)
        return exits.code_of(error)


def _open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that the caller has closed.

    Otherwise the next file opened, one of the pack, would become standard output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _handle_signals() -> None:
    """Let SIGINT and SIGTERM end the command, unless the caller had them ignored (nohup)."""
    interrupts.forget()
    sys.unraisablehook = _show_unless_recorded
    for number in interrupts.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: object) -> None:
    interrupts.record(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise exits.Terminated


def _show_unless_recorded(lost: "sys.UnraisableHookArgs") -> None:
    """Leave out an interruption that Python lost in a callback: `interrupts.check` raises it."""
    if not issubclass(lost.exc_type, (KeyboardInterrupt, exits.Terminated)):
        sys.__unraisablehook__(lost)
