"""What the rows of a feature are."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import ArraySpec, AxisLengths, array_spec
from sa1bpack.format.side.scaled import FLOAT_DTYPE, LARGEST, SCALED_BYTES, floats_of, scaled_shape
from sa1bpack.wording import brief

# Of fixed rows without gaps, and of all others, which earlier releases must refuse.
FIXED_VERSION = (1, 0)
SIDE_FORMAT_VERSION = (2, 0)
SIDE_AXES = ("sample", "mask")
# bfloat16 is stored as uint16: neither numpy nor Zarr has the type.
_WHOLE_NUMBERS = ("uint8", "int8", "int16", "int32", "int64")
# What spatial rows cover, and how they are resampled where they are moved.
COVERS = ("canvas", "photograph")
INTERPOLATIONS = ("bilinear", "nearest")
SIDE_DTYPES = (*_WHOLE_NUMBERS, "float16", "bfloat16", "float32", "float64")
# Rows are strings: UTF-8, in bytes.
TEXT = "text"
# Where the name of a type is not numpy's.
_STORED = {"bfloat16": "uint16", TEXT: "uint8", **SCALED_BYTES}
MAX_SIDE_DIMS = 8
MAX_SIDE_ROW_BYTES = 1 << 30

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,63}\Z")


@dataclass(frozen=True)
class SideSpec:
    """The rows of a feature.

    Types of the fields are those of the manifest's keys, which reading it checks.

    A row is *fixed*, of one shape, or *ragged*: any number of items of one shape. Rows of text are
    ragged: their items are bytes.

    Attributes:
        name: key in samples and batches: a letter, then at most 63 letters, digits and "_".
        axis: "sample": a row per image; "mask": a row per mask, in the order of the shard.
        dtype: one of SIDE_DTYPES, a value of `scaled.SCALED_DTYPES`, or TEXT.
        row_shape: shape of a fixed row, or of an item of a ragged one: at most 8 sides of at least
            1; of text, ().
        spatial: rows are (C, h, w) over what they cover.
        covers: of spatial rows. "canvas": the canvas of the stored image, S x S pixels. Cell (i, j)
            covers the pixels from row i * S / h and column j * S / w on. "photograph": the stored
            image without padding, H x W pixels; cell (i, j) covers those from row i * H / h and
            column j * W / w on. None: the canvas if h and w are equal; else it is not known.
        interpolation: of spatial rows: "bilinear", or "nearest", for labels. None: nearest for
            integers, bilinear for floats.
        ragged: rows have any number of items.
        missing: rows may be missing. Such a row is of zeros, or has no item.

    Raises:
        OptionError: a type or a shape that cannot be stored, or keys that do not fit together.
    """

    name: Annotated[str, msgspec.Meta(pattern=_NAME.pattern)]
    axis: Literal["sample", "mask"]
    dtype: str
    row_shape: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    spatial: bool = False
    covers: Literal["canvas", "photograph"] | None = None
    interpolation: Literal["bilinear", "nearest"] | None = None
    ragged: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        choice("dtype", self.dtype, (*SIDE_DTYPES, *LARGEST, TEXT))
        if self.text and (not self.ragged or self.row_shape):
            raise OptionError(f"rows of text are ragged bytes, not {brief(self.row_shape)}")
        if self.ragged and (self.scaled or self.spatial):
            kind = "spatial" if self.spatial else "stored with scales (quantize)"
            raise OptionError(
                f"rows have any number of items: they cannot be {kind}; leave that out, or make "
                "rows of one shape"
            )
        if self.scaled and not self.row_shape:
            raise OptionError("rows are single numbers: they cannot be stored with scales")
        fits = 1 <= self.row_bytes <= MAX_SIDE_ROW_BYTES
        if len(self.row_shape) > MAX_SIDE_DIMS or not fits:
            raise OptionError(
                f"row_shape is {brief(self.row_shape)}: a row has at most {MAX_SIDE_DIMS} axes "
                f"and 1 to {MAX_SIDE_ROW_BYTES} bytes"
            )
        if self.spatial and len(self.row_shape) != 3:
            raise OptionError(
                f"spatial is True, but rows are {self.row_shape} per {self.axis}: spatial arrays "
                "have rows (C, h, w)"
            )
        for name in ("covers", "interpolation"):
            if not self.spatial and getattr(self, name) is not None:
                raise OptionError(f"{name} is {getattr(self, name)!r}, but spatial is False")
        if self.spatial:
            self._complete()

    def _complete(self) -> None:
        """Set what spatial rows cover and how they are resampled, if that is not said."""
        _, height, width = self.row_shape
        if self.covers is None and height == width:
            object.__setattr__(self, "covers", "canvas")
        if self.interpolation is None:
            object.__setattr__(self, "interpolation", self._default_interpolation)

    @property
    def _default_interpolation(self) -> str:
        return "nearest" if self.dtype in _WHOLE_NUMBERS else "bilinear"

    def to_json(self) -> dict[str, Any]:
        """The keys of the manifest; those of spatial rows that say what is so without them are not.

        So the manifest of such rows is that of releases that did not know these keys.
        """
        keys = asdict(self)
        if keys.pop("ragged"):
            keys["row_shape"] = [None, *self.row_shape]
        if not self.missing:
            del keys["missing"]
        plain = self.covers == "canvas" and self.row_shape[1] == self.row_shape[2]
        if plain or not self.spatial:
            del keys["covers"]
        if not self.spatial or self.interpolation == self._default_interpolation:
            del keys["interpolation"]
        return keys

    @classmethod
    def from_json(cls, keys: Mapping[str, Any]) -> "SideSpec":
        """The spec of the keys of a manifest. Raises msgspec.ValidationError."""
        fields = {**keys, "ragged": False}
        shape = keys.get("row_shape")
        if isinstance(shape, list) and shape[:1] == [None]:
            fields["row_shape"] = shape[1:]
            fields["ragged"] = True
        return msgspec.convert(fields, cls)

    @property
    def version(self) -> tuple[int, int]:
        """The version of the format that such rows need."""
        maps_of_masks = self.spatial and self.axis == "mask"
        if self.ragged or self.missing or maps_of_masks:
            return SIDE_FORMAT_VERSION
        return FIXED_VERSION

    @property
    def text(self) -> bool:
        """True if rows are strings."""
        return self.dtype == TEXT

    @property
    def scaled(self) -> bool:
        """True if rows are stored in bytes with scales, and read as float16."""
        return self.dtype in LARGEST

    @property
    def stored(self) -> np.dtype:
        """The numpy type of the stored numbers, little-endian: uint16 for bfloat16."""
        return np.dtype(_STORED.get(self.dtype, self.dtype)).newbyteorder("<")

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of a fixed row, or of an item of a ragged one, as it is stored."""
        return scaled_shape(self.row_shape) if self.scaled else self.row_shape

    @property
    def row_dtype(self) -> np.dtype:
        """The numpy type of the rows that are read."""
        return FLOAT_DTYPE if self.scaled else self.stored

    def read(self, stored: np.ndarray) -> np.ndarray:
        """Stored rows (..., *stored_shape) as (..., *row_shape): themselves, or new floats."""
        if not self.scaled:
            return stored
        rows = floats_of(stored, self.row_shape)
        rows.flags.writeable = stored.flags.writeable
        return rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a fixed row, or of an item of a ragged one, as it is stored."""
        return self.stored.itemsize * prod(self.stored_shape)

    @property
    def values(self) -> ArraySpec:
        """The array of the stored rows, or of the items of ragged rows."""
        inner = tuple(f"axis_{n}" for n in range(1, len(self.row_shape) + 1))
        if self.scaled:
            inner = ("channel", "scale_and_values")[-len(self.stored_shape) :]
        elif self.spatial:
            inner = ("channel", "y", "x")
        rows = "item" if self.ragged else self.axis
        return array_spec("values", self.stored.str, (rows, *inner), self.stored_shape)

    @property
    def offset(self) -> ArraySpec | None:
        """The array that says where each ragged row begins in `values`; None for fixed rows."""
        if not self.ragged:
            return None
        return array_spec("offset", "<i8", (f"{self.axis}_edge",), child_axis="item")

    @property
    def present(self) -> ArraySpec | None:
        """The array that says which rows are there; None if all are."""
        return array_spec("present", "|u1", (self.axis,)) if self.missing else None

    def arrays(self, lengths: AxisLengths, items: int = 0) -> dict[ArraySpec, int]:
        """The arrays of the feature shard for a shard of these lengths → their number of rows.

        Args:
            lengths: lengths of the shard.
            items: the items of all ragged rows together.
        """
        values = self.values
        rows = {values: items if self.ragged else values.rows(lengths)}
        for spec in (self.offset, self.present, CHECKSUM):
            if spec is not None:
                rows[spec] = spec.rows(lengths)
        return rows

    def row_range(self, sample: int, first_mask: int, stop_mask: int) -> tuple[int, int]:
        """The first row of a sample in its feature shard, and the one after its last.

        Args:
            sample: row of the sample in its shard.
            first_mask, stop_mask: its masks: first row in the shard, and the one after the last.
        """
        if self.axis == "sample":
            return sample, sample + 1
        return first_mask, stop_mask

    def to_text(self) -> str:
        """One line, such as "float16 (256, 64, 64) per image, spatial"."""
        of = "image" if self.axis == "sample" else "mask"
        shape = f" {self.row_shape}"
        if self.text:
            shape = ""
        elif self.ragged:
            shape = f" ({', '.join(map(str, ('n', *self.row_shape)))})"
        text = f"{self.dtype}{shape} per {of}"
        if self.missing:
            text += ", rows may be missing"
        if not self.spatial:
            return text
        text += ", spatial"
        if self.covers != "canvas":
            text += f" over {'the photograph' if self.covers else 'what is not said'}"
        if self.interpolation != self._default_interpolation:
            text += f", {self.interpolation}"
        return text


# XXH3-64 of the rows that belong to each sample, see `rows.FeatureRows.checksums`.
CHECKSUM = array_spec("checksum", "<u8", ("sample",))


def side_name(name: Any) -> str:
    """The name of a feature. Raises OptionError if it cannot be one."""
    if not isinstance(name, str) or _NAME.match(name) is None:
        raise OptionError(
            f"name is {brief(name)}: choose a letter followed by at most 63 letters, digits and _"
        )
    return name
