"""Packs one source: which pairs need work, which shard each belongs to, what failed."""

from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

import xxhash

from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.progress import report
from sa1bpack.packing.sample import Outcome, Rejected
from sa1bpack.packing.shard_builder import PublishedShard, ShardBuilder, WriterThreads
from sa1bpack.source.find import Source
from sa1bpack.source.inflate import remedy
from sa1bpack.source.pairs import Pair, PairReader
from sa1bpack.urls import Address
from sa1bpack.wording import counted


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
        packed_by: dict,
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
        self._state = state
        self._options: PackOptions = state.options
        self._writers = writers
        self._packed_by = packed_by
        self._with_md5 = md5
        self._expected_md5 = expected_md5
        self._wanted = wanted
        self._published = {
            part: _PublishedPart(shard) for part, shard in state.parts_of(source.name).items()
        }
        self.builders: dict[int, ShardBuilder] = {}
        self.publications: dict[Future, tuple[ShardBuilder, dict]] = {}  # and its attributes
        self._last_part = -1
        self._unpublished: dict[int, ShardBuilder] = {}  # complete, but without a packed sample
        self._reader_rejects: list[Rejected] = []
        self._facts: dict | None = None

    def is_published(self, index: int) -> bool:
        """Whether the pair lies in a part that is published, or not wanted. For any thread."""
        part = index // self._options.samples_per_shard
        return part not in self._wanted if self._wanted is not None else part in self._published

    def skip(self, index: int, digest: bytes) -> None:
        """Compare a pair of a published shard, if it is of one, by its `pair_digest`.

        Raises SourceError if the source is not the one that the shard was packed from.
        """
        part = index // self._options.samples_per_shard
        self.finish_earlier_part(part, index)
        if part in self._published:
            self._published[part].check(digest, self.source.path)

    def begin(self, index: int, digest: bytes) -> None:
        """A pair with this `pair_digest` will be decoded; called in the order of the pairs."""
        part = index // self._options.samples_per_shard
        self.finish_earlier_part(part, index)
        if part not in self.builders:
            self.builders[part] = ShardBuilder(
                self.source.name,
                part,
                self._state.shards_dir,
                self._options,
                self._writers,
            )
        self.builders[part].begin(digest)

    def finish_earlier_part(self, part: int, index: int) -> None:
        """Close the shard before the one that `index` lies in."""
        if part != self._last_part and self._last_part in self.builders:
            builder = self.builders[self._last_part]
            builder.close(index)
            self._publish_if_complete(builder)
        self._last_part = part

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take the outcome of a pair; `release` is called when its rows are no longer needed."""
        builder = self.builders[index // self._options.samples_per_shard]
        builder.resolve(index, outcome, release)
        self._publish_if_complete(builder)

    def _publish_if_complete(self, builder: ShardBuilder) -> None:
        if not builder.complete:
            return
        if builder.queue is None:
            self._unpublished[builder.part] = self.builders.pop(builder.part)
            return
        self._writers.publications.acquire()
        attributes = builder.attributes(self._packed_by)
        future = builder.publish(attributes)
        self.publications[future] = builder, attributes
        del self.builders[builder.part]  # only now: interrupted earlier, `stop` still ends it
        future.add_done_callback(lambda _: self._writers.publications.release())

    def end(self, reader: PairReader, pairs: int) -> list[Rejected]:
        """The source was read to its end, `pairs` pairs in all. Returns the reader's rejects."""
        self.finish_earlier_part(part=-1, index=pairs)
        try:
            for published in self._published.values():
                published.check_end(pairs, self.source.path)
        except SourceError as error:
            self.fail(error)
            return []
        expected = self._expected_md5
        if expected is not None and reader.md5 is not None and reader.md5 != expected:
            self.fail(
                SourceCorrupt(
                    f"{self.source.path}: its md5 is {reader.md5}, but the list says "
                    f"{expected}; {remedy(self.source.path)}"
                )
            )
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
        self._reader_rejects = [
            Rejected(reject.member.removeprefix("./"), reject.code, reject.detail)
            for reject in reader.rejects
        ]
        return self._reader_rejects

    def fail(self, error: SourceError) -> None:
        """Give the source up.

        Shards of which all pairs were read are still completed, so that what stays does not depend
        on how far the workers were; none is if the source's bytes cannot be trusted.
        """
        self.error = error
        for builder in list(self.builders.values()):
            if not builder.closed or isinstance(error, SourceCorrupt):
                del self.builders[builder.part]
                builder.end()

    def wants(self, index: int) -> bool:
        """Whether the outcome of a pair that was begun is still needed."""
        return index // self._options.samples_per_shard in self.builders

    def poll(self) -> None:
        """Enter the shards published since; after the last one, finish the source.

        Raises what writing or publishing raised.
        """
        for builder in self.builders.values():
            builder.check()
        for future in [future for future in self.publications if future.done()]:
            self._take_published(future)
        if self.publications or self.builders or self.finished:
            return
        if self.error is not None:
            self._close_failed()
        elif self._facts is not None:
            self._close_complete()

    def _take_published(self, future: Future) -> None:
        """Enter a shard whose publication has ended; raises what that raised."""
        builder, attributes = self.publications.pop(future)
        builder.end()
        self._state.add_shard(PublishedShard(future.result(), attributes))

    def _close_failed(self) -> None:
        if isinstance(self.error, SourceCorrupt):
            withdrawn = self._state.withdraw(self.source.name)
            if withdrawn:
                self.error.add_note(f"withdrawn with it: {counted(withdrawn, 'shard')}")
        self.finished = True

    def _close_complete(self) -> None:
        builders = [builder for _, builder in sorted(self._unpublished.items())]
        rejects = [reject for builder in builders for reject in builder.rejects]
        rejects += self._reader_rejects
        self._state.finish_source(
            {
                **self._facts,
                "dropped": sum(builder.dropped for builder in builders),
                "rejects": [reject.as_json() for reject in rejects],
            },
            at_once=isinstance(self.source.path, Address),
        )
        self.finished = True

    def wait(self) -> None:
        """Wait for the shards in publication, and finish the source."""
        wait(self.publications)
        self.poll()

    def open_reader(self) -> PairReader:
        """A reader of the source, which spills to a file in the pack's folder."""
        return PairReader(
            self.source, spool_dir=self._state.root, md5=self._with_md5, on_wait=report
        )

    def stop(self) -> None:
        """Wait for the shards in publication, and discard all others."""
        for builder in self.builders.values():
            builder.end()
        self.builders.clear()
        for future in list(self.publications):
            if future.cancelled() or future.exception() is not None:
                self.publications.pop(future)[0].end()
            else:
                self._take_published(future)


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
