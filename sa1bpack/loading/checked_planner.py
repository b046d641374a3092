"""The Planner of a dataset with check="read": samples are compared with checksums as they are read.

A sample is read from its files, its pixels straight into place in the buffer, and checked there, so
a file cannot change between the check and the use. Only the index is read from a memory map, and
each of its values is compared with the sample's own rows.
"""

from functools import partial

import numpy as np

from sa1bpack.batch.copy_samples import IN_MEMORY, copy_samples
from sa1bpack.batch.read_samples import read_ahead_map
from sa1bpack.dataset import shard_cache
from sa1bpack.dataset.rows import offsets_of
from sa1bpack.dataset.specs import AS_STORED
from sa1bpack.errors import FormatError, MaskError, ResourceShortage
from sa1bpack.format import Shard
from sa1bpack.format.checked_rows import REPAIR, read_rows_unchecked
from sa1bpack.loading.batch_copy import (
    OPEN_SAMPLES,
    BatchCopy,
    BatchSource,
    Lookup,
    SideLookup,
    without_frames,
)
from sa1bpack.loading.planner import Planner, masks_outside, masks_to_choose
from sa1bpack.loading.sample_reader import SampleReader
from sa1bpack.masks import passes
from sa1bpack.masks.rle import take_masks

# Arrays of which a sample's rows are large.
_LARGE = ("image", "mask_bits")
# Arrays that thresholds compare.
_SCORES = ("area", "predicted_iou", "stability_score")


class CheckedPlanner(Planner):
    """Plans batches whose samples are checked as they are copied. Keeps no file open."""

    def _look_up(self, indices, numbers, local, first, stop, shards, wrong, epoch) -> Lookup:
        for k, number in enumerate(numbers.tolist()):
            if k not in wrong:
                error = masks_outside(shards[number], int(first[k]), int(stop[k]))
                if error is not None:
                    wrong[k] = error
        masks = self._count_masks(numbers, local, first, stop, shards, wrong)
        good = np.array([k for k in range(len(indices)) if k not in wrong], np.int64)
        indices, numbers, local = indices[good], numbers[good], local[good]
        rows = self.source.ds.rows_at(indices)
        counts = self.source.choice.counts(masks[good])
        offsets = offsets_of(counts)
        unknown = np.zeros((len(rows), 0))  # CheckedBatchCopy reads these from the samples
        return Lookup(
            indices, rows, self.source.ds.pack.image_ids(rows), numbers, local,
            [shards[number] for number in numbers.tolist()], counts, offsets,
            mask_rows=unknown, mask_spans=np.zeros((int(offsets[-1]), 2), np.int64),
            sizes=np.zeros((len(rows), 4), np.int32), scales=unknown, addresses=unknown,
            files=unknown, direct=unknown, spans=unknown, epoch=epoch,
            sides=SideLookup.of([], len(self.source.spec.sides)),
        )  # fmt: skip

    def _count_masks(self, numbers, local, first, stop, shards, wrong) -> np.ndarray:
        """int64 (n,): how many masks of each sample pass the rule; 0 for those in `wrong`, to which
        new errors are added.

        By bytes that are not compared with anything yet: when they are, another count is an error.
        """
        rule, masks = self.source.ds.options.rule, stop - first
        if rule is None:
            return masks
        counts = np.zeros(len(masks), np.int64)
        for k in range(len(masks)):  # all of them are announced before the first is waited for
            for name in _SCORES if k not in wrong else ():
                base = shards[numbers[k]].arrays[name].__array_interface__["data"][0]
                read_ahead_map(base + 8 * int(first[k]), 8 * int(masks[k]))
        for k in range(len(masks)):
            if k in wrong:
                continue
            shard = shards[numbers[k]].shard
            try:
                scores, size = shard_cache.CACHE.with_resources(
                    partial(_scores, shard, int(local[k]), int(first[k]), int(stop[k]))
                )
            except (FormatError, OSError) as error:
                if isinstance(error, ResourceShortage):
                    raise
                wrong[k] = without_frames(error)
                continue
            counts[k] = np.count_nonzero(passes(rule, *scores, size[0] * size[1]))
        return counts

    def _copy(self, lookup: Lookup, low: int, high: int) -> "CheckedBatchCopy":
        return CheckedBatchCopy(self.source, lookup, low, high)


