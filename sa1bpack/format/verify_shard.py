"""Checking a group: its files, their digests and, sample by sample, the contents of a shard.

A full check reads every file once, front to back, and computes the digest of the file and the
checksums of samples from the same bytes. It reads with `preadv`, not through a memory map: a disk
error is then a problem to report, not a signal that kills the process.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import describe_fall, first_fall
from sa1bpack.format.array_stream import ArrayStream, PackFiles, check_tail
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums, rows_checksum
from sa1bpack.format.files import byte_view
from sa1bpack.format.image_bytes import image_nbytes, is_zero_beyond
from sa1bpack.format.layout import ArraySpec, Layout
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.format.problems import Check
from sa1bpack.format.shard_reader import Shard, open_shard
from sa1bpack.format.zarr_metadata import METADATA_NAME
from sa1bpack.wording import counted

# Nine tenths and more of a pack: a quick check skips their digests.
HEAVY_ARRAYS = ("image", "mask_bits", "run_ends")

# Files of several blocks that a shard has: image, mask_bits and run_ends.
_THREADS = 3

# The digests of a checksum file by path; None if it cannot be read.
Listed = dict[str, str] | None


def check_group(
    check: Check,
    folder: Path,
    read: Callable[[Listed], Set[str]],
    *,
    heavy: Set[str],
    known: Set[str] = frozenset(),
    **place,
) -> None:
    """Check the files of a shard, or of a part of a side array.

    read   checks what is in them, given what the checksum file lists; returns the paths of those
           whose digest need not be compared any more
    heavy  files whose digest is not compared either if `read` fails
    known  files that are not reported as foreign if the checksum file does not list them
    """
    listed, done = None, heavy
    with check.collecting(**place):
        listed = read_checksums(folder / CHECKSUMS_NAME)
        compare_files(check, folder, {*listed, CHECKSUMS_NAME}, known, **place)
    with check.collecting(**place):
        done = read(listed)
    for path, expected in (listed or {}).items():
        if path not in done:
            check.digest(folder / path, expected, array=_array_of(path), **place)


def check_shard(
    check: Check, folder: Path, entry: ShardEntry, layout: Layout, *, quick: bool
) -> None:
    """Check a shard against its manifest entry.

    quick  skip what HEAVY_ARRAYS hold
    """
    chunks = {spec.name: spec.chunk_path for spec in layout.arrays}
    heavy = {chunks[name] for name in HEAVY_ARRAYS if name in chunks} if quick else set()

    def read(listed: Listed) -> Set[str]:
        shard = open_shard(folder, layout)
        _check_against_entry(shard, entry)
        arrays = layout.array_rows(shard.extent)
        if listed is not None:  # otherwise it was reported; samples have checksums of their own
            check_listed(folder, arrays, listed)
        if _check_offsets(check, shard) and not quick:
            _check_samples(check, shard, listed)
            return set(chunks.values())
        for spec, rows in arrays.items():
            with check.collecting(shard=entry.name, array=spec.name):
                check_tail(check.files, folder, spec, rows)
        return heavy

    # If a damaged checksum file does not list a file that the layout has, that is the problem, and
    # the user must not be told to remove the file.
    known = files_of(layout.array_rows(entry.extent), every_chunk=True)
    done = check.done
    check_group(check, folder, read, heavy=heavy, known=known, shard=entry.name)
    check.advance(done + entry.bytes - check.done)


def files_of(arrays: Mapping[ArraySpec, int], every_chunk: bool = False) -> set[str]:
    """The files of a group of these arrays, by their number of rows, but for the checksum file.

    every_chunk  with a chunk file for arrays without rows, too
    """
    chunks = {spec.chunk_path for spec, rows in arrays.items() if rows or every_chunk}
    return chunks | {METADATA_NAME} | {f"{spec.name}/{METADATA_NAME}" for spec in arrays}


def check_listed(folder: Path, arrays: Mapping[ArraySpec, int], listed: dict[str, str]) -> None:
    """Raise FormatError unless the checksum file of a group covers exactly its files."""
    if different := files_of(arrays) ^ set(listed):
        raise FormatError(
            f"{folder / CHECKSUMS_NAME}: must list exactly the files of the folder; missing or "
            f"extra: {sorted(different)}"
        )


def compare_files(
    check: Check, folder: Path, expected: set[str], known: Set[str] = frozenset(), **place
) -> None:
    """Report files below `folder` that are missing or not listed, and note links.

    Files in `known` that are not in `expected` are not reported here.

    A link in place of a file or a folder is followed: file stores such as a Hugging Face cache
    consist of links, and users keep arrays on several disks. Any other link is reported.
    """
    inner = {path.rpartition("/")[0] for path in expected | known} - {""}
    found = dict(_files_below(folder, inner))
    links = {path for path, is_link in found.items() if is_link}
    if followed := sorted(links & (expected | inner)):
        check.notes.append(
            f"{folder}: it has {counted(len(followed), 'symbolic link')}, the first "
            f"{followed[0]} to {(folder / followed[0]).readlink()}; their targets were checked"
        )
    for path in sorted(expected - found.keys()):
        check.add(f"{folder / path}: missing", array=_array_of(path), **place)
    for path in sorted(found.keys() - expected - known - (links & inner)):
        what = f"{folder / path}: not a file of the pack; remove it"
        check.add(what, array=_array_of(path), extra=True, **place)


def _files_below(folder: Path, inner: Set[str]) -> Iterator[tuple[str, bool]]:
    """(relative path, whether it is a symbolic link) of everything except folders.

    Links in place of one of the folders `inner` are yielded and followed.
    """
    folders = [""]
    while folders:
        prefix = folders.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                    continue
                path = prefix + entry.name
                yield path, entry.is_symlink()
                if path in inner and (folder / path).is_dir():
                    folders.append(f"{path}/")


def _array_of(path: str) -> str | None:
    """The array that a path below a group's folder leads into."""
    array, slash, _ = path.partition("/")
    return array if slash else None


