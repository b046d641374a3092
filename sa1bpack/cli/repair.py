"""`sa1bpack repair`: rebuild what is damaged."""

import argparse
import sys

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import part, user_path, whole
from sa1bpack.cli.engine import add_engine, on_ray
from sa1bpack.cli.output import say
from sa1bpack.errors import OptionError
from sa1bpack.format.completeness import remedy_of
from sa1bpack.interrupts import interrupts_held
from sa1bpack.wording import counted, printable

_DESCRIPTION = """\
Check a pack as `verify` does, and rebuild what is damaged or missing: shards
from the tars that they were packed from, and the pack's own files (manifest,
index, checksums, ...) from the shards. The result has the same bytes as an
undamaged pack. Sound shards are neither decoded nor changed.

Give all tars of the pack; those that are not needed are not read. A tar must
be the very file that was packed: its size, digest and images are compared. A
damaged shard stays in place until its replacement is complete. Interrupted?
Repeat the command."""

_EPILOG = """\
examples:
  sa1bpack repair /data/packed '/data/sa_*.tar' --workers 16
which tars are needed:
  sa1bpack repair /data/packed '/data/sa_*.tar' --dry-run
one shard, named by verify:
  sa1bpack repair /data/packed '/data/sa_*.tar' --shard sa_000012-001
manifest, index and checksums only:
  sa1bpack repair /data/packed --quick
a job array of 100, each for the shards of every 100th tar:
  sa1bpack repair /data/packed '/data/sa_*.tar' --part 7/100
on a Ray cluster (pip install 'sa1bpack[ray]'):
  sa1bpack repair /data/packed '/data/sa_*.tar' --engine ray --address auto

A part names what concerns the whole pack, such as a damaged index, with the
command that repairs it once all parts have ended.

Files that do not belong to the pack are listed and never touched: move or
remove them yourself.

Exit code 0 means that the pack is sound now (with --dry-run: that all can be
repaired), 1 that something is still damaged, or does not belong to the pack;
each is named, with the remedy."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("pack", type=user_path, metavar="PACK", help="folder of the pack")
    parser.add_argument(
        "sources", nargs="*", metavar="TAR",
        help="tars and folders that the pack was made from, quoted globs, or URLs of tars",
    )  # fmt: skip
    parser.add_argument(
        "--links", type=user_path, metavar="FILE",
        help="tars at URLs as well, in a list as for `sa1bpack pack --links`; only those that are "
        "needed are downloaded",
    )  # fmt: skip
    parser.add_argument(
        "--shard", action="append", default=[], metavar="NAME",
        help="read only this shard in full, and check the others quickly; may be repeated "
        "(default: read all)",
    )  # fmt: skip
    parser.add_argument(
        "--quick",
        action="store_true",
        help="check structure, sizes and small files only, and read in full what --shard names",
    )
    parser.add_argument(
        "--part", metavar="K/N",
        help="check and rebuild the shards of every N-th tar only, from the K-th on, such as 3/8; "
        "other parts may work in the same folder at the same time",
    )  # fmt: skip
    add_engine(parser, "the shards of each tar are a task, and --workers is per task, by default 1")
    parser.add_argument(
        "--workers",
        type=whole,
        metavar="N",
        help="worker processes (default: all processors; per task of a Ray cluster 1)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check, and print what would be done; write nothing"
    )
    parser.set_defaults(run=run_repair)


def run_repair(arguments: argparse.Namespace) -> int:
    """Repair, and print what was damaged and what was done."""
    job_part = part(arguments.part)
    if job_part is not None and arguments.shard:
        raise OptionError("--part has the shards of its tars: leave out --shard")
    if on_ray(arguments, "part", "dry_run", "shard"):
        with interrupts_held():
            from sa1bpack.cluster.repair import repair_on_ray as repair

        more = {"address": arguments.address}
    else:
        with interrupts_held():
            from sa1bpack.packing.repair.run import repair

        more = {"shards": arguments.shard, "part": job_part, "dry_run": arguments.dry_run}
    try:
        result = repair(
            arguments.pack, arguments.sources, quick=arguments.quick, links=arguments.links,
            workers=arguments.workers, **more,
        )  # fmt: skip
    except (OSError, MemoryError, KeyboardInterrupt, exits.Terminated) as error:
        advice = "nothing sound was touched; repeat the same command to continue from here"
        exits.advise(error, advice)
        raise
    for problem in result.problems:
        print(printable(problem))
    rebuilt, rewrote = (
        ("would rebuild", "would rewrite") if result.dry_run else ("rebuilt", "rewrote")
    )
    if result.repaired:
        names = ", ".join(result.repaired)
        say(f"{rebuilt} {counted(len(result.repaired), 'shard')}: {names}")
    if result.rewritten:
        say(f"{rewrote} the pack's own files")
    for name, reason in result.left.items():
        print(f"sa1bpack: {name} is still damaged: {printable(reason)}", file=sys.stderr)
    if not result.complete:
        say(f"NOT COMPLETE: {remedy_of(result.root)}")
    of = "" if job_part is None else "part {}/{}: ".format(*job_part)
    say(f"{result.root}: {of}{_verdict(result)}")
    return exits.OK if result.ok else exits.FAILED


def _verdict(result) -> str:
    verdicts = []
    if damage := len(result.problems) - len(result.extra):
        if result.left:
            outcome = "STILL DAMAGED"
        else:
            outcome = "nothing was written" if result.dry_run else "repaired"
        verdicts.append(f"{counted(damage, 'problem')} found, {outcome}")
    if result.extra:
        one = len(result.extra) == 1
        foreign = (
            f"{len(result.extra):,} found that {'does' if one else 'do'} not belong to the pack"
        )
        verdicts.append(f"{foreign}: move or remove {'it' if one else 'them'}, see above")
    return "; ".join(verdicts) or "sound, nothing to repair"
