"""Copies of samples that are compared with their checksums, and loaded from.

A sample is read out of its files, its pixels straight into place in the buffer of its batch, and
compared with its checksum there, so that a file cannot change between the check and the use. The
copy, a shard of one sample, takes the place of its shard in `SampleTables`, once it agrees with
what was found by the maps.
"""

from collections.abc import Iterator

import numpy as np

from sa1bpack.dataset.sample_spec import AS_STORED, ImageSpec
from sa1bpack.dataset.shards import Location, ShardArrays, address_of
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.loading.batch.spec import BatchPlaces
from sa1bpack.loading.batch.tables import IN_MEMORY, SampleTables, span_lengths
from sa1bpack.loading.located_samples import LocatedSamples
from sa1bpack.loading.sample_reader import file_table

# Arrays of which a sample's rows are large.
_IMAGE_AND_BITS = ("image", "mask_bits")


class CheckedCopies:
    """The copies of the samples of one batch."""

    def __init__(self, located: LocatedSamples, places: BatchPlaces, image: ImageSpec):
        """
        Args:
            located: the samples: copies are entered in their tables.
            places: where the arrays go in the buffer.
            image: the canvas of the images.
        """
        self._located = located
        self._places = places
        self._image = image

    def read_ahead(self, k: int, direct: bool) -> None:
        """Let the system begin to read the rows of a sample and of its masks into the page cache.

        It goes through the maps, so that nothing is opened for it; what is read there is never
        looked at.

        Args:
            k: position of the sample in the batch.
            direct: leave out the large ones, which are not read through the page cache.
        """
        if not self._located.spec.chosen.of_shards:
            return
        shard = self._located.shard(k)
        location = Location.of(self._located.tables.samples[k])
        spans = {
            "sample": (location.shard_row, location.shard_row + 1),
            "mask": (location.first_mask, location.stop_mask),
        }
        for spec in shard.shard.layout.arrays:
            if spec.axis in spans and not (direct and spec.name in _IMAGE_AND_BITS):
                first, stop = spans[spec.axis]
                start = address_of(shard.shard[spec.name]) + first * spec.row_bytes
                read_ahead_map(start, (stop - first + spec.offsets) * spec.row_bytes)

    def enter(self, k: int, buffer: np.ndarray, direct: bool, files: np.ndarray) -> ShardArrays:
        """Copy all rows of a sample, compare them with what was located, and enter the copy.

        Args:
            k: position of the sample in the batch.
            buffer: uint8 (n,), the buffer of the batch.
            direct: read what is large past the page cache, where that is possible.
            files: FILE (p,), out: where the copy is.

        Returns:
            The copy, which must be kept until the sample is loaded.

        Raises:
            FormatError: the rows are not what was written, or what was located.
            OSError: they cannot be read.
        """
        located = self._located
        tables = located.tables
        spec = located.spec
        sample = tables.samples[k]
        out = {}
        if spec.chosen.images and self._image.how == AS_STORED:  # pixels are read to their place
            out["image"] = self._places.regions["images"].view(buffer)[k : k + 1]
        copy = located.shard(k).copy_sample(Location.of(sample), out, direct)
        samples = tables.samples[k : k + 1].copy()
        samples["array_row"] = 0
        samples["first_mask"] = 0
        samples["stop_mask"] = copy.lengths.masks
        canvases = None
        if spec.chosen.images:
            canvases = located.ordered.canvases(1)
        fits, copied = located.look_up.find(
            samples,
            [copy],
            shard_at=np.zeros(1, np.int64),
            epoch=located.ordered.epoch,
            choice=located.choice,
            canvases=canvases,
        )
        kept_begin = int(sample["kept_begin"])
        masks = tables.masks[kept_begin : int(sample["kept_end"])]
        kept_count = len(copied.masks)
        if not (
            fits.all()
            and np.array_equal(samples["size"][0], sample["size"])
            and samples["image_bytes"][0] == sample["image_bytes"]
            and np.array_equal(copied.masks["row"], masks["row"] - sample["first_mask"])
            and np.array_equal(span_lengths(copied.masks), span_lengths(masks))
            and _same_feature_rows(tables, copied, k, kept_begin)
        ):
            raise FormatError(
                f"{kept_count} of its {copy.lengths.masks} masks are kept, where {len(masks)} "
                f"were to be by what was read before, or its size or offsets differ; {REPAIR}"
            )
        samples["kept_begin"] += kept_begin
        samples["kept_end"] += kept_begin
        masks[:] = copied.masks
        _replace_rows(tables, copied, k, kept_begin)
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


def _replace_rows(tables: SampleTables, copied: SampleTables, k: int, kept_begin: int) -> None:
    """Have the places of sample k in a batch's tables, but for its masks, be those in a copy."""
    tables.samples[k] = copied.samples[0]
    tables.numbers[k] = copied.numbers[0]
    for spans, of_copy, _, _ in _feature_rows(tables, copied, k, kept_begin):
        spans["begin"] = of_copy["begin"]
        spans["end"] = of_copy["end"]


def _same_feature_rows(tables: SampleTables, copied: SampleTables, k: int, kept_begin: int) -> bool:
    """True if the ragged rows of a copy are as long, and its missing rows those, of sample k."""
    for spans, of_copy, present, present_in_copy in _feature_rows(tables, copied, k, kept_begin):
        if not np.array_equal(span_lengths(spans), span_lengths(of_copy)):
            return False
        if not np.array_equal(present, present_in_copy):
            return False
    return True