def _check_against_entry(shard: Shard, entry: ShardEntry) -> None:
    for key in entry.__struct_fields__:
        found, expected = getattr(shard.entry, key), getattr(entry, key)
        if found != expected:
            raise FormatError(
                f"{shard.folder}: {key} is {found!r}, but the manifest says {expected!r}; repeat "
                "the pack command"
            )


def _check_offsets(check: Check, shard: Shard) -> bool:
    """Whether offsets are non-decreasing; if they are not, reports the sample."""
    for spec in shard.layout.arrays:
        if not spec.offsets or (row := first_fall(shard[spec.name])) is None:
            continue
        sample = row
        if spec.axis == "mask":  # mask_offset was checked before
            sample = int(np.searchsorted(shard["mask_offset"], row, side="right")) - 1
        check.add(
            f"{shard.folder / spec.name}: {describe_fall(shard[spec.name], row)}",
            array=spec.name,
            **_place(shard, sample, shard["image_id"][sample], shard["file_name"][sample]),
        )
        return False
    return True


def _place(shard: Shard, sample: int, image_id: np.ndarray, file_name: np.ndarray) -> dict:
    """The fields of a Problem that name a sample."""
    return {
        "shard": shard.entry.name,
        "sample": sample,
        "image_id": int(image_id),
        "file_name": byte_view(file_name).tobytes().rstrip(b"\0").decode(errors="replace"),
    }


class ArrayStreams(ExitStack):
    """Arrays of a folder that are read side by side: a thread for each reads its next block."""

    def __init__(self, files: PackFiles, folder: Path):
        super().__init__()
        self._files, self._folder = files, folder
        self._helper = self.enter_context(ThreadPoolExecutor(_THREADS, "sa1bpack-read-ahead"))

    def open(self, spec: ArraySpec, rows: int) -> ArrayStream:
        """Open one. Raises OSError."""
        stream = ArrayStream(self._files, self._folder, spec, rows, self._helper)
        return self.enter_context(closing(stream))


def _check_samples(check: Check, shard: Shard, listed: Listed) -> None:
    """Read the shard once: check the checksum of each sample, then the digest of each chunk file.

    Offsets were checked before, and `listed` covers every file, or is None.
    """
    with ArrayStreams(check.files, shard.folder) as opened:
        arrays = shard.layout.array_rows(shard.extent)
        streams = {spec.name: opened.open(spec, rows) for spec, rows in arrays.items()}
        for stream in streams.values():
            if stream.spec.offsets:
                stream.take(1)  # the leading 0; each sample then takes its own ends
        before, total = check.done, shard.entry.bytes
        for row in range(len(shard)):
            _check_sample(check, shard, row, streams)
            check.advance(before + total * (row + 1) // len(shard) - check.done)
        for name, stream in streams.items():
            if stream.file.rows:
                place = {"shard": shard.entry.name, "array": name}
                with check.collecting(**place):
                    found = stream.finish()
                    if listed is not None:
                        expected = listed[stream.spec.chunk_path]
                        check.same_digest(stream.path, found, expected, **place)


def _check_sample(check: Check, shard: Shard, row: int, streams: dict[str, ArrayStream]) -> None:
    rows = _take_sample(shard, row, streams)
    stored = int(rows.pop("checksum")[0])
    side = shard.layout.image_size
    found = rows_checksum(shard.layout, rows, side)
    height, width = (int(length) for length in rows["size"][0, 2:])
    if found != stored:
        what = f"checksum of the sample is {found:016x}, but {stored:016x} is stored"
    elif not (1 <= height <= side and 1 <= width <= side):
        what = f"stored size {height} x {width} is not within 1 and the layout's {side}"
    elif shard.layout.flat and rows["image"].size != image_nbytes(shard.layout, height, width):
        what = f"{rows['image'].size} bytes of pixels do not make {height} x {width} pixels"
    elif not shard.layout.flat and not is_zero_beyond(
        shard.layout, byte_view(rows["image"]), height, width
    ):
        what = f"the canvas is not zero beyond the stored {height} x {width} pixels"
    else:
        return
    check.add(what, **_place(shard, row, rows["image_id"][0], rows["file_name"][0]))


def _take_sample(shard: Shard, row: int, streams: dict[str, ArrayStream]) -> dict[str, np.ndarray]:
    """The rows of the next sample from every stream, offsets as lengths (see `rows_checksum`)."""
    counts = {"sample": 1}
    first = {"sample": row}
    taken = {}
    for spec in shard.layout.arrays:
        count = counts[spec.axis]
        rows = streams[spec.name].take(count)
        if spec.offsets:
            start = first[spec.axis]
            before = shard[spec.name][start : start + count]  # the ends of the previous rows
            rows = rows - before
            first[spec.child_axis] = int(before[0]) if count else 0
            counts[spec.child_axis] = int(rows.sum())
        taken[spec.name] = rows
    return taken
