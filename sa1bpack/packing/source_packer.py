"""The packing of sources: which pairs need work, which shard each belongs to, what failed.

A source is read by one thread, which has its pairs decoded and hands what becomes of them, as
futures in the order of the tar, to the thread of their shard. That waits for each, writes it and
publishes the shard, while other samples are decoded. What threads have done is entered into the
ledger of the pack by the thread of the run, in `settle`.
"""

import resource
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event
from typing import Any

import xxhash

from sa1bpack import interrupts
from sa1bpack.errors import PackError, Sa1bpackError, SourceCorrupt, SourceError
from sa1bpack.format.manifest import DIGEST_NAMES, shard_name
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.packing.options import Request
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.publishers import ShardSink
from sa1bpack.packing.records import EmptyShard, PublishedShard, SourceRead
from sa1bpack.packing.sample import Buffers, Outcome, Packed, attempt
from sa1bpack.packing.workers import Workers
from sa1bpack.progress import report
from sa1bpack.source.find import Source
from sa1bpack.source.inflate import remedy
from sa1bpack.source.pairs import Pair, PairReader, Reject
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import Address
from sa1bpack.wording import counted

# Shards of a run that may be complete and not yet entered, besides one of each source that is read:
# each keeps its files open, and on a disk that is slow to flush they would become many.
MAX_IN_PUBLICATION = 4

# One thread inflates and hashes as much as this many workers decode (benchmarks/inflate.py).
WORKERS_PER_READER_THREAD = 6

# Tars at URLs that are read at once by default: a stream is often slower than a thread inflates.
DOWNLOADS = 4

# Samples in memory of a run without workers: one being decoded, one being written, one waiting.
SAMPLES_IN_MEMORY = 3

# Files that a run may have open, where the system lets it: more than any needs.
_OPEN_FILES = 1 << 16

# Threads that a run may have: more than it ever needs, see MAX_IN_PUBLICATION.
_MOST_THREADS = 10_000
_POLL_SECONDS = 0.05  # the longest wait without a look at what else has happened


class PackRun:
    """The objects that the packers of one run share.

    Attributes:
        sink: what takes the shards.
        ledger: what it has.
        request: the run's request; among others, whether md5s are computed, and what they must be.
        progress: the counter of pairs.
        packed_by: package → version, recorded in every shard.
        stopping: set once no further pair is wanted.
        threads: executor that writes shards, and serves workers.
        open_shards: released when a shard has been entered, or discarded.
        unfinished: number of packers that are not finished.
    """

    def __init__(
        self, sink: ShardSink, request: Request, progress: Progress, packed_by: dict[str, str]
    ):
        self.sink = sink
        self.ledger = sink.ledger
        self.request = request
        self.progress = progress
        self.packed_by = packed_by
        self.stopping = Event()
        self.unfinished = 0
        self.threads = ThreadPool(_MOST_THREADS, "sa1bpack-packing")
        self._then: dict[Future, Callable[[Any], object]] = {}  # of the work not settled yet
        self._done: SimpleQueue[Future] = SimpleQueue()  # wakes `settle`
        self.open_shards = BoundedSemaphore(MAX_IN_PUBLICATION + readers_of(request))

    def start(
        self,
        work: Callable[[], object],
        then: Callable[[Any], object],
        threads: ThreadPool | None = None,
    ) -> Future:
        """Do some work in a thread, and have its result passed to `then` by `settle`."""
        future = (threads or self.threads).submit(work)
        self._then[future] = then
        future.add_done_callback(self._done.put)
        return future

    def fail(self, error: BaseException) -> None:
        """End the run with an error of a thread."""
        failed: Future = Future()
        failed.set_exception(error)
        self._then[failed] = report
        self._done.put(failed)

    def settle(self, seconds: float = 0.0) -> None:
        """Take over what threads have done, waiting for something; raise what one has raised."""
        interrupts.check()
        waits = seconds > 0
        with suppress(Empty):
            while True:
                self._take_over(self._done.get(seconds > 0, seconds))
                seconds = 0.0
        if waits:  # a thread may have run out of memory between its work and the queue
            for future in list(self._then):
                if future.done():
                    self._take_over(future)

    def _take_over(self, future: Future) -> None:
        """Pass on the result of some work that is done, unless it has been already."""
        then = self._then.pop(future, None)
        if then is not None:
            then(future.result())

    def stop(self, packers: "list[SourcePacker]", decoder: "InlineDecoder | Workers") -> None:
        """End every wait of the threads."""
        self.stopping.set()
        for packer in packers if self.unfinished else ():
            if packer.reader is not None:
                packer.reader.cancel()
        decoder.stop()

    def open_shard(self) -> None:
        """Wait until one more shard may be open, or the run is stopping. In a thread that reads."""
        while not self.open_shards.acquire(timeout=_POLL_SECONDS) and not self.stopping.is_set():
            if self.request.workers == 1:  # this is the thread of the run
                self.settle()


