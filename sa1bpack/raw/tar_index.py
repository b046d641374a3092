"""Index of the pairs of a tar or folder, made in one pass and kept as a file that is mapped.

A file of an index has a line of JSON, zeros up to a multiple of 64 bytes, and then PAIR (n,),
POINT (p,) and the windows, uint8 (w, 32768), of `seek_points`; all numbers little-endian.
"""

import fcntl
import io
import logging
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import FormatError, MissingPackage, OptionError, SourceCorrupt, SourceError
from sa1bpack.format.files import map_bytes, temporary_beside
from sa1bpack.raw.seek_points import POINT, SPACING, WINDOW, SeekPoints
from sa1bpack.source.find import Source
from sa1bpack.source.inflate import ByteStream, RawFile, open_stream
from sa1bpack.source.pairs import MAX_JPEG_BYTES, MAX_JSON_BYTES, FolderStream, PairReader, Reject
from sa1bpack.source.tar import MAX_NAME_BYTES, TarStream
from sa1bpack.wording import counted

# Where the halves of a pair are: of a tar, offset in the (inflated) tar and bytes; of a folder,
# number of the file in `list_folder` and bytes. The name is that of the image, without folders.
PAIR = np.dtype(
    [
        ("jpeg_at", "<i8"),
        ("jpeg_bytes", "<i8"),
        ("json_at", "<i8"),
        ("json_bytes", "<i8"),
        ("file_name", f"S{MAX_NAME_BYTES}"),
    ]
)
_PLACE = struct.Struct("<qq")

_ENDS = 64 << 10  # bytes at either end of a tar that identify it together with size and time
_HEAD_BYTES = 64 << 20  # of a file of an index; a hundred thousand rejects take less
_ALIGNED = 64

_log = logging.getLogger("sa1bpack")


class _Bound(msgspec.Struct, frozen=True):
    """Marks of the file that an index is of: bytes, time of change, XXH3-64 of its ends."""

    size: int
    mtime_ns: int
    ends: str


class _Head(msgspec.Struct):
    format: Literal["sa1bpack-tar-index"]
    version: int
    bound: _Bound
    pairs: int
    points: int
    windows: int
    digest: str  # XXH3-128 of pairs and points
    rejects: list[tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class TarIndex:
    """The pairs of one source.

    source   the tar or folder
    pairs    PAIR (n,), in the order in which the packer meets them; of a file, a memory map
    points   of a gzip stream; None for plain tars and folders
    rejects  members that are named like half of a pair and are none
    digest   XXH3-128 of the pairs, and of a tar also of its size and its first and last 64 KiB
    stamp    of a tar: bytes and time of the last change (ns); None for folders
    """

    source: Source
    pairs: np.ndarray
    points: SeekPoints | None
    rejects: tuple[Reject, ...]
    digest: str
    stamp: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.pairs)

    def file_name(self, row: int) -> str:
        """The name of an image without its folders: "sa_5.jpg"."""
        return self.pairs["file_name"][row].decode()


def open_index(source: Source, folder: Path | None) -> TarIndex:
    """The index of a source: read if there is one that fits the source, else made.

    source  a folder is listed each time, which needs no file
    folder  of the files of indices; None: each lies beside its tar, hidden

    An index that is damaged, or whose tar has changed, is made again, with a warning in the log.
    Processes that need the same one at once make it once, if the file system has locks.

    Raises SourceError as reading a tar does, OptionError if the file of the index cannot be
    written, MissingPackage if a gzip stream must be indexed without indexed_gzip.
    """
    if source.kind == "folder":
        pairs, rejects = locate_pairs(source)
        return TarIndex(source, pairs, None, tuple(rejects), _digest(pairs), None)
    path = index_path(source, folder)
    if (found := _read_if_sound(path, source)) is not None:
        return found
    _check_writable(path, source, folder)
    with _locked(source.path):
        if path.exists() and (found := _read_if_sound(path, source, warn=True)) is not None:
            return found  # made while this process waited
        start = time.monotonic()
        write_index(path, source)
        found = _read(path, source)
        _log.info(
            "%s: indexed %s in %.1f s: %s",
            source.path,
            counted(len(found), "pair"),
            time.monotonic() - start,
            path,
        )
        return found


def index_path(source: Source, folder: Path | None) -> Path:
    """The file of a tar's index. In a folder, its name tells tars of one name apart."""
    if folder is None:
        return source.path.with_name(f".{source.path.name}.index")
    place = xxhash.xxh3_64_hexdigest(os.fsencode(source.path.resolve()))
    return folder / f"{source.path.name}-{place}.index"


