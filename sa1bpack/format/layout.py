"""The arrays of a shard: their dtypes, shapes and order.

The arrays are defined here alone; docs/format.md shows the same table, and a test compares the two.
Axes are named, not numbered: a *sample* is one image, a *mask* one annotation of an image, a *run*
one stretch of equal pixels of a mask, an *image byte* one byte of an image that is stored without
padding. Ragged data is flat along its own axis; an offset array on the axis above says where the
part of each row starts. Where the pixels of an image lie in its bytes is defined at the end.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import FormatError, OptionError, UnknownName
from sa1bpack.format.file_checksums import update_zeros
from sa1bpack.format.files import byte_view
from sa1bpack.mask_numbers import (
    ABSENT_NUMBERS,
    MASK_NUMBERS,
    OPTIONAL_NUMBERS,
    MaskNumber,
    stored_numbers,
)
from sa1bpack.wording import brief

FORMAT_NAME = "sa1bpack"
FORMAT_VERSION = (1, 0)
FILE_NAME_BYTES = 64
MAX_IMAGE_SIZE = 16384
MAX_MASK_SIZE = 16384

# "shard" is an axis of the index alone, "item" one of features.
Axis = Literal["shard", "sample", "mask", "run", "image_byte", "item"]
FITS = ("pad", "squash", "native", "scale_down")
PIXELS = ("rgb", "yuv420")


@dataclass(frozen=True)
class AxisLengths:
    """The length of a shard along each axis, or a position in it.

    image_bytes stays 0 if each image has a canvas, and so no axis of its own.
    """

    samples: int = 0
    masks: int = 0
    runs: int = 0
    image_bytes: int = 0

    def __add__(self, other: "AxisLengths") -> "AxisLengths":
        return AxisLengths(
            samples=self.samples + other.samples,
            masks=self.masks + other.masks,
            runs=self.runs + other.runs,
            image_bytes=self.image_bytes + other.image_bytes,
        )

    def along(self, axis: Axis) -> int:
        """The number of rows along one axis."""
        lengths: dict[str, int] = vars(self)
        return lengths[f"{axis}s"]


class ArraySpec(NamedTuple):
    """One array of a shard or of the index; made by `array_spec`.

    Attributes:
        name: folder of the array.
        dtype: little-endian numpy dtype.
        row_shape: shape of one row, without axis 0.
        row_bytes: bytes of one row.
        dims: names of all dimensions, axis 0 first.
        axis: name of axis 0: what its rows count.
        child_axis: the axis that an offset array points into. It has one row more than its own
            axis; row 0 is 0, and rows [k, k + 1] are where the part of row k starts and ends.
        chunk_path: path of the only chunk file inside the group's folder: `<name>/c`, `.0` per
            dimension.
    """

    name: str
    dtype: np.dtype
    row_shape: tuple[int, ...]
    row_bytes: int
    dims: tuple[str, ...]
    axis: Axis
    child_axis: Axis | None
    chunk_path: str

    @property
    def offsets(self) -> bool:
        """True if it is an offset array."""
        return self.child_axis is not None

    def rows(self, lengths: AxisLengths) -> int:
        """Rows of the array in a group of these lengths."""
        return lengths.along(self.axis) + self.offsets


def array_spec(
    name: str,
    dtype: str,
    dims: tuple[str, ...],
    row_shape: Sequence[int] = (),
    child_axis: Axis | None = None,
) -> ArraySpec:
    """An ArraySpec from a numpy type string, and the axis from the name of the first dimension.

    That of an offset array is `<axis>_edge`.
    """
    axis: Any = dims[0].removesuffix("_edge")
    return ArraySpec(
        name=name,
        dtype=np.dtype(dtype),
        row_shape=tuple(row_shape),
        row_bytes=np.dtype(dtype).itemsize * prod(row_shape),
        dims=dims,
        axis=axis,
        child_axis=child_axis,
        chunk_path=f"{name}/c{'.0' * len(dims)}",
    )


_SHORT_BYTES = 4096  # see `rows_checksum`

# Keys of a layout that are left out where their lists are empty.
_LISTS = {"numbers", "absent"}


def absent_numbers(names: Sequence[str]) -> tuple[str, ...]:
    """Names of numbers that a pack lacks, in the order of MASK_NUMBERS.

    Raises OptionError for a number that every pack has, for an unknown name, and for one that is
    given twice.
    """
    required = [number.array for number in MASK_NUMBERS if number.array not in ABSENT_NUMBERS]
    for position, name in enumerate(names):
        if name in required:
            raise OptionError(f"absent has {brief(name)}, which the masks of every pack have")
        if name not in ABSENT_NUMBERS:
            raise OptionError(f"absent has {brief(name)}: choose from {', '.join(ABSENT_NUMBERS)}")
        if name in names[:position]:
            raise OptionError(f"absent has {brief(name)} twice: leave one out")
    return tuple(name for name in ABSENT_NUMBERS if name in names)


@dataclass(frozen=True)
class Layout:
    """The choices that determine the arrays of a pack and the width of their rows.

    `from_json` checks each choice alone, as `PackOptions` does.

    Attributes:
        image_size: side S of the stored image canvas in pixels; with native the longer side.
        mask_size: side Sm of the mask grid in cells; without bits, that of the grid that a reader
            draws.
        fit: how images lie on their canvas: "pad" (aspect ratio kept, top left of the canvas, the
            rest zero), "squash" (both sides S), "native" (as pad, without the canvas) or
            "scale_down" (as native, but smaller images keep their size).
        runs: exact full-resolution masks are stored as runs.
        pixels: "rgb", or "yuv420": planes Y, Cb and Cr, the chroma at half size.
        bits: masks are stored as bits of the grid.
        numbers: the optional numbers of masks that are stored, in the order of MASK_NUMBERS.
        absent: the numbers of masks that are not stored, as the records have no values for them,
            in the same order.

    Raises:
        OptionError: choices that exclude each other, a number in `numbers` that is not an optional
            one, or one in `absent` that every pack has, that is unknown, or that is named twice.
    """

    image_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_IMAGE_SIZE)] = 1024
    mask_size: Annotated[int, msgspec.Meta(ge=8, le=MAX_MASK_SIZE, multiple_of=8)] = 256
    fit: Literal["pad", "squash", "native", "scale_down"] = "pad"
    runs: bool = True
    pixels: Literal["rgb", "yuv420"] = "rgb"
    bits: bool = True
    numbers: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = set(self.numbers) - set(OPTIONAL_NUMBERS)
        if unknown:
            raise OptionError(f"numbers has {brief(min(unknown))}, which is no optional number")
        in_order = tuple(name for name in OPTIONAL_NUMBERS if name in self.numbers)
        object.__setattr__(self, "numbers", in_order)
        object.__setattr__(self, "absent", absent_numbers(self.absent))
        if not (self.bits or self.runs):
            raise OptionError("bits and runs are both False: masks must be stored in some form")
        if self.pixels == "yuv420" and not self.flat and self.image_size % 2:
            raise OptionError(
                f"image_size is {self.image_size}, but a canvas of yuv420 pixels has chroma of "
                "half its size: choose an even number, or the fit native"
            )

    def to_json(self) -> dict[str, Any]:
        """The layout as manifests and shards store it: without the arrays, which follow from it.

        It lacks the key of a list that is empty, which releases before it refuse.
        """
        stored = asdict(self)
        for key in _LISTS:
            stored[key] = list(stored[key])
            if not stored[key]:
                del stored[key]
        return stored

    __getstate__ = to_json

    @property
    def flat(self) -> bool:
        """True if images are stored in sequence, each of its own size, without a canvas."""
        return self.fit in ("native", "scale_down")

    @property
    def mask_numbers(self) -> tuple[MaskNumber, ...]:
        """The numbers that are stored of each mask."""
        return stored_numbers(self.numbers, self.absent)

    @functools.cached_property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The arrays of a shard, in the order in which a sample's checksum covers them."""
        side = self.image_size
        grid = self.mask_size
        if self.flat:  # the bytes of the images in sequence, see image_planes
            image = [
                array_spec("image_offset", "<i8", ("sample_edge",), child_axis="image_byte"),
                array_spec("image", "|u1", ("image_byte",)),
            ]
        elif self.pixels == "yuv420":
            # I420: the rows of Y, then two rows of Cb in one, then two rows of Cr in one
            dims = ("sample", "yuv_row", "x")
            image = [array_spec("image", "|u1", dims, (side * 3 // 2, side))]
        else:  # RGB pixels: rows down, columns right
            image = [array_spec("image", "|u1", ("sample", "y", "x", "channel"), (side, side, 3))]
        per_sample = [
            array_spec("image_id", "<i8", ("sample",)),
            # UTF-8, padded with zeros; view as S64
            array_spec("file_name", "|u1", ("sample", "byte"), (FILE_NAME_BYTES,)),
            # pixels: source height, source width, stored height, stored width
            array_spec("size", "<i4", ("sample", "height_width"), (4,)),
            # annotations in the JSON record, before filtering and capping
            array_spec("annotation_count", "<i4", ("sample",)),
            array_spec("mask_offset", "<i8", ("sample_edge",), child_axis="mask"),
            # XXH3-64 of the sample's rows in the other arrays
            array_spec("checksum", "<u8", ("sample",)),
        ]
        per_mask = [
            array_spec(number.array, number.dtype, number.dims, number.row_shape)
            for number in self.mask_numbers
        ]
        # Bits: the JSON wrote the number as an integer, see MaskNumber.type_bit; NONCANONICAL_BIT
        per_mask.append(array_spec("number_types", "<u2", ("mask",)))
        if self.bits:  # cells, little bit order: cell x of a row is bit x % 8 of byte x // 8
            dims = ("mask", "mask_y", "mask_byte")
            per_mask.append(array_spec("mask_bits", "|u1", dims, (grid, grid // 8)))
        if self.runs:
            per_mask += [
                array_spec("run_offset", "<i8", ("mask_edge",), child_axis="run"),
                # source pixels, column-major: ends of background and foreground runs in turn, at
                # last H * W
                array_spec("run_ends", "<i4", ("run",)),
            ]
        return (*image, *per_sample, *per_mask)

    @functools.cached_property
    def type_bits(self) -> int:
        """The bits that `number_types` may have."""
        bits = 1 << NONCANONICAL_BIT
        for number in MASK_NUMBERS:
            if number.array in self.array_names:
                bits |= sum(1 << bit for bit in number.type_bits)
        return bits

    @functools.cached_property
    def array_names(self) -> frozenset[str]:
        """The names of the arrays."""
        return frozenset(spec.name for spec in self.arrays)

    def array(self, name: str) -> ArraySpec:
        """The array of that name. Raises UnknownName naming the arrays."""
        for spec in self.arrays:
            if spec.name == name:
                return spec
        raise UnknownName(
            f"no array {brief(name)}; the arrays are {', '.join(s.name for s in self.arrays)}"
        )

    def array_rows(self, lengths: AxisLengths) -> dict[ArraySpec, int]:
        """The number of rows of each array in a shard of these lengths."""
        return {spec: spec.rows(lengths) for spec in self.arrays}

    @classmethod
    def from_json(cls, data: Any, where: str = "layout") -> "Layout":
        """Read a stored layout; messages start with `where`.

        Raises FormatError for a missing or unknown key and for a value that cannot be used. A
        layout decides what the bytes mean, so an unknown key is never ignored.
        """
        names = set(cls.__annotations__) - _LISTS
        remedy = "the pack is damaged or needs a newer sa1bpack"
        keys = brief(sorted(data)) if isinstance(data, dict) else type(data).__name__
        if not isinstance(data, dict) or set(data) - _LISTS != names:
            raise FormatError(
                f"{where}: a layout has the keys {sorted(names)}, found {keys}; {remedy}"
            )
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:  # also of an OptionError
            raise FormatError(f"{where}: {error}; {remedy}") from None


# Bit of number_types: the text of `counts` differs from what COCO's own encoder writes.
NONCANONICAL_BIT = 15

# ------------------------------------------------------------------------------ bytes of an image
# A *canvas* (fit "pad" and "squash") has a fixed number of bytes per sample, zero beyond the stored
# height and width. A *flat* image (other fits) has no padding; `image_offset` says where its
# bytes start. Either holds one plane of interleaved RGB, or the planes Y, Cb and Cr in sequence
# (I420), each chroma plane with half the rows and columns, rounded up.


@dataclass(frozen=True)
class Plane:
    """One plane of an image.

    Attributes:
        name: "rgb", "y", "cb" or "cr".
        start: offset of its first byte from the first byte of the image.
        stride: bytes from one row to the next.
        shape: stored rows and columns, without padding, and 3 for interleaved RGB.
    """

    name: str
    start: int
    stride: int
    shape: tuple[int, ...]

    def view(self, image: np.ndarray) -> np.ndarray:
        """The stored pixels, `shape`, as a view of the bytes of an image, (n,) uint8."""
        strides = (self.stride, 3, 1) if len(self.shape) == 3 else (self.stride, 1)
        return np.ndarray(self.shape, np.uint8, image, self.start, strides)


_Side = TypeVar("_Side", int, np.ndarray)  # or one of each image


def half(side: _Side) -> _Side:
    """Rows or columns of a chroma plane: half of a side, rounded up."""
    return (side + 1) // 2


def image_nbytes(layout: Layout, height: Any, width: Any) -> Any:
    """Number of bytes of an image of stored height x width; ints, or arrays of one shape."""
    if not layout.flat:
        height = width = layout.image_size
    if layout.pixels == "rgb":
        return height * width * 3
    return height * width + 2 * half(height) * half(width)


def image_planes(layout: Layout, height: int, width: int) -> tuple[Plane, ...]:
    """The planes of an image of stored height x width, in stored order."""
    rows = height
    columns = width
    if not layout.flat:
        rows = columns = layout.image_size
    if layout.pixels == "rgb":
        return (Plane("rgb", 0, columns * 3, (height, width, 3)),)
    chroma = half(rows) * half(columns)
    shape = (half(height), half(width))
    return (
        Plane("y", 0, columns, (height, width)),
        Plane("cb", rows * columns, half(columns), shape),
        Plane("cr", rows * columns + chroma, half(columns), shape),
    )


def canvas_pieces(
    layout: Layout, image: np.ndarray, height: int
) -> Iterator[tuple[int, np.ndarray]]:
    """The pieces of a canvas, (n,) uint8, that hold an image of stored `height`.

    Each with the number of zeros before it, which are holes on disk; at last, with an empty piece,
    the zeros at the end.
    """
    before = 0
    for start, stop in canvas_spans(layout, height):
        yield start - before, image[start:stop]
        before = stop
    yield layout.array("image").row_bytes - before, image[:0]


def canvas_spans(layout: Layout, height: int) -> list[tuple[int, int]]:
    """The bytes of a canvas that hold an image of stored `height`, as (first, stop)."""
    spans = []
    for plane in image_planes(layout, height, layout.image_size):
        spans.append((plane.start, plane.start + plane.shape[0] * plane.stride))
    return spans


def is_zero_beyond(layout: Layout, image: np.ndarray, height: int, width: int) -> bool:
    """True if a canvas, (n,) uint8, is zero beyond the stored height and width."""
    whole = image_planes(layout, layout.image_size, layout.image_size)
    stored = image_planes(layout, height, width)
    for plane, stored_plane in zip(whole, stored, strict=True):
        pixels = plane.view(image)
        rows, columns = stored_plane.shape[:2]
        if pixels[rows:].any() or pixels[:rows, columns:].any():
            return False
    return True


def rows_checksum(layout: Layout, rows: Mapping[str, np.ndarray], stored_height: int) -> int:
    """XXH3-64 of one sample, from its rows.

    The hash covers the bytes in the order of `layout.arrays`.

    Args:
        rows: the sample's rows of every array of the layout except `checksum`, C-contiguous; of an
            offset array the lengths (differences of neighbours, int64), so that the value does not
            depend on the position of the sample in the pack.
        stored_height: rows of a canvas from here on are zero; they are not read, and may be
            missing.
    """
    arrays = []
    for spec in layout.arrays:
        if spec.name != "checksum":
            arrays.append((byte_view(rows[spec.name]), _is_canvas(layout, spec)))
    return _hash_of(layout, arrays, stored_height)


def rows_checksums(layout: Layout, rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint64 (k,): `rows_checksum` of each of k samples, whose rows follow each other.

    Args:
        rows: as for `rows_checksum`, of all samples; `size`, and of offset arrays the lengths.
    """
    mask_ends = np.append(0, np.cumsum(rows["mask_offset"]))
    ends = {"sample": range(len(rows["size"]) + 1), "mask": mask_ends.tolist()}
    if layout.runs:
        ends["run"] = np.append(0, np.cumsum(rows["run_offset"]))[mask_ends].tolist()
    if layout.flat:
        ends["image_byte"] = np.append(0, np.cumsum(rows["image_offset"])).tolist()
    pieces = []  # of each array: its bytes, and where in them those of each sample begin and end
    for spec in layout.arrays:
        if spec.name != "checksum":
            bounds = [end * spec.row_bytes for end in ends[spec.axis]]
            pieces.append((byte_view(rows[spec.name]), bounds, _is_canvas(layout, spec)))
    checksums = []
    for sample, height in enumerate(rows["size"][:, 2].tolist()):
        arrays = []
        for array, bounds, is_canvas in pieces:
            arrays.append((array[bounds[sample] : bounds[sample + 1]], is_canvas))
        checksums.append(_hash_of(layout, arrays, height))
    return np.array(checksums, np.uint64)


def _is_canvas(layout: Layout, spec: ArraySpec) -> bool:
    """True for images that are padded to one size."""
    return spec.name == "image" and not layout.flat


def _hash_of(layout: Layout, arrays: Sequence[tuple[np.ndarray, bool]], stored_height: int) -> int:
    """XXH3-64 of one sample.

    Args:
        arrays: (n,) uint8, the bytes of each array, and whether it is a canvas.
        stored_height: as for `rows_checksum`.
    """
    digest = xxhash.xxh3_64()
    short: list[memoryview] = []  # hashed at once: a call for each takes longer than its bytes
    for array, is_canvas in arrays:
        if array.size < _SHORT_BYTES and not is_canvas:
            short.append(array.data)
            continue
        digest.update(b"".join(short))
        short = []
        if is_canvas:
            for zeros, piece in canvas_pieces(layout, array, stored_height):
                update_zeros(digest, zeros)
                digest.update(piece.data)
        else:
            digest.update(array.data)
    digest.update(b"".join(short))
    return digest.intdigest()
