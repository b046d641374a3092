"""Writing a part of a side array: rows are appended in the order of the shard, then published."""

import errno
import fcntl
import glob
import os
import secrets
import shutil
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.errors import OptionError, OutputLocked, OutputRefused
from sa1bpack.format.append_file import AppendFile
from sa1bpack.format.files import TEMPORARY_PREFIX, byte_view, flush_folder
from sa1bpack.format.group_files import complete_group
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.part import part_metadata
from sa1bpack.format.side.spec import SideSpec, read_side_manifest
from sa1bpack.format.zarr_metadata import canonical_json

_LOCK_SUFFIX = ".lock"


class PartWriter:
    """An unpublished part: rows are appended to it, then it is published or discarded.

    A context manager that discards the part unless it was published. For one thread at a time.
    """

    def __init__(self, folder: Path, spec: SideSpec, shard: ShardIdentity):
        """Create the working folder of a part, and remove what a killed process left of it.

        folder  of the side array, which exists

        Raises OutputLocked if another process makes the same part; OutputRefused if the side array
        has other rows; NotAPack, FormatError and OSError if its manifest cannot be read.
        """
        self.spec, self.shard = spec, shard
        self._final = Path(folder) / shard.part
        self._folder = self._final.with_name(
            f"{TEMPORARY_PREFIX}{shard.part}-{secrets.token_hex(4)}"
        )
        self._lock_path = self._folder.with_name(self._folder.name + _LOCK_SUFFIX)
        self._samples = self._rows = 0
        self._files: dict[str, AppendFile] = {}
        self._lock = -1
        _remove_abandoned(self._final)
        try:
            # On a file: NFS supports locks between machines on these, but not on folders.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(self._lock_path, flags, 0o666)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._folder.mkdir()
            if (found := read_side_manifest(self._final.parent).spec) != spec:
                raise OutputRefused(
                    f"{self._final.parent}: rows are {found.to_text()}, not {spec.to_text()}; "
                    "choose another folder"
                )
            for array in spec.arrays(shard.extent):
                (self._folder / array.name).mkdir()
                self._files[array.name] = AppendFile(self._folder / array.chunk_path)
        except BaseException:
            self.discard()
            raise

    def append(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """Append the rows of the next samples.

        rows    (n, *row_shape) of the stored type, C-contiguous; it may change afterwards
        counts  whole numbers (k,): how many of them each of the k samples has; 1 for a row per
                sample

        Raises OptionError for rows of another kind or number, OSError if the disk fails.
        """
        spec = self.spec
        if rows.dtype != spec.stored or rows.shape[1:] != spec.row_shape:
            raise OptionError(
                f"rows of {spec.name} are {rows.dtype} {rows.shape[1:]}, but must be "
                f"{spec.dtype} {spec.row_shape}"
            )
        if len(rows) != int(np.sum(counts)):
            raise OptionError(
                f"{len(rows)} rows of {spec.name} for {len(counts)} samples, but they must be "
                f"{int(np.sum(counts))}"
            )
        data, checksums, first = byte_view(rows), np.empty(len(counts), "<u8"), 0
        for k, count in enumerate(counts):
            end = first + int(count) * spec.row_bytes
            checksums[k] = xxhash.xxh3_64_intdigest(data[first:end])
            first = end
        self._files["values"].append(data)
        self._files["checksum"].append(byte_view(checksums))
        self._samples += len(counts)
        self._rows += len(rows)

    def publish(self) -> bool:
        """Complete the part, flush it and give it its name.

        Returns False if another process has published it meanwhile: this one is discarded. Raises
        OptionError if rows are missing, OSError if writing fails; the part then does not exist.
        """
        spec, extent = self.spec, self.shard.extent
        expected = (extent.samples, spec.values.rows(extent))
        if (self._samples, self._rows) != expected:
            raise OptionError(
                f"{spec.name} has {self._rows} rows for {self._samples} samples of shard "
                f"{self.shard.name}, but must have {expected[1]} for {expected[0]}"
            )
        group = canonical_json(part_metadata(spec, self.shard))
        files = {array: self._files[array.name] for array in spec.arrays(extent)}
        complete_group(self._folder, group, files, extent)
        try:
            self._folder.rename(self._final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.discard()
            return False
        self._folder = self._final
        flush_folder(self._final.parent)
        self._close()
        return True

    def discard(self) -> None:
        """Remove the working folder; does nothing after publication."""
        if self._folder != self._final:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._close()

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        if self._lock >= 0:
            self._lock_path.unlink(missing_ok=True)
            lock, self._lock = self._lock, -1
            os.close(lock)

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_) -> None:
        self.discard()


def _remove_abandoned(final: Path) -> None:
    """Remove what killed processes left of a part. Raises OutputLocked if one is at work on it."""
    pattern = f"{TEMPORARY_PREFIX}{glob.escape(final.name)}-*{_LOCK_SUFFIX}"
    for path in sorted(final.parent.glob(pattern)):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # published meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.with_name(path.name.removesuffix(_LOCK_SUFFIX)), ignore_errors=True)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            raise OutputLocked(
                f"{final}: another process makes this part; wait for it, or give each process "
                "parts of its own (--part K/N)"
            ) from None
        finally:
            os.close(lock)
