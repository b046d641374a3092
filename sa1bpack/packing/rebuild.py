"""Making damaged shards anew beside the pack, and putting them in place.

What is made anew lies in a working folder until it has been read back and compared with all that is
known of the old shard. Only then do the two change places, so a damaged shard stays readable, as
far as it is, until its replacement is whole.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.files import (
    TEMPORARY_PREFIX,
    flush_folder,
    remove_entry,
    temporary_beside,
)  # fmt: skip
from sa1bpack.format.problems import Findings
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.packing.damage import Damage, recorded_attributes, recorded_samples
from sa1bpack.packing.lane import Lane
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.unit import PublishedShard
from sa1bpack.packing.writers import Writers
from sa1bpack.source.find import Source


class Workshop:
    """What a Lane needs of a Ledger, but what it publishes goes to a working folder.

    made
        (source, part) → the shard in the working folder.
    read
        Name of a source that was read to its end → what would be its record in the manifest.
    """

    def __init__(self, ledger: Ledger):
        """Make the working folder; `ledger` holds the pack and its sound shards."""
        self.root = ledger.root
        self.options = ledger.options
        self.parts_of = ledger.parts_of
        self.made: dict[tuple[str, int], PublishedShard] = {}
        self.read: dict[str, dict] = {}
        self.shards_dir = temporary_beside(ledger.shards_dir / "repair")
        self.shards_dir.mkdir(parents=True)

    def add_shard(self, shard: PublishedShard) -> None:
        """A shard is whole."""
        self.made[shard.entry.source, shard.entry.part] = shard

    def finish_source(self, record: dict) -> None:
        """A source has been read to its end."""
        self.read[record["name"]] = record

    def withdraw(self, source: str) -> int:
        """The bytes of a source are wrong: nothing made of it is used. The pack stays as it is."""
        for place in [place for place in self.made if place[0] == source]:
            del self.made[place]
        return 0

    def close(self) -> None:
        """Remove the working folder."""
        shutil.rmtree(self.shards_dir, ignore_errors=True)


class RepairLane(Lane):
    """Makes some parts of a source anew and passes over all others."""

    def __init__(
        self,
        source: Source,
        workshop: Workshop,
        writers: Writers,
        packed_by: dict,
        parts: set[int],
    ):
        super().__init__(source, workshop, writers, packed_by)
        self._wanted = parts

    def is_published(self, index: int) -> bool:
        """Whether the pair lies in a part that is not wanted."""
        return index // self._options.samples_per_shard not in self._wanted

    def pass_over(self, index: int, digest: bytes) -> None:
        """Compare a pair of a sound shard; of a part without a shard there is nothing to compare.

        Raises SourceError when the source is not the one that the shard was made from.
        """
        part = index // self._options.samples_per_shard
        if part in self._published:
            super().pass_over(index, digest)
        else:
            self._roll(part, index)


@dataclass(frozen=True)
class Replacement:
    """A shard made anew, in the working folder.

    same
        It has the bytes that the pack's checksums ask for.
    note
        What the user should know of it, or "".
    """

    shard: PublishedShard
    folder: Path
    same: bool
    note: str


def replacement(shard: PublishedShard, workshop: Workshop, damage: Damage) -> Replacement | str:
    """Look at a shard made anew; returns why it cannot be used if it can't."""
    name, place = shard.entry.name, (shard.entry.source, shard.entry.part)
    folder = workshop.shards_dir / name
    findings = Findings()
    check_shard(
        folder, shard.entry, damage.manifest.layout, findings, quick=False, advance=lambda _: None
    )
    if findings.problems:
        return f"what was made anew is damaged, too: {findings.problems[0].what}"
    old = workshop.root / "shards" / name
    attributes = recorded_attributes(old)
    if attributes and (attributes["source"], attributes["part"]) != place:
        attributes = None  # another shard lies in its place
    if attributes and attributes["pairs_digest"] != shard.attributes["pairs_digest"]:
        return "the source has other images than those that it was packed from"
    found, due = file_digest(folder / CHECKSUMS_NAME), damage.digests.get(name)
    note = ""
    if due is not None and found != due:
        note = _difference(shard, folder, old, attributes, damage)
    return Replacement(shard, folder, found == due, note)


def _difference(
    shard: PublishedShard, folder: Path, old: Path, attributes: dict | None, damage: Damage
) -> str:
    """Say that a shard has not the bytes that it had, why, and what is the same."""
    text = f"{shard.entry.name}: made anew with other bytes than before"
    made_by = shard.attributes["packed_by"]
    if attributes is not None and attributes.get("packed_by") != made_by:
        was = ", ".join(f"{key} {value}" for key, value in attributes["packed_by"].items())
        now = ", ".join(f"{key} {value}" for key, value in made_by.items())
        text += f", by {now}; it was made by {was}"
    before = recorded_samples(old, damage.manifest.layout)
    after = recorded_samples(folder, damage.manifest.layout)
    if before is not None and before.shape == after.shape:
        same = int((before == after).sum())
        text += f"; {same:,} of {len(after):,} samples are the same to the byte"
    return text


def put_in_place(folder: Path, final: Path) -> None:
    """Put a whole shard in the place of a damaged or missing one.

    A kill between the two renames leaves no shard there, which repair mends as well.
    """
    aside = final.with_name(f"{TEMPORARY_PREFIX}damaged-{final.name}")
    there = final.exists() or final.is_symlink()
    if there:
        final.rename(aside)
    try:
        folder.rename(final)
    except BaseException:
        if there:
            aside.rename(final)
        raise
    flush_folder(final.parent)
    if there:
        remove_entry(aside)
