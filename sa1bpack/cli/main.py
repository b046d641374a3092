"""Entry point of the `sa1bpack` command."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from sa1bpack import __version__
from sa1bpack.cli import exits, info, pack, verify
from sa1bpack.errors import OptionError, OptionsDiffer, OutputLocked, Sa1bpackError

_COMMANDS = (pack, verify, info)


class _Terminated(BaseException):
    """SIGTERM arrived; unwinds like KeyboardInterrupt."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except OptionError as error:
        return _complain(error, exits.USAGE)
    except (OptionsDiffer, OutputLocked) as error:
        return _complain(error, exits.REFUSED)
    except Sa1bpackError as error:
        return _complain(error, exits.FAILED)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.FAILED
    except (OSError, MemoryError) as error:
        return _complain(error, exits.IO_ERROR)
    except KeyboardInterrupt:
        return _complain("interrupted", exits.INTERRUPTED)
    except _Terminated:
        return _complain("terminated", exits.TERMINATED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sa1bpack",
        description="Decode SA-1B tars once into memory-mapped Zarr v3 shards, and check them.",
        epilog=exits.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sa1bpack {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return parser


def _on_sigterm(signum, frame):
    raise _Terminated


def _complain(what: object, code: int) -> int:
    print(f"sa1bpack: {what}", file=sys.stderr)
    for note in getattr(what, "__notes__", ()):
        print(f"  {note}", file=sys.stderr)
    if code in (exits.INTERRUPTED, exits.TERMINATED, exits.IO_ERROR):
        print("sa1bpack: repeat the same command to go on from here", file=sys.stderr)
    return code
