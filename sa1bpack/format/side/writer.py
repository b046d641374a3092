"""Writing a part of a feature: rows are appended in the order of the shard, then published."""

import fcntl
import os
import shutil
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.errors import OptionError, OutputLocked, OutputRefused
from sa1bpack.format.arrays import canonical_json
from sa1bpack.format.files import (
    TEMPORARY_PREFIX,
    byte_view,
    claim_name,
    naming,
)
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.shard_writer import AppendFile, complete_group
from sa1bpack.format.side.part import ShardIdentity, part_metadata
from sa1bpack.format.side.spec import SideSpec, read_side_manifest

_LOCK_SUFFIX = ".lock"


class PartWriter:
    """An unpublished part: rows are appended to it, then it is published or discarded.

    While it is unfinished it has a working name, `.tmp-` and its own, which a process owns that
    holds the lock beside it; what a killed process left there, the next writer removes.

    A context manager that discards the part unless it was published. For one thread at a time.

    samples  how many samples have their rows
    """

    def __init__(self, folder: Path, spec: SideSpec, shard: ShardIdentity):
        """Begin the part.

        folder  of the feature, which exists

        Raises OutputLocked if another process makes the same part; OutputRefused if the feature
        has other rows; NotAPack, FormatError and OSError if its manifest cannot be read.
        """
        self.spec, self.shard = spec, shard
        self.samples = self._rows = 0
        self._final = Path(folder) / shard.part
        self._folder = self._final.with_name(TEMPORARY_PREFIX + shard.part)
        self._lock_path = self._folder.with_name(self._folder.name + _LOCK_SUFFIX)
        self._files: dict[ArraySpec, AppendFile] = {}
        # On a file: NFS supports locks between machines on these, but not on folders.
        self._lock = _locked(self._lock_path, self._final)
        try:
            if (there := read_side_manifest(self._final.parent).spec) != spec:
                raise OutputRefused(
                    f"{self._final.parent}: rows are {there.to_text()}, not {spec.to_text()}; "
                    "choose another folder"
                )
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            for array in spec.arrays(shard.extent):
                (self._folder / array.name).mkdir()
                self._files[array] = AppendFile(self._folder / array.chunk_path)
        except BaseException:
            self.discard()
            raise

    def append(self, rows: np.ndarray, counts: np.ndarray) -> None:
        """Append the rows of the next samples.

        rows    (n, *row_shape) of the stored type, C-contiguous; it may change afterwards
        counts  whole numbers (k,): how many of them each of the k samples has; 1 for a row per
                sample

        Raises OSError if the disk fails.
        """
        data, checksums, first = byte_view(rows), np.empty(len(counts), "<u8"), 0
        for k, count in enumerate(counts):
            end = first + int(count) * self.spec.row_bytes
            checksums[k] = xxhash.xxh3_64_intdigest(data[first:end])
            first = end
        for file, added in zip(self._files.values(), (data, byte_view(checksums)), strict=True):
            file.append(added)
        self.samples += len(counts)
        self._rows += len(rows)

    def publish(self) -> bool:
        """Complete the part, flush it and give it its name.

        Returns False if another process has published it meanwhile: this one is discarded. Raises
        OptionError if rows are missing, OSError if writing fails; the part then does not exist.
        """
        spec, extent = self.spec, self.shard.extent
        expected = (extent.samples, spec.values.rows(extent))
        if (self.samples, self._rows) != expected:
            raise OptionError(
                f"{spec.name} has {self._rows} rows for {self.samples} samples of shard "
                f"{self.shard.name}, but must have {expected[1]} for {expected[0]}"
            )
        group = canonical_json(part_metadata(spec, self.shard))
        complete_group(self._folder, group, self._files, extent)
        published = claim_name(self._folder, self._final)
        self.discard()
        return published

    def discard(self) -> None:
        """Remove what is not published, and let another process make the part."""
        for file in self._files.values():
            file.close()
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._lock_path.unlink(missing_ok=True)
            lock, self._lock = self._lock, -1
            os.close(lock)

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_) -> None:
        self.discard()


def _locked(path: Path, final: Path) -> int:
    """Lock the lock file of a part, which exists from then on; returns its descriptor."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with naming(path):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except FileNotFoundError:
            pass  # the owner before has removed it in between
        except BlockingIOError:
            os.close(lock)
            raise OutputLocked(
                f"{final}: another process makes this part; wait for it, or give each process "
                "parts of its own (--part K/N)"
            ) from None
        os.close(lock)
