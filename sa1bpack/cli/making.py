"""`sa1bpack pack`, `finalize` and `merge`: tars in, shards out, and one pack of several."""

import sys
from dataclasses import asdict
from shlex import quote

import sa1bpack
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Job
from sa1bpack.cli.output import say, warn
from sa1bpack.errors import OptionError
from sa1bpack.interrupts import interrupts_held
from sa1bpack.packing.options import PackOptions, RunOptions
from sa1bpack.progress import byte_bar
from sa1bpack.wording import counted, size_text

# A run of fewer seconds says nothing of the speed: its worker processes have only just started.
SHORT_RUN = 5.0


def pack(
    sources: list[str] = (),
    *,
    output: str,
    staging: str | None = None,
    job: Job,
    dry_run: bool = False,
    run_options: RunOptions,
    options: PackOptions,
) -> int:
    """Decode SA-1B tars (or extracted folders) once, into shards under OUTPUT that
    are numpy memory maps and Zarr v3 at the same time. Interrupted? Repeat the
    same command: it resumes after the last complete shard. Called later with more
    tars, it adds them.

    A tar may be a URL: https://, s3://, gs://. It is read once, as a stream; no
    copy is kept. Streams that break off are continued where they broke off.

    Args:
        sources (TAR): tars, extracted folders, quoted globs, or URLs of tars
        output (OUTPUT): folder of the pack; or its URL, s3:// or gs://, with --staging
        staging (DIR): local folder in which a pack for an object store is made, shard by
            shard; it needs room for four shards, and holds what a repeated command
            continues
        part (K/N): pack every N-th source only, from the K-th on, such as 3/8; other parts
            may pack into the same folder at the same time; `sa1bpack finalize PACK`
            makes them one pack
        engine: where the work is done: on this machine, or on a Ray cluster whose nodes
            share all folders: each tar is a task, and --workers is per task, by default 6
        address (ADDRESS): of the Ray cluster (default: RAY_ADDRESS, or this machine alone)
        dry_run: estimate images, disk space and time, and refuse what the run would refuse;
            write nothing
        run_options: how the run works
        options: what decides the bytes (part of the pack's identity)

    examples:
      sa1bpack pack '/data/sa_*.tar' --output /data/packed --workers 16
      sa1bpack pack sa_000000.tar --output packed --dry-run
      sa1bpack pack '/data/sa_*.tar' -o packed --md5sums sums.txt --max-rejects 9
    from SA-1B's list of links, without keeping the tars:
      sa1bpack pack --links sa1b_links.txt -o packed --workers 16
    from a bucket (pip install obstore botocore), and into one:
      sa1bpack pack 's3://bucket/sa1b/sa_*.tar' -o packed
      sa1bpack pack '/data/sa_*.tar' -o s3://bucket/packed --staging staging
    a job array of 100, whose parts share the folder; in the end, once:
      sa1bpack pack '/data/sa_*.tar' --output /data/packed --part 7/100
      sa1bpack finalize /data/packed

    Members that cannot be used are listed in OUTPUT/rejects.jsonl; all others are
    packed.

    Exit code 1 means that a source was given up, that no image was packed, that
    too many members were rejected or, with --dry-run, that the pack does not fit
    on disk or that a URL cannot be read.
    """
    wanted = {"sources": sources, "output": output, **asdict(options), **asdict(run_options)}
    ray = job.on_ray(dry_run=dry_run, staging=staging)
    if sum(map(bool, (staging, job.share, dry_run))) > 1:
        raise OptionError("--part, --staging and --dry-run exclude one another: give one of them")
    wanted |= {} if staging is None else {"staging": staging}
    with interrupts_held():  # loads what packing needs
        if ray:
            from sa1bpack.cluster.pack import pack_on_ray as call

            wanted["address"] = job.address
        elif job.share:
            call, wanted["part"] = sa1bpack.pack_part, job.share
        else:
            call = sa1bpack.estimate if dry_run else sa1bpack.pack
    advice = "" if dry_run else "repeat the same command to continue from here"
    with exits.refusing_damage(), exits.advising(advice):
        result = call(**wanted)
    if dry_run:
        say(result.as_text())
        for name, error in result.unreadable.items():
            warn(f"{name} cannot be read: {error}")
        return exits.OK if result.fits and not result.unreadable else exits.FAILED
    if job.share:
        say(f"part {job.part} of a job, which `sa1bpack finalize` makes one pack")
    _say_totals(result, result.url or result.root, more=_this_run(result))
    for name, error in result.failed.items():
        warn(f"{name} was given up: {error}")
        for note in getattr(error, "__notes__", ()):
            print(f"  {note}", file=sys.stderr)
    if not result.images and not job.share:  # a part has no source, if there are fewer than parts
        why = ""  # each source was named with its error, or as one without pairs
        if result.rejects:
            why = f"; see {result.root / 'rejects.jsonl'}"
        elif result.dropped:
            why = ": no masks remained of any image, and --empty drop drops such images"
        warn(f"no image was packed{why}")
    elif result.complete and not job.share and result.url is None:
        say(f"next, a page with pictures: sa1bpack report {quote(str(result.root))}")
    return exits.OK if result.complete and (result.images or job.share) else exits.FAILED


