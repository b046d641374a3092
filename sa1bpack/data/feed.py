"""What the Loader's threads do for a batch: look up where its samples are, and copy them.

    feed = Feed(ds, form, choice, room)
    for work, errors in feed.plan([indices, ...], epoch):   several batches for little more than one
        work.fill_heads(buffer)
        work.fill(0, len(work), buffer)                     any part of the samples, in any thread
        errors = work.errors()

A batch lies in one buffer, region after region, so it goes to a device as one copy.
"""

import os
import resource
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from sa1bpack.data.choose import MaskChoice
from sa1bpack.data.columns import offsets_of
from sa1bpack.data.dataset import Dataset
from sa1bpack.data.fill import CUT_SHORT, fill_samples
from sa1bpack.data.sample import read_error
from sa1bpack.errors import FormatError, ReadError
from sa1bpack.format import Layout, Shard

# Regions of a buffer begin at multiples of this: a cache line, and enough for any dtype.
ALIGNMENT = 64

_UINT8, _BOOL, _INT32, _INT64, _FLOAT32 = map(np.dtype, ("u1", "?", "i4", "i8", "f4"))


class _Numbers(NamedTuple):
    """A small array of masks: key of the batch, array of the shard, values a mask."""

    key: str
    source: str
    columns: int
    dtype: np.dtype
    scaled: bool  # by the factors of x and y, if coordinates are those of the stored image

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.columns,) if self.columns > 1 else ()


# As Collate has them; on disk they are float64 and int64.
_NUMBERS = (
    _Numbers("bboxes", "bbox", 4, _FLOAT32, True),
    _Numbers("areas", "area", 1, _INT64, False),
    _Numbers("predicted_ious", "predicted_iou", 1, _FLOAT32, False),
    _Numbers("stability_scores", "stability_score", 1, _FLOAT32, False),
    _Numbers("point_coords", "point_coords", 2, _FLOAT32, True),
)
# For fill_samples; where each region begins is put into column 0.
_JOBS = np.array(
    [(0, numbers.columns, numbers.dtype == _FLOAT32, numbers.scaled) for numbers in _NUMBERS],
    np.int64,
)
_READ = ("image", "mask_bits", *(numbers.source for numbers in _NUMBERS))


