"""The annotation file of a data set in COCO's form: where in it the record of each image lies.

COCO (https://cocodataset.org/#format-data) has one JSON beside a folder of images: {"images":
[{"id", "file_name", "width", "height", ...}], "annotations": [{"image_id", "segmentation", "bbox",
...}], "categories": [...], "licenses": [...], "info": {...}}. A list of results, as
`COCO.loadRes` reads it, has the annotations alone; their images are called by their ids.

The file is read through once. Kept of it are, for each annotation, the number of its image and its
place, 24 bytes; the record of an image is read from there when the image is met.
"""

import os
import re
from collections import Counter
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from sa1bpack.errors import SourceError
from sa1bpack.paths import real_path
from sa1bpack.source.records.folders import FolderNames, common_end
from sa1bpack.source.records.scan import Items, JsonScanner
from sa1bpack.wording import brief

# Values of the file that the manifest of a pack keeps.
KEPT_VALUES = ("info", "licenses", "categories")
NAMED = 5  # of what cannot be used
_TEXT_ID = re.compile(rb'"image_id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+(?=(?:\.0+)?\s*[,}]))')
_LAST_NUMBER = re.compile(r"(\d+)$", re.ASCII)

Id = int | str


class _ImageKeys(msgspec.Struct, gc=False):
    id: Id
    file_name: str | None = None
    coco_url: str | None = None


class _AnnotationKeys(msgspec.Struct, gc=False):
    image_id: Id
    id: Any = None
    segments_info: msgspec.Raw = msgspec.Raw()


_decode_images = msgspec.json.Decoder(list[_ImageKeys]).decode
_decode_annotations = msgspec.json.Decoder(list[_AnnotationKeys]).decode
_BAD_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


