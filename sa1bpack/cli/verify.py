"""`sa1bpack verify`: is a pack what was written?"""

import argparse

from sa1bpack.cli import exits
from sa1bpack.cli.byte_bar import byte_bar
from sa1bpack.wording import counted, printable

_DESCRIPTION = """\
Check a pack: that every file is there and none is strange, that structure and offsets hold, that
the bytes are those that were written. A damaged sample is named by shard, row and image."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the subcommand's parser its description and its arguments."""
    parser.description = _DESCRIPTION
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

    with byte_bar() as advance:
        report = verify(arguments.pack, quick=arguments.quick, progress=advance)
    for line in (*report.problems, *report.notes):
        print(printable(line))
    if not report.complete:
        print("NOT COMPLETE: repeat the pack command")
    if any(not problem.extra for problem in report.problems):
        print(f"to mend it, keeping what is sound: sa1bpack repair {arguments.pack} TARS")
    counts = report.counts
    print(
        f"{arguments.pack}: {_verdict(report)}; {counted(counts.get('samples', 0), 'image')} in "
        f"{counted(counts.get('shards', 0), 'shard')}, "
        f"{'quick check' if arguments.quick else 'every byte read'}"
    )
    return exits.OK if report.ok else exits.FAILED


def _verdict(report) -> str:
    verdict = "sound" if report.ok else f"DAMAGED: {counted(len(report.problems), 'problem')}"
    return verdict if report.complete else f"{verdict}, NOT COMPLETE"
