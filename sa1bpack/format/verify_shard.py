"""Checking a shard, or a feature shard: its files, their digests and, sample by sample, it all.

A full check reads every file once, front to back, and computes the digest of the file and the
checksums of samples from the same bytes. It reads with `preadv`, not through a memory map: a disk
error is then a problem to report, not a signal that kills the process.
"""

from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.disk.direct import FileStream
from sa1bpack.errors import FormatError
from sa1bpack.format.accounts import shard_fault
from sa1bpack.format.arrays import (
    METADATA_NAME,
    ChunkFile,
    Count,
    first_fall,
    group_bytes,
    group_files,
    read_json,
)
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.files import byte_view
from sa1bpack.format.index import Index
from sa1bpack.format.layout import ArraySpec, AxisLengths, Layout, image_nbytes, is_zero_beyond
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.format.problems import Check, PackFiles, ProblemFields
from sa1bpack.format.shard_reader import Shard, checksum_of_rows, open_shard, rows_of_sample
from sa1bpack.format.side.manifest import REMAKE
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shard import FeatureShard, arrays_in
from sa1bpack.format.side.shards import ShardIdentity
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.paths import is_folder, naming
from sa1bpack.threads import ThreadPool

# Nine tenths and more of a pack: a quick check skips their digests.
HEAVY_ARRAYS = ("image", "mask_bits", "run_ends")

# Files of several blocks that a shard has: image, mask_bits and run_ends.
_THREADS = 3


class ArrayStream:
    """One array, read front to back a few rows at a time, and its running XXH3-128."""

    def __init__(
        self, files: PackFiles, folder: Path, spec: ArraySpec, rows: int, helper: ThreadPool
    ):
        """Open it. Raises OSError."""
        self.spec = spec
        self.path = folder / spec.chunk_path
        self._file = ChunkFile(spec, rows)
        self._digest = xxhash.xxh3_128()
        self._rows_read = 0
        # Of an offset array, the last row that was read.
        self._edge = np.empty((0, *spec.row_shape), spec.dtype)
        self._stream: FileStream | None = None
        if rows:
            self._stream = files.stream(self.path, self._file.file_bytes, helper)

    def read(self, first: int, stop: int) -> np.ndarray:
        """Rows `first` to `stop`, (stop - first, *row_shape), valid until the next call.

        `first` is the row after those that were read before; of an offset array, the last of them.
        Raises FormatError if it is not, or if the file is cut short, OSError if it cannot be read.
        """
        if first != self._rows_read - len(self._edge):
            raise FormatError(f"{self.path}: it, or its offsets, changed while they were read")
        data = self._read((stop - self._rows_read) * self.spec.row_bytes)
        rows = data.view(self.spec.dtype).reshape(-1, *self.spec.row_shape)
        if self.spec.offsets:
            rows = np.concatenate([self._edge, rows])
            self._edge = rows[-1:]
        self._rows_read = stop
        return rows

    def finish(self) -> str:
        """Check the rest of the file, after the data, and return the digest of the file."""
        self._read((self._file.rows - self._rows_read) * self.spec.row_bytes)
        expected = self._file.tail()
        if self._read(len(expected)).tobytes() != expected:
            raise FormatError(
                f"{self.path}: the padding or the shard index after the data is wrong, so Zarr "
                "cannot read the array"
            )
        return self._digest.hexdigest()

    def _read(self, nbytes: int) -> np.ndarray:
        if nbytes == 0 or self._stream is None:
            return np.empty(0, np.uint8)
        with naming(self.path):
            data = self._stream.read(nbytes)
        if data.size < nbytes:
            raise FormatError(f"{self.path}: cut short while it was read")
        self._digest.update(data.data)
        return data

    def close(self) -> None:
        """Close its file."""
        if self._stream is not None:
            self._stream.close()


# Arrays that are read side by side, by name.
_Streams = Mapping[str, ArrayStream]


# ------------------------------------------------------------------------------ files of a group


def _listed_files(check: Check, folder: Path, files: set[str]) -> dict[str, str]:
    """Check which files a group has, and which its checksum file lists; returns their digests."""
    with check.collecting():
        compare_files(check, folder, files | {CHECKSUMS_NAME})
    listed: dict[str, str] = {}
    with check.collecting():
        listed = read_checksums(folder / CHECKSUMS_NAME)
        check_list(folder, files, listed)
    return listed


