"""`repair`: replaces what is damaged in a pack, and nothing else.

Damaged shards are rebuilt from the tars, by the same path and options that packed them; the pack's
own files are rewritten from the shards. Sound shards are neither decoded again nor touched. At any
moment the pack opens as it did before: whatever is replaced changes in one step.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from sa1bpack import interrupts
from sa1bpack.arguments import ALL, Share, checks_options, local_path, part_of_job, patterns_of
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.files import put_in_place, restore_set_aside
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, without_manifest
from sa1bpack.format.problems import Problem
from sa1bpack.format.publish import REJECTS_NAME, remove_old_indexes, remove_stale
from sa1bpack.format.zarr_metadata import METADATA_NAME
from sa1bpack.packing.pack_state import PackState, lock_folder, read_shard
from sa1bpack.packing.part_notes import alone, remove_empty_notes, working_folder
from sa1bpack.packing.progress import report
from sa1bpack.packing.repair.damage import (
    Damage,
    Unfinished,
    find_damage,
    note_path,
    read_note,
    remove_note,
    write_note,
)
from sa1bpack.packing.repair.rebuild import Replacement, Wanted, sound_shards
from sa1bpack.packing.request import Request, checked_workers
from sa1bpack.packing.run import pack_into
from sa1bpack.progress import byte_bar
from sa1bpack.source.find import Source, find_sources
from sa1bpack.source.lists import read_links

# What `RepairResult.left` calls the manifest, the index and the other files at the top of a pack.
OWN_FILES = "the pack's own files"


@dataclass
class RepairResult:
    """What was damaged, and the outcome.

    root
        The pack's folder.
    problems
        What the check found before anything was repaired.
    repaired
        Names of the shards that were rebuilt; after a dry run, those that would be.
    rewritten
        Whether the pack's own files (manifest, index, checksums, ...) were rewritten, or would be.
    left
        What is still damaged → why, and the remedy. Keys are names of shards and sources, and
        OWN_FILES.
    extra
        Problems that are not damage: files that are not part of the pack. They are never touched.
    notes
        What was reported to the user.
    complete
        The pack holds every source to its end.
    dry_run
        Nothing was written.
    seconds
        Wall time.

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
        """Whether no problem is left (after a dry run: would be)."""
        return not (self.left or self.extra)


@checks_options
def repair(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] = (),
    *,
    shards: Iterable[str] = (),
    quick: bool = False,
    part: tuple[int, int] | None = None,
    links: str | Path | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> RepairResult:
    """Check a pack, and rebuild what is damaged or missing.

    pack
        Its folder.
    sources
        The tars and folders that it was packed from; paths, glob patterns or URLs. Those without
        damage are not read, so all may be given. Without any, only the pack's own files are
        repaired.
    links
        A list of tars at URLs, as for `pack`, in addition to `sources`.
    shards
        Names of the shards to read in full, if a check has already named the damaged ones; the
        others get a quick check. Default: all are read.
    quick
        A quick check of all shards but `shards`, as in `verify`.
    part
        (K, N): check and rebuild the shards of every N-th source by name only, from the K-th on.
        Parts may run at the same time, on several machines, again, and beside others of the same
        shards; `pack`, `finalize`, `merge` and a repair without a part are kept off meanwhile. A
        part puts a shard in place if it has the bytes that were packed. What concerns the whole
        pack is in `left`, with the call that repairs it: its own files, which the first part
        checks, and shards that now come out with other bytes.
    workers
        Worker processes; 1 does all the work in this process. Default: the available processors.
    dry_run
        Check, and report what would be done; write nothing.
    progress
        Show progress on stderr. Default: if it is a terminal.

    A source must be the file that the pack was made from: its size, its XXH3-128 (its md5 if the
    pack records no other) and its pairs are compared, and nothing is taken from another one. What
    cannot be repaired is in the result's `left`, and stays as it was. If it fails or is killed at
    any moment, the pack opens as it did before, and the same call resumes the repair.

    If manifest.json is lost, the options come from the shards; the records of sources are restored
    by reading them again, and sources that are given but not in the pack are added.

    Raises OptionError, SourceError (no source found under a name), OutputLocked while another
    process packs into the folder, NotAPack if it is not a pack, FormatError if its manifest is lost
    and no shard records the options, or if a folder has the name of one of its own files,
    VersionError for a pack of another version (also a newer minor one, whose additions would be
    lost), PackError (a worker that cannot start), MissingPackage if a shard must be rebuilt without
    PIL, and OSError if the disk fails, or if one of the pack's own files may not be read.

    Examples:
        >>> sa1bpack.repair("packed", "tests/samples/sa_000000.tar", workers=1, progress=False).ok
        True
    """
    started = time.perf_counter()
    root = local_path("pack", pack)
    workers = checked_workers(workers)
    share = None if part is None else part_of_job(part)
    if share is not None and (names := list(shards)):
        raise OptionError(f"shards is {names}, but a part has those of its sources: choose one")
    listed = [] if links is None else read_links(local_path("links", links))
    found = find_sources(patterns_of("sources", sources), links=listed)
    if not ((root / MANIFEST_NAME).exists() or (root / SHARDS_NAME).is_dir()):
        raise without_manifest(root)
    _refuse_misplaced(root)
    with ExitStack() as held:
        if not dry_run:
            lock = lock_folder(root, shared=share is not None)
            held.callback(os.close, lock)
            with alone(root) if share is not None else nullcontext():
                for folder in (root, root / SHARDS_NAME)[share is not None :]:
                    restore_set_aside(folder)
        unfinished = read_note(root)
        if share is not None and unfinished != Unfinished():
            raise FormatError(
                f"{root / MANIFEST_NAME}: an earlier repair did not finish rewriting it; "
                f"{_first(root)}"
            )
        with byte_bar(progress) as advance:
            damage = find_damage(
                root, frozenset(shards), advance, unfinished.lost, quick, share or ALL
            )
        if share is not None and damage.lost:
            raise FormatError(f"{damage.problems[0].what}; {_first(root)}")
        if unfinished.complete and not damage.lost:
            damage = damage.of_complete_pack()
        run = _Repair(root, damage, found, workers, progress)
        if dry_run:
            run.forecast(share)
        elif share is not None:
            run.mend_part()
        else:
            remove_stale(root, keep=note_path(root))
            held.callback(remove_empty_notes, root)
            run.mend(lock)
    run.result.dry_run = dry_run
    run.result.seconds = time.perf_counter() - started
    return run.result


