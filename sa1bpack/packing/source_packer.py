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
from sa1bpack.format.manifest import DIGEST_NAMES
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.packing.options import Request
from sa1bpack.packing.pack_state import PackState, PublishedShard, shard_name
from sa1bpack.packing.progress import Progress, report
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
    sample, so without one nothing is left on disk, and `without_samples` stays true. Only the
    shard's thread creates files: Ctrl-C is raised in the main thread alone, so nothing is created
    that `end` does not know of.

    closed
        No further pair will come.
    publication
        The published shard to come, once `publish` was called.
    """

    def __init__(self, run: PackRun, source: str, part: int):
        self.part = part
        self.closed = False
        self.publication: Future[PublishedShard] | None = None
        self.rejects: list[Reject] = []
        self.unknown_keys: set[str] = set()
        self.dropped = 0
        self._run, self._source = run, source
        self._pairs_digest = xxhash.xxh3_64()
        self._first = self._next = self._end = part * run.state.options.samples_per_shard
        self._early: dict[int, tuple[Outcome, Callable[[], object]]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._writer: ShardWriter | None = None
        self._error: BaseException | None = None
        self._ended = False

    @property
    def complete(self) -> bool:
        """Every pair has been read, and has its outcome; packed ones were handed to the thread."""
        return self.closed and self._next == self._end

    @property
    def without_samples(self) -> bool:
        """No sample is packed yet."""
        return self._thread is None

    def begin(self, digest: bytes) -> None:
        """The next pair, in the order of the source, has this digest."""
        self._pairs_digest.update(digest)
        self._end += 1

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
                self.rejects.append(outcome)
            else:
                self.dropped += 1

    def check(self) -> None:
        """Raise what writing has raised so far."""
        if self._error is not None:
            raise self._error

    def publish(self) -> None:
        """Begin to publish the shard, which must be complete and have samples."""
        self._run.publications.acquire()
        attributes = {
            "source": self._source,
            "part": self.part,
            "first_pair": self._first,
            "pairs": self._end - self._first,
            "pairs_digest": self._pairs_digest.hexdigest(),
            "dropped": self.dropped,
            "rejects": [reject.as_json() for reject in self.rejects],
            "unknown_keys": sorted(self.unknown_keys),
            "packed_by": self._run.packed_by,
            "options": self._run.state.options.to_json(),
        }
        self.publication = self._thread.submit(self._publish, attributes)

    def end(self) -> None:
        """Release all rows, and discard the shard unless it is published."""
        self._ended = True
        for _, release in self._early.values():
            release()
        self._early.clear()
        if self._thread is not None:
            self._thread.submit(self._discard).result()
            thread, self._thread = self._thread, None  # first: Ctrl-C may come while it ends
            thread.shutdown()
        self._error = None  # its traceback keeps this object and rows alive

    # What the thread does, one after the other

    def _append(self, rows: Mapping[str, np.ndarray], release: Callable[[], object]) -> None:
        try:
            try:
                if self._error is None and not self._ended:
                    if self._writer is None:
                        state, name = self._run.state, shard_name(self._source, self.part)
                        self._writer = ShardWriter(state.shards_dir, name, state.options.layout)
                    self._writer.append(rows)
            finally:
                release()
        except BaseException as error:  # whatever it is, the run must end with it
            self._error = self._error or error

    def _publish(self, attributes: dict) -> PublishedShard:
        try:
            self.check()
            return PublishedShard(self._writer.publish(attributes), attributes)
        finally:
            self._run.publications.release()

    def _discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class SourcePacker:
    """The packing of one source, for one thread at a time.

    `read_source` has it `take` the pairs in order, and ends with `end` or `fail`; who has them
    decoded calls `resolve`, in any order. `finished` becomes true when every shard of the source is
    published and its record is in the pack state.
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
        self._run, self._state, self._wanted = run, run.state, wanted
        self._published = run.state.parts_of(source.name)
        self._compared: set[int] = set()  # published parts whose pairs are those of the source
        self._part, self._pairs, self._digest = -1, 0, xxhash.xxh3_64()  # of the pairs just skipped
        self._without_samples: list[ShardBuilder] = []  # complete
        self._record: dict | None = None
        self._reader: PairReader | None = None

    def _part_of(self, index: int) -> int:
        return index // self._state.options.samples_per_shard

    def wants(self, index: int) -> bool:
        """Whether the outcome of a pair that was begun is still needed."""
        return self._part_of(index) in self.builders

    def take(self, index: int, digest: bytes) -> bool:
        """Take the next pair, by its `pair_digest`; returns whether it must be decoded.

        It need not if its part is published, or not wanted. Raises SourceError if the source is not
        the one that the shard before was packed from.
        """
        part = self._part_of(index)
        self._move_to(part)
        done = part in self._published if self._wanted is None else part not in self._wanted
        if done:
            self._digest.update(digest)
            self._pairs += 1
            return False
        if part not in self.builders:
            self.builders[part] = ShardBuilder(self._run, self.source.name, part)
        self.builders[part].begin(digest)
        return True

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take the outcome of a pair; `release` is called when its rows are no longer needed."""
        builder = self.builders[self._part_of(index)]
        builder.resolve(index, outcome, release)
        self._publish_if_complete(builder)

    def _move_to(self, part: int) -> None:
        """The next pair is of this part: all pairs of the one before it were read."""
        before, self._part = self._part, part
        if part == before:
            return
        if before in self.builders:
            self.builders[before].closed = True
            self._publish_if_complete(self.builders[before])
        elif before in self._published:
            recorded = self._published[before].attributes
            found = self._pairs, self._digest.hexdigest()
            if found != (recorded["pairs"], recorded["pairs_digest"]):
                raise self._other_pairs(before)
            self._compared.add(before)
        self._pairs = 0
        self._digest.reset()

    def _other_pairs(self, part: int) -> SourceError:
        name = self._published[part].entry.name
        return SourceError(
            f"{self.source.path}: its pairs differ from those that {name} was packed from; restore "
            "the original file, or remove that shard to pack it again"
        )

    def _publish_if_complete(self, builder: ShardBuilder) -> None:
        if builder.complete and builder.without_samples:
            self._without_samples.append(self.builders.pop(builder.part))
        elif builder.complete:
            builder.publish()

    def end(self, reader: PairReader, pairs: int) -> list[Reject]:
        """The source was read to its end, `pairs` pairs in all. Returns the reader's rejects."""
        found = {"xxh128": reader.xxh128, "md5": reader.md5, "pairs": pairs}
        try:
            self._move_to(-1)
            self._check(found)
        except SourceError as error:
            self.fail(error)
            return []
        rejects = [
            replace(reject, member=reject.member.removeprefix("./")) for reject in reader.rejects
        ]
        self._record = {
            **found,
            "name": self.source.name,
            "kind": self.source.kind,
            "nbytes": self.source.nbytes,
            "md5_checked": self.source.name in self._run.request.sums,
            "ignored": dict(sorted(reader.ignored.items())),
            "ignored_names": reader.ignored_names,
            "rejects": [reject.as_json() for reject in rejects],
        }
        return rejects

    def _check(self, found: dict) -> None:
        """Raise SourceError unless this is the source that was packed, and that a list demands."""
        path = self.source.path
        for part in sorted(self._published.keys() - self._compared):
            raise self._other_pairs(part)
        if (packed := self._state.sources.get(self.source.name)) is not None:
            # Packs of earlier releases have the md5 alone.
            for key in ("md5" if packed.get("xxh128") is None else "xxh128", "pairs"):
                if found[key] != packed[key]:
                    raise SourceError(
                        f"{path}: {DIGEST_NAMES.get(key, key)} is {found[key]}, but the pack was "
                        f"made from a source with {packed[key]}; restore the original file"
                    )
        expected = self._run.request.sums.get(self.source.name)
        if None not in (expected, found["md5"]) and found["md5"] != expected:
            raise SourceCorrupt(
                f"{path}: its md5 is {found['md5']}, but the list says {expected}; {remedy(path)}"
            )

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
            builder.check()
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
            builders = sorted(self._without_samples, key=lambda builder: builder.part)
            rejects = [reject.as_json() for builder in builders for reject in builder.rejects]
            self._record["rejects"] = rejects + self._record["rejects"]
            self._record["dropped"] = sum(builder.dropped for builder in builders)
            self._state.finish_source(self._record, at_once=isinstance(self.source.path, Address))
            self.finished = True

    def _enter(self, builder: ShardBuilder) -> None:
        """Enter a shard whose publication has ended; raises what that raised."""
        shard = builder.publication.result()
        builder.end()
        del self.builders[builder.part]
        self._state.add_shard(shard)

    def wait(self) -> None:
        """Wait for the shards in publication, and finish the source."""
        wait([builder.publication for builder in self.builders.values() if builder.publication])
        self.poll()

    def stop(self) -> None:
        """Wait for the shards in publication, and discard all others."""
        for builder in list(self.builders.values()):
            if builder.publication is not None and builder.publication.exception() is None:
                self._enter(builder)
            else:
                builder.end()
        self.builders.clear()

    def open_reader(self) -> PairReader:
        """A reader of the source, which spills to a file in the pack's folder."""
        self._reader = PairReader(
            self.source, spool_dir=self._state.root, md5=self._run.request.md5, on_wait=report
        )
        return self._reader

    def cancel(self) -> None:
        """End a wait for the network in the thread that reads. For any thread."""
        if self._reader is not None:
            self._reader.cancel()


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
    run: PackRun,
    packer: SourcePacker,
    decode: Callable[[SourcePacker, Pair, int], object],
    held: AbstractContextManager = _NOT_HELD,
) -> None:
    """Read a source to its end, unless the run is stopping. An error of it stays in its packer.

    decode  called with each pair that must be decoded, and the bytes of the source read so far
    held    a lock for the calls of the packer and of the progress
    """
    source, progress, pairs = packer.source, run.progress, 0
    try:
        with packer.open_reader() as reader:
            if run.stopping.is_set():  # before `cancel` could see the reader
                return
            for pair in reader:
                if run.stopping.is_set():
                    return
                pairs += 1
                digest = pair_digest(pair)
                with held:
                    wanted = packer.take(pair.index, digest)
                    if not wanted:
                        progress.advance(source, reader.bytes_read)
                if wanted:
                    decode(packer, pair, reader.bytes_read)
            with held:
                for reject in packer.end(reader, pairs):
                    progress.reject(source, reject)
    except SourceError as error:
        with held:
            packer.fail(error)
    with held:
        progress.source_done(source)


