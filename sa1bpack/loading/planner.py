"""Looks up and checks where samples are, for several batches at once.

    planner = Planner(BatchSource(ds, spec, choice, capacity))
    for copy, errors in planner.plan([indices, ...], epoch):
        copy.write_heads(buffer)
        copy.copy(0, len(copy), buffer, reader)   any part of the samples, in any thread
        errors = copy.errors()

Values that the plan takes from a shard are copied out of its memory map once, compared with the
bounds of the arrays that they point into, and used from the copy: whatever a damaged array holds,
no address outside an array results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sa1bpack.dataset.columns import expanded
from sa1bpack.dataset.fields import NUMBER_FIELDS
from sa1bpack.dataset.rows import offsets_of
from sa1bpack.dataset.shards import FIRST_ADDRESS, OpenShard
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError, LoaderError, ReadError
from sa1bpack.format.image_bytes import image_nbytes
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.loading.batch.load_samples import MAP, NO_FILE, Samples
from sa1bpack.loading.batch.look_up import FINE, Stored, look_up, passing_masks, run_spans
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSchedule
from sa1bpack.loading.batch_copy import (
    BatchCopy,
    BatchSource,
    Lookup,
    without_frames,
)

_FIELDS = {field.sample: field for field in NUMBER_FIELDS}


class Planner:
    """Plans batches of a dataset, in any thread. Keeps no state between plans."""

    def __init__(self, source: BatchSource, masks: MaskSchedule | None = None):
        """A planner of batches of this source.

        masks  how the choice of masks changes; None: not at all
        """
        self.source, self._masks = source, masks
        self._others: dict[tuple[int | None, int], Planner] = {}  # of other choices
        layout, names = source.ds.layout, [spec.name for spec in source.ds.layout.arrays]
        self._columns = np.array(
            [*range(FIRST_ADDRESS), *(FIRST_ADDRESS + names.index(n) for n in source.spec.arrays)]
        )
        self._scores = FIRST_ADDRESS + np.array(
            [source.spec.arrays.index(n) for n in ("area", "predicted_iou", "stability_score")]
        )
        self._stored = Stored(
            image_bytes=0 if layout.flat else layout.array("image").row_bytes,
            channels=3 if layout.pixels == "rgb" else 0,
            side=layout.image_size,
            with_runs=source.spec.masks.source != "bits",
        )

    def at(self, epoch: int, step: int) -> "Planner":
        """The planner of batches of this epoch and step: the same one for the same choice."""
        if self._masks is None or self._masks.constant:
            return self
        choice = self._masks.at(epoch, step)
        key = choice.max_masks, id(choice.choose)  # a function may have no hash
        if key == (self.source.choice.max_masks, id(self.source.choice.choose)):
            return self
        if key not in self._others:
            capacity = self._masks.capacity(choice)
            source = replace(self.source, choice=choice, capacity=capacity)
            self._others[key] = type(self)(source)
        return self._others[key]

    def plan(
        self, batches: Sequence[np.ndarray], epoch: int
    ) -> list[tuple[BatchCopy, list[ReadError]]]:
        """The copy of each batch, and the errors of samples that cannot be looked up.

        Each copy is of the remaining samples, which may be none.

        batches  int64 (B,) indices each

        Raises ResourceShortage if the system refuses mappings or files for the shards.
        """
        indices = np.concatenate(batches)
        numbers, local, first, stop = self.source.ds.locate_many(indices)
        shards, failed = self.source.ds.shards.open_many(numbers.tolist())
        wrong: dict[int, Exception] = {}
        if failed:
            for k, number in enumerate(numbers.tolist()):
                if number in failed:
                    wrong[k] = without_frames(failed[number])
        lookup = self._look_up(indices, numbers, local, first, stop, shards, wrong, epoch)
        errors = {
            k: self.source.error(indices[k], int(numbers[k]), local[k], wrong[k]) for k in wrong
        }
        # Positions in the lookup, which has only the samples that can be copied.
        good = np.ones(len(indices), np.int64)
        good[list(wrong)] = 0
        kept = offsets_of(good)
        plans, low = [], 0
        for batch in batches:
            high = low + len(batch)
            copy = self._copy(lookup, int(kept[low]), int(kept[high]))
            plans.append((copy, [errors[k] for k in range(low, high) if k in errors]))
            low = high
        return plans

    def prepare(self) -> None:
        """Compile the kernels of this planner's copies or load them, and begin to read the index.

        The first time ever, compiling takes many seconds, which are not those of a slow disk. The
        index has 24 bytes per sample, of which a shuffled epoch needs some on every page.
        """
        for folder in self.source.ds.pack.folders:
            for array in (folder.index.image_id, folder.index.mask_offset):
                read_ahead_map(address(array), array.nbytes)
        [(copy, _)] = self.plan([np.empty(0, np.int64)], 0)
        copy.compile()

    def _copy(self, lookup: Lookup, low: int, high: int) -> BatchCopy:
        return BatchCopy(self.source, lookup, low, high)

    def _look_up(self, indices, numbers, local, first, stop, shards, wrong, epoch) -> Lookup:
        """The lookup of the samples that are not in `wrong`, to which new errors are added."""
        sizes = np.zeros((len(indices), 4), np.int32)
        spans = np.zeros((len(indices), 2), np.int64)
        good = np.ones(len(indices), np.bool_)
        good[list(wrong)] = False
        opened = np.flatnonzero(good)
        table = _table([shards[number] for number in numbers[opened].tolist()], self._columns)
        if len(opened) < len(indices):
            sizes, spans = sizes[opened], spans[opened]
            indices, numbers, local, first, stop = (
                array[opened] for array in (indices, numbers, local, first, stop)
            )
        status = np.empty(len(opened), np.int64)
        look_up(table, local, first, stop, self._stored, sizes, spans, status)
        if status.any():
            for k in np.flatnonzero(status).tolist():
                error = _error(shards[int(numbers[k])], int(local[k]), int(first[k]), int(stop[k]))
                wrong[int(opened[k])] = without_frames(error)
            fine = np.flatnonzero(status == FINE)
            table, sizes, spans = table[fine], sizes[fine], spans[fine]
            indices, numbers, local, first, stop = (
                array[fine] for array in (indices, numbers, local, first, stop)
            )
        found = [shards[number] for number in numbers.tolist()]
        rows = self.source.ds.rows_at(indices)
        ids = self.source.ds.pack.image_ids(rows)
        candidates, passing = self._candidates(table, first, stop, sizes)
        counts = self.source.choice.counts(passing)
        offsets = offsets_of(counts)
        if self.source.ds.options.coordinates == "stored":
            scales = np.ascontiguousarray(sizes[:, [3, 2]] / sizes[:, [1, 0]])
        else:
            scales = np.ones((len(rows), 2))
        mask_rows = self._mask_rows(found, ids, candidates, passing, offsets, scales, epoch)
        samples = Samples(
            local,
            spans,
            offsets,
            mask_rows,
            self._mask_spans(table, offsets, mask_rows),
            sizes,
            scales,
            np.ascontiguousarray(table[:, FIRST_ADDRESS + 2 :]),
            self._files(table, found),
        )
        return Lookup(indices, rows, ids, numbers, found, counts, samples, epoch)

    def _files(self, table: np.ndarray, shards: list[OpenShard]) -> np.ndarray:
        """int64 (n, p, 4): `Samples.files`, of which none is open yet."""
        sides = len(self.source.spec.sides)
        files = np.full((len(shards), 2 + sides, 4), NO_FILE)
        files[:, :2, MAP] = table[:, FIRST_ADDRESS : FIRST_ADDRESS + 2]
        if sides:
            files[:, 2:, MAP] = np.reshape(
                [address(part.values) for shard in shards for part in shard.sides], (-1, sides)
            )
        return files

    def _candidates(self, table, first, stop, sizes) -> tuple[np.ndarray, np.ndarray]:
        """The masks to choose from: rows in their shards, int64 (C,), and how many each sample has,
        int64 (n,). What is planned from here on has these masks, and no other number of them."""
        rule, masks = self.source.ds.options.rule, stop - first
        if rule is None:
            return expanded(first, offsets_of(masks)), masks
        rows, passing = np.empty(int(masks.sum()), np.int64), np.empty(len(first), np.int64)
        limits = (rule.min_area, rule.max_area_frac, rule.min_iou, rule.min_stability)
        limits = np.array([np.nan if limit is None else limit for limit in limits])
        passing_masks(table, first, stop, sizes, self._scores, limits, rows, passing)
        return rows[: int(passing.sum())], passing

    def _mask_rows(self, shards, ids, candidates, passing, offsets, scales, epoch) -> np.ndarray:
        """int64 (T,): rows in their shards of the kept masks, sample by sample."""
        choice, edges = self.source.choice, offsets_of(passing)
        if choice.max_masks is None or not (passing > choice.max_masks).any():
            return candidates
        chosen = []
        for k, shard in enumerate(shards):
            rows, masks = candidates[edges[k] : edges[k + 1]], int(passing[k])
            if masks > choice.max_masks:
                sample = masks_to_choose(choice, int(ids[k]), shard.arrays, rows, scales[k])
                kept = choice.rows(sample, masks, epoch)
                expected = int(offsets[k + 1] - offsets[k])
                if len(kept) != expected or not 0 <= kept.min() <= kept.max() < masks:
                    raise LoaderError(
                        f"the choice of masks of image_id {ids[k]} returned {kept}, but it must "
                        f"return {expected} of {masks} masks"
                    )
                rows = rows[kept]
            chosen.append(rows)
        return np.concatenate(chosen)

    def _mask_spans(self, table: np.ndarray, offsets, mask_rows: np.ndarray) -> np.ndarray:
        """int64 (T, 2), see Lookup."""
        if not self._stored.with_runs:
            return np.stack([mask_rows, mask_rows + 1], 1)
        spans = np.empty((len(mask_rows), 2), np.int64)
        run_spans(table, offsets, mask_rows, spans)
        return spans


def masks_to_choose(
    choice: MaskChoice, image_id: int, arrays: Mapping, rows: slice | np.ndarray, scale: np.ndarray
) -> dict[str, Any]:
    """What a choice needs of a sample.

    arrays  name → array of a shard, or of this sample
    rows    of the sample's masks in it
    scale   float64 (2,), of x and y
    """
    sample: dict[str, Any] = {"image_id": image_id}
    for key in choice.keys:
        field = _FIELDS[key]
        sample[key] = arrays[field.array][rows]
        if field.scaled and (scale != 1).any():
            with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
                sample[key] = sample[key] * np.tile(scale, field.columns // 2)
    return sample


def address(array: np.ndarray) -> int:
    """Of its first byte, in this process."""
    return array.__array_interface__["data"][0]


def _table(shards: list[OpenShard], columns: np.ndarray) -> np.ndarray:
    """int64 (n, c): columns of the tables of shards, one row per shard."""
    if not shards:
        return np.empty((0, len(columns)), np.int64)
    return np.stack([shard.table[columns] for shard in shards])


def _error(shard: OpenShard, row: int, first: int, stop: int) -> FormatError:
    """What is wrong with a sample that `look_up` refused."""
    try:
        if (error := masks_outside(shard, first, stop)) is not None:
            return error
        _check_image(shard, row, shard.sizes[row].copy(), *shard.image_span(row))
        if shard.run_offset is not None:
            _check_runs(shard, row, first, stop)
    except FormatError as error:
        return error
    return FormatError(
        f"{shard.shard.folder}: sizes or offsets of sample {row} were wrong, and are not any "
        "longer: something changes the files of the shard; run `sa1bpack verify`"
    )


def masks_outside(shard: OpenShard, first: int, stop: int) -> FormatError | None:
    """The error if a sample's masks are not rows of its shard."""
    masks = shard.shard.extent.masks
    if 0 <= first <= stop <= masks:
        return None
    return FormatError(
        f"the pack's index says that its masks are rows {first} to {stop}, but the shard has "
        f"{masks}; {REPAIR}"
    )


