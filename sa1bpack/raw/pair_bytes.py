"""Pair i of a tar or folder → the bytes of its JPEG and of its record, in any order."""

import os
from pathlib import Path

from sa1bpack.errors import SourceError, SourceTruncated
from sa1bpack.raw.tar_index import TarIndex
from sa1bpack.source.find import list_folder
from sa1bpack.source.inflate import remedy


class PairBytes:
    """The halves of the pairs of one source.

    The file is opened for each half and closed again, which is a thousandth of the decoding: there
    is nothing that threads or a fork could share, and no limit of open files to keep.
    """

    def __init__(self, index: TarIndex):
        self._index = index
        self._files: list[str] | None = None  # paths of a folder's files, listed when first used

    def read(self, row: int) -> tuple[bytes, bytes]:
        """JPEG and JSON of a pair. Raises as `json` does."""
        pair = self._index.pairs[row]
        jpeg = self._half(int(pair["jpeg_at"]), int(pair["jpeg_bytes"]))
        return jpeg, self._half(int(pair["json_at"]), int(pair["json_bytes"]))

    def json(self, row: int) -> bytes:
        """The JSON of a pair alone.

        Raises SourceError if it cannot be read or has changed since the index was opened,
        SourceTruncated or SourceCorrupt if it is not what it was when it was indexed.
        """
        pair = self._index.pairs[row]
        return self._half(int(pair["json_at"]), int(pair["json_bytes"]))

    def changed(self, row: int) -> str:
        """Time of the last change of a pair's files, as text; empty in a tar, whose digest tells.

        Raises SourceError if a file of the folder cannot be read.
        """
        if self._index.source.kind != "folder":
            return ""
        pair, times = self._index.pairs[row], []
        for place in (int(pair["jpeg_at"]), int(pair["json_at"])):
            path = self._path(place)
            try:
                times.append(path.stat().st_mtime_ns)
            except OSError as error:
                raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        return f"-{times[0]:x}-{times[1]:x}"

    def _half(self, at: int, count: int) -> bytes:
        path, points = self._index.source.path, self._index.points
        if self._index.source.kind == "folder":
            return self._file(at, count)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._check_unchanged(file)
            if points is not None:
                return points.read(file, path, at, count)
            return _plain(file, path, at, count)
        finally:
            os.close(file)

    def _check_unchanged(self, file: int) -> None:
        """Raise SourceError for another tar under the name, in which the places mean nothing."""
        status = os.fstat(file)
        if (status.st_size, status.st_mtime_ns) != self._index.stamp:
            raise SourceError(
                f"{self._index.source.path}: has changed since the dataset was made; make the "
                "dataset again when nothing writes to the tar any more"
            )

    def _path(self, place: int) -> Path:
        folder = self._index.source.path
        if self._files is None:
            self._files = [path for path, _ in list_folder(folder)]
        return Path(self._files[place]) if place < len(self._files) else folder

    def _file(self, place: int, count: int) -> bytes:
        path = self._path(place)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        if len(data) != count:
            raise SourceError(
                f"{path}: has {len(data)} bytes, but had {count} when its folder was listed; make "
                "the dataset again when nothing writes to the folder any more"
            )
        return data


def _plain(file: int, path: Path, at: int, count: int) -> bytes:
    pieces, left = [], count
    while left:
        try:
            piece = os.pread(file, left, at + count - left)
        except OSError as error:
            raise SourceError(
                f"{path}: reading failed at byte {at}: {error.strerror}; check the disk or the "
                "network mount"
            ) from error
        if not piece:
            raise SourceTruncated(
                f"{path}: ends {left} bytes before byte {at + count}, where a member ended when it "
                f"was indexed; {remedy(path)}"
            )
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
