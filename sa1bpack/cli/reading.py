"""The commands that use packs: `info`, `show`, `report`, `explore`, `bench`, `subset` and more."""

import json as json_text
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import sa1bpack
from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Address, Engine, Help, Machines, one_or_several
from sa1bpack.cli.exits import say, say_json, warn
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.errors import OptionError
from sa1bpack.export.look import Look
from sa1bpack.masks.select import Thresholds
from sa1bpack.options import BENCH_MASKS, MASK_LAYOUTS, REPORT_CHECKS
from sa1bpack.wording import brief, counted, size_text


def info(
    packs: Annotated[Sequence[str], Help("folders of packs, or quoted globs", "PACK")] = (),
    *,
    json: Annotated[
        bool,
        Help(
            "print an object on one line in place of the text: pack, complete, counts, options, "
            "...; of several, null with packs; of this machine, null with machine"
        ),
    ] = False,
) -> int:
    """Show what a pack holds: images, masks, sizes, rejects, options, versions, and a
    histogram of masks per image. Several packs are summarized as the one dataset
    that sa1bpack.open makes of them: image ids that several have are named, and
    packs that do not fit together are refused with what differs. Without a pack:
    what this machine has: the PIL in force, versions, SIMD, memory, CUDA, the file
    system of the current folder, and limits on open files, memory maps and
    asynchronous reads.

    examples:
      sa1bpack info                       # this machine
      sa1bpack info /data/packed
      sa1bpack info '/data/packs/*'
    """
    if packs:
        result = sa1bpack.info(one_or_several(packs))
        text = result.as_text()
        facts = result.as_dict()
    else:
        from sa1bpack.cli.machine import describe_machine, describe_packages

        machine = describe_packages() | describe_machine(Path.cwd())
        text = "\n".join(f"{key:<16} {value}" for key, value in machine.items())
        facts = {"pack": None, "machine": machine}
    if json:
        say_json(facts)
    else:
        say(text)
    return exits.OK


def show(
    packs: Annotated[
        list[str],
        Help(
            "folders of packs, quoted globs, or one selection of `sa1bpack subset`; or one tar, "
            "or an extracted folder, whose first images are drawn",
            "PACK",
        ),
    ],
    *,
    output: Annotated[
        str, Help("the picture, *.png or *.jpg; an existing file is replaced", "FILE.png")
    ] = "sheet.png",
    samples: Annotated[
        int | None, Help("number of random samples, 1 to 400 (default: 12, with --large 1)", "N")
    ] = None,
    image_id: Annotated[tuple[int, ...] | None, Help("the samples with these ids", "ID")] = None,
    row: Annotated[tuple[int, ...] | None, Help("the samples in these rows, from 0", "ROW")] = None,
    seed: Annotated[
        int,
        Help(
            "seed of the random choice; the same seed shows the same samples; of packs alone", "N"
        ),
    ] = 0,
    large: Annotated[
        bool,
        Help(
            "one large sample, the image alone beside it, and a table of its masks, each below "
            "the one that it lies in"
        ),
    ] = False,
    rule: Annotated[
        Thresholds, Help("masks: draw only those that pass, as `sa1bpack.open` reads them")
    ],
    where_masks: Annotated[
        str | None,
        Help("draw only the masks that meet this condition, see `sa1bpack subset`", "CONDITION"),
    ] = None,
    look: Annotated[Look, Help("what is drawn")],
) -> int:
    """Draw samples of a pack on one sheet, 1600 pixels wide: stored pixels under
    masks, boxes and points, with file name, id, sizes and number of masks
    below each. Look at it before you train: masks that are shifted, mirrored or
    from another image are easy to see.

    examples:
      sa1bpack show /data/packed    # 12 random ones, into sheet.png
      sa1bpack show /data/packed -o sheet.png --samples 40 --seed 7
      sa1bpack show /data/packed -o sheet.png --image-id 5 6 2    # in this order
      sa1bpack show /data/packed -o one.png --image-id 5 --large
      sa1bpack show /data/packed -o one.png --row 7 --large --no-numbers --no-boxes
      sa1bpack show /data/packed -o outlines.png --opacity 0 --max-masks 20
      sa1bpack show /data/packed -o teacher.png --feature teacher    # beside it
      sa1bpack show '/data/packs/*' -o sheet.png    # of several packs
      sa1bpack show /data/sa_000000.tar -o sheet.png    # the first of a tar
      sa1bpack show /data/packed -o sheet.png --min-iou 0.9 --min-stability 0.95

    Masks are drawn from their exact runs, or, if the pack has none, from bits.
    Smaller ones are drawn over larger ones; the colour of a mask follows from its
    id. Points are white. An image that is smaller than its tile is enlarged by an
    integer factor. On a large picture masks have the numbers of its table.

    --feature draws what `sa1bpack derive` or `sa1bpack.attach` made, by its name
    or the path of its folder: label maps in the colours of their ids, 0 black,
    and embeddings by their first three principal components as red, green and
    blue, with their share of the variance. Batches, prompts and predictions are
    drawn by `sa1bpack.show` in Python.
    Only the samples shown are read, and compared with their checksums. A tar is
    read until its first images are complete; it needs no index, and all of their
    masks are drawn.

    A sample that is damaged or cannot be read is replaced by a tile that says why
    and is named on stderr; the exit code is then 1, and with --large no picture is
    written.
    """
    from sa1bpack.export.drawing import PICTURES, write_picture
    from sa1bpack.export.show import draw_samples
    from sa1bpack.format.manifest import file_to_write

    path = file_to_write("output", output, *PICTURES)
    shown = draw_samples(
        one_or_several(packs),
        samples,
        image_id,
        row,
        seed=seed,
        large=large,
        rule=asdict(rule),
        where_masks=where_masks,
        look=look,
    )
    write_picture(shown.picture, path)
    text = f"{path}: {shown.picture.width} x {shown.picture.height} pixels"
    if not shown.unreadable:
        say(text)
        return exits.OK
    for sample in shown.unreadable:
        warn(sample)
    say(f"{text}, {len(shown.unreadable):,} NOT DRAWN")
    return exits.FAILED