def _check_image(shard: OpenShard, row: int, size: np.ndarray, start: int, nbytes: int) -> None:
    """Raise FormatError for a size out of range, or pixels that do not match it.

    size  int32 (4,), a copy: it can no longer change
    """
    layout = shard.shard.layout
    height, width = size[2:].tolist()
    if size.min() < 1 or max(height, width) > layout.image_size:
        raise FormatError(
            f"{shard.path('size')}: sides of sample {row} are {size.tolist()}; they must be at "
            f"least 1, and stored ones at most {layout.image_size}; {REPAIR}"
        )
    if layout.flat and nbytes != image_nbytes(layout, height, width):
        raise FormatError(
            f"{shard.path('image_offset')}: the pixels of sample {row} are {nbytes} bytes, but its "
            f"{height} x {width} take {image_nbytes(layout, height, width)}; {REPAIR}"
        )


def _check_runs(shard: OpenShard, row: int, first: int, stop: int) -> None:
    """Raise FormatError for runs that do not follow one another within their array."""
    edges, runs = shard.run_offset[first : stop + 1], shard.shard.extent.runs
    # Compared, not subtracted: a difference of two int64 may wrap around.
    if edges[0] < 0 or edges[-1] > runs or (edges[1:] < edges[:-1]).any():
        raise FormatError(
            f"{shard.path('run_offset')}: offsets of the masks of sample {row} must be "
            f"non-decreasing and from 0 to {runs}; {REPAIR}"
        )
