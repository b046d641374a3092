"""Parts of a job: many may work in one folder at once; and `finalize`, which makes it one pack.

They share nothing but the folder. A part publishes complete shards under their final names, and
each source's record in a file of its own, atomically. It waits for no other part: they hold a
shared lock on the pack, which only keeps off what needs the folder for itself (`pack`, `repair`,
`merge`, `finalize`). What they leave for `finalize` is in PACK/.parts::

    plan-<digest>.json     the sources of a job, and how many parts it has
    source-<name>.json     a SourceNote
    lock                   held for a moment, while a part changes what is of the whole pack
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from sa1bpack.arguments import checks_options, local_path
from sa1bpack.errors import OutputRefused, SourceCorrupt, SourceError
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    TEMPORARY_PREFIX,
    claim_name,
    file_digest,
    flush_folder,
    locked,
    make_folder,
    remove_published,
    replace_file,
)
from sa1bpack.format.manifest import (
    PARTS_NAME,
    PLAN_PREFIX,
    SHARDS_NAME,
    read_manifest,
    write_manifest,
)
from sa1bpack.packing.options import PackOptions, recorded_options
from sa1bpack.packing.pack_state import (
    PackState,
    PublishedShard,
    SourceNote,
    Totals,
    check_ours,
    lock_folder,
    note_path,
    published_shard,
    read_note,
    read_own_manifest,
    source_notes,
    totals_of,
)
from sa1bpack.wording import counted, printable

_LOCK_NAME = "lock"
_WORKING = f"{TEMPORARY_PREFIX}work-"


class Plan(msgspec.Struct, frozen=True):
    """A job: what all its parts together pack.

    parts
        Into how many parts it is cut.
    sources
        Names of all its sources, sorted: the K-th part has every `parts`-th, from the K-th on.
    """

    parts: int
    sources: tuple[str, ...]


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Only one part at a time is in such a block, which takes a moment."""
    make_folder(root / PARTS_NAME)
    with os.fdopen(locked(root / PARTS_NAME / _LOCK_NAME)):
        yield


def remove_empty_notes(root: Path) -> None:
    """Remove PACK/.parts if no part has left anything for `finalize`; no part runs now."""
    folder = root / PARTS_NAME
    if folder.is_dir() and all(path.name == _LOCK_NAME for path in folder.iterdir()):
        shutil.rmtree(folder)


