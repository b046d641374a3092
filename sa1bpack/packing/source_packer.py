"""Packs one source: which pairs need work, which shard each belongs to, what failed.

The samples of a shard are appended in the order of the tar, whichever is decoded first. Threads of
the run write the files and publish the shards, while others are decoded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import BoundedSemaphore

import numpy as np
import xxhash

from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import PackState, PublishedShard, shard_name
from sa1bpack.packing.progress import report
from sa1bpack.packing.sample import Outcome, Packed
from sa1bpack.source.find import Source
from sa1bpack.source.inflate import remedy
from sa1bpack.source.pairs import Pair, PairReader, Reject
from sa1bpack.urls import Address
from sa1bpack.wording import counted

# Shards of a run that may be in publication at once; decoding waits for them. Each keeps all of its
# files open, and on a disk that is slow to flush they would become many.
MAX_IN_PUBLICATION = 4


class WriterThreads:
    """The threads of one run, one for each shard that is open: a context manager that ends them.

    They mostly wait for the disk and for the digest, and neither holds the GIL. A thread is used
    again for a later shard: one that ended meanwhile would call into Python from the garbage
    collector, where the exception of a signal is lost.

    publications
        A semaphore of MAX_IN_PUBLICATION; a shard holds it while it is being published.
    free
        Threads that no shard uses.
    """

    def __init__(self):
        self.publications = BoundedSemaphore(MAX_IN_PUBLICATION)
        self.free: list[Executor] = []
        self._all: list[Executor] = []

    def take(self) -> Executor:
        """A thread for a shard, which puts it back into `free`."""
        if not self.free:
            self._all.append(ThreadPoolExecutor(1, "sa1bpack-writer"))
            return self._all[-1]
        return self.free.pop()

    def __enter__(self) -> "WriterThreads":
        return self

    def __exit__(self, *_) -> None:
        for thread in self._all:
            thread.shutdown()


class ShardBuilder:
    """Builds the shard of one part of a source: of `samples_per_shard` pairs, the last of fewer.

    An outcome takes effect after those of all earlier pairs. Writing begins with the first packed
    sample, so without one nothing is left on disk, and `hollow` stays true. Only the shard's thread
    creates files: Ctrl-C is raised in the main thread alone, so nothing is created that `end` does
    not know of.

    closed
        No further pair will come.
    publication
        The manifest entry to come, once `publish` was called; `attributes` are then those that the
        shard records.
    """

    def __init__(
        self, source: str, part: int, shards_dir: Path, options: PackOptions, writers: WriterThreads
    ):
        self.part = part
        self.closed = False
        self.publication: Future[ShardEntry] | None = None
        self.attributes: dict = {}
        self.rejects: list[Reject] = []
        self.unknown_keys: set[str] = set()
        self.dropped = 0
        self._source, self._shards_dir = source, shards_dir
        self._options, self._writers = options, writers
        self._pairs_digest = xxhash.xxh3_64()
        self._first = self._next = self._end = part * options.samples_per_shard
        self._early: dict[int, tuple[Outcome, Callable[[], object]]] = {}
        self._thread: Executor | None = None
        self._writer: ShardWriter | None = None
        self._error: BaseException | None = None
        self._ended = False

    @property
    def complete(self) -> bool:
        """Every pair has been read, and has its outcome; packed ones were handed to the thread."""
        return self.closed and self._next == self._end

    @property
    def hollow(self) -> bool:
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
                    self._thread = self._writers.take()
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

    def publish(self, packed_by: dict[str, str]) -> None:
        """Begin to publish the shard, which must be complete and not hollow."""
        self._writers.publications.acquire()
        self.attributes = {
            "source": self._source,
            "part": self.part,
            "first_pair": self._first,
            "pairs": self._end - self._first,
            "pairs_digest": self._pairs_digest.hexdigest(),
            "dropped": self.dropped,
            "rejects": [reject.as_json() for reject in self.rejects],
            "unknown_keys": sorted(self.unknown_keys),
            "packed_by": packed_by,
            "options": self._options.to_json(),
        }
        self.publication = self._thread.submit(self._publish)

    def end(self) -> None:
        """Release all rows, and discard the shard unless it is published."""
        self._ended = True
        for _, release in self._early.values():
            release()
        self._early.clear()
        if self._thread is not None:
            self._thread.submit(self._discard).result()
            self._writers.free.append(self._thread)
            self._thread = None
        self._error = None  # its traceback keeps this object and rows alive

    # What the thread does, one after the other

    def _append(self, rows: Mapping[str, np.ndarray], release: Callable[[], object]) -> None:
        try:
            try:
                if self._error is None and not self._ended:
                    if self._writer is None:
                        name = shard_name(self._source, self.part)
                        self._writer = ShardWriter(self._shards_dir, name, self._options.layout)
                    self._writer.append(rows)
            finally:
                release()
        except BaseException as error:  # whatever it is, the run must end with it
            self._error = self._error or error

    def _publish(self) -> ShardEntry:
        try:
            self.check()
            return self._writer.publish(self.attributes)
        finally:
            self._writers.publications.release()

    def _discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class SourcePacker:
    """The packing of one source, driven from one thread (see `execution`).

    The driver asks `is_published` which pairs to `skip`, calls `begin` in order and `resolve` in
    any order for the others, and ends with `end` or `fail`. `finished` becomes true when every
    shard of the source is published and its record is in the pack state.
    """

    def __init__(
        self,
        source: Source,
        state: PackState,
        writers: WriterThreads,
        packed_by: dict[str, str],
        *,
        md5: bool = False,
        expected_md5: str | None = None,
        wanted: Set[int] | None = None,
    ):
        """
        writers
            The threads of the run, shared by its packers.
        packed_by
            Package → version, recorded in every shard.
        md5
            Whether to compute the source's md5.
        expected_md5
            What it must be, if a list says so; `md5` is then true.
        wanted
            The parts to pack; None: all that are not published.
        """
        self.source = source
        self.finished = False
        self.error: SourceError | None = None
        self.builders: dict[int, ShardBuilder] = {}
        self._state = state
        self._writers = writers
        self._packed_by = packed_by
        self._md5, self._expected_md5 = md5, expected_md5
        self._wanted = wanted
        self._published = {
            part: _PublishedPart(shard) for part, shard in state.parts_of(source.name).items()
        }
        self._last_part = -1
        self._hollow: dict[int, ShardBuilder] = {}  # complete, but without a packed sample
        self._rejects: list[Reject] = []
        self._facts: dict | None = None

    def _part_of(self, index: int) -> int:
        return index // self._state.options.samples_per_shard

    def is_published(self, index: int) -> bool:
        """Whether the pair lies in a part that is published, or not wanted. For any thread."""
        part = self._part_of(index)
        return part not in self._wanted if self._wanted is not None else part in self._published

    def wants(self, index: int) -> bool:
        """Whether the outcome of a pair that was begun is still needed."""
        return self._part_of(index) in self.builders

    def skip(self, index: int, digest: bytes) -> None:
        """Compare a pair of a published shard, if it is of one, by its `pair_digest`.

        Raises SourceError if the source is not the one that the shard was packed from.
        """
        part = self._part_of(index)
        self._close_all_but(part)
        if part in self._published:
            self._published[part].check(digest, self.source.path)

    def begin(self, index: int, digest: bytes) -> None:
        """A pair with this `pair_digest` will be decoded; called in the order of the pairs."""
        part = self._part_of(index)
        self._close_all_but(part)
        if part not in self.builders:
            self.builders[part] = ShardBuilder(
                self.source.name, part, self._state.shards_dir, self._state.options, self._writers
            )
        self.builders[part].begin(digest)

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take the outcome of a pair; `release` is called when its rows are no longer needed."""
        builder = self.builders[self._part_of(index)]
        builder.resolve(index, outcome, release)
        self._publish_if_complete(builder)

    def _close_all_but(self, part: int) -> None:
        """The next pair is of this part: close the shard before it."""
        if part != self._last_part and self._last_part in self.builders:
            builder = self.builders[self._last_part]
            builder.closed = True
            self._publish_if_complete(builder)
        self._last_part = part

    def _publish_if_complete(self, builder: ShardBuilder) -> None:
        if builder.complete and builder.hollow:
            self._hollow[builder.part] = self.builders.pop(builder.part)
        elif builder.complete:
            builder.publish(self._packed_by)

    def end(self, reader: PairReader, pairs: int) -> list[Reject]:
        """The source was read to its end, `pairs` pairs in all. Returns the reader's rejects."""
        self._close_all_but(part=-1)
        try:
            for published in self._published.values():
                published.check_end(pairs, self.source.path)
            expected = self._expected_md5
            if expected is not None and reader.md5 is not None and reader.md5 != expected:
                raise SourceCorrupt(
                    f"{self.source.path}: its md5 is {reader.md5}, but the list says "
                    f"{expected}; {remedy(self.source.path)}"
                )
        except SourceError as error:
            self.fail(error)
            return []
        self._facts = {
            "name": self.source.name,
            "kind": self.source.kind,
            "nbytes": self.source.nbytes,
            "xxh128": reader.xxh128,
            "md5": reader.md5,
            "md5_checked": expected is not None,
            "pairs": pairs,
            "ignored": dict(sorted(reader.ignored.items())),
            "ignored_names": reader.ignored_names,
        }
        self._rejects = [
            replace(reject, member=reject.member.removeprefix("./")) for reject in reader.rejects
        ]
        return self._rejects

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
            if isinstance(self.error, SourceCorrupt):
                withdrawn = self._state.withdraw(self.source.name)
                if withdrawn:
                    self.error.add_note(f"withdrawn with it: {counted(withdrawn, 'shard')}")
            self.finished = True
        elif self._facts is not None:
            hollow = [builder for _, builder in sorted(self._hollow.items())]
            rejects = [reject for builder in hollow for reject in builder.rejects]
            record = {
                **self._facts,
                "dropped": sum(builder.dropped for builder in hollow),
                "rejects": [reject.as_json() for reject in rejects + self._rejects],
            }
            self._state.finish_source(record, at_once=isinstance(self.source.path, Address))
            self.finished = True

    def _enter(self, builder: ShardBuilder) -> None:
        """Enter a shard whose publication has ended; raises what that raised."""
        shard = PublishedShard(builder.publication.result(), builder.attributes)
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
        return PairReader(self.source, spool_dir=self._state.root, md5=self._md5, on_wait=report)


