"""Entry point of the `sa1bpack` command."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from sa1bpack.cli import exits
from sa1bpack.errors import (
    OptionError,
    OutputRefused,
    Sa1bpackError,
    SourceCorrupt,
    SourceError,
    SourceTruncated,
)
from sa1bpack.wording import printable

# Command, which is also the name of its module → its line in the help.
_COMMANDS = {
    "pack": "decode tars into shards",
    "verify": "check a pack against its checksums",
    "repair": "make anew what is damaged in a pack, from its tars",
    "export": "write the annotations of a pack as SA-1B JSON or COCO JSON",
    "info": "show what is in a pack, or what runs here",
    "show": "draw samples of a pack with their masks, as a PNG",
    "report": "write a page about a pack, as HTML",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        _open_closed_streams()
        signal.signal(signal.SIGTERM, _on_sigterm)
        arguments = sys.argv[1:] if arguments is None else arguments
        options = make_parser(arguments).parse_args(arguments)
        code = options.run(options)
        sys.stdout.flush()
        return code
    except OptionError as error:
        return _complain(error, error, exits.USAGE)
    except (SourceTruncated, SourceCorrupt) as error:
        return _complain(error, error, exits.FAILED)
    except SourceError as error:  # before any work; what fails later is in the result
        return _complain(error, error, exits.USAGE)
    except OutputRefused as error:
        return _complain(error, error, exits.REFUSED)
    except Sa1bpackError as error:
        return _complain(error, error, exits.FAILED)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        _drop_output()
        return exits.FAILED
    except (OSError, MemoryError) as error:
        return _complain(error, error, exits.IO_ERROR)
    except KeyboardInterrupt as error:
        return _complain("interrupted", error, exits.INTERRUPTED)
    except exits.Terminated as error:
        return _complain("terminated", error, exits.TERMINATED)


def make_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Make the parser. Only commands that `arguments` name get their options.

    Their defaults come from modules that take a while to load; `sa1bpack --help` needs none.
    """
    from sa1bpack import __version__

    parser = argparse.ArgumentParser(
        prog="sa1bpack",
        description="Decode SA-1B tars once into memory-mapped Zarr v3 shards, and check them.",
        epilog=exits.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sa1bpack {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            epilog=exits.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in arguments:
            import_module(f"sa1bpack.cli.{name}").add_options(command)
    return parser


def _open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that the caller has closed.

    Else the next file that is opened, one of the pack, would be standard output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _drop_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not fail on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _on_sigterm(signum, frame):
    raise exits.Terminated


def _complain(what: object, error: BaseException, code: int) -> int:
    """Say what happened on stderr, with the notes that the error collected on its way."""
    print(f"sa1bpack: {printable(what)}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(f"sa1bpack: {printable(note)}", file=sys.stderr)
    return code
