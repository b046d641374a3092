"""The manifest: the contents of a pack, in one JSON file that is replaced atomically.

It also says how much of the pack is published.
"""

import fcntl
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import msgspec

from sa1bpack.errors import FormatError, NotAPack, OptionError
from sa1bpack.format.accounts import Shortfall, pack_shortfalls
from sa1bpack.format.arrays import Count, canonical_json, check_version, read_json
from sa1bpack.format.file_locks import locked
from sa1bpack.format.files import REMEDY
from sa1bpack.format.layout import FORMAT_NAME, FORMAT_VERSION, AxisLengths, Layout
from sa1bpack.format.replacing import replace_file
from sa1bpack.format.source_records import stored_once, with_shared_values
from sa1bpack.format.working_names import temporary_beside
from sa1bpack.paths import (
    check_can_be_folder,
    exists,
    is_file,
    is_folder,
    local_path,
    matching,
    naming,
    real_path,
)
from sa1bpack.wording import brief, counted

MANIFEST_NAME = "manifest.json"
SIDE_FORMAT_NAME = "sa1bpack-side"  # of features, whose manifest has the same name
SHARDS_NAME = "shards"
REJECTS_NAME = "rejects.jsonl"
MAX_NAME_BYTES = 200
# Of a folder at the top of a pack.
INDEX_NAME = re.compile(r"^index-[0-9a-f]{8}\Z")
SHARD_NAME = re.compile(r"(.+)-(\d{3,})")  # of the packer: source and number within it


# In the folder of a pack: what the parts of a job (`sa1bpack pack --part`) leave for
# `sa1bpack finalize`. Each job has a file there until its sources are all in the pack.
PARTS_NAME = ".parts"
# In the folder of a pack: a process that packs into it holds this file locked.
LOCK_NAME = ".lock"
JOB_PREFIX = "plan-"

_REPEAT = "repeat the pack command, which names what is missing"
_IN_PROGRESS = (
    "a process packs into it right now: what it has packed of a source can be opened when that "
    "source is packed to its end"
)
_LOST_NAMED = 3  # sources in one line


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of one shard in the manifest.

    Attributes:
        name: folder under shards/.
        source: name of the tar or folder that it was packed from.
        part: number of the shard within its source, from 0.
        samples, masks, runs, image_bytes: lengths of the shard.
        annotations: masks in the JSON records, before filtering and capping.
        bytes: size of the chunk files.
    """

    name: str
    source: str
    part: Count
    samples: Count
    masks: Count
    runs: Count
    image_bytes: Count
    annotations: Count
    bytes: Count

    @property
    def lengths(self) -> AxisLengths:
        """The shard's length along each axis."""
        return AxisLengths(self.samples, self.masks, self.runs, self.image_bytes)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a pack. `options`, `sources` and `counts` are the packer's own records.

    Attributes:
        says_complete: the key `complete`: what publication goes by. All others ask `complete`.
    """

    format: str = FORMAT_NAME
    version: tuple[Count, Count] = FORMAT_VERSION
    says_complete: bool = msgspec.field(name="complete")
    layout: Layout
    options: dict[str, Any]
    sources: tuple[dict[str, Any], ...]
    shards: tuple[ShardEntry, ...]
    samples: Count
    masks: Count
    index: Annotated[str, msgspec.Meta(pattern=INDEX_NAME.pattern)] | None = None
    counts: dict[str, Any]

    @property
    def complete(self) -> bool:
        """True if every source was packed to its end, and no pair of any is missing."""
        return self.says_complete and not self.shortfalls

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        """Sources that are recorded as packed to their end, but of which pairs are missing."""
        return pack_shortfalls(
            self.options,
            self.sources,
            ((shard.source, shard.part, shard.samples) for shard in self.shards),
            self.counts if self.says_complete else None,
        )


def make_manifest(
    layout: Layout, shards: Sequence[ShardEntry], sources: Sequence[dict[str, Any]], **others: Any
) -> Manifest:
    """A manifest of these shards, in this order, with totals and without an index.

    Args:
        layout: layout of the pack.
        sources: records of the sources.
        others: `says_complete`, `options` and `counts`, as in `Manifest`.
    """
    return Manifest(
        layout=layout,
        sources=tuple(sources),
        shards=tuple(shards),
        samples=sum(map(attrgetter("samples"), shards)),
        masks=sum(map(attrgetter("masks"), shards)),
        **others,
    )


def manifest_bytes(manifest: Manifest) -> bytes:
    """The bytes of manifest.json; equal for equal manifests."""
    manifest = msgspec.structs.replace(manifest, sources=stored_once(manifest.sources))
    return canonical_json(msgspec.to_builtins(manifest) | {"layout": manifest.layout.to_json()})


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace the manifest of a pack atomically."""
    replace_file(root / MANIFEST_NAME, manifest_bytes(manifest))


