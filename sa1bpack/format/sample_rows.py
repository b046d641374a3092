"""One sample on its way into a shard: checked rows, its extent and its checksum."""

from collections.abc import Mapping

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.format.checksums import rows_checksum
from sa1bpack.format.layout import ArraySpec, Extent, Layout

# The rows of one sample by array name: per-sample arrays as the bare row or with a leading 1,
# per-mask arrays (m, ...), run_ends (r,), run_offset (m + 1,) from 0 on. mask_offset and checksum
# follow from the others and are not given. Image rows below the stored height are not read.
Sample = Mapping[str, np.ndarray]


def checked_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """The rows of one sample, each of its array's exact type and shape, offsets as lengths.

    Returns C-contiguous (n, *row_shape) arrays for all arrays but `checksum`, views of the given
    ones where those are contiguous. Offset arrays become lengths: mask_offset (1,) int64 with the
    number of masks, run_offset (m,) int64 with the runs of each mask.

    Raises OptionError for a missing array, another type or shape, or offsets that do not fit.
    """
    masks = len(_given(sample, "annotation_id"))
    runs = len(_given(sample, "run_ends")) if layout.runs else 0
    extent = Extent(1, masks, runs)
    rows = {}
    for spec in layout.arrays:
        if spec.name == "mask_offset":
            rows[spec.name] = np.array([masks], np.int64)
        elif spec.offsets:
            rows[spec.name] = _lengths(spec, _given(sample, spec.name), extent)
        elif spec.name != "checksum":
            rows[spec.name] = _rows(spec, _given(sample, spec.name), extent)
    _check_stored_size(layout, rows["size"][0])
    return rows


def stored_height(rows: Mapping[str, np.ndarray]) -> int:
    """Rows of the canvas that hold the image; the canvas is zero from there on."""
    return int(rows["size"][0, 2])


def rows_extent(rows: Mapping[str, np.ndarray]) -> Extent:
    """How many samples (1), masks and runs a sample's checked rows are."""
    runs = len(rows["run_ends"]) if "run_ends" in rows else 0
    return Extent(1, len(rows["annotation_id"]), runs)


def sample_extent(layout: Layout, sample: Sample) -> Extent:
    """How far one sample moves the position in its shard."""
    runs = len(_given(sample, "run_ends")) if layout.runs else 0
    return Extent(1, len(_given(sample, "annotation_id")), runs)


def sample_checksum(layout: Layout, sample: Sample) -> int:
    """The XXH3-64 that a shard stores for a sample (docs/format.md, "Checksum of a sample").

    It covers every array but `checksum`, offsets as lengths, so it says nothing about the position.
    Raises OptionError as `checked_rows` does.
    """
    rows = checked_rows(layout, sample)
    return rows_checksum(layout, rows, stored_height(rows))


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
            f"stored size {size[2]} x {size[3]} (height x width) is not within 1 and the canvas's "
            f"{side}"
        )
