"""The answers of commands: lines of text, exit codes, the errors that cause these, and remedies."""

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sa1bpack import errors
from sa1bpack.wording import printable

OK = 0
FAILED = 1  # the work was done, but its result is bad: damage found, a source given up, ...
USAGE = 2  # argparse's own code: an argument is wrong, or names something that does not exist
REFUSED = 3  # nothing was started: the folder is in use, or holds what must not be touched
IO_ERROR = 4  # the disk, the machine or the network failed, or a package is missing
INCOMPLETE = 5  # of verify: what there is of the pack is sound, but there is more to come
INTERRUPTED = 130  # Ctrl-C (128 + SIGINT); 143 after SIGTERM
TERMINATED = 143

SUMMARY = """\
exit codes: 0 done, 1 something failed, 2 wrong usage, 3 refused, 4 disk or
machine error, 5 not complete (verify), 130 and 143 interrupted; see
`sa1bpack --help`"""

EXPLAINED = """\
exit codes:
  0  done
  1  done, but something failed: it is named
  2  wrong usage: an option, a path, a source or a list of sums cannot be used
  3  refused: the folder is in use, or holds something else, or a pack of
     another version, with other options, or damaged; it was left as it was
  4  disk, machine or network error, or a package is missing
  5  of verify: sound, but the pack is not complete, or has no image
  130, 143  interrupted (repeat the command to continue)"""


class Terminated(BaseException):
    """SIGTERM arrived; unwinds the stack like KeyboardInterrupt."""


_CODES = {
    FAILED: (errors.Sa1bpackError, errors.SourceTruncated, errors.SourceCorrupt),
    # A SourceError is raised before any work; later failures are in the result.
    USAGE: (errors.OptionError, errors.UnknownName, errors.NotAPack, errors.SourceError),
    REFUSED: (errors.OutputRefused, errors.VersionError),
    IO_ERROR: (
        errors.MissingPackage,
        errors.ClusterError,
        errors.ResourceShortage,
        errors.StoreError,
        errors.ThreadRefused,
        OSError,
        MemoryError,
    ),
    INTERRUPTED: (KeyboardInterrupt,),
    TERMINATED: (Terminated,),
}
ERRORS = (errors.Sa1bpackError, OSError, MemoryError, KeyboardInterrupt, Terminated)


def code_if(succeeded: bool) -> int:
    """The exit code of work that was done: OK, or FAILED if its result is bad."""
    return OK if succeeded else FAILED


def code_of(error: BaseException) -> int:
    """The exit code of an error, one of ERRORS: that of the nearest of its classes."""
    code_by_class = {kind: code for code, kinds in _CODES.items() for kind in kinds}
    return next(code_by_class[kind] for kind in type(error).__mro__ if kind in code_by_class)


_RIGHTS = "permission is missing: check owner and mode (ls -ld); use chmod, chown, or another user"
_REMEDIES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOMEM: "out of memory: use fewer --workers, or raise the limit",
    errno.ENOSPC: "the disk is full, or has no inodes left (df, df -i): free some",
    errno.EDQUOT: "the quota is used up (quota): free space, or have it raised",
    errno.EFBIG: "the limit on file sizes is too low: raise it (ulimit -f unlimited)",
    errno.EAGAIN: "the limit on processes and threads is reached: raise it (ulimit -u, the pids "
    "limit of the container), or use fewer --workers",
    errno.EMFILE: "the limit on open files is too low: raise it (ulimit -n)",
    errno.EISDIR: "a folder is where a file must be: move it away",
    errno.ENOTDIR: "a file is where a folder must be: move it away",
    errno.EXDEV: "the folder is part of the image of a container, or of another overlay, where it "
    "cannot be renamed: copy the pack into a volume, and use the copy",
    errno.EROFS: "the file system is read-only: choose another folder, or mount it for writing",
}


# Errors that come again however often a command is repeated, until the user does something.
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR)


@contextmanager
def advising(advice: str, otherwise: str | None = None) -> Iterator[None]:
    """Add advice to repeat a command to what ends the block, where repeating alone can help.

    Args:
        otherwise: advice where the user must do something first, such as write to another folder.
    """
    try:
        yield
    except (OSError, MemoryError, KeyboardInterrupt, Terminated) as error:
        lasting = isinstance(error, OSError) and error.errno in _LASTING
        if lasting and otherwise:
            error.add_note(otherwise)
        elif advice and not lasting:
            error.add_note(advice)
        raise


@contextmanager
def refusing_damage() -> Iterator[None]:
    """Refuse a folder for damage of what it held before: what a run writes itself is sound."""
    try:
        yield
    except errors.NotAPack:
        raise
    except errors.FormatError as error:
        raise errors.OutputRefused(str(error)) from error


def remedy(error: BaseException) -> str | None:
    """The remedy for an error of the disk or the machine, if known."""
    if isinstance(error, MemoryError):
        return _REMEDIES[errno.ENOMEM]
    return _REMEDIES.get(getattr(error, "errno", None) or 0)


# ------------------------------------------------------------------------------------ lines of text


def say(text: object) -> None:
    """Print a result to standard output; what would control a terminal is escaped.

    An error names the stream, as those of a file name the file.
    """
    try:
        print(printable(text))
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        discard_output()
        raise


def say_json(record: dict[str, object]) -> None:
    """Print an object on one line, in ASCII."""
    say(json.dumps(record))


def warn(text: object) -> None:
    """Print to standard error, after the name of the program.

    What cannot be printed, as to a log on a full disk, changes neither the work nor the exit code.
    """
    with suppress(OSError):
        print(f"sa1bpack: {printable(text)}", file=sys.stderr)


def discard_output() -> None:
    """Discard what standard output cannot take, so that the interpreter does not fail on it too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
