"""Batches located: where the samples of several batches are, and where they go in a buffer.

    locator = Locator(ds, spec, masks)
    for located, errors in locator.locate([ordered, ...]):
        located.begin(buffer)
        located.copy(0, len(located), reader)   any part of the samples, in any thread
        errors = located.errors()

Several batches are located together, since most of the cost does not depend on their number.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.shards import OpenShard, address_of
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import ReadError
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSchedule
from sa1bpack.loading.batch.place_rows import RowPlaces
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.batch.tables import SAMPLE, SampleTables
from sa1bpack.loading.located_batch import LocatedBatch, sample_error
from sa1bpack.loading.located_samples import LocatedSamples, LocatedShards
from sa1bpack.loading.look_up import LookUp
from sa1bpack.loading.order.epoch import OrderedBatch, Position, number_at

# Errors of samples that a batch lacks, each with the number of the batch, of those that are joined.
Dropped = list[tuple[int, ReadError]]


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
        self._look_up = LookUp(ds, spec)
        self._places = RowPlaces(ds.pack)

    def locate(self, batches: Sequence[OrderedBatch]) -> list[tuple[LocatedBatch, Dropped]]:
        """The located batches, and the errors of the samples that they lack.

        A batch has the remaining samples, which may be none. Nothing else asks the schedule which
        masks are kept; batches with the same choice are looked up together.

        Args:
            batches: the batches, as the order has them.

        Raises:
            ResourceShortage: the system refuses mappings or files for the shards.
        """
        located: list[tuple[LocatedBatch, Dropped]] = []
        for choice, together in groupby(
            batches, lambda batch: self.masks.at(batch.epoch, batch.step)
        ):
            located += self._locate_together(list(together), choice)
        return located

    def _locate_together(
        self, batches: list[OrderedBatch], choice: MaskChoice
    ) -> list[tuple[LocatedBatch, Dropped]]:
        """`locate` for batches of one epoch, with the masks that are kept in all of them."""
        pack = self.ds.pack
        samples, numbers, shard_at = self._samples(batches)
        opened, failed = pack.open_many(numbers.tolist())
        positions = np.arange(len(samples))  # in all batches together, of the samples that remain
        errors: dict[int, ReadError] = {}  # by position
        if failed:
            for position, number in enumerate(samples["shard"].tolist()):
                if number in failed:
                    errors[position] = sample_error(pack, samples[position], failed[number])
            positions = np.delete(positions, list(errors))
            samples = samples[positions]
            numbers, shard_at = np.unique(samples["shard"], return_inverse=True)
        shards = [opened[number] for number in numbers.tolist()]
        canvases = self._canvases(batches, positions)
        fits, tables = self._look_up.find(
            samples, shards, shard_at, batches[0].epoch, choice, canvases
        )
        if not fits.all():
            for k in np.flatnonzero(~fits).tolist():
                errors[int(positions[k])] = self._misfit(samples[k], shards[shard_at[k]])
            positions = positions[fits]
            shard_at = shard_at[fits]
        located_batches = []
        located_shards = LocatedShards(shards)
        start = 0
        for batch in batches:
            end = start + len(batch.indices)
            ordered = batch
            first = start
            stop = end
            if errors:
                first, stop = np.searchsorted(positions, (start, end)).tolist()
                ordered = batch.take(positions[first:stop] - start)
            located = LocatedSamples(
                ordered=ordered,
                spec=self.spec,
                look_up=self._look_up,
                choice=choice,
                tables=_cut(tables, first, stop),
                shards=located_shards,
                shard_at=shard_at[first:stop],
            )
            located_batches.append(
                (LocatedBatch(self.ds, located), _dropped_of(batch, start, errors))
            )
            start = end
        return located_batches

    def _canvases(self, batches: list[OrderedBatch], positions: np.ndarray) -> np.ndarray | None:
        """int32 (n, 2): the canvases of the samples that remain; None without classes of aspect."""
        if not self.spec.chosen.images:
            return None
        canvases = []
        for batch in batches:
            of_batch = batch.canvases(len(batch.indices))
            if of_batch is None:
                return None
            canvases.append(of_batch)
        of_all: np.ndarray = np.concatenate(canvases)[positions]
        return of_all

    def _misfit(self, sample: np.void, shard: OpenShard) -> ReadError:
        """The error of a sample that does not fit the arrays of its shard."""
        return sample_error(self.ds.pack, sample, self._look_up.misfit(sample, shard))

    def _samples(self, batches: list[OrderedBatch]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """SAMPLE (n,): which samples the batches have, and where they are by the index.

        And as `RowPlaces.place`, the distinct shards, and which of them each sample is in.
        """
        indices = batches[0].indices
        if len(batches) > 1:
            indices = np.concatenate([batch.indices for batch in batches])
        samples = np.empty(len(indices), SAMPLE)
        samples.view(np.uint8).fill(0)  # memory that was used before, unlike that of np.zeros
        numbers, shard_at = self._places.place(self.ds.rows_at(indices), samples)
        start = 0
        for batch in batches:
            end = start + len(batch.indices)
            if batch.repetitions is not None:
                samples["repetition"][start:end] = batch.repetitions
            start = end
        return samples, numbers, shard_at

    def prepare(self, compiles: bool) -> None:
        """Begin to read the index; compile the kernels that copy what is located, or load them.

        The first time ever, compiling takes many seconds, which are not those of a slow disk. Image
        ids and mask offsets take 16 bytes per sample; a shuffled epoch needs some of every page.

        Args:
            compiles: the kernels have not been compiled for such batches in this process.
        """
        for folder in self.ds.pack.folders:
            for array in (folder.index.image_id, folder.index.mask_offset):
                read_ahead_map(address_of(array), array.nbytes)
        if not compiles:
            return
        nothing = OrderedBatch(0, 0, 0, np.empty(0, np.int64), after=Position(0, 0))
        [(located, _)] = self.locate([nothing])
        located.compile()


def _dropped_of(batch: OrderedBatch, start: int, errors: Mapping[int, ReadError]) -> Dropped:
    """The errors of the samples of a batch.

    Args:
        batch: the batch, with all samples of the order.
        start: position of its first sample in all batches together.
        errors: errors by these positions.
    """
    dropped = []
    for position in sorted(errors):
        if start <= position < start + len(batch.indices):
            dropped.append((number_at(batch, position - start), errors[position]))
    return dropped


def _cut(tables: SampleTables, first: int, stop: int) -> SampleTables:
    """The tables of samples `first` to `stop`, whose kept masks are counted from 0 then."""
    samples = tables.samples[first:stop]
    kept_begin = 0
    kept_end = 0
    if len(samples):
        kept_begin = int(samples["kept_begin"][0])
        kept_end = int(samples["kept_end"][-1])
        samples["kept_begin"] -= kept_begin
        samples["kept_end"] -= kept_begin
    return SampleTables(
        samples=samples,
        masks=tables.masks[kept_begin:kept_end],
        numbers=tables.numbers[first:stop],
        sample_spans=tables.sample_spans[first:stop],
        mask_spans=tables.mask_spans[kept_begin:kept_end],
        sample_present=tables.sample_present[first:stop],
        mask_present=tables.mask_present[kept_begin:kept_end],
    )
