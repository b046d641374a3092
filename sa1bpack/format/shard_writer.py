"""Writing a shard: the rows of samples are completed and appended, then the shard is published.

The working folder has a temporary name beside the final one. It is renamed after every byte in it
was flushed, so whatever has a final name is complete.

Where the file system allows it, the bytes go from memory to the disk, bypassing the page cache
(O_DIRECT): a pack is larger than memory, so its pages would have to be found, filled, evicted and
read back for the digest, which costs more than the rest of writing (docs/decisions/0007).
"""

import errno
import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.disk.direct import BLOCK, HUGE_PAGE, aligned
from sa1bpack.errors import PackError
from sa1bpack.format import arrays, file_checksums, files, removal, working_names
from sa1bpack.format.layout import (
    FORMAT_VERSION,
    ArraySpec,
    AxisLengths,
    Layout,
    canvas_pieces,
    rows_checksums,
)
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.paths import exists, naming

# Smaller appends are gathered before they are written.
_DIRECT_BYTES = 64 * BLOCK
# What is gathered is written in pieces of this size, from a huge page: a list of small pages costs
# more than writing them.
STAGE_BYTES = HUGE_PAGE
_FIRST_STAGE_BYTES = 8 * BLOCK  # most files of a shard are small
# Those of fewer bytes than the first, of which a sample has some twenty, are gathered as they are
# until together they have as many as the second: hashing and copying each takes longer than its
# bytes.
_SHORT_BYTES = BLOCK
_WAITING_BYTES = 8 * BLOCK
# Shorter runs of zeros are written: a hole costs an extra write, and would save little.
HOLE_BYTES = 4 * BLOCK
_ZEROS = np.zeros(HOLE_BYTES, np.uint8)


class AppendFile:
    """A new file at `path`, and the running XXH3-128 of the appended bytes.

    Long appends that begin as far behind a block boundary in memory as they do in the file are
    written without a copy; everything else is gathered first. For one thread at a time. Methods
    raise OSError, naming the file, if the disk fails.
    """

    def __init__(self, path: Path, keep: int = 0):
        """Create the file; if `keep` is not 0, continue one after its first `keep` bytes.

        Raises FileExistsError or FileNotFoundError, and FormatError if it has fewer bytes.
        """
        self.path = path
        self._digest = xxhash.xxh3_128()
        self._stage = aligned(min(_FIRST_STAGE_BYTES, STAGE_BYTES))
        self._staged = 0  # bytes of the stage in use
        self._waiting: list[bytes] = []  # the last appends, of which only the length is known yet
        self._waiting_bytes = 0
        self._written = 0  # offset of the stage in the file: a block boundary, until the end
        if keep:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._continue(keep)
        else:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._direct = set_direct(self._fd, True)

    def _continue(self, keep: int) -> None:
        """Take over the first bytes of the file, and cut off the others."""
        while self.nbytes < keep:
            piece = self._stage[: min(self._stage.size, keep - self.nbytes)]
            files.read_at(self._fd, piece, self.nbytes, self.path)
            self._digest.update(piece.data)
            self._written += piece.size - piece.size % BLOCK
            self._staged = piece.size % BLOCK
        self._stage[: self._staged] = piece[piece.size - self._staged :].copy()
        with naming(self.path):
            os.ftruncate(self._fd, keep)

    @property
    def nbytes(self) -> int:
        """Bytes appended so far."""
        return self._written + self._staged + self._waiting_bytes

    def append(self, data: np.ndarray) -> None:
        """Append the bytes of a C-contiguous array, which may change once this returns."""
        if data.nbytes < _SHORT_BYTES:
            self._waiting.append(data.tobytes())
            self._waiting_bytes += data.nbytes
            if self._waiting_bytes >= _WAITING_BYTES:
                self._take_waiting()
            return
        self._take_waiting()
        self._append(files.byte_view(data))

    def _take_waiting(self) -> None:
        """Hash and gather the appends that wait for that."""
        if self._waiting:
            joined = b"".join(self._waiting)
            self._waiting = []
            self._waiting_bytes = 0
            self._append(np.frombuffer(joined, np.uint8))

    def _append(self, data: np.ndarray) -> None:
        """Append (n,) uint8."""
        head = -self._staged % BLOCK  # bytes up to the next block of the file
        is_in_place = (data.ctypes.data + head) % BLOCK == 0
        if is_in_place and data.size - head >= min(_DIRECT_BYTES, STAGE_BYTES):
            end = data.size - (data.size - head) % BLOCK
            self._digest.update(data[:end].data)
            self._gather(data[:head])
            if self._staged:
                self._write(self._stage[: self._staged])
                self._staged = 0
            self._write(data[head:end])
            data = data[end:]
        while data.size:
            rest = self._gather(data)
            self._digest.update(data[: data.size - rest.size].data)  # still in the cache
            data = rest

    def write_out(self) -> None:
        """Write what is gathered, too: every byte so far then outlives this process."""
        self._take_waiting()
        written = self._written
        count = self._staged
        if count:  # written again with what comes after it
            end = count
            if self._direct:
                end += -count % BLOCK
            self._stage[count:end] = 0  # not the rows of another file
            self._write(self._stage[:end])
            self._written = written
        with naming(self.path):
            if os.fstat(self._fd).st_size < self.nbytes:  # it ends in a hole
                os.ftruncate(self._fd, self.nbytes)

    def skip(self, count: int) -> None:
        """Append zeros; long runs become a hole."""
        self._take_waiting()
        file_checksums.update_zeros(self._digest, count)
        if count >= HOLE_BYTES:
            padding = -self._staged % BLOCK
            self._gather(_ZEROS[:padding])
            self._write(self._stage[: self._staged])
            self._staged = 0
            self._written += (count - padding) // BLOCK * BLOCK
            count = (count - padding) % BLOCK
        zeros = _ZEROS[:count]
        while zeros.size:
            zeros = self._gather(zeros)

    def _gather(self, data: np.ndarray) -> np.ndarray:
        """Fill the stage, and write it once it is full; returns what there was no room for."""
        if self._staged + data.size > self._stage.size < STAGE_BYTES:
            larger = aligned(STAGE_BYTES)
            larger[: self._staged] = self._stage[: self._staged]
            self._stage = larger
        fitting = data[: self._stage.size - self._staged]
        self._stage[self._staged : self._staged + fitting.size] = fitting
        self._staged += fitting.size
        if self._staged == self._stage.size:
            self._write(self._stage)
            self._staged = 0
        return data[fitting.size :]

    def _write(self, data: np.ndarray) -> None:
        try:
            files.write_at(self._fd, data, self._written, self.path)
        except OSError as error:
            # A disk with larger blocks, or a short write that ended within a block.
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = set_direct(self._fd, False)
            files.write_at(self._fd, data, self._written, self.path)
        self._written += data.size

    def finish(self) -> str:
        """Write and flush the rest; returns the digest as 32 hexadecimal digits."""
        self._take_waiting()
        if self._staged:
            if self._direct:  # a file need not end at a block boundary
                self._direct = set_direct(self._fd, False)
            self._write(self._stage[: self._staged])
            self._staged = 0
        with naming(self.path):
            os.ftruncate(self._fd, self._written)  # the file may end in a hole
            os.fsync(self._fd)
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            # closed, even if close() fails
            fd = self._fd
            self._fd = -1
            os.close(fd)


