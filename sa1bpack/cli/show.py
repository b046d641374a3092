"""`sa1bpack show`: samples of a pack as a picture."""

import argparse
import sys

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import number, user_path
from sa1bpack.wording import printable

_DESCRIPTION = """\
Draw samples of a pack on one sheet, 1600 pixels wide: stored pixels under
stored masks, boxes and points, with file name, id, sizes and number of masks
below each. Look at it before you train: masks that are shifted, mirrored or of
another image are seen at once."""

_EPILOG = (
    """examples:
  sa1bpack show /data/packed -o sheet.png                    12 at random
  sa1bpack show /data/packed -o sheet.png --samples 40 --seed 7
  sa1bpack show /data/packed -o sheet.png --image-id 5 6 2   in this order
  sa1bpack show /data/packed -o one.png --image-id 5 --large

Larger masks lie below smaller ones; the largest has the first colour. Points
are white. An image whose stored side is smaller than its place is drawn with
whole screen pixels for each pixel. A pack without bits is drawn from its exact
runs. Only the samples that are shown are read, and compared with their
checksums.

In the place of a sample that is damaged or cannot be read stands a tile that
says why; it is named on stderr, and the exit code is 1. With --large there is
no picture then.

"""
    + exits.EPILOG
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the subcommand's parser its description and its arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("pack", type=user_path, metavar="PACK", help="folder of a pack")
    parser.add_argument(
        "-o", "--out", required=True, type=user_path, metavar="FILE.png",
        help="the picture; one that is there is replaced",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--samples", type=int, metavar="N",
        help="so many at random, 1 to 400 (default: 12, with --large 1)",
    )  # fmt: skip
    which.add_argument(
        "--image-id", type=number, nargs="+", metavar="ID", help="the samples with these ids"
    )
    which.add_argument(
        "--row", type=number, nargs="+", metavar="ROW", help="the samples in these rows, from 0"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N",
        help="of the random choice; the same seed shows the same samples (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--large", action="store_true",
        help="one sample large, the image alone beside it, and a table of its masks",
    )  # fmt: skip
    parser.set_defaults(run=run_show)


def run_show(arguments: argparse.Namespace) -> int:
    """Draw and write the picture, and name on stderr what could not be drawn."""
    from sa1bpack.report.output import check_output, write_png
    from sa1bpack.report.show import draw_samples

    path = check_output(arguments.out, ".png", arguments.pack)
    shown = draw_samples(
        arguments.pack,
        samples=arguments.samples,
        image_ids=arguments.image_id,
        rows=arguments.row,
        seed=arguments.seed,
        large=arguments.large,
    )
    write_png(shown.picture, path)
    for sample in shown.unreadable:
        print(f"sa1bpack: {printable(sample)}", file=sys.stderr)
    missing = f", {len(shown.unreadable):,} NOT DRAWN" if shown.unreadable else ""
    print(f"{path}: {shown.picture.width} x {shown.picture.height} pixels{missing}")
    return exits.FAILED if shown.unreadable else exits.OK
