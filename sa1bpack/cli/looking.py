"""`sa1bpack info`, `show`, `report` and `bench`: what is in a pack, and how fast it is here."""

import json as json_text
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import sa1bpack
from sa1bpack.cli import exits
from sa1bpack.cli.arguments import one_or_several
from sa1bpack.cli.output import say, say_json, warn
from sa1bpack.errors import OptionError
from sa1bpack.masks.select import Thresholds
from sa1bpack.progress import byte_bar, step_line
from sa1bpack.wording import counted

LAYOUTS = ("padded", "concat", "padded_bits", "concat_bits")
VERIFY = ("sample", "quick", "full", "none")
_NAMED = 10  # problems that `report` prints to stderr; the page has more


def info(packs: list[str] = (), *, json: bool = False) -> int:
    """Show what a pack holds: images, masks, sizes, rejects, options, versions, and a
    histogram of masks per image. Several packs are summarized as the one dataset
    that sa1bpack.open makes of them: image ids that several have are named, and
    packs that do not fit together are refused with what differs. Without a pack:
    what this machine has: the PIL in force, versions, SIMD, memory, CUDA, the file
    system of the current folder and whether it can be read past the page cache,
    and limits on open files, memory maps and asynchronous reads.

    Args:
        packs (PACK): folders of packs, or quoted globs
        json: print an object on one line in place of the text: pack, complete, counts,
            options, ...; of several, null with packs; of this machine, null with machine

    examples:
      sa1bpack info                       # this machine
      sa1bpack info /data/packed
      sa1bpack info '/data/packs/*'
    """
    if packs:
        result = sa1bpack.info(one_or_several(packs))
        text, found = result.as_text(), result.as_dict()
    else:
        from sa1bpack.cli.machine import describe_machine, describe_packages

        machine = describe_packages() | describe_machine(Path.cwd())
        text = "\n".join(f"{key:<16} {value}" for key, value in machine.items())
        found = {"pack": None, "machine": machine}
    say_json(found) if json else say(text)
    return exits.OK


def show(
    packs: list[str],
    *,
    output: str,
    samples: int | None = None,
    image_id: tuple[int, ...] | None = None,
    row: tuple[int, ...] | None = None,
    seed: int = 0,
    large: bool = False,
    rule: Thresholds,
) -> int:
    """Draw samples of a pack on one sheet, 1600 pixels wide: stored pixels under
    stored masks, boxes and points, with file name, id, sizes and number of masks
    below each. Look at it before you train: masks that are shifted, mirrored or
    from another image are easy to see.

    Args:
        packs (PACK): folders of packs, quoted globs, or one selection of `sa1bpack subset`;
            or one tar, or an extracted folder, whose first images are drawn
        output (FILE.png): the picture, *.png or *.jpg; an existing file is replaced
        samples (N): number of random samples, 1 to 400 (default: 12, with --large 1)
        image_id (ID): the samples with these ids
        row (ROW): the samples in these rows, from 0
        seed (N): seed of the random choice; the same seed shows the same samples; of packs
            alone
        large: one large sample, the image alone beside it, and a table of its masks, each
            below the one that it lies in
        rule: masks: draw only those that pass, as `sa1bpack.open` reads them

    examples:
      sa1bpack show /data/packed -o sheet.png    # 12 random ones
      sa1bpack show /data/packed -o sheet.png --samples 40 --seed 7
      sa1bpack show /data/packed -o sheet.png --image-id 5 6 2    # in this order
      sa1bpack show /data/packed -o one.png --image-id 5 --large
      sa1bpack show '/data/packs/*' -o sheet.png    # of several packs
      sa1bpack show /data/sa_000000.tar -o sheet.png    # the first of a tar
      sa1bpack show /data/packed -o sheet.png --min-iou 0.9 --min-stability 0.95

    Smaller masks are drawn over larger ones; the largest has the first colour.
    Points are white. An image that is smaller than its tile is enlarged by an
    integer factor. If a pack has no bits, its masks are drawn from the exact runs.
    Only the samples shown are read, and compared with their checksums. A tar is
    read until its first images are complete; it needs no index, and all of their
    masks are drawn.

    A sample that is damaged or cannot be read is replaced by a tile that says why
    and is named on stderr; the exit code is then 1, and with --large no picture is
    written.
    """
    from sa1bpack.export.drawing import PICTURES, write_picture
    from sa1bpack.export.output import check_output
    from sa1bpack.export.show import draw_samples

    path = check_output(output, *PICTURES)
    if sum(value is not None for value in (samples, image_id, row)) > 1:
        raise OptionError("--samples, --image-id and --row exclude one another: give one")
    options = {"seed": seed, "large": large, "rule": asdict(rule)}
    shown = draw_samples(one_or_several(packs), samples, image_id, row, **options)
    write_picture(shown.picture, path)
    for sample in shown.unreadable:
        warn(sample)
    missing = f", {len(shown.unreadable):,} NOT DRAWN" if shown.unreadable else ""
    say(f"{path}: {shown.picture.width} x {shown.picture.height} pixels{missing}")
    return exits.FAILED if shown.unreadable else exits.OK


