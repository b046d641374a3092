"""`verify`, of packs of this machine and of those in object stores.

Of a pack in an object store, a temporary folder has every file with its length: metadata and small
arrays complete, those of one shard at a time, and holes in place of the large ones. These are read
once, as streams of ranges, and neither kept nor cached. So all checks are those of a local pack.
"""

import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.arguments import ALL, choice, part_of_job
from sa1bpack.cache.build import fetch_files
from sa1bpack.cache.contents import LARGE
from sa1bpack.cache.origin import is_url, local_folder, origin_url
from sa1bpack.cache.requests import Requests, submit
from sa1bpack.cache.store_origin import StoreOrigin
from sa1bpack.disk.reading_mode import IO
from sa1bpack.errors import FormatError, NotAPack, OptionError, StoreError
from sa1bpack.format.array_stream import Reader, Stream
from sa1bpack.format.checksums import CHECKSUMS_NAME
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME
from sa1bpack.format.pack_files import PackFiles
from sa1bpack.format.problems import Problem, Report
from sa1bpack.format.publish import REJECTS_NAME
from sa1bpack.format.verify import Progress, check_files
from sa1bpack.format.verify import verify as verify_folder
from sa1bpack.format.zarr_metadata import METADATA_NAME

# A stream asks for so many ranges of so many bytes in advance; a shard has three streams.
RANGE_BYTES = 8 << 20
AHEAD = 8

# Checks of a shard in which something is wrong: the bytes may have been changed on the way.
_TRIES = 2

# Arrays of which a file is read once, as a stream: those of shards, and that of a side array.
_STREAMED = (*LARGE, "values")

# Files that are fetched whole, besides chunk files of small arrays.
_WHOLE = (MANIFEST_NAME, CHECKSUMS_NAME, METADATA_NAME, REJECTS_NAME)

# What is needed of a shard after it was checked, to compare it with the index.
_KEPT = ("image_id", "mask_offset")


def verify(
    root: str | Path, *, quick: bool = False, progress: Progress | None = None, io: str = "auto",
    part: tuple[int, int] | None = None,
) -> Report:  # fmt: skip
    """Check a pack and report every problem; damage is reported, never raised.

    root      folder of the pack, or its URL in an object store: "s3://bucket/pack"
    quick     skip the pixels, mask bits and runs: structure, exact sizes, and the digests of all
              other files
    progress  called as progress(bytes done, total bytes), after each sample or shard
    io        how samples are read: "direct" past the page cache, "cached" through it, "auto" past
              it if the pack takes more than half of the memory, and its file system can do that
    part      (K, N): every N-th shard, and part of a side array, from the K-th on; the first of the
              N parts also checks the pack's own files. The pack is sound if all parts are

    Side arrays in PACK/side are checked as well; for one in another folder, name that folder.

    A pack may be checked while a packer works on it. Names that start with "." at the top and under
    shards/ are working files of a packer and are skipped. Of a pack in an object store, every
    object is read once, and a shard with problems once more; the system's folder for temporary
    files (TMPDIR) holds some 50 bytes per sample, and a hundredth of a shard.

    Raises FormatError only if the manifest is missing (NotAPack if nothing else of a pack exists
    either), VersionError for a pack of another major version, OSError if the manifest cannot be
    read, StoreError if an object store fails, MissingPackage without the packages for it, and
    OptionError for another URL, a folder whose samples are elsewhere (see docs/cloud.md), or an
    unknown or impossible `io` or `part`.

    Examples:
        >>> report = sa1bpack.verify("packed", quick=True)
        >>> report.ok, report.counts["samples"]
        (True, 3)
    """
    if not is_url(root):
        return verify_folder(root, quick=quick, progress=progress, io=io, part=part)
    url = origin_url("root", root)
    if (folder := local_folder(url)) is not None:
        return verify_folder(folder, quick=quick, progress=progress, io=io, part=part)
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
        problems=tuple(_shown(problem, mirror) for problem in report.problems),
        notes=tuple(map(mirror.shown, report.notes)),
    )


def _shown(problem: Problem, mirror: "_Mirror") -> Problem:
    return replace(problem, what=mirror.shown(problem.what))


