"""Checks of a rebuilt shard, before it may replace the damaged one."""

from dataclasses import dataclass
from pathlib import Path

from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.manifest import SHARDS_NAME
from sa1bpack.format.problems import Findings
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.packing.repair.damage import Damage, recorded_attributes, recorded_samples
from sa1bpack.packing.repair.rebuild import RebuiltShards
from sa1bpack.packing.shard_builder import PublishedShard


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
