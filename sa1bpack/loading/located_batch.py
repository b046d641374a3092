"""The copy of one batch: where its samples are, and copying any part of them into a buffer.

Small batches are joined: several, one after another, are located and copied as one, and handed over
together.

Samples are loaded out of their files, out of copies that were compared with their checksums (with
verify_checksums=True, see `checked_copies`), or out of what was fetched (see `arrived_samples`).
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.sample import read_error
from sa1bpack.dataset.shard_cache import shortage
from sa1bpack.dataset.shards import OpenShard, ShardArrays
from sa1bpack.disk.aio import CUT_SHORT
from sa1bpack.errors import FormatError, MaskError, ReadError, ResourceShortage
from sa1bpack.format.files import is_shortage, missing
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.format.side.manifest import REMAKE
from sa1bpack.loading.arrived_samples import enter_arrived
from sa1bpack.loading.batch.feature_arrays import BatchFeature, mask_positions
from sa1bpack.loading.batch.mask_choice import MaskChoice
from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.loading.batch.spec import BatchCounts, BatchPlaces, BatchSpec
from sa1bpack.loading.batch.tables import (
    BAD_SPANS,
    FILE,
    NO_FILE,
    Destination,
    SampleTables,
    Sources,
)
from sa1bpack.loading.checked_copies import CheckedCopies, location_of, span_lengths
from sa1bpack.loading.look_up import LookUp
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.loading.row_prefetcher import RowPrefetcher
from sa1bpack.loading.sample_reader import SampleReader, ShardFiles, open_files
from sa1bpack.loading.stats import Read
from sa1bpack.masks.arrays import check_image_runs

_Source = TypeVar("_Source", ShardFiles, ShardArrays, list[np.ndarray])

_ALL_ROWS = slice(None)

# Samples that a thread loads together: this many, and more of small ones, up to so many bytes.
OPEN_SAMPLES = 8
_BYTES_TOGETHER = 24 << 20
_MOST_TOGETHER = 4096

# Files that a thread holds open at once, if that is enough for OPEN_SAMPLES of as many shards.
_OPEN_FILES = 32


def without_frames(error: Exception) -> Exception:
    """The error without its traceback and those of its causes: their frames would keep buffers."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def sample_error(pack: Pack, sample: np.void, cause: Exception) -> ReadError:
    """The error of a SAMPLE that cannot be read."""
    error = read_error(pack, location_of(sample), cause)
    error.__cause__ = without_frames(cause)
    return error


