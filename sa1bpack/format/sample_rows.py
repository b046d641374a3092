"""One sample to be written to a shard: its checked rows, extent and checksum."""

from collections.abc import Mapping

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.format.checksums import rows_checksum
from sa1bpack.format.image_bytes import image_nbytes
from sa1bpack.format.layout import Extent, Layout

# The rows of one sample by array name: per-sample arrays as the bare row or with a leading axis of
# 1, per-mask arrays (m, ...), run_ends (r,), run_offset (m + 1,) starting at 0, and a flat image as
# its bytes (n,). image_offset, mask_offset and checksum follow from the others and are absent. Rows
# of a canvas below the stored height are not read.
Sample = Mapping[str, np.ndarray]


def finished_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """Everything that a shard stores of one sample, with the exact dtype and shape of each array.

    Returns C-contiguous (n, *row_shape) arrays, as views where the input is contiguous, and the
    `checksum`, (1,) uint64 (docs/format.md, "Checksum of a sample"). Offset arrays become lengths,
    so nothing depends on the position of the sample: mask_offset (1,) int64, the number of masks;
    image_offset (1,) int64, the number of bytes of the image; run_offset (m,) int64, the number of
    runs of each mask.

    Raises OptionError for another dtype or shape, or inconsistent offsets.
    """
    extent = sample_extent(layout, sample)
    rows = {}
    for spec in layout.arrays:
        if spec.name == "checksum":
            continue
        if spec.offsets and spec.axis == "sample":
            rows[spec.name] = np.array([extent.along(spec.child_axis)], np.int64)
            continue
        value, shape = sample[spec.name], (spec.rows(extent), *spec.row_shape)
        if spec.axis == "sample" and value.shape == spec.row_shape:  # the bare row
            value = value[None]
        if value.dtype != spec.dtype or value.shape != shape:
            raise OptionError(
                f"{spec.name} of a sample is {value.dtype} {value.shape}: the layout requires "
                f"{spec.dtype} {shape}"
            )
        rows[spec.name] = np.ascontiguousarray(value)
        if spec.offsets:
            rows[spec.name], last = np.diff(value), extent.along(spec.child_axis)
            if value[0] != 0 or value[-1] != last or (rows[spec.name] < 0).any():
                raise OptionError(
                    f"{spec.name} of a sample runs from {value[0]} to {value[-1]}: it must be "
                    f"non-decreasing from 0 to {last}, the rows of axis {spec.child_axis!r}"
                )
    side, (height, width) = layout.image_size, rows["size"][0, 2:].tolist()
    if not (1 <= height <= side and 1 <= width <= side):
        raise OptionError(
            f"stored size {height} x {width} (height x width) is not within 1 and the layout's "
            f"{side}"
        )
    if (found := rows["image"].size) != (expected := image_nbytes(layout, height, width)):
        raise OptionError(
            f"image of a sample has {found} bytes: {height} x {width} {layout.pixels} pixels take "
            f"{expected}"
        )
    rows["checksum"] = np.array([rows_checksum(layout, rows, height)], np.uint64)
    return rows


def stored_height(rows: Mapping[str, np.ndarray]) -> int:
    """Number of stored rows of pixels; a canvas is zero from there on."""
    return int(rows["size"][0, 2])


def sample_extent(layout: Layout, sample: Sample) -> Extent:
    """The extent of one sample, or of its checked rows, along each axis of a shard."""
    return Extent(
        samples=1,
        masks=len(sample["annotation_id"]),
        runs=len(sample["run_ends"]) if layout.runs else 0,
        image_bytes=sample["image"].size if layout.flat else 0,
    )
