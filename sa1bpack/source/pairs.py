"""The images and JSON records of a source, in pairs.

The members of an SA-1B tar are in random order: the two halves of a pair may be 11 GB apart, and
at the peak about a quarter of the tar waits for its other half. Waiting halves are spooled.
"""

import errno
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import IO

from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.paths import naming
from sa1bpack.source.find import Source
from sa1bpack.source.folder_files import FolderFile, split_folder
from sa1bpack.source.inflate import OnWait, open_stream, remedy
from sa1bpack.source.parquet import ParquetStream
from sa1bpack.source.tar import MAX_NAME_BYTES, Half, Member, TarStream, is_other_image, split_name
from sa1bpack.wording import brief

# The largest members that are read; larger ones are rejected unread.
MAX_JPEG_BYTES = 128 << 20
MAX_JSON_BYTES = 16 << 20
# Limits that keep names and reasons from filling the memory.
MAX_MEMBERS = 1_000_000  # of a tar
MAX_REJECTS = 100_000  # not counting halves without their other half
SPOOL_MEMORY = 256 << 20
# Limit of waiting halves relative to the size of the source, so that a gzip bomb does not fill the
# disk: gzip does not shrink JPEGs, so in a real source no more than the file itself can wait.
MAX_WAITING = 4  # times the size of the source
WAITING_ALWAYS = 1 << 30  # bytes that may wait whatever that size is
_NAMES_KEPT = 20
_WORKING_PREFIX = ".tmp-spool-"  # a hidden name, which the packer and checks of a pack ignore
BLOCK_BYTES = 128 << 10  # small compared with a 1 MB JPEG, large enough for cheap writes


@dataclass(frozen=True, slots=True)
class Pair:
    """An image and its annotations.

    `index` counts pairs in the order in which they were completed. `name` is the stem that both
    share (`sa_5`), `file_name` the last part of the image's path (`sa_5.jpg`), and `jpeg` the bytes
    of the image, in any format.
    """

    index: int
    name: str
    file_name: str
    jpeg: bytes
    json: bytes


@dataclass(frozen=True, slots=True)
class Reject:
    """A member that cannot be used.

    `code` of one that cannot become half of a pair is one of missing-json, missing-jpeg, duplicate,
    too-large, name-too-long, bad-name, not-a-file; others have the code of their SampleError.
    """

    member: str
    code: str
    detail: str

    def as_json(self) -> dict[str, str]:
        """The line in rejects.jsonl, without the source."""
        member = self.member.removeprefix("./")
        return {"member": member, "reason": self.code, "detail": self.detail}


# Endings of names of what may lie in a tar in place of pairs.
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip", ".7z", ".rar", ".tar.xz", ".tar.bz2", ".tar.zst")
_UNREAD_IMAGES = (".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl")


def why_no_pairs(names: Sequence[str], codes: Collection[str]) -> str:
    """The reason why a source has no pair, and the remedy, in words.

    Args:
        names: some of its members that are not named like half of a pair.
        codes: why other members were rejected.
    """
    archive = next((name for name in names if name.lower().endswith(_ARCHIVES)), None)
    image = next((name for name in names if name.lower().endswith(_UNREAD_IMAGES)), None)
    if archive is not None:
        return (
            f"it holds archives, such as {archive}: unpack it, `tar -xf TAR -C FOLDER`, and pack "
            "FOLDER or the tars in it"
        )
    if image is not None:
        return f"its images are of a format that is not read, such as {image}: convert them to JPEG"
    if set(codes) == {"missing-json"}:
        return (
            "it has images alone, without records: pack them as they are, --records none, name the "
            "annotation file, --annotations FILE, or put sa_<id>.json beside each sa_<id>.jpg "
            "(docs/from-your-dataset.md says what is in them)"
        )
    if set(codes) == {"missing-jpeg"}:
        return "it has records alone, without images: put sa_<id>.jpg beside each sa_<id>.json"
    contents = "no member can be used"
    if names:
        contents = f"it has other files, such as {names[0]}"
    return f"{contents}; if it should hold images of SA-1B, download it again"


def first_other_names(source: Source) -> list[str]:
    """The names of the first members of a source that are not named like half of a pair.

    Raises SourceError if it cannot be read.
    """
    names = []
    members = open_members(source)
    with closing(members.stream):
        for member in members:
            if member.kind == "file" and split_name(member.name)[1] is None:
                names.append(member.name)
            if len(names) == _NAMES_KEPT:
                break
    return names


