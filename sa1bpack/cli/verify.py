"""`sa1bpack verify`: is a pack what was written?"""

import argparse
import sys

from tqdm import tqdm

from sa1bpack.cli import exits

_DESCRIPTION = """\
Check a pack: that every file is there and none is strange, that structure and offsets hold, that
the bytes are those that were written. A damaged sample is named by shard, row and image."""


def add_to(commands) -> None:
    """Add the subcommand to the parser."""
    parser = commands.add_parser(
        "verify",
        help="check a pack against its checksums",
        description=_DESCRIPTION,
        epilog=exits.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pack", metavar="PACK", help="folder of the pack")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="structure, sizes and small files only; seconds instead of a full read",
    )
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace) -> int:
    """Verify, and print every problem."""
    from sa1bpack.format.verify import verify

    with tqdm(
        unit="B", unit_scale=True, disable=not sys.stderr.isatty(), dynamic_ncols=True, leave=False
    ) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = verify(arguments.pack, quick=arguments.quick, progress=advance)
    for problem in report.problems:
        print(problem)
    counts = report.counts
    depth = "quick check" if arguments.quick else "every byte read"
    verdict = "sound" if report.ok else f"DAMAGED: {len(report.problems)} problem(s)"
    print(
        f"{arguments.pack}: {verdict}; {counts.get('samples', 0):,} images in "
        f"{counts.get('shards', 0):,} shards, {depth}"
    )
    return exits.OK if report.ok else exits.FAILED
