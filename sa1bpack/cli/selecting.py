"""The commands that make something of a pack: `subset`, `export`, `derive`."""

import json as json_text
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import sa1bpack
from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Address, Engine, Help, Machines, one_or_several
from sa1bpack.cli.exits import say
from sa1bpack.cli.looking import Layouts
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief, counted, size_text

_LONGEST_LINE = 1000  # characters of a file of ids, which may be anything, such as a tar
_ID = re.compile("[+-]?[0-9]+")


def subset(
    packs: Annotated[list[str], Help("folders of packs, quoted globs, or one selection", "PACK")],
    *,
    output: Annotated[
        str,
        Help(
            "file to write, an earlier selection is replaced; with --copy, folder of the new pack",
            "OUTPUT",
        ),
    ],
    copy: Annotated[
        bool,
        Help(
            "copy the samples to a pack of their own: pixels, masks and records, byte for byte "
            "(files of whole shards are hard links, where both folders are on one disk), "
            "nothing is decoded"
        ),
    ] = False,
    dry_run: Annotated[
        bool, Help("with --copy: print what would be copied, in bytes; write nothing")
    ] = False,
    where: Annotated[
        Sequence[str],
        Help("keep samples that meet this condition, see below; may be repeated", "CONDITION"),
    ] = (),
    where_masks: Annotated[
        Sequence[str],
        Help("keep the masks that meet this condition, see below; may be repeated", "CONDITION"),
    ] = (),
    features: Annotated[
        Sequence[str],
        Help(
            "a feature that conditions name: its name in the pack, or its folder; may be repeated",
            "NAME",
        ),
    ] = (),
    source: Annotated[
        Sequence[str], Help("keep samples of this tar, such as sa_000012; may be repeated", "NAME")
    ] = (),
    fraction: Annotated[
        float | None,
        Help("keep this fraction of the samples, 0 to 1, by a hash of the image id", "F"),
    ] = None,
    seed: Annotated[int, Help("seed of --fraction", "N")] = 0,
    ids: Annotated[
        str | None, Help("keep the samples with these image ids, one per line", "FILE")
    ] = None,
    duplicates: Annotated[
        str,
        Help(
            "if an image id occurs more than once: fail, or keep its first sample",
            choices=("error", "first"),
        ),
    ] = "error",
    layouts: Layouts = "equal",
) -> int:
    """Select samples of one or several packs, and save their image ids in a small
    file. sa1bpack.open(OUTPUT) opens it for training; `show`, `export` and
    `subset` accept it in place of a pack. No pixels are read or copied, unless
    --copy makes it an ordinary pack: to keep, to move, to send. Interrupted?
    Repeat the command. Features in PACK/side come along.

    A sample must meet all conditions. The samples are in the order of the pack, or
    in the order of --ids.

    conditions:
      NAME SIGN NUMBER, with the signs < <= > >= == !=. A name is mask_count,
      annotation_count, height, width (source pixels) or image_id; or sum, max or
      min of area, predicted_iou, stability_score or annotation_id of the masks.
      & (and), | (or), ~ (not) and parentheses join them. With --where-masks, which
      comes before --where, a name is area, predicted_iou, stability_score, bbox.w,
      ..., area_frac (of the image), or depth, parent, children, level or touching.
      With --features NAME, NAME.present, and NAME of numbers and texts.

    examples:
      sa1bpack subset /data/packed -o many.sel --where 'mask_count >= 50'
      sa1bpack subset /data/packed -o parts.sel --where-masks 'depth > 0'
      sa1bpack subset /data/packed -o some.sel --where 'max(area) > 1e6'
      sa1bpack subset /data/packed -o told.sel --features caption \\
          --where caption.present
      sa1bpack subset /data/packed -o tenth.sel --fraction 0.1 --seed 7
      sa1bpack subset '/data/packs/*' -o these.sel --ids ids.txt
      sa1bpack subset /data/packed -o /data/small --copy --fraction 0.01
    """
    from sa1bpack.format.manifest import refuse_in_pack
    from sa1bpack.paths import local_path

    file = local_path("output", output)
    if not copy:
        refuse_in_pack("output", file)
    if dry_run and not copy:
        raise OptionError("--dry-run is for --copy: a selection is a small file of ids")
    ds = everything = sa1bpack.open(
        one_or_several(packs), duplicates=duplicates, layouts=layouts, features=features
    )
    if ids is not None:
        ds = ds[ds.index_of(_read_ids(local_path("ids", ids)))]
    if source:
        ds = ds.from_sources(source)
    if fraction is not None:
        ds = ds.fraction(fraction, seed=seed)
    for condition in where_masks:
        ds = ds.where_masks(condition)
    for condition in where:
        ds = ds.where(condition)
    if not len(ds) and len(everything):
        raise OptionError(
            f"none of {counted(len(everything), 'image')} is selected, and nothing was written: "
            "choose other conditions"
        )
    if copy:
        return _copy_selection(ds, output, dry_run)
    ds.save_selection(file)
    images = counted(len(everything), "image")
    say(f"{file}: {len(ds):,} of {images}, fingerprint {ds.fingerprint}")
    return exits.OK


