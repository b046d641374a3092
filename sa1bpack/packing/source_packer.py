"""Packs one source: which pairs need work, which shard each belongs to, what failed.

The samples of a shard are appended in the order of the tar, whichever is decoded first. A thread of
each shard writes its files and publishes it, while other samples are decoded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from threading import BoundedSemaphore, Event

import numpy as np
import xxhash

from sa1bpack import interrupts
from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.format.manifest import DIGEST_NAMES, shard_name
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.packing.options import Request
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.progress import Progress, report
from sa1bpack.packing.records import PublishedShard
from sa1bpack.packing.sample import Buffers, Outcome, Packed, attempt
from sa1bpack.source.find import Source
from sa1bpack.source.inflate import remedy
from sa1bpack.source.pairs import Pair, PairReader, Reject
from sa1bpack.urls import Address
from sa1bpack.wording import counted

# Shards of a run that may be in publication at once; decoding waits for them. Each keeps all of its
# files open, and on a disk that is slow to flush they would become many.
MAX_IN_PUBLICATION = 4

# In place of a lock, where there is but one thread.
_NOT_HELD = nullcontext()

# Samples in memory of `pack_inline`: one being decoded, one being written, one waiting for that.
SAMPLES_IN_MEMORY = 3


@dataclass(frozen=True)
class PackRun:
    """What the packers of one run share.

    state
        Of the pack.
    request
        Among others, whether md5s are computed, and what they must be.
    progress
        Where pairs are counted.
    packed_by
        Package → version, recorded in every shard.
    publications
        Held by each shard while it is being published.
    stopping
        Set once no further pair is wanted.
    """

    state: PackState
    request: Request
    progress: Progress
    packed_by: dict[str, str]
    publications: BoundedSemaphore = field(
        default_factory=partial(BoundedSemaphore, MAX_IN_PUBLICATION)
    )
    stopping: Event = field(default_factory=Event)


class ShardBuilder:
    """Builds the shard of one part of a source: of `samples_per_shard` pairs, the last of fewer.

    An outcome takes effect after those of all earlier pairs. Writing begins with the first packed
    sample, so without one nothing is left on disk. Only the shard's thread creates files: Ctrl-C is
    raised in the main thread alone, so nothing is created that `end` does not know of.

    publication
        The published shard to come, or None if it has no sample, once the last pair has its
        outcome.
    error
        What writing has raised so far.
    ended
        Outcomes have no effect any more.
    """

    def __init__(self, run: PackRun, source: Source, part: int):
        self.source, self.part = source, part
        self.publication: Future[PublishedShard | None] | None = None
        self.error: BaseException | None = None
        self.ended = False
        self.rejects: list[dict[str, str]] = []
        self.unknown_keys: set[str] = set()
        self.dropped = 0
        self._run = run
        self._first = self._next = part * run.state.options.samples_per_shard
        self._early: dict[int, tuple[Outcome, Callable[[], object]]] = {}
        self._pairs: int | None = None  # how many, once all were read
        self._pairs_digest = ""
        self._thread: ThreadPoolExecutor | None = None
        self._writer: ShardWriter | None = None

    @property
    def closed(self) -> bool:
        """Whether all pairs were read."""
        return self._pairs is not None

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take a pair's outcome.

        release
            Called, in any thread, when the rows of the outcome are no longer needed.
        """
        self._early[index] = outcome, release
        while self._next in self._early:
            outcome, release = self._early.pop(self._next)
            self._next += 1
            if isinstance(outcome, Packed):
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "sa1bpack-writer")
                self.unknown_keys |= outcome.unknown_keys
                self._thread.submit(self._append, outcome.rows, release)
                continue
            release()
            if isinstance(outcome, Reject):
                self.rejects.append(outcome.as_json())
            else:
                self.dropped += 1
        self._publish_if_complete()

    def close(self, pairs: int, digest: str) -> None:
        """All pairs were read: so many, whose digests have this digest."""
        self._pairs, self._pairs_digest = pairs, digest
        self._publish_if_complete()

    def _publish_if_complete(self) -> None:
        if self._pairs is None or self._next < self._first + self._pairs:
            return
        if self._thread is None:
            self.publication = Future()
            self.publication.set_result(None)
            return
        self._run.publications.acquire()
        attributes = {
            "source": self.source.name,
            "part": self.part,
            "first_pair": self._first,
            "pairs": self._pairs,
            "pairs_digest": self._pairs_digest,
            "dropped": self.dropped,
            "rejects": self.rejects,
            "unknown_keys": sorted(self.unknown_keys),
            "packed_by": self._run.packed_by,
            "options": self._run.state.options.to_json(),
        }
        self.publication = self._thread.submit(self._publish, attributes)

    def end(self) -> None:
        """Release all rows, and discard the shard unless it is published."""
        self.ended = True
        for _, release in self._early.values():
            release()
        self._early.clear()
        if self._thread is not None:
            self._thread.submit(self._discard).result()
            thread, self._thread = self._thread, None  # first: Ctrl-C may come while it ends
            thread.shutdown()
        self.error = None  # its traceback keeps this object and rows alive

    # What the thread does, one after the other

    def _append(self, rows: Mapping[str, np.ndarray], release: Callable[[], object]) -> None:
        try:
            try:
                if self.error is None and not self.ended:
                    if self._writer is None:
                        state, name = self._run.state, shard_name(self.source.name, self.part)
                        self._writer = ShardWriter(state.shards_dir, name, state.options.layout)
                    self._writer.append(rows)
            finally:
                release()
        except BaseException as error:  # whatever it is, the run must end with it
            self.error = self.error or error

    def _publish(self, attributes: dict) -> PublishedShard:
        try:
            if self.error is not None:
                raise self.error
            return PublishedShard(self._writer.publish(attributes), attributes)
        finally:
            self._run.publications.release()

    def _discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class SourcePacker:
    """The packing of one source, for one thread at a time.

    `read_source` has it `take` the pairs in order, and ends with `end` or `fail`; the outcomes of
    pairs go to their builders, in any order. `finished` becomes true when every shard of the source
    is published and its record is in the pack state. `reader` is there while the source is read.
    """

    def __init__(self, run: PackRun, source: Source, wanted: Set[int] | None = None):
        """
        wanted
            The parts to pack; None: all that are not published.
        """
        self.source = source
        self.finished = False
        self.error: SourceError | None = None
        self.builders: dict[int, ShardBuilder] = {}
        self.reader: PairReader | None = None
        self._run, self._state, self._wanted = run, run.state, wanted
        self._published = run.state.parts_of(source.name)
        self._compared: set[int] = set()  # published parts whose pairs are those of the source
        # Of the part that is being read, -1 for none: its builder, if it is packed, and its pairs.
        self._part, self._builder, self._pairs, self._digest = -1, None, 0, xxhash.xxh3_64()
        self._without_samples: list[ShardBuilder] = []  # complete
        self._record: dict | None = None

    def take(self, index: int, digest: bytes) -> ShardBuilder | None:
        """Take the next pair; returns the builder that needs its outcome.

        digest
            8 bytes: XXH3-64 of its file name, a zero, the JPEG and the JSON.

        None does if its part is published, or not wanted. Raises SourceError if the source is not
        the one that the shard before was packed from.
        """
        part = index // self._state.options.samples_per_shard
        if part != self._part:
            self._end_part()
            self._part = part
            done = part in self._published if self._wanted is None else part not in self._wanted
            if not done:
                self._builder = self.builders[part] = ShardBuilder(self._run, self.source, part)
        self._digest.update(digest)
        self._pairs += 1
        return self._builder

    def _end_part(self) -> None:
        """All pairs of the part were read."""
        found = self._pairs, self._digest.hexdigest()
        if self._builder is not None:
            self._builder.close(*found)
        elif self._part in self._published:
            recorded = self._published[self._part].attributes
            if found != (recorded["pairs"], recorded["pairs_digest"]):
                raise self._other_pairs(self._part)
            self._compared.add(self._part)
        self._builder, self._pairs = None, 0
        self._digest.reset()

    def _other_pairs(self, part: int) -> SourceError:
        name = self._published[part].entry.name
        return SourceError(
            f"{self.source.path}: its pairs differ from those that {name} was packed from; restore "
            "the original file, or remove that shard to pack it again"
        )

    def end(self, pairs: int) -> list[Reject]:
        """The source was read to its end, `pairs` pairs in all. Returns the reader's rejects.

        Raises SourceError unless it is the source that was packed, and that a list demands.
        """
        path, reader = self.source.path, self.reader
        self._end_part()
        for part in sorted(self._published.keys() - self._compared):
            raise self._other_pairs(part)
        found = {"xxh128": reader.xxh128, "md5": reader.md5, "pairs": pairs}
        if (packed := self._state.sources.get(self.source.name)) is not None:
            # Packs of earlier releases have the md5 alone.
            for key in ("md5" if packed.get("xxh128") is None else "xxh128", "pairs"):
                if found[key] != packed[key]:
                    raise SourceError(
                        f"{path}: {DIGEST_NAMES.get(key, key)} is {found[key]}, but the pack was "
                        f"made from a source with {packed[key]}; restore the original file"
                    )
        expected = self._run.request.sums.get(self.source.name)
        if None not in (expected, reader.md5) and reader.md5 != expected:
            raise SourceCorrupt(
                f"{path}: its md5 is {reader.md5}, but the list says {expected}; {remedy(path)}"
            )
        rejects = [
            replace(reject, member=reject.member.removeprefix("./")) for reject in reader.rejects
        ]
        self._record = {
            **found,
            "name": self.source.name,
            "kind": self.source.kind,
            "nbytes": self.source.nbytes,
            "md5_checked": expected is not None,
            "ignored": dict(sorted(reader.ignored.items())),
            "ignored_names": reader.ignored_names,
            "rejects": [reject.as_json() for reject in rejects],
        }
        return rejects

    def fail(self, error: SourceError) -> None:
        """Give the source up.

        Shards of which all pairs were read are still completed, so that what stays does not depend
        on how far the workers were; none is if the source's bytes cannot be trusted.
        """
        self.error = error
        for builder in list(self.builders.values()):
            corrupt = isinstance(error, SourceCorrupt) and builder.publication is None
            if corrupt or not builder.closed:
                del self.builders[builder.part]
                builder.end()

    def poll(self) -> None:
        """Enter the shards published since; after the last one, finish the source.

        Raises what writing or publishing raised.
        """
        for builder in list(self.builders.values()):
            if builder.error is not None:
                raise builder.error
            if builder.publication is not None and builder.publication.done():
                self._enter(builder)
        if self.builders or self.finished:
            return
        if self.error is not None:
            # One that was packed to its end before keeps its shards: they came from sound bytes.
            packed = self.source.name in self._state.sources
            corrupt = isinstance(self.error, SourceCorrupt) and not packed
            if corrupt and (withdrawn := self._state.withdraw(self.source.name)):
                self.error.add_note(f"withdrawn with it: {counted(withdrawn, 'shard')}")
            self.finished = True
        elif self._record is not None:
            for builder in sorted(self._without_samples, key=lambda builder: -builder.part):
                self._record["rejects"] = builder.rejects + self._record["rejects"]
            self._record["dropped"] = sum(builder.dropped for builder in self._without_samples)
            self._state.finish_source(self._record, at_once=isinstance(self.source.path, Address))
            self.finished = True

    def _enter(self, builder: ShardBuilder) -> None:
        """Enter a shard whose publication has ended; raises what that raised."""
        shard = builder.publication.result()
        builder.end()
        del self.builders[builder.part]
        if shard is None:
            self._without_samples.append(builder)
        else:
            self._state.add_shard(shard)

    def stop(self) -> None:
        """Wait for the shards in publication, and discard all others."""
        for builder in list(self.builders.values()):
            if builder.publication is not None and builder.publication.exception() is None:
                self._enter(builder)
            else:
                builder.end()
        self.builders.clear()


