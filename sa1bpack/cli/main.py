"""Entry point of the `sa1bpack` command."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper

from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import in_flags, parse
from sa1bpack.cli.output import discard_output, warn
from sa1bpack.errors import OptionError, PackError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = argparse.Namespace(shown_names={})
    show = sys.unraisablehook
    try:
        sys.unraisablehook = lambda lost: _show_unless_recorded(lost, show)
        _open_closed_streams()
        _handle_signals()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with interrupts.interrupts_held():  # while modules load, which may catch anything
            options = parse(list(sys.argv[1:] if arguments is None else arguments))
        code = options.run()
        interrupts.check()
        return code
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        discard_output()
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
            warn(line)