def _this_run(result: "sa1bpack.PackResult") -> str:
    from sa1bpack.packing.progress import nothing_to_do

    if result.sources == 0:
        return "this run: no source, there are more parts than sources"
    if result.packed_before == result.sources:
        return f"this run: {nothing_to_do(result.sources)}"
    text = f"this run: {counted(result.new_images, 'image')} in {result.seconds:.1f} s"
    if 0 < result.new_images < result.images:
        text += f", added to {result.images - result.new_images:,} that were there"
    if result.seconds < SHORT_RUN:
        return text
    return f"{text} ({result.new_images / result.seconds:.1f} images/s)"


def finalize(pack: str) -> int:
    """Make one pack of the shards that the parts of a job (sa1bpack pack --part K/N)
    have published in its folder: write its index, manifest, rejects.jsonl and
    checksums. It then has the same bytes as if one run had packed all sources. No
    tar is read. If sources are missing, they are named with the parts to repeat;
    then repeat this command, too.

    Args:
        pack (PACK): folder of the pack

    examples:
      sa1bpack finalize /data/packed
    after all parts of a job array, if none failed (SLURM):
      sbatch --dependency=afterok:$JOB --wrap 'sa1bpack finalize /data/packed'

    Exit code 1 means that sources are missing, or that the pack has no image; 3
    that a part still works on it.
    """
    with interrupts_held():
        call = sa1bpack.finalize
    with exits.refusing_damage(), exits.advising("repeat the same command"):
        result = call(pack)
    _say_totals(result, result.root, of=f", of {counted(result.sources, 'source')}")
    for note in result.notes:
        warn(note)
    for name, reason in result.missing.items():
        warn(f"{name} is missing: {reason}")
    if not result.complete:
        say(f"NOT COMPLETE: {_remedy(result)}")
    elif not result.images:
        warn("no image was packed")
    return exits.OK if result.complete and result.images else exits.FAILED


def _remedy(result: "sa1bpack.FinalizeResult") -> str:
    if result.parts:
        numbers = ",".join(str(number) for number, _ in result.parts)
        again = f"then sa1bpack finalize {quote(str(result.root))}"
        return f"repeat --part K/{result.parts[0][1]} for K = {numbers}; {again}"
    names = [*result.missing]
    some = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
    return f"repeat the pack command of {some or 'all tars'}"


def _say_totals(
    result: "sa1bpack.PackResult | sa1bpack.FinalizeResult",
    place: object,
    of: str = "",
    more: str = "",
) -> None:
    """Say what a pack holds now.

    of    what follows the number of masks
    more  a line that follows the first
    """
    images, annotations = counted(result.images, "image"), counted(result.annotations, "mask")
    nbytes = f"; {size_text(result.bytes)}" if result.images else ""
    say(f"{place}: {images}, {result.masks:,} of {annotations}{of}{nbytes}")
    if more:
        say(more)
    say(f"identity of the sources: {result.identity}")
    if result.left_out:
        say(f"masks: {result.left_out}")
    if result.dropped:
        dropped = counted(result.dropped, "image")
        say(f"dropped: no masks remained in {dropped}, not counted above")
    if result.rejects:
        why = ", ".join(f"{count:,} {reason}" for reason, count in result.reasons.items())
        say(
            f"rejected: {counted(result.rejects, 'member')} ({why}), see "
            f"{result.root / 'rejects.jsonl'}"
        )


def merge(packs: list[str], *, output: str) -> int:
    """Merge packs that were made with the same options, on several machines for
    example, into one. No tar is read and nothing is decoded: the files of OUTPUT
    are hard links to those of the packs where the file system allows it, otherwise
    clones that share their blocks, otherwise copies. The packs are not changed;
    removing them does not affect OUTPUT, whose bytes are those of a pack of all
    tars.

    Interrupted? Repeat the command. To add packs later, name them in addition to
    the earlier ones.

    Args:
        packs (PACK): folders of the packs, or quoted globs
        output (OUTPUT): folder of the new pack

    examples:
      sa1bpack merge /data/machine1 /data/machine2 -o /data/packed
      sa1bpack merge '/data/machines/*' -o /data/packed

    To train from several packs without merging them: sa1bpack.open([...]).
    """
    with interrupts_held():
        call = sa1bpack.merge
    with exits.advising("repeat the command to continue"), byte_bar() as advance:
        result = call(packs, output, progress=advance)
    new = {"linked": result.linked, "cloned": result.cloned, "copied": result.copied}
    files = ", ".join(f"{count:,} {how}" for how, count in new.items() if count)
    say(
        f"{result.root}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')} in "
        f"{counted(result.shards, 'shard')} of {counted(result.packs, 'pack')}; "
        f"files: {files or 'none new'}"
    )
    if result.before:
        say(f"{counted(result.before, 'shard')} already there")
    if result.repeated:
        say(f"{counted(result.repeated, 'shard')} in several packs, taken once")
    for name, shards in result.features.items():
        if shards:
            say(f"feature {name}: {counted(len(shards), 'shard')} without a part")
    if not result.complete:
        warn("not complete: one of the packs is not; repeat its pack command, and merge again")
    return exits.OK if result.complete else exits.FAILED
