"""Rebuilds damaged shards from their sources, in a working folder, and checks what it made."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.manifest import DIGEST_NAMES, SHARDS_NAME
from sa1bpack.format.problems import Findings
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.packing.execution.inline import pack_inline
from sa1bpack.packing.execution.processes import pack_with_processes
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.repair.damage import Damage, recorded_attributes, recorded_samples
from sa1bpack.packing.run import versions_in_force
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.shard_builder import PublishedShard
from sa1bpack.packing.source_packer import SourcePacker
from sa1bpack.packing.writer_threads import WriterThreads
from sa1bpack.source.find import Source, look_at


class RebuiltShards:
    """Takes the place of PackState for a SourcePacker: shards go to a working folder.

    shards
        (source, part) → the shard in the working folder.
    records
        Name of a source that was read to its end → what its record in the manifest would be.
    """

    def __init__(
        self,
        root: Path,
        options: PackOptions,
        parts_of: Callable[[str], dict[int, PublishedShard]],
        folder: Path,
    ):
        """
        root, options
            Of the pack.
        parts_of
            Name of a source → its sound shards, by part.
        folder
            The working folder, which exists.
        """
        self.root = root
        self.options = options
        self.parts_of = parts_of
        self.shards: dict[tuple[str, int], PublishedShard] = {}
        self.records: dict[str, dict] = {}
        self.shards_dir = folder

    def add_shard(self, shard: PublishedShard) -> None:
        """A shard is complete."""
        self.shards[shard.entry.source, shard.entry.part] = shard

    def finish_source(self, record: dict, at_once: bool = False) -> None:
        """A source was read to its end."""
        self.records[record["name"]] = record

    def withdraw(self, source: str) -> int:
        """A source is not usable: drop what was rebuilt from it. The pack stays as it is."""
        for key in [key for key in self.shards if key[0] == source]:
            del self.shards[key]
        return 0


class PartRebuilder(SourcePacker):
    """Rebuilds some parts of a source and skips all others."""

    def __init__(
        self,
        source: Source,
        rebuilt: RebuiltShards,
        writers: WriterThreads,
        packed_by: dict,
        parts: set[int],
        record: dict | None,
    ):
        super().__init__(source, rebuilt, writers, packed_by, md5=_identity_of(record) == "md5")
        self._wanted = parts

    def is_published(self, index: int) -> bool:
        """Whether the pair lies in a part that is not wanted."""
        return index // self._options.samples_per_shard not in self._wanted

    def skip(self, index: int, digest: bytes) -> None:
        """Compare a pair of a sound shard. A part without a shard has nothing to compare.

        Raises SourceError if the source is not the one that the shard was packed from.
        """
        part = index // self._options.samples_per_shard
        if part in self._published:
            super().skip(index, digest)
        else:
            self.finish_earlier_part(part, index)


def rebuild_parts(
    sources: Sequence[Source],
    wanted: dict[str, set[int]],
    records: dict[str, dict],
    rebuilt: RebuiltShards,
    *,
    packed_by: dict[str, str],
    workers: int,
    show_progress: bool | None,
) -> tuple[dict[str, str], list[str]]:
    """Rebuild parts of these sources into `rebuilt`.

    wanted
        Name of each source → the parts to rebuild.
    records
        Name of a source → its record in the manifest, as far as known; the source must match it.
    packed_by
        As in `versions_in_force`.

    Returns (name of each source that cannot be used → why, notes for the user).
    """
    options = rebuilt.options
    warm_up(options)
    progress = Progress(sum(source.nbytes for source in sources), show=show_progress)
    with WriterThreads() as writers:
        packers = [
            PartRebuilder(
                source, rebuilt, writers, packed_by, wanted[source.name], records.get(source.name)
            )
            for source in sources
        ]
        try:
            if workers == 1:
                pack_inline(packers, options, progress)
            else:
                pack_with_processes(packers, options, workers, progress)
        finally:
            progress.close()
    faults = {}
    for packer in packers:
        name = packer.source.name
        if fault := _fault(packer, records.get(name), rebuilt.records.get(name)):
            rebuilt.withdraw(name)
            faults[name] = fault
    return faults, progress.notes


def _fault(packer: PartRebuilder, expected: dict | None, found: dict | None) -> str | None:
    """Why nothing rebuilt from a source can be used, if so."""
    if packer.error is not None:
        return str(packer.error)
    for key in (_identity_of(expected), "pairs") if expected is not None else ():
        if found[key] != expected[key]:
            return (
                f"{packer.source.path}: {DIGEST_NAMES.get(key, key)} is {found[key]}, but the pack "
                f"was made from a source with {expected[key]}; restore the original file"
            )
    return None


def _identity_of(record: dict | None) -> str:
    """The key of a record that identifies its source: packs of earlier releases have md5 only."""
    return "md5" if record is not None and record.get("xxh128") is None else "xxh128"


@dataclass(frozen=True)
class Replacement:
    """A rebuilt shard that can replace the damaged one.

    folder
        Where it lies, in the working folder.
    same
        It has the bytes that the pack's checksums demand.
    note
        What to report to the user, or "".
    """

    shard: PublishedShard
    folder: Path
    same: bool
    note: str


def replacement(shard: PublishedShard, rebuilt: RebuiltShards, damage: Damage) -> Replacement | str:
    """Read a rebuilt shard back, and compare it with all that is known of the old one.

    Returns why it cannot be used, if so.
    """
    name, key = shard.entry.name, (shard.entry.source, shard.entry.part)
    folder = rebuilt.shards_dir / name
    findings = Findings()
    check_shard(
        folder, shard.entry, damage.manifest.layout, findings, quick=False, advance=lambda _: None
    )
    if findings.problems:
        return f"the rebuilt shard is damaged, too: {findings.problems[0].what}"
    old = rebuilt.root / SHARDS_NAME / name
    attributes = recorded_attributes(old)
    if attributes and (attributes["source"], attributes["part"]) != key:
        attributes = None  # another shard has its name
    if attributes and attributes["pairs_digest"] != shard.attributes["pairs_digest"]:
        return "the source holds other images than those it was packed from"
    found, expected = file_digest(folder / CHECKSUMS_NAME), damage.digests.get(name)
    note = ""
    if expected is not None and found != expected:
        note = _difference(shard, folder, old, attributes, damage)
    return Replacement(shard, folder, found == expected, note)


def _difference(
    shard: PublishedShard, folder: Path, old: Path, attributes: dict | None, damage: Damage
) -> str:
    """Report that a rebuilt shard has other bytes, why, and how many samples are the same."""
    text = f"{shard.entry.name}: rebuilt with other bytes than before"
    packed_by = shard.attributes["packed_by"]
    if attributes is not None and attributes.get("packed_by") != packed_by:
        was = ", ".join(f"{key} {value}" for key, value in attributes["packed_by"].items())
        now = ", ".join(f"{key} {value}" for key, value in packed_by.items())
        text += f", by {now}; it was packed by {was}"
    before = recorded_samples(old, damage.manifest.layout)
    after = recorded_samples(folder, damage.manifest.layout)
    if before is not None and before.shape == after.shape:
        same = int((before == after).sum())
        text += f"; {same:,} of {len(after):,} samples are identical"
    return text


@dataclass
class Wanted:
    """The damaged shards that can be rebuilt, and those that cannot.

    parts
        Source → part → name of the shard.
    sources
        Name of each source that was given → the source; of one at a URL that is needed, its size
        is known.
    left
        Name of a shard that stays damaged → why.
    """

    sources: dict[str, Source]
    parts: dict[str, dict[int, str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, damage: Damage, sources: Iterable[Source]) -> "Wanted":
        """What to rebuild from these sources. URLs that are needed are asked."""
        given = {source.name: source for source in sources}
        records = damage.records()
        needed = {source for source, _ in damage.shards.values()} & given.keys()
        found, unreadable = look_at([given[source] for source in needed])
        wanted = cls(given | {source.name: source for source in found})
        for name, (source, part) in damage.shards.items():
            if denied := damage.denied_files(name):
                reason = f"{denied[0]}; check its owner and mode (ls -ld): it need not be damaged"
            elif foreign := damage.foreign_files(name):
                reason = f"its folder holds foreign files, move them away first: {foreign[0]}"
            elif source not in given:
                reason = f"the source {source} is needed, but was not given"
            elif source in unreadable:
                reason = str(unreadable[source])
            else:
                reason = _other_size(wanted.sources[source], records.get(source))
            if reason:
                wanted.left[name] = reason
            else:
                wanted.parts.setdefault(source, {})[part] = name
        return wanted

    def rebuild(
        self, damage: Damage, rebuilt: RebuiltShards, workers: int, show_progress: bool | None
    ) -> tuple[list[Replacement], list[str]]:
        """Rebuild them into `rebuilt`; what turns out to be unusable is added to `left`.

        Returns the usable ones, and notes for the user.
        """
        faults, notes = rebuild_parts(
            [self.sources[name] for name in self.parts],
            {name: set(parts) for name, parts in self.parts.items()},
            damage.records(),
            rebuilt,
            packed_by=versions_in_force(),
            workers=workers,
            show_progress=show_progress,
        )
        usable = []
        for source, parts in self.parts.items():
            for part, name in parts.items():
                shard = rebuilt.shards.get((source, part))
                if source in faults:
                    made = faults[source]
                elif shard is None:
                    made = "the source has no image for it"
                else:
                    made = replacement(shard, rebuilt, damage)
                if isinstance(made, Replacement):
                    usable.append(made)
                else:
                    self.left[name] = made
        return usable, notes


def _other_size(given: Source, record: dict | None) -> str | None:
    """Why a source cannot be the one that was packed, if its size says so."""
    if record is None or record["nbytes"] == given.nbytes:
        return None
    return (
        f"{given.path} has {given.nbytes} bytes, but the pack was made from one of "
        f"{record['nbytes']}; restore the original file"
    )
