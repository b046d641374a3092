"""The copy of one batch: where its samples are, and copying any part of them into a buffer.

With verify_checksums=True, a sample is first read out of its files, its pixels straight into place
in the buffer, and compared with its checksum there, so a file cannot change between the check and
the use: the batch is loaded from those copies, once they agree with what was found by the maps.

The most recently used files stay open as long as their shards do, two per shard and one for each
feature, together at most a quarter of the process's limit of open files, however many Loaders there
are. Each thread has a `SampleReader`: scratch memory and an AIO context.
"""

import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.sample import AS_STORED, read_error
from sa1bpack.dataset.shards import CACHE, OpenShard, shortage
from sa1bpack.disk.aio import CONTEXTS, CUT_SHORT, Context
from sa1bpack.disk.direct import aligned, open_direct_if_possible
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError, MaskError, ReadError, ResourceShortage
from sa1bpack.finalizers import Ending, when_gone
from sa1bpack.format.files import is_shortage, missing
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.loading.batch import load_samples as kernel
from sa1bpack.loading.batch.load_samples import Destination, ReadState, Samples
from sa1bpack.loading.batch.put import unpack_into
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.loading.stats import Read
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.masks.select import passes
from sa1bpack.oserrors import naming

_MOST_SHARDS = 4096


def most_open_shards() -> int:
    """Shards whose files stay open: an eighth of the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_SHARDS
    return min(max(soft // 8, 1), _MOST_SHARDS)


class ShardFiles:
    """The files of a shard and of its features, open as long as this object lives.

    Attributes:
        table: int64 (k, 3), the last columns of `load_samples.Samples.files` for each file: its
            descriptor, NO_FILE for an array without rows; whether it is opened past the page cache;
            and if so, whether the system tells this process which of its pages are in memory.
    """

    def __init__(self, files: list[tuple[str, int]], direct: bool):
        """Open them: path, and rows of the array. Raises OSError."""
        self.descriptors = np.tile(np.array([kernel.NO_FILE, 0, 0]), (len(files), 1))
        when_gone(self, _close_files, self.descriptors)
        for (path, rows), entry in zip(files, self.descriptors, strict=True):
            if not rows:
                continue
            if direct and (file := open_direct_if_possible(path)) is not None:
                entry[:] = file, True, tells_what_is_in_memory(path, file)
            else:
                entry[0] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _close_files(descriptors: np.ndarray) -> None:
    for descriptor in descriptors[:, 0].tolist():
        if descriptor >= 0:
            os.close(descriptor)


def tells_what_is_in_memory(path: str, file: int) -> bool:
    """True if mincore answers truthfully; to others than the owner and writers it says "all"."""
    with naming(path):
        return os.fstat(file).st_uid == os.geteuid() or os.access(path, os.W_OK)


# The most recently used files of all Loaders, by shard, until their shard is closed. Takes no lock:
# every change is one step of the interpreter, and shards may be collected at any point. The id of a
# shard identifies it as long as the reference stored beside it lives: a pack that was reopened,
# perhaps after a repair, has other shards.
_files: OrderedDict[tuple, tuple[Ending, ShardFiles]] = OrderedDict()


def _forget_files(key: tuple) -> None:
    """Forget the files of a shard that is gone."""
    ending, _ = _files.get(key, (None, None))
    if ending is not None and ending.owner() is None:  # not those of another one with the same id
        _files.pop(key, None)


def open_files(shard: OpenShard, names: tuple[str, ...], direct: bool) -> ShardFiles:
    """The files of arrays of a shard and of its features, open as long as the caller keeps them.

    They are in the order of `names`, then of the features. Two threads that ask for the same files
    at once may open them twice.

    Args:
        shard: the shard.
        names: names of the arrays.
        direct: open them past the page cache, if their file system can do that.

    Raises:
        OSError: a file cannot be opened.
        ResourceShortage: the system refuses more open files.
    """
    key = (id(shard), names, direct)
    with suppress(KeyError):
        ending, files = _files[key]
        if ending.owner() is shard:  # and not one that had the same id
            _files.move_to_end(key)  # it was used last
            return files
    found = [(shard.path(name), len(shard.arrays[name])) for name in names]
    found += [(each.path, len(each.values)) for each in shard.features]
    files = CACHE.with_resources(partial(ShardFiles, found, direct))
    _files[key] = when_gone(shard, _forget_files, key), files
    with suppress(KeyError):  # a shard is collected meanwhile
        while len(_files) > max(2 * most_open_shards() // len(found), 1):
            # Who copies out of them keeps them open until then.
            _, (ending, _) = _files.popitem(last=False)
            ending.cancel()
    return files


# Scratch memory that a thread begins with; it grows to what its samples need.
_FIRST_SCRATCH = 1 << 20


class SampleReader:
    """Scratch memory and, to read past the page cache, a context of the system.

    For one thread at a time, which calls `close` when it ends.
    """

    def __init__(self, direct: bool, scratch: np.ndarray | None = None):
        """
        Args:
            direct: read past the page cache.
            scratch: uint8 (n,), memory of a reader that was closed; None: new memory. It grows as
                needed.

        Raises:
            ResourceShortage, OSError: the system refuses a context.
        """
        self.direct = direct
        self._context: Context | None = CONTEXTS.take() if direct else None
        scratch = aligned(_FIRST_SCRATCH) if scratch is None else scratch
        self._state = ReadState(0, scratch, np.zeros(4, np.int64), np.zeros(1, np.int64))

    def load(self, samples: Samples, dest: Destination, first: int, stop: int) -> Read:
        """Load samples `first` to `stop` of a batch by `load_samples`.

        It is called again with more scratch memory as long as that does not suffice.

        Raises OSError if the context is unusable, MemoryError if there is no scratch memory.
        """
        begin = time.perf_counter()
        if self._context is not None:
            self._state = self._state._replace(context=self._context.value)
        while outcome := kernel.load_samples(self._state, samples, dest, first, stop):
            if outcome < 0:
                broken = self._context
                self._context = None
                broken.close()  # its requests write to the buffer until it is closed
                self._context = CONTEXTS.take()
                raise OSError(-outcome, f"io_getevents: {os.strerror(-outcome)}")
            self._state = self._state._replace(scratch=aligned(outcome * 5 // 4))
        end = begin + self._state.spent.item() / 1e9
        return Read(begin, end, *self._state.counts.tolist())

    def close(self) -> np.ndarray:
        """Give the context back, and return the scratch memory."""
        context = self._context
        self._context = None
        if context is not None:
            CONTEXTS.append(context)
        return self._state.scratch


_RUN_BYTES = 4

# Arrays of which a sample's rows are large.
_IMAGE_AND_BITS = ("image", "mask_bits")
# Arrays that thresholds compare.
SCORES = ("area", "predicted_iou", "stability_score")

# Samples whose files a thread holds open at once, however many shards they come from.
OPEN_SAMPLES = 8


def address(array: np.ndarray) -> int:
    """The address of an array's first byte, in this process."""
    return array.__array_interface__["data"][0]


