"""`repair`: replaces what is damaged in a pack, and nothing else.

Damaged shards are rebuilt from the tars in a working folder, by the same path and options that
packed them, and compared with all that is known of the old ones; the pack's own files are rewritten
from the shards. Sound shards are neither decoded again nor touched. At any moment the pack opens as
it did before: whatever is replaced changes in one step.
"""

import time
from collections.abc import Container, Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import msgspec

from sa1bpack import interrupts
from sa1bpack.arguments import items_of, whole_number
from sa1bpack.environment import available_cpus
from sa1bpack.errors import FormatError, OptionError, PackError, SourceError
from sa1bpack.format.files import CHECKSUMS_NAME, file_digest, put_in_place, restore_set_aside
from sa1bpack.format.index import remove_old_indexes, remove_stale
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    lost_remedy,
    without_manifest,
    write_manifest,
)
from sa1bpack.format.problems import Check, PackFiles, Problem
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.keywords import checks_options
from sa1bpack.packing.damage import Damage, Unfinished, note_path, recorded_attributes
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions, Request
from sa1bpack.packing.pack_folder import (
    alone_among_parts,
    check_locks,
    locked_folder,
    remove_unused_parts_folder,
    working_folder,
)
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.publishers import FolderPublisher, removal_command
from sa1bpack.packing.records import PublishedShard, ShardKey, SourceRead, read_shard
from sa1bpack.packing.run import pack_into, say_findings, versions_in_force, versions_text
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.source_packer import PackRun, pack_sources
from sa1bpack.parts import ALL, Share, part_of_job
from sa1bpack.paths import local_path, patterns_of
from sa1bpack.progress import ProgressOption, report, reporting
from sa1bpack.source.find import Source, find_sources, look_at, read_links

# What `RepairResult.left` calls the manifest, the index and the other files at the top of a pack.
OWN_FILES = "the pack's own files"


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

    @property
    def ok(self) -> bool:
        """True if no problem is left (after a dry run: would be)."""
        return not (self.left or self.extra)