def pair_digest(pair: Pair) -> bytes:
    """8 bytes that identify a pair: XXH3-64 of its file name, a zero, the JPEG and the JSON."""
    digest = xxhash.xxh3_64(pair.file_name.encode() + b"\0")
    digest.update(pair.jpeg)
    digest.update(pair.json)
    return digest.digest()


def pack_inline(run: PackRun, packers: Sequence[SourcePacker]) -> None:
    """Run every packer in this process, one pair after the other: `--workers 1`.

    Only writing, and md5 if it is asked for, have threads of their own. Errors of a source stay in
    its packer; others are raised.
    """
    options = run.state.options
    free: SimpleQueue[Buffers] = SimpleQueue()
    for _ in range(SAMPLES_IN_MEMORY):
        free.put(Buffers(options))

    def decode(packer: SourcePacker, pair: Pair, bytes_read: int) -> None:
        interrupts.check()
        buffers = free.get()
        outcome = attempt(pair.file_name, pair.jpeg, pair.json, options, buffers)
        packer.resolve(pair.index, outcome, partial(free.put, buffers))
        run.progress.done(packer.source, outcome, bytes_read)
        packer.poll()

    with stopped_on_error(packers):
        for number, packer in enumerate(packers):
            read_source(run, packer, decode)
            for earlier in packers[: number + 1]:
                earlier.poll()
        for packer in packers:
            packer.wait()
