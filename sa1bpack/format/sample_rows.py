"""One sample on its way into a shard: checked rows, its extent and its checksum."""

from collections.abc import Mapping

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.format.checksums import rows_checksum
from sa1bpack.format.image_place import image_nbytes
from sa1bpack.format.layout import ArraySpec, Extent, Layout

# The rows of one sample by array name: per-sample arrays as the bare row or with a leading 1,
# per-mask arrays (m, ...), run_ends (r,), run_offset (m + 1,) from 0 on; a flat image as its bytes
# (n,). image_offset, mask_offset and checksum follow from the others and are not given. Rows of a
# canvas below the stored height are not read.
Sample = Mapping[str, np.ndarray]


def checked_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """The rows of one sample, each of its array's exact type and shape, offsets as lengths.

    Returns C-contiguous (n, *row_shape) arrays for all arrays but `checksum`, views of the given
    ones where those are contiguous. Offset arrays become lengths: mask_offset (1,) int64 with the
    number of masks, image_offset (1,) with the bytes of the image, run_offset (m,) int64 with the
    runs of each mask.

    Raises OptionError for a missing array, another type or shape, or offsets that do not fit.
    """
    extent = sample_extent(layout, sample)
    rows = {}
    for spec in layout.arrays:
        if spec.offsets and spec.axis == "sample":
            rows[spec.name] = np.array([extent.along(spec.child_axis)], np.int64)
        elif spec.offsets:
            rows[spec.name] = _lengths(spec, _given(sample, spec.name), extent)
        elif spec.name != "checksum":
            rows[spec.name] = _rows(spec, _given(sample, spec.name), extent)
    _check_stored_size(layout, rows["size"][0])
    if layout.flat:
        _check_image_bytes(layout, rows["size"][0], len(rows["image"]))
    return rows


def finished_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """`checked_rows` and their `checksum`, (1,) uint64: all that a shard stores of a sample."""
    rows = checked_rows(layout, sample)
    checksum = rows_checksum(layout, rows, stored_height(rows))
    return {**rows, "checksum": np.array([checksum], np.uint64)}


def stored_height(rows: Mapping[str, np.ndarray]) -> int:
    """Rows of pixels that are stored; a canvas is zero from there on."""
    return int(rows["size"][0, 2])


def sample_extent(layout: Layout, sample: Sample) -> Extent:
    """How far one sample, or its checked rows, move the position in its shard."""
    return Extent(
        samples=1,
        masks=len(_given(sample, "annotation_id")),
        runs=len(_given(sample, "run_ends")) if layout.runs else 0,
        image_bytes=_given(sample, "image").size if layout.flat else 0,
    )


def sample_checksum(layout: Layout, sample: Sample) -> int:
    """The XXH3-64 that a shard stores for a sample (docs/format.md, "Checksum of a sample").

    It covers every array but `checksum`, offsets as lengths, so it says nothing about the position.
    Raises OptionError as `checked_rows` does.
    """
    return int(finished_rows(layout, sample)["checksum"][0])


def _given(sample: Sample, name: str) -> np.ndarray:
    try:
        return sample[name]
    except KeyError:
        raise OptionError(f"sample has no array {name!r}; it has {sorted(sample)}") from None


def _rows(spec: ArraySpec, value: np.ndarray, extent: Extent) -> np.ndarray:
    """`value` as (n, *row_shape), where a single sample's row may come without the leading 1."""
    if spec.axis == "sample" and value.shape == spec.row_shape:
        value = value[None]
    shape = (extent.along(spec.axis), *spec.row_shape)
    _check(spec, value, shape)
    return np.ascontiguousarray(value)


def _lengths(spec: ArraySpec, offsets: np.ndarray, extent: Extent) -> np.ndarray:
    """Differences of a sample's local offsets, which begin at 0 and end at its last row."""
    _check(spec, offsets, (extent.along(spec.axis) + 1,))
    lengths = np.diff(offsets)
    last = extent.along(spec.child_axis)
    if offsets[0] != 0 or offsets[-1] != last or (lengths < 0).any():
        raise OptionError(
            f"{spec.name} of a sample runs from {offsets[0]} to {offsets[-1]}: it must rise from 0 "
            f"to the {last} rows of axis {spec.child_axis!r}"
        )
    return lengths


def _check(spec: ArraySpec, value: np.ndarray, shape: tuple[int, ...]) -> None:
    if value.dtype != spec.dtype or value.shape != shape:
        raise OptionError(
            f"{spec.name} of a sample is {value.dtype} {value.shape}: the layout asks for "
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
    due = image_nbytes(layout, int(size[2]), int(size[3]))
    if found != due:
        raise OptionError(
            f"image of a sample has {found} bytes: {size[2]} x {size[3]} {layout.pixels} pixels "
            f"take {due}"
        )
