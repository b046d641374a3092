"""The index of the pairs of a tar or folder, made in one pass and kept as a file that is mapped.

It finds their bytes, in any order.

A file of an index has a line of JSON, zeros up to a multiple of 64 bytes, and then PAIR (n,),
POINT (p,) and the windows, uint8 (w, 32768), of `seek_points`; all numbers little-endian.
"""

import fcntl
import logging
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import (
    FormatError,
    OptionError,
    SourceCorrupt,
    SourceError,
    SourceTruncated,
)
from sa1bpack.format.file_locks import lock_open_file
from sa1bpack.format.files import map_bytes, open_file
from sa1bpack.format.removal import remove_leftovers
from sa1bpack.format.working_names import temporary_beside
from sa1bpack.paths import naming, real_path, temporary_folder
from sa1bpack.raw.seek_points import POINT, WINDOW, PointStream, SeekPoints
from sa1bpack.source.find import Source, open_source
from sa1bpack.source.inflate import ByteStream, remedy
from sa1bpack.source.pairs import (
    MAX_JPEG_BYTES,
    MAX_JSON_BYTES,
    FolderStream,
    PairReader,
    Reject,
)
from sa1bpack.source.tar import MAX_NAME_BYTES, TarStream, is_image
from sa1bpack.wording import counted

# Where the halves of a pair are: of a tar, offset in the (inflated) tar and bytes; of a folder,
# number of the file in `files` and bytes. The name is that of the image, without folders.
_PLACES = ("jpeg_at", "jpeg_bytes", "json_at", "json_bytes")
PAIR = np.dtype([*((name, "<i8") for name in _PLACES), ("file_name", f"S{MAX_NAME_BYTES}")])
_PLACE = struct.Struct("<qq")

_ENDS = 64 << 10  # bytes at either end of a tar that identify it together with size and time
_HEAD_BYTES = 64 << 20  # of a file of an index; a hundred thousand rejects take less
_ALIGNED = 64

_log = logging.getLogger("sa1bpack")


class _Head(msgspec.Struct):
    format: Literal["sa1bpack-tar-index"]
    version: Literal[2]
    bound: tuple[int, int, str]  # of the tar, see `_bound`
    pairs: int
    points: int
    windows: int
    digest: str  # XXH3-128 of pairs and points
    rejects: list[tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class TarIndex:
    """The pairs of one source, and their bytes.

    A file is opened for each half and closed again, which is a thousandth of the decoding: there is
    nothing that threads or a fork could share, and no limit of open files to keep.

    Attributes:
        source: the tar or folder.
        pairs: PAIR (n,), in the order in which the packer meets them; read from a file, a memory
            map.
        points: seek points of a gzip stream; None for plain tars and folders.
        rejects: members that are named like half of a pair and are none.
        digest: XXH3-128 of the pairs, and for a tar also of its size and its first and last 64 KiB.
        stamp: for a tar, its bytes and the time of its last change (ns); None for folders.
        files: for a folder, path and time of the last change (ns) of each file; empty for a tar.
        folder: folder of the file of the index, see `open_index`.
    """

    source: Source
    pairs: np.ndarray
    points: SeekPoints | None
    rejects: list[Reject]
    digest: str
    stamp: tuple[int, int] | None
    files: list[tuple[str, int]]
    folder: Path | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.source.local_path, self.folder, self.digest)

    def __len__(self) -> int:
        return len(self.pairs)

    def file_name(self, row: int) -> str:
        """The name of an image without its folders: "sa_5.jpg"."""
        name: bytes = self.pairs["file_name"][row]
        return name.decode()

    def key(self, row: int) -> str:
        """A text that is the same only for the same bytes of a pair, as far as times of files tell.

        The digest alone does not: a tar may change between its ends, and keep its pairs' places.
        """
        parts = [self.digest, str(row)]
        if self.stamp is not None:
            _, changed = self.stamp
            parts.append(f"{changed:x}")
        if self.files:
            pair = self.pairs[row]
            for half in ("jpeg_at", "json_at"):
                _, changed = self.files[pair[half]]
                parts.append(f"{changed:x}")
        return "-".join(parts)

    def read(self, row: int, half: Literal["jpeg", "json"]) -> bytes:
        """The image or the JSON of a pair.

        Raises SourceError if it cannot be read or has changed since the index was opened,
        SourceTruncated or SourceCorrupt if it is not what it was when it was indexed.
        """
        pair = self.pairs[row]
        offset = int(pair[f"{half}_at"])
        count = int(pair[f"{half}_bytes"])
        path = self.source.local_path
        expected = self.stamp
        if self.files:
            name, changed = self.files[offset]
            path = Path(name)
            offset = 0
            expected = (count, changed)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != expected:
                    raise SourceError(
                        f"{path}: has changed since the dataset was made; make it again"
                    )
                if self.points is not None:
                    return self.points.read(file.fileno(), path, offset, count)
                file.seek(offset)
                data = file.read(count)
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        if len(data) < count:
            raise SourceTruncated(
                f"{path}: ends {count - len(data)} bytes before byte {offset + count}, where a "
                f"member ended when it was indexed; {remedy(path)}"
            )
        return data