def read_manifest(root: Path) -> Manifest:
    """Read and check the manifest of a pack.

    Raises NotAPack if the folder is not a pack, FormatError if the manifest of a pack is missing or
    breaks a rule of docs/format.md, VersionError if a newer major version wrote it, OSError if it
    cannot be read. Keys that a newer minor version added are ignored.
    """
    path = Path(root) / MANIFEST_NAME
    if not exists(path):
        raise without_manifest(Path(root))
    data = read_json(path)
    if isinstance(data, dict) and data.get("format") == SIDE_FORMAT_NAME:
        raise NotAPack(
            f"{root}: not a pack, but a feature: name a pack; sa1bpack.open(PACK, "
            "features=[FOLDER]) reads it, and `sa1bpack verify FOLDER` checks it"
        )
    if not isinstance(data, dict) or data.get("format") != FORMAT_NAME:
        raise FormatError(f'{path}: it lacks "format": "{FORMAT_NAME}"; this is not a pack')
    check_version(path, data.get("version"))
    Layout.from_json(data.get("layout"), f"{path}: layout")
    try:
        manifest = msgspec.convert(data, Manifest)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: {error}; {REMEDY}") from None
    manifest = msgspec.structs.replace(manifest, sources=with_shared_values(manifest.sources))
    names: set[str] = set()
    for shard in manifest.shards:
        check_shard_name(shard.name, str(path))
        if shard.name in names:
            raise FormatError(f"{path}: the shard {shard.name} is listed twice; {REMEDY}")
        names.add(shard.name)
    for key in ("samples", "masks"):
        total = sum(map(attrgetter(key), manifest.shards))
        if getattr(manifest, key) != total:
            raise FormatError(
                f"{path}: {key} is {getattr(manifest, key)}, but its shards add up to {total}; "
                f"{REMEDY}"
            )
    return manifest


def pack_above(path: Path) -> Path | None:
    """The pack that a path lies in, whether it exists or not; None if in none."""
    for folder in real_path(path).parents:
        if is_file(folder / MANIFEST_NAME) and is_folder(folder / SHARDS_NAME):
            return folder
    return None


def refuse_in_pack(name: str, path: Path, *, itself: bool = False) -> None:
    """Raise OptionError if the path that a user gave for an option is in a pack.

    Args:
        name: name of the option.
        path: path that the user gave.
        itself: raise it also for the folder of a pack.
    """
    pack = pack_above(path / "file" if itself else path)
    if pack is not None:
        raise OptionError(
            f"{name} is {str(path)!r}, in the pack {pack}, which must hold its own files only: "
            "choose a place outside"
        )


def folder_to_write(
    name: str, value: str | os.PathLike[str], choose: str = "", *, itself: bool = True
) -> Path:
    """The folder that a user gave for an option, to write in; it need not exist.

    Args:
        name: name of the option.
        value: value of the option.
        choose: what to give instead, for messages; by default another value of the option.
        itself: as in `refuse_in_pack`.

    Raises:
        OptionError: the value is not a path of this machine, cannot be a folder, or is in a pack.
    """
    path = local_path(name, value)
    check_can_be_folder(path, choose or f"choose another {name}")
    refuse_in_pack(name, path, itself=itself)
    return path


def file_to_write(name: str, value: str | os.PathLike[str], *suffixes: str) -> Path:
    """The file that a user gave for an option, to write to. No folder is created for it.

    A result that could not be written is thus refused before it is drawn or measured.

    Args:
        name: name of the option.
        value: value of the option. A file that exists will be replaced.
        suffixes: suffixes of which the path must have one, in lower case; none: any.

    Raises:
        OptionError: a URL, another suffix, a missing folder, a folder in place of the file, or a
            path inside a pack, where a check reports every foreign file.
        OSError: no file can be made there.
    """
    path = local_path(name, value)
    if suffixes and path.suffix.lower() not in suffixes:
        patterns = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise OptionError(f"{value}: name it {patterns}")
    if is_folder(path):
        raise OptionError(f"{value} is a folder; name a file in it")
    if not is_folder(path.parent):
        raise OptionError(f"{value}: the folder {path.parent} does not exist; create it first")
    refuse_in_pack(name, path)
    probe = temporary_beside(path)
    with naming(path):
        probe.touch()
        probe.unlink()
    return path


