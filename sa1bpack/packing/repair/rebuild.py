"""Rebuilds damaged shards from their sources, in a working folder, and checks what it made."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sa1bpack.format.array_stream import PackFiles
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.manifest import DIGEST_NAMES, SHARDS_NAME
from sa1bpack.format.problems import Check
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import NOT_LOCKED, Key, PackState, PublishedShard, read_shard
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.repair.damage import Damage, recorded_attributes, recorded_samples
from sa1bpack.packing.request import Request
from sa1bpack.packing.run import pack_sources, versions_in_force
from sa1bpack.packing.sample import warm_up
from sa1bpack.source.find import Source, look_at


class _Rebuilding(PackState):
    """The sound shards of a pack, and those that are made again in a working folder."""

    def __init__(
        self, root: Path, options: PackOptions, shards: dict[Key, PublishedShard], folder: Path
    ):
        super().__init__(root, options, lock=NOT_LOCKED)
        self.shards = dict(shards)
        self.shards_dir = folder

    def finish_source(self, record: dict, at_once: bool = False) -> None:
        """A source was read to its end; nothing is published."""
        self.sources[record["name"]] = record

    def withdraw(self, source: str) -> int:
        """A source is not usable: the pack stays as it is."""
        return 0


def sound_shards(root: Path, damage: Damage, sources: Container[str]) -> dict[Key, PublishedShard]:
    """The shards of sources that a check has found sound. Raises FormatError and OSError."""
    return {
        (entry.source, entry.part): read_shard(
            root / SHARDS_NAME / entry.name, damage.options.layout
        )
        for entry in damage.manifest.shards
        if entry.source in sources and entry.name not in damage.shards
    }


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


def _replacement(
    root: Path, shard: PublishedShard, folder: Path, damage: Damage
) -> Replacement | str:
    """Read a rebuilt shard back, and compare it with all that is known of the old one.

    Returns why it cannot be used, if so.
    """
    name, key = shard.entry.name, (shard.entry.source, shard.entry.part)
    check = Check(PackFiles(root))
    check_shard(check, folder, shard.entry, damage.manifest.layout, quick=False)
    if check.problems:
        return f"the rebuilt shard is damaged, too: {check.problems[0].what}"
    old = root / SHARDS_NAME / name
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
        self, root: Path, damage: Damage, folder: Path, workers: int, show_progress: bool | None
    ) -> tuple[list[Replacement], list[str]]:
        """Rebuild them in a working folder; what turns out to be unusable is added to `left`.

        Returns the usable ones, and notes for the user.
        """
        records, packed_by = damage.records(), versions_in_force()
        sources = [self.sources[name] for name in self.parts]
        md5 = any(_identity_of(records.get(source.name)) == "md5" for source in sources)
        request = Request(sources, root, damage.options, workers, md5=md5)
        state = _Rebuilding(root, damage.options, sound_shards(root, damage, self.parts), folder)
        warm_up(damage.options)
        progress = Progress(sum(source.nbytes for source in sources), show=show_progress)
        parts = {name: set(parts) for name, parts in self.parts.items()}
        try:
            failed = pack_sources(state, sources, request, packed_by, progress, parts)
        finally:
            progress.close()
        usable = []
        for source in sources:
            fault = failed.get(source.name) or _fault(
                source, records.get(source.name), state.sources[source.name]
            )
            for part, name in self.parts[source.name].items():
                shard = state.shards.get((source.name, part))
                if fault:
                    made = str(fault)
                elif shard is None:
                    made = "the source has no image for it"
                else:
                    made = _replacement(root, shard, folder / name, damage)
                if isinstance(made, Replacement):
                    usable.append(made)
                else:
                    self.left[name] = made
        return usable, progress.notes


def _fault(source: Source, expected: dict | None, found: dict) -> str | None:
    """Why nothing rebuilt from a source can be used, if its record says so."""
    for key in (_identity_of(expected), "pairs") if expected is not None else ():
        if found[key] != expected[key]:
            return (
                f"{source.path}: {DIGEST_NAMES.get(key, key)} is {found[key]}, but the pack was "
                f"made from a source with {expected[key]}; restore the original file"
            )
    return None


def _other_size(given: Source, record: dict | None) -> str | None:
    """Why a source cannot be the one that was packed, if its size says so."""
    if record is None or record["nbytes"] == given.nbytes:
        return None
    return (
        f"{given.path} has {given.nbytes} bytes, but the pack was made from one of "
        f"{record['nbytes']}; restore the original file"
    )