def open_index(source: Source, folder: Path | None) -> TarIndex:
    """The index of a source: read if there is one that fits the source, otherwise made.

    An index that is damaged, or whose tar has changed, is made again, with a warning in the log.
    Processes that need the same one at once make it once, if the file system has locks.

    Args:
        source: the tar or folder; a folder is listed each time, which needs no file.
        folder: folder for the files of indices; None: each lies beside its tar, hidden.

    Raises:
        SourceError: the source cannot be read, as when reading a tar.
        OptionError: the file of the index cannot be written.
        MissingPackage: a gzip stream must be indexed, and zlib's library is not installed.
    """
    if source.kind == "parquet":
        raise SourceError(
            f"{source.path}: a Parquet file, whose rows have no places of their own: pack it, or "
            "read it in order with sa1bpack.IterableTarDataset"
        )
    if source.kind == "folder":
        members = _FolderPlaces(source.local_path)
        pairs, rejects = _locate_pairs(source, members)
        return TarIndex(source, pairs, None, rejects, _digest(pairs), None, members.files, folder)
    path = index_path(source, folder)
    with source.local_path.open("rb") as tar:
        with suppress(OSError):  # the file system may have no locks for files opened for reading
            lock_open_file(tar.fileno(), fcntl.LOCK_EX, source.local_path)
        try:
            return _read(path, source, folder)
        except FileNotFoundError:
            pass
        except (FormatError, OSError) as error:
            _log.warning("%s; it is made again", error)
        write_index(path, source)
        index = _read(path, source, folder)
        _log.info("%s: indexed %s: %s", source.path, counted(len(index), "pair"), path)
        return index


def _reopened(path: Path, folder: Path | None, digest: str) -> TarIndex:
    """An index that was pickled: that of the same tar, or an error."""
    index = open_index(open_source(path), folder)
    if index.digest != digest:
        raise SourceError(f"{path}: has changed since the dataset was pickled; make it again")
    return index


def index_path(source: Source, folder: Path | None) -> Path:
    """The file of a tar's index. In a folder, its name tells tars of one name apart."""
    tar = source.local_path
    if folder is None:
        return tar.with_name(f".{tar.name}.index")
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(real_path(tar)))
    return folder / f"{tar.name}-{digest}.index"


