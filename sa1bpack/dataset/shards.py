"""A pack open for reading: manifest, index, and shards that are opened when first needed."""

import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format import Index, Manifest, Shard, open_shard
from sa1bpack.format.array_reader import REMEDY, check_offsets_rise, map_array
from sa1bpack.format.checked_rows import REPAIR, read_sample_rows
from sa1bpack.format.image_place import image_nbytes
from sa1bpack.format.index import open_manifest_and_index
from sa1bpack.format.index_check import check_index
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import SHARDS_NAME

# What a sample is made of, in the order of `Shards.arrays`; the last is not in every pack.
SAMPLE_ARRAYS = ("image", "size", "file_name")
MASK_ARRAYS = (
    "bbox", "area", "predicted_iou", "stability_score", "point_coords", "crop_box",
    "annotation_id", "mask_bits",
)  # fmt: skip

# The kernel's default limit of mappings a process, and the part of it that shards may take; the
# rest is left to libraries, large allocations and thread stacks.
DEFAULT_MAPPINGS = 65_530
SHARE_OF_MAPPINGS = 0.75


def mapping_budget() -> int:
    """How many memory maps all shards that are open in this process may have together."""
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):  # not Linux
        limit = DEFAULT_MAPPINGS
    return int(limit * SHARE_OF_MAPPINGS)


