"""`verify`, of packs in object stores.

A temporary folder has every file with its length: metadata and small arrays complete, those of one
shard at a time, and nothing in the large ones. These are read once, as streams of ranges, and
neither kept nor cached. So all checks are those of a local pack.
"""

import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.arguments import ALL, choice, part_of_job
from sa1bpack.disk.reading_mode import IO
from sa1bpack.errors import FormatError, OptionError, StoreError
from sa1bpack.format.arrays import METADATA_NAME
from sa1bpack.format.files import CHECKSUMS_NAME, is_inside
from sa1bpack.format.manifest import MANIFEST_NAME, REJECTS_NAME, SHARDS_NAME
from sa1bpack.format.problems import PackFiles, Progress, Report, Stream
from sa1bpack.format.verify import check_files
from sa1bpack.remote.origin import fetch_files, is_large, no_pack, submit
from sa1bpack.remote.stores import Bucket

# A stream asks for so many ranges of so many bytes in advance; a shard has three streams.
RANGE_BYTES = 8 << 20
AHEAD = 8

# Files that are fetched whole, besides chunk files of small arrays.
_WHOLE = (MANIFEST_NAME, CHECKSUMS_NAME, METADATA_NAME, REJECTS_NAME)

# What is needed of a shard after it was checked, to compare it with the index.
_KEPT = ("image_id", "mask_offset")


def verify(
    url: str, *, quick: bool, progress: Progress | None, io: str, part: tuple[int, int] | None
) -> Report:
    """Check a pack in an object store; arguments and errors are those of `format.verify.verify`."""
    if choice("io", io, IO) == "direct":
        raise OptionError("io is 'direct', but a pack in an object store is not read from a disk")
    share = ALL if part is None else part_of_job(part)
    with tempfile.TemporaryDirectory(prefix="sa1bpack-verify-") as name:
        mirror = _Mirror(Path(name), url)
        try:
            report = check_files(mirror, quick=quick, progress=progress, share=share)
        except FormatError as error:
            raise type(error)(mirror.shown(str(error))) from None
    return replace(
        report,
        problems=tuple(replace(each, what=mirror.shown(each.what)) for each in report.problems),
        notes=tuple(map(mirror.shown, report.notes)),
    )


class _Mirror(PackFiles):
    """The files of a pack in an object store: see the docstring of the module."""

    tries = 2  # the bytes may have been changed on the way

    def __init__(self, root: Path, url: str):
        """Fetch everything but the shards, of which only the checksum files.

        Raises NotAPack if there is no manifest, StoreError, OptionError, MissingPackage.
        """
        super().__init__(root, "cached")
        origin = Bucket(url)
        self.url, self._origin = url, origin
        self._sizes = origin.files()  # path → bytes
        for path in self._sizes:
            if not is_inside(path):
                raise FormatError(
                    f"{url}: {path!r} cannot be the name of a file; remove that object"
                )
        if MANIFEST_NAME not in self._sizes:
            raise no_pack(url, MANIFEST_NAME)
        mark = f"/{CHECKSUMS_NAME}"
        self._fetch(
            path for path in self._sizes if self._shard_of(path) is None or path.endswith(mark)
        )

    def shown(self, text: str) -> str:
        """A text with the URL in place of the temporary folder."""
        return text.replace(str(self.root), self.url)

    def bring(self, shard: str) -> None:
        """See PackFiles."""
        self._fetch(path for path in self._sizes if self._shard_of(path) == shard)

    def leave(self, shard: str) -> None:
        """See PackFiles."""
        for path, size in self._sizes.items():
            keep = path.rpartition("/")[2] in (METADATA_NAME, CHECKSUMS_NAME)
            if self._shard_of(path) == shard and not keep and path.split("/")[2] not in _KEPT:
                _make_hole(self.root / path, size)

    def _ranges(self, path: Path, first: int = 0) -> "_RangeStream | None":
        """A file from byte `first` on, if it is read from the origin."""
        key = str(path.relative_to(self.root))
        stop = path.stat().st_size
        return _RangeStream(self._origin, key, first, stop) if is_large(key) else None

    def stream(self, path: Path, nbytes: int, helper: ThreadPoolExecutor) -> Stream:
        """See PackFiles."""
        return self._ranges(path) or super().stream(path, nbytes, helper)

    def digest(self, path: Path) -> str:
        """See PackFiles."""
        if (stream := self._ranges(path)) is None:
            return super().digest(path)
        found = xxhash.xxh3_128()
        while (data := stream.read(RANGE_BYTES)).size:
            found.update(data)
        return found.hexdigest()

    def rest(self, path: Path, first: int) -> bytes:
        """See PackFiles."""
        if (stream := self._ranges(path, first)) is None:
            return super().rest(path, first)
        return stream.read(path.stat().st_size - first).tobytes()

    def _shard_of(self, path: str) -> str | None:
        parts = path.split("/")
        return parts[1] if parts[0] == SHARDS_NAME and len(parts) > 2 else None

    def _fetch(self, paths) -> None:
        """Bring files, all at once: those that are streamed as holes."""
        wanted: dict[str, tuple[int | None, str | None]] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            if not is_large(path) and (name in _WHOLE or name.startswith("c.")):
                wanted[path] = self._sizes[path], None
            else:  # also what is foreign, of which only the name is looked at
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                _make_hole(self.root / path, self._sizes[path])
        fetch_files(self._origin, "", self.root, wanted)


def _make_hole(path: Path, nbytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(nbytes)


class _RangeStream:
    """Bytes of one file, from `first` to `stop`, fetched in ranges ahead of their use.

    Raises StoreError.
    """

    def __init__(self, origin: Bucket, key: str, first: int, stop: int):
        self._origin, self._key, self._stop = origin, key, stop
        self._next = first  # the first byte that has not been asked for
        self._pending: deque[Future] = deque()
        self._data = np.empty(0, np.uint8)

    def read(self, nbytes: int) -> np.ndarray:
        """See Stream."""
        while self._data.size < nbytes and self._advance():
            pass
        found, self._data = self._data[:nbytes], self._data[nbytes:]
        return found

    def _advance(self) -> bool:
        """Add the next range; False at the end."""
        while self._next < self._stop and len(self._pending) < AHEAD:
            stop = min(self._next + RANGE_BYTES, self._stop)
            self._pending.append(submit(self._origin.read_range, self._key, self._next, stop))
            self._next = stop
        if not self._pending:
            return False
        try:
            found = self._pending.popleft().result()
        except FileNotFoundError as error:
            raise StoreError(
                f"{error.filename} is gone: the pack was changed while it was checked; repeat the "
                "command"
            ) from None
        self._data = np.concatenate([self._data, np.frombuffer(found, np.uint8)])
        return True

    def close(self) -> None:
        """Forget what was asked for."""
        self._pending.clear()
