"""Every feature of reading crossed with every other: cases drawn from seeds.

    python tests/crossing/run.py --seed 1234            # one case
    python tests/crossing/run.py --seed 0 --count 500   # many; each that fails is named

The seed of a case is printed before it begins, so it is known also of one that ends the process.
"""

import argparse
import faulthandler
import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path

# A case that takes longer hangs: it prints the stacks of all threads, and ends the process.
SECONDS = 120


def main() -> int:
    """Run the cases; the status is 1 if any failed."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
    from crossing import run_case
    from packs import Packs
    from page_cache import why_not_direct

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, required=True, help="of the first case")
    parser.add_argument("--count", type=int, default=1, help="cases, of successive seeds")
    parser.add_argument("--folder", type=Path, help="of the packs, which are kept there")
    arguments = parser.parse_args()
    faulthandler.enable()
    os.fsync = lambda descriptor: None  # it would take most of the time
    logging.getLogger("sa1bpack").setLevel(logging.ERROR)
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        packs = Packs((arguments.folder or Path(temporary)).resolve())
        direct = why_not_direct(packs.folder) is None
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            print(f"case {seed}", flush=True)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                run_case(seed, packs, direct)
            except Exception:
                failed += 1
                traceback.print_exc(file=sys.stdout)
                again = f"OMP_NUM_THREADS=1 python tests/crossing/run.py --seed {seed}"
                print(f"failed: {again}", flush=True)
            finally:
                faulthandler.cancel_dump_traceback_later()
    print(f"{arguments.count - failed} of {arguments.count} cases passed")
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
