"""What a pack holds of each of its sources."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from sa1bpack.format.arrays import Count
from sa1bpack.format.manifest import ShardEntry

_LINE = 80  # columns of a terminal
_SHORTENED = "..."


class PairAccount(msgspec.Struct):
    """What a record of a shard or of a source says of its pairs; one of another writer, nothing."""

    rejects: list[Any] = []
    dropped: Count = 0
    left_out: Count = 0


class SourceAccount(PairAccount):
    """The record of a source that is packed to its end, as far as it says that of it."""

    name: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceCounts:
    """The counts of one source of a pack.

    Attributes:
        name: name of the tar, folder or file, without its ending.
        images, masks: numbers of both in the pack.
        rejects: members that were rejected.
        dropped: images in which no masks remained.
        left_out: images that were left out when a selection was copied.
        complete: the source was packed to its end.
    """

    name: str
    images: int = 0
    masks: int = 0
    rejects: int = 0
    dropped: int = 0
    left_out: int = 0
    complete: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return asdict(self)

    def with_account(self, account: PairAccount) -> "SourceCounts":
        """The counts with those of a record of its pairs."""
        return replace(
            self,
            rejects=self.rejects + len(account.rejects),
            dropped=self.dropped + account.dropped,
            left_out=self.left_out + account.left_out,
        )


def counts_of_sources(
    shards: Iterable[tuple[ShardEntry, PairAccount]], sources: Iterable[SourceAccount]
) -> tuple[SourceCounts, ...]:
    """The counts of every source of a pack, sorted by name.

    Args:
        shards: entries of the shards in the manifest, each with its account.
        sources: the accounts of the sources that are packed to their end.
    """
    by_name: dict[str, SourceCounts] = {}
    for source in sources:
        by_name[source.name] = SourceCounts(name=source.name, complete=True).with_account(source)
    for entry, account in shards:
        counts = by_name.get(entry.source, SourceCounts(name=entry.source))
        counts = replace(
            counts, images=counts.images + entry.samples, masks=counts.masks + entry.masks
        )
        by_name[entry.source] = counts.with_account(account)
    return tuple(by_name[name] for name in sorted(by_name))


def joined_counts(packs: Iterable[Sequence[SourceCounts]]) -> tuple[SourceCounts, ...]:
    """The counts of the sources of several packs, sorted by name; one that several have once."""
    by_name: dict[str, SourceCounts] = {}
    for sources in packs:
        for source in sources:
            before = by_name.get(source.name, SourceCounts(name=source.name, complete=True))
            by_name[source.name] = SourceCounts(
                name=source.name,
                images=before.images + source.images,
                masks=before.masks + source.masks,
                rejects=before.rejects + source.rejects,
                dropped=before.dropped + source.dropped,
                left_out=before.left_out + source.left_out,
                complete=before.complete and source.complete,
            )
    return tuple(by_name[name] for name in sorted(by_name))


def table_of_sources(sources: Sequence[SourceCounts]) -> str:
    """A line for each source, of at most 80 columns: those with the most rejects first."""
    columns = ["images", "masks", "rejects", "dropped"]
    if any(source.left_out for source in sources):
        columns.append("left_out")
    widths = {}
    for column in columns:
        numbers = [f"{getattr(source, column):,}" for source in sources]
        widths[column] = max(map(len, [column, *numbers])) + 2
    names = [_name_of(source) for source in sources]
    longest = max(map(len, ["source", *names]))
    name_width = min(longest, _LINE - sum(widths.values()))
    headings = "".join(column.replace("_", " ").rjust(widths[column]) for column in columns)
    lines = [f"{'source'.ljust(name_width)}{headings}"]
    worst_first = sorted(sources, key=lambda source: (-source.rejects, source.name))
    for source in worst_first:
        line = f"{_shortened(_name_of(source), name_width).ljust(name_width)}"
        for column in columns:
            line += f"{getattr(source, column):,}".rjust(widths[column])
        lines.append(line)
    return "\n".join(lines)


def _name_of(source: SourceCounts) -> str:
    """The name of a source in the table."""
    if source.complete:
        return source.name
    return f"{source.name} (in part)"


def _shortened(name: str, width: int) -> str:
    """A name without its middle, where it is longer."""
    if len(name) <= width:
        return name
    kept = width - len(_SHORTENED)
    return name[: kept // 2] + _SHORTENED + name[len(name) - (kept - kept // 2) :]
