"""Exit codes of every command, the errors that lead to them, and what to do about some."""

import errno

OK = 0
FAILED = 1  # the work was done, and its result is bad: damage found, a source given up, ...
USAGE = 2  # argparse's own code: an argument is wrong, or what it names is not there
REFUSED = 3  # the output folder belongs to another process or holds something else
IO_ERROR = 4  # the disk or the machine failed: free space and repeat
INTERRUPTED = 130  # Ctrl-C (128 + SIGINT); 143 after SIGTERM
TERMINATED = 143

EPILOG = """exit codes:
  0  done            1  done, but something failed (it is named)
  2  wrong usage: an option, a source or a list of sums cannot be used
  3  refused: OUT is in use, or holds something else or a pack with other options
  4  disk or machine error    130, 143  interrupted (repeat the command to go on)"""


_MORE_MEMORY = "memory is short: take fewer --workers, or raise its limit"
_REMEDIES = {
    errno.ENOMEM: _MORE_MEMORY,
    errno.ENOSPC: "the disk is full, or has no inodes left (df, df -i): free some",
    errno.EDQUOT: "the quota is used up (quota): free space, or have it raised",
    errno.EFBIG: "the limit on the size of a file is too low: ulimit -f unlimited",
    errno.EMFILE: "the limit of open files is too low: raise it (ulimit -n)",
    errno.EROFS: "the disk can only be read: another folder is needed, or another mount",
}


def add_remedy(error: BaseException) -> None:
    """Note on an error of the disk or the machine what to do before the command is repeated."""
    if isinstance(error, MemoryError):
        error.add_note(_MORE_MEMORY)
    elif isinstance(error, OSError) and error.errno in _REMEDIES:
        error.add_note(_REMEDIES[error.errno])


class Terminated(BaseException):
    """SIGTERM arrived; unwinds like KeyboardInterrupt."""
