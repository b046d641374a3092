"""The repair of a pack that has been checked: what was planned is done, or left with its reason."""

from collections.abc import Container, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import msgspec

from sa1bpack import interrupts
from sa1bpack.arguments import Share
from sa1bpack.errors import FormatError, SourceError
from sa1bpack.format.arrays import METADATA_NAME
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.index import remove_old_indexes
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    lost_remedy,
    write_manifest,
)
from sa1bpack.format.problems import Problem
from sa1bpack.format.removal import make_way_for_file, remove_published
from sa1bpack.format.replacing import put_in_place
from sa1bpack.format.side.kept import restore_kept_features
from sa1bpack.format.side.shards import side_folders
from sa1bpack.packing.damage import Damage, Unfinished, diagnose
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import RunOptions
from sa1bpack.packing.pack_folder import alone_among_parts, working_folder
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.publishers import FolderPublisher
from sa1bpack.packing.rebuilt import RebuiltShard, WorkingFolder, compare_rebuilt
from sa1bpack.packing.records import read_shard
from sa1bpack.packing.repair_plan import OWN_FILES, Leave, Rebuild, plan_repair
from sa1bpack.packing.run import run_work
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.source_packer import pack_sources
from sa1bpack.packing.work import find_work
from sa1bpack.progress import ProgressOption, report, reporting
from sa1bpack.source.find import Source, look_at

# The files of a pack outside its shards, index and features.
_OWN_FILE_PATHS = (
    MANIFEST_NAME,
    REJECTS_NAME,
    CHECKSUMS_NAME,
    METADATA_NAME,
    f"{SHARDS_NAME}/{METADATA_NAME}",
)


@dataclass
class RepairResult:
    """The damage to a pack, and the outcome of its repair.

    Attributes:
        root: folder of the pack.
        problems: problems that the check found before anything was repaired.
        repaired: names of the shards that were rebuilt; after a dry run, those that would be.
        rewritten: the pack's own files (manifest, index, checksums, ...) were written again, or
            would be.
        left: what is still damaged → why, and the remedy. Keys are names of shards and sources, and
            OWN_FILES.
        extra: problems that are not damage: files that are not part of the pack. They are never
            touched.
        notes: messages that were shown to the user.
        complete: the pack holds every source to its end.
        dry_run: nothing was written.
        seconds: wall time.
        plan: what was decided before anything was written, a line for each action, such as
            "rebuild sa_000000-001 from /data/sa_000000.tar"; after a dry run, what would be done.

    Examples:
        >>> result = sa1bpack.repair("packed", dry_run=True)
        >>> result.ok, result.repaired, result.left
        (True, [], {})
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
    plan: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no problem is left (after a dry run: would be)."""
        return not (self.left or self.extra)


@dataclass(frozen=True)
class RepairCall:
    """The arguments of a call of `repair`, checked.

    Attributes:
        annotations: where the records of the images are; None: beside them.
        sources: name → source.
        full: names of the shards to read in full.
        Others: as in `repair`.
    """

    root: Path
    annotations: Path | None
    sources: dict[str, Source]
    full: frozenset[str]
    quick: bool
    workers: int
    dry_run: bool
    progress: ProgressOption

    def diagnose(self, unfinished: Unfinished, share: Share) -> Damage:
        """Check the shards of a share of the sources. Raises as `damage.diagnose` does."""
        with reporting(self.progress, "byte") as advance:
            return diagnose(
                self.root,
                unfinished,
                full=self.full,
                quick=self.quick,
                share=share,
                advance=advance,
            )