@contextmanager
def stopped_on_error(packers: Sequence[SourcePacker]) -> Iterator[None]:
    """Stop all packers if the block raises: after that, none of their threads writes."""
    try:
        yield
    except BaseException:
        for packer in packers:
            packer.stop()
        raise


def pair_digest(pair: Pair) -> bytes:
    """8 bytes that identify a pair: XXH3-64 of its file name, a zero, the JPEG and the JSON."""
    digest = xxhash.xxh3_64(pair.file_name.encode() + b"\0")
    digest.update(pair.jpeg)
    digest.update(pair.json)
    return digest.digest()


class _PublishedPart:
    """A shard of an earlier run, compared with the pairs that its source holds now."""

    def __init__(self, shard: PublishedShard):
        self._name = shard.entry.name
        self._left = shard.attributes["pairs"]
        self._expected = shard.attributes["pairs_digest"]
        self._digest = xxhash.xxh3_64()

    def check(self, digest: bytes, path: Path) -> None:
        """Take the next pair; raise SourceError if the pairs are not those of the shard."""
        self._digest.update(digest)
        self._left -= 1
        if self._left < 0 or (self._left == 0 and self._digest.hexdigest() != self._expected):
            raise SourceError(
                f"{path}: its pairs differ from those that {self._name} was packed from; restore "
                "the original file, or remove that shard to pack it again"
            )

    def check_end(self, pairs: int, path: Path) -> None:
        """Raise SourceError if the source, of so many pairs, ended before the shard did."""
        if self._left > 0:
            raise SourceError(
                f"{path}: ends after {pairs} pairs, but {self._name} was packed from later ones; "
                "restore the original file, or remove that shard to pack it again"
            )