def _copy_selection(ds: "sa1bpack.Dataset", output: str, dry_run: bool) -> int:
    """Copy a selection to a pack, and print what is in it; returns the exit code."""
    with interrupts.interrupts_held():
        call = sa1bpack.copy_selection
    advice = "" if dry_run else "repeat the same command to continue from here"
    with exits.advising(advice):
        result = call(ds, output, dry_run=dry_run)
    say(
        f"{result.root}: {counted(result.images, 'image')}, {counted(result.masks, 'mask')} in "
        f"{counted(result.shards, 'shard')}; {size_text(result.bytes)}"
    )
    if result.left_out:
        say(f"left out: {counted(result.left_out, 'image')} of the same tars")
    if result.before:
        say(f"{counted(result.before, 'shard')} already there")
    for name, shards in result.features.items():
        without = f", {counted(len(shards), 'shard')} without rows" if shards else ""
        say(f"feature {name}{without}")
    if dry_run:
        say(f"would copy {size_text(result.bytes_to_copy)}; nothing was written")
    return exits.OK


def _read_ids(path: Path):
    """int64 (n,): the whole numbers of a text file, in order. Raises OptionError."""
    import numpy as np

    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin it with a mark
            lines = iter(lambda: file.readline(_LONGEST_LINE), "")
            texts = [text for text in map(_id_text, lines) if text]
            ids = np.array([int(text) for text in texts], np.int64)
    except (OSError, ValueError, OverflowError) as error:  # of UTF-8, and of numpy
        raise OptionError(f"ids is {str(path)!r}: {error}; write one id per line") from None
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise OptionError(f"ids is {str(path)!r}: {values[counts > 1][0]} is there more than once")
    return ids


def _id_text(line: str) -> str:
    """The id of a line, in digits; empty if it has none. Raises ValueError for anything else."""
    if len(line) == _LONGEST_LINE:  # its rest would be read as a line of its own
        raise ValueError(f"a line has {_LONGEST_LINE} characters or more")
    text = line.partition("#")[0].strip()
    if text and not _ID.fullmatch(text):
        raise ValueError(f"{brief(text)} is no whole number")
    return text


