"""Exit codes of every command, the errors that lead to them, and what to do about some."""

import errno

from sa1bpack.errors import (
    NotAPack,
    OptionError,
    OutputRefused,
    Sa1bpackError,
    SourceCorrupt,
    SourceError,
    SourceTruncated,
    VersionError,
)

OK = 0
FAILED = 1  # the work was done, and its result is bad: damage found, a source given up, ...
USAGE = 2  # argparse's own code: an argument is wrong, or what it names is not there
REFUSED = 3  # nothing was begun: the folder is in use, or holds what is not to be touched
IO_ERROR = 4  # the disk or the machine failed: free space and repeat
INTERRUPTED = 130  # Ctrl-C (128 + SIGINT); 143 after SIGTERM
TERMINATED = 143

EPILOG = """exit codes:
  0  done            1  done, but something failed (it is named)
  2  wrong usage: an option, a path, a source or a list of sums cannot be used
  3  refused: the folder is in use, or holds something else, or a pack that is
     of another version, is damaged or has other options; it is as it was
  4  disk or machine error
  130, 143  interrupted (repeat the command to go on)"""


class Terminated(BaseException):
    """SIGTERM arrived; unwinds like KeyboardInterrupt."""


# The first that fits.
_CODES = (
    ((SourceTruncated, SourceCorrupt), FAILED),
    # A SourceError is raised before any work; what fails later is in the result.
    ((OptionError, NotAPack, SourceError), USAGE),
    ((OutputRefused, VersionError), REFUSED),
    (Sa1bpackError, FAILED),
    ((OSError, MemoryError), IO_ERROR),
    (KeyboardInterrupt, INTERRUPTED),
    (Terminated, TERMINATED),
)
ERRORS = (Sa1bpackError, OSError, MemoryError, KeyboardInterrupt, Terminated)


def code_of(error: BaseException) -> int:
    """The exit code of an error, one of ERRORS."""
    return next(code for errors, code in _CODES if isinstance(error, errors))


_MORE_MEMORY = "memory is short: take fewer --workers, or raise its limit"
_RIGHTS = "permission is missing: check owner and mode (ls -ld); use chmod, chown, or another user"
_REMEDIES = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOMEM: _MORE_MEMORY,
    errno.ENOSPC: "the disk is full, or has no inodes left (df, df -i): free some",
    errno.EDQUOT: "the quota is used up (quota): free space, or have it raised",
    errno.EFBIG: "the limit on the size of a file is too low: ulimit -f unlimited",
    errno.EMFILE: "the limit of open files is too low: raise it (ulimit -n)",
    errno.EROFS: "the file system is read-only: choose another folder, or mount it for writing",
}


# Errors that come again however often a command is repeated, until the user does something.
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS)


def advise(error: BaseException, advice: str) -> None:
    """Add advice to repeat a command to what an error says, where repeating alone can help."""
    if not (isinstance(error, OSError) and error.errno in _LASTING):
        error.add_note(advice)


def remedy(error: BaseException) -> str | None:
    """What to do about an error of the disk or the machine, where that is known."""
    if isinstance(error, MemoryError):
        return _MORE_MEMORY
    return _REMEDIES.get(error.errno) if isinstance(error, OSError) else None
