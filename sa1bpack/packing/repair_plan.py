"""The plan of a repair: what is done about the damage to a pack, decided before anything is done.

A plan is a list of actions, in the order in which they are applied. `str` makes a line of each that
changes the pack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from sa1bpack.errors import SourceError
from sa1bpack.packing.damage import Damage
from sa1bpack.packing.records import is_copied_in_part
from sa1bpack.source.find import Source

# What `RepairResult.left` calls the manifest, the index and the other files at the top of a pack.
OWN_FILES = "the pack's own files"


@dataclass(frozen=True)
class Rebuild:
    """Shards are rebuilt from their source.

    Attributes:
        source: the tar or folder.
        shards: number within the source → name of the shard.
    """

    source: Source
    shards: dict[int, str]

    def __str__(self) -> str:
        return f"rebuild {', '.join(self.shards.values())} from {self.source.path}"


@dataclass(frozen=True)
class RewriteOwnFiles:
    """The manifest, the index and the other files at the top of the pack are written again."""

    def __str__(self) -> str:
        return f"rewrite {OWN_FILES}"


@dataclass(frozen=True)
class RestoreManifest:
    """A lost manifest is written again: its records of sources come from reading these again."""

    def __str__(self) -> str:
        return f"rewrite {OWN_FILES}, and read the sources again for the lost manifest"


@dataclass(frozen=True)
class Leave:
    """Something stays damaged.

    Attributes:
        name: name of the shard, or OWN_FILES.
        reason: why, and the remedy.
    """

    name: str
    reason: str


Action = Rebuild | RewriteOwnFiles | RestoreManifest | Leave


def plan_repair(
    damage: Damage,
    sources: Mapping[str, Source],
    unreadable: Mapping[str, SourceError],
    *,
    of_part: bool,
) -> list[Action]:
    """The actions that repair a pack; empty if nothing is damaged.

    Args:
        damage: what the check has found.
        sources: name → source, of those that were given.
        unreadable: name → error, of those at URLs that cannot be read.
        of_part: the repair is a part of several, none of which rewrites the pack's own files.
    """
    actions: list[Action] = []
    shards_by_source: dict[str, dict[int, str]] = {}
    for name, (source, number) in damage.shards.items():
        reason = _obstacle(damage, name, sources.get(source), unreadable.get(source))
        if reason is None:
            shards_by_source.setdefault(source, {})[number] = name
        else:
            actions.append(Leave(name, reason))
    for source, shards in shards_by_source.items():
        actions.append(Rebuild(sources[source], shards))
    if not damage.own_files:
        return actions
    if of_part:
        reason = f"no part rewrites them; once all have ended: {whole_repair(damage.root)}"
        actions.append(Leave(OWN_FILES, reason))
    elif damage.lost:
        actions.append(RestoreManifest())
    else:
        actions.append(RewriteOwnFiles())
    return actions


def _obstacle(
    damage: Damage, name: str, source: Source | None, error: SourceError | None
) -> str | None:
    """The obstacle to rebuilding a shard, as far as it is known before its source is read.

    Args:
        damage: what the check has found.
        name: name of the shard.
        source: its source, if that was given.
        error: why its source cannot be read.
    """
    for problem in damage.problems:
        if problem.shard == name and problem.denied:
            return f"{problem.what}; check its owner and mode (ls -ld): it need not be damaged"
    for problem in damage.extra:
        if problem.shard == name:
            return f"its folder holds foreign files, move them away first: {problem.what}"
    source_name, _ = damage.shards[name]
    for record in damage.manifest.sources:
        if record["name"] == source_name and is_copied_in_part(record):
            return (
                f"the pack has a copy of some samples of {source_name}, and a tar does not tell "
                "which: remove the folder of the shard, and copy the selection again into the pack "
                "(sa1bpack subset --copy)"
            )
    if source is None:
        return f"the source {source_name} is needed, but was not given"
    if error is not None:
        return str(error)
    for record in damage.manifest.sources:
        nbytes = record["nbytes"]
        if record["name"] == source_name and nbytes != source.nbytes:
            return (
                f"{source.path} has {source.nbytes} bytes, not {nbytes}; restore the original file"
            )
    return None


def whole_repair(root: Path) -> str:
    """The command that repairs what no part of a repair does."""
    return f"sa1bpack repair {quote(str(root))} TARS --quick"