def report(
    packs: Annotated[
        list[str],
        Help("folders of packs, complete or not, or quoted globs; several are one dataset", "PACK"),
    ],
    *,
    output: Annotated[
        str, Help("the page; an existing file is replaced", "FILE.html")
    ] = "report.html",
    verify: Annotated[str, Help("how much of the pack to check", choices=REPORT_CHECKS)] = "sample",
    samples: Annotated[int, Help("number of random samples to show, 1 to 400", "N")] = 12,
    seed: Annotated[int, Help("seed of every random choice", "N")] = 0,
) -> int:
    """Write one HTML page about a pack: its state, counts, distributions of masks and
    images, samples with their masks, options, versions, packing runs and rejects.
    The page is one file, needs no network and runs no script: send it, print it,
    keep it beside an experiment.

    examples:
      sa1bpack report /data/packed    # into report.html
      sa1bpack report /data/packed -o report.html --verify full --samples 24
      sa1bpack report '/data/packs/*' -o report.html

    It takes seconds for a pack of any size: distributions of masks are those of
    some 20,000 images in at most 64 shards, and the page says how many. Checking
    may take longer:
      --verify sample   structure, sizes, and the checksums of all but pixels, bits
                        and runs, of up to 8 random shards; 0.5 GB are read for all
                        of SA-1B
      --verify quick    the same for all shards, as `sa1bpack verify --quick`;
                        140 GB are read for all of SA-1B
      --verify full     every byte, as `sa1bpack verify`
      --verify none     nothing, and the page says so

    Exit code 1 means that damage was found; the page is written all the same, and
    names it.
    """
    from sa1bpack.cli.packs import advice

    result = sa1bpack.report(packs, output, verify=verify, samples=samples, seed=seed)
    problems = result.verification.problems
    pack = packs[0] if len(packs) == 1 else "PACK"
    for line in (*problems, *result.unreadable, *advice(pack, problems)):
        warn(line)
    text = f"{result.path}: {counted(result.images, 'image')}, {result.verification.verdict}"
    if result.unreadable:
        text += f", {counted(len(result.unreadable), 'part')} NOT READ"
    if not result.complete:
        text += ", NOT COMPLETE"
    say(text)
    return exits.code_if(result.ok)


def explore(
    packs: Annotated[
        list[str],
        Help("folders of packs, quoted globs, or one selection of `sa1bpack subset`", "PACK"),
    ],
    *,
    port: Annotated[
        int | None,
        Help(
            "port to listen at; 0 is a free one (default: 8711, or a free one if that is in use)",
            "N",
        ),
    ] = None,
    host: Annotated[
        str, Help("address to listen at; another than the default lets other machines in", "HOST")
    ] = "127.0.0.1",
    folder: Annotated[str, Help("where the page saves selections", "FOLDER")] = ".",
) -> int:
    """Serve a page to look at a pack, until Ctrl-C: thumbnails of all images, one
    image large with the exact outlines of its masks, their numbers and features,
    histograms with sliders, conditions, and selections saved as files. Open the
    address that is printed, in a browser on this machine.

    examples:
      sa1bpack explore /data/packed
      sa1bpack explore '/data/packs/*' --folder /data/selections
      sa1bpack explore many.sel    # what `sa1bpack subset`, or the page, saved

    The pack is on another machine? Forward a port, and open the printed address
    here:
      ssh -tL 8711:localhost:8711 MACHINE sa1bpack explore /data/packed --port 8711

    Nobody is let in without the token in the address: other users of this machine
    are not, either. With --host 0.0.0.0, those who have the address can look
    from other machines; HTTP is not encrypted, the tunnel above is.

    A filter looks through all shards of the pack, once, and the page shows what is
    found so far. Histograms are those of some 20,000 images in at most 64 shards,
    and the page says which. Nothing is written but selections, into --folder.
    """
    paths = one_or_several(packs)
    with sa1bpack.explore(paths, host=host, port=port, folder=folder) as page:
        for note in page.notes:
            warn(note)
        say(f"{page.url}\nCtrl-C ends it; selections are saved in {page.folder}")
        try:
            page.wait()
        except KeyboardInterrupt:  # the way to end it
            interrupts.forget()
    return exits.OK