class CheckedBatchCopy(BatchCopy):
    """One batch to be copied, each sample compared with its checksum."""

    def __init__(self, source: BatchSource, lookup: Lookup, low: int, high: int):
        super().__init__(source, lookup, low, high)
        count = high - low
        # As in `copy_samples`, but counted from this batch's first sample.
        self._offsets = lookup.offsets[low : high + 1] - self._first_mask
        self._chosen = np.empty(self.total, np.int64)
        self._addresses = np.zeros((count, len(self._spec.arrays)), np.int64)
        self._sizes = np.zeros((count, 4), np.int32)
        self._scales = np.ones((count, 2))
        self._spans = np.zeros((count, 2), np.int64)
        self._in_place = self._spec.image.how == AS_STORED  # pixels are read to their place
        self._no_files = np.full((count, 2), IN_MEMORY)

    def copy(self, first: int, stop: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Read samples `first` to `stop` of the batch into the buffer."""
        through_cache = self._source.ds.pack.reads_through_cache
        step = OPEN_SAMPLES if through_cache else max(1, stop - first)
        for start in range(first, stop, step):
            end = min(start + step, stop)
            with self._present(start, end):
                for k in range(start, end):
                    self._announce(int(self._lookup.rows[self._low + k]), reader.direct)
                for k in range(start, end):
                    try:
                        self._copy_sample(k, buffer, reader)
                    except ResourceShortage:
                        raise
                    except (FormatError, MaskError, OSError) as error:
                        self._failed[k] = without_frames(error)

    def compile(self) -> None:
        """Like BatchCopy.compile, and the functions that announce reads."""
        super().compile()
        read_ahead_map(0, 0)
        if self._spec.masks.source == "drawn":
            take_masks(np.array([1], np.int32), np.array([0, 1]), np.array([0]))

    def _copy_part(self, first: int, stop: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Copy samples whose rows have been read."""
        assert len(buffer) >= self.nbytes, (len(buffer), self.nbytes)
        copy_samples(
            0, first, stop, buffer, self._addresses, self._no_files, self._spans, self._chosen,
            self._offsets, *self._capacities, self._sizes, self._scales,
            *self._placement(with_images=not self._in_place),
        )  # fmt: skip

    def _announce(self, row: int, direct: bool) -> None:
        """Let the system begin to read a sample's rows into the page cache, all of them at once.

        Through their maps, so that nothing is opened for it; what is read there is never looked at.

        direct  all but the large ones, which are not read through the page cache
        """
        pack = self._source.ds.pack
        number, local, first, stop = pack.locate(row)
        opened = pack.shards.open(number)
        shard, all_but_large = opened.shard, direct or bool(opened.groups)
        spans = {"sample": (local, local + 1), "mask": (first, stop)}
        for spec in shard.layout.arrays:
            if spec.axis in spans and not (all_but_large and spec.name in _LARGE):
                low, high = spans[spec.axis]
                base = shard[spec.name].__array_interface__["data"][0]
                count = (high - low + spec.offsets) * spec.row_bytes
                if count:
                    read_ahead_map(base + low * spec.row_bytes, count)

    def _copy_sample(self, k: int, buffer: np.ndarray, reader: SampleReader) -> None:
        ds, spec = self._source.ds, self._spec
        row = int(self._lookup.rows[self._low + k])
        images = self.regions["images"].view(buffer)
        out = {"image": images[k : k + 1]} if self._in_place else None
        rows = ds.pack.read_rows(row, out, reader.direct)
        size = rows["size"][0]
        self.regions["sizes"].view(buffer)[k] = self._sizes[k] = size
        if ds.options.coordinates == "stored":
            self._scales[k] = size[[3, 2]] / size[[1, 0]]
        kept = self._kept(k, rows)
        self._chosen[self._offsets[k] : self._offsets[k + 1]] = kept
        self._addresses[k] = [rows[name].ctypes.data for name in spec.arrays]
        self._spans[k] = 0, rows["image"].nbytes
        self._copy_part(k, k + 1, buffer, reader)
        self._put_sides(k, ds.pack.read_sides(row, reader.direct), kept, buffer)
        if spec.masks.source == "drawn":
            offset = rows["run_offset"] - rows["run_offset"][0]
            self._draw_runs(k, *take_masks(rows["run_ends"], offset, kept), size, buffer)

    def _put_sides(self, k: int, rows: dict[str, np.ndarray], kept: np.ndarray, buffer) -> None:
        """Copy the rows of sample k in the side arrays, which have been read."""
        for side in self._spec.sides:
            target, found = self.regions[side.name].view(buffer), rows[side.name]
            if side.axis == "sample":
                target[k] = found
            elif self._spec.layout.padded:
                target[k, : len(kept)] = found[kept]
                target[k, len(kept) :] = 0
            else:
                target[self._offsets[k] : self._offsets[k + 1]] = found[kept]

    def _kept(self, k: int, rows: dict[str, np.ndarray]) -> np.ndarray:
        """The masks of sample k that are kept, exactly as many as were planned."""
        planned, masks = int(self._offsets[k + 1] - self._offsets[k]), len(rows["area"])
        image_id, choice = int(rows["image_id"][0]), self._source.choice
        passing, rule = np.arange(masks), self._source.ds.options.rule
        if rule is not None:
            height, width = rows["size"][0, :2].tolist()
            passing = np.flatnonzero(passes(rule, *(rows[n] for n in _SCORES), height * width))
        sample = masks_to_choose(choice, image_id, rows, passing, self._scales[k])
        chosen = choice.rows(sample, len(passing), self._lookup.epoch)
        kept = passing if chosen is None else passing[chosen]
        if len(kept) != planned:
            raise FormatError(
                f"it has {masks} masks, of which {len(kept)} are kept, but {planned} were to be "
                f"kept by what was read before; {REPAIR}"
            )
        return kept


def _scores(shard: Shard, row: int, first: int, stop: int) -> tuple[list[np.ndarray], list[int]]:
    """Area, predicted IoU and stability score of some masks, and the size of their sample."""
    found = [read_rows_unchecked(shard, name, first, stop) for name in _SCORES]
    return found, read_rows_unchecked(shard, "size", row, row + 1)[0].tolist()
