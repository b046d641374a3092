"""`sa1bpack show`: samples of a pack as a picture."""

import argparse
import sys

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import number, one_or_several, real, user_path, whole
from sa1bpack.cli.output import say
from sa1bpack.wording import printable

_DESCRIPTION = """\
Draw samples of a pack on one sheet, 1600 pixels wide: stored pixels under
stored masks, boxes and points, with file name, id, sizes and number of masks
below each. Look at it before you train: masks that are shifted, mirrored or
from another image are easy to see."""

_EPILOG = """\
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
written."""


_RULE = ("min_area", "max_area_frac", "min_iou", "min_stability")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the description and the arguments of the command to its parser."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "packs", type=user_path, nargs="+", metavar="PACK",
        help="folders of packs, quoted globs, or one selection of `sa1bpack subset`; or one tar, "
        "or an extracted folder, whose first images are drawn",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", required=True, type=user_path, metavar="FILE.png",
        help="the picture; an existing file is replaced",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--samples", type=whole, metavar="N",
        help="number of random samples, 1 to 400 (default: 12, with --large 1)",
    )  # fmt: skip
    which.add_argument(
        "--image-id", type=number, nargs="+", metavar="ID", help="the samples with these ids"
    )
    which.add_argument(
        "--row", type=number, nargs="+", metavar="ROW", help="the samples in these rows, from 0"
    )
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N",
        help="seed of the random choice; the same seed shows the same samples; of packs alone "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--large", action="store_true",
        help="one large sample, the image alone beside it, and a table of its masks, each "
        "below the one that it lies in",
    )  # fmt: skip
    rule = parser.add_argument_group(
        "masks", "draw only those that pass, as `sa1bpack.open` with these options reads them"
    )
    rule.add_argument("--min-area", type=whole, default=0, metavar="PIXELS",
                      help="masks of at least this many source pixels")  # fmt: skip
    rule.add_argument("--max-area-frac", type=real, metavar="X",
                      help="masks that cover at most this fraction of the image")  # fmt: skip
    rule.add_argument("--min-iou", type=real, metavar="X",
                      help="masks with at least this predicted IoU")  # fmt: skip
    rule.add_argument("--min-stability", type=real, metavar="X",
                      help="masks with at least this stability score")  # fmt: skip
    parser.set_defaults(run=run_show)


def run_show(arguments: argparse.Namespace) -> int:
    """Draw and write the picture, and print to stderr what could not be drawn."""
    from sa1bpack.dataset.open_pack import open as open_pack
    from sa1bpack.report.drawing import write_png
    from sa1bpack.report.output import check_output
    from sa1bpack.report.show import draw_first, draw_samples
    from sa1bpack.report.tar import raw_source, refuse_among_several

    path = check_output(arguments.out, ".png")
    rule = {name: getattr(arguments, name) for name in _RULE}
    chosen = {"samples": arguments.samples, "large": arguments.large}
    rows = {"image_ids": arguments.image_id, "rows": arguments.row}
    if len(arguments.packs) > 1:
        refuse_among_several(arguments.packs)
    found = raw_source(arguments.packs[0])
    if found is None:
        dataset = open_pack(one_or_several(arguments.packs), **rule)
        shown = draw_samples(dataset, seed=arguments.seed, **chosen, **rows)
    elif arguments.seed or any(value is not None for value in rows.values()):
        shown = draw_samples(arguments.packs[0], seed=arguments.seed, **rows)  # which refuses them
    else:
        shown = draw_first(found, rule=rule, **chosen)
    write_png(shown.picture, path)
    for sample in shown.unreadable:
        print(f"sa1bpack: {printable(sample)}", file=sys.stderr)
    missing = f", {len(shown.unreadable):,} NOT DRAWN" if shown.unreadable else ""
    say(f"{path}: {shown.picture.width} x {shown.picture.height} pixels{missing}")
    return exits.FAILED if shown.unreadable else exits.OK