def _bound(source: Source) -> tuple[int, int, str]:
    """Marks of a file: bytes, time of the last change (ns), XXH3-64 of its ends."""
    try:
        with source.local_path.open("rb") as file:
            status = os.fstat(file.fileno())
            ends = xxhash.xxh3_64(file.read(_ENDS))
            file.seek(max(0, status.st_size - _ENDS))
            ends.update(file.read(_ENDS))
    except OSError as error:
        raise SourceError(f"{source.path}: cannot be read: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns, ends.hexdigest()


# -------------------------------------------------------------------------------------- reading


def _read(path: Path, source: Source, folder: Path | None) -> TarIndex:
    """The index in a file.

    Raises:
        FormatError: the file is damaged, or is not the index of the tar as it is.
        OSError: the file cannot be read.
    """
    head, data = _map_file(path, source)
    pairs_end = head.pairs * PAIR.itemsize
    points_end = pairs_end + head.points * POINT.itemsize
    if _digest(data[:points_end]) != head.digest:
        raise FormatError(f"{path}: its bytes are not those that were written")
    pairs = data[:pairs_end].view(PAIR)
    fault = _wrong_pairs(pairs)
    points = None
    if source.kind == "gzip-tar":
        windows = data[points_end:].reshape(-1, WINDOW)
        points = SeekPoints(data[pairs_end:points_end].view(POINT), windows)
        if fault is None and len(pairs):
            fault = points.what_is_wrong()
    if fault is not None:
        raise FormatError(f"{path}: {fault}")
    nbytes, changed, ends = head.bound
    return TarIndex(
        source=source,
        pairs=pairs,
        points=points,
        rejects=[Reject(*reject) for reject in head.rejects],
        digest=_digest(pairs, np.frombuffer(f"{nbytes} {ends}".encode(), np.uint8)),
        stamp=(nbytes, changed),
        files=[],
        folder=folder,
    )


def _map_file(path: Path, source: Source) -> tuple[_Head, np.ndarray]:
    """The first line of the file of an index, and the bytes of its arrays, uint8 (n,), mapped.

    Raises FormatError unless the file has all of them and is that of the tar as it is; OSError if
    it cannot be read.
    """
    with os.fdopen(open_file(path), "rb") as file, naming(path):
        line = file.readline(_HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
    try:
        head = msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: is not an index of a tar ({error})") from None
    bound = _bound(source)
    if head.bound != bound:
        change = "copied or changed"
        if head.bound[0] != bound[0]:
            change = f"changed from {head.bound[0]} to {bound[0]} bytes"
        raise FormatError(f"{path}: is stale: {source.path} was {change} after it was indexed")
    first = _aligned(len(line))
    nbytes = head.pairs * PAIR.itemsize + head.points * POINT.itemsize + head.windows * WINDOW
    if min(head.pairs, head.points, head.windows) < 0 or first + nbytes != size:
        raise FormatError(f"{path}: {size} bytes, not as many as its first line says")
    return head, map_bytes(path, size)[first:]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _wrong_pairs(pairs: np.ndarray) -> str | None:
    """What is wrong with PAIR (n,) of a file, None if nothing is: anybody can write a digest."""
    if not len(pairs):
        return None
    for half, most in (("jpeg", MAX_JPEG_BYTES), ("json", MAX_JSON_BYTES)):
        offsets = pairs[f"{half}_at"]
        nbytes = pairs[f"{half}_bytes"]
        if offsets.min() < 0 or nbytes.min() < 0 or nbytes.max() > most:
            return f"a {half} is at a negative byte, or has more than {most} bytes"
    try:
        names = b"\n".join(pairs["file_name"].tolist()).decode()
    except UnicodeDecodeError:
        return "a name is not UTF-8"
    lines = names.lower().split("\n")
    is_plain = names.replace("\n", "").isprintable() and "/" not in names
    if not is_plain or len(lines) != len(pairs):
        return "a name could not be that of a file"
    if not all(map(is_image, lines)):
        return "a name is not that of an image"
    return None


def _digest(*arrays: np.ndarray) -> str:
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


# --------------------------------------------------------------------------------------- making


def write_index(path: Path, source: Source) -> None:
    """Index a tar into a file, which appears under its name when it is complete."""
    remove_leftovers(path)
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:  # before the work, to learn whether it can be written
            for piece in _pieces(source):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OptionError(
            f"index_folder: the index of {source.path} cannot be written to {path.parent}: "
            f"{error.strerror}; name a folder with room for a hundredth of the tar"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _pieces(source: Source) -> list[bytes | memoryview]:
    """The pieces of the file of an index."""
    bound = _bound(source)
    seek_points = SeekPoints(np.empty(0, POINT), np.empty((0, WINDOW), np.uint8))
    if source.kind == "gzip-tar":
        stream = PointStream(source.local_path)
        pairs, rejects = _locate_pairs(source, _TarPlaces(stream))
        seek_points = stream.seek_points()
    else:
        pairs, rejects = _locate_pairs(source, _TarPlaces(_SkippingStream(source.path)))
    if _bound(source) != bound:
        raise SourceCorrupt(f"{source.path}: changed while it was indexed; try again")
    head = _Head(
        format="sa1bpack-tar-index",
        version=2,
        bound=bound,
        pairs=len(pairs),
        points=len(seek_points.points),
        windows=len(seek_points.windows),
        digest=_digest(pairs, seek_points.points),
        rejects=[(reject.member, reject.code, reject.detail) for reject in rejects],
    )
    line = msgspec.json.encode(head) + b"\n"
    arrays = (pairs, seek_points.points, seek_points.windows)
    return [
        line.ljust(_aligned(len(line)), b"\0"),
        *(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data for array in arrays),
    ]


# -------------------------------------------------------------------------------------- places


def _locate_pairs(
    source: Source, members: "_TarPlaces | _FolderPlaces"
) -> tuple[np.ndarray, list[Reject]]:
    """The pairs of a source, PAIR (n,), as `PairReader` finds them, and its rejects.

    Raises SourceTruncated, SourceCorrupt or SourceError as reading the source does.
    """
    rows = []
    spool = temporary_folder()
    with PairReader(source, spool_dir=spool, members=members) as reader:
        for pair in reader:
            places = (*_PLACE.unpack(pair.jpeg), *_PLACE.unpack(pair.json))
            rows.append((*places, pair.file_name.encode()))
    return np.array(rows, PAIR), reader.rejects


class _TarPlaces(TarStream):
    """Members whose bytes are places: all rules about members are those of the packer."""

    def read(self) -> bytes:
        """The place of the current member's data."""
        return _PLACE.pack(self.stream.position, self._data_size)


class _FolderPlaces(FolderStream):
    def __init__(self, folder: Path):
        super().__init__(folder)
        self.files: list[tuple[str, int]] = []

    def read(self) -> bytes:
        """The place of the current file."""
        self.files.append((self._path, os.stat(self._path).st_mtime_ns))  # noqa: PTH116
        return _PLACE.pack(len(self.files) - 1, self._size)


class _SkippingStream(ByteStream):
    """A plain tar of which only headers are read."""

    def skip(self, count: int) -> int:
        """Skip `count` bytes; returns how many there were."""
        buffered = min(count, len(self.chunk))
        self.chunk = self.chunk[buffered:]
        self.position += buffered
        unread = max(0, min(count - buffered, self.nbytes - self.bytes_read))
        self.leave_out(unread)
        return buffered + unread