@contextmanager
def working_folder(root: Path) -> Iterator[Path]:
    """A folder under shards/ of this process, where shards are made until they get their names.

    As long as a process is in the block, it holds a lock in it: what has none was left by a killed
    process, and is removed by the next. Raises OSError.
    """
    folder = root / SHARDS_NAME / (_WORKING + secrets.token_hex(8))
    with alone(root):
        for other in sorted(folder.parent.glob(_WORKING + "*")):
            try:
                os.close(locked(other / _LOCK_NAME, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                continue
            except FileNotFoundError:  # its owner has removed it right now
                pass
            shutil.rmtree(other, ignore_errors=True)
        make_folder(folder)
        lock = locked(folder / _LOCK_NAME)
    with os.fdopen(lock):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class PartState(PackState):
    """What a pack's folder holds of the sources of one part. It never writes index and manifest,
    except the first, empty one.

    Shards are built in a working folder, and moved to their names when they are complete. If
    another process has published the same shard meanwhile, that one stays.
    """

    def __init__(self, root: Path, options: PackOptions, plan: Plan, sources: Sequence[str]):
        """Prepare the folder, which is created if it does not exist, and read the state of sources.

        plan
            The job that the part belongs to.
        sources
            Names of the sources of the part.

        Raises what PackState does; OutputLocked only if `pack` without a part, `finalize`, `repair`
        or `merge` works on the folder.
        """
        make_folder(root)
        check_ours(root)
        super().__init__(root, options, lock_folder(root, shared=True))
        self._work = ExitStack()
        try:
            with alone(self.root):
                self.write_first_manifest()
            self._load(frozenset(sources))
            data = msgspec.json.encode(plan)
            path = root / PARTS_NAME / f"{PLAN_PREFIX}{xxhash.xxh3_64_hexdigest(data)}.json"
            if not path.exists():
                replace_file(path, data)
            self._recorded = deepcopy(self.sources)
            self._reopened = False
            self.shards_dir = self._work.enter_context(working_folder(root))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Remove the working folder, and unlock the pack."""
        self._work.close()
        super().release()

    def publish(self, complete: bool) -> None:
        """Record for `finalize` what has changed in the records of sources."""
        for name, record in self.sources.items():
            if record != self._recorded.get(name):
                shards = sorted(shard.entry.name for shard in self.parts_of(name).values())
                folder = self.root / SHARDS_NAME
                flush_folder(folder)  # another process may have renamed a shard, and not flushed it
                digests = {shard: file_digest(folder / shard / CHECKSUMS_NAME) for shard in shards}
                note = SourceNote(record, digests)
                replace_file(note_path(self.root, name), msgspec.json.encode(note))
                self._recorded[name] = deepcopy(record)

    def add_shard(self, shard: PublishedShard) -> None:
        """Give a complete shard of the working folder its final name, and enter it.

        Raises OutputRefused if another process has published one that was made from other images.
        """
        self._reopen()
        name = shard.entry.name
        final = self.root / SHARDS_NAME / name
        if not claim_name(self.shards_dir / name, final):
            found = published_shard(final, self.root)
            if found.attributes["pairs_digest"] != shard.attributes["pairs_digest"]:
                raise OutputRefused(
                    f"{final}: another process has published this shard from other images; give "
                    "all parts the same files"
                )
            shard = found
        super().add_shard(shard)

    def finish_source(self, record: dict, *, at_once: bool = True) -> None:
        """Record a source of which every shard is published; it is always done at once."""
        self._reopen()
        super().finish_source(record, at_once=True)

    def _reopen(self) -> None:
        """Before anything is added: until `finalize`, the manifest says that it is incomplete."""
        if not self._reopened:
            with alone(self.root):
                manifest = read_manifest(self.root)
                if manifest.complete:
                    write_manifest(self.root, msgspec.structs.replace(manifest, complete=False))
            self._reopened = True

    def withdraw(self, source: str) -> int:
        """Remove the shards of a source that cannot be trusted; returns their number.

        Those that the manifest lists are left to `finalize`, which `fail` notifies. None is removed
        if another process has read the source to its end and found it sound.
        """
        if self._is_packed(source):
            return 0
        removed = 0
        for part, shard in self.parts_of(source).items():
            if shard.entry.name not in self.listed:
                del self.shards[source, part]
                remove_published(self.root / SHARDS_NAME / shard.entry.name)
                removed += 1
        return removed

    def findings(self) -> list[str]:
        """Nothing: they are of the whole pack, and reported by `finalize`."""
        return []

    def fail(self, failed: dict[str, SourceError]) -> None:
        """Record which sources were given up, and why."""
        for source, error in failed.items():
            if not self._is_packed(source):
                text = printable("\n".join([str(error), *getattr(error, "__notes__", ())]))
                note = SourceNote(error=text, corrupt=isinstance(error, SourceCorrupt))
                replace_file(note_path(self.root, source), msgspec.json.encode(note))

    def _is_packed(self, source: str) -> bool:
        """Whether another process has packed a source to its end."""
        note = source_notes(self.root, {source}).get(source)
        return note is not None and note.holds(self.root)


@dataclass(frozen=True, kw_only=True)
class FinalizeResult(Totals):
    """What a pack holds now, and what its job lacks.

    root
        The pack's folder.
    images, masks, annotations, dropped, rejects
        Totals of the pack, as in PackResult.
    sources
        Number of sources that it holds to their end.
    missing
        Name of each other source of the job → why it is missing.
    parts
        Parts (K, N) to be repeated, of the job begun last: those that have the missing sources.
    known
        Whether it is known which sources belong to the pack: from the parts of a job, or because it
        was complete before.
    identity
        Which digests of its tars the pack records, in words.
    left_out
        How many masks of its images the pack does not hold, and which options left them out, in
        words; empty if it holds all.
    bytes
        Of the files of its shards, with holes counted.
    reasons
        Code of a reason → how many members were rejected for it.
    notes
        Duplicate sources and image ids, and shards that were removed.

    Examples:
        >>> for k in (1, 2):
        ...     done = sa1bpack.pack_part("tests/samples/*.tar", "job", (k, 2), workers=1)
        >>> result = sa1bpack.finalize("job")
        >>> result.complete, result.parts, result.missing
        (True, (), {})
    """

    sources: int
    missing: dict[str, str]
    parts: tuple[tuple[int, int], ...]
    known: bool
    notes: list[str]

    @property
    def complete(self) -> bool:
        """Whether every source of the job is packed to its end."""
        return self.known and not self.missing


@checks_options(out="pack")
def finalize(pack: str | Path) -> FinalizeResult:
    """Make one pack of the shards that the parts of a job (`pack_part`) have published there.

    Writes index, rejects.jsonl, manifest and checksums. If sources are missing, the pack holds the
    others, its manifest says that it is not complete, and the result names them; repeat their parts
    and then the call. Shards of a source whose bytes were found to be wrong are removed.

    Reads no tar. Killed at any moment, it is repeated.

    Raises NotAPack and other FormatErrors for a damaged pack, OutputLocked while a part or another
    command works on it, VersionError for one of a newer version, and OSError if the disk fails.

    Examples:
        >>> sa1bpack.finalize("packed").missing
        {}
    """
    root = local_path("pack", pack)
    manifest = read_own_manifest(root)
    with PackState(root, recorded_options(manifest.options, root)) as state:
        paths = (root / PARTS_NAME).glob(f"{PLAN_PREFIX}*.json")
        paths = sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
        plans, noted = [read_note(path, Plan) for path in paths], source_notes(root)
        failed = {name: note for name, note in noted.items() if note.record is None}
        gone = noted.keys() - failed.keys() - state.sources.keys()
        if manifest.complete and (root / PARTS_NAME).is_dir():
            state.publish(complete=False)  # a complete one must match its checksums all the time
        notes = []
        for name, note in failed.items():
            if note.corrupt and name not in state.sources and state.parts_of(name):
                count = counted(state.withdraw(name), "shard")
                notes.append(f"{name}: its bytes are wrong; {count} withdrawn")
        expected = {name for plan in plans for name in plan.sources}
        expected |= {source for source, _ in state.shards} | failed.keys() | gone
        missing = {}
        for name in sorted(expected - state.sources.keys()):
            if name in failed:
                missing[name] = f"given up: {failed[name].error}"
            elif name in gone:
                missing[name] = "shards that it had are gone"
            elif shards := state.parts_of(name):
                missing[name] = f"packed in part, {counted(len(shards), 'shard')}"
            else:
                missing[name] = "no shard is published"
        known = bool(plans) or manifest.complete
        done = known and not missing
        state.publish(complete=done)
        if done:
            shutil.rmtree(root / PARTS_NAME, ignore_errors=True)
            flush_folder(root)
        for name in state.sources:  # what names the missing ones stays
            note_path(root, name).unlink(missing_ok=True)
        parts = set()
        for plan in plans[-1:]:
            rows = [row for row, name in enumerate(plan.sources) if name in missing]
            parts = {(row % plan.parts + 1, plan.parts) for row in rows}
        return FinalizeResult(
            **totals_of(state),
            sources=len(state.sources),
            missing=missing,
            parts=tuple(sorted(parts)),
            known=known,
            notes=notes + state.findings(),
        )