@contextmanager
def stopped_on_error(packers: Sequence[SourcePacker]) -> Iterator[None]:
    """Stop all packers if the block raises: after that, none of their threads writes."""
    try:
        yield
    except BaseException:
        for packer in packers:
            packer.stop()
        raise


def read_source(
    run: PackRun, packer: SourcePacker, held: AbstractContextManager = _NOT_HELD
) -> Iterator[tuple[ShardBuilder, Pair, int]]:
    """Read a source to its end, unless the run is stopping. An error of it stays in its packer.

    Yields each pair that must be decoded, with the builder that needs its outcome, and the bytes of
    the source read so far.

    held    a lock for the calls of the packer and of the progress
    """
    source, progress, pairs = packer.source, run.progress, 0
    try:
        with PairReader(
            source, spool_dir=run.state.root, md5=run.request.md5, on_wait=report
        ) as reader:
            packer.reader = reader
            if run.stopping.is_set():  # before who stops it could see the reader
                return
            for pair in reader:
                if run.stopping.is_set():
                    return
                pairs += 1
                digest = xxhash.xxh3_64(pair.file_name.encode() + b"\0")
                digest.update(pair.jpeg)
                digest.update(pair.json)
                with held:
                    builder = packer.take(pair.index, digest.digest())
                    if builder is None:
                        progress.advance(source, reader.bytes_read)
                if builder is not None:
                    yield builder, pair, reader.bytes_read
            with held:
                for reject in packer.end(pairs):
                    progress.reject(source, reject)
    except SourceError as error:
        with held:
            packer.fail(error)
    with held:
        progress.source_done(source)


def pack_inline(run: PackRun, packers: Sequence[SourcePacker]) -> None:
    """Run every packer in this process, one pair after the other: `--workers 1`.

    Only writing, and md5 if it is asked for, have threads of their own. Errors of a source stay in
    its packer; others are raised.
    """
    options = run.state.options
    free: SimpleQueue[Buffers] = SimpleQueue()
    for _ in range(SAMPLES_IN_MEMORY):
        free.put(Buffers(options))
    with stopped_on_error(packers):
        for number, packer in enumerate(packers):
            for builder, pair, bytes_read in read_source(run, packer):
                interrupts.check()
                buffers = free.get()
                outcome = attempt(pair.file_name, pair.jpeg, pair.json, options, buffers)
                builder.resolve(pair.index, outcome, partial(free.put, buffers))
                run.progress.done(packer.source, outcome, bytes_read)
                packer.poll()
            for earlier in packers[: number + 1]:
                earlier.poll()
        for packer in packers:
            wait([builder.publication for builder in packer.builders.values()])
            packer.poll()
