"""`sa1bpack pack`: tars in, shards out."""

import argparse
import sys
from dataclasses import fields

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import part, real, user_path, whole
from sa1bpack.cli.engine import add_engine, on_ray
from sa1bpack.cli.output import say
from sa1bpack.errors import FormatError, OptionError, OutputRefused
from sa1bpack.interrupts import interrupts_held
from sa1bpack.packing.options import (
    EMPTY,
    FITS,
    IMAGE_SIZES,
    MASK_SAMPLINGS,
    MASK_SIZES,
    MASKS,
    NATIVE_SAMPLES_PER_SHARD,
    PIXELS,
    RESAMPLES,
    SAMPLES_PER_SHARD,
    PackOptions,
)
from sa1bpack.urls import STORE_SCHEMES
from sa1bpack.wording import counted, printable

_DESCRIPTION = """\
Decode SA-1B tars (or extracted folders) once, into shards under OUT that are
numpy memory maps and Zarr v3 at the same time. Interrupted? Repeat the same
command: it resumes after the last complete shard. Called later with more tars,
it adds them.

A tar may be a URL: https://, s3://, gs://. It is read once, as a stream; no
copy is kept. Streams that break off are continued where they broke off."""

_EPILOG = """\
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
on disk or that a URL cannot be read."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    default = PackOptions()
    parser.add_argument(
        "sources", nargs="*", metavar="TAR",
        help="tars, extracted folders, quoted globs, or URLs of tars",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", required=True, type=_out_path, metavar="OUT",
        help="folder of the pack; or its URL, s3:// or gs://, with --staging",
    )  # fmt: skip

    run = parser.add_argument_group("the run")
    run.add_argument(
        "--workers", type=whole, metavar="N", help="worker processes (default: all processors)"
    )
    run.add_argument(
        "--links", type=user_path, metavar="FILE",
        help="pack the tars of this list as well: file name, tab and URL in each line, as the "
        "download page of SA-1B lists them; no query of a URL is written or shown",
    )  # fmt: skip
    run.add_argument(
        "--staging", type=user_path, metavar="DIR",
        help="local folder in which a pack for an object store is made, shard by shard; it needs "
        "room for four shards, and holds what a repeated command continues",
    )  # fmt: skip
    run.add_argument(
        "--downloads", type=whole, metavar="N",
        help="tars read at once if any is at a URL (default: 4, at most one per worker, at least "
        "one per 6 workers)",
    )  # fmt: skip
    run.add_argument(
        "--md5sums", type=user_path, metavar="FILE",
        help="check each tar against this list, in the format of md5sum",
    )  # fmt: skip
    run.add_argument(
        "--md5", action="store_true",
        help="record the md5 of each tar beside its XXH3-128, without a list to compare it with",
    )  # fmt: skip
    run.add_argument(
        "--max-rejects",
        type=whole,
        metavar="N",
        help="fail if more than N members are rejected (default: no limit)",
    )
    run.add_argument(
        "--ignore-space", action="store_true",
        help="go on although the disk has no room for the pack, as far as that can be estimated",
    )  # fmt: skip
    run.add_argument(
        "--part", metavar="K/N",
        help="pack every N-th source only, from the K-th on, such as 3/8; other parts may pack "
        "into the same folder at the same time; `sa1bpack finalize OUT` makes them one pack",
    )  # fmt: skip
    add_engine(run, "each tar is a task, and --workers is per task, by default 6")
    run.add_argument(
        "--dry-run", action="store_true",
        help="estimate images, disk space and time, and refuse what the run would refuse; write "
        "nothing",
    )  # fmt: skip

    images = parser.add_argument_group("images (part of the pack's identity)")
    images.add_argument(
        "--image-size", type=whole, default=default.image_size, metavar="S",
        help="side of the stored square in pixels, {} to {} (default: %(default)s)".format(
            *IMAGE_SIZES
        ),
    )  # fmt: skip
    images.add_argument(
        "--fit", choices=FITS, default=default.fit,
        help="pad: longer side scaled to S, the rest zero (SAM); squash: both sides scaled to S "
        "(SAM 2); native: as pad, but the padding is not stored (default: %(default)s)",
    )  # fmt: skip
    images.add_argument(
        "--pixels", choices=PIXELS, default=default.pixels,
        help="rgb: 3 bytes per pixel; yuv420: 1.5, with colour at half the size, converted to RGB "
        "when read (default: %(default)s)",
    )  # fmt: skip
    images.add_argument(
        "--resample", choices=RESAMPLES, default=default.resample,
        help="fast: DCT-scaled decode, then bicubic; exact: full decode, then bicubic, bit-equal "
        "to Pillow (default: %(default)s)",
    )  # fmt: skip

    masks = parser.add_argument_group("masks (part of the pack's identity)")
    masks.add_argument(
        "--masks", choices=MASKS, default=default.masks,
        help="stored masks: bits of a grid, the exact full-size runs, or both; from runs, masks of "
        "any size can be drawn when read (default: %(default)s)",
    )  # fmt: skip
    masks.add_argument(
        "--mask-size", type=whole, default=default.mask_size, metavar="SM",
        help="side of the mask grid in cells, a multiple of 8 up to "
        f"{MASK_SIZES[1]} (default: %(default)s)",
    )  # fmt: skip
    masks.add_argument(
        "--mask-sampling", choices=MASK_SAMPLINGS, default=default.mask_sampling,
        help="area: a cell is set if at least half of it is covered; center: if its centre is "
        "(default: %(default)s)",
    )  # fmt: skip
    masks.add_argument(
        "--max-masks", type=_count_or_all, default=default.max_masks, metavar="N",
        help="keep at most N masks per image, or 'all' (default: all; some images of SA-1B have "
        "more than 400: cap the batches of a loader with max_masks)",
    )  # fmt: skip
    masks.add_argument(
        "--select", choices=("largest", "random", "iou", "stability"), default=default.select,
        help="which masks to keep if there are more (default: %(default)s)",
    )  # fmt: skip
    masks.add_argument(
        "--seed", type=whole, default=default.seed, metavar="N",
        help="seed of --select random (default: %(default)s)",
    )  # fmt: skip
    masks.add_argument(
        "--min-area", type=whole, default=default.min_area, metavar="PIXELS",
        help="drop masks smaller than this many source pixels (default: %(default)s)",
    )  # fmt: skip
    masks.add_argument(
        "--max-area-frac", type=real, default=default.max_area_frac, metavar="F",
        help="drop masks larger than this fraction of the image, 0 to 1 (default: keep all)",
    )  # fmt: skip
    masks.add_argument(
        "--min-iou", type=real, default=default.min_iou, metavar="X",
        help="drop masks with a lower predicted IoU; some of SA-1B exceed 1 (default: keep all)",
    )  # fmt: skip
    masks.add_argument(
        "--min-stability", type=real, default=default.min_stability, metavar="X",
        help="drop masks with a lower stability score, up to 1 (default: keep all)",
    )  # fmt: skip
    masks.add_argument(
        "--empty", choices=EMPTY, default=default.empty,
        help="what to do with images of which no mask is left (default: %(default)s)",
    )  # fmt: skip

    shards = parser.add_argument_group("shards (part of the pack's identity)")
    shards.add_argument(
        "--samples-per-shard", type=whole, metavar="N",
        help=f"at most N images per shard (default: {SAMPLES_PER_SHARD}; with --fit native "
        f"{NATIVE_SAMPLES_PER_SHARD})",
    )  # fmt: skip
    parser.set_defaults(run=run_pack)


def _out_path(text: str) -> str:
    """A path of this machine, or the URL of a folder in an object store."""
    scheme, found, _ = text.partition("://")
    return text if found and scheme.lower() in STORE_SCHEMES else user_path(text)


def _count_or_all(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor 'all'") from None


def run_pack(arguments: argparse.Namespace) -> int:
    """Pack, or estimate what packing would need."""
    wanted = {field.name: getattr(arguments, field.name) for field in fields(PackOptions)}
    for name in (
        "sources", "out", "workers", "md5sums", "md5", "max_rejects", "links", "downloads",
    ):  # fmt: skip
        wanted[name] = getattr(arguments, name)
    job_part, staging = part(arguments.part), arguments.staging
    one_run = job_part is None and not arguments.dry_run
    if on_ray(arguments, "part", "dry_run", "staging"):
        wanted["address"] = arguments.address
    elif staging is not None and not one_run:
        raise OptionError("staging is for one run that packs: leave out --part and --dry-run")
    elif job_part is not None and arguments.dry_run:
        raise OptionError("--dry-run is of all sources: leave out --part")
    try:
        if not arguments.dry_run:
            wanted["ignore_space"] = arguments.ignore_space
        return _dry_run(wanted) if arguments.dry_run else _pack(wanted, job_part, staging)
    except FormatError as error:  # in what OUT held before: what a run writes itself is sound
        raise OutputRefused(str(error)) from error


def _pack(wanted: dict, job_part: tuple[int, int] | None, staging: str | None) -> int:
    call = _call(ray="address" in wanted, in_part=job_part is not None)
    more = {"staging": staging} if staging is not None else {}
    try:
        result = call(**wanted, **more) if job_part is None else call(**wanted, part=job_part)
    except (OSError, MemoryError, KeyboardInterrupt, exits.Terminated) as error:
        exits.advise(error, "repeat the same command to continue from here")
        raise
    if job_part is not None:
        say("part {}/{} of a job, which `sa1bpack finalize` makes one pack".format(*job_part))
    say(_summary(result))
    for name, error in result.failed.items():
        print(f"sa1bpack: {name} was given up: {printable(error)}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(f"  {note}", file=sys.stderr)
    if job_part is not None:  # it may have no source, if there are fewer than parts
        return exits.OK if result.complete else exits.FAILED
    if result.images == 0:
        print(f"sa1bpack: no image was packed{_why_nothing(result)}", file=sys.stderr)
    return exits.OK if result.complete and result.images else exits.FAILED


def _call(ray: bool, in_part: bool):
    """The function that packs."""
    with interrupts_held():
        if ray:
            from sa1bpack.cluster.pack import pack_on_ray

            return pack_on_ray
        from sa1bpack.packing.parts.run import pack_part
        from sa1bpack.packing.run import pack

        return pack_part if in_part else pack


def _dry_run(wanted: dict) -> int:
    with interrupts_held():
        from sa1bpack.packing.estimate import estimate

    forecast = estimate(**wanted)
    say(forecast.as_text())
    for name, error in forecast.unreadable.items():
        print(f"sa1bpack: {name} cannot be read: {printable(error)}", file=sys.stderr)
    return exits.OK if forecast.fits and not forecast.unreadable else exits.FAILED


def _summary(result) -> str:
    lines = [
        f"{result.url or result.root}: {counted(result.images, 'image')}, "
        f"{result.masks:,} of {counted(result.annotations, 'mask')}",
        _this_run(result),
        f"identity of the sources: {result.identity}",
    ]
    if result.left_out:
        lines.append(f"masks: {result.left_out}")
    if result.dropped:
        dropped = counted(result.dropped, "image")
        lines.append(f"dropped: no masks remained in {dropped}, not counted above")
    if result.rejects:
        members = counted(result.rejects, "member")
        lines.append(f"rejected: {members}, see {result.root / 'rejects.jsonl'}")
    return "\n".join(lines)


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
    """Why a run packed no image."""
    if result.rejects:
        return f"; see {result.root / 'rejects.jsonl'}"
    if result.dropped:
        return ": no masks remained of any image, and --empty drop drops such images"
    return ""  # each source was named with its error, or as one without pairs
