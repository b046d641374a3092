"""The images of a source, each with the record that its data set has for it elsewhere, or none."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa1bpack.source.find import Source
from sa1bpack.source.inflate import OnWait
from sa1bpack.source.pairs import MAX_JSON_BYTES, FolderStream, Pair, PairReader
from sa1bpack.source.records.masks_json import name_id
from sa1bpack.source.tar import MAX_NAME_BYTES, Member, split_name
from sa1bpack.wording import brief

_NAME_BEGIN = 20  # bytes of a name that is shortened


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """How a source is read.

    Attributes:
        spool_dir: folder for what does not fit into memory.
        md5: the md5 of a tar is computed.
        on_wait: called with a line for the user when the network keeps a source waiting.
        annotations: file or folder with the records; None: beside the images.
        keys: of `webdataset`: which endings images and records have.
    """

    spool_dir: Path
    md5: bool = False
    on_wait: OnWait = None
    annotations: Path | None = None
    keys: str | None = None


def stored_name(path: str) -> str:
    """The name of an image as a pack stores it, of at most MAX_NAME_BYTES bytes.

    It is the last part of the path; of a longer one, its first 20 bytes, "~", 16 hex digits of the
    id of the path, and the ending.
    """
    name = path.rpartition("/")[2]
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    stem, dot, ending = path.rpartition(".")
    begin = name.encode()[:_NAME_BEGIN].decode("utf-8", "ignore")
    return f"{begin}~{name_id(stem):016x}{dot}{ending}"


def joined(path: str, record: bytes) -> bytes:
    """The half of a pair that a worker parses: the path of the image, a line, then its record."""
    return b"%b\n%b" % (path.encode(), record)


def parts_of(half: bytes | memoryview) -> tuple[str, bytes]:
    """The path and the record that `joined` has joined."""
    path, _, record = bytes(half).partition(b"\n")
    return path.decode(), record


class ImageReader(PairReader, ABC):
    """The images of a source with their records; used as a PairReader.

    The name of a pair is the path of its image in the source, without the ending.

    Attributes:
        all_images: images in other formats than JPEG count, too, where a folder has JPEGs.
        ids_of_names: ids of images are those of their paths without endings, so of `a.jpg` and
            `a.png` the first counts.
    """

    all_images = True
    ids_of_names = True

    def __init__(self, source: Source, options: PairOptions):
        members = None
        if source.kind == "folder" and isinstance(source.path, Path):
            members = FolderStream(source.path, self.all_images)
        super().__init__(
            source,
            spool_dir=options.spool_dir,
            members=members,
            md5=options.md5,
            on_wait=options.on_wait,
        )
        self._seen: set[str] = set()
        self._paths: dict[int, str] = {}  # id of a name → the path that has it

    @abstractmethod
    def record_of(self, member: Member, path: str) -> bytes | None:
        """The record of an image; None if it is none that is packed, as was noted."""

    def finish(self) -> None:
        """Note what else is known at the end of the source. Raises SourceError."""

    def described(self) -> dict[str, Any]:
        """What the manifest of a pack keeps of the records of this source."""
        return {}

    def __iter__(self) -> Iterator[Pair]:
        count = 0
        for member in self.entries():
            if not self.is_image(member):
                self.ignore_member(member)
                continue
            path = member.name.removeprefix("./")
            file_name = stored_name(path)
            if not self.can_be_read(member, "jpeg", file_name):
                continue
            if path in self._seen:
                self.reject(member, "duplicate", f"it follows another one named {brief(path)}")
                continue
            self._seen.add(path)
            if self.ids_of_names and not self.is_first(member, path):
                continue
            record = self.record_of(member, path)
            if record is None:
                continue
            if len(record) > MAX_JSON_BYTES:
                detail = f"{len(record)} bytes, the limit for a json member is {MAX_JSON_BYTES}"
                self.reject(member, "too-large", detail)
                continue
            name = path.rpartition(".")[0]
            yield Pair(count, name, file_name, self.read(), joined(path, record))
            count += 1
        self.finish()
        self.end()

    def is_image(self, member: Member) -> bool:
        """True for a member that is named like an image."""
        return split_name(member.name)[1] == "jpeg"

    def is_first(self, member: Member, path: str) -> bool:
        """True for the first image of this path without its ending; others are rejected."""
        first = self._paths.setdefault(name_id(path.rpartition(".")[0]), path)
        if first == path:
            return True
        detail = (
            f"it follows {brief(first)}, and an image without an id has that of its path without "
            "ending, so both have one: rename one"
        )
        self.reject(member, "duplicate", detail)
        return False
