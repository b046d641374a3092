"""Reading a shard: everything is checked before the first view; arrays are memory maps."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sa1bpack.errors import FormatError, VersionError
from sa1bpack.format.array_reader import (
    REMEDY,
    check_array,
    check_length,
    check_metadata,
    check_offset_ends,
    map_array,
    read_metadata,
)
from sa1bpack.format.image_bytes import image_nbytes, image_planes
from sa1bpack.format.layout import FORMAT_VERSION, Extent, Layout
from sa1bpack.format.manifest import Count, ShardEntry
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file, group_metadata


class _ShardAttributes(msgspec.Struct, kw_only=True):
    """The attributes of every shard; the packer may add others."""

    format: tuple[Count, Count]
    source: str
    part: Count
    samples: Count
    masks: Count
    runs: Count
    image_bytes: Count
    annotations: Count
    layout: dict[str, Any]


class Shard:
    """A published shard. `shard["image"]` is a read-only memory map, mapped once: (N, S, S, 3) for
    RGB on canvases; docs/format.md has the shapes of the other layouts.

    folder      its folder
    layout      its Layout
    extent      its numbers of samples, masks, runs and image bytes
    attributes  all attributes of its group, including those of the packer (such as rejects)
    entry       its entry in the manifest, as it must be

    Views stay valid after the shard object is gone. Pickles to its path.
    """

    def __init__(self, folder: Path, layout: Layout, attributes: dict[str, Any], entry: ShardEntry):
        self.folder = folder
        self.layout = layout
        self.attributes = attributes
        self.entry = entry
        self.extent = entry.extent
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """All rows of the array of that name. Raises UnknownName naming the arrays."""
        if name not in self._arrays:
            spec = self.layout.array(name)
            self._arrays[name] = map_array(self.folder, spec, spec.rows(self.extent))
        return self._arrays[name]

    def __len__(self) -> int:
        return self.extent.samples

    def __repr__(self) -> str:
        return f"Shard({str(self.folder)!r}, {self.extent})"

    def __reduce__(self):
        return open_shard, (self.folder, self.layout)

    def sample(self, row: int) -> dict[str, np.ndarray]:
        """Views of all rows of one sample, by array name.

        Per-sample arrays lack their first axis, per-mask and run arrays keep it. Offsets are those
        of the shard, one more than the rows of the sample: mask_offset (2,), run_offset (m + 1,).
        Raises IndexError for a row outside 0 .. samples - 1.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.folder}, which has {len(self)} samples")
        bounds = {"sample": (row, row + 1)}
        views = {}
        for spec in self.layout.arrays:
            first, stop = bounds[spec.axis]
            if spec.offsets:
                offsets = self[spec.name][first : stop + 1]
                bounds[spec.child_axis] = (int(offsets[0]), int(offsets[-1]))
                views[spec.name] = offsets
            else:
                rows = self[spec.name][first:stop]
                views[spec.name] = rows[0] if spec.axis == "sample" else rows
        return views

    def image_range(self, row: int) -> tuple[int, int]:
        """Byte range [start, stop) of one sample's image in the chunk file of `image`."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.folder}, which has {len(self)} samples")
        if self.layout.flat:
            start, stop = self["image_offset"][row : row + 2].tolist()
            return start, stop
        nbytes = self.layout.array("image").row_bytes
        return row * nbytes, (row + 1) * nbytes

    def planes(self, row: int) -> dict[str, np.ndarray]:
        """The stored pixels of one sample, without padding: views of its planes by name.

        {"rgb": (h, w, 3)}, or {"y": (h, w), "cb": (h / 2, w / 2), "cr": the same} with halves
        rounded up; all uint8. `sa1bpack.pixels.yuv420_to_rgb` converts the latter. Raises
        IndexError for a row outside 0 .. samples - 1, FormatError if the number of bytes of the
        image does not follow from its size.
        """
        start, stop = self.image_range(row)
        height, width = self["size"][row, 2:].tolist()
        expected = image_nbytes(self.layout, height, width)
        if stop - start != expected:
            raise FormatError(
                f"{self.folder / 'image_offset'}: sample {row} has {stop - start} bytes of pixels, "
                f"but its {height} x {width} take {expected}; {REMEDY}"
            )
        image = self["image"].reshape(-1)[start:stop]
        planes = image_planes(self.layout, height, width)
        return {plane.name: plane.view(image) for plane in planes}


def open_shard(folder: Path, layout: Layout | None = None, *, deep: bool = True) -> Shard:
    """Open a shard, checking everything that can be checked without reading its data.

    These are the attributes of the group, the metadata of every array against the layout, the exact
    length of every chunk file, and the first and last offset of every offset array.

    layout  the layout of the pack; a shard with another layout is refused
    deep    False: read only the metadata of the group, which repeats that of all arrays. No memory
            map depends on the rest, and opening reads 1 small file instead of 19

    Raises FormatError naming the file, what was found and what is expected; VersionError for a
    shard of a newer major version.
    """
    folder = Path(folder)
    path = folder / METADATA_NAME
    attributes = _read_attributes(path)
    own = _own_attributes(attributes, path)
    found = Layout.from_json(own.layout, f"{path}: layout")
    if layout is not None and found != layout:
        raise FormatError(f"{path}: layout is {found}, but the pack's is {layout}")
    extent = Extent(own.samples, own.masks, own.runs, own.image_bytes)
    for name, stored in (("runs", found.runs), ("image_bytes", found.flat)):
        if getattr(own, name) and not stored:
            found_count = getattr(own, name)
            raise FormatError(f"{path}: {name} is {found_count}, but the layout stores no {name}")
    arrays = found.array_rows(extent)
    check_metadata(path, group_metadata(attributes, arrays))
    nbytes = 0
    for spec, rows in arrays.items():
        expected = chunk_file(spec, rows).file_bytes
        if deep:
            check_array(folder, spec, rows)
        else:
            check_length(folder / spec.chunk_path, expected)
        nbytes += expected
    shard = Shard(folder, found, attributes, _entry(folder.name, own, nbytes))
    for spec in found.arrays:
        if spec.offsets:
            ends = shard[spec.name]
            check_offset_ends(folder / spec.name, ends, extent.along(spec.child_axis))
    return shard


def _read_attributes(path: Path) -> dict[str, Any]:
    """The attributes of a shard's group; the rest of its zarr.json is checked after them."""
    metadata = read_metadata(path)
    try:
        attributes = metadata["attributes"]["sa1bpack"]
    except (KeyError, TypeError):
        attributes = None
    if not isinstance(attributes, dict):
        raise FormatError(f"{path}: not a Zarr group with sa1bpack's attributes; {REMEDY}")
    return attributes


def _own_attributes(attributes: dict[str, Any], path: Path) -> _ShardAttributes:
    try:
        own = msgspec.convert(attributes, _ShardAttributes)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: attributes: {error}; {REMEDY}") from None
    if own.format[0] != FORMAT_VERSION[0]:
        raise VersionError(
            f"{path}: format version {own.format[0]}.{own.format[1]}, but this release reads "
            f"{FORMAT_VERSION[0]}.x; install a sa1bpack for format {own.format[0]}"
        )
    return own


def _entry(name: str, own: _ShardAttributes, nbytes: int) -> ShardEntry:
    return ShardEntry(
        name=name,
        source=own.source,
        part=own.part,
        samples=own.samples,
        masks=own.masks,
        runs=own.runs,
        image_bytes=own.image_bytes,
        annotations=own.annotations,
        bytes=nbytes,
    )