@checks_options
def repair(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] | None = (),
    *,
    shards: Iterable[str] | None = (),
    quick: bool = False,
    part: tuple[int, int] | None = None,
    links: str | Path | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> RepairResult:
    """Check a pack, and rebuild what is damaged or missing.

    A source must be the file that the pack was made from: its size, its XXH3-128 (its md5 if the
    pack records no other) and its pairs are compared, and nothing is taken from another one. What
    cannot be repaired is in the result's `left`, and stays as it was. If it fails or is killed at
    any moment, the pack opens as it did before, and the same call resumes the repair.

    If manifest.json is lost, the options come from the shards; the records of sources are restored
    by reading them again, and sources that are given but not in the pack are added.

    Args:
        pack: folder of the pack.
        sources: the tars and folders that it was packed from; paths, glob patterns or URLs. Those
            without damage are not read, so all may be given. Without any, only the pack's own files
            are repaired.
        shards: names of the shards to read in full, if a check has already named the damaged ones;
            the others get a quick check. Default: all are read.
        quick: check all shards but `shards` quickly, as in `verify`.
        part: (K, N): check and rebuild the shards of every N-th source by name only, from the K-th
            on. Parts may run at the same time, on several machines, again, and beside others of the
            same shards; `pack`, `finalize`, `merge` and a repair without a part are kept off
            meanwhile. A part puts a shard in place if it has the bytes that were packed. What
            concerns the whole pack is in `left`, with the call that repairs it: its own files,
            which the first part checks, and shards that now come out with other bytes.
        links: a list of tars at URLs, as for `pack`, in addition to `sources`.
        workers: worker processes; 1 does all the work in this process. Default: the available
            processors.
        dry_run: check, and report what would be done; write nothing.
        progress: show bars on stderr; or a function that is called as function(bytes done, bytes in
            all), first of the check, then of the sources that are packed again. Default: bars if
            stderr is a terminal.

    Raises:
        OptionError: a value that cannot be used.
        SourceError: no source was found under a name.
        OutputLocked: another process packs into the folder.
        NotAPack: the folder is not a pack.
        FormatError: the manifest is lost, and no shard records the options; or it is lost, and
            there is a `part`.
        VersionError: the pack has another version, or a newer minor one, whose additions would be
            lost.
        PackError: a worker cannot start.
        MissingPackage: a shard must be rebuilt, and PIL is not installed.
        OSError: the disk fails, or one of the pack's own files may not be read.

    Examples:
        >>> sa1bpack.repair("packed", "tests/samples/sa_000000.tar", workers=1, progress=False).ok
        True
    """
    started = time.perf_counter()
    root = local_path("pack", pack)
    workers = available_cpus() if workers is None else whole_number("workers", workers, 1)
    share = None if part is None else part_of_job(part)
    shards = list(items_of(shards))
    if share is not None and shards:
        raise OptionError(f"shards is {shards}, but a part has those of its sources: choose one")
    listed = [] if links is None else read_links(local_path("links", links))
    found = find_sources(patterns_of("sources", items_of(sources)), links=listed, on_wait=report)
    if not ((root / MANIFEST_NAME).exists() or (root / SHARDS_NAME).is_dir()):
        raise without_manifest(root)
    with ExitStack() as held:
        if dry_run:
            check_locks(root, of_part=share is not None)
        else:
            held.enter_context(locked_folder(root, of_part=share is not None))
            with alone_among_parts(root) if share is not None else nullcontext():
                for folder in (root, root / SHARDS_NAME)[share is not None :]:
                    restore_set_aside(folder)
        unfinished = Unfinished.read(root)
        if share is not None and unfinished != Unfinished():
            raise FormatError(
                f"{root / MANIFEST_NAME}: an earlier repair did not finish it; first {_whole(root)}"
            )
        with reporting(progress, "byte") as advance:
            damage = Damage(root, unfinished, frozenset(shards), advance, quick, share or ALL)
        if share is not None and damage.lost:
            raise FormatError(f"{damage.problems[0].what}; first {_whole(root)}")
        run = _Repair(damage, found, workers, progress, share)
        if dry_run:
            run.result.repaired = [name for names in run.wanted.values() for name in names.values()]
            run.result.rewritten = share is None and damage.own_files
        else:
            if share is None:
                remove_stale(root, keep=note_path(root))
                held.callback(remove_unused_parts_folder, root)
            run.swap_in(held)
    run.result.dry_run = dry_run
    run.result.seconds = time.perf_counter() - started
    return run.result


def _whole(root: Path) -> str:
    return f"sa1bpack repair {quote(str(root))} TARS --quick"


class _Rebuilding:
    """Takes the shards that are made again, in a working folder; nothing is published.

    Attributes:
        ledger: the sound shards of the pack, and those that were made again.
        finished: names of the sources of which every shard is there.
    """

    def __init__(self, root: Path, options: PackOptions, shards_dir: Path):
        self.root = root
        self.shards_dir = shards_dir
        self.ledger = Ledger(options)
        self.finished: set[str] = set()

    def add_shard(self, shard: PublishedShard) -> None:
        """See `ShardSink`."""
        self.ledger.add_shard(shard)

    def finish_source(self, read: SourceRead, at_once: bool) -> None:
        """Enter the record of a source of which every shard is there."""
        with suppress(PackError):  # only some of its shards are damaged, and were packed again
            self.ledger.finish_source(read)
            self.finished.add(read.name)

    def withdraw(self, source: str) -> int:
        """See `ShardSink`: nothing of a source that cannot be used is in the pack."""
        return 0

    def how_to_remove(self, names: Sequence[str]) -> str:
        """See `ShardSink`."""
        return removal_command(self.root, names)


@dataclass(frozen=True)
class _Rebuilt:
    """A rebuilt shard that can replace the damaged one of its name.

    Attributes:
        folder: path of the rebuilt shard, in the working folder.
        same: the shard has the bytes that the pack's checksums demand.
        note: message for the user, or "".
    """

    shard: PublishedShard
    folder: Path
    same: bool
    note: str


