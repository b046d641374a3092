"""The copy of one batch: where its samples are, and copying any part of them into a buffer.

Small batches are joined: several, one after another, are located and copied as one, and handed over
together.

What samples are loaded from, `batch_sources` opens: their files, copies that were compared with
their checksums, or what was fetched.
"""

import os
from typing import Any

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.sample import read_error
from sa1bpack.dataset.shard_cache import shortage
from sa1bpack.dataset.shards import Location
from sa1bpack.disk.aio import CUT_SHORT
from sa1bpack.errors import FormatError, ReadError
from sa1bpack.format.files import is_shortage
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.format.side.manifest import REMAKE
from sa1bpack.loading.batch.drawn_masks import SampleRuns, damaged_runs, draw_masks
from sa1bpack.loading.batch.feature_arrays import BatchFeature, mask_positions
from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.loading.batch.spec import BatchCounts, BatchPlaces
from sa1bpack.loading.batch.tables import BAD_SPANS, Destination, Sources, span_lengths
from sa1bpack.loading.batch_sources import BatchSources, without_frames
from sa1bpack.loading.located_samples import LocatedSamples
from sa1bpack.loading.row_prefetcher import RowPrefetcher
from sa1bpack.loading.sample_reader import SampleReader
from sa1bpack.loading.stats import Read
from sa1bpack.masks.arrays import check_image_runs

_ALL_ROWS = slice(None)


def sample_error(pack: Pack, sample: np.void, cause: Exception) -> ReadError:
    """The error of a SAMPLE that cannot be read."""
    error = read_error(pack, Location.of(sample), cause)
    error.__cause__ = without_frames(cause)
    return error


