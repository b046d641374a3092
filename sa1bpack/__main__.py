"""The `sa1bpack` command, also as `python -m sa1bpack`.

Its modules take a while to load. Ctrl-C must work meanwhile, so nothing is imported up here.
"""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from sa1bpack.interrupts import end_at_once, interrupts_held

        with interrupts_held():
            from sa1bpack.cli.main import main as run

        code = run()
        end_at_once()
        return code
    except KeyboardInterrupt:  # before `run` handles signals, or again while it ends
        print("sa1bpack: interrupted", file=sys.stderr)
        return 130  # exits.INTERRUPTED, which may not have been loaded


if __name__ == "__main__":
    sys.exit(main())