def set_direct(fd: int, on: bool) -> bool:
    """Turn direct writes on or off; returns whether they are on, which the file system decides."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
    if on:
        flags |= os.O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    except OSError:
        return False
    return on


def complete_group(
    folder: Path,
    attributes: dict[str, Any] | None,
    appended: Mapping[ArraySpec, AppendFile],
    rows: Mapping[ArraySpec, int],
    listed: bool = True,
) -> int:
    """Finish all files, write metadata and checksums, and flush everything.

    Args:
        attributes: as in `group_metadata`.
        appended: file of each array, which is closed; that of an array without rows is removed.
        rows: number of rows of each array.
        listed: the folder has a checksum file of its own.

    Returns:
        Bytes of all chunk files.
    """
    group = arrays.group_metadata(attributes, rows)
    metadata = {arrays.METADATA_NAME: group}
    digests = {}
    total = 0
    for spec, file in appended.items():
        if rows[spec]:
            sizes = arrays.ChunkFile(spec, rows[spec])
            zeros = sizes.padded_bytes - sizes.data_bytes
            file.skip(zeros)
            file.append(np.frombuffer(sizes.tail(), np.uint8)[zeros:])
            digests[spec.chunk_path] = file.finish()
            total += sizes.file_bytes
        file.close()
        if not rows[spec]:
            file.path.unlink()
        described = group["consolidated_metadata"]["metadata"][spec.name]
        metadata[f"{spec.name}/{arrays.METADATA_NAME}"] = described
    for name, described in metadata.items():
        data = arrays.canonical_json(described)
        digests[name] = xxhash.xxh3_128_hexdigest(data)
        files.write_durably(folder / name, data)
    for spec in appended:
        files.flush_folder(folder / spec.name)
    if listed:
        files.write_durably(
            folder / file_checksums.CHECKSUMS_NAME, file_checksums.format_checksums(digests)
        )
    files.flush_folder(folder)
    return total


# ------------------------------------------------------------------------------------------ shards

# The rows of k samples by array name, of the types of the layout, those of one sample after those
# of the other: per-sample arrays of k rows in any shape, per-mask arrays (m, ...), run_ends (r,),
# run_offset (m + 1,) starting at 0, and flat images as their bytes (n,). image_offset, mask_offset
# and checksum are absent. Rows of a canvas below the stored height are not read.
Samples = Mapping[str, np.ndarray]


def finished_rows(
    layout: Layout, samples: Samples, image_bytes: np.ndarray, masks: np.ndarray
) -> dict[str, np.ndarray]:
    """Everything that a shard stores of k samples, with the exact shape of each array.

    Args:
        layout: layout of the pack.
        samples: their rows.
        image_bytes, masks: int64 (k,), bytes of the image and number of masks of each.

    Returns:
        C-contiguous (n, *row_shape) arrays, as views where the input is contiguous, and the
        `checksum`, (k,) uint64 (docs/format.md, "Checksums"). Offset arrays become lengths, so
        nothing depends on the position of the samples: mask_offset (k,) int64, the number of masks;
        image_offset (k,) int64, the number of bytes of the image; run_offset (m,) int64, the number
        of runs of each mask.
    """
    lengths_of_samples = {"image_byte": image_bytes, "mask": masks}
    rows = {}
    for spec in layout.arrays:
        if spec.child_axis is not None and spec.axis == "sample":
            rows[spec.name] = lengths_of_samples[spec.child_axis]
        elif spec.child_axis is not None:
            rows[spec.name] = np.diff(samples[spec.name])
        elif spec.name != "checksum":
            rows[spec.name] = np.ascontiguousarray(samples[spec.name]).reshape(-1, *spec.row_shape)
    rows["checksum"] = rows_checksums(layout, rows)
    return rows


def sample_lengths(layout: Layout, sample: Samples) -> AxisLengths:
    """The `finished_rows` of samples along each axis of a shard."""
    return AxisLengths(
        samples=len(sample["image_id"]),
        masks=len(sample["number_types"]),
        runs=len(sample["run_ends"]) if layout.runs else 0,
        image_bytes=sample["image"].size if layout.flat else 0,
    )


class ShardWriter:
    """An unpublished shard: samples are appended to it, then it is published or discarded.

    A context manager that discards the shard unless it was published. For one thread at a time.
    """

    def __init__(self, shards_dir: Path, name: str, layout: Layout):
        """Create the working folder of a shard, with empty chunk files.

        Args:
            shards_dir: folder of the shards.
            name: name of the shard, which must pass `check_shard_name`.
            layout: layout of the pack.

        Raises:
            PackError: a shard of that name exists.
            OSError: the folder cannot be created.
        """
        self.name = name
        self.layout = layout
        self.lengths = AxisLengths()
        self._annotations = 0
        self._final = Path(shards_dir) / name
        if exists(self._final):
            raise PackError(f"{self._final}: the shard exists already; remove it to pack it again")
        self.folder = working_names.temporary_beside(self._final)
        self._files: dict[ArraySpec, AppendFile] = {}
        try:
            self.folder.mkdir(parents=True)
            for spec in layout.arrays:
                (self.folder / spec.name).mkdir()
                self._files[spec] = file = AppendFile(self.folder / spec.chunk_path)
                if spec.offsets:
                    file.append(files.byte_view(np.zeros(1, spec.dtype)))
        except BaseException:
            self.discard()
            raise

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Write the `finished_rows` of the next samples; the arrays may change afterwards.

        Only the rows of a canvas that hold the image are read; the rest is zero, and a hole on
        disk. Raises OSError naming the file if the disk fails; the shard can then not be published.
        """
        for spec, file in self._files.items():
            if spec.child_axis is not None:
                ends = self.lengths.along(spec.child_axis) + np.cumsum(rows[spec.name])
                file.append(ends)
            elif spec.name == "image" and not self.layout.flat:
                for image, height in zip(rows["image"], rows["size"][:, 2].tolist(), strict=True):
                    pieces = canvas_pieces(self.layout, files.byte_view(image), height)
                    for zeros, piece in pieces:
                        file.skip(zeros)
                        file.append(piece)
            else:
                file.append(rows[spec.name])
        self.lengths = self.lengths + sample_lengths(self.layout, rows)
        self._annotations += int(rows["annotation_count"].sum())

    def complete(self, attributes: dict[str, Any]) -> ShardEntry:
        """Complete the shard and flush it, under its working name.

        Every `append` must have been completed. `folder` then has all of its files, and the digest
        of its checksum file is that of the shard.

        Args:
            attributes: JSON data for the attributes of the group; "source" (str) and "part" (int)
                are required, and those of the format are added.

        Returns:
            The shard's entry in the manifest.

        Raises:
            OSError: writing fails.
        """
        rows = self.layout.array_rows(self.lengths)
        counts = {**asdict(self.lengths), "annotations": self._annotations}
        of_format = {"format": list(FORMAT_VERSION), "layout": self.layout.to_json(), **counts}
        nbytes = complete_group(self.folder, {**attributes, **of_format}, self._files, rows)
        return ShardEntry(
            name=self.name,
            source=attributes["source"],
            part=attributes["part"],
            bytes=nbytes,
            **counts,
        )

    def claim_name(self) -> None:
        """Give the shard, which is complete, its final name.

        After an OSError the shard does not exist, unless only the last flush, after the rename,
        failed.
        """
        self.folder.rename(self._final)
        self.folder = self._final
        files.flush_folder(self._final.parent)

    def publish(self, attributes: dict[str, Any]) -> ShardEntry:
        """Complete the shard, and give it its final name, as `complete` and `claim_name` do."""
        entry = self.complete(attributes)
        self.claim_name()
        return entry

    def discard(self) -> None:
        """Remove the working folder; does nothing after publication.

        What a failing disk keeps from being removed, the next run removes.
        """
        if self.folder != self._final:
            for file in self._files.values():
                file.close()
            removal.discard_entry(self.folder)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