def _check_streams(
    check: Check,
    folder: Path,
    arrays: Mapping[ArraySpec, int],
    listed: Mapping[str, str],
    check_samples: Callable[[_Streams], None],
) -> None:
    """Read arrays once, side by side: check their samples, and then their digests."""
    with ExitStack() as stack:
        helper = stack.enter_context(ThreadPool(_THREADS, "sa1bpack-read-ahead"))
        streams = {}
        for spec, rows in arrays.items():
            opened = ArrayStream(check.files, folder, spec, rows, helper)
            streams[spec.name] = stack.enter_context(closing(opened))
        check_samples(streams)
        for name, stream in streams.items():
            with check.collecting(array=name):
                digest = stream.finish()
                expected = listed.get(stream.spec.chunk_path)
                if expected is not None:
                    check.same_digest(stream.path, digest, expected)


def _check_digests(
    check: Check, folder: Path, listed: Mapping[str, str], without: Set[str]
) -> None:
    """Compare the digests of all files of a group that its checksum file lists, but for some."""
    for path, expected in listed.items():
        if path not in without:
            check.digest(folder / path, expected, array=_array_of(path))


def check_list(folder: Path, files: Set[str], listed: dict[str, str]) -> None:
    """Raise FormatError unless the checksum file of a folder covers exactly its files."""
    different = files ^ set(listed)
    if different:
        raise FormatError(
            f"{folder / CHECKSUMS_NAME}: must list exactly the files of the folder; missing or "
            f"extra: {sorted(different)}"
        )


def compare_files(check: Check, folder: Path, expected: set[str]) -> None:
    """Report files below `folder` that are missing or do not belong there.

    A link in place of a file or a folder is followed: file stores such as a Hugging Face cache
    consist of links, and users keep arrays on several disks. Any other link is reported.
    """
    arrays = {path.rpartition("/")[0] for path in expected} - {""}
    paths = set()
    for subfolder in (folder, *(folder / array for array in arrays)):
        if is_folder(subfolder):
            paths |= {path.relative_to(folder).as_posix() for path in subfolder.iterdir()}
    paths -= arrays
    for path in sorted(expected - paths):
        check.add(f"{folder / path}: missing", array=_array_of(path))
    for path in sorted(paths - expected):
        text = f"{folder / path}: not a file of the pack; remove it"
        check.add(text, array=_array_of(path), extra=True)


def _array_of(path: str) -> str | None:
    """The array that a path below a group's folder leads into."""
    array, slash, _ = path.partition("/")
    if not slash:
        return None
    return array


# ------------------------------------------------------------------------------------------ shards


def check_shard(
    check: Check,
    folder: Path,
    entry: ShardEntry,
    layout: Layout,
    *,
    quick: bool,
    pairs: int | None = None,
) -> None:
    """Check a shard against its manifest entry; the caller adds its name to problems.

    Args:
        check: where problems are added.
        folder: folder of the shard.
        layout: layout of the pack.
        quick: skip what HEAVY_ARRAYS hold.
        pairs: number of pairs that it must have, if that is known.
    """
    bytes_before = check.done
    arrays = layout.array_rows(entry.lengths)
    listed = _listed_files(check, folder, group_files(arrays))
    compared = set()
    if quick:
        compared = {spec.chunk_path for spec in arrays if spec.name in HEAVY_ARRAYS}
    with check.collecting():
        shard = open_shard(folder, layout)
        for key in entry.__struct_fields__:
            value = getattr(shard.entry, key)
            expected = getattr(entry, key)
            if value != expected:
                raise FormatError(
                    f"{folder}: {key} is {value!r}, but the manifest says {expected!r}; repeat the "
                    "pack command"
                )
        fault = shard_fault(shard.attributes, pairs)
        if fault is not None:
            check.add(f"{folder}: {fault}")
        if _check_offsets(check, shard) and not quick:
            check_samples = partial(_check_samples, check, shard)
            _check_streams(check, folder, arrays, listed, check_samples)
            compared = {spec.chunk_path for spec in arrays}
    _check_digests(check, folder, listed, compared)
    check.advance(bytes_before + entry.bytes - check.done)