_OTHER_HALF: dict[Half, Half] = {"jpeg": "json", "json": "jpeg"}

# What stands for an item in a Spool: itself, or its blocks in the file and its size.
Ticket = bytes | tuple[list[int], int]


class Spool:
    """A store of byte strings, each put once and taken once: in memory up to a limit, then on disk.

    At most `memory` bytes are held in memory. The rest goes to one file in `folder`, which is
    unlinked as soon as it is created, so that a killed process leaves nothing behind. The file
    consists of blocks that are reused when freed: it never grows past the largest amount spilled at
    one time, each item rounded up to `BLOCK_BYTES`. For a tar of SA-1B, whose halves are in random
    order, that is at most about 3 GB.
    """

    def __init__(self, folder: Path, memory: int):
        self.folder = Path(folder)
        self.memory = memory
        self.memory_used = 0
        self.spilled = 0  # bytes now in the file
        self.file_bytes = 0  # size of the file, which is its peak
        self._file: IO[bytes] | None = None
        self._free: list[int] = []  # block numbers

    def put(self, data: bytes) -> Ticket:
        """Store data; returns the ticket for `take`.

        Raises OSError, with the folder as its file name, if the temporary file cannot be created or
        written: the disk is at fault, not the source.
        """
        if self.memory_used + len(data) <= self.memory:
            self.memory_used += len(data)
            return data
        count = -(-len(data) // BLOCK_BYTES)
        blocks = [self._free.pop() for _ in range(min(count, len(self._free)))]
        first_new = self.file_bytes // BLOCK_BYTES
        blocks.extend(range(first_new, first_new + count - len(blocks)))
        self.file_bytes = max(self.file_bytes, (max(blocks, default=-1) + 1) * BLOCK_BYTES)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - until close()
                    dir=self.folder, prefix=_WORKING_PREFIX
                )
            for k, block in enumerate(blocks):
                piece = memoryview(data)[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES]
                offset = block * BLOCK_BYTES
                while piece:
                    written = os.pwrite(self._file.fileno(), piece, offset)
                    piece = piece[written:]
                    offset += written
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: {len(data)} bytes cannot be spooled on top of {self.spilled}",
                str(self.folder),
            ) from error
        self.spilled += len(data)
        return blocks, len(data)

    def take(self, ticket: Ticket) -> bytes:
        """Take out data. Raises OSError if the temporary file cannot be read."""
        if isinstance(ticket, bytes):
            self.memory_used -= len(ticket)
            return ticket
        assert self._file is not None  # `put` has written blocks
        blocks, size = ticket
        pieces = []
        left = size
        for block in blocks:
            with naming(self.folder):
                piece = os.pread(self._file.fileno(), min(left, BLOCK_BYTES), block * BLOCK_BYTES)
            pieces.append(piece)
            left -= len(piece)
        if left:
            read = f"only {size - left} of {size} bytes of the spool file"
            raise OSError(errno.EIO, f"{read} were read back", str(self.folder))
        self._free.extend(blocks)
        self.spilled -= size
        return b"".join(pieces)

    def close(self) -> None:
        """Free the file; tickets are no longer valid."""
        if self._file is not None:
            self._file.close()
            self._file = None


class FolderStream:
    """The members of an extracted folder; `read` returns the data of the current one.

    `bytes_read` counts the bytes of files read. A folder has no digest.
    """

    def __init__(self, folder: Path, all_images: bool = False):
        """`all_images` as for `list_folder`."""
        self.folder = folder
        self._all_images = all_images
        self.bytes_read = 0
        self.stream = self  # has the methods of a ByteStream that a reader calls

    @cached_property
    def _split(self) -> tuple[list[FolderFile], list[str]]:
        return split_folder(self.folder, self._all_images)

    @property
    def listed(self) -> list[FolderFile]:
        """The files that are members, listed once. Raises SourceError."""
        return self._split[0]

    @property
    def passed_over(self) -> list[str]:
        """The names of images that are no members, see `split_folder`. Raises SourceError."""
        return self._split[1]

    def __iter__(self) -> Iterator[Member]:
        sizes = [file.size() for file in self.listed]
        for file, size in zip(self.listed, sizes, strict=True):
            member = file.member(size)
            self._path = file.path
            self._size = member.size
            yield member

    def read(self) -> bytes:
        """All bytes of the current file.

        Raises SourceError if it cannot be read or its size has changed since it was listed.
        """
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123 - avoids an object per file
                data = file.read(self._size + 1)  # one more, to detect growth
        except OSError as error:
            raise SourceError(f"{self._path}: cannot be read: {error.strerror}") from error
        if len(data) != self._size:
            raise SourceError(
                f"{self._path}: its size changed from {self._size} bytes since the folder was "
                "listed; wait until nothing writes to the folder any more"
            )
        self.bytes_read += len(data)
        return data

    def digests(self) -> tuple[None, None]:
        """None, as a folder has no bytes of its own."""
        return None, None

    def cancel(self) -> None:
        """Do nothing: nothing is waited for."""

    def close(self) -> None:
        """Do nothing: nothing is held open between files."""