class Shards:
    """The shards of a pack, in the order of its manifest. `shards[k]` is a checked format Shard.

    A shard is opened on first use. Before it is handed out, everything that a view of it relies on
    is checked: its metadata against the manifest, the exact length of all its files, that its mask
    offsets rise, and that ids and offsets are those of the pack's index.

    All packs of a process together keep within `mapping_budget()`; where there are more shards than
    that, those opened first are let go. Views that are still in use stay valid. Safe in threads and
    after fork.
    """

    def __init__(self, root: Path, manifest: Manifest, index: Index):
        self._root = root
        self._manifest = manifest
        self._index = index
        self._first_mask = [0, *accumulate(shard.masks for shard in manifest.shards)]
        self._open: dict[int, tuple[Shard, tuple[np.ndarray, ...]]] = {}
        self._lock, self._pid = threading.Lock(), os.getpid()
        _all_shards.add(self)

    def __len__(self) -> int:
        return len(self._manifest.shards)

    def __getitem__(self, number: int) -> Shard:
        """The shard of that number, 0 to K - 1.

        Raises IndexError if there is none, FormatError naming the file and what is wrong with it,
        OSError if a file cannot be opened. The next call tries again.
        """
        return (self._open.get(number) or self._opened(number))[0]

    def arrays(self, number: int) -> tuple[np.ndarray, ...]:
        """The arrays SAMPLE_ARRAYS + MASK_ARRAYS of a shard, all rows. Raises as `[number]` does.

        They are at hand in one piece: with thousands of shards, looking up each of them by name
        costs more in cache misses than making the views.
        """
        return (self._open.get(number) or self._opened(number))[1]

    def open_many(self, numbers):
        found, failed = {}, {}
        for number in numbers:
            try:
                found[number] = OpenShard(self[number])
            except (FormatError, OSError) as error:
                failed[number] = error
        return found, failed

    def __repr__(self) -> str:
        return f"<{len(self)} shards of {self._root}, {len(self._open)} open>"

    def folder(self, number: int) -> Path:
        """The folder of a shard."""
        return self._root / SHARDS_NAME / self._manifest.shards[number].name

    def _opened(self, number: int) -> tuple[Shard, tuple[np.ndarray, ...]]:
        if not 0 <= number < len(self):
            raise IndexError(f"shard {number} of {self._root}, which has {len(self)}")
        if self._pid != os.getpid():  # another thread may have held the lock during the fork
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if number not in self._open:
                shard = self._checked(number)
                self._make_room()
                names = SAMPLE_ARRAYS + (MASK_ARRAYS if shard.layout.bits else MASK_ARRAYS[:-1])
                arrays = tuple(shard[name] for name in names)
                self._open[number] = (shard, arrays)
            return self._open[number]

    def _make_room(self) -> None:
        """Let go of the shards that were opened first until one more fits into the budget."""
        most = max(1, mapping_budget() // len(self._manifest.layout.arrays))
        pools = list(_all_shards)
        while sum(len(pool._open) for pool in pools) >= most:
            fullest = max(pools, key=lambda pool: len(pool._open))
            oldest = next(iter(list(fullest._open)), None)
            fullest._open.pop(oldest, None)

    def _checked(self, number: int) -> Shard:
        entry = self._manifest.shards[number]
        shard = open_shard(self.folder(number), self._manifest.layout, deep=False)
        due = entry.extent
        if shard.extent != due:
            raise FormatError(
                f"{shard.folder}: {shard.extent}, but the manifest says {due}; {REMEDY}"
            )
        offsets = shard["mask_offset"]
        check_offsets_rise(shard.folder / "mask_offset", offsets)
        self._check_index(number, shard, offsets)
        _check_sizes(shard)
        _check_image_offsets(shard)
        return shard

    def _check_index(self, number: int, shard: Shard, offsets: np.ndarray) -> None:
        """Check that the index has the same ids and mask offsets as the shard itself."""
        first, stop = (int(edge) for edge in self._index.shard_offset[number : number + 2])
        ids = map_array(shard.folder, shard.layout.array("image_id"), len(shard))
        indexed = self._index.mask_offset[first : stop + 1] - self._first_mask[number]
        for name, same in (
            ("image_id", np.array_equal(self._index.image_id[first:stop], ids)),
            ("mask_offset", np.array_equal(indexed, offsets)),
        ):
            if not same:
                raise FormatError(
                    f"{shard.folder / name}: not what {self._root / self._manifest.index / name} "
                    "says of this shard; run `sa1bpack verify` to see which of them is damaged"
                )


_all_shards: "weakref.WeakSet[Shards]" = weakref.WeakSet()


def _check_sizes(shard: Shard) -> None:
    """Check that no side is below 1 and that stored images are within the canvas."""
    size = shard["size"]  # (N, 4): source h, w, stored h, w
    if size.size and (size.min() < 1 or size[:, 2:].max() > shard.layout.image_size):
        raise FormatError(
            f"{shard.folder / 'size'}: sides must be 1 or more, and stored ones at most "
            f"{shard.layout.image_size}; found {size.min()} and {size[:, 2:].max()}; {REMEDY}"
        )


def _check_image_offsets(shard: Shard) -> None:
    """Check that images without a canvas have just the bytes that their sizes take."""
    if not shard.layout.flat:
        return
    height, width = shard["size"][:, 2].astype(np.int64), shard["size"][:, 3].astype(np.int64)
    wrong = np.flatnonzero(
        np.diff(shard["image_offset"]) != image_nbytes(shard.layout, height, width)
    )
    if len(wrong):
        row = int(wrong[0])
        start, stop = shard.image_range(row)
        raise FormatError(
            f"{shard.folder / 'image_offset'}: the pixels of sample {row} are bytes {start} to "
            f"{stop}, but its {height[row]} x {width[row]} take "
            f"{image_nbytes(shard.layout, int(height[row]), int(width[row]))}; {REMEDY}"
        )


class Pack:
    """A pack open for reading; datasets over rows of it share it.

    root      its folder, absolute
    manifest  its Manifest
    index     its Index, memory-mapped
    layout    its Layout
    shards    its Shards

    Raises FormatError or VersionError if the pack is not what docs/format.md demands, or is empty.
    """

    def __init__(self, root: Path):
        self.manifest, index = open_manifest_and_index(Path(root))
        self.root = Path(root).absolute()  # shards are opened later, from whatever folder
        if index is None:
            raise FormatError(f"{self.root}: a pack without shards; pack some sources into it")
        self.index = index
        self.shards = Shards(self.root, self.manifest, self.index)
        starts = [0, *accumulate(shard.samples for shard in self.manifest.shards)]
        if self.index.shard_offset.tolist() != starts:
            raise FormatError(
                f"{self.root / self.manifest.index / 'shard_offset'}: not the sizes that the "
                f"manifest gives the shards; {REMEDY}"
            )
        self._starts = starts
        self._index_is_checked = False

    @property
    def layout(self) -> Layout:
        """What arrays there are and how wide their rows are."""
        return self.manifest.layout

    def __len__(self) -> int:
        return self.manifest.samples

    def check_index(self) -> None:
        """Compare the index with its digests, once. Raises FormatError naming the array."""
        if not self._index_is_checked:
            check_index(self.root, self.manifest, self.index)
            self._index_is_checked = True

    def read_rows(
        self, row: int, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """All rows of a sample, copied, and compared with its checksum and with the index.

        out  arrays to read into, as of `format.checked_rows.read_sample_rows`

        Raises FormatError if they are not what was written, OSError if they cannot be read.
        """
        number, local, first, stop = self.locate(row)
        shard = self.shards[number]
        rows = read_sample_rows(shard, local, out)
        found = [int(rows["image_id"][0]), *rows["mask_offset"].tolist()]
        due = [int(self.index.image_id[row]), first, stop]
        if found != due:
            raise FormatError(
                f"{shard.folder}: image_id and mask offsets of sample {local} are {found}, but the "
                f"index says {due}; {REPAIR}"
            )
        return rows

    def locate(self, row: int) -> tuple[int, int, int, int]:
        """Where a row of the pack is: shard number, row in it, first and last mask row in it.

        "Last" is one past the end. Mask rows are only to be used once `shards[number]` was opened,
        which checks them.
        """
        number = bisect_right(self._starts, row) - 1
        base = self.shards._first_mask[number]
        first, stop = self.index.mask_offset[row : row + 2].tolist()
        return number, row - self._starts[number], first - base, stop - base

    def locate_many(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """`locate` for int64 (n,) rows: four int64 (n,) arrays."""
        numbers = np.searchsorted(self.index.shard_offset, rows, side="right") - 1
        base = np.asarray(self.shards._first_mask)[numbers]
        offsets = self.index.mask_offset
        local = rows - self.index.shard_offset[numbers]
        return numbers, local, offsets[rows] - base, offsets[rows + 1] - base

    def row_of(self, image_id: int) -> int | None:
        """The first row with that id, None if there is none."""
        ids, order = self.index.image_id, self.index.id_order
        try:
            at = int(np.searchsorted(ids, image_id, sorter=order))
            row = int(order[at]) if at < len(order) else -1
            return row if row >= 0 and ids[row] == image_id else None
        except (IndexError, ValueError):  # numpy's words for a row that there is not
            path = self.root / self.manifest.index / "id_order"
            raise FormatError(f"{path}: a row is not within 0 and {len(ids)}; {REMEDY}") from None


class OpenShard:
    """Stand-in."""

    def __init__(self, shard: Shard):
        self.shard = shard
        self.arrays = {spec.name: shard[spec.name] for spec in shard.layout.arrays}
        self.sizes = self.arrays["size"]
        self.image_edges = self.arrays.get("image_offset")
        self.run_offset = self.arrays.get("run_offset")

    def image_span(self, row):
        if self.image_edges is None:
            nbytes = self.arrays["image"][0].nbytes
            return row * nbytes, nbytes
        start, stop = self.image_edges[row : row + 2].tolist()
        return start, stop - start

    def run_spans(self, rows):
        spans = np.stack([self.run_offset[rows], self.run_offset[rows + 1]], 1)
        low, high = spans[:, 0], spans[:, 1]
        spans[(low < 0) | (high < low) | (high > self.shard.extent.runs)] = -1
        return spans

    def path(self, name):
        return str(self.shard.folder / self.shard.layout.array(name).chunk_path)

    def addresses_of(self, names):
        return [self.arrays[name].__array_interface__["data"][0] for name in names]

    def field(self, key):
        return self.arrays[{"areas": "area", "predicted_ious": "predicted_iou"}[key]]
