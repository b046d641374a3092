"""`repair`: make anew what is damaged in a pack, and nothing else.

Damaged shards come from the tars, by the machinery and the options that packed them; the pack's own
files come from the shards. Sound shards are not decoded again, and not touched.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from sa1bpack.errors import FormatError
from sa1bpack.format import Problem, open_shard, remove_stale
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.files import remove_entry, temporary_beside
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, without_manifest
from sa1bpack.format.publish import REJECTS_NAME, index_folders, remove_old_indexes
from sa1bpack.format.zarr_metadata import METADATA_NAME
from sa1bpack.packing.damage import Damage, find_damage
from sa1bpack.packing.engines.inline import pack_inline
from sa1bpack.packing.engines.processes import pack_with_processes
from sa1bpack.packing.ledger import Ledger, lock_folder
from sa1bpack.packing.rebuild import (
    RepairLane,
    Replacement,
    Workshop,
    put_in_place,
    replacement,
)
from sa1bpack.packing.records import check_shard_record
from sa1bpack.packing.request import checked_workers
from sa1bpack.packing.run import pack_into, versions_in_force
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.unit import PublishedShard
from sa1bpack.packing.watch import Watch, tell
from sa1bpack.packing.writers import Writers
from sa1bpack.progress import byte_bar
from sa1bpack.source.find import Source, find_sources

# What `RepairResult.left` calls the manifest, the index and the other files at the top of a pack.
OWN_FILES = "the pack's own files"


@dataclass
class RepairResult:
    """What was damaged, and what became of it.

    root
        The pack's folder.
    problems
        All that the check found before anything was mended.
    repaired
        Names of the shards that were made anew; of a dry run, those that would be.
    rewritten
        Whether the pack's own files (manifest, index, checksums, ...) were written anew, or would.
    left
        What is still damaged → why, and what to do. Keys are names of shards and sources, and
        OWN_FILES.
    extra
        Problems that are no damage: files that are no part of the pack. They are never touched.
    notes
        What the user was told.
    complete
        The pack holds every source to its end.
    dry_run
        Nothing was written.
    seconds
        Wall time.
    """

    root: Path
    problems: tuple[Problem, ...] = ()
    repaired: list[str] = field(default_factory=list)
    rewritten: bool = False
    left: dict[str, str] = field(default_factory=dict)
    extra: tuple[Problem, ...] = ()
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing that was found wrong is left (after a dry run: would be)."""
        return not (self.left or self.extra)


def repair(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] = (),
    *,
    shards: Iterable[str] = (),
    workers: int | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> RepairResult:
    """Check a pack and make anew what is damaged or missing.

    pack
        Its folder.
    sources
        The tars and folders that it was made from; paths or glob patterns. Those without damage are
        not read, so all may be given. Without any, only the pack's own files are mended.
    shards
        Names of the shards to read in full, where a check has named the damaged ones already: the
        others get a quick check. Default: all are read.
    workers
        Worker processes; 1 does all the work in this process. Default: the processors at hand.
    dry_run
        Check, and say what would be done; write nothing.
    progress
        Show progress on stderr. Default: when it is a terminal.

    A source must be the file that the pack was made from: its size, its md5 and its pairs are
    compared, and nothing is taken from another one. What cannot be mended is in the result's
    `left`, and stays as it was. Interrupted at any moment, it can be called again.

    If manifest.json is lost, the options come from the shards; what was known of whole sources must
    be read from them again, and sources that are given and not in the pack are added.

    Raises OptionError, SourceError (nothing found under a name), OutputLocked while another process
    packs into the folder, NotAPack when it is none, FormatError when its manifest is lost and no
    shard tells the options, or a folder is in the place of one of its own files, VersionError for a
    pack of another version (a newer minor one, too: what is new in it would be lost), PackError (a
    worker that can't start), and OSError when the disk fails, or one of the pack's own files may
    not be read.
    """
    started = time.perf_counter()
    root = Path(pack)
    workers = checked_workers(workers)
    found = find_sources([sources] if isinstance(sources, str | Path) else sources)
    if not ((root / MANIFEST_NAME).exists() or (root / SHARDS_NAME).is_dir()):
        raise without_manifest(root)
    _refuse_exchanged(root)
    lock = None if dry_run else lock_folder(root)
    try:
        with byte_bar(progress) as advance:
            damage = find_damage(root, frozenset(shards), advance)
        if lock is not None:
            remove_stale(root)
        run = _Repair(root, damage, found, workers, progress)
        if lock is None:
            run.forecast()
        else:
            run.mend(lock)
    finally:
        if lock is not None:
            os.close(lock)
    run.result.dry_run = dry_run
    run.result.seconds = time.perf_counter() - started
    return run.result