class Region(NamedTuple):
    """Where an array of a batch is in the buffer: first byte, shape, dtype, bytes."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """The array in a uint8 (n,) buffer."""
        data = buffer[self.start : self.start + self.nbytes]
        return data.view(self.dtype).reshape(self.shape)


Regions = dict[str, Region]


@dataclass(frozen=True)
class BatchForm:
    """Shapes of a batch in a buffer.

    layout      of the pack
    form        the form that the consumer gets, one of batch.FORMS
    flat_masks  keep the masks as flat bits in the buffer, whatever the form: they are brought into
                it on the device, so that neither padding nor unpacked masks travel
    """

    layout: Layout
    form: str
    flat_masks: bool

    @property
    def padded(self) -> bool:
        """Whether arrays of masks have an axis for the sample."""
        return self.form.startswith("padded")

    @property
    def as_bool(self) -> bool:
        """Whether the buffer holds unpacked masks."""
        return not self.flat_masks and not self.form.endswith("bits")

    @property
    def mask_bytes(self) -> int:
        """Bytes of a mask's bits."""
        return self.layout.mask_size**2 // 8

    def regions(self, samples: int, room: int, total: int) -> tuple[Regions, int]:
        """The regions of a batch of samples with `total` masks, and the bytes of all.

        room  masks of a sample in padded arrays
        """
        size, grid = self.layout.image_size, self.layout.mask_size
        masks = (samples, room) if self.padded else (total,)
        wanted: dict[str, tuple[tuple[int, ...], np.dtype]] = {
            "images": ((samples, size, size, 3), _UINT8),
            "mask_counts": ((samples,), _INT64),
            "image_ids": ((samples,), _INT64),
            "sizes": ((samples, 4), _INT32),
            "indices": ((samples,), _INT64),
        }
        if not self.padded:
            wanted["mask_offsets"] = ((samples + 1,), _INT64)
        for numbers in _NUMBERS:
            wanted[numbers.key] = ((*masks, *numbers.shape), numbers.dtype)
        if self.flat_masks and self.padded:
            wanted["mask_places"] = ((total,), _INT64)  # sample * room + number in the sample
        rows = (total,) if self.flat_masks else masks
        if self.as_bool:
            wanted["masks"] = ((*rows, grid, grid), _BOOL)
        else:
            wanted["masks"] = ((*rows, grid, grid // 8), _UINT8)
        return _regions(wanted)


def _regions(wanted: dict[str, tuple[tuple[int, ...], np.dtype]]) -> tuple[Regions, int]:
    regions, start = {}, 0
    for key, (shape, dtype) in wanted.items():
        nbytes = prod(shape) * dtype.itemsize
        regions[key] = Region(start, shape, dtype, nbytes)
        start += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return regions, start


class _Source:
    """The arrays of an open shard: addresses of their maps, and open files of the large ones."""

    def __init__(self, shard: Shard):
        self.shard = shard
        self.sizes = shard["size"]  # (N, 4)
        self.arrays = [shard[name] for name in _READ]  # keeps the maps
        addresses = [array.__array_interface__["data"][0] for array in self.arrays]
        self.addresses = np.array(addresses, np.int64)
        self.files = np.full(2, -1, np.int64)
        for number, array in enumerate(self.arrays[:2]):
            if len(array):
                self.files[number] = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)

    def path(self, number: int) -> str:
        """The chunk file of image (0) or mask_bits (1)."""
        return str(self.shard.folder / self.shard.layout.array(_READ[number]).chunk_path)

    def __del__(self):
        for file in getattr(self, "files", ()):
            if file >= 0:
                os.close(file)


class Feed:
    """Plans batches of a dataset, in any thread.

    Keeps the files of the shards that were used last open: two a shard, together at most a quarter
    of the process's limit of open files.
    """

    def __init__(self, ds: Dataset, form: BatchForm, choice: MaskChoice, room: int | None):
        self.ds = ds
        self.form = form
        self.choice = choice
        self.room = room
        self._sources: dict[int, _Source] = {}
        self._turn = threading.Lock()
        self._most = self.most_shards()

    @staticmethod
    def most_shards() -> int:
        """Shards whose files a Feed keeps open: an eighth of the soft limit of open files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return min(max(soft // 8, 1), 4096) if soft != resource.RLIM_INFINITY else 4096

    def close(self) -> None:
        """Let go of the files; those that a batch still needs are closed after it."""
        with self._turn:
            self._sources.clear()

    def plan(
        self, batches: Sequence[np.ndarray], epoch: int
    ) -> list[tuple["Work", list[ReadError]]]:
        """The work for each batch, and errors for the samples whose shards cannot be opened.

        The work is for the other samples.

        batches  int64 (B,) indices each
        """
        indices = np.concatenate(batches)
        numbers, local, first, stop = self.ds.locate_many(indices)
        with self._turn:
            sources, failed = self._open(set(numbers.tolist()))
        edges = np.cumsum([0, *map(len, batches)])
        errors: list[list[ReadError]] = [[] for _ in batches]
        if failed:
            good = ~np.isin(numbers, list(failed))
            for k in np.flatnonzero(~good).tolist():
                number = int(numbers[k])
                batch = int(np.searchsorted(edges, k, side="right")) - 1
                errors[batch].append(self._error(indices[k], number, local[k], failed[number]))
            edges = np.concatenate([[0], np.cumsum(good)])[edges]
            indices, numbers, local = indices[good], numbers[good], local[good]
            first, stop = first[good], stop[good]
        found = [sources[number] for number in numbers.tolist()]
        lookup = self._look_up(indices, numbers, local, found, first, stop - first, epoch)
        spans = zip(edges[:-1].tolist(), edges[1:].tolist(), errors, strict=True)
        return [(Work(self, lookup, low, high), wrong) for low, high, wrong in spans]

    def _open(self, numbers: set[int]) -> tuple[dict[int, _Source], dict[int, Exception]]:
        """The sources of these shards, and why some cannot be had."""
        failed: dict[int, Exception] = {}
        found: dict[int, _Source] = {}
        for number in numbers:
            source = self._sources.pop(number, None)
            try:
                found[number] = source or _Source(self.ds.shards[number])
            except (FormatError, OSError) as error:
                failed[number] = error
        self._sources.update(found)  # behind the others: they were used last
        while len(self._sources) > self._most:
            del self._sources[next(iter(self._sources))]
        return found, failed

    def _look_up(self, indices, numbers, local, sources, first, counts, epoch) -> "_Lookup":
        rows = self.ds.rows_at(indices)
        most = self.choice.max_masks
        chosen: list[np.ndarray] | None = None
        if most is not None and (counts > most).any():
            ranges = zip(sources, rows.tolist(), first.tolist(), counts.tolist(), strict=True)
            chosen = [self._choose(*where, epoch) for where in ranges]
            counts = np.minimum(counts, most)
        offsets = offsets_of(counts)
        if chosen is None:
            mask_rows = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)
        else:
            mask_rows = np.concatenate(chosen)
        sizes = np.empty((len(rows), 4), np.int32)
        addresses = np.empty((len(rows), len(_READ)), np.int64)
        files = np.empty((len(rows), 2), np.int64)
        for k, (source, row) in enumerate(zip(sources, local.tolist(), strict=True)):
            sizes[k], addresses[k], files[k] = source.sizes[row], source.addresses, source.files
        if self.ds.options.coordinates == "stored":
            scales = sizes[:, [3, 2]] / sizes[:, [1, 0]]
        else:
            scales = np.ones((len(rows), 2))
        ids = self.ds.pack.index.image_id[rows]
        return _Lookup(
            indices, rows, ids, numbers, local, sources, counts, offsets, mask_rows, sizes, scales,
            addresses, files,
        )  # fmt: skip

    def _choose(self, source: _Source, row: int, first: int, count: int, epoch: int) -> np.ndarray:
        """The rows in the shard of the masks of one sample that are kept."""
        stop = first + count
        if count <= self.choice.max_masks:
            return np.arange(first, stop)
        sample = {
            "image_id": int(self.ds.pack.index.image_id[row]),
            "areas": source.shard["area"][first:stop],
            "predicted_ious": source.shard["predicted_iou"][first:stop],
        }
        return first + self.choice.rows(sample, count, epoch)

    def _error(self, index: int, number: int, local: int, cause: Exception) -> ReadError:
        row = int(self.ds.rows_at(index))
        error = read_error(self.ds.pack, row, number, int(local), cause)
        error.__cause__ = cause
        return error


class _Lookup(NamedTuple):
    """Where the samples of one or more batches are; n samples, T masks that are kept."""

    indices: np.ndarray  # int64 (n,), in the dataset
    rows: np.ndarray  # int64 (n,), in the pack
    ids: np.ndarray  # int64 (n,), image ids
    numbers: np.ndarray  # int64 (n,), shards
    local: np.ndarray  # int64 (n,), rows in the shards
    sources: list[_Source]
    counts: np.ndarray  # int64 (n,), masks that are kept
    offsets: np.ndarray  # int64 (n + 1,), into mask_rows
    mask_rows: np.ndarray  # int64 (T,), in the shards
    sizes: np.ndarray  # int32 (n, 4)
    scales: np.ndarray  # float64 (n, 2): x, y
    addresses: np.ndarray  # int64 (n, 2 + numbers)
    files: np.ndarray  # int64 (n, 2)


class Work:
    """One batch to be copied: samples `low` to `high` of a lookup.

    `regions` and `nbytes` say where in the buffer its arrays will be.
    """

    def __init__(self, feed: Feed, lookup: _Lookup, low: int, high: int):
        self._feed, self._lookup, self._low, self._high = feed, lookup, low, high
        self._first_mask = int(lookup.offsets[low])
        self.total = int(lookup.offsets[high]) - self._first_mask
        counts = lookup.counts[low:high]
        self.room = feed.room if feed.room is not None else int(counts.max(initial=0))
        self.regions, self.nbytes = feed.form.regions(high - low, self.room, self.total)
        self._status = np.zeros((high - low, 2), np.int64)
        self._jobs = _JOBS.copy()
        self._jobs[:, 0] = [self.regions[numbers.key].start for numbers in _NUMBERS]

    def __len__(self) -> int:
        return self._high - self._low

    @property
    def indices(self) -> np.ndarray:
        """int64 (B,): the samples, in the dataset."""
        return self._lookup.indices[self._low : self._high]

    def name(self) -> str:
        """The samples, for messages."""
        ids = self._lookup.ids[self._low : self._high].tolist()
        return f"samples with the image ids {ids[:8]}{' and more' if len(ids) > 8 else ''}"

    def fill_heads(self, buffer: np.ndarray) -> None:
        """Write what there is one of a sample."""
        low, high, found = self._low, self._high, self._lookup
        counts = found.counts[low:high]
        heads = {
            "mask_counts": counts,
            "image_ids": found.ids[low:high],
            "sizes": found.sizes[low:high],
            "indices": found.rows[low:high],
        }
        offsets = found.offsets[low : high + 1] - self._first_mask
        if "mask_offsets" in self.regions:
            heads["mask_offsets"] = offsets
        if "mask_places" in self.regions:
            shift = np.arange(len(self)) * self.room - offsets[:-1]
            heads["mask_places"] = np.arange(self.total) + np.repeat(shift, counts)
        for key, value in heads.items():
            self.regions[key].view(buffer)[...] = value

    def fill(self, first: int, stop: int, buffer: np.ndarray) -> None:
        """Copy samples `first` to `stop` of the batch into the buffer."""
        assert len(buffer) >= self.nbytes, (len(buffer), self.nbytes)
        form, found = self._feed.form, self._lookup
        size = form.layout.image_size
        fill_samples(
            self._low, first, stop, buffer, found.addresses, found.files, found.local,
            found.mask_rows, found.offsets, self.room if form.padded else -1,
            self.room if form.padded and not form.flat_masks else -1, found.scales,
            self.regions["images"].start, size * size * 3, self.regions["masks"].start,
            form.mask_bytes, form.as_bool, self._jobs, self._status,
        )  # fmt: skip

    def errors(self) -> list[tuple[int, ReadError]]:
        """(number in the batch, error) of every sample that could not be copied."""
        found = []
        for k in np.flatnonzero(self._status.any(axis=1)).tolist():
            at = self._low + k
            which = int(np.flatnonzero(self._status[k])[0])
            code, path = int(self._status[k, which]), self._lookup.sources[at].path(which)
            if code == CUT_SHORT:
                cause: Exception = FormatError(
                    f"{path}: it ends before this sample; it was whole when it was opened. Restore "
                    "the file from a copy, or pack this part again"
                )
            else:
                cause = OSError(code, os.strerror(code), path)
            error = self._feed._error(
                self._lookup.indices[at], int(self._lookup.numbers[at]), self._lookup.local[at],
                cause,
            )  # fmt: skip
            found.append((k, error))
        return found