# An outcome, and what to call, in any thread, when its rows are no longer needed.
Made = tuple[Outcome, Callable[[], object]]


class InlineDecoder:
    """A decoder in the thread of the run; `workers.Workers` decodes in other processes."""

    def __init__(self, run: PackRun):
        self._run = run
        self._free: SimpleQueue[Buffers] = SimpleQueue()
        for _ in range(SAMPLES_IN_MEMORY):
            self._free.put(Buffers(run.ledger.options))

    def decode(self, source: Source, pair: Pair, bytes_read: int) -> Future[Made]:
        """The outcome of a pair, as a future. Waits for memory; here, the pair is decoded at once.

        Args:
            source: source of the pair.
            pair: the pair to decode.
            bytes_read: bytes of the source that were read so far.
        """
        buffers = None
        while buffers is None:
            self._run.settle()
            with suppress(Empty):
                buffers = self._free.get(timeout=_POLL_SECONDS)
        outcome = attempt(pair.file_name, pair.jpeg, pair.json, self._run.ledger.options, buffers)
        self._run.progress.done(source, outcome, bytes_read)
        made: Future[Made] = Future()
        made.set_result((outcome, partial(self._free.put, buffers)))
        return made

    def stop(self) -> None:
        """End every wait in `decode`, and cancel what is not made: the run is stopping."""

    close = stop  # no rows are needed any more: free their memory


# What was made of the pairs of a shard: it is published, or has no samples.
BuiltShard = PublishedShard | EmptyShard


class ShardBuilder:
    """The builder of a shard: `samples_per_shard` pairs of a source, the last of fewer.

    Its thread takes outcomes in the order of the pairs. Writing begins with the first packed
    sample, so without one nothing is left on disk. Only that thread creates files: Ctrl-C is raised
    in the main thread alone, so nothing is created that the thread does not know of.

    Attributes:
        found: number of pairs of the shard, and the digest of their digests, once all were read.
        discarded: the shard is not published, unless it has been already.
        shard: future of what was made of it; its result is None if it was discarded.
    """

    def __init__(self, run: PackRun, source: Source, number: int):
        self.source = source
        self.number = number
        self.discarded = False
        self.shard: Future[BuiltShard | None] | None = None
        self.rejects: list[dict[str, str]] = []
        self.dropped = 0
        self.made: SimpleQueue[Future[Made] | None] = SimpleQueue()  # of its pairs; None: no more
        self.found = (0, "")
        self._run = run

    def discard(self) -> None:
        """Give the shard up; its thread ends once the pairs that it was given are made."""
        self.discarded = True
        self.made.put(None)

    def build(self) -> BuiltShard | None:
        """Write and publish the shard; None if it was discarded. In its thread."""
        sink = self._run.sink
        options = sink.ledger.options
        writer = None
        unknown = set()
        try:
            while (made := self.made.get()) is not None:
                outcome, release = made.result()
                try:
                    if self.discarded:
                        continue
                    if isinstance(outcome, Packed):
                        if writer is None:
                            name = shard_name(self.source.name, self.number)
                            writer = ShardWriter(sink.shards_dir, name, options.layout)
                        unknown |= outcome.unknown_keys
                        writer.append(outcome.rows)
                    elif isinstance(outcome, Reject):
                        self.rejects.append(outcome.as_json())
                    else:
                        self.dropped += 1
                finally:
                    release()
            if self.discarded:
                return None
            if writer is None:
                return EmptyShard(self.found[0], self.rejects, self.dropped)
            attributes = {
                "source": self.source.name,
                "part": self.number,
                "first_pair": self.number * options.samples_per_shard,
                "pairs": self.found[0],
                "pairs_digest": self.found[1],
                "dropped": self.dropped,
                "rejects": self.rejects,
                "unknown_keys": sorted(unknown),
                "packed_by": self._run.packed_by,
                "options": options.to_json(),
            }
            return PublishedShard(writer.publish(attributes), attributes)
        finally:
            if writer is not None:
                writer.discard()


