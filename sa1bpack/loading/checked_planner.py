"""The Planner of a dataset with check="read": samples are compared with checksums as they are read.

A sample is read from its files, its pixels straight into place in the buffer, and checked there, so
a file cannot change between the check and the use. Only the index is read from a memory map, and
each of its values is compared with the sample's own rows.
"""

from functools import partial

import numpy as np

from sa1bpack.dataset.rows import offsets_of
from sa1bpack.dataset.shards import CACHE
from sa1bpack.dataset.specs import AS_STORED
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError, MaskError, ResourceShortage
from sa1bpack.format.shard_reader import REPAIR, Shard, read_rows_unchecked
from sa1bpack.loading.batch.load_samples import IMAGE, IN_MEMORY, IN_PLACE, MAP, OPEN, Samples
from sa1bpack.loading.batch_copy import (
    BatchCopy,
    Lookup,
    without_frames,
)
from sa1bpack.loading.planner import Planner, address, masks_outside, masks_to_choose
from sa1bpack.loading.sample_reader import SampleReader
from sa1bpack.masks import passes

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
        total, sides = int(offsets[-1]), len(self.source.spec.sides)
        # What CheckedBatchCopy reads of each sample, and enters when it has been compared.
        samples = Samples(
            local,
            spans=np.zeros((len(rows), 2), np.int64),
            offsets=offsets,
            mask_rows=np.zeros(total, np.int64),
            mask_spans=np.zeros((total, 2), np.int64),
            sizes=np.zeros((len(rows), 4), np.int32),
            scales=np.ones((len(rows), 2)),
            fields=np.zeros((len(rows), len(self.source.spec.arrays) - 2), np.int64),
            files=np.full((len(rows), 2 + sides, 4), IN_MEMORY),
        )
        found = [shards[number] for number in numbers.tolist()]
        ids = self.source.ds.pack.image_ids(rows)
        return Lookup(indices, rows, ids, numbers, found, counts, samples, epoch)

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
                scores, size = CACHE.with_resources(
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

    def copy(self, first: int, stop: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Read samples `first` to `stop` of the batch into the buffer."""
        for k in range(first, stop):
            self._announce(int(self._lookup.rows[self._low + k]), reader.direct)
        for k in range(first, stop):
            try:
                self._copy_sample(k, buffer, reader)
            except ResourceShortage:
                raise
            except (FormatError, MaskError, OSError) as error:
                self._failed[k] = without_frames(error)

    def compile(self) -> None:
        """Like BatchCopy.compile, and the function that announces reads."""
        super().compile()
        read_ahead_map(0, 0)

    def _announce(self, row: int, direct: bool) -> None:
        """Let the system begin to read a sample's rows into the page cache, all of them at once.

        Through their maps, so that nothing is opened for it; what is read there is never looked at.

        direct  all but the large ones, which are not read through the page cache
        """
        pack = self._source.ds.pack
        number, local, first, stop = pack.locate(row)
        opened = pack.open(number)
        shard = opened.shard
        spans = {"sample": (local, local + 1), "mask": (first, stop)}
        for spec in shard.layout.arrays:
            if spec.axis in spans and not (direct and spec.name in _LARGE):
                low, high = spans[spec.axis]
                base = shard[spec.name].__array_interface__["data"][0]
                count = (high - low + spec.offsets) * spec.row_bytes
                if count:
                    read_ahead_map(base + low * spec.row_bytes, count)

    def _copy_sample(self, k: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Read sample k, enter what was compared into the lookup, and load it from there."""
        ds, spec, found, at = self._source.ds, self._spec, self._samples, self._low + k
        row, local = int(self._lookup.rows[at]), int(found.local[at])
        in_place = spec.image.how == AS_STORED  # pixels are read to their place
        images = self.regions["images"].view(buffer)
        out = {"image": images[k : k + 1]} if in_place else None
        rows = ds.pack.read_rows(row, out, reader.direct)
        # Arrays, so that each has memory of its own: one row may be a number.
        sides = {
            name: np.ascontiguousarray(value)
            for name, value in ds.pack.read_sides(row, reader.direct).items()
        }
        size = rows["size"][0]
        self.regions["sizes"].view(buffer)[k] = found.sizes[at] = size
        if ds.options.coordinates == "stored":
            found.scales[at] = size[[3, 2]] / size[[1, 0]]
        kept = self._kept(k, rows)
        masks = slice(*found.offsets[at : at + 2])
        found.mask_rows[masks] = kept  # of the sample's own, as all of the following
        edges = np.arange(len(rows["area"]) + 1)
        if spec.masks.source == "drawn":
            edges = rows["run_offset"] - rows["run_offset"][0]
        found.mask_spans[masks] = np.stack([edges[kept], edges[kept + 1]], 1)
        found.spans[at] = 0, rows["image"].nbytes
        found.fields[at] = [address(rows[name]) for name in spec.arrays[2:]]
        files = found.files[at]
        files[:2, MAP] = [address(rows[name]) for name in spec.arrays[:2]]
        files[IMAGE, OPEN] = IN_PLACE if in_place else IN_MEMORY
        for c, side in enumerate(spec.sides, 2):
            skipped = local * side.row_bytes if side.axis == "sample" else 0
            files[c, MAP] = address(sides[side.name]) - skipped
        self._load(k, k + 1, buffer, reader)

    def _kept(self, k: int, rows: dict[str, np.ndarray]) -> np.ndarray:
        """The masks of sample k that are kept, exactly as many as were planned."""
        planned, masks = int(self._lookup.counts[self._low + k]), len(rows["area"])
        image_id, choice = int(rows["image_id"][0]), self._source.choice
        passing, rule = np.arange(masks), self._source.ds.options.rule
        if rule is not None:
            height, width = rows["size"][0, :2].tolist()
            passing = np.flatnonzero(passes(rule, *(rows[n] for n in _SCORES), height * width))
        sample = masks_to_choose(
            choice, image_id, rows, passing, self._samples.scales[self._low + k]
        )
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
