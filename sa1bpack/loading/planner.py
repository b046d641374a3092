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

import numpy as np

from sa1bpack.batch.copy_samples import NO_FILE
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.spec import BatchSpec
from sa1bpack.dataset.columns import offsets_of
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.sample import read_error
from sa1bpack.errors import FormatError, ReadError
from sa1bpack.format import Shard
from sa1bpack.loading.batch_copy import Lookup, Work, without_frames


class Source:
    """The arrays of an open shard, and the addresses of their maps."""

    def __init__(self, shard: Shard, names: tuple[str, ...]):
        self.shard = shard
        self.sizes = shard["size"]  # (N, 4)
        self._names = names
        self.image_edges = shard["image_offset"] if shard.layout.flat else None
        self.run_offset = shard["run_offset"] if names[1] == "run_ends" else None
        self.arrays = [shard[name] for name in names]  # keeps the maps
        addresses = [array.__array_interface__["data"][0] for array in self.arrays]
        self.addresses = np.array(addresses, np.int64)

    def image_span(self, row: int) -> tuple[int, int]:
        """First byte and number of bytes of an image."""
        if self.image_edges is None:
            nbytes = self.arrays[0][0].nbytes
            return row * nbytes, nbytes
        start, stop = self.image_edges[row : row + 2].tolist()
        return start, stop - start

    def run_spans(self, rows: np.ndarray) -> np.ndarray:
        """int64 (k, 2): the runs of masks, first and behind the last; -1 if they are not in order.

        rows  int64 (k,), masks of the shard
        """
        if self.run_offset is None:
            return np.zeros((len(rows), 2), np.int64)
        spans = np.stack([self.run_offset[rows], self.run_offset[rows + 1]], 1)
        low, high = spans[:, 0], spans[:, 1]
        spans[(low < 0) | (high < low) | (high > self.shard.extent.runs)] = -1
        return spans

    def path(self, number: int) -> str:
        """The chunk file of the image (0), or of what masks are made of (1)."""
        return str(self.shard.folder / self.shard.layout.array(self._names[number]).chunk_path)


class OpenFiles:
    """The files of a shard's first two arrays, open as long as this lives.

    numbers  (2,) descriptors; NO_FILE for an array without rows. Raises OSError.
    """

    def __init__(self, source: Source):
        self.numbers = [NO_FILE, NO_FILE]
        for number, array in enumerate(source.arrays[:2]):
            if len(array):
                self.numbers[number] = os.open(source.path(number), os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self):
        for file in self.numbers:
            if file >= 0:
                os.close(file)


class Feed:
    """Plans batches of a dataset, in any thread.

    Keeps the files of the shards that were used last open: two a shard, together at most a quarter
    of the process's limit of open files. Others are open while they are copied from.
    """

    def __init__(self, ds: Dataset, form: BatchSpec, choice: MaskChoice, room: int | None):
        self.ds = ds
        self.form = form
        self.choice = choice
        self.room = room
        self._sources: dict[int, Source] = {}
        self._files: dict[int, OpenFiles] = {}
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
            self._files.clear()

    def files(self, number: int, source: Source) -> OpenFiles:
        """The files of a shard, for as long as the caller keeps them. Raises OSError."""
        with self._turn:
            found = self._files.pop(number, None)
            if found is not None:
                self._files[number] = found  # behind the others: they were used last
                return found
        found = OpenFiles(source)  # other threads need not wait for a slow file system
        with self._turn:
            self._files[number] = found
            while len(self._files) > self._most:
                del self._files[next(iter(self._files))]
        return found

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
                errors[batch].append(self.error(indices[k], number, local[k], failed[number]))
            edges = np.concatenate([[0], np.cumsum(good)])[edges]
            indices, numbers, local = indices[good], numbers[good], local[good]
            first, stop = first[good], stop[good]
        found = [sources[number] for number in numbers.tolist()]
        lookup = self._look_up(indices, numbers, local, found, first, stop - first, epoch)
        spans = zip(edges[:-1].tolist(), edges[1:].tolist(), errors, strict=True)
        return [(self._work(lookup, low, high), wrong) for low, high, wrong in spans]

    def _work(self, lookup: "Lookup", low: int, high: int) -> "Work":
        return Work(self, lookup, low, high)

    def _open(self, numbers: set[int]) -> tuple[dict[int, Source], dict[int, Exception]]:
        """The sources of these shards, and why some cannot be had."""
        failed: dict[int, Exception] = {}
        found: dict[int, Source] = {}
        for number in numbers:
            source = self._sources.pop(number, None)
            try:
                found[number] = source or Source(self.ds.shards[number], self.form.arrays)
            except (FormatError, OSError) as error:
                failed[number] = without_frames(error)
        self._sources.update(found)  # behind the others: they were used last
        while len(self._sources) > self._most:
            del self._sources[next(iter(self._sources))]
        return found, failed

    def _look_up(self, indices, numbers, local, sources, first, counts, epoch) -> "Lookup":
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
        addresses = np.empty((len(rows), len(self.form.arrays)), np.int64)
        files = np.full((len(rows), 2), NO_FILE)
        spans = np.empty((len(rows), 2), np.int64)
        for k, (source, row) in enumerate(zip(sources, local.tolist(), strict=True)):
            sizes[k], addresses[k] = source.sizes[row], source.addresses
            spans[k] = source.image_span(row)
        if self.ds.options.coordinates == "stored":
            scales = sizes[:, [3, 2]] / sizes[:, [1, 0]]
        else:
            scales = np.ones((len(rows), 2))
        ids = self.ds.pack.index.image_id[rows]
        return Lookup(
            indices, rows, ids, numbers, local, sources, counts, offsets, mask_rows,
            self._run_spans(sources, offsets, mask_rows), sizes, scales, addresses, files, spans,
            epoch,
        )  # fmt: skip

    def _run_spans(self, sources, offsets: np.ndarray, mask_rows: np.ndarray) -> np.ndarray:
        """int64 (T, 2), see Lookup."""
        spans = np.zeros((len(mask_rows), 2), np.int64)
        if self.form.masks.source != "bits":
            for k, source in enumerate(sources):
                masks = slice(offsets[k], offsets[k + 1])
                spans[masks] = source.run_spans(mask_rows[masks])
        return spans

    def _choose(self, source: Source, row: int, first: int, count: int, epoch: int) -> np.ndarray:
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

    def error(self, index: int, number: int, local: int, cause: Exception) -> ReadError:
        """The error of a sample: its index in the dataset, shard, row in it, and what happened."""
        row = int(self.ds.rows_at(index))
        error = read_error(self.ds.pack, row, number, int(local), cause)
        error.__cause__ = cause
        return error
