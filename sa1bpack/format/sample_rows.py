"""One sample to be written to a shard: its checked rows, extent and checksum."""

from collections.abc import Mapping

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.format.checksums import rows_checksum
from sa1bpack.format.image_bytes import image_nbytes
from sa1bpack.format.layout import ArraySpec, Extent, Layout

# The rows of one sample by array name: per-sample arrays as the bare row or with a leading axis of
# 1, per-mask arrays (m, ...), run_ends (r,), run_offset (m + 1,) starting at 0, and a flat image as
# its bytes (n,). image_offset, mask_offset and checksum follow from the others and are absent. Rows
# of a canvas below the stored height are not read.
Sample = Mapping[str, np.ndarray]


def checked_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """The rows of one sample, with the exact dtype and shape of each array, offsets as lengths.

    Returns C-contiguous (n, *row_shape) arrays for all arrays except `checksum`, as views where the
    input is contiguous. Offset arrays become lengths: mask_offset (1,) int64, the number of masks;
    image_offset (1,) int64, the number of bytes of the image; run_offset (m,) int64, the number of
    runs of each mask.

    Raises OptionError for a missing array, another dtype or shape, or inconsistent offsets.
    """
    extent = sample_extent(layout, sample)
    rows = {}
    for spec in layout.arrays:
        name = spec.name
        if spec.offsets and spec.axis == "sample":
            rows[name] = np.array([extent.along(spec.child_axis)], np.int64)
        elif spec.offsets:
            rows[name] = _lengths(spec, _given(sample, name), extent)
        elif name != "checksum":
            rows[name] = _rows(spec, _given(sample, name), extent.along(spec.axis))
    _check_stored_size(layout, rows["size"][0])
    if layout.flat:
        _check_image_bytes(layout, rows["size"][0], len(rows["image"]))
    return rows


def finished_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """`checked_rows` and their `checksum`, (1,) uint64: everything a shard stores of a sample."""
    rows = checked_rows(layout, sample)
    checksum = rows_checksum(layout, rows, stored_height(rows))
    return {**rows, "checksum": np.array([checksum], np.uint64)}


def stored_height(rows: Mapping[str, np.ndarray]) -> int:
    """Number of stored rows of pixels; a canvas is zero from there on."""
    return int(rows["size"][0, 2])


def sample_extent(layout: Layout, sample: Sample) -> Extent:
    """The extent of one sample, or of its checked rows, along each axis of a shard."""
    return Extent(
        samples=1,
        masks=len(_given(sample, "annotation_id")),
        runs=len(_given(sample, "run_ends")) if layout.runs else 0,
        image_bytes=_given(sample, "image").size if layout.flat else 0,
    )


def sample_checksum(layout: Layout, sample: Sample) -> int:
    """The XXH3-64 that a shard stores for a sample (docs/format.md, "Checksum of a sample").

    It covers every array except `checksum`, with offsets as lengths, so it does not depend on the
    position of the sample. Raises OptionError as `checked_rows` does.
    """
    return int(finished_rows(layout, sample)["checksum"][0])


def _given(sample: Sample, name: str) -> np.ndarray:
    try:
        return sample[name]
    except KeyError:
        raise OptionError(f"sample has no array {name!r}; it has {sorted(sample)}") from None


def _rows(spec: ArraySpec, value: np.ndarray, count: int) -> np.ndarray:
    """`value` as (count, *row_shape); a per-sample row may lack the leading axis of 1."""
    if spec.axis == "sample" and value.shape == spec.row_shape:
        value = value[None]
    _check(spec, value, (count, *spec.row_shape))
    return np.ascontiguousarray(value)


def _lengths(spec: ArraySpec, offsets: np.ndarray, extent: Extent) -> np.ndarray:
    """Differences of a sample's local offsets, which start at 0 and end at its last row."""
    _check(spec, offsets, (extent.along(spec.axis) + 1,))
    lengths = np.diff(offsets)
    last = extent.along(spec.child_axis)
    if offsets[0] != 0 or offsets[-1] != last or (lengths < 0).any():
        raise OptionError(
            f"{spec.name} of a sample runs from {offsets[0]} to {offsets[-1]}: it must be "
            f"non-decreasing from 0 to {last}, the rows of axis {spec.child_axis!r}"
        )
    return lengths


def _check(spec: ArraySpec, value: np.ndarray, shape: tuple[int, ...]) -> None:
    if value.dtype != spec.dtype or value.shape != shape:
        raise OptionError(
            f"{spec.name} of a sample is {value.dtype} {value.shape}: the layout requires "
            f"{spec.dtype} {shape}"
        )


def _check_stored_size(layout: Layout, size: np.ndarray) -> None:
    side = layout.image_size
    if not (1 <= size[2] <= side and 1 <= size[3] <= side):
        raise OptionError(
            f"stored size {size[2]} x {size[3]} (height x width) is not within 1 and the layout's "
            f"{side}"
        )


def _check_image_bytes(layout: Layout, size: np.ndarray, found: int) -> None:
    expected = image_nbytes(layout, int(size[2]), int(size[3]))
    if found != expected:
        raise OptionError(
            f"image of a sample has {found} bytes: {size[2]} x {size[3]} {layout.pixels} pixels "
            f"take {expected}"
        )
