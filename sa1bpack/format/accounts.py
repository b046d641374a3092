"""The accounts of a pack: what became of each pair of its sources (docs/format.md, "Accounts").

A pair is a sample, a reject, dropped, or left out by a copy of a selection, and nothing else, so a
shard that is lost leaves a gap that no other number closes. Every door of a pack asks here:
opening, packing, finalizing, merging, repairing and verifying.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from sa1bpack.format.arrays import Count
from sa1bpack.wording import counted, printable

# Reasons of members that never became half of a pair; all other rejects but one kind are pairs.
UNPAIRED_REASONS = frozenset(
    {"bad-name", "duplicate", "missing-jpeg", "missing-json", "name-too-long", "not-a-file"}
)
# Of a member that is too large to be read, or of a pair whose image has too many pixels or scans:
# the detail tells them apart.
_TOO_LARGE = "too-large"
_TOO_LARGE_MEMBER = re.compile(r"[0-9]+ bytes, the limit for a (jpeg|json) member is [0-9]+")

# Shards that a message names.
_NAMED = 3

# Of a source, more than any has: a tar has at most half a million pairs.
_MOST_SHARDS = 1 << 20


class _Rejected(msgspec.Struct):
    reason: str
    detail: str = ""

    @property
    def is_pair(self) -> bool:
        """False for a member that never became half of a pair."""
        if self.reason == _TOO_LARGE:
            return _TOO_LARGE_MEMBER.fullmatch(self.detail) is None
        return self.reason not in UNPAIRED_REASONS


class _ShardAccount(msgspec.Struct):
    """What the attributes of a shard say of its pairs."""

    part: Count
    first_pair: Count
    pairs: Count
    samples: Count
    dropped: Count
    rejects: list[_Rejected]
    left_out: Count = 0


class _SourceAccount(msgspec.Struct):
    """What the record of a source says of its pairs, besides those of its shards."""

    name: str
    pairs: Count
    dropped: Count
    rejects: list[_Rejected]
    left_out: Count = 0  # samples of shards that do not exist

    @property
    def rejected_pairs(self) -> int:
        """The number of its rejects that are pairs."""
        return sum(reject.is_pair for reject in self.rejects)


class _Counts(msgspec.Struct):
    """What a manifest's `counts` say of all pairs; it also has `rejects:<reason>`."""

    dropped_images: Count
    left_out_images: Count = 0


