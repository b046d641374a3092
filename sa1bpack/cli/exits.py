"""Exit codes of every command, and the errors that lead to them."""

OK = 0
FAILED = 1  # the work was done, and its result is bad: damage found, a source given up, ...
USAGE = 2  # an argument or option cannot be used (argparse's own code)
REFUSED = 3  # the output folder belongs to another process or holds another pack
IO_ERROR = 4  # the disk or the machine failed: free space and repeat
INTERRUPTED = 130  # Ctrl-C (128 + SIGINT); 143 after SIGTERM
TERMINATED = 143

EPILOG = """exit codes:
  0  done            1  done, but something failed (it is named)
  2  wrong usage     3  refused: folder in use, or packed with other options
  4  disk or machine error    130, 143  interrupted (repeat the command to go on)"""