class CocoFile:
    """An annotation file that was read through once; its records are read from it later.

    Attributes:
        path: the file.
        nbytes, xxh128: its size, and hex XXH3-128.
        values: "info", "licenses" and "categories", as far as it has them.
        images, annotations: number of each that can be used.
        lost: lines that say what cannot be used, and why; about images and annotations that no
            record has.
    """

    def __init__(self, path: Path):
        """Read the file through.

        Raises SourceError if it cannot be read, or is no JSON of this form.
        """
        self.path = path
        self.values: dict[str, Any] = {}
        self._numbers: dict[Id, int] = {}  # id of an image → its number here
        self._image_span: dict[int, tuple[int, int]] = {}
        self._names: dict[str, list[int]] = {}  # last part of a path → numbers of images
        self._paths: dict[int, str] = {}
        self._folders = FolderNames()
        self._lacks_ids = False
        # What cannot be used → how many are so, and the first of them.
        self._unusable: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        scanner = JsonScanner(path)
        owners, spans = self._read_pieces(scanner)
        self._check_lists(scanner)
        self.nbytes = scanner.nbytes
        self.xxh128 = scanner.xxh128
        self.are_results = None in scanner.lists
        # Annotations by the number of their image, those of one in the order of the file.
        self._order = np.argsort(owners, kind="stable")
        self._owner = owners[self._order]
        self._span = spans[self._order]
        self._ids = [*self._numbers]
        # int64 (images + 1,): where the annotations of each begin.
        self._first = np.searchsorted(self._owner, np.arange(len(self._ids) + 1))
        self.annotations = len(owners)
        self.images = len(self._image_span)
        if self.are_results:
            self.images = len(self._numbers)
        else:
            self._note_strangers()
        self.lost = []
        for reason, count in self._unusable.items():
            examples = ", ".join(self._examples[reason])
            self.lost.append(f"{path.name}: {reason}: {count:,}, such as {examples}")

    def _read_pieces(self, scanner: JsonScanner) -> tuple[np.ndarray, np.ndarray]:
        """Read the file through.

        Returns of each annotation the number of its image, int64 (n,), -1 for none, and where in
        the file it begins and ends, int64 (n, 2).
        """
        owners = [np.empty(0, np.int64)]
        spans = [np.empty((0, 2), np.int64)]
        values: dict[str, list[bytes]] = {}
        for piece in scanner:
            if isinstance(piece, Items):
                if piece.key in ("annotations", None):
                    owners.append(self._owners(piece))
                    spans.append(piece.spans)
                elif piece.key == "images":
                    self._add_images(piece)
                elif piece.key in KEPT_VALUES:
                    values.setdefault(piece.key, []).extend(piece.texts())
            elif piece.key in KEPT_VALUES and piece.text is not None:
                self.values[piece.key] = self._decoded(piece.key, piece.text)
        for key, texts in values.items():
            self.values[key] = self._decoded(key, b"[" + b",".join(texts) + b"]")
        return np.concatenate(owners), np.concatenate(spans)

    def _decoded(self, key: str, text: bytes) -> Any:
        try:
            return msgspec.json.decode(text)
        except _BAD_JSON as error:
            raise SourceError(f"{self.path}: {key}: {error}; correct the file") from None

    def _check_lists(self, scanner: JsonScanner) -> None:
        """Raise SourceError if the file has not the lists of this form."""
        lists = scanner.lists
        if None not in lists and not ("images" in lists and "annotations" in lists):
            raise SourceError(
                f"{self.path}: no annotation file in COCO's form, which has the lists images and "
                f"annotations: its lists are {', '.join(map(str, lists)) or 'none'}"
            )
        for key in ("images", "annotations", None):
            byte = lists.get(key, -1)
            if byte >= 0:
                raise SourceError(
                    f"{self.path}: {key or 'the list'} has something at byte {byte} that is no "
                    "object: correct the file"
                )

    def _number(self, identity: Id) -> int:
        return self._numbers.setdefault(identity, len(self._numbers))

    def _add_images(self, piece: Items) -> None:
        """Note the images of a piece of the file."""
        spans = piece.spans.tolist()
        for span, keys in zip(spans, self._keys_of(piece, _decode_images), strict=True):
            path = _path_of(keys) if keys is not None else None
            if path is None:
                self._note("images without an id or a file_name", f"byte {span[0]}")
                continue
            number = self._number(keys.id)
            if number in self._image_span:
                self._note("images with the id of another one", brief(keys.id))
                continue
            self._image_span[number] = (span[0], span[1])
            self._paths[number] = path
            parts = path.split("/")
            self._folders.add(parts)
            self._names.setdefault(parts[-1], []).append(number)

    def _owners(self, piece: Items) -> np.ndarray:
        """int64 (m,): the number of the image of each annotation of a piece; -1 for none."""
        keys_of = self._keys_of(piece, _decode_annotations)
        self._refuse_panoptic(keys_of[0], next(iter(piece.texts())))
        if None not in keys_of:
            self._lacks_ids |= any(keys.id is None for keys in keys_of)
            numbers = self._numbers
            for keys in keys_of:
                if keys.image_id not in numbers:
                    numbers[keys.image_id] = len(numbers)
            return np.array([numbers[keys.image_id] for keys in keys_of], np.int64)
        owners = np.empty(len(keys_of), np.int64)
        for row, (keys, text) in enumerate(zip(keys_of, piece.texts(), strict=True)):
            identity = _id_in(text) if keys is None else keys.image_id
            self._lacks_ids |= keys is not None and keys.id is None
            if identity is None:
                owners[row] = -1
                self._note("annotations without an image_id", f"byte {piece.spans[row, 0]}")
            else:
                owners[row] = self._number(identity)
        return owners

    def _refuse_panoptic(self, keys: _AnnotationKeys | None, text: bytes) -> None:
        """Raise SourceError for a panoptic annotation of COCO, whose masks lie elsewhere."""
        if keys is None or not bytes(keys.segments_info) or b'"segmentation"' in text:
            return
        raise SourceError(
            f"{self.path}: the annotation of image {brief(keys.image_id)} has segments_info and no "
            "segmentation: COCO's panoptic form, whose masks are in PNG files, is not read; "
            "convert it to the form of instances, as by panoptic2detection_coco_format.py of "
            "panopticapi"
        )

    def _keys_of(self, piece: Items, decode: Any) -> list[Any]:
        """The keys of the objects of a piece; None for one that has not those that it must have."""
        begin = int(piece.spans[0, 0]) - piece.offset
        end = int(piece.spans[-1, 1]) - piece.offset
        with suppress(*_BAD_JSON):  # one by one
            keys: list[Any] = decode(b"".join((b"[", piece.data[begin:end], b"]")))
            return keys
        keys = []
        for text in piece.texts():
            try:
                keys += decode(b"[" + text + b"]")
            except _BAD_JSON:
                keys.append(None)
        return keys

    def _note(self, reason: str, example: str, count: int = 1) -> None:
        """Note that this many images or annotations cannot be used."""
        self._unusable[reason] += count
        examples = self._examples.setdefault(reason, [])
        if len(examples) < NAMED and example not in examples:
            examples.append(example)

    def _note_strangers(self) -> None:
        """Note the annotations of images that are not listed."""
        listed = np.zeros(len(self._numbers), bool)
        listed[[*self._image_span]] = True
        numbers, counts = np.unique(self._owner[self._owner >= 0], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if not listed[number]:
                reason = "annotations of an image that is not listed"
                self._note(reason, brief(self._ids[number]), count)

    def find(self, path: str) -> int | str | None:
        """The number of the image at a path, with the name of its source before it.

        Folders decide between images whose last parts are equal. None if there is none; a
        text that says why it is not clear which.
        """
        name = path.rpartition("/")[2]
        if self.are_results:
            number = _LAST_NUMBER.search(name.rpartition(".")[0])
            return self._numbers.get(int(number[1])) if number else None
        parts = path.split("/")
        candidates = []
        for listed in self._names.get(name, []):
            if not self._folders.tell_apart(parts, self._paths[listed].split("/")):
                candidates.append(listed)
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        lengths = [common_end(parts, self._paths[number].split("/")) for number in candidates]
        longest = max(lengths)
        best = [
            number for number, length in zip(candidates, lengths, strict=True) if length == longest
        ]
        if len(best) > 1:  # an image at the top, beside others of its name in folders
            whole = [n for n in best if len(self._paths[n].split("/")) == longest]
            best = whole or best
        if len(best) == 1:
            return best[0]
        named = ", ".join(brief(self._ids[number]) for number in best[:NAMED])
        return (
            f"{self.path.name} lists {len(best)} images that may be it, with the ids {named}; "
            "correct their file_name"
        )

    @property
    def has_folders(self) -> bool:
        """True if it says of some images in which folder they are."""
        return bool(self._folders)

    def agreement(self, number: int, path: str) -> int:
        """How many of the last parts of a path are those of the path of an image; 0 for results."""
        return common_end(path.split("/"), self.path_of(number).split("/"))

    def id_of(self, number: int) -> int | str:
        """The id of an image; one that is a text is not that of the pack."""
        return self._ids[number]

    def path_of(self, number: int) -> str:
        """The path of an image as the file has it; empty for results."""
        return self._paths.get(number, "")

    def record(self, number: int, file: int) -> bytes:
        """The record of an image: {"image": {...}, "annotations": [...]}, as in the file.

        `file` is a descriptor of the file.

        Where annotations lack ids, "positions" has their numbers in the file, from 1, as `loadRes`
        numbers them.

        Raises SourceError if the file has changed.
        """
        first, stop = self._first[number : number + 2].tolist()
        texts = self._read_all(file, self._span[first:stop].tolist())
        if self.are_results:
            image = b'{"id":%b}' % msgspec.json.encode(self._ids[number])
        else:
            image = self._read(file, *self._image_span[number])
        positions = b""
        if self._lacks_ids:
            numbers = (self._order[first:stop] + 1).tolist()
            positions = b',"positions":' + msgspec.json.encode(numbers)
        return b'{"image":%b,"annotations":[%b]%b}' % (image, b",".join(texts), positions)

    def _read_all(self, file: int, spans: list[list[int]]) -> list[bytes]:
        """Pieces of the file; those that lie close together are read at once."""
        if not spans:
            return []
        begin = spans[0][0]
        end = spans[-1][1]
        nbytes = sum(stop - start for start, stop in spans)
        if not nbytes <= end - begin <= 2 * nbytes:
            return [self._read(file, start, stop) for start, stop in spans]
        data = self._read(file, begin, end)
        return [data[start - begin : stop - begin] for start, stop in spans]

    def _read(self, file: int, begin: int, end: int) -> bytes:
        try:
            data = os.pread(file, end - begin, begin)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(data) < end - begin:
            raise changed(self.path)
        return data

    def paths_without(self, met: Set[int]) -> list[str]:
        """Paths of the images of the file that are not among those of these numbers."""
        return [self._paths[number] for number in sorted(self._image_span.keys() - met)]


def changed(path: Path) -> SourceError:
    """The error for an annotation file that is not as it was when it was read through."""
    return SourceError(f"{path}: it has changed while it was read; repeat the command")


# The file that was read through last, by path, size and time of change: a run asks for it when it
# finds out what to keep, and for each of its sources.
_kept: dict[tuple[Path, int, int], CocoFile] = {}
_reading = Lock()


def _begin_anew() -> None:
    """A child that was forked while a file was read has a lock of its own."""
    global _reading
    _reading = Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_begin_anew)