class SourcePacker:
    """The packing of one source.

    One thread calls `read`. The thread of the run calls `enter` and `finish`, which change the
    ledger of the pack. In the end every shard of the source is entered there, and its record, which
    the ledger makes of them, or it was given up with `error`.
    """

    def __init__(self, run: PackRun, source: Source, wanted: Set[int] | None = None):
        """
        Args:
            run: what all packers of the run share.
            source: the tar or folder.
            wanted: numbers of the shards to pack; None: all that are not published.
        """
        self.source = source
        self.error: SourceError | None = None
        self.builders: dict[int, ShardBuilder] = {}  # of shards that are not entered yet
        self.reader: PairReader | None = None
        self._run = run
        self._sink = run.sink
        self._ledger = run.ledger
        self._wanted = wanted
        self._published = run.ledger.shards_of(source.name)
        self._compared: set[int] = set()  # published shards whose pairs are those of the source
        self._is_other_file = False  # the pairs of some published shard are not those of the source
        # Of the shard that is being read, -1 for none: its builder, if it is packed, and its pairs.
        self._number = -1
        self._builder = None
        self._pairs = 0
        self._digest = xxhash.xxh3_64()
        self._source_read: SourceRead | None = None  # once it was read to its end and is sound
        self._was_read = False

    def read(self, decoder: InlineDecoder | Workers) -> None:
        """Read the source to its end, unless the run is stopping; a SourceError ends up in `error`.

        Shards of which all pairs were read are still completed after an error, so that what stays
        does not depend on how far the workers were; they are withdrawn if the bytes are wrong.
        """
        run = self._run
        source = self.source
        pairs = 0
        try:
            with PairReader(
                source, spool_dir=run.sink.root, md5=run.request.md5, on_wait=report
            ) as reader:
                self.reader = reader
                for pair in reader:
                    if run.stopping.is_set():
                        return
                    pairs += 1
                    digest = xxhash.xxh3_64(pair.file_name.encode() + b"\0")
                    digest.update(pair.jpeg)
                    digest.update(pair.json)
                    self._take(pair.index, digest.digest())
                    if self._builder is None:
                        run.progress.advance(source, reader.bytes_read)
                    else:
                        self._builder.made.put(decoder.decode(source, pair, reader.bytes_read))
                self._end_shard()
                self._check_whole(pairs)
        except SourceError as error:
            self.error = error
        finally:
            if self._builder is not None:  # of which not all pairs were read
                self._builder.discard()
        run.progress.advance(source, source.nbytes)

    def _take(self, index: int, digest: bytes) -> None:
        """Take the next pair: after it, `_builder` is the one that needs its outcome.

        It is None if the shard is published, or not wanted, or if a published one before it was
        packed from other pairs: then the source is only read to its end, to name all of these.
        """
        number = index // self._ledger.options.samples_per_shard
        if number != self._number:
            self._end_shard()
            self._number = number
            done = number in self._published if self._wanted is None else number not in self._wanted
            if not done and not self._is_other_file:
                self._run.open_shard()
                builder = self._builder = ShardBuilder(self._run, self.source, number)
                self.builders[number] = builder
                builder.shard = self._run.start(builder.build, partial(self.enter, builder))
        self._digest.update(digest)
        self._pairs += 1

    def _end_shard(self) -> None:
        """Close the shard that was read, all of whose pairs are known now.

        If it is published, its pairs are compared with those that it was packed from.
        """
        found = self._pairs, self._digest.hexdigest()
        if self._builder is not None:
            self._builder.found = found
            self._builder.made.put(None)
        elif self._number in self._published:
            recorded = self._published[self._number].attributes
            if found == (recorded["pairs"], recorded["pairs_digest"]):
                self._compared.add(self._number)
            else:
                self._is_other_file = True
        self._builder = None
        self._pairs = 0
        self._digest.reset()

    def _other_pairs(self, numbers: Sequence[int]) -> SourceError:
        """The error for published shards that were packed from other pairs than the source has."""
        names = [self._published[number].entry.name for number in numbers]
        message = (
            f"{self.source.path}: it is not the file that {', '.join(names)} "
            f"{'were' if len(names) > 1 else 'was'} packed from: its pairs are others, or in "
            "another order; restore that file"
        )
        if self.source.name not in self._ledger.sources:
            message += (
                ". Or, if that was a truncated copy, "
                f"{self._sink.how_to_remove(names)} and repeat the pack command"
            )
        return SourceError(message)

    def _check_whole(self, pairs: int) -> None:
        """Note what was found in the source, which was read to its end, `pairs` pairs in all.

        Raises SourceError unless it is the source that was packed, and that a list demands.
        """
        path = self.source.path
        reader = self.reader
        if different := sorted(self._published.keys() - self._compared):
            raise self._other_pairs(different)
        found = {"xxh128": reader.xxh128, "md5": reader.md5, "pairs": pairs}
        if (packed := self._ledger.sources.get(self.source.name)) is not None:
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
        unpaired = []
        for reject in reader.rejects:
            self._run.progress.reject(self.source, reject)
            unpaired.append(reject.as_json())
        self._source_read = SourceRead(
            name=self.source.name,
            kind=self.source.kind,
            nbytes=self.source.nbytes,
            xxh128=reader.xxh128,
            md5=reader.md5,
            md5_checked=expected is not None,
            pairs=pairs,
            ignored=dict(sorted(reader.ignored.items())),
            ignored_names=reader.ignored_names,
            unpaired=unpaired,
        )

    def enter(self, builder: ShardBuilder, shard: BuiltShard | None) -> None:
        """Enter a shard whose thread has ended; None if it was discarded.

        If the sink cannot take it, the builder stays among `builders`: the shard is not entered.
        """
        if isinstance(shard, EmptyShard):
            self._ledger.empty[self.source.name, builder.number] = shard
        elif shard is not None:
            self._sink.add_shard(shard)
        del self.builders[builder.number]
        self._run.open_shards.release()
        if self._was_read:
            self.finish()

    def enter_what_is_built(self, error: BaseException) -> None:
        """Enter the shards that are complete when the run ends with an error.

        Errors of that are added to it as notes.
        """
        for builder in list(self.builders.values()):
            if builder.shard is None or builder.shard.exception() is not None:
                continue
            try:
                self.enter(builder, builder.shard.result())
            except (OSError, Sa1bpackError) as second:
                name = shard_name(self.source.name, builder.number)
                error.add_note(f"{name} is not entered: {second}")

    def finish(self, _: object = None) -> None:
        """Enter the record of the source, read to its end or given up, after its last shard."""
        self._was_read = True
        if self.builders:
            return
        if self.error is None:
            if self._source_read is None:
                raise PackError(f"{self.source.path}: not read to its end; repeat the command")
            at_once = isinstance(self.source.path, Address)
            self._sink.finish_source(self._source_read, at_once=at_once)
        # One that was packed to its end before keeps its shards: they came from sound bytes.
        elif (
            isinstance(self.error, SourceCorrupt)
            and self.source.name not in self._ledger.sources
            and (withdrawn := self._sink.withdraw(self.source.name))
        ):
            self.error.add_note(f"withdrawn with it: {counted(withdrawn, 'shard')}")
        self._run.unfinished -= 1