def without_manifest(root: Path) -> FormatError:
    """The error for a folder without a manifest: NotAPack, unless it is a pack that lost it."""
    if is_folder(root / SHARDS_NAME):
        return FormatError(f"{root / MANIFEST_NAME}: missing; {REMEDY}")
    if is_being_packed(root):
        return NotAPack(f"{root}: not a pack yet: {_IN_PROGRESS}")
    if not exists(root):
        return NotAPack(f"{root}: not a pack: the folder does not exist; check the path")
    folder = pack_above(root)
    if folder is not None:
        return NotAPack(f"{root}: not a pack, but a part of the pack {folder}; name that")
    if not is_folder(root):
        return NotAPack(
            f"{root}: not a pack, but a file; name the folder of a pack (a saved selection is "
            "accepted by sa1bpack.open, show, export and subset)"
        )
    return NotAPack(
        f"{root}: not a pack: it has no {MANIFEST_NAME}; name the folder that a pack was written to"
    )


def shard_name(source: str, number: int) -> str:
    """Name of the shard of a source with this number within it."""
    return f"{source}-{number:03d}"


def check_shard_name(name: str, where: str) -> None:
    """Check that a shard's name is a plain folder name.

    Raises FormatError for a name that is empty or too long, starts with "." or "__" (working names
    and names reserved by Zarr), or has a slash, a backslash or a control character. Raises
    OptionError if the name is not ASCII and Python was started in a locale without UTF-8.
    """
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and not name.isascii():
        raise OptionError(
            f"{where}: the name {brief(name)} is not ASCII, but this process encodes names of "
            f"files as {encoding}, and a pack needs UTF-8: set PYTHONUTF8=1, or LC_ALL=C.UTF-8"
        )
    bad = (
        not name
        or len(name.encode(errors="replace")) > MAX_NAME_BYTES
        or name.startswith((".", "__"))
        or not name.isprintable()
        or not {"/", "\\"}.isdisjoint(name)
    )
    if bad:
        raise FormatError(
            f"{where}: {brief(name)} cannot be the name of a shard: 1 to {MAX_NAME_BYTES} bytes of "
            'printable characters without "/" and "\\", not starting with "." or "__"'
        )


# Key of a source's record → name of the digest.
DIGEST_NAMES = {"xxh128": "XXH3-128", "md5": "md5"}


def identity_text(records: Iterable[Mapping[str, Any]]) -> str:
    """The digests by which the tars among these records are identified, in words.

    For example "XXH3-128 of 3 tars, md5 of 2 (2 compared with a list)".
    """
    xxh128 = md5 = compared = 0
    noun = "tar"
    for record in records:
        if record.get("kind") == "parquet":
            noun = "file"
        if record.get("kind") != "folder":
            xxh128 += bool(record.get("xxh128"))
            md5 += bool(record.get("md5"))
            compared += bool(record.get("md5_checked"))
    if not xxh128 and not md5:
        return "none: no tar"
    digests = []
    if xxh128:
        digests.append(f"XXH3-128 of {counted(xxh128, noun)}")
    if not md5:
        digests.append("no md5")
    elif xxh128:
        digests.append(f"md5 of {md5}")
    else:
        digests.append(f"md5 of {counted(md5, noun)}")
    if compared:
        digests[-1] += f" ({compared} compared with a list)"
    return ", ".join(digests)


def shard_folders(root: Path) -> list[Path]:
    """Folders of all shards that a packer has published, listed or not, sorted by name."""
    shards = Path(root) / SHARDS_NAME
    if not is_folder(shards):
        return []
    return sorted(path for path in shards.iterdir() if is_shard_folder(path))


def is_shard_folder(path: Path) -> bool:
    """True for a folder that has the name of a packer's shard."""
    named = SHARD_NAME.fullmatch(path.name) is not None and not path.name.startswith(".")
    return named and is_folder(path)


