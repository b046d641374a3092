"""The contents of a pack's folder so far, and its publication.

Published shards carry their own record (the attributes of their Zarr group), so a killed run loses
at most its unpublished shards; the manifest adds the records of complete sources. Everything that
this module writes follows from the shards and the sources alone: the same input yields the same
bytes, however often the run was interrupted.

Many parts of a job may work in one folder at once. They share nothing but the folder. A part
publishes complete shards under their final names, and each source's record in a file of its own,
atomically. It waits for no other part: they hold a shared lock on the pack, which only keeps off
what needs the folder for itself (`pack`, `repair`, `merge`, `finalize`). What they leave for
`finalize` is in PACK/.parts: "plan-<digest>.json" has a Job, "source-<name>.json" a SourceNote, and
"lock" is held for a moment, while a part changes what belongs to the whole pack.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import msgspec
import xxhash

from sa1bpack.errors import FormatError, OutputLocked, OutputRefused, SourceCorrupt, SourceError
from sa1bpack.format import files
from sa1bpack.format.accounts import Shortfall, source_shortfall
from sa1bpack.format.index import find_duplicates, open_manifest_and_index, publish, remove_stale
from sa1bpack.format.manifest import (
    JOB_PREFIX,
    LOCK_NAME,
    MANIFEST_NAME,
    PARTS_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    make_manifest,
    read_manifest,
    shard_folders,
    write_manifest,
)
from sa1bpack.packing.options import PackOptions, Request
from sa1bpack.packing.records import (
    EmptyShard,
    Key,
    PublishedShard,
    SourceRead,
    SourceRecord,
    check_record,
    published_shard,
    read_own_manifest,
    source_record,
)
from sa1bpack.progress import report
from sa1bpack.source.find import Source, look_at
from sa1bpack.source.pairs import why_no_pairs
from sa1bpack.wording import brief, printable

_NAMED = 5  # sources in one line
# Whoever asks whether a folder is locked (`manifest.is_being_packed`) locks it for an instant.
_LOCK_TRIES = 3
_LOCK_PAUSE = 0.02  # seconds
NOT_LOCKED = -1  # in place of the lock of a folder that is only inspected
_AFTER_SHARDS = 1 << 62  # as a number: sorts the record of a source after those of its shards
_NOTE_PREFIX = "source-"
_Kind = TypeVar("_Kind")
_PARTS_LOCK = "lock"
_WORKING = f"{files.TEMPORARY_PREFIX}work-"
_WITHOUT_LOCKS = (
    "nothing keeps a second command out of a folder there, so run one at a time; whatever has a "
    "final name is complete all the same"
)


class Job(msgspec.Struct, frozen=True):
    """A job: what all its parts together pack.

    Attributes:
        parts: number of parts of the job.
        sources: names of all sources of the job, sorted: the K-th part has every `parts`-th, from
            the K-th on.
    """

    parts: int
    sources: tuple[str, ...]


class SourceNote(msgspec.Struct, frozen=True):
    """The note that a part of a job leaves on a source, in a file of its own, for `finalize`.

    Attributes:
        record: record of the source in the manifest; None if it was given up.
        shards: name of each shard of the source → XXH3-128 of its checksum file.
        error: why the source was given up.
        corrupt: it was given up because its bytes are wrong: no shard made from them can be
            trusted.
    """

    record: dict[str, Any] | None = None
    shards: dict[str, str] = {}
    error: str = ""
    corrupt: bool = False

    def holds(self, root: Path) -> bool:
        """True if the source was packed to its end, and its shards are still those of the note."""
        try:
            return self.record is not None and all(
                files.file_digest(root / SHARDS_NAME / name / files.CHECKSUMS_NAME) == digest
                for name, digest in self.shards.items()
            )
        except FileNotFoundError:
            return False

    def accounts_for_all(self, samples_per_shard: int) -> bool:
        """True if no pair of a source that was packed to its end is missing."""
        numbers = {}
        for name in self.shards:
            number = name.rpartition("-")[2]
            if not number.isdecimal():
                return False
            numbers[int(number)] = 0  # samples: not told here
        return source_shortfall(self.record, numbers, samples_per_shard) is None


def note_path(root: Path, source: str) -> Path:
    """The path of the note on a source."""
    return root / PARTS_NAME / f"{_NOTE_PREFIX}{source}.json"


def source_notes(root: Path) -> dict[str, SourceNote]:
    """Name → note, of every source. Raises as `read_note` does."""
    notes = {}
    for path in sorted((root / PARTS_NAME).glob(f"{_NOTE_PREFIX}*.json")):
        notes[path.stem.removeprefix(_NOTE_PREFIX)] = read_note(path, SourceNote)
    return notes


def read_note(path: Path, kind: type[_Kind]) -> _Kind:
    """The note or job that a part wrote. Raises FormatError if damaged, OSError if unreadable."""
    try:
        return msgspec.json.decode(files.read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None


class PackState:
    """The state of one pack's folder, locked by one process at a time.

    Attributes:
        shards: (source, number within it) → the published shard.
        empty: (source, number within it) → a shard without samples, of a source that is read.
        sources: name of a finished source → its record in the manifest.
        shortfalls: name of a source that was recorded as finished, but of which pairs are missing →
            what is wrong. It is not among `sources`.
        listed: names of the shards that the manifest listed when the state was read.
        rebuild_index: write the index also if it exists: `repair` sets it where the index may be
            damaged.
    """

    def __init__(self, root: Path, options: PackOptions, lock: int | None = None):
        """Lock `root`, which is created if it does not exist, and read its state.

        Args:
            options: options of the pack.
            lock: descriptor that `lock_folder` returned: the caller has locked the folder, and
                enters what is sound in it. Then nothing is read here.

        Raises:
            OutputLocked: another process has locked the folder.
            OptionsDiffer: the folder was packed with other options.
            PackError: the folder holds something else.
            FormatError: the pack is damaged.
        """
        self.root = root
        self.shards_dir = root / SHARDS_NAME  # where shards are built
        self.options = options
        self.shards: dict[Key, PublishedShard] = {}
        self.empty: dict[Key, EmptyShard] = {}
        self.sources: dict[str, dict] = {}
        self.shortfalls: dict[str, Shortfall] = {}
        self.listed: set[str] = set()
        self.rebuild_index = False
        self._entered: list[Path] = []  # notes of parts, removed once the manifest has them
        self._published_at = self._publish_seconds = 0.0
        if lock is not None:
            self._lock = lock
            return
        files.make_folder(root)
        check_ours(root)
        self._lock = lock_folder(root)
        try:
            self._load()
            remove_stale(root)
        except BaseException:
            self.close()
            raise

    @classmethod
    def inspect(cls, root: Path, options: PackOptions) -> "PackState":
        """The state that a run into `root` would find. Writes and locks nothing.

        Raises the same errors as the constructor.
        """
        state = cls(root, options, lock=NOT_LOCKED)
        if root.exists():
            check_ours(root)
        if (root / LOCK_NAME).exists():
            os.close(lock_folder(root))
        else:
            check_locks(root)
        state._load()
        return state

    # How many of its shards are on this disk at once; None: all of them.
    shards_at_once: int | None = None

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)

    def _load(self, only: Set[str] | None = None) -> None:
        """Enter what is published, of all sources or of `only` these. Writes nothing."""
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
        for name, note in source_notes(self.root).items():  # by parts of a job
            if (only is None or name in only) and note.holds(self.root):
                path = note_path(self.root, name)
                check_record(note.record, SourceRecord, f"{path}: sources")
                self.sources[name] = note.record
                self._entered.append(path)
        for entry in listed:  # the source of a shard that someone removed is incomplete
            self.listed.add(entry.name)
            if (entry.source, entry.part) not in self.shards:
                self.sources.pop(entry.source, None)
        self._refuse_shortfalls()

    def _refuse_shortfalls(self) -> None:
        """Take out the records of sources of which pairs are missing: these are not finished."""
        self.shortfalls = {}
        pairs: dict[str, dict[int, int]] = {}
        for (source, number), shard in self.shards.items():
            pairs.setdefault(source, {})[number] = shard.attributes["pairs"]
        for name, record in list(self.sources.items()):
            shortfall = source_shortfall(
                record, pairs.get(name, {}), self.options.samples_per_shard, by_pairs=True
            )
            if shortfall is not None:
                self.shortfalls[name] = shortfall
                del self.sources[name]

    def write_first_manifest(self) -> None:
        """Make the folder a pack, which holds nothing yet, unless it is one.

        Before all other files: a run killed at any moment leaves a pack, or only working files.
        """
        if not (self.root / MANIFEST_NAME).exists():
            write_manifest(self.root, self.manifest(complete=False))

    def shards_of(self, source: str) -> dict[int, PublishedShard]:
        """Number within its source → published shard, of one source."""
        found = {}
        for (name, number), shard in self.shards.items():
            if name == source:
                found[number] = shard
        return found

    def add_shard(self, shard: PublishedShard) -> None:
        """Enter a published shard."""
        self.shards[shard.entry.source, shard.entry.part] = shard

    def add_empty(self, source: str, number: int, shard: EmptyShard) -> None:
        """Enter a shard without samples."""
        self.empty[source, number] = shard

    def record_of(self, read: SourceRead) -> dict[str, Any]:
        """The record of a source. Raises PackError unless every shard of it is entered."""
        empty = {}
        for (name, number), shard in self.empty.items():
            if name == read.name:
                empty[number] = shard
        shards = self.shards_of(read.name)
        return source_record(read, shards, empty, self.options.samples_per_shard)

    def finish_source(self, read: SourceRead, at_once: bool = False) -> None:
        """Enter the record of a source that was read to its end, and of which all is entered.

        Manifest and index are written from time to time, in at most one twentieth of the time of
        the run: they take two seconds for all of SA-1B. A run killed in between reads the source
        again, but does not decode it again.

        Args:
            read: what was found in the source.
            at_once: write manifest and index now, because reading this source again would take
                longer.

        Raises:
            PackError: a shard of it was not entered.
        """
        self.sources[read.name] = self.record_of(read)
        if at_once or time.monotonic() - self._published_at >= 20 * self._publish_seconds:
            self.publish(complete=False)

    def withdraw(self, source: str) -> int:
        """Remove every shard of a source that cannot be trusted; returns their number."""
        shards = self.shards_of(source)
        for number in shards:
            del self.shards[source, number]
        self.sources.pop(source, None)
        self.publish(complete=False)  # first: a manifest never lists a missing shard
        for shard in shards.values():
            files.remove_published(self.shards_dir / shard.entry.name)
        return len(shards)

    def how_to_remove(self, names: Sequence[str]) -> str:
        """The command that removes published shards, in words for a message."""
        folders = " ".join(quote(name) for name in names)
        return f"run `cd {quote(str(self.root / SHARDS_NAME))} && rm -r {folders}`"

    def rejects(self) -> list[dict]:
        """Every line of rejects.jsonl, by source and, within one, in the order found."""
        lines = []
        records = {}
        for (name, number), shard in self.shards.items():
            records[name, number] = shard.attributes
        for name, record in self.sources.items():
            records[name, _AFTER_SHARDS] = record
        for (name, _), record in sorted(records.items(), key=itemgetter(0)):
            for line in record["rejects"]:
                lines.append({"source": name, **line})
        return lines

    def fail(self, failed: dict[str, SourceError]) -> None:
        """Note which sources were given up: name → why. The next run tries them again."""

    def findings(self) -> list[str]:
        """Lines for the user about what is published: duplicates, and sources without any pair."""
        lines = find_duplicates(*open_manifest_and_index(self.root))
        names_by_reason: dict[str, list[str]] = {}
        for name, record in sorted(self.sources.items()):
            if not record["pairs"]:
                codes = {reject["reason"] for reject in record["rejects"]}
                reason = why_no_pairs(record["ignored_names"], codes)
                names_by_reason.setdefault(reason, []).append(name)
        for reason, names in names_by_reason.items():
            more = " and others" if len(names) > _NAMED else ""
            lines.append(
                "no pair of a .jpg and a .json file of the same name is in "
                f"{', '.join(names[:_NAMED])}{more}: {reason}"
            )
        return lines

    def manifest(self, complete: bool) -> Manifest:
        """The manifest of what is entered; see `publish`."""
        counts = {"images": 0, "masks": 0, "annotations": 0, "dropped_images": 0, "rejects": 0}
        entries = []
        sources = []
        for (source, _), shard in sorted(self.shards.items(), key=itemgetter(0)):
            entries.append(shard.entry)
            counts["images"] += shard.entry.samples
            counts["masks"] += shard.entry.masks
            counts["annotations"] += shard.entry.annotations
            counts["dropped_images"] += shard.attributes["dropped"]
            complete = complete and source in self.sources
        for _, record in sorted(self.sources.items()):
            sources.append(record)
            counts["dropped_images"] += record["dropped"]
        for line in self.rejects():
            reason = f"rejects:{line['reason']}"
            counts["rejects"] += 1
            counts[reason] = counts.get(reason, 0) + 1
        options = self.options
        manifest = make_manifest(
            options.layout,
            entries,
            says_complete=complete,
            options=options.to_json(),
            sources=sources,
            counts=counts,
        )
        if manifest.says_complete and manifest.shortfalls:
            return msgspec.structs.replace(manifest, says_complete=False)
        return manifest

    def publish(self, complete: bool) -> Manifest:
        """Write the index, rejects.jsonl, the manifest and the checksums, each atomically.

        Args:
            complete: every source that was given is packed. The pack is complete if, in addition,
                no other source is packed in part.

        Returns:
            The manifest, without its index.
        """
        started = time.monotonic()
        if not self.shards:
            self.write_first_manifest()
        text = ""
        for line in self.rejects():
            text += json.dumps(line, sort_keys=True) + "\n"
        files.replace_file(self.root / REJECTS_NAME, text.encode())
        manifest = self.manifest(complete)
        publish(self.root, manifest, rebuild_index=self.rebuild_index)
        self.rebuild_index = False
        while self._entered:
            self._entered.pop().unlink(missing_ok=True)
        self._published_at = time.monotonic()
        self._publish_seconds = self._published_at - started
        return manifest


class PartState(PackState):
    """The state of a pack's folder for the sources of one part.

    It never writes the index. Of the manifest, it writes a first, empty one, and into that of a
    complete pack, that it is not complete any more.

    Shards are built in a working folder, and moved to their names when they are complete. If
    another process has published the same shard meanwhile, that one stays.
    """

    def __init__(self, root: Path, options: PackOptions, job: Job, sources: Sequence[str]):
        """Prepare the folder, which is created if it does not exist, and read the state of sources.

        Args:
            root: folder of the pack.
            options: options of the pack.
            job: the one that the part belongs to.
            sources: names of the sources of the part.

        Raises:
            OutputLocked: `pack` without a part, `finalize`, `repair` or `merge` works on the
                folder.
            OutputRefused: the file system has no locks.
            Whatever else PackState raises.
        """
        check_locks(root, of_part=True)  # before anything is made
        files.make_folder(root)
        check_ours(root)
        super().__init__(root, options, lock_folder(root, of_part=True))
        self._work = ExitStack()
        try:
            with alone(self.root):
                self.write_first_manifest()
            self._load(frozenset(sources))
            data = msgspec.json.encode(job)
            path = root / PARTS_NAME / f"{JOB_PREFIX}{xxhash.xxh3_64_hexdigest(data)}.json"
            if not path.exists():
                files.replace_file(path, data)
            self._recorded = dict(self.sources)
            self._reopened = False
            self.shards_dir = self._work.enter_context(working_folder(root, of_part=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the working folder, and unlock the pack."""
        self._work.close()
        super().close()

    def publish(self, complete: bool) -> Manifest:
        """Record for `finalize` what has changed in the records of sources.

        Returns the manifest that these sources alone would have.
        """
        folder = self.root / SHARDS_NAME
        recorded = self._recorded
        for name, record in self.sources.items():
            if record != recorded.get(name):
                files.flush_folder(folder)  # another process may have renamed a shard only
                digests = {}
                for shard in self.shards_of(name).values():
                    path = folder / shard.entry.name / files.CHECKSUMS_NAME
                    digests[shard.entry.name] = files.file_digest(path)
                self._leave_note(name, SourceNote(record, digests))
                recorded[name] = record
        return self.manifest(complete)

    def add_shard(self, shard: PublishedShard) -> None:
        """Give a complete shard of the working folder its final name, and enter it.

        Raises OutputRefused if another process has published one that was made from other images.
        """
        self._reopen()
        name = shard.entry.name
        final = self.root / SHARDS_NAME / name
        if not files.claim_name(self.shards_dir / name, final):
            found = published_shard(final, self.root)
            if found.attributes["pairs_digest"] != shard.attributes["pairs_digest"]:
                raise OutputRefused(
                    f"{final}: another process has published this shard from other images; give "
                    "all parts the same files"
                )
            shard = found
        super().add_shard(shard)

    def finish_source(self, read: SourceRead, *, at_once: bool = True) -> None:
        """Record a source of which every shard is entered; it is always done at once."""
        self._reopen()
        super().finish_source(read, at_once=True)

    def _reopen(self) -> None:
        """Mark the pack as incomplete until `finalize`, before anything is added."""
        if not self._reopened:
            with alone(self.root):
                manifest = read_manifest(self.root)
                if manifest.says_complete:
                    incomplete = msgspec.structs.replace(manifest, says_complete=False)
                    write_manifest(self.root, incomplete)
            self._reopened = True

    def withdraw(self, source: str) -> int:
        """Remove the shards of a source that cannot be trusted; returns their number.

        Those that the manifest lists are left to `finalize`, which `fail` notifies. None is removed
        if another process has read the source to its end and found it sound.
        """
        if self._is_packed(source):
            return 0
        removed = 0
        for number, shard in self.shards_of(source).items():
            if shard.entry.name not in self.listed:
                del self.shards[source, number]
                files.remove_published(self.root / SHARDS_NAME / shard.entry.name)
                removed += 1
        return removed

    def findings(self) -> list[str]:
        """No lines: findings concern the whole pack, and `finalize` reports them."""
        return []

    def fail(self, failed: dict[str, SourceError]) -> None:
        """Record which sources were given up, and why."""
        for source, error in failed.items():
            if not self._is_packed(source):
                text = printable("\n".join([str(error), *getattr(error, "__notes__", ())]))
                corrupt = isinstance(error, SourceCorrupt)
                self._leave_note(source, SourceNote(error=text, corrupt=corrupt))

    def _leave_note(self, source: str, note: SourceNote) -> None:
        files.replace_file(note_path(self.root, source), msgspec.json.encode(note))

    def _is_packed(self, source: str) -> bool:
        """True if another process has packed a source to its end."""
        path = note_path(self.root, source)
        if not path.exists():
            return False
        note = read_note(path, SourceNote)
        return note.holds(self.root) and note.accounts_for_all(self.options.samples_per_shard)


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
        expected = request.sums.get(source.name)
        found = ""
        if source.kind != "remote" and record["nbytes"] != source.nbytes:
            found = f"has {source.nbytes} bytes"
        elif record["md5"] is not None and expected not in (None, record["md5"]):
            found = f"should have the md5 {expected}"
        if found:
            digest = f" and the md5 {record['md5']}" if record["md5"] is not None else ""
            raise OutputRefused(
                f"{source.path} {found}, but the pack holds a source {brief(source.name)} of "
                f"{record['nbytes']} bytes{digest}; rename one of them if they have other images "
                "(the same ones are packed already), or use another output folder"
            )
        if record["md5"] is None and request.md5 and source.kind != "folder":
            todo.append(source)
        elif record["md5"] is not None and expected is not None:
            state.sources[source.name] = record | {"md5_checked": True}
    return look_at(todo, on_wait=report)