def readers_of(request: Request) -> int:
    """The number of sources that are read at once, if there are as many.

    Of sources at URLs, as many as the request says; by default DOWNLOADS, but no more than there
    are workers, and at least as many as of files.
    """
    readers = -(-request.workers // WORKERS_PER_READER_THREAD)
    if request.workers > 1 and any(isinstance(each.path, Address) for each in request.sources):
        readers = request.downloads or max(readers, min(DOWNLOADS, request.workers))
    return readers


def pack_sources(
    run: PackRun, todo: list[Source], wanted: Mapping[str, Set[int]] | None = None
) -> dict[str, SourceError]:
    """Publish the shards of these sources.

    After an error, shards that are complete are published, others are discarded, and no thread and
    no process is left.

    Args:
        todo: sources to pack.
        wanted: name of a source → numbers of shards to pack. Default: all that are not published.

    Returns:
        name → error, of the sources that were given up.

    Raises:
        Whatever else ends the run.
    """
    packers = []
    for source in todo:
        packers.append(SourcePacker(run, source, wanted and wanted[source.name]))
    if not packers:
        return {}
    # A shard that is built has some twenty files open, and the soft limit is usually 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    run.unfinished = len(packers)
    inline = run.request.workers == 1
    readers = min(len(packers), readers_of(run.request))
    decoder = InlineDecoder(run) if inline else Workers(run, readers)
    try:
        with (
            closing(decoder),
            run.threads,
            ThreadPool(readers, "sa1bpack-reader") as reading,
        ):
            try:
                for _ in range(0 if inline else run.request.workers):
                    run.threads.submit(decoder.serve)
                for packer in packers:
                    if inline:
                        packer.read(decoder)
                        packer.finish()
                    else:
                        run.start(partial(packer.read, decoder), packer.finish, reading)
                while run.unfinished:
                    run.settle(_POLL_SECONDS)
            finally:
                reading.shutdown(wait=False, cancel_futures=True)
                try:
                    run.stop(packers, decoder)
                finally:  # all of it: Ctrl-C may come meanwhile, and a thread that waits would stay
                    run.stop(packers, decoder)
    except BaseException as error:
        for packer in packers:
            packer.enter_what_is_built(error)
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    failed = {}
    for packer in packers:
        if packer.error is not None:
            failed[packer.source.name] = packer.error
    return failed