class LocatedBatch:
    """One batch to be copied.

    Attributes:
        ordered: which batch it is, with the samples that could be located.
        total: number of masks.
        most: masks of the fullest sample.
        capacity: masks per sample in padded arrays.
        run_offset: int64 (T + 1,), where the runs of each mask begin in those of all masks, joined.
        places: where the arrays go in the buffer.
        prepared: what a device has made of the small arrays before the rest is there.
    """

    def __init__(self, ds: Dataset, located: LocatedSamples):
        self._ds = ds
        self._samples = located
        self._spec = located.spec
        self.ordered = located.ordered
        self._tables = located.tables
        spec = located.spec
        tables = located.tables
        samples = tables.samples
        self._counts = samples["kept_end"] - samples["kept_begin"]
        self.total = len(tables.masks)
        self.most = int(self._counts.max(initial=0))
        self.capacity = self.most
        if located.choice.pads and located.choice.max_masks:
            self.capacity = located.choice.max_masks
        self.run_offset = np.zeros(self.total + 1, np.int64)
        if spec.reads_runs:
            np.cumsum(span_lengths(tables.masks), out=self.run_offset[1:])
        self._image = spec.image_of(self.ordered.sample_class)
        self._texts: dict[str, list[str]] = {}
        self._lengths: dict[str, np.ndarray] = {}  # of features with ragged rows
        self.places = self._placed()
        nbytes_each = self.nbytes // max(len(self), 1)
        checks = ds.options.verify_checksums
        self._sources = BatchSources(located, self.places, self._image, nbytes_each, checks)
        self._small: np.ndarray | None = None
        self.prepared: Any = None
        self._failed: dict[int, Exception] = {}  # that have something to be loaded from

    def _placed(self) -> BatchPlaces:
        """The places of the arrays; items of ragged rows, and texts, are given theirs."""
        tables = self._tables
        layout = self._spec.row_layout(len(self), self.capacity, self.total)
        items = []
        for feature in self._spec.ragged:
            lengths = feature.lengths(tables)
            self._lengths[feature.spec.name] = lengths
            items.append(feature.place(tables, lengths, layout))
            if feature.spec.text:
                self._texts[feature.spec.name] = [""] * len(lengths)
        counts = BatchCounts(
            samples=len(self),
            capacity=self.capacity,
            total=self.total,
            runs=int(self.run_offset[-1]),
            image=self._image,
            items=tuple(items),
        )
        return self._spec.places(counts)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def is_one(self) -> bool:
        """True unless several batches were joined to this one."""
        return not self.ordered.parts

    def spans(self) -> list[tuple[int, int]]:
        """First sample and one past the last of the batches that this is, if they have samples."""
        return [(begin, end) for _, begin, end in self.ordered.spans() if begin < end]

    def parts(self) -> list[slice]:
        """The rows of each of the batches that this is, if they have samples; all of one alone."""
        if self.is_one:
            return [_ALL_ROWS]
        return [slice(begin, end) for begin, end in self.spans()]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer that the batch takes."""
        return self.places.nbytes

    def texts(self, feature: BatchFeature) -> list[Any]:
        """The rows of a feature of text, once all samples are copied.

        A string per sample or mask; per mask of padded layouts, a list per sample.
        """
        texts = self._texts[feature.spec.name]
        if not (feature.per_mask and feature.padded):
            return texts
        samples = self._tables.samples
        edges = zip(samples["kept_begin"].tolist(), samples["kept_end"].tolist(), strict=True)
        return [texts[begin:end] for begin, end in edges]

    def name(self) -> str:
        """The samples, for messages."""
        ids = self._tables.samples["image_id"].tolist()
        more = ""
        if len(ids) > 8:
            more = " and more"
        return f"samples with the image ids {ids[:8]}{more}"

    def begin_small(self, memory: np.ndarray) -> None:
        """Have the small arrays in memory of their own, uint8 (m,), not in the buffer.

        Those with one row per sample, and the offsets, are written at once.
        """
        self._small = memory
        self._begin_small_arrays(memory)

    def begin(self, buffer: np.ndarray) -> None:
        """Begin to fill a buffer, uint8 (n,) of at least `nbytes`."""
        assert len(buffer) >= self.nbytes, (len(buffer), self.nbytes)
        spec = self._spec
        places = self.places
        if self._small is None:
            self.begin_small(buffer[places.small_bytes])
        assert self._small is not None
        run_ends = np.empty(0, np.int32)
        if spec.mask_source == "runs":
            run_ends = places.regions["run_ends"].view(buffer)
        stored = spec.pack_layout
        canvas_height, canvas_width = self._image.canvas
        self._dest = Destination(
            buffer=buffer,
            small=self._small,
            how=self._image.how,
            canvas_height=canvas_height,
            canvas_width=canvas_width,
            stored_side=0 if stored.flat else stored.image_size,
            arrays=places.targets,
            numbers=places.numbers,
            capacity=self.capacity if spec.mask_layout.padded else -1,
            run_ends=run_ends,
            run_offset=np.zeros(1, np.int64),
            status=np.zeros((len(self), len(places.targets)), np.int64),
        )

    def _begin_small_arrays(self, memory: np.ndarray) -> None:
        """Write the arrays with one row per sample, and the offsets, to uint8 (m,)."""
        samples = self._tables.samples
        regions = self.places.regions
        arrays = {
            "image_ids": samples["image_id"],
            "sizes": samples["size"],
            "indices": samples["row"],
            "repetitions": samples["repetition"],
            "repeated": self.ordered.repeated,
            "mask_counts": self._counts,
            "run_offset": self.run_offset,
        }
        if "mask_offsets" in regions:
            arrays["mask_offsets"] = np.append(samples["kept_begin"], self.total)
        if "mask_positions" in regions:
            arrays["mask_positions"] = mask_positions(self._tables, self.capacity)
        for feature in self._spec.batch_features:
            if feature.has_small_arrays:
                lengths = self._lengths.get(feature.spec.name)
                arrays |= feature.small_arrays(self._tables, lengths, self.places.layout)
        for key, array in arrays.items():
            if key in regions:
                regions[key].view(memory)[...] = array

    # ------------------------------------------------------------------------------------ the copy

    def copy(
        self, first: int, stop: int, reader: SampleReader, prefetcher: RowPrefetcher | None = None
    ) -> list[Read]:
        """Copy samples `first` to `stop` of the batch into the buffer that it was begun in.

        Errors of single samples are collected in `errors`.

        Args:
            reader: reader of this thread.
            prefetcher: what was asked for of samples that are not on this machine.

        Returns:
            What was read for that, in order.

        Raises:
            ResourceShortage: no more files can be opened.
        """
        reads = []
        buffer = self._dest.buffer
        for opened in self._sources.open(first, stop, buffer, reader.direct, prefetcher):
            reads.append(self._load(opened.first, opened.stop, reader, opened.sources))
        return reads

    def compile(self) -> None:
        """Compile the kernels of a copy, or load them: with no samples, and a mask of one pixel."""
        self.begin(np.empty(self.nbytes, np.uint8))
        self._load(0, 0, SampleReader(direct=False), self._sources.none().sources)
        masks = self._spec.masks
        if not self._spec.reads_runs:
            return
        ends = np.array([1], np.int32)
        offset = np.array([0, 1])
        check_image_runs(ends, offset, 1)
        if masks.source == "drawn":
            bits = masks.draw(ends, offset, np.ones(4))
            unpack_into(bits, np.empty((1, masks.size, masks.size), np.bool_), np.arange(1))

    def _load(self, first: int, stop: int, reader: SampleReader, sources: Sources) -> Read:
        """Load these samples, whose files are open, and keep the error of each, if any.

        The runs of each are checked, or its masks are drawn from them; texts become strings.
        """
        read = self._load_arrays(first, stop, reader, sources)
        for feature in self._spec.batch_features:
            if feature.spec.text:
                self._decode(feature, first, stop)
        return read

    def _decode(self, feature: BatchFeature, first: int, stop: int) -> None:
        """Make strings of the texts of these samples, which are in the buffer."""
        begin = first
        end = stop
        if feature.per_mask:
            samples = self._tables.samples
            begin = int(samples["kept_begin"][first]) if first < stop else 0
            end = int(samples["kept_end"][stop - 1]) if first < stop else 0
        region = self.places.regions[feature.spec.name]
        stored: Any = region.view(self._dest.buffer)
        data = memoryview(stored)
        texts = self._texts[feature.spec.name]
        starts = feature.spans(self._tables)["out"][begin:end].tolist()
        lengths = self._lengths[feature.spec.name][begin:end].tolist()
        row = begin
        for start, length in zip(starts, lengths, strict=True):
            try:
                texts[row] = str(data[start : start + length], "utf-8")
            except UnicodeDecodeError as error:
                k = self._owner(feature, row)
                if not self._dest.status[k].any():  # else it was not read
                    path = self._samples.shard(k).features[feature.number].path
                    self._failed[k] = FormatError(f"{path}: text is not UTF-8 ({error})")
            row += 1

    def _owner(self, feature: BatchFeature, row: int) -> int:
        """The sample that has a row of a feature."""
        if not feature.per_mask:
            return row
        return int(np.searchsorted(self._tables.samples["kept_end"], row, side="right"))

    def _load_arrays(self, first: int, stop: int, reader: SampleReader, sources: Sources) -> Read:
        """`_load` but for texts."""
        draws = self._spec.mask_source == "drawn"
        dest = self._dest
        if not self._spec.reads_runs:
            return reader.load(self._tables, sources, dest, first, stop)
        samples = self._tables.samples[first:stop]
        first_kept = 0
        end_kept = 0
        if len(samples):
            first_kept = int(samples["kept_begin"][0])
            end_kept = int(samples["kept_end"][-1])
        dest = dest._replace(run_offset=self.run_offset[first_kept : end_kept + 1])
        if draws:
            offset = dest.run_offset - dest.run_offset[0]
            dest = dest._replace(run_ends=np.empty(offset[-1], np.int32), run_offset=offset)
        read = reader.load(self._tables, sources, dest, first, stop)
        runs = SampleRuns.of(samples, dest.run_ends, dest.run_offset)
        is_read = dest.status[first:stop, self._spec.masks_at] == 0
        for k, error in damaged_runs(runs, is_read, draws).items():
            self._failed[first + k] = without_frames(error)
            is_read[k] = False
        if draws:
            self._draw(runs, first, np.flatnonzero(is_read))
        return read

    def _draw(self, runs: SampleRuns, first: int, numbers: np.ndarray) -> None:
        """Draw masks into the buffer.

        Args:
            runs: the runs of samples from `first` on.
            numbers: int64 (q,), those of these samples that are drawn.
        """
        masks = self.places.regions["masks"].view(self._dest.buffer)
        rows = self._tables.samples["kept_begin"][first + numbers]
        if self._spec.pads_masks:
            rows = (first + numbers) * self.capacity
            for k in (first + numbers).tolist():
                masks[k, self._counts[k] :] = 0
        draw_masks(self._spec.masks, runs, numbers, rows, masks.reshape(-1, *masks.shape[-2:]))

    # -------------------------------------------------------------------------------------- errors

    def errors(self) -> list[tuple[int, ReadError]]:
        """(position in the batch, error) of every sample that could not be copied.

        Raises ResourceShortage if the system had no memory for a read.
        """
        status = self._dest.status
        failed = self._failed | self._sources.errors
        if not (failed or np.count_nonzero(status)):
            return []
        causes = {k: self._cause(k, status[k]) for k in np.flatnonzero(status.any(1)).tolist()}
        causes |= failed
        pack = self._ds.pack
        return [(k, sample_error(pack, self._tables.samples[k], causes[k])) for k in sorted(causes)]

    def _cause(self, k: int, status: np.ndarray) -> Exception:
        """The reason why sample k was not copied, by its status."""
        shard = self._samples.shard(k)
        array = int(np.flatnonzero(status)[0])
        code = int(status[array])
        feature = self._spec.refs[array].feature
        if code == BAD_SPANS and feature >= 0:
            folder = shard.features[feature].folder
            return FormatError(
                f"{folder / 'offset'}: offsets of the rows of sample "
                f"{self._tables.samples[k]['shard_row']} fall, or lead outside of the values; "
                f"{REMAKE}"
            )
        if code == BAD_SPANS and self._spec.refs[array].name != "run_ends":
            return FormatError(
                f"{shard.path_of(self._spec.refs[array])}: the small arrays of the shard have "
                f"changed while sample {self._tables.samples[k]['shard_row']} was read; {REPAIR}"
            )
        if code == BAD_SPANS:
            return FormatError(
                f"{shard.path('run_offset')}: runs of sample "
                f"{self._tables.samples[k]['shard_row']} are not within 0 and "
                f"{shard.lengths.runs}; {REPAIR}"
            )
        path = shard.path_of(self._spec.refs[array])
        if code != CUT_SHORT:
            error = OSError(code, os.strerror(code), path)
            if is_shortage(error):  # which is not the sample's fault
                raise shortage(error)
            return error
        return FormatError(
            f"{path}: ends before this sample, but was complete when it was opened. Restore the "
            "file from a copy, or run `sa1bpack repair` on the pack"
        )
