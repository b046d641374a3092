"""How much of a pack is published: what every reader counts, and what a packer has yet to add."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from sa1bpack.format.manifest import Manifest
from sa1bpack.format.publish import REJECTS_NAME, shard_folders
from sa1bpack.wording import counted

# In the folder of a pack: what the parts of a job (`sa1bpack pack --part`) leave for
# `sa1bpack finalize`. Each job has a plan there until its sources are all in the pack.
PARTS_NAME = ".parts"
PLAN_PREFIX = "plan-"

_REPEAT = "repeat the pack command"


@dataclass(frozen=True)
class Completeness:
    """How much of a pack is published.

    complete
        Whether every source given to the packer was packed to its end.
    images, shards
        Samples and shards in the index: what `sa1bpack.open` and `sa1bpack.info` count.
    sources
        Number of sources packed to their end.
    partial
        Names of the sources of an incomplete pack that have shards in the index, but are not packed
        to their end.
    unindexed
        Names of the published shards of an incomplete pack that are not in its index yet. A packer
        indexes them when it completes a source, and when it is run again.
    remedy
        What completes a pack that is not complete: the pack command, or `sa1bpack finalize`.
    """

    complete: bool
    images: int
    shards: int
    sources: int
    partial: tuple[str, ...]
    unindexed: tuple[str, ...]
    remedy: str = _REPEAT

    def __str__(self) -> str:
        """One sentence without a full stop, which names the remedy."""
        more = f"{counted(len(self.unindexed), 'published shard')} not in the index yet"
        if not self.images:
            if self.complete:
                return f"no images: the sources held none that could be packed, see {REJECTS_NAME}"
            reason = more if self.unindexed else "no shard is published"
            return f"no images yet: {reason}; {self.remedy}"
        text = f"{counted(self.images, 'image')} in {counted(self.shards, 'shard')}, "
        text += f"{counted(self.sources, 'source')} packed to the end"
        text += f", {len(self.partial):,} in part" if self.partial else ""
        text += f", {more}" if self.unindexed else ""
        return f"complete: {text}" if self.complete else f"not complete: {text}; {self.remedy}"


def completeness_of(root: Path, manifest: Manifest) -> Completeness:
    """Return how much of the pack at `root` is published, by a manifest read from it.

    Lists the folder of shards, and opens none. Raises OSError if it cannot be listed.
    """
    listed = {shard.name for shard in manifest.shards}
    found = [] if manifest.complete else [folder.name for folder in shard_folders(root)]
    names = [record.get("name") for record in manifest.sources]
    partial = {shard.source for shard in manifest.shards if shard.source not in names}
    return Completeness(
        complete=manifest.complete,
        images=manifest.samples,
        shards=len(manifest.shards),
        sources=len(manifest.sources),
        partial=() if manifest.complete else tuple(sorted(partial)),
        unindexed=tuple(name for name in found if name not in listed),
        remedy=remedy_of(root),
    )


def remedy_of(root: Path) -> str:
    """What completes the pack at `root` if it is not complete, in words."""
    if any((root / PARTS_NAME).glob(f"{PLAN_PREFIX}*.json")):
        return f"once all parts of its job have ended: sa1bpack finalize {quote(str(root))}"
    return _REPEAT
