"""The look-up of samples, and its checks, for several batches at once.

    locator = Locator(ds, spec, masks)
    for located, errors in locator.locate([ordered, ...]):
        located.begin(buffer)
        located.copy(0, len(located), reader)   any part of the samples, in any thread
        errors = located.errors()

Values that are taken from a shard are copied out of its memory map once, compared with the
bounds of the arrays that they point into, and used from the copy: whatever a damaged array holds,
no address outside an array results.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.rows import expanded, offsets_of
from sa1bpack.dataset.shards import (
    FIRST_ADDRESS,
    IMAGE_BYTES,
    IMAGE_OFFSET,
    MASKS,
    RUN_OFFSET,
    RUNS,
    SIZE,
    OpenShard,
)
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError, ReadError
from sa1bpack.format.shard_reader import REPAIR, Shard
from sa1bpack.kernels import memcpy, njit
from sa1bpack.loading.batch.load_samples import MAP, NO_FILE, Samples
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSchedule
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.located_batch import SCORES, LocatedBatch, SampleRows, address, sample_error
from sa1bpack.loading.order.epoch import OrderedBatch, Position
from sa1bpack.masks.select import passes


class Stored(NamedTuple):
    """The properties of the samples of a pack, as they are stored.

    Attributes:
        image_bytes: bytes of a stored canvas; 0 if images have none.
        channels: channels of images without a canvas: 3, or 0 for planes.
        side: the largest side of a stored image in pixels.
        with_runs: masks come from runs, whose offsets are checked.
    """

    image_bytes: int
    channels: int
    side: int
    with_runs: bool


@njit
def _image_bytes(height, width, channels):
    """Bytes of an image without a canvas: RGB, or planes if `channels` is 0."""
    if channels:
        return height * width * channels
    return height * width + 2 * ((height + 1) // 2) * ((width + 1) // 2)


@njit
def _rising(edges, most):
    """True if offsets are non-decreasing, and from 0 to `most`."""
    before = 0
    for n in range(len(edges)):
        if edges[n] < before:
            return False
        before = edges[n]
    return before <= most


@njit
def look_up(table, local, first, stop, stored, sizes, spans, fine):
    """Find and check the images of samples, and the runs of their masks.

    Args:
        table: int64 (n, c), of each sample's shard the columns of `OpenShard.table` in use.
        local: int64 (n,), rows in the shards, which exist.
        first, stop: int64 (n,), masks of each sample by the index of the pack.
        stored: properties of the stored samples.
        sizes: int32 (n, 4), out: source height and width, stored height and width.
        spans: int64 (n, 2), out: first byte and number of bytes of each image.
        fine: bool (n,), out: everything is within its array.
    """
    edge = np.empty(2, np.int64)
    image_bytes = stored.image_bytes
    with_runs = stored.with_runs
    for k in range(len(local)):  # all of them are announced before the first is waited for
        read_ahead_map(table[k, SIZE] + 16 * local[k], np.int64(16))
        if not image_bytes:
            read_ahead_map(table[k, IMAGE_OFFSET] + 8 * local[k], np.int64(16))
        if with_runs and 0 <= first[k] <= stop[k] <= table[k, MASKS]:
            read_ahead_map(table[k, RUN_OFFSET] + 8 * first[k], 8 * (stop[k] + 1 - first[k]))
    for k in range(len(local)):
        row = local[k]
        fine[k] = False
        if not 0 <= first[k] <= stop[k] <= table[k, MASKS]:
            continue
        memcpy(sizes[k].ctypes.data, table[k, SIZE] + 16 * row, 16)
        height = np.int64(sizes[k, 2])
        width = np.int64(sizes[k, 3])
        lowest = min(sizes[k, 0], sizes[k, 1], sizes[k, 2], sizes[k, 3])
        if lowest < 1 or max(height, width) > stored.side:
            continue
        if image_bytes:
            spans[k, 0] = row * image_bytes
            spans[k, 1] = image_bytes
        else:
            memcpy(edge.ctypes.data, table[k, IMAGE_OFFSET] + 8 * row, 16)
            spans[k, 0] = edge[0]
            spans[k, 1] = _image_bytes(height, width, stored.channels)
            # Compared, not subtracted: a difference of two int64 may wrap around.
            if not 0 <= edge[0] <= edge[1] <= table[k, IMAGE_BYTES] or (
                edge[1] - edge[0] != spans[k, 1]
            ):
                continue
        fine[k] = True
        if with_runs:
            edges = np.empty(stop[k] + 1 - first[k], np.int64)
            memcpy(edges.ctypes.data, table[k, RUN_OFFSET] + 8 * first[k], 8 * len(edges))
            fine[k] = _rising(edges, table[k, RUNS])


@njit
def gather_scores(table, columns, first, stop, out):
    """Copy rows of 8 bytes of some arrays of each sample's shard, one sample after the other.

    Waits for the disk without the GIL.

    Args:
        table: int64 (n, c), as in `look_up`.
        columns: int64 (a,), columns of the table: the addresses of the arrays.
        first, stop: int64 (n,), the rows of each sample.
        out: int64 (a, T), out: the bytes of all rows.
    """
    for k in range(len(first)):  # all of them are announced before the first is waited for
        for column in columns:
            read_ahead_map(table[k, column] + 8 * first[k], 8 * (stop[k] - first[k]))
    for c, column in enumerate(columns):
        target = out[c].ctypes.data
        for k in range(len(first)):
            nbytes = 8 * (stop[k] - first[k])
            memcpy(target, table[k, column] + 8 * first[k], nbytes)
            target += nbytes


@njit
def run_spans(table, offsets, mask_rows, spans):
    """The runs of the kept masks of samples: rows of run_ends; -1 if they are out of order.

    Args:
        table: int64 (n, c), as in `look_up`.
        offsets: int64 (n + 1,): where each sample's masks begin in `mask_rows`.
        mask_rows: int64 (T,), in the shards.
        spans: int64 (T, 2), out.
    """
    edges = np.empty(2, np.int64)
    for k in range(len(table)):
        for n in range(offsets[k], offsets[k + 1]):
            memcpy(edges.ctypes.data, table[k, RUN_OFFSET] + 8 * mask_rows[n], 16)
            good = 0 <= edges[0] <= edges[1] <= table[k, RUNS]
            spans[n, 0] = edges[0] if good else -1
            spans[n, 1] = edges[1] if good else -1


class Locator:
    """A locator of a dataset's batches, for any thread. It keeps no state between calls."""

    def __init__(self, ds: Dataset, spec: BatchSpec, masks: MaskSchedule):
        """A locator of batches of a dataset.

        Args:
            ds: the dataset.
            spec: layout of the batches in a buffer.
            masks: which masks are kept, in any epoch and step.
        """
        self.ds = ds
        self.spec = spec
        self.masks = masks
        layout = ds.layout
        place = {array.name: FIRST_ADDRESS + n for n, array in enumerate(layout.arrays)}
        self._columns = np.array([*range(FIRST_ADDRESS), *map(place.__getitem__, spec.arrays)])
        self._scores = FIRST_ADDRESS + np.array(list(map(spec.arrays.index, SCORES)))
        self._stored = Stored(
            image_bytes=0 if layout.flat else layout.array("image").row_bytes,
            channels=3 if layout.pixels == "rgb" else 0,
            side=layout.image_size,
            with_runs=spec.masks.source != "bits",
        )

    def locate(self, batches: Sequence[OrderedBatch]) -> list[tuple[LocatedBatch, list[ReadError]]]:
        """The located batches, and the errors of the samples that they lack.

        A batch has the remaining samples, which may be none. Here alone it is asked which masks are
        kept; batches for which that is the same are looked up together.

        Args:
            batches: the batches, as the order has them.

        Raises:
            ResourceShortage: the system refuses mappings or files for the shards.
        """
        located = []
        for choice, together in groupby(
            batches, lambda batch: self.masks.at(batch.epoch, batch.step)
        ):
            located += self._locate_together(list(together), choice)
        return located

    def _locate_together(
        self, batches: list[OrderedBatch], choice: MaskChoice
    ) -> list[tuple[LocatedBatch, list[ReadError]]]:
        """`locate` for batches of one epoch, with the masks that are kept in all of them."""
        ds = self.ds
        epoch = batches[0].epoch
        indices = np.concatenate([batch.indices for batch in batches])
        pack = ds.pack
        rows = ds.rows_at(indices)
        place = np.arange(len(indices))
        again = [
            np.zeros(len(batch.indices), np.int64)
            if batch.repetitions is None
            else batch.repetitions
            for batch in batches
        ]
        where = SampleRows(
            place,
            *pack.locate_many(rows),
            rows,
            pack.image_ids(rows),
            np.concatenate(again),
        )
        numbers = where.number.tolist()
        shards, failed = pack.open_many(numbers)
        wrong = {k: failed[n] for k, n in enumerate(numbers) if n in failed}
        found, samples = self._look_up(_without(where, wrong), shards, wrong, epoch, choice)
        errors = {k: sample_error(pack, where, k, wrong[k]) for k in wrong}
        opened = [shards[n] for n in found.number.tolist()]
        choose = partial(choice.of_arrays, epoch=epoch)
        capacity = choice.max_masks if choice.pads else None
        made = []
        low = 0
        for batch in batches:
            high = low + len(batch.indices)
            # Positions among those that can be copied.
            own = slice(*np.searchsorted(found.place, (low, high)).tolist())
            masks = slice(samples.offsets[own.start], samples.offsets[own.stop])
            own_samples = Samples(*map(itemgetter(own), samples))._replace(
                offsets=samples.offsets[own.start : own.stop + 1] - masks.start,
                mask_rows=samples.mask_rows[masks],
                mask_spans=samples.mask_spans[masks],
            )
            ordered = batch.take(found.place[own] - low)
            given = ordered, found.of(own), opened[own], own_samples, choose, capacity
            located = LocatedBatch(ds, self.spec, *given)
            made.append((located, [errors[k] for k in range(low, high) if k in errors]))
            low = high
        return made

    def prepare(self) -> None:
        """Compile the kernels that copy what is located or load them, and begin to read the index.

        The first time ever, compiling takes many seconds, which are not those of a slow disk. Image
        ids and mask offsets take 16 bytes per sample; a shuffled epoch needs some of every page.
        """
        for folder in self.ds.pack.folders:
            for array in (folder.index.image_id, folder.index.mask_offset):
                read_ahead_map(address(array), array.nbytes)
        nothing = OrderedBatch(0, 0, 0, np.empty(0, np.int64), after=Position(0, 0))
        [(located, _)] = self.locate([nothing])
        located.compile()

    def _look_up(
        self,
        where: SampleRows,
        shards: dict[int, OpenShard],
        wrong: dict[int, Exception],
        epoch: int,
        choice: MaskChoice,
    ) -> tuple[SampleRows, Samples]:
        """The locations of samples and of their arrays.

        Those that are wrong are left out, and their errors added to `wrong`, by place.
        """
        ds = self.ds
        found = [shards[number] for number in where.number.tolist()]
        columns = [shard.table[self._columns] for shard in found]
        table = np.array(columns, np.int64).reshape(len(found), len(self._columns))
        sizes = np.zeros((len(table), 4), np.int32)
        spans = np.zeros((len(table), 2), np.int64)
        fine = np.empty(len(table), np.bool_)
        masks = where.first, where.stop
        look_up(table, where.local, *masks, self._stored, sizes, spans, fine)
        if not fine.all():
            for k in np.flatnonzero(~fine).tolist():
                wrong[int(where.place[k])] = _misfit(found[k].shard, where, k, sizes[k])
            table = table[fine]
            sizes = sizes[fine]
            spans = spans[fine]
            where = where.of(fine)
            found = [shards[number] for number in where.number.tolist()]
        local = where.local
        first = where.first
        stop = where.stop
        # What is located from here on has these masks to choose from, and no other number of them:
        # rows in their shards, int64 (C,), and how many each sample has, int64 (n,).
        passing = stop - first
        rule = ds.options.rule
        mask_rows = expanded(first, offsets_of(passing))
        if rule is not None:
            scores = np.empty((len(SCORES), len(mask_rows)), np.int64)
            gather_scores(table, self._scores, first, stop, scores)
            owner = np.repeat(np.arange(len(found)), passing)
            pixels = sizes[:, 0].astype(np.int64) * sizes[:, 1]
            good = passes(rule, scores[0], *scores[1:].view(np.float64), pixels[owner])
            mask_rows = mask_rows[good]
            passing = np.bincount(owner[good], minlength=len(found))
        scales = np.ones((len(found), 2))
        if ds.options.coordinates == "stored":
            scales = np.ascontiguousarray(sizes[:, [3, 2]] / sizes[:, [1, 0]])
        counts = passing
        if not choice.keeps_all(passing):
            edges = offsets_of(passing)
            chosen = []
            for k, shard in enumerate(found):
                of_sample = mask_rows[edges[k] : edges[k + 1]]
                chosen.append(
                    choice.of_arrays(
                        int(where.image_id[k]),
                        shard.arrays,
                        of_sample,
                        scales[k],
                        int(where.repetition[k]),
                        epoch=epoch,
                    )
                )
            mask_rows = np.concatenate(chosen) if chosen else mask_rows
            counts = np.array([len(kept) for kept in chosen], np.int64)
        offsets = offsets_of(counts)
        if self._stored.with_runs:
            mask_spans = np.empty((len(mask_rows), 2), np.int64)
            run_spans(table, offsets, mask_rows, mask_spans)
        else:
            mask_spans = np.stack([mask_rows, mask_rows + 1], 1)
        files = np.full((len(found), 2 + len(self.spec.features), 4), NO_FILE)
        files[:, :2, MAP] = table[:, FIRST_ADDRESS : FIRST_ADDRESS + 2]
        for shard, own in zip(found, files, strict=True):
            own[2:, MAP] = [address(each.values) for each in shard.features]
        fields = np.ascontiguousarray(table[:, FIRST_ADDRESS + 2 :])
        return where, Samples(
            local, spans, offsets, mask_rows, mask_spans, sizes, scales, fields, files
        )


def _without(where: SampleRows, wrong: dict[int, Exception]) -> SampleRows:
    """The samples whose places are not among those that are wrong."""
    return where.of(~np.isin(where.place, list(wrong))) if wrong else where


def _misfit(shard: Shard, where: SampleRows, k: int, size: np.ndarray) -> FormatError:
    """The error of the sample at k, which `look_up` refused; that found its size.

    Most of it was checked when the shard was opened, and has changed in place since.
    """
    return FormatError(
        f"{shard.folder}: size {size.tolist()} of sample {where.local[k]}, its masks "
        f"{where.first[k]} to {where.stop[k]}, or the offsets of its image or runs do not fit "
        f"{shard.lengths} with images of up to {shard.layout.image_size} pixels per side; {REPAIR}"
    )
