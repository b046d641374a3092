"""One shard in the making: rows are handed out in the order of the tar, whoever finishes first."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from sa1bpack.format import Extent, ShardDraft, ShardEntry
from sa1bpack.packing.options import PackOptions

# Settled rows are hashed in batches: far below a page cache, far above one system call a row.
SETTLE_BATCH = 32

# Settled rows go to disk in steps of so many samples (0.8 GB), beside the decoding of the next:
# left to publication, a shard of 20 GB would make everything wait.
FLUSH_BATCH = 256


def shard_name(source: str, part: int) -> str:
    """Name of the shard that a part of a source becomes."""
    return f"{source}-{part:03d}"


@dataclass(frozen=True)
class Accepted:
    """A sample is decoded and waits for the place where it may be written."""

    extent: Extent
    unknown_keys: frozenset = frozenset()


@dataclass(frozen=True)
class Dropped:
    """No mask of the sample passed the filters, and the options drop such images."""


@dataclass(frozen=True)
class Rejected:
    """A member cannot be used. `as_json` is its line in rejects.jsonl, less the tar's name."""

    member: str
    code: str
    detail: str

    def as_json(self) -> dict:
        return {"member": self.member, "reason": self.code, "detail": self.detail}


Outcome = Accepted | Dropped | Rejected


@dataclass(frozen=True)
class Grant:
    """Leave to write the pair `index` at the position `at` of the shard in `folder`."""

    index: int
    folder: Path
    at: Extent


@dataclass(frozen=True)
class PublishedShard:
    """A shard under its final name.

    attributes
        What the packer recorded in it: source, part, first_pair, pairs, pairs_digest (XXH3-64 of
        the pairs' digests: whether a source is still the same), dropped, rejects, unknown_keys,
        packed_by, and options (all of the pack's, so that a lost manifest can be made again).
    """

    entry: ShardEntry
    attributes: dict


@dataclass
class Unit:
    """Pairs [first, first + samples_per_shard) of one source.

    An outcome takes effect when those of all earlier pairs have: positions depend on the tar
    alone, not on who was faster. The draft is made with the first accepted sample, so a unit
    without one leaves nothing.
    """

    source: str
    part: int
    first: int
    shards_dir: Path
    options: PackOptions
    rejects: list[Rejected] = field(default_factory=list)
    unknown_keys: set[str] = field(default_factory=set)
    dropped: int = 0

    def __post_init__(self):
        self.cursor = Extent(0, 0, 0)
        self.draft: ShardDraft | None = None
        self._pairs_digest = xxhash.xxh3_64()
        self._early: dict[int, Outcome] = {}
        self._next = self.first
        self._end: int | None = None
        self._unwritten: deque[tuple[int, Extent]] = deque()
        self._written: set[int] = set()
        self._settled = self._hashed = Extent(0, 0, 0)
        self._flushed = 0

    @property
    def name(self) -> str:
        """Name of the shard."""
        return shard_name(self.source, self.part)

    def begin(self, digest: bytes) -> None:
        """The next pair of the unit, in the order of the source, has this digest."""
        self._pairs_digest.update(digest)

    def resolve(self, index: int, outcome: Outcome) -> list[Grant]:
        """Take a pair's outcome; return the grants that this makes possible, in order."""
        self._early[index] = outcome
        grants = []
        while self._next in self._early:
            outcome = self._early.pop(self._next)
            if isinstance(outcome, Accepted):
                grants.append(self._grant(self._next, outcome))
            elif isinstance(outcome, Rejected):
                self.rejects.append(outcome)
            else:
                self.dropped += 1
            self._next += 1
        return grants

    def _grant(self, index: int, sample: Accepted) -> Grant:
        if self.draft is None:
            self.draft = ShardDraft(self.shards_dir, self.name, self.options.layout)
        grant = Grant(index, self.draft.folder, self.cursor)
        self.cursor = self.cursor + sample.extent
        self.unknown_keys |= sample.unknown_keys
        self._unwritten.append((index, self.cursor))
        return grant

    def written(self, index: int) -> None:
        """The rows of a granted pair are in their files."""
        self._written.add(index)
        while self._unwritten and self._unwritten[0][0] in self._written:
            index, self._settled = self._unwritten.popleft()
            self._written.remove(index)
        if self._settled.samples - self._hashed.samples >= SETTLE_BATCH:
            self.draft.settle(self._settled)
            self._hashed = self._settled

    def flush_due(self) -> bool:
        """Whether another FLUSH_BATCH samples are settled; asking takes them as flushed."""
        due = self._hashed.samples - self._flushed >= FLUSH_BATCH
        if due:
            self._flushed = self._hashed.samples
        return due

    def close(self, end: int) -> None:
        """No pair from `end` on belongs to this unit."""
        self._end = end

    @property
    def closed(self) -> bool:
        """Every pair has been read."""
        return self._end is not None

    @property
    def complete(self) -> bool:
        """Every pair has its outcome and every accepted one is written."""
        return self.closed and self._next == self._end and not self._unwritten

    def publish(self, packed_by: dict) -> PublishedShard | None:
        """Publish the shard; None when no sample was accepted."""
        if self.draft is None:
            return None
        attributes = {
            "source": self.source,
            "part": self.part,
            "first_pair": self.first,
            "pairs": self._end - self.first,
            "pairs_digest": self._pairs_digest.hexdigest(),
            "dropped": self.dropped,
            "rejects": [reject.as_json() for reject in self.rejects],
            "unknown_keys": sorted(self.unknown_keys),
            "packed_by": packed_by,
            "options": self.options.to_json(),
        }
        return PublishedShard(self.draft.publish(self.cursor, attributes), attributes)

    def discard(self) -> None:
        """Leave nothing of the unit behind."""
        if self.draft is not None:
            self.draft.discard()