def report(
    packs: list[str],
    *,
    output: str = "report.html",
    verify: Literal[VERIFY] = "sample",
    samples: int = 12,
    seed: int = 0,
) -> int:
    """Write one HTML page about a pack: its state, counts, distributions of masks and
    images, samples with their masks, options, versions, packing runs and rejects.
    The page is one file, needs no network and runs no script: send it, print it,
    keep it beside an experiment.

    Args:
        packs (PACK): folders of packs, complete or not, or quoted globs; several are one
            dataset
        output (FILE.html): the page; an existing file is replaced
        verify: how much of the pack to check
        samples (N): number of random samples to show, 1 to 400
        seed (N): seed of every random choice

    examples:
      sa1bpack report /data/packed    # into report.html
      sa1bpack report /data/packed -o report.html --verify full --samples 24
      sa1bpack report '/data/packs/*' -o report.html

    It takes seconds for a pack of any size: distributions of masks are those of at
    most 20,000 images in 64 shards, and the page says how many. Checking may take
    longer:
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

    with byte_bar() as advance:
        result = sa1bpack.report(
            packs, output, verify=verify, samples=samples, seed=seed, progress=advance
        )
    checked = result.verification
    problems = (*checked.problems, *result.unreadable)
    for line in problems[:_NAMED]:
        warn(line)
    if len(problems) > _NAMED:
        more = counted(len(problems) - _NAMED, "more problem")
        warn(f"and {more}; `sa1bpack verify` lists all")
    for line in advice(packs[0] if len(packs) == 1 else "PACK", checked.problems):
        warn(line)
    verdict = {
        "none": "not verified",
        "sample": "no problem in the shards that were checked",
        "quick": "no problem in a quick check",
        "full": "sound",
    }[checked.how]
    if not result.ok:
        denied = all(problem.denied for problem in checked.problems)
        verdict = "NOT ALL COULD BE READ" if denied else "DAMAGED"
    state = "" if result.complete else ", NOT COMPLETE"
    say(f"{result.path}: {counted(result.images, 'image')}, {verdict}{state}")
    return exits.OK if result.ok else exits.FAILED


@dataclass(frozen=True)
class Batches:
    """The batches that both loaders make."""

    device: str = "cpu"
    batch_size: int = 32
    mask_layout: Literal[LAYOUTS] = "padded"
    max_masks: int | None = None


def bench(
    pack: str,
    *,
    batches: Batches,
    seconds: float = 5.0,
    sweep: bool = False,
    output: str | None = None,
    json: bool = False,
) -> int:
    """Measure your pack on this machine: how fast memory, disk and device are by
    themselves (the ceilings), then how many samples per second a Loader and a
    DataLoader that shuffle yield to a loop that does nothing with them, with the
    pack's pages dropped (cold) and in the page cache (warm), the seconds to the
    first batch of a new process, and the memory of each. Takes about 10 times
    --seconds, and the start of six processes, 3 to 10 seconds each.

    With --sweep it compares settings too: threads, io, prefetch and batch size of
    a Loader; workers, prefetched batches and pinning of a DataLoader, some 25
    settings, each measured three times in interleaved rounds. The tables have
    medians and the memory that each takes; * is the one to choose, ~ those that
    differ from the fastest by no more than the noise. The last lines are the
    Python that makes both loaders with the best settings.

    Args:
        pack (PACK): folder of a pack
        device (DEVICE): where batches go: cpu or cuda
        batch_size (N): samples per batch
        mask_layout: layout of the masks in a batch, as in Loader
        max_masks (N): masks per sample at most (default: all)
        seconds (SECONDS): per measurement
        sweep: compare settings of both loaders as well
        output (FILE): write all figures to a JSON file
        json: print an object on one line in place of the text: pack, and all figures

    example:
      sa1bpack bench /data/packed --device cuda --batch-size 16
      sa1bpack bench /data/packed --device cuda --batch-size 16 --sweep

    Nothing else should run meanwhile. Dropping pages slows down other programs
    that read the pack, and nothing else.
    """
    from sa1bpack.export.output import check_output
    from sa1bpack.format.files import replace_file

    path = None if output is None else check_output(output, ".json")
    with step_line() as progress:
        more = {"duration": seconds, "sweep": sweep, "progress": progress}
        result = sa1bpack.bench(pack, **asdict(batches), **more)
    say_json(result.as_dict()) if json else say(result.as_text())
    if path is not None:
        replace_file(path, (json_text.dumps(result.as_dict(), indent=1) + "\n").encode())
    return exits.OK