def _compared(shard: PublishedShard, working: Path, damage: Damage) -> _Rebuilt:
    """Read a rebuilt shard back, and compare it with all that is known of the old one.

    Raises FormatError if it cannot replace that.
    """
    name = shard.entry.name
    now = shard.attributes
    folder = working / shard.entry.name
    check = Check(PackFiles(working))
    check_shard(check, folder, shard.entry, damage.manifest.layout, quick=False)
    if check.problems:
        raise FormatError(f"the rebuilt shard is damaged, too: {check.problems[0].what}")
    was = recorded_attributes(damage.folder(name)) or {}
    if any(was.get(key) != now[key] for key in ("source", "part")):
        was = {}  # damaged, or another shard has its name
    if was and was["pairs_digest"] != now["pairs_digest"]:
        raise FormatError("the source holds other images than those it was packed from")
    found = file_digest(folder / CHECKSUMS_NAME)
    expected = damage.digests.get(name)
    note = ""
    if expected not in (None, found):
        note = f"{name}: rebuilt with other bytes than before"
        if was and was["packed_by"] != now["packed_by"]:
            by = versions_text(now["packed_by"])
            before = versions_text(was["packed_by"])
            note += f", by {by}; it was packed by {before}"
    return _Rebuilt(shard, folder, found == expected, note)


