"""Exit codes of every command, and the errors that lead to them."""

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


class Terminated(BaseException):
    """SIGTERM arrived; unwinds like KeyboardInterrupt."""
