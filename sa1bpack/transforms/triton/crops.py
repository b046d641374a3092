"""Crops around masks: windows of images with float pixels, resampled, and the masks in them.

A program makes a tile of one crop. Each of its rows and columns has a filter, a triangle as in
`transforms.triton.images`, whose weights are computed where they are needed.

What a program must know of its crop is one row of numbers, float64, and one of whole numbers.
"""

# An annotation of a kernel's argument instructs Triton's compiler: they are not for type checkers.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sa1bpack.transforms.backends import FLOATS
from sa1bpack.transforms.images.resample import most_taps
from sa1bpack.transforms.masks.crops import Cropping
from sa1bpack.transforms.triton.images import _range, _share, _total, tile

ROWS = tl.constexpr(16)
COLUMNS = tl.constexpr(32)
# Numbers of a crop: corner, pixels per pixel of the crop, and content of the image, x and y each.
NUMBERS = tl.constexpr(6)
# And whole numbers: image, mask, and pixels of the image that have content, x and y.
PLACES = tl.constexpr(4)


@triton.jit
def _axis(numbers, places, number, taps):
    """The filters of rows or columns: centres, first pixels, ends, support, sums; and content.

    `numbers` and `places` are the addresses of those of the axis.
    """
    step = tl.load(numbers + 2)
    content = tl.load(numbers + 4)
    center = tl.load(numbers) + step * (number.to(tl.float64) + 0.5)
    inside = (center >= 0) & (center < content)
    support = tl.maximum(step, 1.0)
    center, low, high = _range(center, support, tl.load(places + 2))
    total = _total(center, low, high, support, taps)
    return center, low, high, support, total, inside


@triton.jit
def _cell(center, cells, length):
    """The cell of a mask at each centre, within the grid."""
    cell = tl.floor(center * (cells.to(tl.float64) / length.to(tl.float64)))
    return tl.minimum(tl.maximum(cell, 0), cells - 1).to(tl.int32)


@triton.jit(
    do_not_specialize=["image_rows", "image_columns", "grid_rows", "grid_columns", "height", "taps"]
)
def _crop(
    images,
    masks,
    numbers,
    places,
    fill,
    out,
    cells,
    image_rows,
    image_columns,
    grid_rows,
    grid_columns,
    width,
    height,
    taps,
    FILLS: tl.constexpr,
):
    crop, i, j = tile(height, width, ROWS, COLUMNS)
    numbers += crop * NUMBERS
    places += crop * PLACES
    on_crop = (i < height)[:, None] & (j < width)[None, :]
    x_taps = tl.minimum(tl.ceil(2 * tl.maximum(tl.load(numbers + 2), 1.0)).to(tl.int32), taps)
    y_taps = tl.minimum(tl.ceil(2 * tl.maximum(tl.load(numbers + 3), 1.0)).to(tl.int32), taps)
    x, x_low, x_high, x_support, x_total, x_inside = _axis(numbers, places, j, x_taps)
    y, y_low, y_high, y_support, y_total, y_inside = _axis(numbers + 1, places + 1, i, y_taps)
    inside = on_crop & y_inside[:, None] & x_inside[None, :]

    grid = masks + tl.load(places + 1) * grid_rows * grid_columns
    row = _cell(y, grid_rows + 0 * i, image_rows + 0 * i)
    column = _cell(x, grid_columns + 0 * j, image_columns + 0 * j)
    in_mask = (
        tl.load(grid + row[:, None] * grid_columns + column[None, :], mask=inside, other=0) > 0
    )
    plane = image_rows * image_columns
    image = images + tl.load(places) * 3 * plane
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    red = zero
    green = zero
    blue = zero
    for m in range(y_taps):
        b = _share(y, y_low, m, y_high, y_support, y_total)
        line = tl.minimum(tl.maximum(y_low + m, 0), image_rows - 1) * image_columns
        r_line = zero
        g_line = zero
        b_line = zero
        for k in range(x_taps):
            a = _share(x, x_low, k, x_high, x_support, x_total)[None, :]
            pixel = tl.minimum(tl.maximum(x_low + k, 0), image_columns - 1)
            at = image + line[:, None] + pixel[None, :]
            r_line += a * tl.load(at, mask=inside, other=0).to(tl.float32)
            g_line += a * tl.load(at + plane, mask=inside, other=0).to(tl.float32)
            b_line += a * tl.load(at + 2 * plane, mask=inside, other=0).to(tl.float32)
        red += b[:, None] * r_line
        green += b[:, None] * g_line
        blue += b[:, None] * b_line
    shown = inside
    red_fill = 0.0
    green_fill = 0.0
    blue_fill = 0.0
    if FILLS:
        shown = in_mask
        red_fill = tl.load(fill)
        green_fill = tl.load(fill + 1)
        blue_fill = tl.load(fill + 2)
    area = height * width
    target = out + crop * 3 * area + i[:, None] * width + j[None, :]
    kind = out.dtype.element_ty
    tl.store(target, tl.where(shown, red, red_fill).to(kind), mask=on_crop)
    tl.store(target + area, tl.where(shown, green, green_fill).to(kind), mask=on_crop)
    tl.store(target + 2 * area, tl.where(shown, blue, blue_fill).to(kind), mask=on_crop)
    at = cells + crop * area + i[:, None] * width + j[None, :]
    tl.store(at, in_mask.to(tl.uint8), mask=on_crop)


def make_crops(cropping: Cropping) -> tuple[Tensor, Tensor]:
    """Crops (T, 3, h, w), of the type of the images, and their masks, bool (T, h, w).

    Args:
        cropping: what is cropped, and how.
    """
    images = cropping.images.contiguous()
    if images.dtype not in FLOATS:
        images = images.float()
    masks = cropping.masks.contiguous()
    count = len(cropping.owner)
    height, width = cropping.size
    device = images.device
    out = torch.empty((count, 3, height, width), dtype=images.dtype, device=device)
    cells = torch.empty((count, height, width), dtype=torch.bool, device=device)
    if not count:
        return out.to(cropping.images.dtype), cells
    image_rows, image_columns = images.shape[2:]
    content = cropping.extent[cropping.owner]
    steps = cropping.steps
    shown = torch.where(steps > 0, content, 0.0)  # nothing of a window without an area
    numbers = torch.cat([cropping.windows[:, :2], steps, shown], 1)
    pixels = torch.stack(
        [
            (content[:, 0] - 0.5).ceil().clamp(1, image_columns),
            (content[:, 1] - 0.5).ceil().clamp(1, image_rows),
        ],
        1,
    )
    places = torch.cat([cropping.owner[:, None], cropping.rows[:, None], pixels.long()], 1)
    fill = cropping.fill
    tiles = triton.cdiv(height, ROWS.value) * triton.cdiv(width, COLUMNS.value)
    _crop[(count * tiles,)](
        images,
        masks.view(torch.uint8),
        numbers.contiguous(),
        places.contiguous(),
        images if fill is None else fill.contiguous(),
        out,
        cells.view(torch.uint8),
        image_rows,
        image_columns,
        masks.shape[1],
        masks.shape[2],
        width,
        height,
        most_taps(cropping.most, max(image_rows, image_columns)),
        FILLS=fill is not None,
        enable_fp_fusion=False,
    )
    return out.to(cropping.images.dtype), cells
