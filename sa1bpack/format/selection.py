"""The file of a selection: the image ids of chosen samples, and the packs that they are in.

docs/format.md specifies it. It holds no pixels, and is read with Python's zlib and numpy alone.
"""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import xxhash
from zlib_ng import zlib_ng

from sa1bpack.errors import FormatError, NotAPack, OptionError
from sa1bpack.format.arrays import Count, check_version
from sa1bpack.format.files import read_metadata_file
from sa1bpack.format.manifest import MANIFEST_NAME
from sa1bpack.format.replacing import replace_file
from sa1bpack.paths import is_file, is_folder, naming, real_path

SELECTION_NAME: Literal["sa1bpack-selection"] = "sa1bpack-selection"
SELECTION_VERSION = (1, 0)
MASKS_VERSION = (
    2,
    0,
)  # of a selection of masks, which earlier releases must not take for one of all
MAX_IDS = 1 << 28  # 2 GiB of ids
MAX_MASKS = 1 << 34  # 2 GiB of bits
MAX_TEXT = 100_000  # characters of the conditions of masks
_LEVEL = 2  # of zlib-ng: 11 million ids in 0.5 s, where zlib's level 6 takes 10 for the same size
_REMEDY = "restore the file from a copy, or save the selection again"
_SAVED = "name a file that ds.save_selection or `sa1bpack subset` wrote"


class PackPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a pack when the selection was saved: absolute, and from the file's folder."""

    absolute: str
    relative: str


class MasksHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the first line says of the masks of a selection that does not have all of them."""

    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_MASKS)]
    bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_MASKS)]
    kept_xxh128: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    where: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]


class SelectionHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of the file; see docs/format.md."""

    format: Literal["sa1bpack-selection"] = SELECTION_NAME
    version: tuple[Count, Count] = SELECTION_VERSION
    samples: Annotated[int, msgspec.Meta(ge=0, le=MAX_IDS)]
    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    ids_xxh128: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    duplicates: Literal["error", "first"]
    packs: Annotated[tuple[PackPlace, ...], msgspec.Meta(min_length=1)]
    masks: MasksHead | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class SelectedMasks:
    """The masks of a selection that does not have all of them.

    Attributes:
        count: masks that its samples have in the packs.
        bits: uint8 (b,): for each sample in order, a bit per mask, 1 if it is kept, lowest bit
            first; each sample begins with a byte.
        text: the conditions that keep them.
    """

    count: int
    bits: np.ndarray
    text: str


def is_selection(path: Path) -> bool:
    """True if a path is a file that begins as a selection does. Raises OSError if unreadable."""
    if not is_file(path):
        return False
    with naming(path), path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


_BEGINNING = b'{"format":"' + SELECTION_NAME.encode() + b'"'


def write_selection(
    path: Path,
    image_ids: np.ndarray,
    fingerprint: str,
    packs: list[Path | str],
    duplicates: Literal["error", "first"],
    masks: SelectedMasks | None = None,
) -> None:
    """Write a selection atomically; an existing file is replaced.

    The same ids, packs and places have the same bytes, with the same release of zlib-ng.

    Args:
        image_ids: int64 (n,), in the order of the samples.
        fingerprint: fingerprint of the selected samples.
        packs: folders, or URLs, in the order in which they were opened.
        duplicates: choice of duplicates, as in `sa1bpack.open`.
        masks: the masks of the samples; None: all.

    Raises:
        OptionError: the path of a folder is not UTF-8.
        OSError: the file cannot be written.
    """
    ids = np.ascontiguousarray(image_ids, "<i8")
    folder = real_path(path.absolute().parent)
    masks_head: MasksHead | msgspec.UnsetType = msgspec.UNSET
    bits = b""
    if masks is not None:
        bits = masks.bits.tobytes()
        masks_head = MasksHead(
            count=masks.count,
            bytes=len(bits),
            kept_xxh128=xxhash.xxh3_128_hexdigest(bits),
            where=masks.text[:MAX_TEXT],
        )
    head = SelectionHead(
        version=SELECTION_VERSION if masks is None else MASKS_VERSION,
        samples=len(ids),
        fingerprint=fingerprint,
        ids_xxh128=xxhash.xxh3_128_hexdigest(ids.data),
        duplicates=duplicates,
        packs=tuple(_place_of(pack, folder) for pack in packs),
        masks=masks_head,
    )
    body = np.diff(ids, prepend=np.int64(0)).tobytes() + bits
    replace_file(path, msgspec.json.encode(head) + b"\n" + zlib_ng.compress(body, _LEVEL))


