"""What a pack's folder holds so far, and its publication.

Published shards carry their own record (the attributes of their Zarr group), so a killed run loses
at most its unpublished shards; the manifest adds the records of complete sources. Everything that
this module writes follows from the shards and the sources alone: the same input yields the same
bytes, however often the run was interrupted.
"""

import errno
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Self, TypeVar

import msgspec

from sa1bpack.errors import FormatError, OutputLocked, OutputRefused, SourceError, VersionError
from sa1bpack.format.duplicates import find_duplicates
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    TEMPORARY_PREFIX,
    file_digest,
    locked,
    make_folder,
    read_metadata_file,
    remove_published,
    replace_file,
)
from sa1bpack.format.index import open_manifest_and_index, publish, remove_stale
from sa1bpack.format.layout import FORMAT_VERSION, Layout
from sa1bpack.format.manifest import (
    DIGEST_NAMES,
    MANIFEST_NAME,
    PARTS_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Count,
    Manifest,
    ShardEntry,
    identity_text,
    make_manifest,
    read_manifest,
    shard_folders,
    write_manifest,
)
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.masks.select import left_out_text
from sa1bpack.packing.options import PackOptions, Request
from sa1bpack.source.find import Source, look_at
from sa1bpack.wording import printable

LOCK_NAME = ".lock"
_NOTE_PREFIX = "source-"
_NAMED = 5  # sources in one line
NOT_LOCKED = -1  # in place of the lock of a folder that is only inspected

Key = tuple[str, int]  # source and part
_Kind = TypeVar("_Kind")


def shard_name(source: str, part: int) -> str:
    """Name of the shard that a part of a source becomes."""
    return f"{source}-{part:03d}"


@dataclass(frozen=True)
class PublishedShard:
    """A shard under its final name.

    attributes
        The packer's record: source, part, first_pair, pairs, pairs_digest (XXH3-64 of the pairs'
        digests, which tells whether a source is still the same), dropped, rejects, unknown_keys,
        packed_by, and options (all of the pack's, so that a lost manifest can be rewritten).
    """

    entry: ShardEntry
    attributes: dict


