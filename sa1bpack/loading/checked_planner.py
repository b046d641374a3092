"""The Feed of a dataset with check="read": what goes into a batch was compared with checksums.

A sample is read out of its files with `pread`, pixels straight to their place in the buffer, and
compared there: so there is no moment between the check and the use in which a file could change.
Nothing but the index is taken from a memory map, and of what the index says each value is compared
with the sample's own rows.
"""

import numpy as np

from sa1bpack.batch.copy_samples import IN_MEMORY
from sa1bpack.dataset.columns import offsets_of
from sa1bpack.dataset.specs import AS_STORED
from sa1bpack.errors import FormatError, MaskError
from sa1bpack.format import Shard
from sa1bpack.loading.batch_copy import Lookup, Work, without_frames
from sa1bpack.loading.planner import Feed
from sa1bpack.masks.rle import take_masks


class CheckedFeed(Feed):
    """Plans batches whose samples are checked as they are copied. Holds no file open."""

    def _open(self, numbers: set[int]) -> tuple[dict[int, Shard], dict[int, Exception]]:
        failed: dict[int, Exception] = {}
        found: dict[int, Shard] = {}
        for number in numbers:
            try:
                found[number] = self.ds.shards[number]
            except (FormatError, OSError) as error:
                failed[number] = without_frames(error)
        return found, failed

    def _look_up(self, indices, numbers, local, sources, first, counts, epoch) -> Lookup:
        rows = self.ds.rows_at(indices)
        if self.choice.max_masks is not None:
            counts = np.minimum(counts, self.choice.max_masks)
        offsets = offsets_of(counts)
        nothing = np.zeros((len(rows), 0))  # CheckedWork finds these in the samples
        return Lookup(
            indices, rows, self.ds.pack.index.image_id[rows], numbers, local, sources, counts,
            offsets, mask_rows=nothing, run_spans=np.zeros((int(offsets[-1]), 2), np.int64),
            sizes=np.zeros((len(rows), 4), np.int32), scales=nothing, addresses=nothing,
            files=nothing, spans=nothing, epoch=epoch,
        )  # fmt: skip

    def _work(self, lookup: Lookup, low: int, high: int) -> "CheckedWork":
        return CheckedWork(self, lookup, low, high)


class CheckedWork(Work):
    """One batch to be copied, each sample compared with its checksum."""

    def __init__(self, feed: CheckedFeed, lookup: Lookup, low: int, high: int):
        super().__init__(feed, lookup, low, high)
        count = high - low
        # As `fill_samples` takes them, but counted from this batch's first sample.
        self._offsets = lookup.offsets[low : high + 1] - self._first_mask
        self._chosen = np.empty(self.total, np.int64)
        self._addresses = np.zeros((count, len(feed.form.arrays)), np.int64)
        self._sizes = np.zeros((count, 4), np.int32)
        self._scales = np.ones((count, 2))
        self._spans = np.zeros((count, 2), np.int64)
        self._no_files = np.full((count, 2), IN_MEMORY)

    def fill(self, first: int, stop: int, buffer: np.ndarray) -> None:
        """Read samples `first` to `stop` of the batch into the buffer."""
        for k in range(first, stop):
            try:
                self._fill_sample(k, buffer)
            except (FormatError, MaskError, OSError) as error:
                self._failed[k] = without_frames(error)

    def _fill_sample(self, k: int, buffer: np.ndarray) -> None:
        feed, row = self._feed, int(self._lookup.rows[self._low + k])
        in_place = feed.form.image.how == AS_STORED
        images = self.regions["images"].view(buffer)
        rows = feed.ds.pack.read_rows(row, out={"image": images[k : k + 1]} if in_place else None)
        size = rows["size"][0]
        self.regions["sizes"].view(buffer)[k] = self._sizes[k] = size
        if feed.ds.options.coordinates == "stored":
            self._scales[k] = size[[3, 2]] / size[[1, 0]]
        kept = self._kept(rows)
        self._chosen[self._offsets[k] : self._offsets[k + 1]] = kept
        self._addresses[k] = [rows[name].ctypes.data for name in feed.form.arrays]
        self._spans[k] = 0, rows["image"].nbytes
        self._copy(
            0, k, k + 1, buffer, self._addresses, self._no_files, self._spans, self._chosen,
            self._offsets, self._sizes, self._scales, with_images=not in_place,
        )  # fmt: skip
        if feed.form.masks.source == "drawn":
            offset = rows["run_offset"] - rows["run_offset"][0]
            self._draw_runs(k, *take_masks(rows["run_ends"], offset, kept), size, buffer)

    def _kept(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Which of the sample's masks are kept."""
        sample = {
            "image_id": int(rows["image_id"][0]),
            "areas": rows["area"],
            "predicted_ious": rows["predicted_iou"],
        }
        masks = len(rows["area"])
        kept = self._feed.choice.rows(sample, masks, self._lookup.epoch)
        return np.arange(masks) if kept is None else kept