class OpenedFiles:
    """The open files of a few shards, for the batches that are located together.

    Attributes:
        by_mode: read past the page cache, or through it → the files of all of the shards, and FILE
            (s, p), a row for each.
    """

    def __init__(self) -> None:
        self.by_mode: dict[bool, tuple[list[ShardFiles], np.ndarray]] = {}


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

    def __init__(
        self,
        *,
        ds: Dataset,
        spec: BatchSpec,
        ordered: OrderedBatch,
        look_up: LookUp,
        shards: list[OpenShard],
        shard_at: np.ndarray,
        opened: "OpenedFiles",
        tables: SampleTables,
        choice: MaskChoice,
    ):
        """
        Args:
            ds: dataset of the samples.
            spec: layout of batches in their buffers.
            ordered: which batch it is, with the samples that could be located.
            look_up: finds samples in the copies that are checked.
            shards: distinct shards, which batches that are located together share.
            shard_at: int64 (n,), which of them each sample is in.
            opened: the files of all of these, which such batches share as well.
            tables: where the arrays of the samples are.
            choice: which masks are kept.
        """
        self._ds = ds
        self._spec = spec
        self.ordered = ordered
        self._look_up = look_up
        self._shards = shards
        self._shard_at = shard_at
        self._opened_files = opened
        self._tables = tables
        self._choice = choice
        samples = tables.samples
        self._counts = samples["kept_end"] - samples["kept_begin"]
        self.total = len(tables.masks)
        self.most = int(self._counts.max(initial=0))
        self.capacity = self.most
        if choice.pads and choice.max_masks:
            self.capacity = choice.max_masks
        self.run_offset = np.zeros(self.total + 1, np.int64)
        if spec.reads_runs:
            np.cumsum(span_lengths(tables.masks), out=self.run_offset[1:])
        self._image = spec.image_of(ordered.sample_class)
        self._texts: dict[str, list[str]] = {}
        self._lengths: dict[str, np.ndarray] = {}  # of features with ragged rows
        self.places = self._placed()
        self._small: np.ndarray | None = None
        self.prepared: Any = None
        self._failed: dict[int, Exception] = {}

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
        return len(self._shard_at)

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

    def _shard(self, k: int) -> OpenShard:
        """The shard of sample k."""
        return self._shards[int(self._shard_at[k])]

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
        self, first: int, stop: int, reader: SampleReader, coming: RowPrefetcher | None = None
    ) -> list[Read]:
        """Copy samples `first` to `stop` of the batch into the buffer that it was begun in.

        Errors of single samples are collected in `errors`.

        Args:
            reader: reader of this thread.
            coming: what was asked for of samples that are not on this machine.

        Returns:
            What was read for that, in order.

        Raises:
            ResourceShortage: no more files can be opened.
        """
        reads = []
        for start, end, is_fetched in self._stretches(first, stop):
            if is_fetched:
                reads += self._copy_fetched(start, end, reader, coming)
            elif self._ds.options.verify_checksums:
                reads += self._copy_checked(start, end, reader)
            else:
                reads += self._copy_files(start, end, reader)
        return reads

    def _stretches(self, first: int, stop: int) -> Iterator[tuple[int, int, bool]]:
        """Samples `first` to `stop` in stretches: first, end, and whether something is fetched."""
        if not self._ds.pack.sources:
            yield first, stop, False
            return
        fetched = np.array([shard.is_fetched for shard in self._shards], bool)
        is_fetched = fetched[self._shard_at[first:stop]]
        edges = [0, *(np.flatnonzero(np.diff(is_fetched)) + 1).tolist(), stop - first]
        for start, end in pairwise(edges):
            if start < end:
                yield first + start, first + end, bool(is_fetched[start])

    def _copy_fetched(
        self, first: int, stop: int, reader: SampleReader, coming: RowPrefetcher | None
    ) -> list[Read]:
        """`copy`, of samples of which rows are fetched, and compared with their checksums.

        Rows are put where they go out of the memory that they arrived in.
        """
        reads: list[Read] = []
        start = first
        while start < stop:
            end = min(start + OPEN_SAMPLES, stop)
            arrived = []
            begin = time.monotonic()
            sources = self._no_files(start, end)
            for k in range(start, end):
                asked = None
                if coming is not None and coming.is_over:
                    return reads  # nobody gets the batch
                if coming is not None:
                    asked = coming.take(int(self._tables.samples["row"][k]))
                work = partial(
                    enter_arrived,
                    self._tables,
                    k,
                    self._shard(k),
                    self._spec,
                    asked,
                    reader.direct,
                    sources.files[k - start],
                )
                arrived.append((asked, self._opened(partial(list, [k]), work)))
            if coming is not None:
                coming.arrived(time.monotonic() - begin)
            reads.append(self._load(start, end, reader, sources))
            for asked, _ in arrived:
                if coming is not None and asked is not None:
                    coming.copied(asked)
            del arrived  # the rows, which the tables have the addresses of, are copied
            start = end
        return reads

    def _no_files(self, start: int, end: int) -> Sources:
        """Sources of these samples, a row for each, to be filled in."""
        files = np.zeros((end - start, len(self._spec.refs)), FILE)
        files["descriptor"] = NO_FILE
        return Sources(files, np.arange(len(self)) - start)

    def _copy_checked(self, first: int, stop: int, reader: SampleReader) -> list[Read]:
        """`copy`, of copies that are compared with their checksums."""
        copies = CheckedCopies(
            tables=self._tables,
            spec=self._spec,
            look_up=self._look_up,
            ordered=self.ordered,
            choice=self._choice,
            places=self.places,
            image=self._image,
        )
        reads = []
        for k in range(first, stop):
            copies.announce(k, self._shard(k), reader.direct)
        for k in range(first, stop):  # one at a time: it is in the processor's caches then
            sources = self._no_files(k, k + 1)
            work = partial(
                copies.enter,
                k,
                self._shard(k),
                self._dest.buffer,
                reader.direct,
                sources.files[0],
            )
            copied = self._opened(partial(list, [k]), work)
            if copied is not None:
                reads.append(self._load(k, k + 1, reader, sources))
        return reads

    def _copy_files(self, first: int, stop: int, reader: SampleReader) -> list[Read]:
        """`copy`, straight out of the files."""
        reads = []
        start = first
        while start < stop:
            end, files, sources = self._open_files(start, stop, reader.direct)
            if files:  # else nothing is there to load; a small array may have been truncated
                reads.append(self._load(start, end, reader, sources))
            del files, sources
            start = end
        return reads

    def _open_files(
        self, start: int, stop: int, direct: bool
    ) -> tuple[int, list[ShardFiles], Sources]:
        """Open the files of as many samples as are loaded together.

        Errors are kept.

        Args:
            start: the first of them.
            stop: one past the last that there is.
            direct: open the files past the page cache, if their file system can do that.

        Returns:
            One past the last of them; the files, which must be kept until these are loaded; and
            what of them compiled code needs, a row for each shard of the batch.

        Raises:
            ResourceShortage: no more files can be opened.
        """
        refs = self._spec.refs
        together = max(OPEN_SAMPLES, _BYTES_TOGETHER * len(self) // max(self.nbytes, 1))
        end = min(start + together, start + _MOST_TOGETHER, stop)
        most_shards = max(_OPEN_FILES // max(len(refs), 1), OPEN_SAMPLES)
        known = self._opened_files.by_mode.get(direct)
        if known is not None:
            opened, rows = known
            return end, opened, Sources(rows, self._shard_at)
        here = [number for number, shard in enumerate(self._shards) if not shard.is_fetched]
        numbers = here
        if len(here) > most_shards:
            numbers, end = self._first_shards(start, end, most_shards)
        rows = np.zeros((len(self._shards), len(refs)), FILE)
        rows["descriptor"] = NO_FILE
        opened = []
        for number in numbers:
            shard = self._shards[number]
            files = self._opened(
                partial(self._positions_in, number, start, end),
                partial(open_files, shard, refs, direct),
            )
            if files is not None:
                opened.append(files)
                rows[number] = files.table
        if len(opened) == len(here):
            self._opened_files.by_mode[direct] = opened, rows
        return end, opened, Sources(rows, self._shard_at)

    def _first_shards(self, start: int, end: int, most: int) -> tuple[list[int], int]:
        """The shards of samples `start` to `end`, or of the first of these that are in `most`.

        Returns their numbers, and one past the last of these samples.
        """
        shard_at = self._shard_at[start:end].tolist()
        numbers = list(dict.fromkeys(shard_at))
        if len(numbers) <= most:
            return numbers, end
        return numbers[:most], start + shard_at.index(numbers[most])

    def _positions_in(self, number: int, start: int, end: int) -> list[int]:
        """The positions of samples `start` to `end` that are in a shard, by its number here."""
        positions: list[int] = (
            start + np.flatnonzero(self._shard_at[start:end] == number)
        ).tolist()
        return positions

    def _opened(
        self, positions: Callable[[], Sequence[int]], work: Callable[[], _Source]
    ) -> _Source | None:
        """What samples at these positions are loaded from, by `work`; None, and its error is kept.

        Raises ResourceShortage.
        """
        failure: Exception
        try:
            return work()
        except ResourceShortage:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            failure = missing(Path(error.filename))
        except (FormatError, OSError) as error:
            failure = without_frames(error)
        for k in positions():
            self._failed[k] = failure
        return None

    def compile(self) -> None:
        """Compile the kernels of a copy, or load them: with no samples, and a mask of one pixel."""
        self.begin(np.empty(self.nbytes, np.uint8))
        self._load(0, 0, SampleReader(direct=False), self._no_files(0, 0))
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
                    path = self._shard(k).features[feature.number].path
                    self._failed[k] = FormatError(f"{path}: text is not UTF-8 ({error})")
            row += 1

    def _owner(self, feature: BatchFeature, row: int) -> int:
        """The sample that has a row of a feature."""
        if not feature.per_mask:
            return row
        return int(np.searchsorted(self._tables.samples["kept_end"], row, side="right"))

    def _load_arrays(self, first: int, stop: int, reader: SampleReader, sources: Sources) -> Read:
        """`_load` but for texts."""
        source = self._spec.mask_source
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
        if source == "drawn":
            offset = dest.run_offset - dest.run_offset[0]
            dest = dest._replace(run_ends=np.empty(offset[-1], np.int32), run_offset=offset)
        read = reader.load(self._tables, sources, dest, first, stop)
        masks_at = self._spec.masks_at
        for k in np.flatnonzero(dest.status[first:stop, masks_at] == 0) + first:
            sample = self._tables.samples[k]
            begin = sample["kept_begin"] - first_kept
            end = sample["kept_end"] - first_kept
            offset = dest.run_offset[begin : end + 1]
            ends = dest.run_ends[offset[0] : offset[-1]]
            offset = offset - offset[0]
            size = sample["size"]
            try:
                if source == "runs":
                    check_image_runs(ends, offset, int(size[0]) * int(size[1]))
                else:
                    self._draw(int(k), ends, offset, size)
            except MaskError as error:
                self._failed[int(k)] = without_frames(error)
        return read

    def _draw(self, k: int, ends: np.ndarray, offset: np.ndarray, size: np.ndarray) -> None:
        """Draw these runs of the masks of sample k into the buffer; see MaskSpec.draw."""
        spec = self._spec
        masks = self.places.regions["masks"].view(self._dest.buffer)
        count = len(offset) - 1
        if spec.pads_masks:
            masks[k, count:] = 0
            masks = masks[k, :count]
        else:
            begin = self._tables.samples[k]["kept_begin"]
            masks = masks[begin : begin + count]
        if spec.as_bool:
            bits = spec.masks.draw(ends, offset, size)
            unpack_into(bits, masks, np.arange(count))
        else:
            spec.masks.draw(ends, offset, size, out=masks)

    # -------------------------------------------------------------------------------------- errors

    def errors(self) -> list[tuple[int, ReadError]]:
        """(position in the batch, error) of every sample that could not be copied.

        Raises ResourceShortage if the system had no memory for a read.
        """
        status = self._dest.status
        if not (self._failed or np.count_nonzero(status)):
            return []
        causes = {k: self._cause(k, status[k]) for k in np.flatnonzero(status.any(1)).tolist()}
        causes |= self._failed
        pack = self._ds.pack
        return [(k, sample_error(pack, self._tables.samples[k], causes[k])) for k in sorted(causes)]

    def _cause(self, k: int, status: np.ndarray) -> Exception:
        """The reason why sample k was not copied, by its status."""
        shard = self._shard(k)
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