def _place_of(pack: Path | str, folder: Path) -> PackPlace:
    """The place of a pack, for a selection in a folder."""
    if isinstance(pack, str):
        return PackPlace(absolute=pack, relative=pack)
    root = real_path(pack)
    pack_place = PackPlace(absolute=str(root), relative=os.path.relpath(root, folder))
    try:
        f"{pack_place.absolute}{pack_place.relative}".encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{root}: a selection records where its pack is, as UTF-8, and this path is not: "
            "rename the folder, or set PYTHONUTF8=1 if the name is UTF-8"
        ) from None
    return pack_place


def packs_of(path: Path) -> tuple[list[Path | str], str]:
    """The packs of a saved selection, folders or URLs, and its choice of duplicates.

    A pack is sought where it was in relation to the file, then where it was absolutely.

    Raises NotAPack for a pack that is at neither place, and as `read_selection` does.
    """
    head, _, _ = read_selection(path)
    folder = real_path(path.absolute().parent)
    packs: list[Path | str] = []
    for pack in head.packs:
        if "://" in pack.absolute:
            packs.append(pack.absolute)
            continue
        candidates = [folder / pack.relative, Path(pack.absolute)]
        roots = [root for root in candidates if is_file(root / MANIFEST_NAME)]
        if not roots:
            raise NotAPack(
                f"{path}: a selection from the pack {pack.absolute}, which is not there any more: "
                "make a link there to where it is now, or take "
                f"sa1bpack.open(PACK).load_selection({str(path)!r})"
            )
        packs.append(real_path(roots[0]))
    return packs, head.duplicates


def read_selection(path: Path) -> tuple[SelectionHead, np.ndarray, SelectedMasks | None]:
    """The first line of a selection, its int64 (n,) image ids, and its masks; None: all.

    Raises FormatError if it is not what docs/format.md demands, VersionError for a newer major
    version, OSError if it cannot be read.
    """
    if is_folder(path):
        raise FormatError(f"{path}: a folder, but a selection is a file; {_SAVED}")
    line, _, body = read_metadata_file(path).partition(b"\n")
    if not line.startswith(_BEGINNING):
        raise FormatError(f"{path}: not a selection, or one whose beginning is damaged; {_SAVED}")
    try:
        fields = msgspec.json.decode(line)
        reads = MASKS_VERSION if "masks" in fields else SELECTION_VERSION
        check_version(path, fields.get("version"), reads, _REMEDY)
        head = msgspec.convert(fields, SelectionHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: {error}; {_REMEDY}") from None
    ids = np.empty(0, np.int64)
    bits = np.empty(0, np.uint8)
    length = 8 * head.samples
    if isinstance(head.masks, MasksHead):
        length += head.masks.bytes
    data = _inflated(body, length)
    if data is not None:
        ids = np.cumsum(np.frombuffer(data, "<i8", head.samples), dtype="<i8")
        bits = np.frombuffer(data, np.uint8, offset=8 * head.samples)
    if len(ids) != head.samples or xxhash.xxh3_128_hexdigest(ids.data) != head.ids_xxh128:
        raise FormatError(
            f"{path}: its ids are not the {head.samples} whose XXH3-128 is {head.ids_xxh128}, as "
            f"its first line says; {_REMEDY}"
        )
    if not isinstance(head.masks, MasksHead):
        return head, ids, None
    if xxhash.xxh3_128_hexdigest(bits.tobytes()) != head.masks.kept_xxh128:
        raise FormatError(
            f"{path}: its masks are not those whose XXH3-128 is {head.masks.kept_xxh128}, as its "
            f"first line says; {_REMEDY}"
        )
    return head, ids, SelectedMasks(head.masks.count, bits, head.masks.where)


def _inflated(body: bytes, length: int) -> bytes | None:
    """The bytes that a zlib stream holds; None unless it is whole, and they are so many."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, length + 1)
    except zlib.error:
        return None
    if len(data) != length or not stream.eof or stream.unused_data:
        return None
    return data
