"""The copy of one batch: where its samples are, and copying any part of them into a buffer.

With verify_checksums=True, a sample is first read out of its files, its pixels straight into place
in the buffer, and compared with its checksum there, so a file cannot change between the check and
the use. Only the index is read from a memory map, and each of its values is compared with the
sample's own rows.
"""

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.sample import AS_STORED, read_error
from sa1bpack.dataset.shards import OpenShard
from sa1bpack.disk.aio import CUT_SHORT
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError, MaskError, ReadError, ResourceShortage
from sa1bpack.format.files import missing
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.loading.batch.load_samples import (
    AS_IT_IS,
    BAD_SPANS,
    IMAGE,
    IN_MEMORY,
    IN_PLACE,
    MAP,
    MASKS,
    ON_CANVAS,
    OPEN,
    RUNS,
    UNPACKED,
    Place,
    Samples,
)
from sa1bpack.loading.batch.mask_choice import MaskChoice, MaskSchedule
from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.loading.batch.spec import COPIED_FIELDS, FIELD_TABLE, BatchSpec
from sa1bpack.loading.reading import OPEN_FILES, SampleReader, ShardFiles
from sa1bpack.masks import check_image_runs, passes

_RUN_BYTES = 4

# Arrays of which a sample's rows are large.
_LARGE = ("image", "mask_bits")
# Arrays that thresholds compare.
SCORES = ("area", "predicted_iou", "stability_score")

# Samples whose files a thread holds open at once, however many shards they come from.
OPEN_SAMPLES = 8