class _Repair:
    """One repair of a pack that has been checked."""

    def __init__(
        self,
        damage: Damage,
        sources: list[Source],
        workers: int,
        progress: ProgressOption,
        share: Share | None,
    ):
        """Choose what to rebuild; what cannot be is in `result.left`.

        Of URLs, only those of the sources that are needed are asked.
        """
        self._root = damage.root
        self._damage = damage
        self._workers = workers
        self._progress = progress
        self._share = share
        self._records = {record["name"]: record for record in damage.manifest.sources}
        self.wanted: dict[str, dict[int, str]] = {}  # source → number within it → shard's name
        self._sources = {source.name: source for source in sources}
        self.result = RepairResult(
            damage.root, damage.problems, extra=damage.extra, complete=damage.manifest.complete
        )
        needed = {source for source, _ in damage.shards.values()} & self._sources.keys()
        found, unreadable = look_at([self._sources[source] for source in needed], on_wait=report)
        self._sources |= {source.name: source for source in found}
        for name, (source, number) in damage.shards.items():
            if reason := self._obstacle(name, source, unreadable):
                self.result.left[name] = reason
            else:
                self.wanted.setdefault(source, {})[number] = name
        if share is not None and damage.own_files:
            call = _whole(self._root)
            self.result.left[OWN_FILES] = f"no part rewrites them; once all have ended: {call}"

    def _obstacle(self, name: str, source: str, unreadable: dict[str, SourceError]) -> str | None:
        """The obstacle to rebuilding a damaged shard, as far as known before its source is read."""
        for problem in self._damage.problems:
            if problem.denied and problem.shard == name:
                return f"{problem.what}; check its owner and mode (ls -ld): it need not be damaged"
        for problem in self._damage.extra:
            if problem.shard == name:
                return f"its folder holds foreign files, move them away first: {problem.what}"
        if (given := self._sources.get(source)) is None:
            return f"the source {source} is needed, but was not given"
        if source in unreadable:
            return str(unreadable[source])
        nbytes = self._records[source]["nbytes"] if source in self._records else given.nbytes
        if nbytes != given.nbytes:
            return f"{given.path} has {given.nbytes} bytes, not {nbytes}; restore the original file"
        return None

    def swap_in(self, held: ExitStack) -> None:
        """Repair what can be repaired; the caller holds the pack's lock, for a part with others.

        A shard with other bytes than the pack's checksums demand is damage to the next check until
        they are rewritten, so a repair that is killed in between is resumed. No part rewrites them:
        it puts in place what has the bytes that the pack demands.

        Args:
            held: stack that removes the working folder when it is closed.
        """
        damage = self._damage
        whole = self._share is None
        if whole and not (damage.shards or damage.own_files):
            remove_old_indexes(self._root, damage.manifest.index)
            Unfinished().write(self._root)
            return
        rebuilt = self._rebuilt(held)
        ledger = Ledger(damage.options)
        publisher = FolderPublisher(self._root, ledger, rebuild_index=damage.own_files)
        rewrite = whole and self._can_rewrite(ledger, rebuilt)
        self._note_intention(rewrite)
        interrupts.check()
        for shard in rebuilt:
            if shard.same or rewrite:
                self._put_in_place(ledger, shard)
            elif not whole:
                self._leave_to_whole_repair(shard)
        if damage.lost:
            self._rewrite_lost_manifest(publisher)
        elif rewrite:
            self._rewrite_own_files(publisher, rebuilt)
        self.result.rewritten = rewrite
        # A lost manifest that lacks what a damaged shard would tell is not restored yet, and a pack
        # that lacks pairs is not complete again.
        restored = not ((damage.lost or damage.unlisted) and self.result.left)
        if whole and restored and (rewrite or not damage.own_files):
            Unfinished().write(self._root)

    def _can_rewrite(self, ledger: Ledger, rebuilt: list[_Rebuilt]) -> bool:
        """True if the pack's own files must be rewritten, and can be.

        Then all shards but the rebuilt ones are entered into the ledger. If they cannot be, what
        needs them is left.
        """
        damage = self._damage
        others = [shard.shard.entry.name for shard in rebuilt if not shard.same]
        if not (damage.own_files or others):
            return False
        ledger.sources = self._records
        ledger.shards = self._sound_shards({entry.source for entry in damage.manifest.shards})
        try:
            self._enter_damaged_shards(ledger)
        except FormatError as error:
            for name in (OWN_FILES, *others):
                self.result.left[name] = str(error)
            return False
        return True

    def _note_intention(self, rewrite: bool) -> None:
        """Note for the next repair what must be restored, before it is changed."""
        damage = self._damage
        if damage.lost:
            Unfinished(lost=True).write(self._root)
        elif rewrite and damage.manifest.says_complete:
            Unfinished(complete=True).write(self._root)
            if damage.unlisted:  # a complete pack gets no shard
                incomplete = msgspec.structs.replace(damage.manifest, says_complete=False)
                write_manifest(self._root, incomplete)

    def _put_in_place(self, ledger: Ledger, rebuilt: _Rebuilt) -> None:
        """Give a rebuilt shard the name of the damaged one."""
        name = rebuilt.shard.entry.name
        with nullcontext() if self._share is None else alone_among_parts(self._root):
            put_in_place(rebuilt.folder, self._damage.folder(name))
        ledger.add_shard(rebuilt.shard)
        self.result.repaired.append(name)
        if rebuilt.note:
            self._note(rebuilt.note)

    def _leave_to_whole_repair(self, rebuilt: _Rebuilt) -> None:
        """Say that no part puts this shard in place, as the pack's own files change with it."""
        name = rebuilt.shard.entry.name
        self.result.left[name] = (
            f"{rebuilt.note or 'the digest that it must have is unknown'}; the pack's own files "
            "change with it; once all parts have ended: sa1bpack repair "
            f"{quote(str(self._root))} TARS --shard {name}"
        )

    def _rewrite_own_files(self, publisher: FolderPublisher, rebuilt: list[_Rebuilt]) -> None:
        """Publish the pack again. If pairs of a source are missing still, that is left."""
        if not all(shard.same for shard in rebuilt):
            # For a moment: a complete manifest that does not match could not be believed.
            publisher.publish()
        published = publisher.publish(complete=self._damage.manifest.says_complete)
        self.result.complete = published.complete
        for shortfall in published.shortfalls:
            name = shortfall.source or OWN_FILES
            self.result.left[name] = f"{shortfall}; {lost_remedy(self._root)}"

    def _sound_shards(self, sources: Container[str]) -> dict[ShardKey, PublishedShard]:
        """The shards of sources that the check has found sound. Raises FormatError and OSError."""
        damage = self._damage
        return {
            (entry.source, entry.part): read_shard(damage.folder(entry.name), damage.options.layout)
            for entry in damage.manifest.shards
            if entry.source in sources and entry.name not in damage.shards
        }

    def _request(self, names: Iterable[str]) -> Request:
        """The request to pack the sources of these names again."""
        recorded = [self._records[name] for name in names if name in self._records]
        return Request(
            sources=[self._sources[name] for name in names],
            output=self._root,
            options=self._damage.options,
            workers=self._workers,
            # Packs of earlier releases know their sources by the md5 alone.
            md5=any(each.get("xxh128") is None for each in recorded),
            ignore_space=True,
        )

    def _rebuilt(self, held: ExitStack) -> list[_Rebuilt]:
        """Replacements of damaged shards, in a working folder; shards without one are left."""
        if not self.wanted:
            return []
        damage = self._damage
        packed_by = versions_in_force()
        request = self._request(self.wanted)
        shards_dir = held.enter_context(working_folder(self._root, of_part=self._share is not None))
        sink = _Rebuilding(self._root, damage.options, shards_dir)
        sink.ledger.shards = self._sound_shards(self.wanted)
        sink.ledger.sources = dict(self._records)
        warm_up(damage.options)
        total = sum(source.nbytes for source in request.sources)
        progress = Progress(total, progress=self._progress)
        numbers = {source: set(wanted) for source, wanted in self.wanted.items()}
        try:
            run = PackRun(sink, request, progress, packed_by)
            failed = pack_sources(run, request.sources, numbers)
        finally:
            progress.close()
        self.result.notes += progress.notes
        usable = self._compare_rebuilt(sink, failed)
        for shortfall in damage.manifest.shortfalls:
            if shortfall.source in sink.finished:
                record = sink.ledger.sources[shortfall.source]
                again = {"rejects": record["rejects"], "dropped": record["dropped"]}
                before = self._records[shortfall.source]
                self._records[shortfall.source] = before | again
        interrupts.check()
        return usable

    def _compare_rebuilt(self, sink: _Rebuilding, failed: dict[str, SourceError]) -> list[_Rebuilt]:
        """The rebuilt shards that can replace the damaged ones; why the others cannot is left.

        Args:
            sink: what took the shards that were packed again.
            failed: name of each source that could not be packed → why.
        """
        damage = self._damage
        usable = []
        for source, names in self.wanted.items():
            for number, name in names.items():
                if name in damage.unlisted and (source, number) in sink.ledger.empty:
                    continue  # it was not missing: it has no samples
                try:
                    if source in failed:
                        raise failed[source]
                    if (source, number) not in sink.ledger.shards:
                        raise SourceError("the source has no image for it")
                    usable.append(
                        _compared(sink.ledger.shards[source, number], sink.shards_dir, damage)
                    )
                except (SourceError, FormatError) as error:
                    self.result.left[name] = str(error)
        return usable

    def _enter_damaged_shards(self, ledger: Ledger) -> None:
        """Enter the shards that stay damaged, so that the pack can be published with them.

        Raises FormatError if one is too damaged for that: it would be described wrongly by the
        pack's own files. (A lost manifest is rewritten without it.)
        """
        damage = self._damage
        for name in (damage.shards.keys() - damage.unlisted) & self.result.left.keys():
            folder = damage.folder(name)
            expected = damage.digests.get(name)
            try:
                vouched = expected is not None or damage.lost
                if vouched and file_digest(folder / CHECKSUMS_NAME) != expected:
                    raise FormatError(f"{folder / CHECKSUMS_NAME} is damaged")
                ledger.add_shard(read_shard(folder, damage.options.layout))
            except (FormatError, OSError) as error:
                if not damage.lost:
                    raise FormatError(f"cannot be rewritten: {name} is damaged: {error}") from error

    def _rewrite_lost_manifest(self, publisher: FolderPublisher) -> None:
        """Rewrite a lost manifest; the records of sources are restored by reading them again."""
        spoilt = {self._damage.shards[name][0] for name in self.result.left}
        request = self._request([name for name in self._sources if name not in spoilt])
        ledger = publisher.ledger
        packed = pack_into(publisher, request, self._progress)
        say_findings(publisher, packed.notes)
        self.result.notes += packed.notes
        self.result.left.update({name: str(error) for name, error in packed.failed.items()})
        known = {source for source, _ in ledger.shards} | spoilt
        self.result.complete = not self.result.left and known <= ledger.sources.keys()
        if not self.result.complete:
            publisher.publish()
        for name in sorted(known - ledger.sources.keys() - spoilt - packed.failed.keys()):
            self._note(f"the lost manifest's record of {name} is missing: pack again with all tars")

    def _note(self, text: str) -> None:
        self.result.notes.append(text)
        report(text)
