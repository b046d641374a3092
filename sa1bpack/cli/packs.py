"""`sa1bpack pack`, `finalize`, `merge`: packs are made and joined."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import sa1bpack
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Address, Engine, Help, Machines
from sa1bpack.cli.exits import say, warn
from sa1bpack.errors import OptionError
from sa1bpack.interrupts import interrupts_held
from sa1bpack.packing.options import PackOptions, RunOptions
from sa1bpack.wording import counted, size_text

if TYPE_CHECKING:
    from sa1bpack.packing.estimate import Forecast


def pack(
    sources: Annotated[
        Sequence[str], Help("tars, folders, Parquet files, quoted globs, or URLs of tars", "TAR")
    ] = (),
    *,
    output: Annotated[
        str, Help("folder of the pack; or its URL, s3:// or gs://, with --staging", "OUTPUT")
    ],
    staging: Annotated[
        str | None,
        Help(
            "local folder in which a pack for an object store is made, shard by shard; it needs "
            "room for four shards, and holds what a repeated command continues",
            "DIR",
        ),
    ] = None,
    part: Annotated[
        str | None,
        Help(
            "pack every N-th source only, from the K-th on, such as 3/8; other parts may pack "
            "into the same folder at the same time; `sa1bpack finalize PACK` makes them one pack",
            "K/N",
        ),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    dry_run: Annotated[
        bool,
        Help(
            "estimate images, disk space and time, and refuse what the run would refuse; write "
            "nothing"
        ),
    ] = False,
    run_options: Annotated[RunOptions, Help("how the run works")],
    options: Annotated[
        dict[str, Any],
        Help(
            "what decides the bytes; left out: as in the pack OUTPUT, if it is one",
            given_of=PackOptions,
        ),
    ],
) -> int:
    """Decode SA-1B tars (or extracted folders) once, into shards under OUTPUT that
    are numpy memory maps and Zarr v3 at the same time. Interrupted? Repeat the
    same command: it resumes after the last complete shard. Called later with more
    tars, it adds them, with the options of the pack, which need not be repeated.

    Other data sets are packed by the same command: COCO's and those in its form
    (one JSON beside a folder or tar of images), the output of SAM's automatic mask
    generators, images alone. What the records are is found, or said by --records.
    Images may be JPEG, PNG, WebP, TIFF, BMP or GIF, and lie in folders, in tars or
    with their records in Parquet files (pip install pyarrow).

    A tar may be a URL: https://, s3://, gs://. It is read once, as a stream; no
    copy is kept. Streams that break off are continued where they broke off.

    examples:
      sa1bpack pack '/data/sa_*.tar' --output /data/packed --workers 16
      sa1bpack pack sa_000000.tar --output packed --dry-run
      sa1bpack pack sa_000001.tar --output packed       # adds a tar
      sa1bpack pack '/data/sa_*.tar' -o packed --md5sums sums.txt --max-rejects 9
    from SA-1B's list of links, without keeping the tars:
      sa1bpack pack --links sa1b_links.txt -o packed --workers 16
    from a bucket (pip install obstore botocore), and into one:
      sa1bpack pack 's3://bucket/sa1b/sa_*.tar' -o packed
      sa1bpack pack '/data/sa_*.tar' -o s3://bucket/packed --staging staging
    a folder of COCO, and one whose annotations lie elsewhere:
      sa1bpack pack coco/train2017 -o packed
      sa1bpack pack images --annotations labels.json -o packed
    Parquet files of a hub:
      sa1bpack pack 'sa1b-parquet/data/*.parquet' -o packed
    a job array of 100, whose parts share the folder; in the end, once:
      sa1bpack pack '/data/sa_*.tar' --output /data/packed --part 7/100
      sa1bpack finalize /data/packed

    Members that cannot be used are listed in OUTPUT/rejects.jsonl; all others are
    packed.

    On a Ray cluster, each tar is a task, and --workers is per task, by default 6.

    Exit code 1 means that a source was given up, that no image was packed, that
    too many members were rejected or, with --dry-run, that the pack does not fit
    on disk or that a URL cannot be read.
    """
    machines = Machines(part, engine, address)
    on_ray = machines.on_ray(dry_run=dry_run, staging=staging)
    if sum(map(bool, (staging, part, dry_run))) > 1:
        raise OptionError("--part, --staging and --dry-run exclude one another: give one of them")
    arguments: dict[str, Any] = options | asdict(run_options)
    call: Callable[..., Any]
    with interrupts_held():  # loads what packing needs
        if on_ray:
            from sa1bpack.cluster.pack import pack_on_ray

            call = pack_on_ray
            arguments["address"] = machines.address
        elif dry_run:
            call = sa1bpack.estimate
        elif part is not None:
            call = sa1bpack.pack_part
            arguments["part"] = machines.share
        else:
            call = sa1bpack.pack
            arguments["staging"] = staging
    advice = "" if dry_run else "repeat the same command to continue from here"
    with exits.refusing_damage(), exits.advising(advice):
        result: Any = call(sources, output, **arguments)
    if dry_run:
        return _say_forecast(result)
    if part is not None:
        say(f"part {part} of a job, which `sa1bpack finalize` makes one pack")
        _say_totals(result, f"this part, in {result.root}")
    else:
        _say_totals(result, result.url or result.root)
    say(f"this run: {_this_run(result)}")
    _warn_of_failed(result)
    if part is not None:  # it has no source, if there are fewer than parts
        return exits.code_if(result.complete)
    if not result.images:
        warn("no image was packed")
        return exits.FAILED
    if not result.complete:
        return exits.FAILED
    if result.url is None:
        say(f"next, a page with pictures: sa1bpack report {quote(str(result.root))}")
    return exits.OK


def _say_forecast(forecast: "Forecast") -> int:
    """Print what packing would take; returns the exit code."""
    say(forecast.as_text())
    for name, error in forecast.unreadable.items():
        warn(f"{name} cannot be read: {error}")
    return exits.code_if(forecast.fits and not forecast.unreadable)


def _warn_of_failed(result: "sa1bpack.PackResult") -> None:
    """Print which sources were given up, and why."""
    for name, error in result.failed.items():
        warn(f"{name} was given up: {error}")
        for note in getattr(error, "__notes__", ()):
            warn(note)


def _this_run(result: "sa1bpack.PackResult") -> str:
    """What a run has done, in words."""
    from sa1bpack.packing.progress import nothing_to_do

    if result.sources == 0:
        return "no source, there are more parts than sources"
    if result.packed_before == result.sources:
        return nothing_to_do(result.sources)
    text = f"{counted(result.new_images, 'image')} in {result.seconds:.1f} s"
    if 0 < result.new_images < result.images:
        text += f", added to {result.images - result.new_images:,} that were there"
    return text


def finalize(
    pack: Annotated[str, Help("folder of the pack", "PACK")],
) -> int:
    """Make one pack of the shards that the parts of a job (sa1bpack pack --part K/N)
    have published in its folder: write its index, manifest, rejects.jsonl and
    checksums. It then has the same bytes as if one run had packed all sources. No
    tar is read. If sources are missing, they are named with the parts to repeat;
    then repeat this command, too.

    examples:
      sa1bpack finalize /data/packed
    after all parts of a job array have ended (SLURM):
      sbatch --dependency=afterany:$JOB --wrap 'sa1bpack finalize /data/packed'

    Exit code 1 means that sources are missing, or that the pack has no image; 3
    that a part still works on it.
    """
    with interrupts_held():
        call = sa1bpack.finalize
    with exits.refusing_damage(), exits.advising("repeat the same command"):
        result = call(pack)
    _say_totals(result, result.root)
    for note in result.notes:
        warn(note)
    for name, reason in result.missing.items():
        warn(f"{name} is missing: {reason}")
    if not result.complete:
        say(f"NOT COMPLETE: {_remedy(result)}")
    elif not result.images:
        warn("no image was packed")
    return exits.code_if(result.complete and result.images > 0)


def _remedy(result: "sa1bpack.FinalizeResult") -> str:
    if result.parts:
        numbers = ",".join(str(number) for number, _ in result.parts)
        again = f"then sa1bpack finalize {quote(str(result.root))}"
        return f"repeat --part K/{result.parts[0][1]} for K = {numbers}; {again}"
    names = [*result.missing]
    some = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    return f"repeat the pack command of {some or 'all tars'}"


def _say_totals(result: "sa1bpack.PackResult | sa1bpack.FinalizeResult", path: str | Path) -> None:
    """Print what a pack holds now."""
    images = counted(result.images, "image")
    annotations = counted(result.annotations, "mask")
    nbytes = f"; {size_text(result.bytes)}" if result.images else ""
    say(f"{path}: {images}, {result.masks:,} of {annotations}{nbytes}")
    say(f"identity of the sources: {result.identity}")
    if result.left_out:
        say(f"masks: {result.left_out}")
    if result.dropped:
        dropped = counted(result.dropped, "image")
        say(f"dropped: no masks remained in {dropped}, not counted above")
    if result.rejects:
        why = ", ".join(f"{count:,} {reason}" for reason, count in result.reasons.items())
        rejects = result.root / "rejects.jsonl"
        say(f"rejected: {counted(result.rejects, 'member')} ({why}), see {rejects}")


def merge(
    packs: Annotated[list[str], Help("folders of the packs, or quoted globs", "PACK")],
    *,
    output: Annotated[str, Help("folder of the new pack", "OUTPUT")],
) -> int:
    """Merge packs that were made with the same options, on several machines for
    example, into one. No tar is read and nothing is decoded: the files of OUTPUT
    are hard links to those of the packs where the file system allows it, otherwise
    clones that share their blocks, otherwise copies. The packs are not changed;
    removing them does not affect OUTPUT, whose bytes are those of a pack of all
    tars.

    Interrupted? Repeat the command. To add packs later, name them in addition to
    the earlier ones.

    examples:
      sa1bpack merge /data/machine1 /data/machine2 -o /data/packed
      sa1bpack merge '/data/machines/*' -o /data/packed

    To train from several packs without merging them: sa1bpack.open([...]).
    """
    with interrupts_held():
        call = sa1bpack.merge
    with exits.advising("repeat the command to continue"):
        result = call(packs, output)
    say(
        f"{result.root}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')} in "
        f"{counted(result.shards, 'shard')} of {counted(result.packs, 'pack')}; files: "
        f"{result.linked:,} linked, {result.cloned:,} cloned, {result.copied:,} copied"
    )
    if result.before:
        say(f"{counted(result.before, 'shard')} already there")
    if result.repeated:
        say(f"{counted(result.repeated, 'shard')} in several packs, taken once")
    for name, shards in result.features.items():
        if shards:
            say(f"feature {name}: {counted(len(shards), 'shard')} without rows")
    if not result.complete:
        warn("not complete: one of the packs is not; repeat its pack command, and merge again")
    return exits.code_if(result.complete)