class PackState:
    """The state of one pack's folder, locked by one process at a time.

    shards
        (source, part) → the published shard.
    sources
        Name of a finished source → its record in the manifest.
    listed
        Names of the shards that the manifest listed when the state was read.
    rebuild_index
        Write the index also if it exists: `repair` sets it where that may be damaged.
    """

    def __init__(self, root: Path, options: PackOptions, lock: int | None = None):
        """Lock `root`, which is created if it does not exist, and read its state.

        lock
            What `lock_folder` returned: the caller has locked the folder, and enters what is sound
            in it. Nothing is read here.

        Raises OutputLocked if another process has locked it, OptionsDiffer if it was packed with
        other options, PackError if it holds something else, FormatError if it is damaged.
        """
        self.root = root
        self.shards_dir = root / SHARDS_NAME  # where shards are built
        self.options = options
        self.shards: dict[Key, PublishedShard] = {}
        self.sources: dict[str, dict] = {}
        self.listed: frozenset[str] = frozenset()
        self.rebuild_index = False
        self._entered: list[Path] = []  # notes of parts, removed once the manifest has them
        self._published_at = self._publish_seconds = 0.0
        if lock is not None:
            self._lock = lock
            return
        make_folder(root)
        check_ours(root)
        self._lock = lock_folder(root)
        try:
            self._load()
            remove_stale(root)
        except BaseException:
            self.release()
            raise

    @classmethod
    def inspect(cls, root: Path, options: PackOptions) -> "PackState":
        """The state that a run into `root` would find. Writes and locks nothing.

        Raises what the run would raise: the same errors as the constructor, and PermissionError for
        a folder that cannot be written.
        """
        state = cls(root, options, lock=NOT_LOCKED)
        if root.exists():
            check_ours(root)
        for folder in map(existing_parent, (root, root / SHARDS_NAME)):
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        if (root / LOCK_NAME).exists():
            os.close(lock_folder(root))
        state._load()
        return state

    # How many of its shards are on this disk at once; None: all of them.
    shards_at_once: int | None = None

    def release(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _load(self, only: Set[str] | None = None) -> None:
        """Enter what is published, or what is of these sources. Writes nothing."""
        listed = ()
        if (self.root / MANIFEST_NAME).exists():
            manifest = read_own_manifest(self.root)
            self.options.check_same(manifest.options, str(self.root))
            for record in manifest.sources:
                if only is None or record["name"] in only:
                    self.sources[record["name"]] = record
            listed = manifest.shards
        for folder in shard_folders(self.root):
            if only is None or folder.name.rpartition("-")[0] in only:
                shard = published_shard(folder, self.root)
                self.shards[shard.entry.source, shard.entry.part] = shard
        for name, note in source_notes(self.root, only).items():  # by parts of a job
            if note.holds(self.root):
                path = note_path(self.root, name)
                check_record(note.record, SourceRecord, f"{path}: sources")
                self.sources[name] = note.record
                self._entered.append(path)
        for entry in listed:  # the source of a shard that someone removed is incomplete
            if (entry.source, entry.part) not in self.shards:
                self.sources.pop(entry.source, None)
        self.listed = frozenset(entry.name for entry in listed)

    def write_first_manifest(self) -> None:
        """Make the folder a pack, which holds nothing yet, unless it is one.

        Before all other files: a run killed at any moment leaves a pack, or only working files.
        """
        if not (self.root / MANIFEST_NAME).exists():
            write_manifest(self.root, self._manifest(complete=False))

    def parts_of(self, source: str) -> dict[int, PublishedShard]:
        """Part → published shard, of one source."""
        return {part: shard for (name, part), shard in self.shards.items() if name == source}

    def add_shard(self, shard: PublishedShard) -> None:
        """Enter a published shard."""
        self.shards[shard.entry.source, shard.entry.part] = shard

    def finish_source(self, record: dict, at_once: bool = False) -> None:
        """Enter a source of which every shard is published.

        Manifest and index are written from time to time: that takes two seconds for all of SA-1B,
        and is limited to one twentieth of the run. A run killed in between reads the source again,
        but does not decode it again.

        at_once
            Write them now: reading this source again would take longer.
        """
        self.sources[record["name"]] = record
        if at_once or time.monotonic() - self._published_at >= 20 * self._publish_seconds:
            self.publish(complete=False)

    def withdraw(self, source: str) -> int:
        """Remove every shard of a source that cannot be trusted; returns their number."""
        parts = self.parts_of(source)
        for part in parts:
            del self.shards[source, part]
        self.sources.pop(source, None)
        self.publish(complete=False)  # first: a manifest never lists a missing shard
        for shard in parts.values():
            remove_published(self.shards_dir / shard.entry.name)
        return len(parts)

    def rejects(self) -> list[dict]:
        """Every line of rejects.jsonl, by source and, within one, in the order found."""
        found = [(source, shard.attributes) for (source, _), shard in sorted(self.shards.items())]
        found += self.sources.items()
        lines = [{"source": name, **line} for name, record in found for line in record["rejects"]]
        return sorted(lines, key=lambda line: line["source"])

    def fail(self, failed: dict[str, SourceError]) -> None:
        """These sources were given up: name → why. The next run tries them again."""

    def findings(self) -> list[str]:
        """Lines for the user about what is published: duplicates, and sources without any pair."""
        lines = find_duplicates(*open_manifest_and_index(self.root))
        if names := sorted(name for name, record in self.sources.items() if not record["pairs"]):
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            lines.append(
                "no pair of a .jpg and a .json file of the same name is in "
                f"{', '.join(names[:_NAMED])}{more}; if it should hold images of SA-1B, download "
                "it again"
            )
        return lines

    def counts(self) -> dict[str, int]:
        """Totals over the pack."""
        entries = [shard.entry for shard in self.shards.values()]
        records = [*(shard.attributes for shard in self.shards.values()), *self.sources.values()]
        reasons = Counter(line["reason"] for line in self.rejects())
        return {
            "images": sum(entry.samples for entry in entries),
            "masks": sum(entry.masks for entry in entries),
            "annotations": sum(entry.annotations for entry in entries),
            "dropped_images": sum(record["dropped"] for record in records),
            "rejects": reasons.total(),
            **{f"rejects:{code}": count for code, count in sorted(reasons.items())},
        }

    def publish(self, complete: bool) -> None:
        """Write the index, rejects.jsonl, the manifest and the checksums, each atomically.

        complete
            Every source given is packed. The pack is complete if, in addition, no other source is
            packed in part.
        """
        started = time.monotonic()
        if not self.shards:
            self.write_first_manifest()
        rejects = "".join(json.dumps(line, sort_keys=True) + "\n" for line in self.rejects())
        replace_file(self.root / REJECTS_NAME, rejects.encode())
        publish(self.root, self._manifest(complete), rebuild_index=self.rebuild_index)
        self.rebuild_index = False
        while self._entered:
            self._entered.pop().unlink(missing_ok=True)
        self._published_at = time.monotonic()
        self._publish_seconds = self._published_at - started

    def _manifest(self, complete: bool) -> Manifest:
        return make_manifest(
            self.options.layout,
            [shard.entry for _, shard in sorted(self.shards.items())],
            complete=complete and all(source in self.sources for source, _ in self.shards),
            options=self.options.to_json(),
            sources=[record for _, record in sorted(self.sources.items())],
            counts=self.counts(),
        )


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a pack holds.

    root
        The pack's folder.
    images, masks, annotations, dropped, rejects
        Samples; masks stored; masks that their records had; images dropped because no masks
        remained; members in rejects.jsonl.
    identity
        Which digests of its tars the pack records, in words.
    left_out
        How many masks of its images the pack does not hold, and which options left them out, in
        words; empty if it holds all.
    bytes
        Of the files of its shards, with holes counted.
    reasons
        Code of a reason → how many members were rejected for it.
    """

    root: Path
    images: int
    masks: int
    annotations: int
    dropped: int
    rejects: int
    identity: str
    left_out: str = ""
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def totals_of(state: PackState) -> dict[str, Any]:
    """The fields of Totals."""
    counts = state.counts()
    reasons = {name.partition(":")[2]: count for name, count in counts.items() if ":" in name}
    return {
        "root": state.root,
        "images": counts["images"],
        "masks": counts["masks"],
        "annotations": counts["annotations"],
        "dropped": counts["dropped_images"],
        "rejects": counts["rejects"],
        "identity": identity_text(state.sources.values()),
        "left_out": left_out_text(state.options.to_json(), counts, counts["masks"]),
        "bytes": sum(shard.entry.bytes for shard in state.shards.values()),
        "reasons": reasons,
    }


def sources_to_pack(
    state: PackState, request: Request
) -> tuple[list[Source], dict[str, SourceError]]:
    """The sources that the run must read; and name → error of those at URLs that cannot be.

    Those are left out that are complete in the pack, unless an md5 is to be recorded that it lacks:
    they are then read once more, and not decoded. Raises OutputRefused for another source of the
    same name, and what `look_at` raises.
    """
    todo = []
    for source in request.sources:
        if (record := state.sources.get(source.name)) is None:
            todo.append(source)
            continue
        expected, found = request.sums.get(source.name), ""
        if source.kind != "remote" and record["nbytes"] != source.nbytes:
            found = f"has {source.nbytes} bytes"
        elif record["md5"] is not None and expected not in (None, record["md5"]):
            found = f"should have the md5 {expected}"
        if found:
            had = [
                f"the {kind} {record[key]}" for key, kind in DIGEST_NAMES.items() if record.get(key)
            ]
            raise OutputRefused(
                f"{source.path} {found}, but the pack holds a source {source.name!r} of "
                f"{record['nbytes']} bytes{' with ' if had else ''}{' and '.join(had)}; rename one "
                "of them, or use another output folder"
            )
        if record["md5"] is None and request.md5 and source.kind != "folder":
            todo.append(source)
        elif record["md5"] is not None and expected is not None:
            record["md5_checked"] = True
    return look_at(todo)


def check_ours(root: Path) -> None:
    """Refuse a folder of something else, before anything in it is changed."""
    if (root / MANIFEST_NAME).exists():
        return
    working = (LOCK_NAME, PARTS_NAME, TEMPORARY_PREFIX + MANIFEST_NAME)
    if any(not path.name.startswith(working) for path in root.iterdir()):
        raise OutputRefused(
            f"{root} is not empty and holds no {MANIFEST_NAME}; choose an empty or a new "
            "folder. If it is a pack that lost its manifest: sa1bpack repair "
            f"{quote(str(root))} TARS"
        )


def existing_parent(path: Path) -> Path:
    """The path, made absolute, or the nearest one above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def published_shard(folder: Path, root: Path, layout: Layout | None = None) -> PublishedShard:
    """A shard under its final name in the pack at `root`, of this layout if given.

    Raises FormatError if it is damaged, OSError if it cannot be read.
    """
    try:
        shard = read_shard(folder, layout)
        if folder.name != (name := shard_name(shard.entry.source, shard.entry.part)):
            raise FormatError(
                f"{folder}: it holds part {shard.entry.part} of {shard.entry.source}, whose name "
                f"is {name}"
            )
    except FormatError as error:
        raise FormatError(
            f"{error}\nRemove the folder {folder} and repeat the command: that part is "
            f"packed again. Or repair all damage: sa1bpack repair {quote(str(root))} TARS"
        ) from error
    return shard


def read_shard(folder: Path, layout: Layout | None = None) -> PublishedShard:
    """A shard with the packer's record, of this layout if given. Raises FormatError and OSError."""
    shard = open_shard(folder, layout)
    check_record(shard.attributes, ShardRecord, f"{folder}: attributes")
    return PublishedShard(shard.entry, shard.attributes)


class SourceNote(msgspec.Struct, frozen=True):
    """What a part of a job leaves of a source, in a file of its own, for `finalize`.

    record
        Its record in the manifest; None if it was given up.
    shards
        Name of each of its shards → the XXH3-128 of its checksum file.
    error
        Why it was given up.
    corrupt
        It was, because its bytes are wrong: no shard made from them can be trusted.
    """

    record: dict[str, Any] | None = None
    shards: dict[str, str] = {}
    error: str = ""
    corrupt: bool = False

    def holds(self, root: Path) -> bool:
        """Whether the source is packed to its end, and its shards are still those of the record."""
        try:
            return self.record is not None and all(
                file_digest(root / SHARDS_NAME / name / CHECKSUMS_NAME) == digest
                for name, digest in self.shards.items()
            )
        except FileNotFoundError:
            return False


def note_path(root: Path, source: str) -> Path:
    """Where the note on a source is."""
    return root / PARTS_NAME / f"{_NOTE_PREFIX}{source}.json"


def source_notes(root: Path, only: Set[str] | None = None) -> dict[str, SourceNote]:
    """Name → note, of every source, or of `only` these, by name. Raises as `read_note` does."""
    paths = sorted((root / PARTS_NAME).glob(f"{_NOTE_PREFIX}*.json"))
    names = {path.stem.removeprefix(_NOTE_PREFIX): path for path in paths}
    wanted = names.keys() if only is None else names.keys() & only
    return {name: read_note(names[name], SourceNote) for name in sorted(wanted)}


def read_note(path: Path, kind: type[_Kind]) -> _Kind:
    """What a part has written. Raises FormatError if it is damaged, OSError if unreadable."""
    try:
        return msgspec.json.decode(read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None


def lock_folder(root: Path, shared: bool = False, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Lock a folder until the descriptor is closed or the process ends, however it ends.

    shared
        Beside others that lock it so; else alone.
    flags
        To open its file with; by default it is made.

    The lock is on a file in it, which stays. Raises OutputLocked, and OSError if it has no such
    file that can be opened.
    """
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        return locked(root / LOCK_NAME, kind | fcntl.LOCK_NB, flags)
    except BlockingIOError:
        raise OutputLocked(
            f"{root}: another process packs into this folder; wait for it, or choose another folder"
        ) from None


def read_own_manifest(root: Path) -> Manifest:
    """The manifest of a pack that this packer can add to.

    Raises FormatError, also for records of sources that are not the packer's, and VersionError.
    """
    manifest, path = read_manifest(root), root / MANIFEST_NAME
    check_can_write(manifest.version, path)
    for record in manifest.sources:
        check_record(record, SourceRecord, f"{path}: sources")
    return manifest


def check_can_write(version: tuple[int, int], path: Path) -> None:
    """Raise VersionError for a pack that this release can read, but not write as it was."""
    if version > FORMAT_VERSION:
        found, ours = (".".join(map(str, each)) for each in (version, FORMAT_VERSION))
        raise VersionError(
            f"{path}: format version {found}, but this release writes {ours} and would drop "
            "what is new; install the sa1bpack that wrote it to add to it or to repair it"
        )


# The packer's records in shards and in the manifest, which readers of the format do not depend on.


class _Reject(msgspec.Struct, forbid_unknown_fields=True):
    member: str
    reason: str
    detail: str


class ShardRecord(msgspec.Struct):
    """The attributes of a shard."""

    source: str
    part: Count
    first_pair: Count
    pairs: Count
    pairs_digest: str
    dropped: Count
    rejects: list[_Reject]
    unknown_keys: list[str]
    packed_by: dict[str, str]


class SourceRecord(msgspec.Struct):
    """The record of a source in the manifest."""

    name: str
    kind: str
    nbytes: Count
    md5: str | None  # None: of a folder, or not computed
    md5_checked: bool
    pairs: Count
    ignored: dict[str, Count]
    ignored_names: list[str]
    dropped: Count
    rejects: list[_Reject]
    xxh128: str | None = None  # packs made by earlier releases have md5 only


def check_record(found: dict[str, Any], schema: type[msgspec.Struct], where: str) -> None:
    """Raise FormatError, naming `where`, unless this is a record of the packer's."""
    try:
        msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}") from None
