"""Which damaged shards can be rebuilt, and rebuilding them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sa1bpack.packing.repair.damage import Damage
from sa1bpack.packing.repair.rebuild import RebuiltShards, rebuild_parts
from sa1bpack.packing.repair.replacement import Replacement, replacement
from sa1bpack.packing.run import versions_in_force
from sa1bpack.source.find import Source
from sa1bpack.source.remote import look_at


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
