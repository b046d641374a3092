"""`sa1bpack verify`: check a pack against its checksums."""

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Literal

from sa1bpack import interrupts
from sa1bpack.arguments import paths_of
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Job
from sa1bpack.cli.output import say, say_json
from sa1bpack.disk.reading_mode import IO
from sa1bpack.errors import OptionError
from sa1bpack.format.completeness import remedy_of
from sa1bpack.format.problems import Report
from sa1bpack.progress import byte_bar, step_bar
from sa1bpack.urls import is_pack_url, pack_url
from sa1bpack.wording import counted


def run(
    packs: list[str],
    *,
    quick: bool = False,
    io: Literal[IO] = "auto",
    job: Job,
    json: bool = False,
) -> int:
    """Check a pack: that no file is missing and none is foreign, that structure and
    offsets are valid, and that the bytes are those that were written. A damaged
    sample is named by shard, row and image. Several packs are checked one after
    the other; the exit code is that of the worst.

    Exit code 0 means that each pack is sound and complete, 1 that damage was
    found, 5 that a pack is sound, but not complete or without any image.

    Args:
        packs (PACK): folders of packs, whose side arrays in PACK/side are checked too; of
            side arrays elsewhere; quoted globs; or URLs of either in an object store, s3://
            or gs://
        quick: structure, sizes and small files only: seconds per tar, not a full read
        io: direct reads past the page cache, cached through it; auto reads past it if the
            pack takes more than half of the memory
        part (K/N): check every N-th shard only, from the K-th on, such as 3/8; the first
            part also checks the pack's own files
        engine: where the work is done: on this machine, or on a Ray cluster whose nodes
            share all folders: each shard is a task
        address (ADDRESS): of the Ray cluster (default: RAY_ADDRESS, or this machine alone)
        json: print an object on one line in place of the text: pack, part, ok, complete,
            counts, problems, notes; a line per pack

    examples:
      sa1bpack verify /data/packed
      sa1bpack verify '/data/packs/*' --quick
      sa1bpack verify /home/teacher    # a side array outside its pack
      sa1bpack verify s3://bucket/packed
    a job array of 20; the pack is sound if no part fails:
      sa1bpack verify /data/packed --part 3/20 --json > verify-3.json
    on a Ray cluster (pip install 'sa1bpack[ray]'):
      sa1bpack verify /data/packed --engine ray --address auto
    """
    named: list[str | Path] = []
    for pack in packs:
        named += [pack_url("pack", pack)] if is_pack_url(pack) else paths_of("pack", pack)
    part = job.share
    if job.on_ray() and (urls := list(filter(is_pack_url, named))):
        raise OptionError(
            f"--engine ray checks folders that all nodes share, not {urls[0]}: use --part K/N"
        )
    codes = []
    for pack in named:
        report = _report(pack, quick, io, job)
        codes.append(_code(report, whole=part is None))
        if json:
            say_json(_as_dict(pack, part, report))
        else:
            _print(pack, quick, job, report, codes[-1])
    if len(named) > 1 and not json:
        counts = {
            "with problems": codes.count(exits.FAILED),
            "not complete": codes.count(exits.INCOMPLETE),
        }
        found = [f"{count:,} {what}" for what, count in counts.items() if count]
        say(f"{len(named):,} checked: {', '.join(found) or 'no problem found'}")
    return next((code for code in (exits.FAILED, exits.INCOMPLETE) if code in codes), exits.OK)


def _print(pack: str | Path, quick: bool, job: Job, report: Report, code: int) -> None:
    for line in (*report.problems, *report.notes):
        say(line)
    if report.complete is False:
        say(f"NOT COMPLETE: {remedy_of(Path(pack))}")
    for line in advice(str(pack), report.problems):
        say(line)
    say(f"{pack}: {job.prefix}{_verdict(report, code, quick)}")


def _code(report: Report, whole: bool) -> int:
    """The exit code of a report, on the whole of a pack or on a part, which may have no shard."""
    if not report.ok:
        return exits.FAILED
    empty = whole and report.counts.get("samples") == 0  # a side array does not count samples
    return exits.INCOMPLETE if empty or report.complete is False else exits.OK


def _report(pack: str | Path, quick: bool, io: str, job: Job) -> Report:
    if job.engine == "ray":
        with interrupts.interrupts_held():
            from sa1bpack.cluster.verify import verify_on_ray

        check = interrupts.check
        with step_bar() as advance:
            return verify_on_ray(
                pack, address=job.address, quick=quick, progress=advance, io=io, check=check
            )
    from sa1bpack.format.verify import verify

    with byte_bar() as advance:
        return verify(pack, quick=quick, progress=advance, io=io, part=job.share)


def _as_dict(pack: str | Path, part: tuple[int, int] | None, report: Report) -> dict:
    return {
        "pack": str(pack),
        "part": part and "{}/{}".format(*part),
        "ok": report.ok,
        "complete": report.complete,
        "counts": report.counts,
        "problems": [asdict(problem) for problem in report.problems],
        "notes": report.notes,
    }


def advice(pack: str, problems) -> list[str]:
    """Remedies for these problems of a pack; that of a foreign file is in its own message."""
    lines = []
    if any(problem.denied for problem in problems):
        lines.append(
            "what may not be read need not be damaged: check owner and mode (ls -ld), or verify "
            "as another user"
        )
    damaged = [problem for problem in problems if not (problem.extra or problem.denied)]
    if any(problem.side is not None for problem in damaged):
        lines.append(
            "to make a damaged part of a side array again: remove its folder, and repeat "
            "sa1bpack derive or sa1bpack.attach"
        )
    if any(problem.side is None for problem in damaged):
        lines.append(
            f"to repair it: copy it to a disk (aws s3 sync {quote(pack)} DIR, or gsutil rsync), "
            "sa1bpack repair DIR TARS, and copy it back"
            if is_pack_url(pack)
            else f"to repair it, keeping what is sound: sa1bpack repair {quote(pack)} TARS"
        )
    return lines


def _verdict(report: Report, code: int, quick: bool) -> str:
    problems = counted(len(report.problems), "problem")
    denied = [problem for problem in report.problems if problem.denied]
    verdict = "sound" if report.ok else f"DAMAGED: {problems}"
    depth = "quick check" if quick else "every byte read"
    if "parts" in report.counts:
        return f"side array, {verdict}; {counted(report.counts['parts'], 'part')}, {depth}"
    if report.complete is None:
        return f"DAMAGED: {problems}; without its manifest nothing else can be checked"
    if denied:
        depth += ", except what may not be read"
        if len(denied) == len(report.problems):
            verdict = f"NOT ALL CHECKED: {problems}"
    if not report.complete:
        verdict += ", NOT COMPLETE"
    elif code == exits.INCOMPLETE:
        verdict += ", NO IMAGE"
    return (
        f"{verdict}; {counted(report.counts['samples'], 'image')} in "
        f"{counted(report.counts['shards'], 'shard')}, {depth}"
    )
