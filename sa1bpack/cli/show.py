"""`sa1bpack show`: samples of a pack as a picture."""

from dataclasses import asdict

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import UserPath, one_or_several
from sa1bpack.cli.output import say, warn
from sa1bpack.errors import OptionError
from sa1bpack.masks.select import Thresholds


def run(
    packs: list[UserPath],
    *,
    out: UserPath,
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
        out (FILE.png): the picture; an existing file is replaced
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
    from sa1bpack.report.drawing import write_png
    from sa1bpack.report.output import check_output
    from sa1bpack.report.show import draw_samples

    path = check_output(out, ".png")
    if sum(value is not None for value in (samples, image_id, row)) > 1:
        raise OptionError("--samples, --image-id and --row exclude one another: give one")
    chosen = {"samples": samples, "image_ids": image_id, "rows": row, "seed": seed, "large": large}
    shown = draw_samples(one_or_several(packs), **chosen, rule=asdict(rule))
    write_png(shown.picture, path)
    for sample in shown.unreadable:
        warn(sample)
    missing = f", {len(shown.unreadable):,} NOT DRAWN" if shown.unreadable else ""
    say(f"{path}: {shown.picture.width} x {shown.picture.height} pixels{missing}")
    return exits.FAILED if shown.unreadable else exits.OK