def read_coco_file(path: Path, status: os.stat_result) -> CocoFile:
    """The file at a path, read through unless it is the last one that was.

    Args:
        path: the file.
        status: of the open file; the file is one that has changed if it had another after reading.

    Raises:
        SourceError: as CocoFile.
    """
    key = (real_path(path), status.st_size, status.st_mtime_ns)
    with _reading:
        if key not in _kept:
            _kept.clear()
            _kept[key] = CocoFile(path)
        return _kept[key]


def forget_coco_file() -> None:
    """Free the memory of the file that was read last."""
    with _reading:
        _kept.clear()


def _path_of(keys: _ImageKeys) -> str | None:
    """The path of an image in a data set; None if its entry has none."""
    path = keys.file_name
    if (
        not path and keys.coco_url
    ):  # of LVIS: http://images.cocodataset.org/val2017/000000397133.jpg
        path = "/".join(keys.coco_url.split("/")[-2:])
    if not path:
        return None
    return path.replace("\\", "/").removeprefix("./")


def _id_in(text: bytes) -> Id | None:
    """The image_id of an annotation that is no valid JSON, or of another type."""
    match = _TEXT_ID.search(text)
    if match is None:
        return None
    with suppress(*_BAD_JSON):
        identity: Id = msgspec.json.decode(match[1])
        return identity
    return None