def _first(root: Path) -> str:
    return f"no part can: first sa1bpack repair {quote(str(root))} TARS --quick"


def _refuse_misplaced(root: Path) -> None:
    """Raise FormatError for a folder with the name of a file, or the other way round.

    No rename puts one over the other, and what is foreign is the user's to remove.
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
        show_progress: bool | None,
    ):
        self._root = root
        self._damage = damage
        self._sources = sources
        self._workers = workers
        self._show_progress = show_progress
        self.result = RepairResult(
            root, damage.problems, extra=damage.extra, complete=damage.manifest.complete
        )

    def forecast(self, share: Share | None) -> None:
        """Report what `mend` would try, or a part."""
        for parts in self._wanted().parts.values():
            self.result.repaired += parts.values()
        if share is None:
            self.result.rewritten = self._damage.own_files
        else:
            self._leave_own_files()

    def mend_part(self) -> None:
        """Put in place what has the bytes that the pack demands; other parts may do so, too."""
        root = self._root
        with self._rebuilt() as made:
            for replaced in made:
                name = replaced.shard.entry.name
                if replaced.same:
                    with alone(root):
                        put_in_place(replaced.folder, root / SHARDS_NAME / name)
                    self.result.repaired.append(name)
                else:
                    self.result.left[name] = (
                        f"{replaced.note or 'the digest that it must have is unknown'}; the pack's "
                        "own files change with it; once all parts have ended: sa1bpack repair "
                        f"{quote(str(root))} TARS --shard {name}"
                    )
        self._leave_own_files()

    def _leave_own_files(self) -> None:
        if self._damage.own_files:
            self.result.left[OWN_FILES] = (
                "no part rewrites them; once all parts have ended: sa1bpack repair "
                f"{quote(str(self._root))} TARS --quick"
            )

    def mend(self, lock: int) -> None:
        """Repair what can be repaired; the caller holds the pack's lock."""
        damage = self._damage
        if not (damage.shards or damage.own_files):
            remove_old_indexes(self._root, damage.manifest.index)
            remove_note(self._root)
            return
        self._state = PackState(self._root, damage.options, lock)
        self._state.sources = damage.records()
        self._state.rebuild_index = damage.own_files
        every = {entry.source for entry in damage.manifest.shards}
        self._state.shards = sound_shards(self._root, damage, every)
        with self._rebuilt() as made:
            self._finish(made)

    def _wanted(self) -> Wanted:
        """What is to be rebuilt; what cannot be is left."""
        wanted = Wanted.of(self._damage, self._sources)
        self._sources = list(wanted.sources.values())
        self.result.left = wanted.left
        return wanted

    @contextmanager
    def _rebuilt(self) -> Iterator[list[Replacement]]:
        """What can replace damaged shards, in a working folder that goes with the block."""
        wanted = self._wanted()
        if not wanted.parts:
            yield []
            return
        with working_folder(self._root) as folder:
            made, notes = wanted.rebuild(
                self._root, self._damage, folder, self._workers, self._show_progress
            )
            self.result.notes += notes
            interrupts.check()
            yield made

    # Putting it in place

    def _finish(self, made: list[Replacement]) -> None:
        """Put shards in place, and rewrite the pack's own files if necessary.

        A shard with other bytes than the pack's checksums demand is damage to the next check until
        they are rewritten, so a repair that is killed in between is resumed.
        """
        others = [replaced for replaced in made if not replaced.same]
        rewrite = self._damage.own_files or bool(others)
        if rewrite and not self._enter_damaged_shards(others):
            made, rewrite = [replaced for replaced in made if replaced.same], False
        if self._damage.lost:
            write_note(self._root, Unfinished(lost=True))
        elif rewrite and self._damage.manifest.complete:
            write_note(self._root, Unfinished(complete=True))
        interrupts.check()
        for replaced in made:
            self._put_in_place(replaced)
        if self._damage.lost:
            self._rewrite_lost_manifest()
        elif rewrite:
            self._publish(manifest_changes=bool(others))
        # A lost manifest that lacks what a damaged shard would tell is not restored yet.
        restored = not (self._damage.lost and self.result.left)
        if restored and (rewrite or not self._damage.own_files):
            remove_note(self._root)

    def _put_in_place(self, made: Replacement) -> None:
        name = made.shard.entry.name
        put_in_place(made.folder, self._state.shards_dir / name)
        self._state.add_shard(made.shard)
        self.result.repaired.append(name)
        if made.note:
            self._note(made.note)

    def _enter_damaged_shards(self, others: list[Replacement]) -> bool:
        """Enter the shards that stay damaged, so that the pack can be published with them.

        If one is too damaged for that, returns False and leaves what depends on it. (A lost
        manifest is rewritten without it.)
        """
        for name in self._damage.shards:
            if name not in self.result.left:
                continue
            try:
                self._check_digest(name)
                self._state.add_shard(
                    read_shard(self._root / SHARDS_NAME / name, self._damage.options.layout)
                )
            except (FormatError, OSError) as error:
                if self._damage.lost:
                    continue
                reason = f"cannot be rewritten as long as {name} is damaged: {error}"
                self.result.left[OWN_FILES] = reason
                self.result.left.update({other.shard.entry.name: reason for other in others})
                return False
        return True

    def _check_digest(self, name: str) -> None:
        """Raise FormatError if the checksum file of a shard is damaged: it must not be listed."""
        path = self._root / SHARDS_NAME / name / CHECKSUMS_NAME
        expected = self._damage.digests.get(name)
        if expected is None and self._damage.lost:  # nothing vouches for it
            raise FormatError(f"{path}: its digest is unknown")
        if expected is not None and file_digest(path) != expected:
            raise FormatError(f"{path} is damaged")

    def _rewrite_lost_manifest(self) -> None:
        """Rewrite a lost manifest; the records of sources are restored by reading them again."""
        spoilt = {self._damage.shards[name][0] for name in self.result.left}
        sources = [source for source in self._sources if source.name not in spoilt]
        request = Request(
            sources, self._root, self._damage.options, self._workers, ignore_space=True
        )
        packed = pack_into(self._state, request, self._show_progress)
        self.result.notes += packed.notes
        self.result.left.update({name: str(error) for name, error in packed.failed.items()})
        known = {source for source, _ in self._state.shards} | spoilt
        self.result.complete = not self.result.left and known <= self._state.sources.keys()
        if not self.result.complete:
            self._state.publish(complete=False)
        for name in sorted(known - self._state.sources.keys() - spoilt - packed.failed.keys()):
            self._note(
                f"the lost manifest's record of {name} is missing: pack again, with all tars, to "
                "restore it from them; nothing is decoded again"
            )
        self.result.rewritten = True

    def _note(self, text: str) -> None:
        self.result.notes.append(text)
        report(text)

    def _publish(self, manifest_changes: bool) -> None:
        """Rewrite the pack's own files.

        If the manifest changes, it says for a moment that the pack is not complete, as the packer
        does it: a complete one that does not match its checksums could not be believed.
        """
        if manifest_changes:
            self._state.publish(complete=False)
        self._state.publish(complete=self._damage.manifest.complete)
        self.result.rewritten = True
