"""Copies of samples that are compared with their checksums, and loaded from.

A sample is read out of its files, its pixels straight into place in the buffer of its batch, and
compared with its checksum there, so that a file cannot change between the check and the use. The
copy, a shard of one sample, takes the place of its shard in `SampleTables`, once it agrees with
what was found by the maps.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from sa1bpack.dataset.sample import AS_STORED, ImageSpec
from sa1bpack.dataset.shards import Location, OpenShard, ShardArrays, address_of
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.loading.batch.mask_choice import MaskChoice
from sa1bpack.loading.batch.spec import BatchPlaces, BatchSpec
from sa1bpack.loading.batch.tables import IN_MEMORY, SampleTables
from sa1bpack.loading.look_up import LookUp
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.loading.sample_reader import file_table

# Arrays of which a sample's rows are large.
_IMAGE_AND_BITS = ("image", "mask_bits")


def canvases_of(batches: Sequence[OrderedBatch], count: int | None = None) -> np.ndarray | None:
    """int32 (n, 2): height and width of the canvas of each sample of some batches, by its class.

    None if they have no classes of aspect: those of a loader all have them, or none has.

    Args:
        batches: the batches.
        count: samples of each batch; None: all.
    """
    rows = []
    for batch in batches:
        if batch.sample_class is None or batch.sample_class.canvas is None:
            return None
        samples = len(batch.indices) if count is None else count
        rows.append(np.tile(np.array(batch.sample_class.canvas, np.int32), (samples, 1)))
    return np.concatenate(rows)


def location_of(sample: np.void) -> Location:
    """The place of a SAMPLE by the index of the pack."""
    return Location(*sample[list(Location._fields)].tolist())


class CheckedCopies:
    """The copies of the samples of one batch."""

    def __init__(
        self,
        *,
        tables: SampleTables,
        spec: BatchSpec,
        look_up: LookUp,
        ordered: OrderedBatch,
        choice: MaskChoice,
        places: BatchPlaces,
        image: ImageSpec,
    ):
        """
        Args:
            tables: where the arrays of the samples are: copies are entered here.
            spec: layout of batches in their buffers.
            look_up: finds samples in the copies.
            ordered: which batch it is.
            choice: which masks are kept.
            places: where the arrays go in the buffer.
            image: the canvas of its images.
        """
        self._tables = tables
        self._spec = spec
        self._look_up = look_up
        self._ordered = ordered
        self._choice = choice
        self._places = places
        self._image = image

    def announce(self, k: int, shard: OpenShard, direct: bool) -> None:
        """Let the system begin to read the rows of a sample and of its masks into the page cache.

        It goes through the maps, so that nothing is opened for it; what is read there is never
        looked at.

        Args:
            k: position of the sample in the batch.
            shard: its shard.
            direct: leave out the large ones, which are not read through the page cache.
        """
        if not self._spec.chosen.of_shards:
            return
        location = location_of(self._tables.samples[k])
        spans = {
            "sample": (location.shard_row, location.shard_row + 1),
            "mask": (location.first_mask, location.stop_mask),
        }
        for spec in shard.shard.layout.arrays:
            if spec.axis in spans and not (direct and spec.name in _IMAGE_AND_BITS):
                first, stop = spans[spec.axis]
                start = address_of(shard.shard[spec.name]) + first * spec.row_bytes
                read_ahead_map(start, (stop - first + spec.offsets) * spec.row_bytes)

    def enter(
        self, k: int, shard: OpenShard, buffer: np.ndarray, direct: bool, files: np.ndarray
    ) -> ShardArrays:
        """Copy all rows of a sample, compare them with what was located, and enter the copy.

        Args:
            k: position of the sample in the batch.
            shard: its shard.
            buffer: uint8 (n,), the buffer of the batch.
            direct: read what is large past the page cache, where that is possible.
            files: FILE (p,), out: where the copy is.

        Returns:
            The copy, which must be kept until the sample is loaded.

        Raises:
            FormatError: the rows are not what was written, or what was located.
            OSError: they cannot be read.
        """
        tables = self._tables
        spec = self._spec
        located = tables.samples[k]
        out = {}
        if spec.chosen.images and self._image.how == AS_STORED:  # pixels are read to their place
            out["image"] = self._places.regions["images"].view(buffer)[k : k + 1]
        copy = shard.copy_sample(location_of(located), out, direct)
        samples = tables.samples[k : k + 1].copy()
        samples["array_row"] = 0
        samples["first_mask"] = 0
        samples["stop_mask"] = copy.lengths.masks
        canvases = None
        if spec.chosen.images:
            canvases = canvases_of([self._ordered], count=1)
        fits, copied = self._look_up.find(
            samples,
            [copy],
            shard_at=np.zeros(1, np.int64),
            epoch=self._ordered.epoch,
            choice=self._choice,
            canvases=canvases,
        )
        kept_begin = int(located["kept_begin"])
        masks = tables.masks[kept_begin : int(located["kept_end"])]
        kept_count = len(copied.masks)
        if not (
            fits.all()
            and np.array_equal(samples["size"][0], located["size"])
            and samples["image_bytes"][0] == located["image_bytes"]
            and np.array_equal(copied.masks["row"], masks["row"] - located["first_mask"])
            and np.array_equal(span_lengths(copied.masks), span_lengths(masks))
            and _same_feature_rows(tables, copied, k, kept_begin)
        ):
            raise FormatError(
                f"{kept_count} of its {copy.lengths.masks} masks are kept, where {len(masks)} "
                f"were to be by what was read before, or its size or offsets differ; {REPAIR}"
            )
        samples["kept_begin"] += kept_begin
        samples["kept_end"] += kept_begin
        tables.samples[k] = samples[0]
        masks[:] = copied.masks
        tables.numbers[k] = copied.numbers[0]
        for spans, of_copy, _, _ in _feature_rows(tables, copied, k, kept_begin):
            spans["begin"] = of_copy["begin"]
            spans["end"] = of_copy["end"]
        files[:] = file_table(copy, spec.refs)
        files["descriptor"] = IN_MEMORY
        return copy


def _feature_rows(
    tables: SampleTables, copied: SampleTables, k: int, kept_begin: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Spans and flags of sample k, and of its masks, in a batch's tables and in those of a copy.

    Yields (spans, spans of the copy, flags, flags of the copy).
    """
    masks = slice(kept_begin, kept_begin + len(copied.masks))
    sample = slice(k, k + 1)
    yield (
        tables.sample_spans[sample],
        copied.sample_spans,
        tables.sample_present[sample],
        copied.sample_present,
    )
    yield (
        tables.mask_spans[masks],
        copied.mask_spans,
        tables.mask_present[masks],
        copied.mask_present,
    )


def _same_feature_rows(tables: SampleTables, copied: SampleTables, k: int, kept_begin: int) -> bool:
    """True if the ragged rows of a copy are as long, and its missing rows those, of sample k."""
    for spans, of_copy, present, present_in_copy in _feature_rows(tables, copied, k, kept_begin):
        if not np.array_equal(span_lengths(spans), span_lengths(of_copy)):
            return False
        if not np.array_equal(present, present_in_copy):
            return False
    return True


def span_lengths(spans: np.ndarray) -> np.ndarray:
    """int64 (m,): how many rows each MASK has in mask_bits, or in run_ends; or items each SPAN."""
    lengths: np.ndarray = spans["end"] - spans["begin"]
    return lengths