def open_members(
    source: Source, *, md5: bool = False, on_wait: OnWait = None
) -> TarStream | FolderStream | ParquetStream:
    """The members of a source; options as for a ByteStream. The caller closes their stream."""
    if isinstance(source.path, Path) and source.kind == "folder":
        return FolderStream(source.path)
    if isinstance(source.path, Path) and source.kind == "parquet":
        return ParquetStream(source.path, md5=md5)
    gzip = source.kind == "gzip-tar"
    return TarStream(open_stream(source.path, gzip=gzip, md5=md5, on_wait=on_wait))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A half whose other half has not been read yet."""

    half: Half
    member: str
    ticket: Ticket


def _folder_of(name: str) -> str:
    """The folder of a member."""
    return name.removeprefix("./").rpartition("/")[0]


class PairReader:
    """The pairs of a source, to be iterated once, in one sequential pass.

    ::

        with PairReader(source, spool_dir=folder) as reader:
            for pair in reader:
                ...

    Memory: the current pair (a member twice while it is assembled), `spool_memory` bytes of waiting
    halves, what is read ahead (8 MiB that wait for an md5, 32 MiB of a tar in an object store), and
    about 200 bytes per name. Disk: see Spool; if more than `MAX_WAITING` times the size of the
    source waits, the source is SourceCorrupt. A member larger than its limit is never read into
    memory.

    A pair is rejected once, not twice: the other half of a rejected member is dropped silently. Of
    two members with the same stem and kind, in whatever folders, the first counts. Its other half
    may be in another folder, but not in that of a duplicate of it: if that comes later, the source
    is a SourceError. An image in
    another format than JPEG (`sa_5.png`) is passed over where it follows an image of its stem, and
    without a record in a source whose pairs all have JPEGs: it may be a map of depth.

    Iterating raises SourceTruncated, SourceCorrupt or SourceError, or OSError if the disk of
    `spool_dir` fails; pairs yielded before SourceTruncated are valid. Leaving the `with` block at
    any time closes everything. `on_wait` is called with a line for the user when the network keeps
    a source waiting. Attributes are valid during and after iteration. Not safe for use by several
    threads at once, but for `cancel`.

    Attributes:
        rejects: rejected members, as Reject; orphans are added at the end of the source.
        ignored: numbers of members that are not part of a pair by name, by kind: foreign, link,
            special, sparse.
        ignored_names: names of the first 20 of these.
        members: number of entries seen.
        bytes_read: bytes of the source consumed.
        xxh128, md5: hex XXH3-128 and md5 of the complete file as it is on disk; None for a folder,
            and before the end. `md5` is None also unless the argument of that name is true.
    """

    def __init__(
        self,
        source: Source,
        *,
        spool_dir: Path,
        spool_memory: int = SPOOL_MEMORY,
        members: TarStream | FolderStream | ParquetStream | None = None,
        md5: bool = False,
        on_wait: OnWait = None,
    ):
        """
        Args:
            source: the tar or folder.
            spool_dir: folder for halves that do not fit into memory.
            spool_memory: bytes of halves that are kept in memory.
            members: members of the source; None: opened with `md5` and `on_wait`, as a ByteStream.
        """
        self.source = source
        self.rejects: list[Reject] = []
        self.ignored: Counter[str] = Counter()
        self.ignored_names: list[str] = []
        self.members = 0
        self.xxh128: str | None = None
        self.md5: str | None = None
        self._spool = Spool(spool_dir, spool_memory)
        self._waiting: dict[str, _Waiting] = {}
        self._settled: dict[str, bool] = {}  # stem → whether it became a pair
        # Folder and stem of halves that were rejected because another one was waiting.
        self._followers: set[tuple[str, str]] = set()
        # Stem of a pair whose halves are in two folders → their names.
        self._apart: dict[str, dict[Half, str]] = {}
        self._found = 0  # pairs
        self._unread_images: dict[str, str] = {}  # stem → ending of images that are not read
        self._all_jpeg = True  # so far, the images of pairs, by their names
        if members is None:
            members = open_members(source, md5=md5, on_wait=on_wait)
        self._members = members
        self._stream = members.stream

    def __enter__(self) -> "PairReader":
        return self

    def __exit__(self, *_: object) -> None:
        """Close the source and free the spool."""
        self._stream.close()
        self._spool.close()

    @property
    def bytes_read(self) -> int:
        """Bytes of the source consumed so far, out of `source.nbytes`."""
        return self._stream.bytes_read

    def cancel(self) -> None:
        """End a wait for the network in the thread that iterates, which then raises SourceError."""
        self._stream.cancel()

    def entries(self) -> Iterator[Member]:
        """The members but folders, counted; the data of the current one can be read.

        Raises SourceError if there are more than MAX_MEMBERS.
        """
        for member in self._members:
            self.members += 1
            if self.members > MAX_MEMBERS and self.source.kind != "folder":
                raise SourceError(
                    f"{self.source.path}: more than {MAX_MEMBERS} members, the last one "
                    f"{brief(member.name)}; SA-1B's tars have 22,373: split the tar"
                )
            if member.kind != "directory":
                yield member

    def split(self, name: str) -> tuple[str, Half | None]:
        """What the halves of a pair share of their names, and the half that a member is, if any."""
        return split_name(name)

    def stored(self, name: str) -> str:
        """The name of an image, a member, as a pack stores it."""
        return name.rpartition("/")[2]

    def read(self) -> bytes:
        """The data of the current member; once."""
        return self._members.read()

    def ignore_member(self, member: Member) -> None:
        """Count a member that is not named like part of a pair."""
        kind: str = member.kind
        if kind == "file":
            kind = "foreign"
        self.ignore(member.name, kind)

    def ignore(self, name: str, kind: str = "foreign") -> None:
        """Count a member that is not part of a pair."""
        self.ignored[kind] += 1
        if len(self.ignored_names) < _NAMES_KEPT:
            self.ignored_names.append(name)

    def end(self) -> None:
        """Note the digests of a source that was read to its end, and what a folder left out."""
        if isinstance(self._members, FolderStream):
            for name in self._members.passed_over:
                self.ignore(name)
        self.xxh128, self.md5 = self._stream.digests()

    def __iter__(self) -> Iterator[Pair]:
        for member in self.entries():
            stem, half = self.split(member.name)
            if half is None:
                self.ignore_member(member)
                ending = PurePath(member.name).suffix
                if ending.lower() in _UNREAD_IMAGES:
                    self._unread_images[PurePath(member.name).stem] = ending
            elif self._admit(member, stem, half) and (pair := self._match(member, stem, half)):
                yield pair
        all_jpeg = self._found > 0 and self._all_jpeg
        for stem, waiting in self._waiting.items():
            if all_jpeg and is_other_image(waiting.member):
                self.ignore(waiting.member)
                continue
            missing = _OTHER_HALF[waiting.half]
            detail = f"the source has no {missing} for {stem!r}"
            if missing == "jpeg" and stem in self._unread_images:
                detail += f", but {stem}{self._unread_images[stem]}: convert that to JPEG"
            self.rejects.append(Reject(waiting.member, f"missing-{missing}", detail))
        self.end()

    def _admit(self, member: Member, stem: str, half: Half) -> bool:
        """True if the member may be read; if not, the reason is recorded."""
        waiting = self._waiting.get(stem)
        known = stem in self._settled or (waiting is not None and waiting.half == half)
        if known and is_other_image(member.name):
            self.ignore(member.name)
            return False
        if stem in self._settled:
            if self._settled[stem]:
                self._check_halves(member, stem, half)
                self.reject(member, "duplicate", f"it follows a pair named {stem!r}")
            return False
        if waiting is not None and waiting.half == half:
            self.reject(member, "duplicate", f"it follows {waiting.member!r}")
            self._followers.add((_folder_of(member.name), stem))
            return False
        if waiting is not None and self._followers:
            folder = _folder_of(member.name)
            if (folder, stem) in self._followers and folder != _folder_of(waiting.member):
                self.reject(member, "duplicate", f"its other half follows {waiting.member!r}")
                return False
        # No extension that the image of a JSON record may have is shorter than .jpg.
        file_name = self.stored(stem + ".jpg")
        if half == "jpeg":
            file_name = self.stored(member.name)
        if self.can_be_read(member, half, file_name):
            return True
        self._settled[stem] = False
        if waiting is not None:
            self._spool.take(self._waiting.pop(stem).ticket)
        return False

    def _check_halves(self, member: Member, stem: str, half: Half) -> None:
        """Raise SourceError if a pair of halves of two folders was none, as a member shows."""
        halves = self._apart.get(stem)
        if halves is None:
            return
        other = halves[_OTHER_HALF[half]]
        if _folder_of(other) == _folder_of(member.name):
            raise SourceError(
                f"{self.source.path}: {brief(other)} was taken for the other half of "
                f"{brief(halves[half])}, but {brief(member.name)} is: rename what has one name in "
                "several folders, or pack each folder as a source of its own"
            )

    def can_be_read(self, member: Member, half: Half, file_name: str) -> bool:
        """True if a member may be read as half of a pair; if not, the reason is noted.

        `file_name` is the name of the image as a pack would store it.
        """
        length = len(file_name.encode())
        limit = MAX_JSON_BYTES
        if half == "jpeg":
            limit = MAX_JPEG_BYTES
        if member.problem:
            self.reject(member, "bad-name", f"{member.problem}; rename it")
        elif member.kind != "file":
            detail = f"it is a {member.kind} member; replace it with the file itself"
            self.reject(member, "not-a-file", detail)
        elif length > MAX_NAME_BYTES:
            detail = f"{length} bytes, the limit is {MAX_NAME_BYTES}; shorten it"
            self.reject(member, "name-too-long", detail)
        elif member.size > limit:  # this text tells it from a pair: docs/format.md, "Accounts"
            detail = f"{member.size} bytes, the limit for a {half} member is {limit}"
            self.reject(member, "too-large", detail)
        else:
            return True
        return False

    def _match(self, member: Member, stem: str, half: Half) -> Pair | None:
        """Complete a pair with the current member, or keep it until its other half arrives.

        Raises SourceCorrupt if more bytes wait than in any real source.
        """
        data = self._members.read()
        waiting = self._waiting.pop(stem, None)
        if waiting is None:
            size = self._spool.memory_used + self._spool.spilled + member.size
            if size > max(WAITING_ALWAYS, MAX_WAITING * self.source.nbytes):
                raise SourceCorrupt(
                    f"{self.source.path}: {len(self._waiting) + 1} members wait for their other "
                    f"half, the last one {brief(member.name)}: {size} bytes, more than "
                    f"{MAX_WAITING} "
                    f"times the {self.source.nbytes} bytes of the file. A gzip bomb? "
                    f"{remedy(self.source.path)}"
                )
            self._waiting[stem] = _Waiting(half, member.name, self._spool.put(data))
            return None
        self._settled[stem] = True
        if _folder_of(waiting.member) != _folder_of(member.name):
            self._apart[stem] = {half: member.name, waiting.half: waiting.member}
        self._found += 1
        other = self._spool.take(waiting.ticket)
        if half == "jpeg":
            pair = Pair(self._found - 1, stem, self.stored(member.name), data, other)
        else:
            pair = Pair(self._found - 1, stem, self.stored(waiting.member), other, data)
        if is_other_image(pair.file_name):
            self._all_jpeg = False
        return pair

    def reject(self, member: Member, code: str, detail: str) -> None:
        """Note a member that cannot be used. Raises SourceError after MAX_REJECTS of them."""
        self.rejects.append(Reject(member.name, code, detail))
        if len(self.rejects) > MAX_REJECTS:
            raise SourceError(
                f"{self.source.path}: more than {MAX_REJECTS} members cannot be used, the last one "
                f"{brief(member.name)}: {code}, {detail}; is this a tar of SA-1B?"
            )
