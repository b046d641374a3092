"""One source on its way into shards: which pairs need work, what unit is theirs, what failed."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

import xxhash

from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.unit import Outcome, PublishedShard, Rejected, Unit
from sa1bpack.packing.writers import Writers
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Pair, PairReader
from sa1bpack.wording import counted


class Lane:
    """The packing of one source, driven by an engine from one thread.

    An engine asks `is_published` which pairs to pass over, tells `begin` and, in any order,
    `resolve` what happened to the others, and ends with `end` or `fail`. `finished` turns true when
    every shard of the source is published and its record is in the ledger.
    """

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        writers: Writers,
        packed_by: dict,
        md5: str | None = None,
    ):
        """A lane of a run.

        writers
            The threads of the run, shared by its lanes.
        packed_by
            Package → version, recorded in every shard.
        md5
            What a list says that the source's md5 is.
        """
        self.source = source
        self.finished = False
        self.error: SourceError | None = None
        self._ledger = ledger
        self._options: PackOptions = ledger.options
        self._writers = writers
        self._packed_by = packed_by
        self._expected_md5 = md5
        self._published = {
            part: _PublishedPart(shard) for part, shard in ledger.parts_of(source.name).items()
        }
        self._open: dict[int, Unit] = {}
        self._in_publication: dict[Future, tuple[Unit, dict]] = {}  # and its attributes
        self._last_part = -1
        self._unpublished: dict[int, Unit] = {}  # done, but no sample of theirs was accepted
        self._reader_rejects: list[Rejected] = []
        self._facts: dict | None = None

    def is_published(self, index: int) -> bool:
        """Whether the pair lies in a shard that an earlier run published (any thread may ask)."""
        return index // self._options.samples_per_shard in self._published

    def pass_over(self, index: int, digest: bytes) -> None:
        """Take the `pair_digest` of a pair of a published shard.

        Raises SourceError when the source is not the one that the shard was made from.
        """
        part = index // self._options.samples_per_shard
        self._roll(part, index)
        self._published[part].check(digest, self.source.path)

    def begin(self, index: int, digest: bytes) -> None:
        """A pair, of this `pair_digest`, goes to work; pairs must begin in their order."""
        part = index // self._options.samples_per_shard
        self._roll(part, index)
        if part not in self._open:
            self._open[part] = Unit(
                self.source.name,
                part,
                part * self._options.samples_per_shard,
                self._ledger.shards_dir,
                self._options,
                self._writers,
            )
        self._open[part].begin(digest)

    def _roll(self, part: int, index: int) -> None:
        """Close the unit before the one that `index` lies in."""
        if part != self._last_part and self._last_part in self._open:
            unit = self._open[self._last_part]
            unit.close(index)
            self._publish_if_complete(unit)
        self._last_part = part

    def resolve(self, index: int, outcome: Outcome, release: Callable[[], object]) -> None:
        """Take the outcome of a pair; `release` is called when its rows are needed no more."""
        unit = self._open[index // self._options.samples_per_shard]
        unit.resolve(index, outcome, release)
        self._publish_if_complete(unit)

    def _publish_if_complete(self, unit: Unit) -> None:
        if not unit.complete:
            return
        if unit.empty:
            self._unpublished[unit.part] = self._open.pop(unit.part)
            return
        self._writers.publications.acquire()
        attributes = unit.attributes(self._packed_by)
        future = unit.publish(attributes)
        self._in_publication[future] = unit, attributes
        del self._open[unit.part]  # now: interrupted before, `stop` still ends the unit
        future.add_done_callback(lambda _: self._writers.publications.release())

    def end(self, reader: PairReader, pairs: int) -> list[Rejected]:
        """The source is exhausted: `pairs` pairs came out of it. Returns the reader's rejects."""
        self._roll(part=-1, index=pairs)
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
                    f"{self.source.path}: its md5 is {reader.md5}, the list says {expected}; "
                    "download it again"
                )
            )
            return []
        self._facts = {
            "name": self.source.name,
            "kind": self.source.kind,
            "nbytes": self.source.nbytes,
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

        Units that all pairs of have been read go on, so that what stays does not depend on how far
        the workers were; nothing does when the source's bytes can't be trusted.
        """
        self.error = error
        for unit in list(self._open.values()):
            if not unit.closed or isinstance(error, SourceCorrupt):
                del self._open[unit.part]
                unit.end()

    def wants(self, index: int) -> bool:
        """Whether a pair that was begun is still worth working on."""
        return index // self._options.samples_per_shard in self._open

    def poll(self) -> None:
        """Enter shards that have been published since; finish the source after the last one.

        Raises what writing or publishing has raised.
        """
        for unit in self._open.values():
            unit.check()
        for future in [future for future in self._in_publication if future.done()]:
            self._take_published(future)
        if self._in_publication or self._open or self.finished:
            return
        if self.error is not None:
            self._close_failed()
        elif self._facts is not None:
            self._close_whole()

    def _take_published(self, future: Future) -> None:
        """End a unit that is published, or is not after all, and enter its shard."""
        unit, attributes = self._in_publication.pop(future)
        unit.end()
        self._ledger.add_shard(PublishedShard(future.result(), attributes))

    def _close_failed(self) -> None:
        if isinstance(self.error, SourceCorrupt):
            withdrawn = self._ledger.withdraw(self.source.name)
            if withdrawn:
                self.error.add_note(f"withdrawn with it: {counted(withdrawn, 'shard')}")
        self.finished = True

    def _close_whole(self) -> None:
        units = [unit for _, unit in sorted(self._unpublished.items())]
        rejects = [reject for unit in units for reject in unit.rejects] + self._reader_rejects
        self._ledger.finish_source(
            {
                **self._facts,
                "dropped": sum(unit.dropped for unit in units),
                "rejects": [reject.as_json() for reject in rejects],
            }
        )
        self.finished = True

    def wait(self) -> None:
        """Wait for the shards being published, and finish the source."""
        wait(self._in_publication)
        self.poll()

    def open_reader(self) -> PairReader:
        """A reader of the source; what it can't keep in memory goes to a file beside the pack."""
        return PairReader(self.source, spool_dir=self._ledger.root)

    def stop(self) -> None:
        """Leave nothing unpublished behind: wait for shards being published, discard the others."""
        for unit in self._open.values():
            unit.end()
        self._open.clear()
        for future in list(self._in_publication):
            if future.cancelled() or future.exception() is not None:
                self._in_publication.pop(future)[0].end()
            else:
                self._take_published(future)


@contextmanager
def stopped_on_error(lanes: Sequence[Lane]) -> Iterator[None]:
    """Stop all lanes when something is raised within: no thread of theirs writes after that."""
    try:
        yield
    except BaseException:
        for lane in lanes:
            lane.stop()
        raise


def pair_digest(pair: Pair) -> bytes:
    """8 bytes that stand for a pair: XXH3-64 of its file name, a zero, the JPEG and the JSON."""
    digest = xxhash.xxh3_64(pair.file_name.encode() + b"\0")
    digest.update(pair.jpeg)
    digest.update(pair.json)
    return digest.digest()


class _PublishedPart:
    """A shard of an earlier run, compared with the pairs that its source gives now."""

    def __init__(self, shard: PublishedShard):
        self._name = shard.entry.name
        self._left = shard.attributes["pairs"]
        self._due = shard.attributes["pairs_digest"]
        self._digest = xxhash.xxh3_64()

    def check(self, digest: bytes, path: Path) -> None:
        """Take the next pair; raise SourceError when they are not those of the shard."""
        self._digest.update(digest)
        self._left -= 1
        if self._left < 0 or (self._left == 0 and self._digest.hexdigest() != self._due):
            raise SourceError(
                f"{path}: its pairs differ from those that {self._name} was packed from; bring the "
                "same file back, or remove that shard to pack it anew"
            )

    def check_end(self, pairs: int, path: Path) -> None:
        """Raise SourceError if the source ended, after so many pairs, before the shard's end."""
        if self._left > 0:
            raise SourceError(
                f"{path}: ends after {pairs} pairs, and {self._name} was packed from later ones; "
                "bring the same file back, or remove that shard to pack it anew"
            )
