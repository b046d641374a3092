"""The reader `webdataset`: tars whose members belong together by their names up to the first dot.

A sample of WebDataset is KEY.jpg, KEY.json, KEY.txt, ...: all that comes after the first dot of the
last part of the path is the ending. Which endings are those of images and which those of records
says `--keys`, such as "image=jpg;png,record=json".
"""

from collections.abc import Iterator
from dataclasses import replace

from sa1bpack.errors import OptionError
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Pair, PairReader
from sa1bpack.source.records.images import ImageReader, PairOptions, joined, stored_name
from sa1bpack.source.tar import Half, Member
from sa1bpack.wording import brief

DEFAULT_KEYS = "image=jpg;jpeg;png;webp,record=json"
_ROLES = ("image", "record")


def roles_of(text: object) -> dict[str, tuple[str, ...]]:
    """Role → endings of the members that have it, of a text such as "image=jpg;png,record=json".

    Raises OptionError for another text, or for what is none.
    """
    if not isinstance(text, str):
        raise OptionError(f"keys is {brief(text)}: choose a text such as {DEFAULT_KEYS!r}")
    roles: dict[str, tuple[str, ...]] = {}
    for part in text.split(","):
        role, equals, endings = (piece.strip() for piece in part.partition("="))
        names = tuple(ending.strip().lstrip(".").lower() for ending in endings.split(";"))
        if role not in _ROLES or not equals or not all(names) or role in roles:
            raise OptionError(
                f"keys has {brief(part)}: choose image=ENDING and record=ENDING, several endings "
                f"separated by semicolons, such as {DEFAULT_KEYS}; without a record, images alone"
            )
        roles[role] = names
    if "image" not in roles:
        raise OptionError(f"keys is {brief(text)}: it has no image=ENDING")
    if set(roles["image"]) & set(roles.get("record", ())):
        raise OptionError(f"keys is {brief(text)}: an image and a record have one ending")
    return roles


def split_key(name: str) -> tuple[str, str]:
    """The key of a member, with its folders, and its ending, in lower case."""
    folder, slash, base = name.removeprefix("./").rpartition("/")
    key, _, ending = base.partition(".")
    return f"{folder}{slash}{key}", ending.lower()


class WebDatasetReader(PairReader):
    """The samples of a tar that have an image and a record."""

    def __init__(self, source: Source, options: PairOptions):
        super().__init__(
            source, spool_dir=options.spool_dir, md5=options.md5, on_wait=options.on_wait
        )
        self._roles = roles_of(options.keys or DEFAULT_KEYS)

    def split(self, name: str) -> tuple[str, Half | None]:
        """The key of a member, and its half of a pair."""
        key, ending = split_key(name)
        if not key.rpartition("/")[2]:  # a hidden file
            return key, None
        if ending in self._roles["image"]:
            return key, "jpeg"
        if ending in self._roles["record"]:
            return key, "json"
        return key, None

    def stored(self, name: str) -> str:
        """The name of an image as a pack stores it."""
        return stored_name(name)

    def __iter__(self) -> Iterator[Pair]:
        for pair in super().__iter__():
            ending = pair.file_name.rpartition(".")[2]
            path = f"{pair.name}.{ending}"
            yield replace(pair, json=joined(path, pair.json))


class WebDatasetImages(ImageReader):
    """The samples of a tar of which only the image is read."""

    def __init__(self, source: Source, options: PairOptions):
        super().__init__(source, options)
        self._endings = roles_of(options.keys or DEFAULT_KEYS)["image"]

    def is_image(self, member: Member) -> bool:
        """True for a member with an ending of images."""
        return split_key(member.name)[1] in self._endings

    def record_of(self, member: Member, path: str) -> bytes:
        """An empty record."""
        return b""