def _refuse_exchanged(root: Path) -> None:
    """Raise FormatError for a folder in the place of a file, or the other way round.

    No rename puts the one over the other, and what is strange is the user's to remove.
    """
    shards = root / SHARDS_NAME
    if shards.exists() and not shards.is_dir():
        raise FormatError(
            f"{shards}: a file, where the folder of the shards must be; move it out of the pack "
            "and repeat the command"
        )
    own = (MANIFEST_NAME, CHECKSUMS_NAME, METADATA_NAME, REJECTS_NAME)
    for path in (*(root / name for name in own), shards / METADATA_NAME):
        if path.is_dir() and not path.is_symlink():
            raise FormatError(
                f"{path}: a folder, where a file must be; move it out of the pack and repeat the "
                "command"
            )


class _Repair:
    """One repair of a pack that has been checked."""

    def __init__(
        self,
        root: Path,
        damage: Damage,
        sources: list[Source],
        workers: int,
        progress: bool | None,
    ):
        self._root = root
        self._damage = damage
        self._sources = {source.name: source for source in sources}
        self._records = {record["name"]: record for record in damage.manifest.sources}
        self._workers = workers
        self._progress = progress
        self.result = RepairResult(
            root, damage.problems, extra=damage.extra, complete=damage.manifest.complete
        )

    def forecast(self) -> None:
        """Say what `mend` would try."""
        for parts in self._parts_to_make().values():
            self.result.repaired += parts.values()
        self.result.rewritten = self._damage.own_files

    def mend(self, lock: int) -> None:
        """Mend what can be mended; the caller holds the pack's lock."""
        damage = self._damage
        if not (damage.shards or damage.own_files):
            remove_old_indexes(self._root, damage.manifest.index)
            return
        self._ledger = Ledger(self._root, damage.options, lock)
        self._ledger.sources = dict(self._records)
        self._enter_sound_shards()
        wanted = self._parts_to_make()
        if not wanted:
            self._finish([])
            return
        workshop = Workshop(self._ledger)
        try:
            self._make(wanted, workshop)
            self._finish(self._replacements(wanted, workshop))
        finally:
            workshop.close()

    # What is to be made

    def _parts_to_make(self) -> dict[str, dict[int, str]]:
        """Source → part → name, of the damaged shards that can be made; others are left."""
        wanted: dict[str, dict[int, str]] = {}
        for name, (source, part) in self._damage.shards.items():
            if reason := self._obstacle(name, source):
                self.result.left[name] = reason
            else:
                wanted.setdefault(source, {})[part] = name
        return wanted

    def _obstacle(self, name: str, source: str) -> str | None:
        """Why a damaged shard cannot be made anew."""
        if denied := self._damage.denied_files(name):
            return f"{denied[0]}; look at its owner and mode (ls -ld): it need not be damaged"
        if foreign := self._damage.foreign_files(name):
            return f"its folder holds what is not the pack's, move it away first: {foreign[0]}"
        if source not in self._sources:
            return f"the source {source} is needed, and was not given"
        given, record = self._sources[source], self._records.get(source)
        if record is not None and record["nbytes"] != given.nbytes:
            return (
                f"{given.path} has {given.nbytes} bytes, but the pack was made from one of "
                f"{record['nbytes']}; bring the same file back"
            )
        return None

    def _enter_sound_shards(self) -> None:
        """Enter into the ledger what the check found sound."""
        for entry in self._damage.manifest.shards:
            if entry.name not in self._damage.shards:
                self._enter(entry.name)

    def _enter(self, name: str) -> None:
        shard = open_shard(self._root / SHARDS_NAME / name, self._damage.options.layout)
        check_shard_record(shard.attributes, shard.folder)
        self._ledger.add_shard(PublishedShard(shard.entry, shard.attributes))

    # Making it

    def _make(self, wanted: dict[str, dict[int, str]], workshop: Workshop) -> None:
        """Make the wanted parts; what goes wrong with a source is left."""
        options = self._damage.options
        warm_up(options)
        sources = [self._sources[name] for name in wanted]
        watch = Watch(sum(source.nbytes for source in sources), show=self._progress)
        with Writers() as writers:
            lanes = [
                RepairLane(source, workshop, writers, versions_in_force(), set(wanted[source.name]))
                for source in sources
            ]
            try:
                if self._workers == 1:
                    pack_inline(lanes, options, watch)
                else:
                    pack_with_processes(lanes, options, self._workers, watch)
            finally:
                watch.close()
        self.result.notes += watch.notes
        for lane in lanes:
            if reason := self._source_fault(lane, workshop):
                workshop.withdraw(lane.source.name)
                self.result.left.update(dict.fromkeys(wanted[lane.source.name].values(), reason))

    def _source_fault(self, lane: RepairLane, workshop: Workshop) -> str | None:
        """Why nothing that came from a source can be used."""
        if lane.error is not None:
            return str(lane.error)
        record, read = self._records.get(lane.source.name), workshop.read[lane.source.name]
        for key in ("md5", "pairs") if record is not None else ():
            if read[key] != record[key]:
                return (
                    f"{lane.source.path}: {key} is {read[key]}, but the pack was made from a "
                    f"source with {record[key]}; bring the same file back"
                )
        return None

    def _replacements(
        self, wanted: dict[str, dict[int, str]], workshop: Workshop
    ) -> list[Replacement]:
        """What was made and can be used."""
        usable = []
        for source, parts in wanted.items():
            for part, name in parts.items():
                shard = workshop.made.get((source, part))
                if name in self.result.left:
                    continue
                made = "the source has no image for it" if shard is None else replacement(
                    shard, workshop, self._damage
                )  # fmt: skip
                if isinstance(made, Replacement):
                    usable.append(made)
                else:
                    self.result.left[name] = made
        return usable

    # Putting it in place

    def _finish(self, made: list[Replacement]) -> None:
        """Put shards in place, and write the pack's own files anew where that is needed.

        A shard that has not the bytes that the pack's checksums ask for is damage to the next
        check until these are written, so a repair that is killed in between is gone on with.
        """
        others = [replaced for replaced in made if not replaced.same]
        rewrite = self._damage.own_files or bool(others)
        if rewrite and not self._damage.lost and not self._enter_damaged_shards(others):
            made, rewrite = [replaced for replaced in made if replaced.same], False
        for replaced in made:
            self._put_in_place(replaced)
        if self._damage.lost:
            self._make_manifest()
        elif rewrite:
            self._publish(manifest_changes=bool(others))

    def _put_in_place(self, made: Replacement) -> None:
        name = made.shard.entry.name
        put_in_place(made.folder, self._ledger.shards_dir / name)
        self._ledger.add_shard(made.shard)
        self.result.repaired.append(name)
        if made.note:
            self._note(made.note)

    def _enter_damaged_shards(self, others: list[Replacement]) -> bool:
        """Enter the shards that stay damaged, so that the pack can be published with them.

        Returns False, and leaves what depends on it, where one of them is too damaged for that.
        """
        for name in self._damage.shards:
            if name not in self.result.left:
                continue
            try:
                self._check_digest(name)
                self._enter(name)
            except (FormatError, OSError) as error:
                reason = f"cannot be written anew as long as {name} is damaged: {error}"
                self.result.left[OWN_FILES] = reason
                self.result.left.update({other.shard.entry.name: reason for other in others})
                return False
        return True

    def _check_digest(self, name: str) -> None:
        """Raise FormatError if the checksum file of a shard is damaged: it must not be blessed."""
        path = self._root / SHARDS_NAME / name / CHECKSUMS_NAME
        due = self._damage.digests.get(name)
        if due is not None and file_digest(path) != due:
            raise FormatError(f"{path} is damaged")

    def _make_manifest(self) -> None:
        """Write a lost manifest anew; what it says of sources is read from them again."""
        spoilt = {self._damage.shards[name][0] for name in self.result.left}
        sources = [source for name, source in self._sources.items() if name not in spoilt]
        with _old_indexes_aside(self._root):
            packed = pack_into(self._ledger, sources, self._workers, {}, None, self._progress)
        self.result.notes += packed.notes
        self.result.left.update({name: str(error) for name, error in packed.failed.items()})
        known = {source for source, _ in self._ledger.shards} | spoilt
        self.result.complete = not self.result.left and known <= self._ledger.sources.keys()
        if not self.result.complete:
            self._ledger.publish(complete=False)
        for name in sorted(known - self._ledger.sources.keys() - spoilt - packed.failed.keys()):
            self._note(
                f"what the lost manifest said of {name} is not known: pack again, with all tars, "
                "to read it from them; nothing is decoded twice"
            )
        self.result.rewritten = True

    def _note(self, text: str) -> None:
        self.result.notes.append(text)
        tell(text)

    def _publish(self, manifest_changes: bool) -> None:
        """Write the pack's own files anew, damaged ones from nothing.

        Where the manifest changes it says for a moment that the pack is not complete, as the packer
        has it: of a complete one that does not fit its checksums nothing could be believed.
        """
        with _old_indexes_aside(self._root) if self._damage.own_files else nullcontext():
            if manifest_changes:
                self._ledger.publish(complete=False)
            self._ledger.publish(complete=self._damage.manifest.complete)
        self.result.rewritten = True


@contextmanager
def _old_indexes_aside(root: Path) -> Iterator[None]:
    """Have every index made anew: one that is there under its name would be taken for whole."""
    moved = [(path, temporary_beside(path)) for path in index_folders(root)]
    for path, aside in moved:
        path.rename(aside)
    yield
    for _, aside in moved:
        remove_entry(aside)