def bench(
    pack: Annotated[str, Help("folder of a pack", "PACK")],
    *,
    device: Annotated[str, Help("where batches go: cpu or cuda", "DEVICE")] = "cpu",
    batch_size: Annotated[int, Help("samples per batch", "N")] = 32,
    mask_format: Annotated[
        str,
        Help(
            "what is read of the masks: as in sa1bpack.open, or none; without stored bits, bits "
            "are drawn from the runs",
            choices=BENCH_MASKS,
        ),
    ] = "bits",
    mask_layout: Annotated[
        str, Help("layout of the masks in a batch, as in Loader", choices=MASK_LAYOUTS)
    ] = "padded",
    max_masks: Annotated[int | None, Help("masks per sample at most (default: all)", "N")] = None,
    seconds: Annotated[float, Help("per measurement", "SECONDS")] = 5.0,
    sweep: Annotated[bool, Help("compare settings of both loaders as well")] = False,
    json: Annotated[
        bool, Help("print an object on one line in place of the text: pack, and all figures")
    ] = False,
) -> int:
    """Measure your pack on this machine: how fast memory, disk and device are by
    themselves (the ceilings), then how many samples per second a Loader and a
    DataLoader that shuffle yield to a loop that does nothing with them, with the
    pack's pages dropped (cold) and in the page cache (warm), and the memory of
    each. Takes about 10 times --seconds.

    With --sweep it compares settings too: threads, io, prefetch and batch size of
    a Loader; workers, prefetched batches and pinning of a DataLoader, some 25
    settings, each measured three times in interleaved rounds. The tables have
    medians and the memory that each takes; * is the one to choose, ~ those that
    differ from the fastest by no more than the noise. The last lines are the
    Python that makes both loaders with the best settings.

    examples:
      sa1bpack bench /data/packed --device cuda --batch-size 16
      sa1bpack bench /data/packed --device cuda --batch-size 16 --sweep
      sa1bpack bench /data/packed --mask-format runs     # or none: pixels alone

    Nothing else should run meanwhile. Dropping pages slows down other programs
    that read the pack, and nothing else.
    """
    result = sa1bpack.bench(
        pack,
        device=device,
        batch_size=batch_size,
        mask_format=mask_format,
        mask_layout=mask_layout,
        max_masks=max_masks,
        duration=seconds,
        sweep=sweep,
    )
    if json:
        say_json(result.as_dict())
    else:
        say(result.as_text())
    return exits.OK


# ------------------------------------------------------------------------------------------- using

_LONGEST_LINE = 1000  # characters of a file of ids, which may be anything, such as a tar


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
    from sa1bpack.paths import local_path

    file = local_path("output", output)
    if dry_run and not copy:
        raise OptionError("--dry-run is for --copy: a selection is a small file of ids")
    ds = everything = sa1bpack.open(one_or_several(packs), duplicates=duplicates, features=features)
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
        with path.open(encoding="utf-8") as file:
            lines = iter(lambda: file.readline(_LONGEST_LINE), "")
            words = (line.partition("#")[0].strip() for line in lines)
            ids = np.array([int(word) for word in words if word], np.int64)
    except (OSError, ValueError, OverflowError) as error:  # of UTF-8, of int() and of numpy
        raise OptionError(f"ids is {str(path)!r}: {error}; write one id per line") from None
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise OptionError(f"ids is {str(path)!r}: {values[counts > 1][0]} is there more than once")
    return ids


def export(
    packs: Annotated[
        list[str],
        Help("folders of packs, quoted globs, or one selection of `sa1bpack subset`", "PACK"),
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
    """
    chosen: dict[str, Any] = {"sources": source, "shards": shard, "image_ids": image_id}
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
        say(f"not in the pack: {masks} of these images, dropped by filters or the cap")
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
        str, Help("folder of the pack; with --output also a quoted glob of several packs", "PACK")
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
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --device cuda
      sa1bpack derive /data/packed teacher --fn my_teacher:embed \\
          --pipeline sa1bpack.transforms:Pipeline --spatial
      sa1bpack derive /data/packed p2 p3 p4 --fn my_teacher:pyramid --spatial
      sa1bpack derive /data/packed depth --fn my_masks:depth --axis mask
      sa1bpack derive /data/packed parents --axis mask --mask-format runs \\
          --fn sa1bpack.transforms:relation --option name=parents
    a job array of 8 (or torchrun, whose RANK and WORLD_SIZE are used):
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --part 3/8
    on a Ray cluster (pip install ray), where each shard is a task with --threads
    cores, 4 by default, and a GPU for cuda:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed --device cuda \\
          --engine ray --address auto
    a pack that is read-only:
      sa1bpack derive /data/packed teacher --fn my_teacher:embed -o /home/teacher

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
        from sa1bpack.deriving.run import function_of

        if on_ray:
            from sa1bpack.cluster.derive import derive_on_ray

            call = derive_on_ray
            arguments["address"] = machines.address
        else:
            call = sa1bpack.derive
            arguments["part"] = share

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
