"""`sa1bpack subset`, `export` and `derive`: samples chosen, annotations, and arrays computed."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import sa1bpack
from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Job, one_or_several
from sa1bpack.cli.output import say
from sa1bpack.errors import OptionError
from sa1bpack.progress import image_bar
from sa1bpack.wording import counted

_LONGEST_LINE = 1000  # characters of a file of ids, which may be anything, such as a tar


def subset(
    packs: list[str],
    *,
    output: str,
    where: list[str] = (),
    source: list[str] = (),
    fraction: float | None = None,
    seed: int = 0,
    ids: str | None = None,
    duplicates: Literal["error", "first"] = "error",
) -> int:
    """Select samples of one or several packs, and save their image ids in a small
    file. sa1bpack.open(OUTPUT) opens it for training; `show`, `export` and
    `subset` accept it in place of a pack. No pixels are read or copied: it is not
    a pack, which takes `sa1bpack pack` of fewer tars, or with its thresholds.

    A sample must meet all conditions. The samples are in the order of the pack, or
    in the order of --ids.

    Args:
        packs (PACK): folders of packs, quoted globs, or one selection
        output (OUTPUT): file to write; an earlier selection is replaced
        where (CONDITION): keep samples that meet this condition, see below; may be repeated
        source (NAME): keep samples of this tar, such as sa_000012; may be repeated
        fraction (F): keep this fraction of the samples, 0 to 1, by a hash of the image id
        seed (N): seed of --fraction
        ids (FILE): keep the samples with these image ids, one per line
        duplicates: if an image id occurs more than once: fail, or keep its first sample

    conditions:
      NAME SIGN NUMBER, with the signs < <= > >= == !=. A name is mask_count,
      annotation_count, height, width (source pixels) or image_id; or sum, max or
      min of area, predicted_iou, stability_score or annotation_id of the masks.

    examples:
      sa1bpack subset /data/packed -o many.sel --where 'mask_count >= 50'
      sa1bpack subset /data/packed -o some.sel --where 'max(area) > 1e6'
      sa1bpack subset /data/packed -o tenth.sel --fraction 0.1 --seed 7
      sa1bpack subset '/data/packs/*' -o these.sel --ids ids.txt
    """
    from sa1bpack.arguments import local_path

    file = local_path("output", output)
    ds = everything = sa1bpack.open(one_or_several(packs), duplicates=duplicates)
    if ids is not None:
        ds = ds[ds.index_of(_read_ids(local_path("ids", ids)))]
    if source:
        ds = ds.from_sources(source)
    if fraction is not None:
        ds = ds.fraction(fraction, seed=seed)
    for condition in where:
        ds = ds.where(condition)
    ds.save_selection(file)
    images = counted(len(everything), "image")
    say(f"{file}: {len(ds):,} of {images}, fingerprint {ds.fingerprint}")
    return exits.OK


def _read_ids(path: Path):
    """int64 (n,): the whole numbers of a text file, in order. Raises OptionError."""
    import numpy as np

    try:
        with path.open(encoding="utf-8") as file:
            lines = iter(lambda: file.readline(_LONGEST_LINE), "")
            words = (line.partition("#")[0].strip() for line in lines)
            ids = np.array([int(word) for word in words if word], np.int64)
    except OSError as error:
        raise OptionError(f"ids is {str(path)!r}: it cannot be read: {error.strerror}") from None
    except (ValueError, OverflowError) as error:  # of UTF-8, of int() and of numpy
        raise OptionError(f"ids is {str(path)!r}: {error}; write one id per line") from None
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise OptionError(f"ids is {str(path)!r}: {values[counts > 1][0]} is there more than once")
    return ids


def export(
    packs: list[str],
    *,
    output: str,
    format: Literal["sa1b", "coco"] = "sa1b",
    renumber: bool = False,
    source: list[str] = (),
    shard: list[str] = (),
    image_id: list[int] = (),
) -> int:
    """Export the annotations of a pack. As SA-1B's own JSON they are written to
    OUTPUT/<source>/sa_<id>.json, byte for byte as in the tars; masks that filters
    and the cap dropped are counted. As COCO they are written to one instances file
    OUTPUT, which pycocotools loads. The photographs are not written: a pack has
    their pixels, decoded and scaled, and not the bytes of the JPEGs.

    The pack must have the exact masks (it has, unless it was packed without runs).
    Existing files with the same bytes are left as they are; others are never
    overwritten. Interrupted? Repeat the command: SA-1B files that exist are not
    written again.

    Args:
        packs (PACK): folders of packs, quoted globs, or one selection of `sa1bpack subset`
        output (OUTPUT): folder (sa1b) or file (coco) to write
        format: SA-1B's files, or one file of COCO instances
        renumber: coco: number annotations from 1, and keep SA-1B's ids as sa1b_id
        source (NAME): only images of one tar, such as sa_000012; may be repeated
        shard (NAME): only images of one shard; may be repeated
        image_id (ID): only one image; may be repeated

    examples:
      sa1bpack export /data/packed -o /data/json
      sa1bpack export /data/packed -o /data/json --image-id 11223 --image-id 11224
      sa1bpack export /data/packed -o 12.json --format coco --source sa_000012
      sa1bpack export '/data/packs/*' -o /data/json
      sa1bpack export many.sel -o /data/json    # what `sa1bpack subset` saved
    """
    chosen = {"sources": source, "shards": shard, "image_ids": image_id}
    paths = one_or_several(packs)
    if format == "coco":
        result = sa1bpack.export_coco(paths, output, renumber=renumber, **chosen)
    elif renumber:
        raise OptionError("--renumber is for --format coco; SA-1B's files keep their ids")
    else:
        result = sa1bpack.export_sa1b(paths, output, **chosen)
    already = f", {result.unchanged:,} existed already" if result.unchanged else ""
    state = "" if result.complete else ", NOT COMPLETE"
    say(
        f"{result.path}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')}; "
        f"{counted(result.files, 'file')} written{already}{state}"
    )
    if result.left_out:
        say(
            f"not in the pack: {counted(result.left_out, 'mask')} of these images, dropped by "
            "filters or the cap when it was packed"
        )
    if result.recoded:
        say(
            f"same mask in another text: {counted(result.recoded, 'mask')} whose counts were not "
            "encoded as by COCO"
        )
    if result.unknown_keys:
        say(f"keys that a pack does not store: {', '.join(sorted(result.unknown_keys))}")
    return exits.OK


@dataclass(frozen=True)
class Rows:
    """The rows of the array, and the batches that they are computed from."""

    axis: Literal["sample", "mask"] = "sample"
    spatial: bool = False
    output: str | None = None
    batch_size: int = 32
    device: str = "cpu"
    threads: int | None = None
    allow_nonfinite: bool = False
    quantize: Literal["int8"] | None = None


def derive(
    pack: str,
    name: str,
    *,
    fn: str,
    pipeline: str | None = None,
    option: list[str] = (),
    mask_format: Literal["bits", "runs"] = "bits",
    rows: Rows,
    job: Job,
) -> int:
    """Compute an array with one row per image, or per mask, for a complete pack:
    embeddings of a teacher, saliency, text features, relations of masks. It is
    kept in a folder of its own, by default PACK/side/NAME; the pack does not
    change. sa1bpack.open(PACK, features=[NAME]) adds it to samples and batches.

    Work is published shard by shard. Interrupted? Repeat the command: shards that
    are done are kept, and so are complete batches of the one that is not. A shard
    that was packed again is computed again.

    Args:
        pack (PACK): folder of the pack; with --output also a quoted glob of several packs
        name (NAME): name of the array: its key in samples and batches
        fn (MODULE:FUNCTION): the function that computes rows
        pipeline (MODULE:FUNCTION): a function that returns the transforms.Pipeline whose
            batches the first one gets; called with the dataset
        option (KEY=VALUE): keyword argument of the function: JSON, otherwise taken as a
            string; recorded with the array; may be repeated
        axis: a row per image (sample) or per mask
        mask_format: what the function gets of the masks: their bits on the grid, or the
            exact runs of source pixels
        spatial: rows are (C, h, w) and cover the canvas of the image: a Pipeline transforms
            them with it
        output (FOLDER): of the array (default: PACK/side/NAME)
        batch_size (N): images per batch
        device (DEVICE): where the batches are: cpu, cuda, cuda:1
        threads (N): number of reader threads (default: chosen by the Loader)
        part (K/N): only every N-th shard, starting with the K-th, such as 3/8 (default:
            all)
        engine: where the work is done: on this machine, or on a Ray cluster whose nodes
            share all folders: each shard is a task with --threads cores, 4, and a GPU for
            cuda
        address (ADDRESS): of the Ray cluster (default: RAY_ADDRESS, or this machine alone)
        allow_nonfinite: store NaN and infinities, too
        quantize: store floats as int8 with a scale per row and channel, in half the bytes
            of float16, which they are read as

    examples:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --device cuda
      sa1bpack derive /data/packed teacher --fn my_teacher:embed \\
          --pipeline sa1bpack.transforms:Pipeline --spatial
      sa1bpack derive /data/packed depth --fn my_masks:depth --axis mask
      sa1bpack derive /data/packed parents --axis mask --mask-format runs \\
          --fn sa1bpack.transforms:relation --option name=parents
    a job array of 8 (or torchrun, whose RANK and WORLD_SIZE are used):
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --part 3/8
    on a Ray cluster, with a GPU per task (pip install ray):
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --device cuda \\
          --engine ray --address auto
    a pack that is read-only:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed -o /home/teacher

    The function is called with batches of a Loader, as FUNCTION(batch, **options),
    and returns a tensor with one row per image or mask. Modules in the current
    folder are found.
    """
    options = dict(map(_option, option))
    ray, part = job.on_ray(), job.share
    with interrupts.interrupts_held():
        from sa1bpack.deriving.run import function_of

        if ray:
            from sa1bpack.cluster.derive import derive_on_ray as call

            where = {"address": job.address, "check": interrupts.check}
        else:
            call, where = sa1bpack.derive, {"part": part}

    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    function = function_of(fn)
    # A part has a row for every sample of its shard.
    ds = sa1bpack.open(one_or_several([pack]), mask_format=mask_format, duplicates="all")
    made = function_of(pipeline, "pipeline")(ds) if pipeline else None
    with image_bar() as show:

        def advance(done: int, total: int) -> None:
            interrupts.check()
            show(done, total)

        outside = None if rows.output else "keep the array outside the pack: --output FOLDER"
        more = {"pipeline": made, "options": options, "progress": advance, **asdict(rows), **where}
        with exits.advising(
            "repeat the command: it resumes after the last complete batch", outside
        ):
            result = call(ds, name, function, **more)
    say(result)
    return exits.OK


def _option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"option is {text!r}: choose KEY=VALUE, such as scale=0.5")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value