def _check_writable(path: Path, source: Source, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OptionError(
            f"index_folder is {folder}: the index of {source.path} would be {path}, but that "
            "folder cannot be written; name one that can"
        )


def _bound(source: Source) -> _Bound:
    try:
        with source.path.open("rb") as file:
            status = os.fstat(file.fileno())
            ends = xxhash.xxh3_64(file.read(_ENDS))
            file.seek(max(0, status.st_size - _ENDS))
            ends.update(file.read(_ENDS))
    except OSError as error:
        raise SourceError(f"{source.path}: cannot be read: {error.strerror}") from error
    return _Bound(status.st_size, status.st_mtime_ns, ends.hexdigest())


@contextmanager
def _locked(tar: Path) -> Iterator[None]:
    """Hold a lock on a tar, where the file system has locks for files opened for reading."""
    with tar.open("rb") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -------------------------------------------------------------------------------------- reading


def _read_if_sound(path: Path, source: Source, warn: bool = False) -> TarIndex | None:
    """The index in a file, or None if it must be made, which `warn` logs the reason of."""
    try:
        return _read(path, source)
    except FileNotFoundError:
        return None
    except (FormatError, OSError) as error:
        if warn:
            _log.warning("%s; it is made again", error)
        return None


def _read(path: Path, source: Source) -> TarIndex:
    """Raises FormatError if it is damaged or is not that of the tar as it is, OSError."""
    with path.open("rb") as file:
        line = file.readline(_HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
    try:
        head = msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: is not an index of a tar ({error})") from None
    if head.version != 1:
        raise FormatError(f"{path}: an index of version {head.version}, this release reads 1")
    if head.bound != (now := _bound(source)):
        size, other = head.bound.size, now.size
        how = "copied or changed" if other == size else f"changed from {size} to {other} bytes"
        raise FormatError(f"{path}: is stale: {source.path} was {how} after it was indexed")
    first = -(-len(line) // _ALIGNED) * _ALIGNED
    lengths = (head.pairs * PAIR.itemsize, head.points * POINT.itemsize, head.windows * WINDOW)
    if min(head.pairs, head.points, head.windows) < 0 or first + sum(lengths) != size:
        raise FormatError(f"{path}: {size} bytes, not as many as its first line says")
    data = map_bytes(path, size)[first:]
    pairs, points = data[: lengths[0]], data[lengths[0] :][: lengths[1]]
    if _digest(pairs, points) != head.digest:
        raise FormatError(f"{path}: its bytes are not those that were written")
    pairs, points = pairs.view(PAIR), points.view(POINT)
    windows = data[lengths[0] + lengths[1] :].reshape(-1, WINDOW)
    check_places(path, source, pairs, points, len(windows))
    return TarIndex(
        source,
        pairs,
        SeekPoints(points, windows) if len(points) else None,
        tuple(Reject(*reject) for reject in head.rejects),
        _digest(pairs, _as_bytes(f"{head.bound.size} {head.bound.ends}")),
        (head.bound.size, head.bound.mtime_ns),
    )


def check_places(
    path: Path, source: Source, pairs: np.ndarray, points: np.ndarray, windows: int
) -> None:
    """Raise FormatError unless all numbers are within the limits that reading relies on."""
    jpeg, json = pairs["jpeg_bytes"], pairs["json_bytes"]
    stream = points["stream"]
    sound = (
        (len(points) > 0) == (source.kind == "gzip-tar")
        and min(pairs["jpeg_at"].min(initial=0), pairs["json_at"].min(initial=0)) >= 0
        and min(jpeg.min(initial=0), json.min(initial=0)) >= 0
        and jpeg.max(initial=0) <= MAX_JPEG_BYTES
        and json.max(initial=0) <= MAX_JSON_BYTES
        and not stream[:1].any()
        and (stream[1:] > stream[:-1]).all()
        and points["file"].min(initial=1) >= 1
        and points["bits"].min(initial=0) >= 0
        and points["bits"].max(initial=0) <= 7
        and points["window"].max(initial=-1) < windows
    )
    if not sound:
        raise FormatError(f"{path}: has places that no tar of this kind has")


def _as_bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _digest(*parts: np.ndarray) -> str:
    found = xxhash.xxh3_128()
    for part in parts:
        found.update(np.ascontiguousarray(part).view(np.uint8))
    return found.hexdigest()


# --------------------------------------------------------------------------------------- making


def write_index(path: Path, source: Source) -> None:
    """Index a tar into a file, which appears under its name when it is complete."""
    bound = _bound(source)
    pairs, rejects = locate_pairs(source)
    points = _seek_points(source) if source.kind == "gzip-tar" else None
    if _bound(source) != bound:
        raise SourceCorrupt(
            f"{source.path}: changed while it was indexed; wait until nothing writes to it"
        )
    points_array = np.empty(0, POINT) if points is None else points.points
    windows = np.empty((0, WINDOW), np.uint8) if points is None else points.windows
    head = _Head(
        format="sa1bpack-tar-index",
        version=1,
        bound=bound,
        pairs=len(pairs),
        points=len(points_array),
        windows=len(windows),
        digest=_digest(pairs, points_array),
        rejects=[(reject.member, reject.code, reject.detail) for reject in rejects],
    )
    line = msgspec.json.encode(head) + b"\n"
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(line.ljust(-(-len(line) // _ALIGNED) * _ALIGNED, b"\0"))
            for array in (pairs, points_array, windows):
                file.write(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OptionError(
            f"index_folder: the index of {source.path} cannot be written to {path.parent}: "
            f"{error.strerror}; name a folder with room for a hundredth of the tar"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _seek_points(source: Source) -> SeekPoints:
    """The points that indexed_gzip finds in another pass, after ours found the stream sound."""
    try:
        indexed_gzip = import_module("indexed_gzip")
    except ImportError as error:
        raise MissingPackage(
            f"{source.path} is a gzip stream, and random access into it needs indexed_gzip, which "
            f"cannot be imported ({error}); `pip install indexed_gzip`, or extract the tar, or "
            "read it in order with IterableTarDataset"
        ) from error
    exported = io.BytesIO()
    try:
        with (
            source.path.open("rb") as tar,  # it crashes on a path that is not UTF-8
            indexed_gzip.IndexedGzipFile(
                fileobj=tar, spacing=SPACING, readbuf_size=1 << 20
            ) as file,
        ):
            file.build_full_index()
            file.export_index(fileobj=exported)
    except (indexed_gzip.ZranError, EOFError, OSError) as error:
        raise SourceError(f"{source.path}: its gzip stream cannot be indexed: {error}") from error
    return SeekPoints.of_zran(exported.getvalue())


# -------------------------------------------------------------------------------------- places


def locate_pairs(source: Source) -> tuple[np.ndarray, list[Reject]]:
    """The pairs of a source, PAIR (n,), as `PairReader` finds them, and its rejects.

    Data of a plain tar are skipped and not read. Raises SourceTruncated, SourceCorrupt or
    SourceError as reading the source does.
    """
    rows = []
    with _Places(source, spool_dir=Path(tempfile.gettempdir())) as reader:
        for pair in reader:
            places = (*_PLACE.unpack(pair.jpeg), *_PLACE.unpack(pair.json))
            rows.append((*places, pair.file_name.encode()))
    return np.array(rows, PAIR), reader.rejects


class _Places(PairReader):
    """Pairs whose bytes are places: all rules about members are those of the packer."""

    def _open(self):
        if self.source.kind == "folder":
            return _FolderPlaces(self.source.path)
        if self.source.kind == "tar":
            return _TarPlaces(_SkippingStream(RawFile(self.source.path)))
        return _TarPlaces(open_stream(self.source.path, gzip=True))


class _TarPlaces(TarStream):
    def read(self) -> bytes:
        """The place of the current member's data."""
        return _PLACE.pack(self._stream.position, self._data_size)


class _FolderPlaces(FolderStream):
    def __iter__(self):
        for number, member in enumerate(super().__iter__()):
            self._number, self._bytes = number, member.size
            yield member

    def read(self) -> bytes:
        """The place of the current file."""
        return _PLACE.pack(self._number, self._bytes)


class _SkippingStream(ByteStream):
    """A plain tar of which only headers are read."""

    def skip(self, count: int) -> int:
        """Skip `count` bytes; returns how many there were."""
        at_hand = min(count, len(self.chunk))
        self.chunk = self.chunk[at_hand:]
        there = max(0, min(count - at_hand, self.raw.nbytes - self.raw.bytes_read))
        if there:
            self.raw.skip(there)
        self.position += at_hand + there
        return at_hand + there
