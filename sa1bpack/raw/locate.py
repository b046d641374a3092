"""One pass over a tar or folder that notes where the halves of pairs are, and keeps no bytes."""

import struct
import tempfile
from pathlib import Path

import numpy as np

from sa1bpack.source.find import Source
from sa1bpack.source.folder import FolderStream
from sa1bpack.source.inflate import ByteStream, RawFile, open_stream
from sa1bpack.source.members import MAX_NAME_BYTES
from sa1bpack.source.pairs import PairReader, Reject
from sa1bpack.source.tar import TarStream

# Where the halves of a pair are: of a tar, offset in the (inflated) tar and bytes; of a folder,
# number of the file in `list_folder` and bytes. The name is that of the image, without folders.
PAIR = np.dtype(
    [("jpeg_at", "<i8"), ("jpeg_bytes", "<i8"), ("json_at", "<i8"), ("json_bytes", "<i8"),
     ("file_name", f"S{MAX_NAME_BYTES}")]
)  # fmt: skip
_PLACE = struct.Struct("<qq")


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
