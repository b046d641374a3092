"""`sa1bpack pack`: tars in, shards out."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Job
from sa1bpack.cli.output import say, say_totals, warn
from sa1bpack.errors import OptionError
from sa1bpack.interrupts import interrupts_held
from sa1bpack.packing.options import PackOptions, RunOptions
from sa1bpack.wording import counted


def run(
    sources: list[str] = (),
    *,
    out: str,
    staging: str | None = None,
    job: Job,
    dry_run: bool = False,
    run_options: RunOptions,
    options: PackOptions,
) -> int:
    """Decode SA-1B tars (or extracted folders) once, into shards under OUT that are
    numpy memory maps and Zarr v3 at the same time. Interrupted? Repeat the same
    command: it resumes after the last complete shard. Called later with more tars,
    it adds them.

    A tar may be a URL: https://, s3://, gs://. It is read once, as a stream; no
    copy is kept. Streams that break off are continued where they broke off.

    Args:
        sources (TAR): tars, extracted folders, quoted globs, or URLs of tars
        out (OUT): folder of the pack; or its URL, s3:// or gs://, with --staging
        staging (DIR): local folder in which a pack for an object store is made, shard by
            shard; it needs room for four shards, and holds what a repeated command
            continues
        part (K/N): pack every N-th source only, from the K-th on, such as 3/8; other parts
            may pack into the same folder at the same time; `sa1bpack finalize OUT` makes
            them one pack
        engine: where the work is done: on this machine, or on a Ray cluster whose nodes
            share all folders: each tar is a task, and --workers is per task, by default 6
        address (ADDRESS): of the Ray cluster (default: RAY_ADDRESS, or this machine alone)
        dry_run: estimate images, disk space and time, and refuse what the run would refuse;
            write nothing
        run_options: how the run works
        options: what decides the bytes (part of the pack's identity)

    examples:
      sa1bpack pack '/data/sa_*.tar' --out /data/packed --workers 16
      sa1bpack pack sa_000000.tar --out packed --dry-run
      sa1bpack pack '/data/sa_*.tar' -o packed --md5sums sums.txt --max-rejects 9
    from SA-1B's list of links, without keeping the tars:
      sa1bpack pack --links sa1b_links.txt -o packed --workers 16
    from a bucket (pip install 'sa1bpack[cloud]'), and into one:
      sa1bpack pack 's3://bucket/sa1b/sa_*.tar' -o packed
      sa1bpack pack '/data/sa_*.tar' -o s3://bucket/packed --staging staging
    a job array of 100, whose parts share the folder; in the end, once:
      sa1bpack pack '/data/sa_*.tar' --out /data/packed --part 7/100
      sa1bpack finalize /data/packed

    Members that cannot be used are listed in OUT/rejects.jsonl; all others are
    packed.

    Exit code 1 means that a source was given up, that no image was packed, that
    too many members were rejected or, with --dry-run, that the pack does not fit
    on disk or that a URL cannot be read.
    """
    wanted = {"sources": sources, "out": out, **options.to_json(), **asdict(run_options)}
    ray = job.on_ray(dry_run=dry_run, staging=staging)
    if staging is not None and (job.share or dry_run):
        raise OptionError("staging is for one run that packs: leave out --part and --dry-run")
    if job.share and dry_run:
        raise OptionError("--dry-run is of all sources: leave out --part")
    more = {"address": job.address} if ray else {"part": job.share} if job.share else {}
    more |= {} if staging is None else {"staging": staging}
    with exits.refusing_damage():
        if dry_run:
            return _dry_run(wanted)
        return _pack(_call(ray, job), {**wanted, **more}, job)


def _pack(call: Callable, wanted: dict[str, Any], job: Job) -> int:
    with exits.advising("repeat the same command to continue from here"):
        result = call(**wanted)
    if job.share is not None:
        say(f"part {job.part} of a job, which `sa1bpack finalize` makes one pack")
    say_totals(result, result.url or result.root, more=_this_run(result))
    for name, error in result.failed.items():
        warn(f"{name} was given up: {error}")
        for note in getattr(error, "__notes__", ()):
            print(f"  {note}", file=sys.stderr)
    if job.share is not None:  # it may have no source, if there are fewer than parts
        return exits.OK if result.complete else exits.FAILED
    if result.images == 0:
        warn(f"no image was packed{_why_nothing(result)}")
    return exits.OK if result.complete and result.images else exits.FAILED


def _call(ray: bool, job: Job) -> Callable:
    """The function that packs."""
    with interrupts_held():
        if ray:
            from sa1bpack.cluster.pack import pack_on_ray

            return pack_on_ray
        from sa1bpack.packing.run import pack, pack_part

        return pack if job.share is None else pack_part


def _dry_run(wanted: dict) -> int:
    with interrupts_held():
        from sa1bpack.packing.estimate import estimate

    forecast = estimate(**wanted)
    say(forecast.as_text())
    for name, error in forecast.unreadable.items():
        warn(f"{name} cannot be read: {error}")
    return exits.OK if forecast.fits and not forecast.unreadable else exits.FAILED


def _this_run(result) -> str:
    from sa1bpack.packing.progress import nothing_to_do

    if result.sources == 0:
        return "this run: no source, there are more parts than sources"
    if result.packed_before == result.sources:
        return f"this run: {nothing_to_do(result.sources)}"
    pace = result.new_images / result.seconds if result.seconds else 0.0
    images = counted(result.new_images, "image")
    return f"this run: {images} in {result.seconds:.1f} s ({pace:.1f} images/s)"


def _why_nothing(result) -> str:
    """The reason that a run packed no image."""
    if result.rejects:
        return f"; see {result.root / 'rejects.jsonl'}"
    if result.dropped:
        return ": no masks remained of any image, and --empty drop drops such images"
    return ""  # each source was named with its error, or as one without pairs
