"""`sa1bpack repair`: rebuild what is damaged."""

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Job
from sa1bpack.cli.output import say, warn
from sa1bpack.errors import OptionError
from sa1bpack.format.completeness import remedy_of
from sa1bpack.interrupts import interrupts_held
from sa1bpack.wording import counted


def run(
    pack: str,
    sources: list[str] = (),
    *,
    links: str | None = None,
    shard: list[str] = (),
    quick: bool = False,
    job: Job,
    workers: int | None = None,
    dry_run: bool = False,
) -> int:
    """Check a pack as `verify` does, and rebuild what is damaged or missing: shards
    from the tars that they were packed from, and the pack's own files (manifest,
    index, checksums, ...) from the shards. The result has the same bytes as an
    undamaged pack. Sound shards are neither decoded nor changed.

    Give all tars of the pack; those that are not needed are not read. A tar must
    be the very file that was packed: its size, digest and images are compared. A
    damaged shard stays in place until its replacement is complete. Interrupted?
    Repeat the command.

    Args:
        pack (PACK): folder of the pack
        sources (TAR): tars and folders that the pack was made from, quoted globs, or URLs
            of tars
        links (FILE): tars at URLs as well, in a list as for `sa1bpack pack --links`; only
            those that are needed are downloaded
        shard (NAME): read only this shard in full, and check the others quickly; may be
            repeated (default: read all)
        quick: check structure, sizes and small files only, and read in full what --shard
            names
        part (K/N): check and rebuild the shards of every N-th tar only, from the K-th on,
            such as 3/8; other parts may work in the same folder at the same time
        engine: where the work is done: on this machine, or on a Ray cluster whose nodes
            share all folders: the shards of each tar are a task, and --workers is per task,
            by default 1
        address (ADDRESS): of the Ray cluster (default: RAY_ADDRESS, or this machine alone)
        workers (N): worker processes (default: all processors; per task of a Ray cluster 1)
        dry_run: check, and print what would be done; write nothing

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
    each is named, with the remedy.
    """
    if job.share is not None and shard:
        raise OptionError("--part has the shards of its tars: leave out --shard")
    if job.on_ray(dry_run=dry_run, shard=shard):
        with interrupts_held():
            from sa1bpack.cluster.repair import repair_on_ray as repair

        more = {"address": job.address}
    else:
        with interrupts_held():
            from sa1bpack.packing.repair import repair

        more = {"shards": shard, "part": job.share, "dry_run": dry_run}
    with exits.advising("nothing sound was touched; repeat the same command to continue from here"):
        result = repair(pack, sources, quick=quick, links=links, workers=workers, **more)
    for problem in result.problems:
        say(problem)
    rebuilt, rewrote = (
        ("would rebuild", "would rewrite") if result.dry_run else ("rebuilt", "rewrote")
    )
    if result.repaired:
        names = ", ".join(result.repaired)
        say(f"{rebuilt} {counted(len(result.repaired), 'shard')}: {names}")
    if result.rewritten:
        say(f"{rewrote} the pack's own files")
    for name, reason in result.left.items():
        warn(f"{name} is still damaged: {reason}")
    if not result.complete:
        say(f"NOT COMPLETE: {remedy_of(result.root)}")
    say(f"{result.root}: {job.prefix}{_verdict(result)}")
    return exits.OK if result.ok else exits.FAILED


def _verdict(result) -> str:
    verdicts = []
    if damage := len(result.problems) - len(result.extra):
        if result.left:
            outcome = "STILL DAMAGED"
        else:
            outcome = "nothing was written" if result.dry_run else "repaired"
        verdicts.append(f"{counted(damage, 'problem')} found, {outcome}")
    if count := len(result.extra):
        does, it = ("does", "it") if count == 1 else ("do", "them")
        verdicts.append(
            f"{count:,} found that {does} not belong to the pack: move or remove {it}, see above"
        )
    return "; ".join(verdicts) or "sound, nothing to repair"
