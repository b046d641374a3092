"""The copy of one batch: where its samples are, and copying any part of them into a buffer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sa1bpack.batch.copy_samples import NO_FILE, copy_spans
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.spec import COPIED_FIELDS, FIELD_TABLE, BatchSpec
from sa1bpack.batch.unpack import unpack_into
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_shard import OpenShard
from sa1bpack.dataset.present import Present
from sa1bpack.dataset.sample import read_error
from sa1bpack.disk.aio import CUT_SHORT
from sa1bpack.errors import FormatError, MaskError, ReadError, ResourceShortage
from sa1bpack.format.array_reader import missing
from sa1bpack.format.checked_rows import REPAIR
from sa1bpack.loading.sample_reader import SampleReader
from sa1bpack.loading.shard_files import ShardFiles, shard_files, side_files
from sa1bpack.masks import check_image_runs

_RUN_BYTES = 4

# Samples whose files a thread holds open at once, however many shards they come from.
OPEN_SAMPLES = 8


def without_frames(error: Exception) -> Exception:
    """The error without its traceback and those of its causes: their frames would keep buffers."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


@dataclass(frozen=True)
class BatchSource:
    """A dataset, and how its batches are made.

    spec      their layout in a buffer
    choice    which masks are kept
    capacity  masks per sample in padded arrays; None: the mask count of a batch's fullest sample
    """

    ds: Dataset
    spec: BatchSpec
    choice: MaskChoice
    capacity: int | None

    def error(self, index: int, number: int, local: int, cause: Exception) -> ReadError:
        """The error of a sample: its index in the dataset, shard, row in the shard, and cause."""
        row = int(self.ds.rows_at(index))
        error = read_error(self.ds.pack, row, number, int(local), cause)
        error.__cause__ = cause
        return error


class SideLookup(NamedTuple):
    """Where the rows of the samples in k side arrays are; changed by reading, see `read_sides`."""

    addresses: np.ndarray  # int64 (n, k)
    files: np.ndarray  # int64 (n, k)
    direct: np.ndarray  # int64 (n, 2 k)

    @classmethod
    def of(cls, shards: list[OpenShard], count: int) -> "SideLookup":
        """Of samples in these shards, with no file open yet."""
        addresses = [
            [part.values.__array_interface__["data"][0] for part in shard.sides] if count else []
            for shard in shards
        ]
        return cls(
            np.array(addresses, np.int64).reshape(len(shards), count),
            np.full((len(shards), count), NO_FILE), np.full((len(shards), 2 * count), NO_FILE),
        )  # fmt: skip


class Lookup(NamedTuple):
    """Where the samples of one or more batches are: n samples, T kept masks."""

    indices: np.ndarray  # int64 (n,), in the dataset
    rows: np.ndarray  # int64 (n,), in the pack
    ids: np.ndarray  # int64 (n,), image ids
    shard_numbers: np.ndarray  # int64 (n,)
    local: np.ndarray  # int64 (n,), rows in the shards
    shards: list[OpenShard]  # n
    counts: np.ndarray  # int64 (n,), kept masks
    offsets: np.ndarray  # int64 (n + 1,), into mask_rows
    mask_rows: np.ndarray  # int64 (T,), in the shards
    mask_spans: np.ndarray  # int64 (T, 2), rows of each mask in the array that masks come from:
    #                         of mask_bits, or of run_ends; -1 if its runs are out of order
    sizes: np.ndarray  # int32 (n, 4)
    scales: np.ndarray  # float64 (n, 2): x, y
    addresses: np.ndarray  # int64 (n, arrays of the spec); the first two are changed by reading
    files: np.ndarray  # int64 (n, 2), descriptors while they are open, see copy_samples
    direct: np.ndarray  # int64 (n, 3), of the same files, see read_samples
    spans: np.ndarray  # int64 (n, 2), first byte and number of bytes of the image
    epoch: int
    sides: SideLookup


