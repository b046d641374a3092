"""What the rows of a feature are; its manifest, written once, before all rows; its shards."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import xxhash

from sa1bpack.arguments import choice
from sa1bpack.errors import FormatError, NotAPack, OptionError, OutputRefused
from sa1bpack.format import arrays, files
from sa1bpack.format.index import shard_digests
from sa1bpack.format.layout import ArraySpec, AxisLengths, array_spec
from sa1bpack.format.manifest import MANIFEST_NAME, SIDE_FORMAT_NAME, Manifest
from sa1bpack.wording import brief, counted

# Of fixed rows without gaps, and of all others, which earlier releases must refuse.
FIXED_VERSION = (1, 0)
SIDE_FORMAT_VERSION = (2, 0)
# The folder of a pack in which its own features are.
SIDES_NAME = "side"
SIDE_AXES = ("sample", "mask")
# bfloat16 is stored as uint16: neither numpy nor Zarr has the type.
_WHOLE_NUMBERS = ("uint8", "int8", "int16", "int32", "int64")
# What spatial rows cover, and how they are resampled where they are moved.
COVERS = ("canvas", "photograph")
INTERPOLATIONS = ("bilinear", "nearest")
SIDE_DTYPES = (*_WHOLE_NUMBERS, "float16", "bfloat16", "float32", "float64")
# Rows are strings: UTF-8, in bytes.
TEXT = "text"
# What `quantize` may be → floats that are stored in a byte each, with a scale per channel, see
# `scaled_shape`: as int8, and as bits of torch.float8_e4m3fn, which numpy does not have, in uint8.
SCALED_DTYPES = {"int8": "scaled_int8", "float8": "scaled_float8_e4m3fn"}
SCALE_BYTES = 4
SCALE_DTYPE = np.dtype("<f4")
# Of the stored numbers, either sign.
LARGEST = {"scaled_int8": 127, "scaled_float8_e4m3fn": 448}
# Of the rows that are read.
FLOAT_DTYPE = np.dtype("<f2")
# Where the name of a type is not numpy's.
_STORED = {
    "bfloat16": "uint16",
    "scaled_int8": "int8",
    "scaled_float8_e4m3fn": "uint8",
    TEXT: "uint8",
}
MAX_SIDE_DIMS = 8
MAX_SIDE_ROW_BYTES = 1 << 30

# The keys of the provenance in which all feature shards must agree: they decide the rows.
MADE_WITH = ("function", "seed", "options", "pipeline", "mask_choice", "samples")
_TOP_FILES = {MANIFEST_NAME, arrays.METADATA_NAME, files.CHECKSUMS_NAME}

AGAIN = "repeat the `sa1bpack derive` or the `sa1bpack.attach` that made the array"
REMAKE = f"remove that folder, and {AGAIN}"
# Name of a shard, and the beginning of its digest.
_FEATURE_SHARD_NAME = re.compile(r"[^.].*-[0-9a-f]{8}")
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
        dtype: one of SIDE_DTYPES, a value of SCALED_DTYPES, or TEXT.
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


@dataclass(frozen=True)
class SideManifest:
    """The manifest of a feature: its SideSpec, and how it was made.

    Attributes:
        provenance: JSON data for people: function, options, versions. No reader depends on it.
    """

    spec: SideSpec
    provenance: dict[str, Any]


def side_root_metadata(spec: SideSpec) -> dict[str, Any]:
    """The zarr.json at the top of a feature."""
    return arrays.group_metadata({"format": list(spec.version)})


def is_side(folder: Path) -> bool:
    """True if a folder has the manifest of a feature. Raises OSError if it cannot be read."""
    try:
        manifest = arrays.read_json(Path(folder) / MANIFEST_NAME)
    except FormatError:
        return False
    return isinstance(manifest, dict) and manifest.get("format") == SIDE_FORMAT_NAME


def read_side_manifest(folder: Path) -> SideManifest:
    """Read and check the manifest of a feature.

    Raises NotAPack if the folder is not a feature, FormatError if the manifest breaks a rule of
    docs/format.md, VersionError for another major version, OSError if it cannot be read.
    """
    path = Path(folder) / MANIFEST_NAME
    if not path.exists():
        raise NotAPack(
            f"{folder}: not a feature: it has no {MANIFEST_NAME}; make one with "
            "`sa1bpack derive` or `sa1bpack.attach`"
        )
    keys = arrays.read_json(path, REMAKE)
    if not isinstance(keys, dict) or keys.get("format") != SIDE_FORMAT_NAME:
        raise NotAPack(f'{path}: it lacks "format": "{SIDE_FORMAT_NAME}"; this is not a feature')
    major = arrays.check_version(
        path, keys.get("version"), SIDE_FORMAT_VERSION, REMAKE, oldest=FIXED_VERSION[0]
    )
    try:
        provenance = msgspec.convert(keys.get("provenance", {}), dict[str, Any])
        spec = SideSpec.from_json(keys)
    except msgspec.ValidationError as error:  # also of an OptionError of the spec
        later = "install the release of sa1bpack that wrote it, if it is a later one; otherwise "
        raise FormatError(f"{path}: {error}; {later}{REMAKE}") from None
    if major != spec.version[0]:
        raise FormatError(
            f"{path}: version is {major}, but rows of {spec.to_text()} have version "
            f"{spec.version[0]}; {REMAKE}"
        )
    return SideManifest(spec, provenance)


def top_of_side(manifest: SideManifest) -> dict[str, bytes]:
    """The files of a feature above its feature shards: name → bytes."""
    kind = {"format": SIDE_FORMAT_NAME, "version": manifest.spec.version}
    described = {**kind, **manifest.spec.to_json(), "provenance": manifest.provenance}
    top = {
        MANIFEST_NAME: arrays.canonical_json(described),
        arrays.METADATA_NAME: arrays.canonical_json(side_root_metadata(manifest.spec)),
    }
    digests = {name: xxhash.xxh3_128_hexdigest(data) for name, data in top.items()}
    top[files.CHECKSUMS_NAME] = files.format_checksums(digests)
    return top


def create_side(folder: Path, manifest: SideManifest, mark: str = "") -> SideManifest:
    """Make the folder of a feature, complete but for its feature shards, unless it exists.

    Any number of processes may do so at once: the first one wins.

    Args:
        mark: beginning of its working name, for a process that later removes what it left when it
            was killed.

    Returns:
        The manifest that the folder has.

    Raises:
        OutputRefused: the manifest is that of another array, or of one made with something else
            (MADE_WITH), or the folder is not a feature.
        FormatError, OSError: as for `read_side_manifest`.
    """
    files.make_folder(folder.parent)
    files.remove_leftovers(folder.with_name(mark + folder.name))
    if folder.is_dir():
        files.remove_idle_locks(folder)
    if not folder.exists():
        staging = files.temporary_beside(folder.with_name(mark + folder.name))
        try:
            staging.mkdir()
            for name, data in top_of_side(manifest).items():
                files.write_durably(staging / name, data)
            files.flush_folder(staging)
            if files.claim_name(staging, folder):
                return manifest
        finally:
            files.discard_entry(staging)
    if not is_side(folder):
        raise OutputRefused(f"{folder}: it exists and is not a feature; choose another folder")
    stored = read_side_manifest(folder)
    if (difference := first_difference(stored, manifest)) is not None:
        raise OutputRefused(
            f"{folder}: it is another feature, {difference}: choose another folder, or remove "
            "this one"
        )
    return stored


def first_difference(stored: SideManifest, expected: SideManifest) -> str | None:
    """The difference that forbids rows of two features in one folder; None if there is none."""
    expected_keys = asdict(expected.spec)
    for key, value in asdict(stored.spec).items():
        if value != expected_keys[key]:
            return f"{key} is {value!r}, not {expected_keys[key]!r}"
    for key in MADE_WITH:
        value = stored.provenance.get(key)
        other = expected.provenance.get(key)
        if value != other:
            return f"made with {key} {value!r:.400}, not {other!r:.400}"
    return None


def is_unused(folder: Path) -> bool:
    """True if a feature has no feature shard, and no process that makes one or that was killed."""
    names = {path.name for path in Path(folder).iterdir()}
    return all(name in _TOP_FILES or files.is_kept_in_use(name) for name in names)


def remove_unused(folder: Path) -> None:
    """Remove a feature unless it is in use, see `is_unused`, or comes into use meanwhile.

    It is renamed before it is looked into, and a `FeatureShardWriter` reads the manifest after it
    has made its lock file there: one of the two notices the other.
    """
    aside = files.temporary_beside(folder)
    folder.rename(aside)
    if is_unused(aside):
        files.remove_entry(aside)
    else:
        aside.rename(folder)


# ------------------------------------------------------------------ rows of floats in scaled bytes
# Half the bytes of float16. Axis 0 of a row are its channels; a row of one axis is a single one. A
# channel is stored as its scale, a little-endian float32 in four bytes, then its values divided by
# the scale and rounded to int8 or float8. They lie together, so that a row is read at once and its
# checksum is of its scales, too.


def scaled_shape(row_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a stored row: (C, 4 + values of a channel), or (4 + n,) of a row of one axis."""
    channels = row_shape[:-1][:1]
    return (*channels, SCALE_BYTES + prod(row_shape[len(channels) :]))