class Repair:
    """The repair of a pack that has been checked.

    What cannot be repaired is entered in `result.left`.
    """

    def __init__(self, call: RepairCall, damage: Damage, *, of_part: bool):
        """Decide what is done about the damage.

        Of URLs, only those of the sources that are needed are asked.
        """
        self._call = call
        self._root = damage.root
        self._damage = damage
        self._of_part = of_part
        self._records = {record["name"]: record for record in damage.manifest.sources}
        self._sources = dict(call.sources)
        needed = {source for source, _ in damage.shards.values()} & self._sources.keys()
        readable, unreadable = look_at(
            [self._sources[name] for name in sorted(needed)], on_wait=report
        )
        for source in readable:
            self._sources[source.name] = source
        self._plan = plan_repair(damage, self._sources, unreadable, of_part=of_part)
        self.result = RepairResult(
            damage.root,
            damage.problems,
            extra=damage.extra,
            plan=[str(action) for action in self._plan if not isinstance(action, Leave)],
            complete=damage.manifest.complete,
        )
        for action in self._plan:
            if isinstance(action, Leave):
                self.result.left[action.name] = action.reason

    def note_unchecked_features(self) -> None:
        """Say which features are not checked: no tar has what `derive` and `attach` made."""
        kept_keys = {key.name for key in self._damage.options.kept_keys}
        unchecked = [path.name for path in side_folders(self._root) if path.name not in kept_keys]
        if unchecked:
            self._note(
                f"features that are not checked, as no tar has their rows: {', '.join(unchecked)}; "
                f"sa1bpack verify {quote(str(self._root))} checks them"
            )

    def foresee(self) -> RepairResult:
        """The result of a dry run."""
        for action in self._plan:
            if isinstance(action, Rebuild):
                self.result.repaired += action.shards.values()
            elif not isinstance(action, Leave):
                self.result.rewritten = True
        return self.result

    def apply_to_part(self) -> RepairResult:
        """Apply the plan of a part; the caller holds the pack's lock, with other parts.

        What has other bytes than the pack's checksums demand is left: no part rewrites these.
        """
        if self._plan:
            restore_kept_features(self._root, self._damage.options.kept_keys)
        with ExitStack() as held:
            for shard in self._rebuild(held):
                if shard.same:
                    with alone_among_parts(self._root):
                        self._put_in_place(shard)
                else:
                    reason = shard.note or "the digest that it must have is unknown"
                    self.result.left[shard.name] = (
                        f"{reason}; the pack's own files change with it; once all parts have "
                        f"ended: sa1bpack repair {quote(str(self._root))} TARS --shard {shard.name}"
                    )
        return self.result

    def apply(self) -> RepairResult:
        """Apply the plan of a whole repair; the caller has locked the pack.

        A shard with other bytes than the pack's checksums demand is damage to the next check until
        they are rewritten, so a repair that is killed in between is resumed.

        Raises FormatError if a folder with other files is in the place of one of the pack's files.
        """
        if not self._plan:
            remove_old_indexes(self._root, self._damage.manifest.index)
            Unfinished().write(self._root)
            return self.result
        restore_kept_features(self._root, self._damage.options.kept_keys)
        if self._damage.own_files:
            for path in _OWN_FILE_PATHS:
                make_way_for_file(self._root / path)
        with ExitStack() as held:
            rebuilt = self._rebuild(held)
            ledger = self._ledger_to_publish(rebuilt)
            if ledger is None:  # the pack's own files stay as they are
                rebuilt = [shard for shard in rebuilt if shard.same]
            else:
                self._note_intention()
            interrupts.check()
            for shard in rebuilt:
                self._put_in_place(shard)
        if ledger is not None:
            self._publish(ledger, rebuilt)
        if self._is_settled():
            Unfinished().write(self._root)
        return self.result

    # ----------------------------------------------------------------------------- rebuilding

    def _rebuild(self, held: ExitStack) -> list[RebuiltShard]:
        """The replacements of damaged shards, in a working folder, which `held` removes."""
        damage = self._damage
        rebuilds = [action for action in self._plan if isinstance(action, Rebuild)]
        if not rebuilds:
            return []
        numbers = {action.source.name: set(action.shards) for action in rebuilds}
        self._remove_kept_rows(rebuilds)
        shards_dir = held.enter_context(working_folder(self._root, of_part=self._of_part))
        sink = WorkingFolder(self._root, shards_dir, self._sound_ledger(numbers))
        sources = [action.source for action in rebuilds]
        run_options = self._run_options(sources)
        warm_up(damage.options)
        total = sum(source.nbytes for source in sources)
        progress = Progress(total, progress=self._call.progress)
        try:
            failed = pack_sources(sink, sources, run_options, progress, missing_shards=numbers)
        finally:
            progress.close()
        self.result.notes += progress.notes
        rebuilt = []
        for action in rebuilds:
            rebuilt += self._compare_all(action, sink, failed.get(action.source.name))
        for shortfall in damage.manifest.shortfalls:
            if shortfall.source in sink.finished:
                record = sink.ledger.sources[shortfall.source]
                again = {"rejects": record["rejects"], "dropped": record["dropped"]}
                self._records[shortfall.source] = self._records[shortfall.source] | again
        interrupts.check()
        return rebuilt

    def _remove_kept_rows(self, rebuilds: Sequence[Rebuild]) -> None:
        """Remove the damaged rows of what the pack keeps of records, which are made again."""
        names = {name for action in rebuilds for name in action.shards.values()}
        for folder in self._damage.kept_rows:
            if folder.name.rpartition("-")[0] in names:
                with suppress(FileNotFoundError):  # another part has
                    remove_published(folder)

    def _compare_all(
        self, action: Rebuild, sink: WorkingFolder, error: SourceError | None
    ) -> list[RebuiltShard]:
        """The rebuilt shards of a source that can replace the damaged ones.

        Args:
            action: what was to be rebuilt.
            sink: what took the shards that were packed again.
            error: why the source was given up.
        """
        rebuilt = []
        for number, name in action.shards.items():
            key = action.source.name, number
            if name in self._damage.unlisted and key in sink.ledger.empty:
                continue  # it was not missing: it has no samples
            if error is not None:
                self.result.left[name] = str(error)
            elif key not in sink.ledger.shards:
                self.result.left[name] = "the source has no image for it"
            else:
                shard = sink.ledger.shards[key]
                try:
                    rebuilt.append(compare_rebuilt(shard, sink.shards_dir / name, self._damage))
                except FormatError as refusal:
                    self.result.left[name] = str(refusal)
        return rebuilt

    def _run_options(self, sources: list[Source]) -> RunOptions:
        """The options to pack these sources again."""
        records = [self._records[source.name] for source in sources if source.name in self._records]
        # Packs of earlier releases know their sources by the md5 alone.
        md5 = any(record.get("xxh128") is None for record in records)
        return RunOptions(
            workers=self._call.workers,
            md5=md5,
            ignore_space=True,
            annotations=self._call.annotations,
        )

    def _sound_ledger(self, sources: Container[str]) -> Ledger:
        """The ledger of the shards of these sources that the check has found sound.

        It has the records of all sources. Raises FormatError and OSError.
        """
        damage = self._damage
        ledger = Ledger(damage.options)
        ledger.sources = dict(self._records)
        for entry in damage.manifest.shards:
            if entry.source in sources and entry.name not in damage.shards:
                ledger.add_shard(read_shard(damage.folder(entry.name), damage.options.layout))
        return ledger

    # ----------------------------------------------------------------------------- publishing

    def _ledger_to_publish(self, rebuilt: list[RebuiltShard]) -> Ledger | None:
        """The ledger by which the pack's own files are rewritten; None if they are not.

        They must be if they are damaged, or a shard was rebuilt with other bytes. They cannot be if
        a shard that stays is too damaged to be described by them; then all of that is left.
        """
        damage = self._damage
        others = [shard.name for shard in rebuilt if not shard.same]
        if not (damage.own_files or others):
            return None
        ledger = self._sound_ledger({entry.source for entry in damage.manifest.shards})
        try:
            self._enter_damaged_shards(ledger)
        except FormatError as error:
            for name in (OWN_FILES, *others):
                self.result.left[name] = str(error)
            return None
        for shard in rebuilt:
            ledger.add_shard(shard.shard)
        return ledger

    def _enter_damaged_shards(self, ledger: Ledger) -> None:
        """Enter the shards that stay damaged, so that the pack can be published with them.

        Raises FormatError if one is too damaged for that: it would be described wrongly by the
        pack's own files. (A lost manifest is rewritten without it.)
        """
        damage = self._damage
        for name in (damage.shards.keys() - damage.unlisted) & self.result.left.keys():
            checksums = damage.folder(name) / CHECKSUMS_NAME
            expected = damage.digests.get(name)
            try:
                is_vouched_for = expected is not None or damage.lost
                if is_vouched_for and file_digest(checksums) != expected:
                    raise FormatError(f"{checksums} is damaged")
                ledger.add_shard(read_shard(damage.folder(name), damage.options.layout))
            except (FormatError, OSError) as error:
                if not damage.lost:
                    raise FormatError(f"cannot be rewritten: {name} is damaged: {error}") from error

    def _note_intention(self) -> None:
        """Note for the next repair what must be restored, before it is changed."""
        damage = self._damage
        if damage.lost:
            Unfinished(lost=True).write(self._root)
        elif damage.manifest.says_complete:
            Unfinished(complete=True).write(self._root)
            if damage.unlisted:  # a complete pack gets no shard
                incomplete = msgspec.structs.replace(damage.manifest, says_complete=False)
                write_manifest(self._root, incomplete)

    def _put_in_place(self, rebuilt: RebuiltShard) -> None:
        """Give a rebuilt shard the name of the damaged one."""
        put_in_place(rebuilt.folder, self._damage.folder(rebuilt.name))
        self.result.repaired.append(rebuilt.name)
        if rebuilt.note:
            self._note(rebuilt.note)

    def _publish(self, ledger: Ledger, rebuilt: list[RebuiltShard]) -> None:
        """Rewrite the pack's own files."""
        publisher = FolderPublisher(self._root, ledger, rebuild_index=self._damage.own_files)
        if self._damage.lost:
            self._restore_manifest(publisher)
        else:
            if not all(shard.same for shard in rebuilt):
                # For a moment: a complete manifest that does not match could not be believed.
                publisher.publish()
            manifest = publisher.publish(complete=self._damage.manifest.says_complete)
            self.result.complete = manifest.complete
            for shortfall in manifest.shortfalls:
                name = shortfall.source or OWN_FILES
                self.result.left[name] = f"{shortfall}; {lost_remedy(self._root)}"
        self.result.rewritten = True

    def _restore_manifest(self, publisher: FolderPublisher) -> None:
        """Rewrite a lost manifest; the records of sources are restored by reading them again."""
        result = self.result
        spoilt = {self._damage.shards[name][0] for name in result.left}
        sources = [source for name, source in self._sources.items() if name not in spoilt]
        run_options = self._run_options(sources)
        work = find_work(publisher.ledger, sources, run_options.records_md5)
        packed = run_work(publisher, run_options, work, [], self._call.progress)
        result.notes += packed.notes
        for finding in publisher.ledger.findings(self._root):
            self._note(finding)
        for name, error in packed.failed.items():
            result.left[name] = str(error)
        finished = publisher.ledger.sources.keys()
        known = {source for source, _ in publisher.ledger.shards} | spoilt
        result.complete = not result.left and known <= finished
        if not result.complete:
            publisher.publish()
        for name in sorted(known - finished - spoilt - packed.failed.keys()):
            self._note(f"the lost manifest's record of {name} is missing: pack again with all tars")

    def _is_settled(self) -> bool:
        """True if nothing is left of what `_note_intention` notes.

        A lost manifest that lacks what a damaged shard would tell is not restored yet, and a pack
        that lacks pairs is not complete again.
        """
        damage = self._damage
        if (damage.lost or damage.unlisted) and self.result.left:
            return False
        return self.result.rewritten or not damage.own_files

    def _note(self, text: str) -> None:
        self.result.notes.append(text)
        report(text)