def without_frames(error: Exception) -> Exception:
    """The error without its traceback and those of its causes: their frames would keep buffers."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


class SampleRows(NamedTuple):
    """The rows of n samples, int64 (n,) each.

    These are their places among those that were looked up together, numbers of their shards, rows
    in these, first masks and one past the last, rows in the pack, image ids, and how often they
    have come before in the epoch.
    """

    place: np.ndarray
    number: np.ndarray
    local: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    row: np.ndarray
    image_id: np.ndarray
    repetition: np.ndarray

    def of(self, chosen: slice | np.ndarray) -> "SampleRows":
        """Some of the samples: a slice, or bool (n,)."""
        return SampleRows(*map(itemgetter(chosen), self))


def sample_error(pack: Pack, where: SampleRows, k: int, cause: Exception) -> ReadError:
    """The error of the sample at k."""
    error = read_error(pack, int(where.row[k]), int(where.number[k]), int(where.local[k]), cause)
    error.__cause__ = without_frames(cause)
    return error


class LocatedBatch:
    """One batch to be copied; `ordered` says which one.

    `regions` and `nbytes` describe where its arrays go in the buffer.
    """

    def __init__(
        self,
        ds: Dataset,
        spec: BatchSpec,
        ordered: OrderedBatch,
        where: SampleRows,
        shards: list[OpenShard],
        samples: Samples,
        choice: Callable[[int, Mapping, np.ndarray, np.ndarray, int], np.ndarray],
        capacity: int | None,
    ):
        """
        Args:
            ds: dataset of the samples.
            spec: layout of batches in their buffers.
            ordered: which batch it is, with the samples that could be located.
            where: the rows of these.
            shards: shard of each sample.
            samples: where the arrays of the samples are; their files are entered while they are
                open.
            choice: `MaskChoice.of_arrays` in an epoch, which chooses the masks to keep.
            capacity: masks per sample in padded arrays; None: as many as the fullest sample has.
        """
        self._ds = ds
        self._spec = spec
        self.ordered = ordered
        self._where = where
        self._shards = shards
        self._samples = samples
        self._choice = choice
        self._counts = np.diff(samples.offsets)
        self.total = int(samples.offsets[-1])
        self.most = int(self._counts.max(initial=0))  # masks of the fullest sample
        self.capacity = capacity or self.most
        # int64 (T + 1,): where the runs of each mask begin in those of all masks, joined.
        self.run_offset = np.zeros(self.total + 1, np.int64)
        if spec.masks.source != "bits":
            np.cumsum(np.diff(samples.mask_spans)[:, 0], out=self.run_offset[1:])
        self.regions, self.nbytes = spec.regions(
            len(shards), self.capacity, self.total, int(self.run_offset[-1])
        )
        self._failed: dict[int, Exception] = {}

    def __len__(self) -> int:
        return len(self._shards)

    def name(self) -> str:
        """The samples, for messages."""
        ids = self._where.image_id.tolist()
        return f"samples with the image ids {ids[:8]}{' and more' if len(ids) > 8 else ''}"

    def begin(self, buffer: np.ndarray) -> None:
        """Begin to fill a buffer, uint8 (n,) of at least `nbytes`.

        The arrays with one row per sample, and the offsets, are written at once.
        """
        assert len(buffer) >= self.nbytes, (len(buffer), self.nbytes)
        spec = self._spec
        samples = self._samples
        regions = self.regions
        heads = {
            "mask_counts": self._counts,
            "image_ids": self._where.image_id,
            "sizes": samples.sizes,
            "indices": self._where.row,
            "repetitions": self._where.repetition,
            "repeated": self.ordered.repeated,
            "mask_offsets": samples.offsets,
            "run_offset": self.run_offset,
        }
        if "mask_positions" in regions:
            shift = np.arange(len(self)) * self.capacity - samples.offsets[:-1]
            heads["mask_positions"] = np.arange(self.total) + np.repeat(shift, self._counts)
        for key in heads.keys() & regions.keys():
            regions[key].view(buffer)[...] = heads[key]
        rows = self.capacity if spec.mask_layout.padded else -1
        images = regions["images"]
        canvas = prod(spec.image.shape)
        kind = kernel.AS_IT_IS if spec.image.how == AS_STORED else kernel.ON_CANVAS
        arrays = [(images.start, canvas, canvas, False, -1, kind)]
        if spec.masks.source == "bits":
            width = spec.mask_bytes
            kind, out = (kernel.UNPACKED, 8 * width) if spec.as_bool else (kernel.AS_IT_IS, width)
            own = self.capacity if spec.pads_masks else -1
            arrays.append((regions["masks"].start, width, out, True, own, kind))
        else:
            arrays.append((0, _RUN_BYTES, _RUN_BYTES, True, -1, kernel.RUNS))
        for feature in spec.features:
            start = regions[feature.name].start
            width = feature.row_bytes
            per_mask = feature.axis == "mask"
            own = rows if per_mask else -1
            arrays.append((start, width, width, per_mask, own, kernel.AS_IT_IS))
        fields = spec.number_table.copy()
        fields[:, 0] = [regions[field.batch].start for field in spec.numbers]
        with_runs = spec.masks.source == "runs"
        self._dest = Destination(
            buffer=buffer,
            how=spec.image.how,
            side=spec.pack_layout.image_size,
            stored_side=0 if spec.pack_layout.flat else spec.pack_layout.image_size,
            arrays=np.array(arrays, np.int64),
            fields=fields,
            capacity=rows,
            run_ends=regions["run_ends"].view(buffer) if with_runs else np.empty(0, np.int32),
            run_offset=np.zeros(1, np.int64),
            status=np.zeros((len(self), len(arrays)), np.int64),
        )

    # ------------------------------------------------------------------------------------ the copy

    def copy(self, first: int, stop: int, reader: SampleReader) -> list[Read]:
        """Copy samples `first` to `stop` of the batch into the buffer that it was begun in.

        Errors of single samples are collected in `errors`.

        Args:
            reader: reader of this thread.

        Returns:
            What was read for that, in order.

        Raises:
            ResourceShortage: no more files can be opened.
        """
        checked = self._ds.options.verify_checksums
        together = OPEN_SAMPLES
        reads = []
        if checked:
            together = 1  # it is in the processor's caches then
            for k in range(first, stop):
                self._announce(k, reader.direct)
        for start in range(first, stop, together):
            end = min(start + together, stop)
            held = []
            for k in range(start, end):
                try:
                    if checked:
                        held.append(self._check(k, reader.direct))
                        continue
                    files = open_files(self._shards[k], self._spec.arrays[:2], reader.direct)
                    self._samples.files[k, :, kernel.OPEN :] = files.descriptors
                    held.append(files)
                except ResourceShortage:
                    raise
                except (FileNotFoundError, NotADirectoryError) as error:
                    self._failed[k] = missing(Path(error.filename))
                except (FormatError, OSError) as error:
                    self._failed[k] = without_frames(error)
            if held:  # else nothing is there to load; a small array may have been truncated
                reads.append(self._load(start, end, reader))
            del held  # what `Samples` has of it is not used again
        return reads

    def compile(self) -> None:
        """Compile the kernels of a copy, or load them: with no samples, and a mask of one pixel."""
        self.begin(np.empty(self.nbytes, np.uint8))
        self._load(0, 0, SampleReader(direct=False))
        if self._spec.masks.source != "bits":
            ends = np.array([1], np.int32)
            offset = np.array([0, 1])
            check_image_runs(ends, offset, 1)
            if self._spec.masks.source == "drawn":
                bits = self._spec.masks.draw(ends, offset, np.ones(4))
                side = self._spec.masks.size
                unpack_into(bits, np.empty((1, side, side), np.bool_), np.arange(1))

    def _load(self, first: int, stop: int, reader: SampleReader) -> Read:
        """Load these samples, whose files are open, and keep the error of each, if any.

        The runs of each are checked, or its masks are drawn from them.
        """
        spec = self._spec
        dest = self._dest
        samples = self._samples
        masks = samples.offsets[first : stop + 1]
        if spec.masks.source != "bits":
            dest = dest._replace(run_offset=self.run_offset[masks[0] : masks[-1] + 1])
        if spec.masks.source == "drawn":
            offset = dest.run_offset - dest.run_offset[0]
            dest = dest._replace(run_ends=np.empty(offset[-1], np.int32), run_offset=offset)
        read = reader.load(samples, dest, first, stop)
        if spec.masks.source == "bits":
            return read
        for k in np.flatnonzero(dest.status[first:stop, kernel.MASKS] == 0) + first:
            begin, end = samples.offsets[k : k + 2] - masks[0]
            offset = dest.run_offset[begin : end + 1]
            ends = dest.run_ends[offset[0] : offset[-1]]
            offset = offset - offset[0]
            size = samples.sizes[k]
            try:
                if spec.masks.source == "runs":
                    check_image_runs(ends, offset, int(size[0]) * int(size[1]))
                else:
                    self._draw(k, ends, offset, size)
            except MaskError as error:
                self._failed[int(k)] = without_frames(error)
        return read

    def _draw(self, k: int, ends: np.ndarray, offset: np.ndarray, size: np.ndarray) -> None:
        """Draw these runs of the masks of sample k into the buffer; see MaskSpec.draw."""
        spec = self._spec
        masks = self.regions["masks"].view(self._dest.buffer)
        count = len(offset) - 1
        if spec.pads_masks:
            masks[k, count:] = 0
            masks = masks[k, :count]
        else:
            masks = masks[slice(*self._samples.offsets[k : k + 2])]
        bits = spec.masks.draw(ends, offset, size, None if spec.as_bool else masks)
        if spec.as_bool:
            unpack_into(bits, masks, np.arange(count))

    # --------------------------------------------------------------------------- checked reading

    def _announce(self, k: int, direct: bool) -> None:
        """Let the system begin to read the rows of a sample and of its masks into the page cache.

        It goes through the maps, so that nothing is opened for it; what is read there is never
        looked at.

        Args:
            direct: leave out the large ones, which are not read through the page cache.
        """
        shard = self._shards[k].shard
        where = self._where
        local, first, stop = (int(column[k]) for column in (where.local, where.first, where.stop))
        spans = {"sample": (local, local + 1), "mask": (first, stop)}
        for spec in shard.layout.arrays:
            if spec.axis in spans and not (direct and spec.name in _IMAGE_AND_BITS):
                low, high = spans[spec.axis]
                start = address(shard[spec.name]) + low * spec.row_bytes
                read_ahead_map(start, (high - low + spec.offsets) * spec.row_bytes)

    def _check(self, k: int, direct: bool) -> list[np.ndarray]:
        """Read all rows of sample k, and compare them with their checksum and what was located.

        Their addresses are entered into `Samples` in place of those of the maps.

        What is compared is what is loaded. Returns the arrays that have it.
        """
        ds = self._ds
        spec = self._spec
        samples = self._samples
        where = self._where
        local, first, row = (int(column[k]) for column in (where.local, where.first, where.row))
        given = {}
        if spec.image.how == AS_STORED:  # pixels are read to their place
            given["image"] = self.regions["images"].view(self._dest.buffer)[k : k + 1]
        rows = ds.pack.read_rows(row, given, direct)
        # Arrays, so that each has memory of its own: one row may be a number.
        features = ds.pack.read_features(row, direct)
        features = [np.ascontiguousarray(features[feature.name]) for feature in spec.features]
        # The first row of each axis, and where row 0 of each array would be.
        begin = {"sample": local}
        at = {}
        for array in ds.layout.arrays:
            own = rows[array.name]
            at[array.name] = address(own) - begin[array.axis] * array.row_bytes
            if array.offsets:
                begin[array.child_axis] = int(own[0])
        size = rows["size"][0]
        passing = np.arange(len(rows["area"]))
        if ds.options.rule is not None:
            scores = (rows[name] for name in SCORES)
            fine = passes(ds.options.rule, *scores, int(size[0]) * int(size[1]))
            passing = np.flatnonzero(fine)
        image_id = int(rows["image_id"][0])
        repetition = int(where.repetition[k])
        kept = self._choice(image_id, rows, passing, samples.scales[k], repetition)
        masks = slice(*samples.offsets[k : k + 2].tolist())
        spans = np.stack([first + kept, first + kept + 1], 1)
        if spec.masks.source != "bits":
            spans = np.stack([rows["run_offset"][kept], rows["run_offset"][kept + 1]], 1)
        nbytes = rows["image"].nbytes
        if not (
            np.array_equal(samples.sizes[k], size)
            and samples.spans[k].tolist() == [begin.get("image_byte", local * nbytes), nbytes]
            and np.array_equal(samples.mask_rows[masks], first + kept)
            and np.array_equal(samples.mask_spans[masks], spans)
        ):
            raise FormatError(
                f"{len(kept)} of its {len(rows['area'])} masks are kept, where {self._counts[k]} "
                f"were to be by what was read before, or its size or offsets differ; {REPAIR}"
            )
        image, of_masks, *fields = (at[name] for name in spec.arrays)
        samples.fields[k] = fields
        samples.files[k, :2, kernel.MAP] = image, of_masks
        for c, (feature, values) in enumerate(zip(spec.features, features, strict=True), 2):
            skipped = begin[feature.axis] * feature.row_bytes
            samples.files[k, c, kernel.MAP] = address(values) - skipped
        samples.files[k, :, kernel.OPEN] = kernel.IN_MEMORY
        return [*rows.values(), *features]

    # -------------------------------------------------------------------------------------- errors

    def errors(self) -> list[tuple[int, ReadError]]:
        """(position in the batch, error) of every sample that could not be copied.

        Raises ResourceShortage if the system had no memory for a read.
        """
        status = self._dest.status
        if not (self._failed or status.any()):
            return []
        causes = {k: self._cause(k, status[k]) for k in np.flatnonzero(status.any(1)).tolist()}
        causes |= self._failed
        pack = self._ds.pack
        where = self._where
        return [(k, sample_error(pack, where, k, causes[k])) for k in sorted(causes)]

    def _cause(self, k: int, status: np.ndarray) -> Exception:
        """The reason why sample k was not copied, by its status."""
        shard = self._shards[k]
        c = int(np.flatnonzero(status)[0])
        code = int(status[c])
        if code == kernel.BAD_SPANS:
            return FormatError(
                f"{shard.path('run_offset')}: runs of sample {self._samples.local[k]} are "
                f"not within 0 and {shard.shard.lengths.runs}; {REPAIR}"
            )
        path = shard.path(self._spec.arrays[c]) if c < 2 else shard.features[c - 2].path
        if code != CUT_SHORT:
            error = OSError(code, os.strerror(code), path)
            if is_shortage(error):  # which is not the sample's fault
                raise shortage(error)
            return error
        return FormatError(
            f"{path}: ends before this sample, but was complete when it was opened. Restore the "
            "file from a copy, or run `sa1bpack repair` on the pack"
        )
