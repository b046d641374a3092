"""Checking one shard: structure, file digests and, sample by sample, contents.

A full check reads every file once, front to back, and computes the digest of the file and the
checksums of samples from the same bytes. It reads with `preadv`, not through a memory map: a disk
error is then a problem to report, not a signal that kills the process.
"""

import os
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import describe_fall, first_fall
from sa1bpack.format.array_stream import ArrayStream, ArrayStreams, Reader, compare_tail
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums, rows_checksum
from sa1bpack.format.files import byte_view
from sa1bpack.format.image_bytes import image_nbytes, is_zero_beyond
from sa1bpack.format.layout import ArraySpec, Layout
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.format.problems import Findings
from sa1bpack.format.shard_reader import Shard, open_shard
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file
from sa1bpack.wording import counted

# Nine tenths and more of a pack: a quick check skips their digests.
HEAVY_ARRAYS = ("image", "mask_bits", "run_ends")

_OF_THIS_MACHINE = Reader()


def check_shard(
    folder: Path,
    entry: ShardEntry,
    layout: Layout,
    findings: Findings,
    *,
    quick: bool,
    reader: Reader = _OF_THIS_MACHINE,
    advance: Callable[[int], None],
) -> None:
    """Check a shard against its manifest entry.

    quick    skip what HEAVY_ARRAYS hold
    reader   reads its large files, and those that are too damaged to be split into samples
    advance  called with bytes checked
    """
    listed = None
    with findings.collecting(shard=entry.name):
        listed = read_checksums(folder / CHECKSUMS_NAME)
        expected = {*listed, CHECKSUMS_NAME}
        compare_files(folder, expected, findings, known=_names_of(layout), shard=entry.name)
    with findings.collecting(shard=entry.name):
        shard = open_shard(folder, layout)
        _check_against_entry(shard, entry)
        if listed is not None:  # otherwise it was reported; samples have checksums of their own
            _check_listed(shard, listed)
        rising = _check_offsets(shard, findings)
        if rising and not quick:
            _check_samples(shard, listed, findings, reader, advance)
            streamed = {spec.chunk_path for spec in layout.arrays}
            _check_digests(folder, listed or {}, streamed, findings, entry.name, reader)
            return
        for spec in layout.arrays:
            with findings.collecting(shard=entry.name, array=spec.name):
                check_tail(folder, spec, spec.rows(shard.extent), reader)
    # Quick, or too damaged to be split into samples.
    heavy = {spec.chunk_path for spec in layout.arrays if spec.name in HEAVY_ARRAYS}
    skipped = heavy if quick else set()
    _check_digests(folder, listed or {}, skipped, findings, entry.name, reader)
    advance(entry.bytes)


def _names_of(layout: Layout) -> set[str]:
    """The files that a shard of this layout may have.

    If a damaged checksum file does not list one of them, that is the problem (_check_listed), and
    the user must not be told to remove the file.
    """
    arrays = {name for spec in layout.arrays for name in (spec.chunk_path, _metadata_of(spec))}
    return arrays | {METADATA_NAME}


def _metadata_of(spec: ArraySpec) -> str:
    return f"{spec.name}/{METADATA_NAME}"


