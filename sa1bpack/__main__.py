"""`python -m sa1bpack` is the `sa1bpack` command."""

import sys

from sa1bpack.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
