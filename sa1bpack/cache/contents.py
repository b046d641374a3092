"""What the folders of a cache hold: a shard's arrays, or those of a part of a side array.

Small arrays are fetched whole, and the large ones sample by sample. The rows of a sample in the
large arrays are compared with the sample's checksum, which covers the small ones as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY, map_array
from sa1bpack.format.checksums import rows_checksum
from sa1bpack.format.image_bytes import canvas_spans
from sa1bpack.format.layout import ArraySpec, Extent, Layout
from sa1bpack.format.side.spec import CHECKSUM, SideSpec

# The arrays of a shard that are fetched sample by sample: all others together are a hundredth.
LARGE = ("image", "mask_bits", "run_ends")


class Contents(Protocol):
    """The arrays in one folder. Small ones are mapped when they are first used, and stay mapped.

    samples  N
    arrays   each array → its number of rows
    large    those of them that are fetched sample by sample, none of them empty
    """

    samples: int
    arrays: Mapping[ArraySpec, int]
    large: Sequence[ArraySpec]

    def edges(self, rows: np.ndarray) -> np.ndarray:
        """int64 (k, n): where each of n samples, 0 to N, begins in the files of k large arrays."""

    def stored(self, row: int, array: int) -> int:
        """How many bytes of a sample in a large array are stored; zeros follow."""

    def check(self, row: int, parts: Sequence[np.ndarray]) -> str | None:
        """Compare a sample with its checksum: what is wrong with it, or None.

        parts  its bytes in each large array, uint8 (n,), all of them or those that are stored
        """


class ShardContents:
    """The arrays of a shard."""

    def __init__(self, folder: Path, layout: Layout, extent: Extent):
        self.samples, self.arrays = extent.samples, layout.array_rows(extent)
        self.large = [spec for spec, rows in self.arrays.items() if spec.name in LARGE and rows]
        self._folder, self._layout = folder, layout
        self._trims = not layout.flat and layout.pixels == "rgb"
        self._maps: dict[str, np.ndarray] = {}

    def edges(self, rows: np.ndarray) -> np.ndarray:
        """See Contents."""
        masks, found = self._map("mask_offset")[rows], []
        for spec in self.large:
            if spec.name == "run_ends":
                at = self._map("run_offset")[masks]
            elif spec.name == "mask_bits":
                at = masks
            else:
                at = self._map("image_offset")[rows] if self._layout.flat else rows
            found.append(np.asarray(at, np.int64) * spec.row_bytes)
        return np.array(found, np.int64).reshape(len(self.large), len(rows))

    def stored(self, row: int, array: int) -> int:
        """See Contents: of a canvas, the rows of the image."""
        if self.large[array].name == "image" and self._trims:
            [(_, stop)] = canvas_spans(self._layout, self._height(row))
            return min(stop, self.large[array].row_bytes)
        low, high = self.edges(np.array([row, row + 1]))[array].tolist()
        return high - low

    def _height(self, row: int) -> int:
        return int(self._map("size")[row, 2])

    def check(self, row: int, parts: Sequence[np.ndarray]) -> str | None:
        """See Contents."""
        given = {spec.name: part for spec, part in zip(self.large, parts, strict=True)}
        height = self._layout.image_size
        if self._trims and given["image"].size < self._layout.array("image").row_bytes:
            height = self._height(row)
        bounds, rows = {"sample": (row, row + 1)}, {}
        for spec in self._layout.arrays:
            first, stop = bounds[spec.axis]
            if spec.name in given:
                rows[spec.name] = given[spec.name]
            elif spec.offsets:
                offsets = self._map(spec.name)[first : stop + 1]
                bounds[spec.child_axis] = (int(offsets[0]), int(offsets[-1]))
                rows[spec.name] = np.diff(offsets)
            else:
                rows[spec.name] = self._map(spec.name)[first:stop]
        return _difference(rows_checksum(self._layout, rows, height), int(rows["checksum"][0]))

    def _map(self, name: str) -> np.ndarray:
        if (found := self._maps.get(name)) is None:
            spec = self._layout.array(name)
            found = self._maps[name] = map_array(self._folder, spec, self.arrays[spec])
        return found


class SideContents:
    """The arrays of a part of a side array."""

    def __init__(self, folder: Path, spec: SideSpec, extent: Extent, mask_offset: np.ndarray):
        """mask_offset: int64 (N + 1,), of its shard."""
        self.samples, self.arrays = extent.samples, spec.arrays(extent)
        self.large = [spec.values] if self.arrays[spec.values] else []
        self._folder, self._spec, self._mask_offset = folder, spec, mask_offset
        self._checksum: np.ndarray | None = None

    def edges(self, rows: np.ndarray) -> np.ndarray:
        """See Contents."""
        at = rows if self._spec.axis == "sample" else self._mask_offset[rows]
        return (np.asarray(at, np.int64) * self._spec.row_bytes).reshape(1, -1)[: len(self.large)]

    def stored(self, row: int, array: int) -> int:
        """See Contents."""
        low, high = self.edges(np.array([row, row + 1]))[array].tolist()
        return high - low

    def check(self, row: int, parts: Sequence[np.ndarray]) -> str | None:
        """See Contents."""
        if self._checksum is None:
            self._checksum = map_array(self._folder, CHECKSUM, self.samples)
        data = parts[0] if parts else np.empty(0, np.uint8)
        return _difference(xxhash.xxh3_64_intdigest(data), int(self._checksum[row]))


def _difference(found: int, stored: int) -> str | None:
    if found == stored:
        return None
    return f"its checksum is {found:016x}, but {stored:016x} was written"


def check_edges(folder: Path, contents: Contents, edges: np.ndarray) -> None:
    """Check that samples follow one another within the large files: what is written relies on it.

    edges  int64 (k, n), of ascending samples, from 0 to N

    Raises FormatError naming the array.
    """
    for spec, found in zip(contents.large, edges, strict=True):
        last = contents.arrays[spec] * spec.row_bytes
        if found[0] != 0 or found[-1] != last or (found[1:] < found[:-1]).any():
            raise FormatError(
                f"{folder / spec.name}: its samples are not one after another from byte 0 to "
                f"{last}; {REMEDY}"
            )