def export(
    packs: Annotated[
        list[str],
        Help("folders of packs, quoted globs, URLs, or one selection of `subset`", "PACK"),
    ],
    *,
    output: Annotated[str, Help("folder (sa1b) or file (coco) to write", "OUTPUT")],
    format: Annotated[
        str, Help("SA-1B's files, or one file of COCO instances", choices=("sa1b", "coco"))
    ] = "sa1b",
    renumber: Annotated[
        bool, Help("coco: number annotations from 1, and keep SA-1B's ids as sa1b_id")
    ] = False,
    boxes_only: Annotated[
        bool, Help("coco: boxes without masks, for detectors that learn boxes")
    ] = False,
    source: Annotated[
        Sequence[str], Help("only images of one tar, such as sa_000012; may be repeated", "NAME")
    ] = (),
    shard: Annotated[Sequence[str], Help("only images of one shard; may be repeated", "NAME")] = (),
    image_id: Annotated[Sequence[int], Help("only one image; may be repeated", "ID")] = (),
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

    examples:
      sa1bpack export /data/packed -o /data/json
      sa1bpack export /data/packed -o /data/json --image-id 11223 --image-id 11224
      sa1bpack export /data/packed -o 12.json --format coco --source sa_000012
      sa1bpack export '/data/packs/*' -o /data/json
      sa1bpack export many.sel -o /data/json    # what `sa1bpack subset` saved
      sa1bpack export s3://bucket/packed -o /data/json    # the runs are fetched
    """
    chosen: dict[str, Any] = {
        "sources": source or None,
        "shards": shard or None,
        "image_ids": image_id or None,
    }
    paths = one_or_several(packs)
    if format == "coco":
        result = sa1bpack.export_coco(
            paths, output, renumber=renumber, boxes_only=boxes_only, **chosen
        )
    elif renumber:
        raise OptionError("--renumber is for --format coco; SA-1B's files keep their ids")
    elif boxes_only:
        raise OptionError("--boxes-only is for --format coco; SA-1B's files have all masks")
    else:
        result = sa1bpack.export_sa1b(paths, output, **chosen)
    written = f"{counted(result.files, 'file')} written"
    if result.unchanged:
        written += f", {result.unchanged:,} existed already"
    if not result.complete:
        written += ", NOT COMPLETE"
    images = counted(result.images, "image")
    say(f"{result.path}: {images}, {counted(result.masks, 'mask')}; {written}")
    if result.left_out:
        masks = counted(result.left_out, "mask")
        say(f"left out: {masks} of these images, which the pack or the selection does not have")
    if result.recoded:
        masks = counted(result.recoded, "mask")
        say(f"same mask in another text: {masks} whose counts were not encoded as by COCO")
    if result.unknown_keys:
        say(f"keys that a pack does not store: {', '.join(sorted(result.unknown_keys))}")
    if result.altered_keys:
        say(
            "kept keys of which a null is left out, or an integer written as a float: "
            f"{', '.join(sorted(result.altered_keys))}"
        )
    return exits.OK


def derive(
    pack: Annotated[
        str,
        Help(
            "folder of the pack; with --output also its URL, or a quoted glob of several packs",
            "PACK",
        ),
    ],
    name: Annotated[
        list[str],
        Help("name of the array, its key in samples and batches; or of several, see below", "NAME"),
    ],
    *,
    fn: Annotated[str, Help("the function that computes rows", "MODULE:FUNCTION")],
    pipeline: Annotated[
        str | None,
        Help(
            "a function that returns the transforms.Pipeline whose batches the first one gets; "
            "called with the dataset",
            "MODULE:FUNCTION",
        ),
    ] = None,
    option: Annotated[
        Sequence[str],
        Help(
            "keyword argument of the function: JSON, otherwise taken as a string; recorded with "
            "the array; may be repeated",
            "KEY=VALUE",
        ),
    ] = (),
    mask_format: Annotated[
        str,
        Help(
            "what the function gets of the masks: their bits on the grid, or the exact runs of "
            "source pixels",
            choices=("bits", "runs"),
        ),
    ] = "bits",
    rows: Annotated[DeriveOptions, Help("rows and batches")],
    part: Annotated[
        str | None,
        Help("only every N-th shard, starting with the K-th, such as 3/8 (default: all)", "K/N"),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
) -> int:
    """Compute an array with one row per image, or per mask, for a complete pack:
    embeddings of a teacher, saliency, text features, relations of masks. It is
    kept in a folder of its own, by default PACK/side/NAME; the pack does not
    change. sa1bpack.open(PACK, features=[NAME]) adds it to samples and batches.

    Work is published shard by shard. Interrupted? Repeat the command: shards that
    are done are kept, and so are complete batches of the one that is not. A shard
    that was packed again is computed again.

    examples:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --spatial \\
          --pipeline sa1bpack.transforms:Pipeline --device cuda
    8 GPUs (torchrun numbers the processes, and cuda is the GPU of that number):
      torchrun --nproc-per-node 8 --no-python sa1bpack derive /data/packed \\
          teacher --fn my_teacher:embed --spatial --device cuda
      sa1bpack derive /data/packed p2 p3 p4 --fn my_teacher:pyramid --spatial
      sa1bpack derive /data/packed depth --fn my_masks:depth --axis mask
      sa1bpack derive /data/packed parents --axis mask --mask-format runs \\
          --fn sa1bpack.transforms:relation --option name=parents
    a job array of 8:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --spatial \\
          --part 3/8
    on a Ray cluster (pip install ray), where each shard is a task with --threads
    cores, 4 by default, and a GPU for cuda:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --spatial \\
          --device cuda --engine ray --address auto
    a pack that is read-only:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --spatial \\
          -o /home/teacher
    rows that are no maps of the image, such as a vector or a number:
      sa1bpack derive /data/packed score --fn my_teacher:score

    The function is called with batches of a Loader, as FUNCTION(batch, **options),
    and returns a tensor with one row per image or mask, or a list of arrays or of
    strings; for several names, a dict of these, or a tuple in their order. Modules
    in the current folder are found.
    """
    machines = Machines(part, engine, address)
    arguments: dict[str, Any] = asdict(rows)
    arguments["options"] = dict(map(_option, option))
    on_ray = machines.on_ray()
    share = machines.share
    call: Callable[..., sa1bpack.DeriveResult | tuple[sa1bpack.DeriveResult, ...]]
    with interrupts.interrupts_held():
        from sa1bpack.deriving.functions import function_of

        if on_ray:
            from sa1bpack.cluster.derive import derive_on_ray

            call = derive_on_ray
            arguments["address"] = machines.address
        else:
            from sa1bpack.deriving.ranks import use_device_of_local_rank

            call = sa1bpack.derive
            arguments["part"] = share
            use_device_of_local_rank(rows.device)  # where the function's module puts its weights

    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    function = function_of(fn)
    # A feature shard has a row for every sample of its shard.
    ds = sa1bpack.open(one_or_several([pack]), mask_format=mask_format, duplicates="all")
    if pipeline:
        arguments["pipeline"] = function_of(pipeline, "pipeline")(ds)
    outside = None if rows.output else "keep the array outside the pack: --output FOLDER"
    with exits.advising("repeat the command: it resumes after the last complete batch", outside):
        results = call(ds, name if len(name) > 1 else name[0], function, **arguments)
        if not isinstance(results, tuple):
            results = (results,)
        for result in results:
            say(result)
    return exits.OK


def _option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"option is {brief(text)}: choose KEY=VALUE, such as scale=0.5")
    try:
        return key, json_text.loads(value)
    except (ValueError, RecursionError):
        return key, value