def shard_count(pairs: int, samples_per_shard: int) -> int:
    """The number of shards that so many pairs of a source are divided into."""
    return -(-pairs // samples_per_shard)


def pairs_of_shard(pairs: int, samples_per_shard: int, number: int) -> int:
    """The number of pairs of one shard of a source that has so many; 0 if it has no such shard."""
    first_pair = number * samples_per_shard
    return min(samples_per_shard, max(0, pairs - first_pair))


def shard_fault(attributes: Mapping[str, Any], expected_pairs: int | None = None) -> str | None:
    """What is wrong with the account of a shard, with the numbers; None if nothing is.

    Args:
        attributes: attributes of the shard. Of another writer, without these keys, they say
            nothing.
        expected_pairs: number of pairs that it has by the record of its source, if there is one.
    """
    try:
        account = msgspec.convert(attributes, _ShardAccount)
    except msgspec.ValidationError:
        return None
    accounted = account.samples + len(account.rejects) + account.dropped + account.left_out
    if accounted != account.pairs:
        left_out = f" and {account.left_out:,} left out" if account.left_out else ""
        return (
            f"it has {counted(account.pairs, 'pair')}, but {counted(account.samples, 'sample')}, "
            f"{counted(len(account.rejects), 'reject')} and {account.dropped:,} dropped{left_out}"
        )
    if expected_pairs is not None and account.pairs != expected_pairs:
        return (
            f"it has {counted(account.pairs, 'pair')}, but by the record of its source it must "
            f"have {expected_pairs:,}"
        )
    samples_per_shard = usable_samples_per_shard(attributes.get("options"))
    if samples_per_shard is None:
        return None
    first_pair = account.part * samples_per_shard
    if account.first_pair != first_pair:
        return f"it begins with pair {account.first_pair:,}, but must begin with {first_pair:,}"
    if account.pairs > samples_per_shard:
        return f"it has {account.pairs:,} pairs, but at most {samples_per_shard:,} make a shard"
    return None


@dataclass(frozen=True)
class Shortfall:
    """A source whose pairs are not all accounted for.

    Attributes:
        source: name of the source; "" for the totals of the pack.
        fault: what is wrong, with the numbers.
        shards: number of shards that its pairs are divided into.
        there: numbers of the shards that the pack has.
    """

    source: str
    fault: str
    shards: int = 0
    there: frozenset[int] = frozenset()

    def lost(self) -> Iterator[int]:
        """Numbers of the shards that are not there: those that are lost are among them.

        A shard without samples is not there either, and need not be: its pairs are in the record.
        """
        for number in range(self.shards):
            if number not in self.there:
                yield number

    def __str__(self) -> str:
        """What is wrong, and which shards may be lost."""
        names = []
        for number in islice(self.lost(), _NAMED + 1):
            names.append(f"{self.source}-{number:03d}")
        if not names:
            return self.fault
        if len(names) == 1:
            return f"{self.fault}: the shard {names[0]} is lost"
        more = " and others" if len(names) > _NAMED else ""
        return f"{self.fault}: lost are shards among {', '.join(names[:_NAMED])}{more}"


def expected_pairs(
    options: Mapping[str, Any], sources: Iterable[Mapping[str, Any]]
) -> Callable[[str, int], int | None]:
    """A function of a source and the number of a shard: the pairs that it must have, if known."""
    samples_per_shard = usable_samples_per_shard(options)
    pairs: dict[str, int] = {}
    for record in sources:
        with suppress(msgspec.ValidationError):  # another writer's
            account = msgspec.convert(record, _SourceAccount)
            pairs[account.name] = account.pairs

    def of_shard(source: str, number: int) -> int | None:
        if samples_per_shard is None or source not in pairs:
            return None
        return pairs_of_shard(pairs[source], samples_per_shard, number)

    return of_shard


def source_shortfall(
    record: Mapping[str, Any],
    shards: Mapping[int, int],
    samples_per_shard: int,
    *,
    by_pairs: bool = False,
) -> Shortfall | None:
    """What is wrong with the account of a source that is packed to its end; None if nothing is.

    The pairs of the shards that are not there must be those that the record itself accounts for:
    of shards without samples.

    Args:
        record: record of the source in the manifest. Of another writer, it says nothing.
        shards: number of each shard of the source that is there → its samples.
        samples_per_shard: the option of the pack.
        by_pairs: `shards` has the pairs of each, not its samples.
    """
    try:
        account = msgspec.convert(record, _SourceAccount)
    except msgspec.ValidationError:
        return None
    name = printable(account.name)
    in_shards = 0
    for number, count in sorted(shards.items()):
        pairs = pairs_of_shard(account.pairs, samples_per_shard, number)
        in_shards += pairs
        wrong = count != pairs if by_pairs else count > pairs
        if wrong:
            noun = "pair" if by_pairs else "sample"
            fault = (
                f"{name}: {counted(account.pairs, 'pair')}, {pairs:,} of them in shard {number}, "
                f"which has {counted(count, noun)}"
            )
            return Shortfall(account.name, fault)
    accounted = in_shards + account.dropped + account.rejected_pairs + account.left_out
    if accounted == account.pairs:
        return None
    fault = (
        f"{name}: {counted(account.pairs, 'pair')}, but "
        f"{counted(len(shards), 'shard')} and its record account for {accounted:,}"
    )
    expected = shard_count(account.pairs, samples_per_shard)
    if accounted > account.pairs or expected > _MOST_SHARDS:  # a number is wrong
        return Shortfall(account.name, fault)
    return Shortfall(account.name, fault, expected, frozenset(shards))


def pack_shortfalls(
    options: Mapping[str, Any],
    sources: Sequence[Mapping[str, Any]],
    shards: Iterable[tuple[str, int, int]],
    counts: Mapping[str, Any] | None,
) -> tuple[Shortfall, ...]:
    """What is wrong with the accounts of the sources of a pack; empty if nothing is.

    Args:
        options: options of the pack. Without `samples_per_shard` nothing is known.
        sources: records of the sources that are packed to their end.
        shards: source, number within it, and samples of each shard.
        counts: totals of a pack that is complete; None if it need not be.
    """
    samples_per_shard = usable_samples_per_shard(options)
    if samples_per_shard is None:
        return ()
    samples: dict[str, dict[int, int]] = {}
    total = 0
    for source, number, count in shards:
        samples.setdefault(source, {})[number] = count
        total += count
    shortfalls = []
    for record in sources:
        name = record.get("name")
        if not isinstance(name, str):  # another writer's
            continue
        shortfall = source_shortfall(record, samples.get(name, {}), samples_per_shard)
        if shortfall is not None:
            shortfalls.append(shortfall)
    if shortfalls or counts is None:
        return tuple(shortfalls)
    fault = _totals_fault(sources, total, counts)
    if fault is None:
        return ()
    return (Shortfall("", fault),)


def _totals_fault(
    sources: Sequence[Mapping[str, Any]], samples: int, counts: Mapping[str, Any]
) -> str | None:
    """What is wrong with the totals of a complete pack; None if nothing is, or nothing is said."""
    pairs = 0
    rejected = 0
    try:
        totals = msgspec.convert(counts, _Counts)
        dropped = totals.dropped_images
        left_out = totals.left_out_images
        for key, count in counts.items():
            kind, _, reason = key.partition(":")
            if kind == "rejects" and reason:
                rejected += msgspec.convert(count, Count)
        for record in sources:
            account = msgspec.convert(record, _SourceAccount)
            pairs += account.pairs
            # Members that are no pairs are in the records of sources alone.
            rejected -= len(account.rejects) - account.rejected_pairs
    except msgspec.ValidationError:
        return None
    if not sources or samples + rejected + dropped + left_out == pairs:
        return None
    left_out_words = f" and {left_out:,} left out" if left_out else ""
    return (
        f"its sources have {counted(pairs, 'pair')}, but it has {counted(samples, 'sample')}, "
        f"{rejected:,} rejected pairs and {dropped:,} dropped images{left_out_words}"
    )


def usable_samples_per_shard(options: Any) -> int | None:
    """The recorded option, if there is a usable one."""
    if not isinstance(options, Mapping):
        return None
    value = options.get("samples_per_shard")
    if isinstance(value, int) and value >= 1:
        return value
    return None
