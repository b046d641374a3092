"""`sa1bpack verify` and `repair`: packs are kept sound."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import sa1bpack
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Address, Engine, Help, Machines
from sa1bpack.cli.exits import say, say_json, warn
from sa1bpack.disk.direct import IO
from sa1bpack.errors import OptionError
from sa1bpack.format.manifest import remedy_of
from sa1bpack.format.problems import Problem, Report
from sa1bpack.interrupts import interrupts_held
from sa1bpack.paths import paths_of
from sa1bpack.urls import is_pack_url, pack_url
from sa1bpack.wording import counted

if TYPE_CHECKING:
    pass


def verify(
    packs: Annotated[
        list[str],
        Help(
            "folders of packs, whose features in PACK/side are checked too; of features "
            "elsewhere; quoted globs; or URLs of either",
            "PACK",
        ),
    ],
    *,
    quick: Annotated[
        bool, Help("structure, sizes and small files only: seconds per tar, not a full read")
    ] = False,
    io: Annotated[
        str,
        Help(
            "direct reads past the page cache, cached through it; auto reads past it if the pack "
            "takes more than half of the memory",
            choices=IO,
        ),
    ] = "auto",
    part: Annotated[
        str | None,
        Help(
            "check every N-th shard only, from the K-th on, such as 3/8; the first part also "
            "checks the pack's own files",
            "K/N",
        ),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    json: Annotated[
        bool,
        Help(
            "print an object on one line in place of the text: pack, part, ok, complete, counts, "
            "problems, notes; a line per pack"
        ),
    ] = False,
) -> int:
    """Check a pack: that no file is missing and none is foreign, that structure and
    offsets are valid, and that the bytes are those that were written. A damaged
    sample is named by shard, row and image. Several packs are checked one after
    the other; the exit code is that of the worst.

    Exit code 0 means that each pack is sound and complete, 1 that damage was
    found, 5 that a pack is sound, but not complete or without any image.

    examples:
      sa1bpack verify /data/packed
      sa1bpack verify '/data/packs/*' --quick
      sa1bpack verify /home/teacher    # a feature outside its pack
      sa1bpack verify s3://bucket/packed
    a job array of 20; the pack is sound if no part fails:
      sa1bpack verify /data/packed --part 3/20 --json > verify-3.json
    on a Ray cluster (pip install ray), where each shard is a task:
      sa1bpack verify /data/packed --engine ray --address auto
    """
    machines = Machines(part, engine, address)
    places: list[str | Path] = []
    for text in packs:
        if is_pack_url(text):
            places.append(pack_url("pack", text))
        else:
            places += paths_of("pack", text)
    if machines.on_ray() and (urls := list(filter(is_pack_url, places))):
        raise OptionError(f"--engine ray checks shared folders, not {urls[0]}: use --part K/N")
    codes = []
    for pack in places:
        report = _report(pack, quick, io, machines)
        code, verdict = _verdict(report, quick, whole=machines.part is None)
        codes.append(code)
        if json:
            say_json({"pack": str(pack), "part": machines.part, "ok": report.ok, **asdict(report)})
            continue
        for line in (*report.problems, *report.notes):
            say(line)
        if report.complete is False:
            say(f"NOT COMPLETE: {remedy_of(Path(pack))}")
        for line in advice(str(pack), report.problems):
            say(line)
        say(f"{pack}: {machines.prefix}{verdict}")
    return next((code for code in (exits.FAILED, exits.INCOMPLETE) if code in codes), exits.OK)


def _report(pack: str | Path, quick: bool, io: str, machines: Machines) -> Report:
    if machines.engine != "ray":
        return sa1bpack.verify(pack, quick=quick, io=io, part=machines.share)
    with interrupts_held():
        from sa1bpack.cluster.pack import verify_on_ray

    return verify_on_ray(pack, address=machines.address, quick=quick, io=io)


def _verdict(report: Report, quick: bool, whole: bool) -> tuple[int, str]:
    """The exit code of a report, and its result in words.

    Args:
        whole: it is on all of a pack, not on a part, which may have no shard.
    """
    counts = report.counts
    problems = counted(len(report.problems), "problem")
    empty = whole and counts.get("samples") == 0  # a feature does not count samples
    code = exits.OK
    verdict = "no problem found" if quick else "sound"
    if not report.ok:
        code = exits.FAILED
        verdict = f"DAMAGED: {problems}"
    elif empty or report.complete is False:
        code = exits.INCOMPLETE
    depth = "quick check" if quick else "every byte read"
    if "feature_shards" in counts:
        return code, f"feature, {verdict}; {counted(counts['feature_shards'], 'shard')}, {depth}"
    if report.complete is None:
        return code, f"{verdict}; without its manifest nothing else can be checked"
    if denied := [problem for problem in report.problems if problem.denied]:
        depth += ", except what may not be read"
        if len(denied) == len(report.problems):
            verdict = f"NOT ALL CHECKED: {problems}"
    if not report.complete:
        verdict += ", NOT COMPLETE"
    elif code == exits.INCOMPLETE:
        verdict += ", NO IMAGE"
    images = counted(counts["samples"], "image")
    shards = counted(counts["shards"], "shard")
    return code, f"{verdict}; {images} in {shards}, {depth}"


def advice(pack: str, problems: Iterable[Problem]) -> list[str]:
    """Remedies for these problems of a pack; that of a foreign file is in its own message."""
    lines = []
    if any(problem.denied for problem in problems):
        lines.append(
            "what may not be read need not be damaged: check owner and mode (ls -ld), or verify "
            "as another user"
        )
    damaged = [problem for problem in problems if not (problem.extra or problem.denied)]
    if any(problem.feature is not None for problem in damaged):
        lines.append(
            "to make a damaged feature shard again: remove its folder, and repeat "
            "sa1bpack derive or sa1bpack.attach"
        )
    if any(problem.feature is None for problem in damaged):
        remedy = f"to repair it, keeping what is sound: sa1bpack repair {quote(pack)} TARS"
        if is_pack_url(pack):
            remedy = (
                f"to repair it: copy it to a disk (aws s3 sync {quote(pack)} DIR, or gsutil "
                "rsync), sa1bpack repair DIR TARS, and copy it back"
            )
        lines.append(remedy)
    return lines


def repair(
    pack: Annotated[str, Help("folder of the pack", "PACK")],
    sources: Annotated[
        Sequence[str],
        Help("tars and folders that the pack was made from, quoted globs, or URLs of tars", "TAR"),
    ] = (),
    *,
    links: Annotated[
        str | None,
        Help(
            "tars at URLs as well, in a list as for `sa1bpack pack --links`; only those that are "
            "needed are downloaded",
            "FILE",
        ),
    ] = None,
    annotations: Annotated[
        str | None,
        Help("where the records of the images are, as for `sa1bpack pack --annotations`", "PATH"),
    ] = None,
    shard: Annotated[
        Sequence[str],
        Help(
            "read only this shard in full, and check the others quickly; may be repeated "
            "(default: read all)",
            "NAME",
        ),
    ] = (),
    quick: Annotated[
        bool,
        Help("check structure, sizes and small files only, and read in full what --shard names"),
    ] = False,
    part: Annotated[
        str | None,
        Help(
            "check and rebuild the shards of every N-th tar only, from the K-th on, such as 3/8; "
            "other parts may work in the same folder at the same time",
            "K/N",
        ),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Annotated[
        int | None,
        Help("worker processes (default: all processors; per task of a Ray cluster 1)", "N"),
    ] = None,
    dry_run: Annotated[bool, Help("check, and print what would be done; write nothing")] = False,
) -> int:
    """Check a pack as `verify` does, and rebuild what is damaged or missing: shards
    from the tars that they were packed from, and the pack's own files (manifest,
    index, checksums, ...) from the shards. The result has the same bytes as an
    undamaged pack. Sound shards are neither decoded nor changed. Features that
    `derive` and `attach` made are not checked.

    Give all tars of the pack; those that are not needed are not read. A tar must
    be the very file that was packed: its size, digest and images are compared. A
    damaged shard stays in place until its replacement is complete. Interrupted?
    Repeat the command.

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
    on a Ray cluster (pip install ray), where the shards of each tar are a task:
      sa1bpack repair /data/packed '/data/sa_*.tar' --engine ray --address auto

    A part names what concerns the whole pack, such as a damaged index, with the
    command that repairs it once all parts have ended.

    Files that do not belong to the pack are listed and never touched: move or
    remove them yourself.

    Exit code 0 means that the pack is sound now (with --dry-run: that all can be
    repaired), 1 that something is still damaged, or does not belong to the pack;
    each is named, with the remedy.
    """
    machines = Machines(part, engine, address)
    if machines.share is not None and shard:
        raise OptionError("--part has the shards of its tars: leave out --shard")
    on_ray = machines.on_ray(dry_run=dry_run, shard=shard)
    call: Callable[..., sa1bpack.RepairResult]
    arguments: dict[str, Any] = {
        "quick": quick,
        "links": links,
        "annotations": annotations,
        "workers": workers,
    }
    with interrupts_held():
        if on_ray:
            from sa1bpack.cluster.pack import repair_on_ray

            call = repair_on_ray
            arguments["address"] = machines.address
        else:
            call = sa1bpack.repair
            arguments |= {"shards": shard or None, "part": machines.share, "dry_run": dry_run}
    with exits.advising("nothing sound was touched; repeat the same command to continue from here"):
        result = call(pack, sources, **arguments)
    for problem in result.problems:
        say(problem)
    if result.dry_run:
        for action in result.plan:
            say(f"would {action}")
    else:
        if result.repaired:
            names = ", ".join(result.repaired)
            say(f"rebuilt {counted(len(result.repaired), 'shard')}: {names}")
        if result.rewritten:
            say("rewrote the pack's own files")
    for name, reason in result.left.items():
        warn(f"{name} is still damaged: {reason}")
    if not result.complete:
        say(f"NOT COMPLETE: {remedy_of(result.root)}")
    say(f"{result.root}: {machines.prefix}{_outcome(result)}")
    return exits.code_if(result.ok)


def _outcome(result: "sa1bpack.RepairResult") -> str:
    verdicts = []
    if damage := len(result.problems) - len(result.extra):
        outcome = "repaired"
        if result.left:
            outcome = "STILL DAMAGED"
        elif result.dry_run:
            outcome = "nothing was written"
        verdicts.append(f"{counted(damage, 'problem')} found, {outcome}")
    if count := len(result.extra):
        files = counted(count, "file")
        verdicts.append(f"{files} found that are not the pack's: move or remove them, see above")
    return "; ".join(verdicts) or "sound, nothing to repair"