def scaled_of(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Finite floats (n, *row_shape) as they are stored: int8 or uint8 (n, *scaled_shape)."""
    shape = (len(rows), *scaled_shape(rows.shape[1:]))
    largest = LARGEST[dtype]
    values = rows.astype(np.float32).reshape(*shape[:-1], shape[-1] - SCALE_BYTES)
    scale = (np.abs(values).max(-1, keepdims=True) / largest).astype(SCALE_DTYPE)
    np.divide(values, scale, out=values, where=scale > 0)
    stored = np.empty(shape, _STORED[dtype])
    stored[..., :SCALE_BYTES] = scale.view(stored.dtype)
    # A scale that is hardly above zero is not exact.
    values.clip(-largest, largest, out=values)
    if dtype == "scaled_int8":
        stored[..., SCALE_BYTES:] = np.rint(values, out=values)
    else:
        stored[..., SCALE_BYTES:] = values.astype(_float8()).view(np.uint8)
    return stored


@functools.cache
def _float8() -> np.dtype[Any]:
    """float8_e4m3fn, whose library is imported with the first feature that has it."""
    dtype: np.dtype[Any] = np.dtype(import_module("ml_dtypes").float8_e4m3fn)
    return dtype


@functools.cache
def _float8_values() -> np.ndarray:
    """float32 (256,): the number of each byte. Looking it up is faster than converting."""
    return np.arange(256, dtype=np.uint8).view(_float8()).astype(np.float32)


def floats_of(stored: np.ndarray, row_shape: tuple[int, ...]) -> np.ndarray:
    """int8 or uint8 (..., *scaled_shape) as float16 (..., *row_shape), a new array."""
    scale = np.ascontiguousarray(stored[..., :SCALE_BYTES]).view(SCALE_DTYPE)
    values = stored[..., SCALE_BYTES:]
    if stored.dtype == np.uint8:
        values = _float8_values().take(values)
    with np.errstate(all="ignore"):  # of what a damaged file holds, infinities included
        values = (values * scale).astype(FLOAT_DTYPE)
    return values.reshape(*stored.shape[: stored.ndim - len(scaled_shape(row_shape))], *row_shape)


# ---------------------------------------------------------------------------------- feature shards
# A feature shard has the digest of its shard's checksum file, hence of all bytes of the shard, in
# its name and in its attributes. So it fits a shard with the same bytes in any pack, and no other.

_DIGITS = 8


@dataclass(frozen=True)
class ShardIdentity:
    """A shard of a pack, as a feature sees it.

    Attributes:
        name: name of the shard.
        digest: XXH3-128 of its checksum file, 32 hexadecimal digits.
        lengths: numbers of samples and masks.
    """

    name: str
    digest: str
    lengths: AxisLengths

    @property
    def feature_shard(self) -> str:
        """Name of the folder of its feature shard: its own name, and 8 digits of the digest."""
        return f"{self.name}-{self.digest[:_DIGITS]}"


def shard_identities(root: Path, manifest: Manifest) -> list[ShardIdentity]:
    """The shards of a pack, in the order of its manifest.

    Raises FormatError if a checksum file of a shard is missing, OSError if it cannot be read.
    """
    digests = shard_digests(root, manifest)
    return [
        ShardIdentity(shard.name, digest, shard.lengths)
        for shard, digest in zip(manifest.shards, digests, strict=True)
    ]


@dataclass(frozen=True)
class Coverage:
    """The coverage of a pack's shards by a feature.

    Attributes:
        missing: shards without a feature shard.
        stale: those of the missing shards for which there is a feature shard for other bytes: they
            were packed again, or repaired to other bytes.
        others: feature shards for shards that are not among those asked for, or have other bytes by
            now.
    """

    missing: tuple[str, ...]
    stale: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        stale = f" ({len(self.stale):,} stale)" if self.stale else ""
        others = " and others" if len(self.missing) > 1 else ""
        return f"{counted(len(self.missing), 'shard')} missing{stale}: {self.missing[0]}{others}"


def side_folders(root: Path) -> list[Path]:
    """The features in a pack's own folder, sorted by name."""
    folder = root / SIDES_NAME
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not files.is_passed_over(path.name))