def address(array: np.ndarray) -> int:
    """Of its first byte, in this process."""
    return array.__array_interface__["data"][0]


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

    spec   their layout in a buffer
    masks  which masks are kept, at any time
    direct  what is not in the page cache is read past it
    """

    ds: Dataset
    spec: BatchSpec
    masks: MaskSchedule
    direct: bool = False

    @property
    def checked(self) -> bool:
        """Whether samples are compared with their checksums as they are copied."""
        return self.ds.options.verify_checksums

    def error(self, where: np.ndarray, cause: Exception) -> ReadError:
        """The error of a sample: int64 (8,), see PLACE, and its cause."""
        row, number, local = where[[ROW, NUMBER, LOCAL]].tolist()
        error = read_error(self.ds.pack, row, number, local, cause)
        error.__cause__ = cause
        return error


# Rows of the table of samples that are looked up: place among the indices that were given, index in
# the dataset, number of the shard, row in it, first mask and one past the last, row in the pack,
# image id.
PLACE, INDEX, NUMBER, LOCAL, FIRST, STOP, ROW, ID = range(8)


class Lookup(NamedTuple):
    """What was looked up of the samples of one or more batches: n samples."""

    where: np.ndarray  # int64 (8, n), see PLACE
    shards: list[OpenShard]  # n
    counts: np.ndarray  # int64 (n,), kept masks
    samples: Samples  # where they are; their files are entered while they are open
    epoch: int
    choice: MaskChoice  # of their masks


class BatchCopy:
    """One batch to be copied: samples `low` to `high` of a lookup.

    `regions` and `nbytes` describe where its arrays go in the buffer.
    """

    def __init__(self, source: BatchSource, lookup: Lookup, low: int, high: int):
        self._source, self._lookup, self._low, self._high = source, lookup, low, high
        self._spec, self._samples = source.spec, lookup.samples
        offsets = lookup.samples.offsets
        self._first_mask = int(offsets[low])
        self.total = int(offsets[high]) - self._first_mask
        counts = lookup.counts[low:high]
        self.most = int(counts.max(initial=0))  # masks of the fullest sample
        capacity = lookup.choice.capacity
        self.capacity = self.most if capacity is None else capacity  # of padded arrays
        # int64 (T + 1,): where the runs of each mask begin in those of all masks, joined.
        self.run_offset = self._run_offset(0, high - low)
        self.regions, self.nbytes = self._spec.regions(
            high - low, self.capacity, self.total, int(self.run_offset[-1])
        )
        self._arrays = self._array_table()
        self._status = np.zeros((high - low, len(self._arrays)), np.int64)
        self._failed: dict[int, Exception] = {}
        self._fields = FIELD_TABLE.copy()
        self._fields[:, 0] = [self.regions[field.batch].start for field in COPIED_FIELDS]

    def _array_table(self) -> np.ndarray:
        """int64 (p, 6): `Place.arrays`."""
        spec, regions = self._spec, self.regions
        rows = self.capacity if spec.layout.padded else -1
        images = regions["images"]
        canvas = prod(images.shape[1:])
        kind = AS_IT_IS if spec.image.how == AS_STORED else ON_CANVAS
        table = [(images.start, canvas, canvas, False, -1, kind)]
        if spec.masks.source == "bits":
            width, start = spec.mask_bytes, regions["masks"].start
            kind, out = (UNPACKED, 8 * width) if spec.as_bool else (AS_IT_IS, width)
            capacity = self.capacity if spec.pads_masks else -1
            table.append((start, width, out, True, capacity, kind))
        else:
            table.append((0, _RUN_BYTES, _RUN_BYTES, True, -1, RUNS))
        for feature in spec.features:
            start, width, per_mask = (
                regions[feature.name].start,
                feature.row_bytes,
                feature.axis == "mask",
            )
            table.append((start, width, width, per_mask, rows if per_mask else -1, AS_IT_IS))
        return np.array(table, np.int64)

    def __len__(self) -> int:
        return self._high - self._low

    @property
    def indices(self) -> np.ndarray:
        """int64 (B,): the samples, in the dataset."""
        return self._lookup.where[INDEX, self._low : self._high]

    def name(self) -> str:
        """The samples, for messages."""
        ids = self._lookup.where[ID, self._low : self._high].tolist()
        return f"samples with the image ids {ids[:8]}{' and more' if len(ids) > 8 else ''}"

    def write_heads(self, buffer: np.ndarray) -> None:
        """Write the arrays with one row per sample, and the offsets."""
        low, high, found = self._low, self._high, self._lookup
        counts = found.counts[low:high]
        offsets = found.samples.offsets[low : high + 1] - self._first_mask
        heads = {
            "mask_counts": counts,
            "image_ids": found.where[ID, low:high],
            "sizes": found.samples.sizes[low:high],
            "indices": found.where[ROW, low:high],
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

        Raises ResourceShortage if no more files can be opened. Errors of single samples
        are collected in `errors`.
        """
        if self._source.checked:
            for k in range(first, stop):
                self._announce(self._low + k, reader.direct)
            for k in range(first, stop):
                self._copy_checked(k, buffer, reader)
            return
        for start in range(first, stop, OPEN_SAMPLES):
            end = min(start + OPEN_SAMPLES, stop)
            held = self._open_files(start, end, reader.direct)
            self._load(start, end, buffer, reader)
            del held  # the descriptors in the lookup are not used again

    def compile(self) -> None:
        """Compile the kernels of a copy, or load them: with no samples, and a mask of one pixel."""
        self._load(0, 0, np.empty(self.nbytes, np.uint8), SampleReader(direct=False))
        if self._spec.masks.source != "bits":
            ends, offset = np.array([1], np.int32), np.array([0, 1])
            check_image_runs(ends, offset, 1)
            if self._spec.masks.source == "drawn":
                bits = self._spec.masks.draw(ends, offset, np.ones(4, np.int32))
                unpack_into(bits, np.empty((*bits.shape[:2], 8 * bits.shape[2]), np.bool_))

    def _load(self, first: int, stop: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Load these samples, whose files are open."""
        assert len(buffer) >= self.nbytes, (len(buffer), self.nbytes)
        spec, found = self._spec, self._samples
        low = self._low
        runs, masks = np.empty(0, np.int32), found.offsets[low + first : low + stop + 1]
        run_offset = np.zeros(1, np.int64)
        if spec.masks.source == "runs":
            runs = self.regions["run_ends"].view(buffer)
            run_offset = self.run_offset[masks[0] - self._first_mask :]
        elif spec.masks.source == "drawn":
            run_offset = self._run_offset(first, stop)
            runs = np.empty(int(run_offset[-1]), np.int32)
        place = Place(
            buffer,
            low,
            spec.image.how,
            spec.shards.image_size,
            spec.stored_side,
            self._arrays,
            self._fields,
            self.capacity if spec.layout.padded else -1,
            runs,
            run_offset,
            self._status,
        )
        reader.load(found, place, first, stop)
        if spec.masks.source == "bits":
            return
        masks = masks - masks[0]
        for k in range(first, stop):
            if not self._status[k, MASKS]:
                begin, end = masks[k - first], masks[k - first + 1]
                self._use_runs(k, runs, run_offset[begin : end + 1], buffer)

    def _run_offset(self, first: int, stop: int) -> np.ndarray:
        """int64 (m + 1,): where the runs of each mask of these samples begin in those of all of
        them, joined; zero where masks do not come from runs."""
        low, found = self._low, self._samples
        begin, end = found.offsets[[low + first, low + stop]].tolist()
        offset = np.zeros(end - begin + 1, np.int64)
        if self._spec.masks.source != "bits":
            spans = found.mask_spans[begin:end]
            np.cumsum(spans[:, 1] - spans[:, 0], out=offset[1:])
        return offset

    def _open_files(self, first: int, stop: int, direct: bool) -> list[ShardFiles]:
        """Enter the files of samples into the lookup; they stay open as long as the list lives."""
        found, held = self._lookup, []
        for k in range(first, stop):
            at = self._low + k
            shard, files = found.shards[at], found.samples.files[at, :, OPEN:]
            try:
                held.append(OPEN_FILES.get(shard, self._spec.arrays[:2], direct))
                files[:] = held[-1].table
            except ResourceShortage:
                raise
            except (FileNotFoundError, NotADirectoryError) as error:
                self._failed[k] = missing(Path(error.filename))
            except OSError as error:
                self._failed[k] = without_frames(error)
        return held

    def _use_runs(self, k: int, ends, offset: np.ndarray, buffer: np.ndarray) -> None:
        """Check the runs of sample k, or draw its masks of them; keep its error, if any.

        ends    int32 (r,), of several samples
        offset  int64 (m + 1,): where those of each of its masks begin
        """
        ends, offset = ends[offset[0] : offset[-1]], offset - offset[0]
        size = self._samples.sizes[self._low + k]
        try:
            if self._spec.masks.source == "runs":
                check_image_runs(ends, offset, int(size[0]) * int(size[1]))
            else:
                self._draw(k, ends, offset, size, buffer)
        except MaskError as error:
            self._failed[k] = without_frames(error)

    def _draw(self, k: int, ends, offset, size: np.ndarray, buffer: np.ndarray) -> None:
        """Draw these runs of the masks of sample k into the buffer; see MaskSpec.draw."""
        spec, masks = self._spec, self.regions["masks"].view(buffer)
        count = len(offset) - 1
        if spec.pads_masks:
            masks[k, count:] = 0
            masks = masks[k, :count]
        else:
            first = int(self._lookup.samples.offsets[self._low + k]) - self._first_mask
            masks = masks[first : first + count]
        bits = spec.masks.draw(ends, offset, size, None if spec.as_bool else masks)
        if spec.as_bool:
            unpack_into(bits, masks)

    # --------------------------------------------------------------------------- checked reading

    def _announce(self, at: int, direct: bool) -> None:
        """Let the system begin to read a sample's rows into the page cache, all of them at once.

        Through their maps, so that nothing is opened for it; what is read there is never looked at.

        at      its place in the lookup
        direct  all but the large ones, which are not read through the page cache
        """
        shard = self._lookup.shards[at].shard
        local, first, stop = self._lookup.where[LOCAL:ROW, at].tolist()
        spans = {"sample": (local, local + 1), "mask": (first, stop)}
        for spec in shard.layout.arrays:
            if spec.axis in spans and not (direct and spec.name in _LARGE):
                low, high = spans[spec.axis]
                count = (high - low + spec.offsets) * spec.row_bytes
                if count:
                    read_ahead_map(address(shard[spec.name]) + low * spec.row_bytes, count)

    def _copy_checked(self, k: int, buffer: np.ndarray, reader: SampleReader) -> None:
        """Read sample k and compare it with its checksum, then load it from there."""
        try:
            rows = self._read_checked(k, buffer, reader.direct)
            self._load(k, k + 1, buffer, reader)
            del rows  # the addresses in the lookup are not used again
        except ResourceShortage:
            raise
        except (FormatError, MaskError, OSError) as error:
            self._failed[k] = without_frames(error)

    def _read_checked(self, k: int, buffer: np.ndarray, direct: bool) -> list[np.ndarray]:
        """Read all rows of sample k, compare them, and enter them into the lookup, whose addresses
        are of the arrays that are returned."""
        pack, spec, found, at = self._source.ds.pack, self._spec, self._samples, self._low + k
        local, _, _, row = self._lookup.where[LOCAL:ID, at].tolist()
        in_place = spec.image.how == AS_STORED  # pixels are read to their place
        images = self.regions["images"].view(buffer)
        rows = pack.read_rows(row, {"image": images[k : k + 1]} if in_place else None, direct)
        # Arrays, so that each has memory of its own: one row may be a number.
        features = pack.read_features(row, direct)
        features = [np.ascontiguousarray(features[feature.name]) for feature in spec.features]
        size = rows["size"][0]
        self.regions["sizes"].view(buffer)[k] = found.sizes[at] = size
        if self._source.ds.options.coordinates == "stored":
            found.scales[at] = size[[3, 2]] / size[[1, 0]]
        kept = self._kept(at, rows)
        masks = slice(*found.offsets[at : at + 2])
        found.mask_rows[masks] = kept  # of the sample's own, as all of the following
        edges = np.arange(len(rows["area"]) + 1)
        if spec.masks.source == "drawn":
            edges = rows["run_offset"] - rows["run_offset"][0]
        found.mask_spans[masks] = np.stack([edges[kept], edges[kept + 1]], 1)
        found.spans[at] = 0, rows["image"].nbytes
        found.fields[at] = [address(rows[name]) for name in spec.arrays[2:]]
        files = found.files[at]
        files[:, OPEN] = IN_MEMORY
        files[:2, MAP] = [address(rows[name]) for name in spec.arrays[:2]]
        if in_place:
            files[IMAGE, OPEN] = IN_PLACE
        for c, (feature, values) in enumerate(zip(spec.features, features, strict=True), 2):
            skipped = local * feature.row_bytes if feature.axis == "sample" else 0
            files[c, MAP] = address(values) - skipped
        return [*rows.values(), *features]

    def _kept(self, at: int, rows: dict[str, np.ndarray]) -> np.ndarray:
        """The masks of a sample that are kept, exactly as many as were planned.

        at  its place in the lookup
        """
        planned, masks = int(self._lookup.counts[at]), len(rows["area"])
        passing, rule = np.arange(masks), self._source.ds.options.rule
        if rule is not None:
            height, width = rows["size"][0, :2].tolist()
            passing = np.flatnonzero(passes(rule, *(rows[n] for n in SCORES), height * width))
        kept = self._lookup.choice.of_arrays(
            int(rows["image_id"][0]), rows, passing, self._samples.scales[at], self._lookup.epoch
        )
        if len(kept) != planned:
            raise FormatError(
                f"it has {masks} masks, of which {len(kept)} are kept, but {planned} were to be "
                f"kept by what was read before; {REPAIR}"
            )
        return kept

    # -------------------------------------------------------------------------------------- errors

    def errors(self) -> list[tuple[int, ReadError]]:
        """(position in the batch, error) of every sample that could not be copied."""
        causes = {k: self._cause(k) for k in np.flatnonzero(self._status.any(axis=1)).tolist()}
        causes |= self._failed
        where = self._lookup.where[:, self._low :]
        return [(k, self._source.error(where[:, k], causes[k])) for k in sorted(causes)]

    def _cause(self, k: int) -> Exception:
        """Why sample k was not copied, by its status."""
        at = self._low + k
        shard = self._lookup.shards[at]
        c = int(np.flatnonzero(self._status[k])[0])
        code = int(self._status[k, c])
        if code == BAD_SPANS:
            return FormatError(
                f"{shard.path('run_offset')}: runs of sample {self._lookup.samples.local[at]} are "
                f"not within 0 and {shard.shard.extent.runs}; {REPAIR}"
            )
        path = shard.path(self._spec.arrays[c]) if c < 2 else shard.features[c - 2].path
        if code != CUT_SHORT:
            return OSError(code, os.strerror(code), path)
        return FormatError(
            f"{path}: ends before this sample, but was complete when it was opened. Restore the "
            "file from a copy, or run `sa1bpack repair` on the pack"
        )