def check_ours(root: Path) -> None:
    """Raise OutputRefused for a folder of something else, before anything in it is changed."""
    if (root / MANIFEST_NAME).exists():
        return
    working = (LOCK_NAME, PARTS_NAME, files.TEMPORARY_PREFIX + MANIFEST_NAME)
    for path in root.iterdir():
        if not (path.name.startswith(working) or files.is_of_system(path.name)):
            raise OutputRefused(
                f"{root} is not empty and holds no {MANIFEST_NAME}; choose an empty or a new "
                "folder. If it is a pack that lost its manifest: sa1bpack repair "
                f"{quote(str(root))} TARS"
            )


def existing_parent(path: Path) -> Path:
    """The path, made absolute, or the nearest one above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def lock_folder(
    root: Path, *, shared: bool = False, flags: int = os.O_RDWR | os.O_CREAT, of_part: bool = False
) -> int:
    """Lock a folder until the descriptor is closed or the process ends, however it ends.

    The lock is on a file in the folder, which stays. Where the file system has no locks, that is
    said, and the descriptor is that of the file, not locked.

    Args:
        root: the folder.
        shared: lock it together with others that do so; otherwise alone.
        flags: flags to open the lock's file with; by default it is created.
        of_part: the lock is of a part of a job, shared with others, which need it.

    Raises:
        OutputLocked: another process holds the lock.
        OutputRefused: the lock is of a part, and the file system has no locks.
        OSError: the folder has no such file that can be opened.
    """
    kind = fcntl.LOCK_SH if shared or of_part else fcntl.LOCK_EX
    for _ in range(_LOCK_TRIES):
        try:
            return files.locked(root / LOCK_NAME, kind | fcntl.LOCK_NB, flags)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        except files.NoFileLocks as error:
            go_on_or_refuse(error, of_part)
            return os.open(root / LOCK_NAME, flags | os.O_CLOEXEC, 0o666)
    raise OutputLocked(
        f"{root}: another process packs into this folder, or a part of a job; wait for its end"
    )


def check_locks(root: Path, of_part: bool = False) -> None:
    """Say, or raise, what `lock_folder` would if the file system has no locks. Writes nothing."""
    try:
        files.try_locks(existing_parent(root))
    except files.NoFileLocks as error:
        go_on_or_refuse(error, of_part)


def go_on_or_refuse(error: files.NoFileLocks, of_part: bool) -> None:
    """Say that a folder is not locked; raise OutputRefused for a part of a job, which must be."""
    if not of_part:
        files.go_on_unlocked(error, _WITHOUT_LOCKS)
        return
    raise OutputRefused(
        f"{error}, without which parts of a job cannot share a folder: mount it with locks "
        "(Lustre: -o flock; NFS: with a lock manager), or let each machine pack its tars into a "
        "folder of its own, without a part, and join these by `sa1bpack merge`; repair without a "
        "part"
    ) from None


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let one part at a time into the block, which takes a moment."""
    files.make_folder(root / PARTS_NAME)
    with os.fdopen(files.locked(root / PARTS_NAME / _PARTS_LOCK)):
        yield