def _check_offsets(check: Check, shard: Shard) -> bool:
    """True if offsets are non-decreasing; if they are not, reports the sample."""
    for spec in shard.layout.arrays:
        if not spec.offsets:
            continue
        fall = first_fall(shard[spec.name])
        if fall is None:
            continue
        sample, fault = fall
        if spec.axis == "mask":  # mask_offset was checked before
            sample = int(np.searchsorted(shard["mask_offset"], sample, side="right")) - 1
        row = {name: shard[name][sample] for name in ("image_id", "file_name")}
        with check.collecting(array=spec.name):
            check.add(f"{shard.folder / spec.name}: {fault}", **_sample_fields(sample, row))
        return False
    return True


def _sample_fields(sample: int, row: Mapping[str, np.ndarray]) -> ProblemFields:
    """The fields of a Problem that name a sample, from its image_id and file_name."""
    return {
        "sample": sample,
        "image_id": int(row["image_id"]),
        "file_name": row["file_name"].tobytes().rstrip(b"\0").decode(errors="replace"),
    }


def _check_samples(check: Check, shard: Shard, streams: _Streams) -> None:
    """Check each sample of a shard whose offsets were checked."""
    before = check.done
    total = shard.entry.bytes
    annotations = 0
    for row in range(len(shard)):
        rows = rows_of_sample(shard, row, lambda spec, *span: streams[spec.name].read(*span))
        annotations += int(rows["annotation_count"][0])
        fault = _fault(shard.layout, rows)
        if fault is not None:
            names = {name: rows[name][0] for name in ("image_id", "file_name")}
            check.add(fault, **_sample_fields(row, names))
        check.advance(before + total * (row + 1) // len(shard) - check.done)
    if annotations != shard.entry.annotations:
        check.add(
            f"{shard.folder}: annotations is {shard.entry.annotations}, but those of its samples, "
            f"annotation_count, add up to {annotations}",
            array="annotation_count",
        )


def _fault(layout: Layout, rows: Mapping[str, np.ndarray]) -> str | None:
    """What is wrong with a sample; None if nothing is."""
    side = layout.image_size
    image = byte_view(rows["image"])
    computed = checksum_of_rows(layout, rows)
    stored = int(rows["checksum"][0])
    height, width = rows["size"][0, 2:].tolist()
    if computed != stored:
        return f"checksum of the sample is {computed:016x}, but {stored:016x} is stored"
    if not (1 <= height <= side and 1 <= width <= side):
        return f"stored size {height} x {width} is not within 1 and the layout's {side}"
    if image.size != image_nbytes(layout, height, width):
        return f"{image.size} bytes of pixels do not make {height} x {width} pixels"
    if not layout.flat and not is_zero_beyond(layout, image, height, width):
        return f"the canvas is not zero beyond the stored {height} x {width} pixels"
    return _record_fault(layout, rows)


def _record_fault(layout: Layout, rows: Mapping[str, np.ndarray]) -> str | None:
    """What of the record of a sample is not as the format has it; None if all is."""
    height, width = rows["size"][0, :2].tolist()
    name = rows["file_name"].tobytes().rstrip(b"\0")
    types = rows["number_types"]
    count = int(rows["annotation_count"][0])
    wrong = types & ~np.uint16(layout.type_bits)
    if height < 1 or width < 1:
        return f"source size {height} x {width} is not at least 1 x 1"
    if not name or b"\0" in name or not _is_utf8(name):
        return f"file_name {name!r} is not UTF-8 followed by zeros"
    if count < len(types):
        return f"annotation_count is {count}, but the sample has {len(types)} masks"
    if wrong.any():
        mask = int(wrong.argmax())
        return f"mask {mask}: number_types is {types[mask]:#06x}, of which bits are never set"
    if layout.runs:
        return _runs_fault(rows["run_ends"], rows["run_offset"], height * width)
    return None


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _runs_fault(ends: np.ndarray, offset: np.ndarray, pixels: int) -> str | None:
    """What is wrong with the runs of a sample's masks; None if nothing is.

    Args:
        ends: int32 (r,), run ends of the masks.
        offset: int64 (m + 1,), non-decreasing, their offsets in the shard.
        pixels: pixels of the source image.
    """
    edges = offset - offset[0]
    first = edges[:-1]
    stop = edges[1:]
    empty = first == stop
    if empty.any():
        return f"mask {int(empty.argmax())} has no run ends"
    elsewhere = ends[stop - 1] != pixels
    if elsewhere.any():
        mask = int(elsewhere.argmax())
        end = ends[stop[mask] - 1]
        return f"mask {mask}: its runs end at {end}, but the image has {pixels} pixels"
    falls = np.empty(len(ends), bool)
    falls[1:] = ends[1:] < ends[:-1]
    falls[first] = ends[first] < 0
    if falls.any():
        mask = int(np.searchsorted(edges, falls.argmax(), side="right")) - 1
        return f"mask {mask}: its run ends decrease, or are negative"
    return None


# ---------------------------------------------------------------------------------- feature shards


class _Binding(msgspec.Struct, kw_only=True):
    """The attributes of a feature shard that say which shard it is bound to."""

    shard: str
    digest: str
    samples: Count
    masks: Count


def check_feature_shard(
    check: Check, folder: Path, spec: SideSpec, quick: bool, index: Index | None, number: int | None
) -> None:
    """Check a feature shard; the caller adds the names of feature and feature shard to problems.

    Args:
        check: where problems are added.
        folder: folder of the feature shard.
        spec: spec of the feature.
        quick: as in `verify`.
        index, number: index of the pack, and number of its shard there: needed to name damaged
            samples of arrays with a row per mask.

    Raises:
        FormatError, OSError: it does not say which shard it is for.
    """
    identity = _read_identity(folder)
    arrays = arrays_in(folder.parent, spec, identity)
    check.advance(group_bytes(arrays))
    listed = _listed_files(check, folder, group_files(arrays))
    compared = set()
    if quick:
        compared = {spec.values.chunk_path}
    with check.collecting():
        opened = FeatureShard.open(folder.parent, spec, identity, deep=True)
        counts = np.empty(0, np.int64)
        if spec.axis == "sample":
            counts = np.ones(opened.samples, np.int64)
        elif number is not None and index is not None:
            first, stop = index.shard_offset[number : number + 2].tolist()
            counts = np.diff(index.mask_offset[first : stop + 1])
        fits = counts.sum() == opened.row_count and bool((counts >= 0).all())  # of a sound index
        if not quick and fits:
            values = {spec.values: len(opened.values)}
            check_samples = partial(_check_rows, check, opened, counts)
            _check_streams(check, folder, values, listed, check_samples)
            compared = {spec.values.chunk_path}
    _check_digests(check, folder, listed, compared)


def _check_rows(check: Check, opened: FeatureShard, counts: np.ndarray, streams: _Streams) -> None:
    """Compare the rows of each sample with their checksum.

    Args:
        check: where problems are added.
        opened: the feature shard.
        counts: int64 (N,), rows of each sample.
        streams: name of an array → the stream of its file.
    """
    spec = opened.spec
    stored = opened.checksum
    stream = streams[spec.values.name]
    first = 0
    for sample, stop in enumerate(np.cumsum(counts).tolist()):
        lengths = None
        present = None
        if opened.offset is not None:
            lengths = np.diff(opened.offset[first : stop + 1])
        if opened.present is not None:
            present = opened.present[first:stop]
        rows = FeatureRows(stream.read(*opened.span(first, stop)), lengths, present)
        computed = int(rows.checksums([stop - first])[0])
        expected = int(stored[sample])
        if computed != expected:
            check.add(
                f"checksum of sample {sample} is {computed:016x}, but {expected:016x} is stored; "
                f"{REMAKE}"
            )
        else:
            _check_values(check, spec, rows, f"{opened.path}: sample {sample}")
        first = stop


def _check_values(check: Check, spec: SideSpec, rows: FeatureRows, name: str) -> None:
    """Check what the values of rows must be: UTF-8 if they are text, zero if they are missing."""
    if spec.text:
        try:
            rows.texts(name)
        except FormatError as error:
            check.add(f"{error}; {REMAKE}")
    elif rows.present is not None and rows.lengths is None:
        without_row = rows.values[rows.present == 0]
        if without_row.any():
            check.add(f"{name} has values in a row that is missing; {REMAKE}")


def _read_identity(folder: Path) -> ShardIdentity:
    """The shard that a feature shard says it is bound to. Raises FormatError, OSError."""
    path = folder / METADATA_NAME
    try:
        binding = msgspec.convert(read_json(path)["attributes"]["sa1bpack"], _Binding)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise FormatError(f"{path}: not a feature shard's attributes ({error}); {REMAKE}") from None
    lengths = AxisLengths(samples=binding.samples, masks=binding.masks)
    identity = ShardIdentity(binding.shard, binding.digest, lengths)
    name = identity.feature_shard
    if name != folder.name:
        raise FormatError(f"{path}: the feature shard is {name}, not {folder.name}; {REMAKE}")
    return identity