class BatchCopy:
    """One batch to be copied: samples `low` to `high` of a lookup.

    `regions` and `nbytes` describe where its arrays go in the buffer.
    """

    def __init__(self, source: BatchSource, lookup: Lookup, low: int, high: int):
        self._source, self._lookup, self._low, self._high = source, lookup, low, high
        self._spec = source.spec
        self._first_mask = int(lookup.offsets[low])
        self.total = int(lookup.offsets[high]) - self._first_mask
        counts = lookup.counts[low:high]
        self.most = int(counts.max(initial=0))  # masks of the fullest sample
        self.capacity = self.most if source.capacity is None else source.capacity
        # int64 (T + 1,): where the runs of each mask begin in those of all masks, joined.
        self.run_offset = np.zeros(self.total + 1, np.int64)
        if source.spec.masks.source != "bits":
            kept = lookup.mask_spans[self._first_mask : self._first_mask + self.total]
            np.cumsum(kept[:, 1] - kept[:, 0], out=self.run_offset[1:])
        self.regions, self.nbytes = self._spec.regions(
            high - low, self.capacity, self.total, int(self.run_offset[-1])
        )
        self._status = np.zeros((high - low, 2), np.int64)
        sides = self._spec.sides
        self._side_status = np.zeros((high - low, len(sides)), np.int64)
        self._sides = np.array(
            [
                (self.regions[side.name].start, side.row_bytes, side.axis == "mask")
                for side in sides
            ],
            np.int64,
        ).reshape(-1, 3)
        self._failed: dict[int, Exception] = {}
        self._fields = FIELD_TABLE.copy()
        self._fields[:, 0] = [self.regions[field.batch].start for field in COPIED_FIELDS]

    def __len__(self) -> int:
        return self._high - self._low

    @property
    def indices(self) -> np.ndarray:
        """int64 (B,): the samples, in the dataset."""
        return self._lookup.indices[self._low : self._high]

    def name(self) -> str:
        """The samples, for messages."""
        ids = self._lookup.ids[self._low : self._high].tolist()
        return f"samples with the image ids {ids[:8]}{' and more' if len(ids) > 8 else ''}"

    def write_heads(self, buffer: np.ndarray) -> None:
        """Write the arrays with one row per sample, and the offsets."""
        low, high, found = self._low, self._high, self._lookup
        counts = found.counts[low:high]
        offsets = found.offsets[low : high + 1] - self._first_mask
        heads = {
            "mask_counts": counts,
            "image_ids": found.ids[low:high],
            "sizes": found.sizes[low:high],
            "indices": found.rows[low:high],
            "mask_offsets": offsets,
            "run_offset": self.run_offset,
        }
        if "mask_positions" in self.regions:
            shift = np.arange(len(self)) * self.capacity - offsets[:-1]
            heads["mask_positions"] = np.arange(self.total) + np.repeat(shift, counts)
        for key in heads.keys() & self.regions.keys():
            self.regions[key].view(buffer)[...] = heads[key]

    # ------------------------------------------------------------------------------------ the copy

    def copy(self, first: int, stop: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Copy samples `first` to `stop` of the batch into the buffer.

        reader  of this thread

        Raises ResourceShortage if no more files can be opened, StoreError if a sample cannot be
        fetched. Errors of single samples are collected in `errors`.
        """
        for start in range(first, stop, OPEN_SAMPLES):
            end = min(start + OPEN_SAMPLES, stop)
            with self._present(start, end):
                held = self._open_files(start, end, reader.direct)
                self._copy_part(start, end, buffer, reader)
                if self._spec.masks.source != "bits":
                    for k in range(start, end):
                        self._try_runs(k, self._lookup.sizes[self._low + k], buffer)
                del held  # the descriptors in the lookup are not used again

    @contextmanager
    def _present(self, first: int, stop: int) -> Iterator[None]:
        """These samples are present within it; errors of those that cannot be are collected."""
        if not self._source.ds.pack.reads_through_cache:
            yield
            return
        found, at = self._lookup, range(self._low + first, self._low + stop)
        with Present(((found.shards[n], int(found.local[n])) for n in at), count=False) as present:
            yield
        for k, error in present.errors.items():  # after errors of reading what is not there
            self._failed[first + k] = error

    def compile(self) -> None:
        """Compile the kernels of a copy, or load them: with no samples, and a mask of one pixel."""
        reader = SampleReader(direct=False)
        self._copy_part(0, 0, np.empty(self.nbytes, np.uint8), reader)
        if self._spec.masks.source != "bits":
            ends, offset, nothing = np.array([1], np.int32), np.array([0, 1]), np.empty(0, np.int64)
            copy_spans(ends, 0, NO_FILE, nothing, nothing)
            check_image_runs(ends, offset, 1)
            if self._spec.masks.source == "drawn":
                bits = self._spec.masks.draw(ends, offset, np.ones(4, np.int32))
                unpack_into(bits, np.empty((*bits.shape[:2], 8 * bits.shape[2]), np.bool_))

    def _copy_part(self, first: int, stop: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Copy all of these samples, whose files are open, but masks that come from runs."""
        assert len(buffer) >= self.nbytes, (len(buffer), self.nbytes)
        found = self._lookup
        reader.load(
            self._low, first, stop, buffer, found.addresses, found.files, found.direct,
            found.spans, found.mask_rows, found.mask_spans, found.offsets, *self._capacities,
            found.sizes, found.scales, *self._placement(),
        )  # fmt: skip
        if self._spec.sides:
            sides = found.sides
            reader.load_sides(
                self._low, first, stop, buffer, sides.addresses, sides.files, sides.direct,
                found.local, found.mask_rows, found.offsets, self._capacities[0], self._sides,
                self._side_status,
            )  # fmt: skip

    @property
    def _capacities(self) -> tuple[int, int]:
        """Rows per sample in the arrays of the fields, and in that of the masks; -1: flat."""
        spec = self._spec
        return (
            self.capacity if spec.layout.padded else -1, self.capacity if spec.pads_masks else -1
        )  # fmt: skip

    def _placement(self, with_images: bool = True) -> tuple:
        """Where and how images and masks are put: the last arguments of `copy_samples`."""
        spec, images = self._spec, self.regions["images"]
        bits = spec.masks.source == "bits"
        return (
            spec.image.how, spec.shards.image_size, spec.stored_side, images.start,
            prod(images.shape[1:]) if with_images else 0,
            self.regions["masks"].start if bits else -1, spec.mask_bytes if bits else _RUN_BYTES,
            spec.as_bool, self._fields, self._status,
        )  # fmt: skip

    def _open_files(self, first: int, stop: int, direct: bool) -> list[ShardFiles]:
        """Enter the files of samples into the lookup; they stay open as long as the list lives."""
        found, held = self._lookup, []
        for k in range(first, stop):
            at = self._low + k
            try:
                held.append(shard_files(found.shards[at], self._spec.arrays[:2], direct))
                found.files[at] = held[-1].descriptors
                found.direct[at] = *held[-1].direct, held[-1].tells[0]
                if self._spec.sides:
                    held.append(side_files(found.shards[at], direct))
                    found.sides.files[at] = held[-1].descriptors
                    found.sides.direct[at] = *held[-1].direct, *held[-1].tells
            except ResourceShortage:
                raise
            except (FileNotFoundError, NotADirectoryError) as error:
                self._failed[k] = missing(Path(error.filename))
            except OSError as error:
                self._failed[k] = without_frames(error)
        return held

    def _try_runs(self, k: int, size: np.ndarray, buffer: np.ndarray) -> None:
        """Put the masks of sample k that come from runs into the buffer; keep its error, if any."""
        if self._status[k, 1]:
            return
        try:
            if self._spec.masks.source == "runs":
                first, stop = self._mask_range(k)
                begin, end = self.run_offset[[first, stop]].tolist()
                ends = self.regions["run_ends"].view(buffer)[begin:end]
                self._read_runs(k, ends)
                if self._status[k, 1] == 0:
                    offset = self.run_offset[first : stop + 1] - begin
                    check_image_runs(ends, offset, int(size[0]) * int(size[1]))
            else:
                self._draw(k, size, buffer)
        except (FormatError, MaskError, OSError) as error:
            self._failed[k] = without_frames(error)

    def _mask_range(self, k: int) -> tuple[int, int]:
        """The masks of sample k, as a range of the masks of the batch."""
        first, stop = self._lookup.offsets[self._low + k : self._low + k + 2].tolist()
        return first - self._first_mask, stop - self._first_mask

    def _read_runs(self, k: int, out: np.ndarray) -> None:
        """Copy the run ends of the masks of sample k, int32 (r,), one mask after the other.

        A file that cannot be read is recorded in the status. Raises FormatError for runs that lie
        outside the shard.
        """
        found, at = self._lookup, self._low + k
        first, stop = self._mask_range(k)
        spans = found.mask_spans[self._first_mask + first : self._first_mask + stop]
        starts, stops = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
        if starts.min(initial=0) < 0:
            shard = found.shards[at]
            raise FormatError(
                f"{shard.path('run_offset')}: runs of sample {found.local[at]} are not within 0 "
                f"and {shard.shard.extent.runs}; {REPAIR}"
            )
        self._status[k, 1] = copy_spans(
            out, found.addresses[at, 1], found.files[at, 1], starts, stops
        )

    def _draw(self, k: int, size: np.ndarray, buffer: np.ndarray) -> None:
        """Draw the masks of sample k into the buffer."""
        first, stop = self._mask_range(k)
        offset = self.run_offset[first : stop + 1] - self.run_offset[first]
        ends = np.empty(int(offset[-1]), np.int32)
        self._read_runs(k, ends)
        if self._status[k, 1] == 0:
            self._draw_runs(k, ends, offset, size, buffer)

    def _draw_runs(self, k: int, ends, offset, size: np.ndarray, buffer: np.ndarray) -> None:
        """Draw these runs of the masks of sample k into the buffer; see MaskSpec.draw."""
        spec = self._spec
        first, stop = self._mask_range(k)
        masks = self.regions["masks"].view(buffer)
        if spec.pads_masks:
            masks[k, stop - first :] = 0
            masks = masks[k, : stop - first]
        else:
            masks = masks[first:stop]
        bits = spec.masks.draw(ends, offset, size, None if spec.as_bool else masks)
        if spec.as_bool:
            unpack_into(bits, masks)

    # -------------------------------------------------------------------------------------- errors

    def errors(self) -> list[tuple[int, ReadError]]:
        """(position in the batch, error) of every sample that could not be copied."""
        wrong = self._status.any(axis=1) | self._side_status.any(axis=1)
        causes = {k: self._cause(k) for k in np.flatnonzero(wrong).tolist()}
        causes |= self._failed
        found, errors = self._lookup, []
        for k in sorted(causes):
            at = self._low + k
            where = (found.indices[at], int(found.shard_numbers[at]), found.local[at])
            errors.append((k, self._source.error(*where, causes[k])))
        return errors

    def _cause(self, k: int) -> Exception:
        """Why sample k was not copied, by its status."""
        shard = self._lookup.shards[self._low + k]
        if self._status[k].any():
            which = int(np.flatnonzero(self._status[k])[0])
            code, path = int(self._status[k, which]), shard.path(self._spec.arrays[which])
        else:
            which = int(np.flatnonzero(self._side_status[k])[0])
            code, path = int(self._side_status[k, which]), shard.sides[which].path
        if code != CUT_SHORT:
            return OSError(code, os.strerror(code), path)
        return FormatError(
            f"{path}: ends before this sample, but was complete when it was opened. Restore the "
            "file from a copy, or run `sa1bpack repair` on the pack"
        )