@contextmanager
def working_folder(root: Path, *, of_part: bool) -> Iterator[Path]:
    """A folder under shards/ of this process, where shards are made until they get their names.

    As long as a part of a job is in the block, it holds a lock in it: what has none was left by a
    killed process, and is removed by the next. Who has the pack alone needs none. Raises OSError.
    """
    folder = root / SHARDS_NAME / (_WORKING + secrets.token_hex(8))
    lock = None
    if of_part:
        with alone(root):
            _remove_abandoned(folder.parent)
            files.make_folder(folder)
            lock = files.locked(folder / _PARTS_LOCK)
    else:
        files.make_folder(folder)
    try:
        yield folder
    finally:
        if lock is not None:  # first: a file that is open may keep its folder
            os.close(lock)
        files.discard_entry(folder)


def _remove_abandoned(shards_dir: Path) -> None:
    """Remove the working folders of killed parts; the caller is `alone`."""
    for other in sorted(shards_dir.glob(_WORKING + "*")):
        try:
            lock = files.locked(other / _PARTS_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except FileNotFoundError:  # its owner has removed it right now
            lock = None
        if lock is not None:
            os.close(lock)
        files.discard_entry(other)


def remove_empty_notes(root: Path) -> None:
    """Remove PACK/.parts if no part has left anything for `finalize`; no part runs now."""
    folder = root / PARTS_NAME
    if folder.is_dir() and all(path.name == _PARTS_LOCK for path in folder.iterdir()):
        files.remove_published(folder)