@dataclass(frozen=True)
class Completeness:
    """The part of a pack that is published.

    Attributes:
        complete: every source given to the packer was packed to its end, and no pair is missing.
        images, shards: samples and shards in the index: what `sa1bpack.open` and `sa1bpack.info`
            count.
        sources: number of sources packed to their end.
        partial: names of the sources of an incomplete pack that have shards in the index, but are
            not packed to their end.
        unindexed: names of the published shards of an incomplete pack that are not in its index
            yet. A packer indexes them when it completes a source, and when it is run again.
        dropped: number of images that the packer left out, as no mask of theirs is left.
        remedy: what completes a pack that is not complete: the pack command, `sa1bpack finalize`,
            or the process that packs into it; of one that has lost shards, it begins with their
            sources.
    """

    complete: bool
    images: int
    shards: int
    sources: int
    partial: tuple[str, ...]
    unindexed: tuple[str, ...]
    dropped: int = 0
    remedy: str = _REPEAT

    def __str__(self) -> str:
        """One sentence without a full stop, which names the remedy."""
        more = f"{counted(len(self.unindexed), 'published shard')} not in the index yet"
        if not self.images:
            if self.complete and self.dropped:
                return f"no images: {counted(self.dropped, 'image')} dropped, without a mask left"
            if self.complete:
                return f"no images: the sources held none that could be packed, see {REJECTS_NAME}"
            return f"no images yet: {more}; {self.remedy}"
        text = f"{counted(self.images, 'image')} in {counted(self.shards, 'shard')}, "
        text += f"{counted(self.sources, 'source')} packed to the end"
        if self.partial:
            text += f", {len(self.partial):,} in part"
        if self.unindexed:
            text += f", {more}"
        if self.complete:
            return f"complete: {text}"
        return f"not complete: {text}; {self.remedy}"


def completeness_of(root: Path, manifest: Manifest) -> Completeness:
    """The completeness of the pack at `root`, by a manifest read from it.

    Lists the folder of shards, and opens none. Raises OSError if it cannot be listed.
    """
    complete = manifest.complete
    shortfalls = manifest.shortfalls
    lossy = {shortfall.source for shortfall in shortfalls}
    names = [record.get("name") for record in manifest.sources]
    finished = [name for name in names if name not in lossy]
    partial: set[str] = set()
    unindexed: list[str] = []
    if not complete:
        listed = {shard.name for shard in manifest.shards}
        folders = shard_folders(root)
        unindexed = [folder.name for folder in folders if folder.name not in listed]
        partial = {shard.source for shard in manifest.shards}.difference(finished)
    remedy = remedy_of(root)
    if shortfalls:
        named = "; ".join(map(str, shortfalls[:_LOST_NAMED]))
        remedy = f"{named}; {lost_remedy(root)}"
    return Completeness(
        complete=complete,
        images=manifest.samples,
        shards=len(manifest.shards),
        sources=len(finished),
        partial=tuple(sorted(partial)),
        unindexed=tuple(unindexed),
        dropped=manifest.counts.get("dropped_images", 0),
        remedy=remedy,
    )


def lost_remedy(root: Path) -> str:
    """The remedy for a pack that lacks pairs of a source that it records, in words."""
    return (
        "repeat the pack command with the tars of these sources, which packs what is missing, or "
        f"sa1bpack repair {quote(str(root))} TARS"
    )


def remedy_of(root: Path) -> str:
    """The remedy that completes the pack at `root` if it is not complete, in words."""
    if matching(root / PARTS_NAME, f"{JOB_PREFIX}*.json"):
        when = "once all parts of its job have ended, this completes it or lists what is missing"
        return f"{when}: sa1bpack finalize {quote(str(root))}"
    if is_being_packed(root):
        return _IN_PROGRESS
    return _REPEAT


def is_being_packed(root: Path) -> bool:
    """True if a process packs into a folder now, alone: it holds the folder's lock.

    False where that cannot be known: the file cannot be opened, or its file system has no locks.
    """
    try:
        lock = locked(root / LOCK_NAME, fcntl.LOCK_SH | fcntl.LOCK_NB, os.O_RDONLY)
    except BlockingIOError:
        return True
    except OSError:
        return False
    os.close(lock)
    return False
