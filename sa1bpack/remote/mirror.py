"""A pack at a URL is checked: its files, in a temporary folder as far as they are small."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.arguments import ALL, choice, part_of_job
from sa1bpack.disk.direct import IO
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.arrays import METADATA_NAME
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, is_inside
from sa1bpack.format.manifest import MANIFEST_NAME, REJECTS_NAME, SHARDS_NAME
from sa1bpack.format.problems import PackFiles, Report
from sa1bpack.format.verify import check_files
from sa1bpack.paths import naming
from sa1bpack.progress import ProgressOption, reporting
from sa1bpack.remote.bucket import Bucket, Pieces
from sa1bpack.remote.expected_files import expected_files
from sa1bpack.remote.origin import fetch_files, is_large, no_pack
from sa1bpack.threads import ThreadPool

# Files that are fetched whole, besides chunk files of small arrays.
_WHOLE = (MANIFEST_NAME, CHECKSUMS_NAME, METADATA_NAME, REJECTS_NAME)

# What is needed of a shard after it was checked, to compare it with the index.
_KEPT = ("image_id", "mask_offset")


def verify_at_url(
    url: str, *, quick: bool, progress: ProgressOption, io: str, part: tuple[int, int] | None
) -> Report:
    """Check a pack in an object store; arguments and errors are those of `format.verify.verify`."""
    if choice("io", io, IO) == "direct":
        raise OptionError("io is 'direct', but a pack in an object store is not read from a disk")
    share = ALL
    if part is not None:
        share = part_of_job(part)
    with tempfile.TemporaryDirectory(prefix="sa1bpack-verify-") as name:
        mirror = _Mirror(Path(name), url)
        try:
            with reporting(progress, "byte") as advance:
                report = check_files(mirror, quick=quick, advance=advance, share=share)
        except FormatError as error:
            raise type(error)(mirror.shown(str(error))) from None
    problems = [replace(problem, what=mirror.shown(problem.what)) for problem in report.problems]
    notes = tuple(map(mirror.shown, report.notes))
    if not mirror.lists:
        notes += (
            f"{url}: the server does not say which files there are: files that do not belong to "
            "the pack, and features that it does not keep of records, were not looked for",
        )
    return replace(report, problems=tuple(problems), notes=notes)


class _Mirror(PackFiles):
    """The files of a pack in an object store, in a temporary folder.

    Small files are fetched. Large ones are holes of their length there, and are read from the
    store as streams, each once.
    """

    tries = 2  # the bytes may have been changed in transit

    def __init__(self, root: Path, url: str):
        """Fetch everything but the shards, of which only the checksum files.

        Raises NotAPack if there is no manifest, FormatError for an object that cannot be a file,
        StoreError, OptionError, MissingPackage.
        """
        super().__init__(root, "cached")
        origin = Bucket(url)
        self.url = url
        self.lists = origin.lists
        self._origin = origin
        # Path → bytes.
        self._sizes = origin.files() if origin.lists else expected_files(origin)
        for path in self._sizes:
            if not is_inside(path):
                raise FormatError(f"{url}: {path!r} cannot name a file; remove that object")
        if MANIFEST_NAME not in self._sizes:
            raise no_pack(url, MANIFEST_NAME)
        mark = f"/{CHECKSUMS_NAME}"
        self._fetch(path for path in self._sizes if not self._shard_of(path) or path.endswith(mark))

    def shown(self, text: str) -> str:
        """A text with the URL in place of the temporary folder."""
        return text.replace(str(self.root), self.url)

    def fetch(self, shard: str) -> None:
        """See PackFiles."""
        self._fetch(path for path in self._sizes if self._shard_of(path) == shard)

    def release(self, shard: str) -> None:
        """See PackFiles."""
        for path, size in self._sizes.items():
            keep = path.rpartition("/")[2] in (METADATA_NAME, CHECKSUMS_NAME)
            if self._shard_of(path) == shard and not keep and path.split("/")[2] not in _KEPT:
                _make_hole(self.root / path, size)

    def _pieces(self, path: Path) -> Pieces | None:
        """The bytes of a file, if it is read from the origin."""
        key = str(path.relative_to(self.root))
        if not is_large(key):
            return None
        return self._origin.ranges(key, 0, path.stat().st_size)

    def stream(self, path: Path, nbytes: int, helper: ThreadPool) -> Any:
        """See PackFiles."""
        pieces = self._pieces(path)
        if pieces is None:
            return super().stream(path, nbytes, helper)
        return _ObjectStream(pieces)

    def digest(self, path: Path) -> str:
        """See PackFiles."""
        pieces = self._pieces(path)
        if pieces is None:
            return super().digest(path)
        digest = xxhash.xxh3_128()
        for piece in pieces:
            digest.update(piece)
        return digest.hexdigest()

    def _shard_of(self, path: str) -> str | None:
        match path.split("/"):
            case [folder, shard, _, *_] if folder == SHARDS_NAME:
                return shard
        return None

    def _fetch(self, paths: Iterable[str]) -> None:
        """Fetch files, several at once; make holes of those that are streamed."""
        files: dict[str, tuple[int | None, str | None]] = {}
        for path in paths:
            name = path.rpartition("/")[2]
            if not is_large(path) and (name in _WHOLE or name.startswith("c.")):
                files[path] = self._sizes[path], None
            else:  # also what is foreign, of which only the name is looked at
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                _make_hole(self.root / path, self._sizes[path])
        fetch_files(self._origin, "", self.root, files)


def _make_hole(path: Path, nbytes: int) -> None:
    with path.open("wb") as file, naming(path):
        file.truncate(nbytes)


class _ObjectStream:
    """The bytes of one object, read once from its start, as by FileStream. Raises StoreError."""

    def __init__(self, pieces: Pieces):
        self._pieces = pieces
        self.close = pieces.close
        self._data = bytearray()

    def read(self, nbytes: int) -> np.ndarray:
        """See FileStream."""
        while len(self._data) < nbytes:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._data += piece
        data = self._data[:nbytes]
        self._data = self._data[nbytes:]
        return np.frombuffer(data, np.uint8)