class _Mirror(PackFiles):
    """The files of a pack in an object store: see the docstring of the module."""

    tries = _TRIES

    def __init__(self, root: Path, url: str):
        """Fetch everything but the shards, of which only the checksum files.

        Raises NotAPack if there is no manifest, StoreError, OptionError, MissingPackage.
        """
        super().__init__(root, "cached")
        origin = StoreOrigin(url)
        self.url, self._requests = url, Requests(origin)
        self._sizes = origin.files()  # path → bytes
        for path in self._sizes:
            if {"", ".", ".."} & set(path.split("/")):
                raise FormatError(
                    f"{url}: {path!r} cannot be the name of a file; remove that object"
                )
        if MANIFEST_NAME not in self._sizes:
            raise NotAPack(
                f"{url}: not a pack: it has no {MANIFEST_NAME}; name the folder that a pack was "
                "uploaded to"
            )
        own = [path for path in self._sizes if self._shard_of(path) is None]
        marks = [
            path for path in self._sizes if path.endswith(f"/{CHECKSUMS_NAME}") and path not in own
        ]
        self._fetch([*own, *marks])

    def shown(self, text: str) -> str:
        """A text with the URL in place of the temporary folder."""
        return text.replace(str(self.root), self.url)

    def reader(self, nbytes: int) -> Reader:
        """See PackFiles."""
        return _StoreReader(self._requests, self.root)

    def bring(self, shard: str) -> None:
        """See PackFiles."""
        self._fetch(path for path in self._sizes if self._shard_of(path) == shard)

    def leave(self, shard: str) -> None:
        """See PackFiles."""
        for path, size in self._sizes.items():
            keep = path.rpartition("/")[2] in (METADATA_NAME, CHECKSUMS_NAME)
            if self._shard_of(path) == shard and not keep and path.split("/")[2] not in _KEPT:
                _make_hole(self.root / path, size)

    def _shard_of(self, path: str) -> str | None:
        parts = path.split("/")
        return parts[1] if parts[0] == SHARDS_NAME and len(parts) > 2 else None

    def _fetch(self, paths) -> None:
        """Bring files, all at once: those that are streamed as holes."""
        wanted: dict[str, tuple[int | None, str | None]] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            if not _is_streamed(path) and (name in _WHOLE or name.startswith("c.")):
                wanted[path] = self._sizes[path], None
            else:  # also what is foreign, of which only the name is looked at
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                _make_hole(self.root / path, self._sizes[path])
        try:
            fetch_files(self._requests, "", self.root, wanted)
        except FileNotFoundError as error:
            raise _gone(error) from None


def _is_streamed(path: str) -> bool:
    """Whether a file is the chunk file of a large array."""
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] in _STREAMED and name != METADATA_NAME


def _make_hole(path: Path, nbytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(nbytes)


def _gone(error: FileNotFoundError) -> StoreError:
    return StoreError(
        f"{error.filename or error} is gone: the pack was changed while it was checked; repeat the "
        "command"
    )


class _StoreReader(Reader):
    """Reads large files from an object store, and others from the folder that has them."""

    def __init__(self, requests: Requests, root: Path):
        super().__init__()
        self._requests, self._root = requests, root

    def _key(self, path: Path) -> str | None:
        """The path in the origin of a file that is read from there."""
        key = str(path.relative_to(self._root))
        return key if _is_streamed(key) else None

    def stream(self, path: Path, nbytes: int, helper: ThreadPoolExecutor) -> Stream:
        """See Reader."""
        if (key := self._key(path)) is None:
            return super().stream(path, nbytes, helper)
        return _RangeStream(self._requests, key, 0, path.stat().st_size)

    def digest(self, path: Path) -> str:
        """See Reader."""
        if (key := self._key(path)) is None:
            return super().digest(path)
        found, nbytes = xxhash.xxh3_128(), path.stat().st_size
        stream = _RangeStream(self._requests, key, 0, nbytes)
        for first in range(0, nbytes, RANGE_BYTES):
            found.update(stream.read(min(RANGE_BYTES, nbytes - first)))
        return found.hexdigest()

    def rest(self, path: Path, first: int) -> bytes:
        """See Reader."""
        if (key := self._key(path)) is None:
            return super().rest(path, first)
        nbytes = path.stat().st_size
        return _RangeStream(self._requests, key, first, nbytes).read(nbytes - first).tobytes()


class _RangeStream:
    """Bytes of one file, from `first` to `stop`, fetched in ranges ahead of their use.

    Raises StoreError.
    """

    def __init__(self, requests: Requests, key: str, first: int, stop: int):
        self._requests, self._key, self._stop = requests, key, stop
        self._next = first  # the first byte that has not been asked for
        self._pending: deque[Future] = deque()
        self._data, self._used = np.empty(0, np.uint8), 0

    def read(self, nbytes: int) -> np.ndarray:
        """See Stream."""
        if self._data.size - self._used >= nbytes:
            self._used += nbytes
            return self._data[self._used - nbytes : self._used]
        parts, left = [], nbytes
        while left and (self._used < self._data.size or self._advance()):
            parts.append(self._data[self._used : self._used + left])
            self._used += parts[-1].size
            left -= parts[-1].size
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def _advance(self) -> bool:
        """Go to the next range; False at the end."""
        while self._next < self._stop and len(self._pending) < AHEAD:
            self._ask(self._next, min(self._next + RANGE_BYTES, self._stop))
        if not self._pending:
            return False
        try:
            found = self._pending.popleft().result()
        except FileNotFoundError as error:
            raise _gone(error) from None
        self._data, self._used = np.frombuffer(found, np.uint8), 0
        return True

    def _ask(self, first: int, stop: int) -> None:
        answer: Future = Future()

        def get() -> None:
            try:
                answer.set_result(self._requests.read_range(self._key, first, stop))
            except BaseException as error:
                answer.set_exception(error)

        submit(get)
        self._next = stop
        self._pending.append(answer)

    def close(self) -> None:
        """Forget what was asked for."""
        self._pending.clear()
