"""The commands that look at packs: `info`, `show`, `report`, `explore`, `bench`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import sa1bpack
from sa1bpack import interrupts
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import Help, one_or_several
from sa1bpack.cli.exits import say, say_json, warn
from sa1bpack.errors import OptionError
from sa1bpack.export.look import Look
from sa1bpack.masks.select import Thresholds
from sa1bpack.options import BENCH_MASKS, LAYOUTS, MASK_LAYOUTS, REPORT_CHECKS
from sa1bpack.wording import counted

# Of the commands that open several packs as one.
Layouts = Annotated[
    str,
    Help(
        "what becomes of packs whose layouts differ: they are refused, or (shared) opened as what "
        "all of them have",
        choices=LAYOUTS,
    ),
]


def info(
    packs: Annotated[Sequence[str], Help("folders of packs, quoted globs, or URLs", "PACK")] = (),
    *,
    layouts: Layouts = "equal",
    sources: Annotated[
        bool,
        Help(
            "print images, masks and rejects of each tar in place of the summary, the tars with "
            "the most rejects first"
        ),
    ] = False,
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
      sa1bpack info /data/packed --sources | head    # tars with the most rejects
      sa1bpack info '/data/packs/*'
      sa1bpack info s3://bucket/packed    # index and small files are fetched
    """
    if packs:
        result = sa1bpack.info(one_or_several(packs), layouts=layouts)
        text = result.sources_text() if sources else result.as_text()
        facts = result.as_dict()
    elif sources:
        raise OptionError("--sources needs a pack, whose sources it lists: sa1bpack info PACK")
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
            "folders of packs, quoted globs, URLs, or one selection of `sa1bpack subset`; or one "
            "tar, or an extracted folder, whose first images are drawn",
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
    layouts: Layouts = "equal",
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
        layouts=layouts,
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
        Help(
            "folders of packs, complete or not, quoted globs, or URLs; several are one dataset",
            "PACK",
        ),
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
    from sa1bpack.cli.checking import advice

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
        Help("folders of packs, quoted globs, URLs, or one selection of `subset`", "PACK"),
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
    layouts: Layouts = "equal",
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
    with sa1bpack.explore(paths, host=host, port=port, folder=folder, layouts=layouts) as page:
        for note in page.notes:
            warn(note)
        say(f"{page.url}\nCtrl-C ends it; selections are saved in {page.folder}")
        try:
            page.wait()
        except KeyboardInterrupt:  # the way to end it
            interrupts.forget()
    return exits.OK


def bench(
    pack: Annotated[str, Help("folder of a pack, or its URL", "PACK")],
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

    Of a pack at a URL, rows are fetched and not kept: the network takes the place
    of the disk, and nothing is warm.

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