def compare_files(
    folder: Path, expected: set[str], findings: Findings, known: Set[str] = frozenset(), **place
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
        findings.notes.append(
            f"{folder}: it has {counted(len(followed), 'symbolic link')}, the first "
            f"{followed[0]} to {(folder / followed[0]).readlink()}; their targets were checked"
        )
    for path in sorted(expected - found.keys()):
        findings.add(f"{folder / path}: missing", array=_array_of(path), **place)
    for path in sorted(found.keys() - expected - known - (links & inner)):
        findings.add(
            f"{folder / path}: not a file of the pack; remove it",
            array=_array_of(path),
            extra=True,
            **place,
        )


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


def check_digest(
    folder: Path,
    path: str,
    expected: str,
    findings: Findings,
    *,
    reader: Reader = _OF_THIS_MACHINE,
    **place,
) -> None:
    """Compare the XXH3-128 of a file with the listed one; missing files are reported elsewhere."""
    with findings.collecting(**place):
        try:
            found = reader.digest(folder / path)
        except (FileNotFoundError, NotADirectoryError):
            return
        findings.files += 1
        compare_digests(folder / path, found, expected, findings, **place)


def compare_digests(path: Path, found: str, expected: str, findings: Findings, **place) -> None:
    if found != expected:
        findings.add(f"{path}: XXH3-128 is {found}, but {CHECKSUMS_NAME} says {expected}", **place)


def _check_digests(
    folder: Path,
    listed: dict[str, str],
    skipped: set[str],
    findings: Findings,
    shard: str,
    reader: Reader,
) -> None:
    for path, expected in listed.items():
        if path not in skipped:
            place = {"shard": shard, "array": _array_of(path)}
            check_digest(folder, path, expected, findings, reader=reader, **place)


def _check_against_entry(shard: Shard, entry: ShardEntry) -> None:
    for key in entry.__struct_fields__:
        found, expected = getattr(shard.entry, key), getattr(entry, key)
        if found != expected:
            raise FormatError(
                f"{shard.folder}: {key} is {found!r}, but the manifest says {expected!r}; repeat "
                "the pack command"
            )


def _check_listed(shard: Shard, listed: dict[str, str]) -> None:
    """Check that the checksum file covers every file of the shard."""
    arrays = shard.layout.array_rows(shard.extent)
    expected = {METADATA_NAME} | {_metadata_of(spec) for spec in arrays}
    expected |= {spec.chunk_path for spec, rows in arrays.items() if rows}
    if expected != set(listed):
        raise FormatError(
            f"{shard.folder / CHECKSUMS_NAME}: must list exactly the files of the shard; missing "
            f"or extra: {sorted(expected ^ set(listed))}"
        )


def _check_offsets(shard: Shard, findings: Findings) -> bool:
    """Whether offsets are non-decreasing; if they are not, reports the sample."""
    for spec in shard.layout.arrays:
        if not spec.offsets or (row := first_fall(shard[spec.name])) is None:
            continue
        sample = row
        if spec.axis == "mask":  # mask_offset was checked before
            sample = int(np.searchsorted(shard["mask_offset"], row, side="right")) - 1
        findings.add(
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
        "file_name": decode_name(file_name),
    }


def check_tail(folder: Path, spec: ArraySpec, rows: int, reader: Reader = _OF_THIS_MACHINE) -> None:
    """Check the zero rows and the shard index after an array's data."""
    file = chunk_file(spec, rows)
    if not file.rows:
        return
    path = folder / spec.chunk_path
    compare_tail(path, reader.rest(path, file.data_bytes), file.tail())


def _check_samples(
    shard: Shard,
    listed: dict[str, str] | None,
    findings: Findings,
    reader: Reader,
    advance: Callable[[int], None],
) -> None:
    """Read the shard once: check the checksum of each sample, then the digest of each chunk file.

    Offsets were checked before, and `listed` covers every file, or is None.
    """
    streams: dict[str, ArrayStream] = {}
    with ArrayStreams(reader) as opened:
        for spec in shard.layout.arrays:
            streams[spec.name] = opened.open(shard.folder, spec, spec.rows(shard.extent))
        for stream in streams.values():
            if stream.spec.offsets:
                stream.take(1)  # the leading 0; each sample then takes its own ends
        done, total = 0, shard.entry.bytes
        for row in range(len(shard)):
            _check_sample(shard, row, streams, findings)
            advance(total * (row + 1) // len(shard) - done)
            done = total * (row + 1) // len(shard)
        advance(total - done)  # a shard without samples has a few bytes of offsets
        for name, stream in streams.items():
            if stream.file.rows:
                place = {"shard": shard.entry.name, "array": name}
                with findings.collecting(**place):
                    found = stream.finish()
                    if listed is not None:
                        findings.files += 1
                        expected = listed[stream.spec.chunk_path]
                        compare_digests(stream.path, found, expected, findings, **place)


def _check_sample(
    shard: Shard, row: int, streams: dict[str, ArrayStream], findings: Findings
) -> None:
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
    findings.add(what, **_place(shard, row, rows["image_id"][0], rows["file_name"][0]))


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


def decode_name(name: np.ndarray) -> str:
    """A row of file_name, (64,) uint8, as text."""
    return byte_view(name).tobytes().rstrip(b"\0").decode(errors="replace")
