"""The making of one shard: its samples are written as they are decoded, then it is published."""

from collections.abc import Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.manifest import shard_name
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.format.side.shards import ShardIdentity
from sa1bpack.packing.decoder import Decoded
from sa1bpack.packing.groups import GroupOutcome
from sa1bpack.packing.kept_rows import KeptSpool
from sa1bpack.packing.publishers import ShardSink
from sa1bpack.packing.records import EmptyShard, PublishedShard
from sa1bpack.source.find import Source

# What was made of the pairs of a shard: it is published, or has no samples.
BuiltShard = PublishedShard | EmptyShard


class ShardBuilder:
    """The builder of a shard: `samples_per_shard` pairs of a source, the last of fewer.

    Its thread takes outcomes in the order of the pairs. Writing begins with the first packed
    sample, so without one nothing is left on disk. Only that thread creates files: Ctrl-C is raised
    in the main thread alone, so nothing is created that the thread does not know of.

    Args:
        sink: has the folder of the shard, and the options of the pack.
        packed_by: package → version, recorded in the shard.
        source, number: see below.

    Attributes:
        source, number: the shard is the one of this number within this source.
        discarded: the shard is not published, unless it has been already.
        shard: future of what was made of it; its result is None if it was discarded.
    """

    def __init__(self, sink: ShardSink, packed_by: Mapping[str, str], source: Source, number: int):
        self.source = source
        self.number = number
        self.discarded = False
        self.shard: Future[BuiltShard | None] | None = None
        self._sink = sink
        self._packed_by = packed_by
        self._decoded: SimpleQueue[Future[Decoded] | None] = SimpleQueue()  # None: no more groups
        self._pairs = 0
        self._pairs_digest = ""
        self._rejects: list[dict[str, str]] = []
        self._dropped = 0
        self._unknown_keys: set[str] = set()
        self._altered_keys: set[str] = set()
        self._writer: ShardWriter | None = None
        self._kept_spool: KeptSpool | None = None  # of a pack that keeps keys

    def add_group(self, decoded: Future[Decoded]) -> None:
        """Add the next pairs, by the future of what becomes of them."""
        self._decoded.put(decoded)

    def complete(self, pairs: int, pairs_digest: str) -> None:
        """Say that there are no more pairs: their number, and the digest of their digests."""
        self._pairs = pairs
        self._pairs_digest = pairs_digest
        self._decoded.put(None)

    def discard(self) -> None:
        """Give the shard up; its thread ends once the groups that it was given are decoded."""
        self.discarded = True
        self._decoded.put(None)

    def build(self) -> BuiltShard | None:
        """Write and publish the shard; None if it was discarded. In its thread."""
        try:
            while (future := self._decoded.get()) is not None:
                decoded = future.result()
                try:
                    if not self.discarded:
                        self._take(decoded.outcome)
                finally:
                    decoded.release()
            if self.discarded:
                return None
            if self._writer is None:
                return EmptyShard(self._pairs, self._rejects, self._dropped)
            return self._publish(self._writer)
        finally:
            if self._writer is not None:
                self._writer.discard()
            if self._kept_spool is not None:
                self._kept_spool.close()

    def _publish(self, writer: ShardWriter) -> PublishedShard:
        """Publish the shard; before it, the feature shards of what is kept: none is ever without.

        What a kill leaves in between is made again with the same bytes, and found to be there.
        """
        attributes = self._attributes()
        entry = writer.complete(attributes)
        if self._kept_spool is not None:
            digest = file_digest(writer.folder / CHECKSUMS_NAME)
            self._kept_spool.publish(ShardIdentity(writer.name, digest, writer.lengths))
        writer.claim_name()
        return PublishedShard(entry, attributes)

    def _take(self, outcome: GroupOutcome) -> None:
        """Write the samples of a group, and note why there are no others."""
        self._dropped += outcome.dropped
        self._rejects += [reject.as_json() for reject in outcome.rejects]
        packed = outcome.packed
        if packed is None:
            return
        if self._writer is None:
            options = self._sink.ledger.options
            name = shard_name(self.source.name, self.number)
            self._writer = ShardWriter(self._sink.shards_dir, name, options.layout)
            if options.kept_keys:
                self._kept_spool = KeptSpool(self._sink.root, options.kept_keys)
        self._unknown_keys |= packed.unknown_keys.keys()
        self._altered_keys |= packed.kept_rows.altered
        self._writer.append(packed.rows)
        if self._kept_spool is not None:
            self._kept_spool.append(packed.kept_rows)

    def _attributes(self) -> dict[str, Any]:
        """The record of the shard."""
        options = self._sink.ledger.options
        attributes = {
            "source": self.source.name,
            "part": self.number,
            "first_pair": self.number * options.pairs_per_shard,
            "pairs": self._pairs,
            "pairs_digest": self._pairs_digest,
            "dropped": self._dropped,
            "rejects": self._rejects,
            "unknown_keys": sorted(self._unknown_keys),
            "packed_by": self._packed_by,
            "options": options.to_json(),
        }
        if self._altered_keys:
            attributes["altered_keys"] = sorted(self._altered_keys)
        return attributes