def feature_shard_names(folder: Path) -> list[str]:
    """Names of the published feature shards of a feature, sorted. Raises OSError."""
    return sorted(path.name for path in Path(folder).iterdir() if _is_feature_shard(path))


def strays_of(folder: Path) -> list[Path]:
    """What is in the folder of a feature and means nothing there, sorted. Raises OSError."""
    strays = []
    for path in sorted(Path(folder).iterdir()):
        meant = path.name in _TOP_FILES or _is_feature_shard(path)
        if not (meant or files.is_passed_over(path.name)):
            strays.append(path)
    return strays


def _is_feature_shard(path: Path) -> bool:
    # In a cache, it is a link to a folder that may not have been fetched yet.
    is_folder = path.is_symlink() or path.is_dir()
    return is_folder and _FEATURE_SHARD_NAME.fullmatch(path.name) is not None


def coverage(names: Iterable[str], shards: Iterable[ShardIdentity]) -> Coverage:
    """The coverage of these shards by the feature shards among these names of folders.

    A shard without samples needs none.
    """
    existing = set(names)
    shards = list(shards)
    bound = {name[: -_DIGITS - 1] for name in existing}
    missing = tuple(s.name for s in shards if s.lengths.samples and s.feature_shard not in existing)
    return Coverage(
        missing,
        tuple(name for name in missing if name in bound),
        tuple(sorted(existing - {shard.feature_shard for shard in shards})),
    )


def feature_shard_attributes(
    spec: SideSpec, shard: ShardIdentity, items: int = 0
) -> dict[str, Any]:
    """The attributes of the feature shard for a shard.

    Args:
        items: the items of all ragged rows together.
    """
    attributes = {
        "format": list(spec.version),
        "side": spec.name,
        "shard": shard.name,
        "digest": shard.digest,
        "samples": shard.lengths.samples,
        "masks": shard.lengths.masks,
    }
    if spec.ragged:
        attributes["items"] = items
    return attributes
