"""Writing a feature shard: rows are appended in the order of the shard, then published."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError, OptionError, OutputLocked, OutputRefused
from sa1bpack.format import file_locks, files, removal, replacing, working_names
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.shard_reader import read_rows
from sa1bpack.format.shard_writer import AppendFile, complete_group
from sa1bpack.format.side.manifest import REMAKE, read_side_manifest
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shard import rows_read
from sa1bpack.format.side.shards import ShardIdentity, feature_shard_attributes
from sa1bpack.format.side.spec import CHECKSUM, MAX_SIDE_ROW_BYTES, SideSpec
from sa1bpack.paths import naming

# In the working folder of one that may be continued: what its rows are made by.
_ORIGIN_NAME = "origin"
_WITHOUT_LOCKS = (
    "a feature shard that a killed process has begun is begun again, and two processes that make "
    "the same one both do the work"
)


class FeatureShardWriter:
    """An unpublished feature shard: rows are appended to it, then it is published or discarded.

    While it is unfinished it has a working name, `.tmp-` and its own, which a process owns that
    holds the lock beside it. Rows are in the files when `append` returns, first the rows, then
    their checksums. So the samples of a killed process whose rows agree with their checksums are
    complete, and if the rows are made by the same `origin`, the next writer continues after them.

    A context manager that discards it unless it was published. For one thread at a time.

    Attributes:
        samples: number of samples whose rows it has.
        items: number of items of their ragged rows.
    """

    def __init__(
        self,
        folder: Path,
        spec: SideSpec,
        shard: ShardIdentity,
        *,
        origin: bytes | None = None,
        counts: np.ndarray | None = None,
        step: int = 1,
        shared: bool = False,
    ):
        """Continue what another process has left, if that is possible, or begin.

        Args:
            folder: folder of the feature, which exists.
            spec: spec of the feature.
            origin: what decides the rows; None if nobody can know, and nothing is continued.
            counts: with `origin`, whole numbers (N,), the rows of each sample of the shard.
            step: samples per batch: only complete batches are kept, so that those to come are the
                same.
            shared: other processes may make the same feature shard meanwhile, of the same rows. It
                has a working name that nobody else uses, and nothing is continued.

        Raises:
            OutputLocked: another process makes the same feature shard, and it is not shared.
            OutputRefused: the feature has other rows.
            NotAPack, FormatError, OSError: the manifest of the feature cannot be read.
        """
        self.spec = spec
        self.shard = shard
        self.samples = 0
        self.items = 0
        rows = 0
        self._final = Path(folder) / shard.feature_shard
        self._folder = self._final.with_name(working_names.TEMPORARY_PREFIX + shard.feature_shard)
        self._lock_path = self._folder.with_name(self._folder.name + working_names.LOCK_SUFFIX)
        self._files: dict[ArraySpec, AppendFile] = {}
        self._lock: int | None = None
        self._is_left = False
        if shared:
            self._folder = working_names.temporary_beside(self._final)
            origin = None
        else:
            try:
                file_locks.try_locks(self._final.parent)
                self._lock = _locked(self._lock_path, self._final)
            except file_locks.NoFileLocks as error:
                file_locks.go_on_unlocked(error, _WITHOUT_LOCKS)
                # Nobody knows who uses the folder that others would continue.
                self._folder = working_names.temporary_beside(self._final)
                origin = None
        self._origin = origin
        try:
            stored = read_side_manifest(self._final.parent).spec
            if stored != spec:
                raise OutputRefused(
                    f"{self._final.parent}: rows are {stored.to_text()}, not {spec.to_text()}; "
                    "choose another folder"
                )
            if origin is not None and counts is not None and origin == self._left_origin():
                self.samples = self._complete(counts)
                if self.samples < len(counts):
                    self.samples -= self.samples % step
                rows = int(counts[: self.samples].sum())
            if not self.samples:
                self._make_folder()
            self._open_files(rows)
        except BaseException:
            self.discard()
            raise

    def _left_origin(self) -> bytes | None:
        """What made the rows that another process has left; None if there are none."""
        with suppress(FileNotFoundError, FormatError):
            return files.read_metadata_file(self._folder / _ORIGIN_NAME)
        return None

    def _make_folder(self) -> None:
        """Make the working folder again, empty."""
        removal.discard_entry(self._folder)
        for array in self.spec.arrays(self.shard.lengths):
            (self._folder / array.name).mkdir(parents=True)
        if self._origin is not None:
            files.write_durably(self._folder / _ORIGIN_NAME, self._origin)

    def _open_files(self, rows: int) -> None:
        """Open the files of the arrays, in which so many rows, and their samples, are kept."""
        spec = self.spec
        kept = {spec.values: rows, CHECKSUM: self.samples}
        if spec.present is not None:
            kept[spec.present] = rows
        if spec.offset is not None:
            if self.samples:
                self.items = int(self._left_rows(spec.offset, rows, rows + 1)[0])
                kept[spec.offset] = rows + 1
            kept[spec.values] = self.items
        for array in spec.arrays(self.shard.lengths):
            path = self._folder / array.chunk_path
            nbytes = kept.get(array, 0) * array.row_bytes
            if not nbytes:
                path.unlink(missing_ok=True)
            self._files[array] = AppendFile(path, nbytes)
            if array.offsets and not nbytes:
                self._files[array].append(files.byte_view(np.zeros(1, array.dtype)))

    def _complete(self, counts: np.ndarray) -> int:
        """The number of samples, from the first on, whose rows agree with their checksums."""
        sample = 0
        first = 0
        with suppress(FileNotFoundError, FormatError):  # a file ends here, or is none
            values = self._folder / self.spec.values.chunk_path
            most = values.stat().st_size // self.spec.row_bytes
            while sample < len(counts):
                stop = first + int(counts[sample])
                checksum = int(self._left_rows(CHECKSUM, sample, sample + 1)[0])
                rows = rows_read(self.spec, first, stop, most, self._left_rows, self._folder)
                if int(rows.checksums([stop - first])[0]) != checksum:
                    break
                sample += 1
                first = stop
        return sample

    def _left_rows(self, array: ArraySpec, first: int, stop: int) -> np.ndarray:
        """Rows of an array that another process has left. Raises FormatError if there are fewer."""
        path = self._folder / array.chunk_path
        if path.stat().st_size < stop * array.row_bytes:
            raise FormatError(f"{path}: it ends before row {stop}; {REMAKE}")
        return read_rows(str(path), array, first, stop)

    def append(self, rows: FeatureRows, counts: np.ndarray) -> None:
        """Append the rows of the next samples.

        Args:
            rows: rows of the feature's kind, which may change afterwards.
            counts: whole numbers (k,), the rows of each of the k samples; 1 for a row per sample.

        Raises:
            OptionError: a row is larger than the format allows.
            OSError: the disk fails.
        """
        added = {self.spec.values: rows.values, CHECKSUM: rows.checksums(counts)}
        if self.spec.offset is not None:
            assert rows.lengths is not None  # rows are of the feature's kind
            check_row_bytes(self.spec, rows.lengths)
            added[self.spec.offset] = self.items + np.cumsum(rows.lengths)
            self.items += len(rows.values)
        if self.spec.present is not None:
            assert rows.present is not None
            added[self.spec.present] = rows.present
        for array, file in self._files.items():  # the checksums last
            file.append(files.byte_view(added[array]))
            if self._origin is not None:
                file.write_out()
        self.samples += len(counts)

    def publish(self) -> bool:
        """Complete the feature shard, flush it and give it its name.

        Every sample has its rows. Returns False if another process has published it meanwhile: this
        one is discarded. Raises OSError if writing fails; none exists then.
        """
        attributes = feature_shard_attributes(self.spec, self.shard, self.items)
        rows = self.spec.arrays(self.shard.lengths, self.items)
        complete_group(self._folder, attributes, self._files, rows)
        if self._origin is not None:
            (self._folder / _ORIGIN_NAME).unlink()
            files.flush_folder(self._folder)
        if not replacing.claim_name(self._folder, self._final):
            self.discard()
            return False
        self.leave()
        return True

    def discard(self) -> None:
        """Remove what is not published."""
        self.samples = 0
        self.leave()

    def leave(self) -> None:
        """Leave what is unfinished to another writer; there is nothing to leave without samples."""
        for file in self._files.values():
            file.close()
        if self._is_left:
            return
        self._is_left = True
        if self._lock is None:  # nobody can know that it is left
            removal.discard_entry(self._folder)
            return
        if not self.samples:
            removal.discard_entry(self._folder)
        removal.discard_entry(self._lock_path)
        os.close(self._lock)

    def __enter__(self) -> "FeatureShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def check_row_bytes(spec: SideSpec, lengths: np.ndarray) -> None:
    """Check that ragged rows of these lengths, int64 (k,), can be stored. Raises OptionError."""
    longest = int(lengths.max(initial=0))
    if longest * spec.row_bytes > MAX_SIDE_ROW_BYTES:
        raise OptionError(
            f"row {int(lengths.argmax())} has {longest:,} items of {spec.row_bytes} bytes: a row "
            f"has at most {MAX_SIDE_ROW_BYTES:,} bytes; split it, or leave it out"
        )


def _locked(path: Path, final: Path) -> int:
    """Lock the lock file of a feature shard, which then exists; returns its descriptor."""
    while True:
        try:
            with naming(path):
                lock = file_locks.locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputLocked(
                f"{final}: another process makes this feature shard; wait for it, or give each "
                "process shards of its own (--part K/N)"
            ) from None
        # The owner before may have removed it in between.
        with suppress(FileNotFoundError), naming(path):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        os.close(lock)
