"""Writing a shard: many processes put samples into it, one process publishes it.

    ShardDraft   one process: makes the working folder, hashes what is final, publishes or discards
    ShardRows    any process: writes samples at given positions of the working folder

The working folder has a temporary name beside the final one. It gets its final name by one rename,
after every byte of it was flushed, so whatever bears a final name is whole.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.errors import FormatError, OptionError, PackError
from sa1bpack.format.checksums import (
    CHECKSUMS_NAME,
    format_checksums,
    rows_checksum,
    update_zeros,
)  # fmt: skip
from sa1bpack.format.files import (
    TEMPORARY_PREFIX,
    byte_view,
    flush_file,
    flush_folder,
    naming,
    write_at,
    write_durably,
)  # fmt: skip
from sa1bpack.format.image_place import canvas_spans
from sa1bpack.format.layout import FORMAT_VERSION, ArraySpec, Extent, Layout
from sa1bpack.format.manifest import ShardEntry, check_shard_name
from sa1bpack.format.sample_rows import Sample, checked_rows, sample_extent, stored_height
from sa1bpack.format.zarr_metadata import (
    METADATA_NAME,
    array_metadata,
    canonical_json,
    chunk_file,
    group_metadata,
)

# Read back in pieces that stay in a core's cache between the copy and the hash.
SETTLE_BYTES = 256 * 1024
# Smaller files are flushed by publication alone.
FLUSH_BYTES = 16 << 20
# Attributes of a shard that the draft fills in itself.
_OWN_ATTRIBUTES = (
    "format", "layout", "samples", "masks", "runs", "image_bytes", "annotations"
)  # fmt: skip


class ShardRows:
    """The chunk files of an unpublished shard, open for writing samples in place.

    Safe in several processes at once as long as no two write the same position. Use as a context
    manager, or call `close()`.
    """

    def __init__(self, folder: Path, layout: Layout):
        """Open the chunk files under a draft's `folder`. Raises OSError if one is missing."""
        self._layout = layout
        self._files: dict[str, tuple[int, Path]] = {}
        try:
            for spec in layout.arrays:
                path = Path(folder) / spec.chunk_path
                self._files[spec.name] = (os.open(path, os.O_WRONLY), path)
        except BaseException:
            self.close()
            raise

    def write(self, sample: Sample, at: Extent) -> Extent:
        """Write one sample whose first rows stand at position `at`; returns its extent.

        Of a canvas only the rows that hold the image are written: the rest is a hole that reads
        as zero. Raises OptionError if the sample does not fit the layout (nothing is written then),
        OSError naming the file if writing fails.
        """
        rows = checked_rows(self._layout, sample)
        height = stored_height(rows)
        checksum = rows_checksum(self._layout, rows, height)
        for spec in self._layout.arrays:
            if spec.name == "image" and not self._layout.flat:
                self._write_canvas(spec, rows["image"], height, at.samples)
            elif spec.name == "checksum":
                self._write_rows(spec, np.array([checksum], spec.dtype), at.samples)
            elif spec.offsets:
                ends = at.along(spec.child_axis) + np.cumsum(rows[spec.name])
                self._write_rows(spec, ends, at.along(spec.axis) + 1)
            else:
                self._write_rows(spec, rows[spec.name], at.along(spec.axis))
        return sample_extent(self._layout, rows)

    def _write_rows(self, spec: ArraySpec, rows: np.ndarray, first: int) -> None:
        if rows.size:
            fd, path = self._files[spec.name]
            write_at(fd, byte_view(rows), first * spec.row_bytes, path)

    def _write_canvas(self, spec: ArraySpec, image: np.ndarray, height: int, first: int) -> None:
        data = byte_view(image)
        begin = first * spec.row_bytes
        fd, path = self._files[spec.name]
        for start, stop in canvas_spans(self._layout, height):
            write_at(fd, data[start:stop], begin + start, path)
        if stop < spec.row_bytes:  # the file reaches to the end of the row all the same
            write_at(fd, b"\0", begin + spec.row_bytes - 1, path)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        while self._files:
            fd, _ = self._files.popitem()[1]
            os.close(fd)

    def __enter__(self) -> "ShardRows":
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _DraftFile:
    """A chunk file of a draft and the running XXH3-128 of its settled bytes."""

    def __init__(self, folder: Path, spec: ArraySpec):
        self.spec = spec
        self.path = folder / spec.chunk_path
        self.path.parent.mkdir()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self._cut(spec.row_bytes if spec.offsets else 0)  # offsets begin with a 0
        except BaseException:
            self.close()
            raise
        self._digest = xxhash.xxh3_128()
        self._settled = 0  # bytes

    def settle(self, end: int, buffer: memoryview) -> None:
        """Hash the bytes below `end` that were not hashed yet."""
        while self._settled < end:
            piece = buffer[: min(len(buffer), end - self._settled)]
            with naming(self.path):
                count = os.preadv(self.fd, [piece], self._settled)
            if count == 0:
                raise FormatError(
                    f"{self.path}: ends at byte {self._settled}, but the rows up to byte {end} "
                    "were said to be written; pack this part again"
                )
            self._digest.update(piece[:count])
            self._settled += count

    @property
    def settled_bytes(self) -> int:
        """Bytes that are final and hashed."""
        return self._settled

    def settle_hole(self, end: int) -> None:
        """Hash the bytes below `end` as the zeros that they are, without reading them."""
        update_zeros(self._digest, end - self._settled)
        self._settled = end

    def finish(self, rows: int) -> str | None:
        """Cut and complete the file, flush it, and return its digest (None: no rows, no file)."""
        file = chunk_file(self.spec, rows)
        if rows == 0:
            self.path.unlink()
            return None
        self._cut(file.data_bytes)  # drops rows behind the last settled one
        tail = file.tail()
        index = tail[file.padded_bytes - file.data_bytes :]
        write_at(self.fd, index, file.padded_bytes, self.path)  # before it, zero rows: a hole
        self._digest.update(tail)
        flush_file(self.fd, self.path)
        return self._digest.hexdigest()

    def _cut(self, nbytes: int) -> None:
        with naming(self.path):
            os.ftruncate(self.fd, nbytes)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class ShardDraft:
    """One unpublished shard: a context manager that discards what was not published."""

    def __init__(self, shards_dir: Path, name: str, layout: Layout):
        """Make the working folder of shard `name` with empty chunk files in it.

        Raises PackError if a shard of that name is there already, FormatError for a name that
        cannot be a folder, OSError if the folder cannot be made.
        """
        check_shard_name(name, "new shard")
        self.name = name
        self.layout = layout
        self._final = Path(shards_dir) / name
        if self._final.exists():
            raise PackError(f"{self._final}: there is a shard already; remove it to pack it again")
        self.folder = self._final.with_name(f"{TEMPORARY_PREFIX}{name}-{secrets.token_hex(4)}")
        self._files: list[_DraftFile] = []
        self._settled = Extent()
        self._buffer = memoryview(bytearray(SETTLE_BYTES))
        self.folder.mkdir(parents=True)
        try:
            for spec in layout.arrays:
                self._files.append(_DraftFile(self.folder, spec))
        except BaseException:
            self.discard()
            raise

    def settle(self, upto: Extent) -> None:
        """Say that all rows below `upto` are written for good, and hash them while they are cached.

        Called every few dozen samples it spares publication a second reading of the shard. Raises
        OptionError if `upto` is before an earlier one, FormatError if a file ends before it.
        """
        if any(upto.along(spec.axis) < self._settled.along(spec.axis)
               for spec in self.layout.arrays):  # fmt: skip
            raise OptionError(f"{self.folder}: settled up to {self._settled}, not back to {upto}")
        for file in self._files:
            if file.spec.name == "image" and not self.layout.flat:
                self._settle_canvases(file, upto.samples)
            else:
                file.settle(file.spec.rows(upto) * file.spec.row_bytes, self._buffer)
        self._settled = upto

    def _settle_canvases(self, file: _DraftFile, samples: int) -> None:
        """Hash the stored part of each canvas; reading the holes in it would fill the cache."""
        row_bytes = file.spec.row_bytes
        first = self._settled.samples
        for row, height in enumerate(self._stored_heights(first, samples), first):
            for start, stop in canvas_spans(self.layout, height):
                file.settle_hole(row * row_bytes + start)
                file.settle(row * row_bytes + stop, self._buffer)
            file.settle_hole((row + 1) * row_bytes)

    def _stored_heights(self, first: int, stop: int) -> list[int]:
        """Stored heights of samples [first, stop), from the file of `size`."""
        spec = self.layout.array("size")
        path = self.folder / spec.chunk_path
        sizes = np.fromfile(path, "<i4", 4 * (stop - first), offset=first * spec.row_bytes)
        if len(sizes) < 4 * (stop - first):
            raise FormatError(
                f"{path}: ends before sample {stop - 1}, but the rows up to it were said to be "
                "written; pack this part again"
            )
        return sizes[2::4].tolist()

    def flush(self) -> None:
        """Bring to disk what is settled of the large files, so that publication waits for little.

        What is there is let go of by the page cache: a pack is larger than memory, and finding room
        for each page by evicting another costs more than writing it (docs/decisions/0007).

        Any thread may call it, also while others write or discard. Errors are left to publication:
        these descriptors are its own, so those of the draft report them again.
        """
        for file in self._files:
            if file.settled_bytes >= FLUSH_BYTES:
                end = file.settled_bytes
                with suppress(OSError):
                    fd = os.open(file.path, os.O_RDONLY)
                    try:
                        os.fdatasync(fd)
                        if hasattr(os, "posix_fadvise"):  # not on macOS
                            os.posix_fadvise(fd, 0, end, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(fd)

    def publish(self, extent: Extent, attributes: dict[str, Any]) -> ShardEntry:
        """Complete the shard, flush it and give it its final name; returns its manifest entry.

        extent      the shard's length; rows behind it are cut off
        attributes  JSON data for the group's attributes; needs "source" (str) and "part" (int)

        Raises OptionError for attributes that are missing or are the format's own, FormatError if
        rows are missing, OSError if writing fails. The shard does not exist after an error, unless
        only the last flush, after the rename, failed.
        """
        _check_attributes(attributes)
        self.settle(extent)
        annotations = self._annotation_total(extent.samples)
        entry = ShardEntry(
            name=self.name, source=attributes["source"], part=attributes["part"],
            samples=extent.samples, masks=extent.masks, runs=extent.runs,
            image_bytes=extent.image_bytes, annotations=annotations,
            bytes=shard_bytes(self.layout, extent),
        )  # fmt: skip
        own = {
            "format": list(FORMAT_VERSION), "layout": self.layout.to_json(),
            "samples": extent.samples, "masks": extent.masks, "runs": extent.runs,
            "image_bytes": extent.image_bytes, "annotations": annotations,
        }  # fmt: skip
        arrays = self.layout.array_rows(extent)
        group = canonical_json(group_metadata({**attributes, **own}, arrays))
        self._complete(extent, group)
        self.folder.rename(self._final)
        self._close()
        self.folder = self._final
        flush_folder(self._final.parent)
        return entry

    def _annotation_total(self, samples: int) -> int:
        """Sum of `annotation_count` over the settled samples."""
        path = self.folder / self.layout.array("annotation_count").chunk_path
        return int(np.fromfile(path, "<i4", samples).sum(dtype=np.int64))

    def _complete(self, extent: Extent, group: bytes) -> None:
        """Finish all files, write metadata and checksums, and flush everything."""
        digests = {}
        for file in self._files:
            spec, rows = file.spec, file.spec.rows(extent)
            digest = file.finish(rows)
            if digest is not None:
                digests[spec.chunk_path] = digest
            metadata = canonical_json(array_metadata(spec, rows))
            digests[f"{spec.name}/{METADATA_NAME}"] = xxhash.xxh3_128_hexdigest(metadata)
            write_durably(self.folder / spec.name / METADATA_NAME, metadata)
            flush_folder(self.folder / spec.name)
        digests[METADATA_NAME] = xxhash.xxh3_128_hexdigest(group)
        write_durably(self.folder / METADATA_NAME, group)
        write_durably(self.folder / CHECKSUMS_NAME, format_checksums(digests))
        flush_folder(self.folder)

    def discard(self) -> None:
        """Remove the working folder; does nothing after publication.

        What cannot be removed just now, on a disk that fails, the next run removes.
        """
        self._close()
        if self.folder != self._final:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> "ShardDraft":
        return self

    def __exit__(self, *_) -> None:
        self.discard()


def shard_bytes(layout: Layout, extent: Extent) -> int:
    """Bytes of a shard's chunk files together, holes included."""
    arrays = layout.array_rows(extent)
    return sum(chunk_file(spec, rows).file_bytes for spec, rows in arrays.items())


def _check_attributes(attributes: dict[str, Any]) -> None:
    part, source = attributes.get("part"), attributes.get("source")
    if not isinstance(source, str) or isinstance(part, bool) or not isinstance(part, int):
        raise OptionError(
            f"a shard needs the attributes source (text) and part (whole number), found "
            f"source={source!r}, part={part!r}"
        )
    taken = sorted(set(attributes) & set(_OWN_ATTRIBUTES))
    if taken:
        raise OptionError(f"the attributes {taken} of a shard are the format's own: rename them")
