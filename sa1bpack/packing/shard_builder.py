"""Builds one shard: samples are appended in the order of the tar, whichever is decoded first."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from sa1bpack.format import ShardEntry
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Outcome, Packed, Rejected
from sa1bpack.packing.writer_threads import ShardQueue, WriterThreads


def shard_name(source: str, part: int) -> str:
    """Name of the shard that a part of a source becomes."""
    return f"{source}-{part:03d}"


@dataclass(frozen=True)
class PublishedShard:
    """A shard under its final name.

    attributes
        The packer's record: source, part, first_pair, pairs, pairs_digest (XXH3-64 of the pairs'
        digests, which tells whether a source is still the same), dropped, rejects, unknown_keys,
        packed_by, and options (all of the pack's, so that a lost manifest can be rewritten).
    """

    entry: ShardEntry
    attributes: dict


@dataclass
class ShardBuilder:
    """Builds the shard of pairs [first, first + samples_per_shard) of one source.

    An outcome takes effect after those of all earlier pairs: the order in the shard is that of the
    tar, whichever was decoded first. Writing begins with the first packed sample, so without one
    nothing is left on disk.
    """

    source: str
    part: int
    first: int
    shards_dir: Path
    options: PackOptions
    writers: WriterThreads
    rejects: list[Rejected] = field(default_factory=list)
    unknown_keys: set[str] = field(default_factory=set)
    dropped: int = 0

    def __post_init__(self):
        self.queue: ShardQueue | None = None
        self._pairs_digest = xxhash.xxh3_64()
        self._early: dict[int, tuple[Outcome, Callable[[], object]]] = {}
        self._next = self.first
        self._end: int | None = None

    @property
    def name(self) -> str:
        """Name of the shard."""
        return shard_name(self.source, self.part)

    def begin(self, digest: bytes) -> None:
        """The next pair, in the order of the source, has this digest."""
        self._pairs_digest.update(digest)

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take a pair's outcome.

        release
            Called, in any thread, when the rows of the outcome are no longer needed.
        """
        self._early[index] = outcome, release
        while self._next in self._early:
            self._take(*self._early.pop(self._next))
            self._next += 1

    def _take(self, outcome: Outcome, release: Callable[[], object]) -> None:
        if isinstance(outcome, Packed):
            if self.queue is None:
                self.queue = ShardQueue(
                    self.writers, self.shards_dir, self.name, self.options.layout
                )
            self.unknown_keys |= outcome.unknown_keys
            self.queue.append(outcome.rows, release)
            return
        release()
        if isinstance(outcome, Rejected):
            self.rejects.append(outcome)
        else:
            self.dropped += 1

    def close(self, end: int) -> None:
        """No pair from `end` on belongs to this shard."""
        self._end = end

    @property
    def closed(self) -> bool:
        """Every pair has been read."""
        return self._end is not None

    @property
    def complete(self) -> bool:
        """Every pair has its outcome, and every packed one was handed to the writer threads."""
        return self.closed and self._next == self._end

    @property
    def empty(self) -> bool:
        """No sample is packed so far."""
        return self.queue is None

    def check(self) -> None:
        """Raise what writing has raised so far."""
        if self.queue is not None:
            self.queue.check()

    def attributes(self, packed_by: dict[str, str]) -> dict:
        """The packer's record in the shard; see PublishedShard."""
        return {
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

    def publish(self, attributes: dict) -> Future[ShardEntry]:
        """Publish the shard, which must be complete and not empty, with these `attributes`."""
        return self.queue.publish(attributes)

    def end(self) -> None:
        """Release all rows, and discard the shard unless it is published."""
        for _, release in self._early.values():
            release()
        self._early.clear()
        if self.queue is not None:
            self.queue.end()
