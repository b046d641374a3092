"""The packing of sources: which pairs need work, which shard each belongs to, what failed.

A source is read by one thread, which has its pairs decoded and hands what becomes of them, as
futures in the order of the tar, to the thread of their shard. That waits for each, writes it and
publishes the shard, while other samples are decoded. What threads have done is entered into the
ledger of the pack by the thread of the run, in `Background.settle`.
"""

import resource
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from functools import partial
from threading import BoundedSemaphore, Event

import xxhash

from sa1bpack.errors import PackError, Sa1bpackError, SourceCorrupt, SourceError
from sa1bpack.format.manifest import DIGEST_NAMES, shard_name
from sa1bpack.format.side.kept import make_kept_features
from sa1bpack.packing.background import Background
from sa1bpack.packing.decoder import Decoder, InlineDecoder
from sa1bpack.packing.groups import MAX_FILE_BYTES, pairs_per_group
from sa1bpack.packing.options import RunOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.publishers import ShardSink
from sa1bpack.packing.records import EmptyShard, SourceRead
from sa1bpack.packing.sample import versions_in_force
from sa1bpack.packing.shard_builder import BuiltShard, ShardBuilder
from sa1bpack.packing.workers import Workers
from sa1bpack.progress import report
from sa1bpack.source.find import Source, open_source
from sa1bpack.source.inflate import remedy
from sa1bpack.source.pairs import Pair, PairReader
from sa1bpack.source.records.images import PairOptions
from sa1bpack.source.records.table import open_pairs, records_described
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

# Files that a run may have open, where the system lets it: more than any needs.
_OPEN_FILES = 1 << 16

# The longest wait without a look at what else has happened.
_POLL_SECONDS = 0.05


class PackRun:
    """What the packers of one run share.

    Attributes:
        sink: takes shards and records of sources.
        options: the options of the run; among others, whether md5s are computed.
        progress: counts pairs and bytes.
        packed_by: package → version, recorded in every shard.
        background: the threads that write shards.
        pairs_per_group: the most pairs of a group.
        decoder: makes samples of groups of pairs.
        open_shards: released when a shard has been entered, or discarded.
        stopping: set once no further pair is wanted.
        unfinished: number of packers that are not finished.
    """

    def __init__(self, sink: ShardSink, options: RunOptions, progress: Progress, readers: int):
        """
        Args:
            readers: number of threads that read sources.
        """
        self.sink = sink
        self.options = options
        self.progress = progress
        self.packed_by = versions_in_force()
        self.background = Background()
        self.open_shards = BoundedSemaphore(MAX_IN_PUBLICATION + readers)
        self.stopping = Event()
        self.unfinished = 0
        pack_options = sink.ledger.options
        workers = options.worker_count
        self.pairs_per_group = pairs_per_group(pack_options, in_workers=workers > 1)
        self.decoder: Decoder
        if workers == 1:
            self.decoder = InlineDecoder(pack_options, progress, self.background.call)
        else:
            self.decoder = Workers(pack_options, workers, readers, progress)

    def stop(self, packers: Sequence["SourcePacker"]) -> None:
        """End every wait of the threads."""
        self.stopping.set()
        if self.unfinished:
            for packer in packers:
                if packer.reader is not None:
                    packer.reader.cancel()
        self.decoder.stop()

    def open_shard(self) -> bool:
        """Wait until one more shard may be open; False if the run is stopping.

        For threads that read.
        """
        while not self.open_shards.acquire(timeout=_POLL_SECONDS):
            if self.stopping.is_set():
                return False
        return True


class SourcePacker:
    """The packing of one source.

    One thread calls `read`. The thread of the run calls `enter` and `finish`, which change the
    ledger of the pack. In the end every shard of the source is entered there, and its record, which
    is made of them, or it was given up with `error`.

    Attributes:
        source: the tar or folder.
        error: why it was given up; None if it was not.
        reader: reads its pairs; None before that.
    """

    def __init__(self, run: PackRun, source: Source, missing_shards: Set[int] | None):
        """
        Args:
            run: what all packers of the run share.
            source: the tar or folder.
            missing_shards: numbers of the shards to pack; None: all that are not published.
        """
        self.source = source
        self.error: SourceError | None = None
        self.reader: PairReader | None = None
        self._run = run
        self._ledger = run.sink.ledger
        self._missing_shards = missing_shards
        self._published = self._ledger.shards_of(source.name)
        self._builders: dict[int, ShardBuilder] = {}  # of shards that are not entered yet
        self._compared: set[int] = set()  # published shards whose pairs are those of the source
        self._is_other_file = False  # the pairs of some published shard are not those of the source
        # Of the shard that is being read, -1 for none: its builder, if it is packed, and its pairs.
        self._number = -1
        self._builder: ShardBuilder | None = None
        self._group: list[Pair] = []  # its pairs that are not with the decoder yet
        self._group_bytes = 0  # of their images and records
        self._pairs = 0
        self._digest = xxhash.xxh3_64()
        self._source_read: SourceRead | None = None  # once it was read to its end and is sound
        self._was_read = False

    def read(self) -> None:
        """Read the source to its end, unless the run is stopping; a SourceError ends up in `error`.

        Shards of which all pairs were read are still completed after an error, so that what stays
        does not depend on how far the workers were; they are withdrawn if the bytes are wrong.
        """
        run = self._run
        try:
            pack_options = self._ledger.options
            options = PairOptions(
                spool_dir=run.sink.root,
                md5=run.options.records_md5,
                on_wait=report,
                annotations=run.options.annotations,
                keys=pack_options.keys,
            )
            with open_pairs(self.source, str(pack_options.records), options) as reader:
                self.reader = reader
                pairs = self._read_pairs(reader)
                if run.stopping.is_set():
                    return
                self._end_shard()
                self._check_whole(reader, pairs)
        except SourceError as error:
            self.error = error
        finally:
            if self._builder is not None:  # of which not all pairs were read
                self._builder.discard()
        run.progress.advance(self.source, self.source.nbytes)

    def _read_pairs(self, reader: PairReader) -> int:
        """Have every pair decoded that needs it; returns the number of all that were read."""
        run = self._run
        pairs = 0
        for pair in reader:
            if run.stopping.is_set():
                break
            pairs += 1
            digest = xxhash.xxh3_64(pair.file_name.encode() + b"\0")
            digest.update(pair.jpeg)
            digest.update(pair.json)
            self._take(pair.index, digest.digest())
            if self._builder is None:
                run.progress.advance(self.source, reader.bytes_read)
            else:
                self._add(pair, reader)
        return pairs

    def _add(self, pair: Pair, reader: PairReader) -> None:
        """Add a pair to its group, and have that decoded if it is full."""
        nbytes = len(pair.jpeg) + len(pair.json)
        if self._group_bytes + nbytes > MAX_FILE_BYTES:
            self._decode_group(reader)
        self._group.append(pair)
        self._group_bytes += nbytes
        if len(self._group) == self._run.pairs_per_group:
            self._decode_group(reader)

    def _decode_group(self, reader: PairReader) -> None:
        """Have the pairs of the group decoded, and begin another one."""
        if self._group:
            assert self._builder is not None
            decoded = self._run.decoder.decode(self.source, self._group, reader.bytes_read)
            self._builder.add_group(decoded)
            self._group = []
            self._group_bytes = 0

    def _take(self, index: int, digest: bytes) -> None:
        """Take the next pair: after it, `_builder` is the one that needs its outcome.

        It is None if the shard is published, or not missing, or if a published one before it was
        packed from other pairs: then the source is only read to its end, to name all of these. Or
        if the run is stopping.
        """
        number = index // self._ledger.options.pairs_per_shard
        if number != self._number:
            self._end_shard()
            self._number = number
            is_needed = self._is_missing(number) and not self._is_other_file
            if is_needed and self._run.open_shard():
                builder = ShardBuilder(
                    sink=self._run.sink,
                    packed_by=self._run.packed_by,
                    source=self.source,
                    number=number,
                )
                self._builders[number] = builder
                builder.shard = self._run.background.start(
                    builder.build, then=partial(self.enter, builder)
                )
                self._builder = builder
        self._digest.update(digest)
        self._pairs += 1

    def _is_missing(self, number: int) -> bool:
        """True if the shard of this number is to be packed."""
        if self._missing_shards is None:
            return number not in self._published
        return number in self._missing_shards

    def _end_shard(self) -> None:
        """Close the shard that was read, all of whose pairs are known now.

        If it is published, its pairs are compared with those that it was packed from.
        """
        pairs_digest = self._digest.hexdigest()
        if self._builder is not None:
            assert self.reader is not None
            self._decode_group(self.reader)
            self._builder.complete(self._pairs, pairs_digest)
        elif self._number in self._published:
            recorded = self._published[self._number].attributes
            if (self._pairs, pairs_digest) == (recorded["pairs"], recorded["pairs_digest"]):
                self._compared.add(self._number)
            else:
                self._is_other_file = True
        self._builder = None
        self._pairs = 0
        self._digest.reset()

    def _check_whole(self, reader: PairReader, pairs: int) -> None:
        """Note what was found in the source, which was read to its end, `pairs` pairs in all.

        Raises SourceError unless it is the source that was packed, and that a list demands.
        """
        different = sorted(self._published.keys() - self._compared)
        if different:
            raise self._other_pairs(different)
        self._check_record(reader, pairs)
        expected_md5 = self.source.expected_md5
        if None not in (expected_md5, reader.md5) and reader.md5 != expected_md5:
            raise SourceCorrupt(
                f"{self.source.path}: its md5 is {reader.md5}, but the list says {expected_md5}; "
                f"{remedy(self.source.path)}"
            )
        unpaired = []
        for reject in reader.rejects:
            self._run.progress.reject(self.source, reject)
            unpaired.append(reject.as_json())
        self._source_read = SourceRead(
            name=self.source.name,
            kind=self.source.kind,
            nbytes=self._size_as_read(reader),
            xxh128=reader.xxh128,
            md5=reader.md5,
            md5_checked=expected_md5 is not None,
            pairs=pairs,
            ignored=dict(sorted(reader.ignored.items())),
            ignored_names=reader.ignored_names,
            unpaired=unpaired,
            records=records_described(str(self._ledger.options.records), reader),
        )

    def _size_as_read(self, reader: PairReader) -> int:
        """The size of the source, which was read to its end.

        A file may have grown since the run began, as one that is being downloaded. Of a folder
        nobody knows whether what was written meanwhile was read.

        Raises SourceError if a file has become shorter, or the files of a folder have another size.
        """
        source = self.source
        nbytes = reader.bytes_read
        is_same = nbytes >= source.nbytes
        contents = "it has"
        if source.kind == "folder":
            nbytes = open_source(source.local_path).nbytes
            is_same = nbytes == source.nbytes
            contents = "its images and JSON files have"
        if not is_same:
            raise SourceError(
                f"{source.path}: {contents} {nbytes:,} bytes, and had {source.nbytes:,} when "
                "the run began; wait until nothing writes there any more, and repeat the command"
            )
        return nbytes

    def _other_pairs(self, numbers: Sequence[int]) -> SourceError:
        """The error for published shards that were packed from other pairs than the source has."""
        names = [self._published[number].entry.name for number in numbers]
        were = "was" if len(names) == 1 else "were"
        message = (
            f"{self.source.path}: it is not the file that {', '.join(names)} {were} packed from: "
            "its pairs are others, or in another order; restore that file"
        )
        if self.source.name not in self._ledger.sources:
            message += (
                ". Or, if that was a truncated copy, "
                f"{self._run.sink.how_to_remove(names)} and repeat the pack command"
            )
        return SourceError(message)

    def _check_record(self, reader: PairReader, pairs: int) -> None:
        """Raise SourceError if the pack was made from another file, as its record says."""
        record = self._ledger.sources.get(self.source.name)
        if record is None:
            return
        digest_name = "xxh128"
        if record.get("xxh128") is None:  # packs of earlier releases have the md5 alone
            digest_name = "md5"
        now = {"xxh128": reader.xxh128, "md5": reader.md5, "pairs": pairs}
        for key in (digest_name, "pairs"):
            if now[key] != record[key]:
                raise SourceError(
                    f"{self.source.path}: {DIGEST_NAMES.get(key, key)} is {now[key]}, but the pack "
                    f"was made from a source with {record[key]}; restore the original file"
                )

    def enter(self, builder: ShardBuilder, shard: BuiltShard | None) -> None:
        """Enter a shard whose thread has ended; None if it was discarded.

        If the sink cannot take it, the builder stays among `_builders`: the shard is not entered.
        """
        if isinstance(shard, EmptyShard):
            self._ledger.empty[self.source.name, builder.number] = shard
        elif shard is not None:
            self._run.sink.add_shard(shard)
        del self._builders[builder.number]
        self._run.open_shards.release()
        if self._was_read:
            self.finish()

    def enter_what_is_built(self, error: BaseException) -> None:
        """Enter the shards that are complete when the run ends with an error.

        Errors of that are added to it as notes.
        """
        for builder in list(self._builders.values()):
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
        if self._builders:
            return
        if self.error is None:
            if self._source_read is None:
                raise PackError(f"{self.source.path}: not read to its end; repeat the command")
            at_once = isinstance(self.source.path, Address)
            self._run.sink.finish_source(self._source_read, at_once=at_once)
        elif isinstance(self.error, SourceCorrupt) and self.source.name not in self._ledger.sources:
            # One that was packed to its end before keeps its shards: they came from sound bytes.
            withdrawn = self._run.sink.withdraw(self.source.name)
            if withdrawn:
                self.error.add_note(f"withdrawn with it: {counted(withdrawn, 'shard')}")
        self._run.unfinished -= 1


def readers_of(options: RunOptions, sources: Sequence[Source]) -> int:
    """The number of sources that are read at once, if there are as many.

    Of sources at URLs, as many as the options say; by default DOWNLOADS, but no more than there are
    workers, and at least as many as of files.
    """
    workers = options.worker_count
    readers = -(-workers // WORKERS_PER_READER_THREAD)
    if workers > 1 and any(isinstance(source.path, Address) for source in sources):
        readers = options.downloads or max(readers, min(DOWNLOADS, workers))
    return min(readers, max(1, len(sources)))


def pack_sources(
    sink: ShardSink,
    sources: Sequence[Source],
    options: RunOptions,
    progress: Progress,
    missing_shards: Mapping[str, Set[int]] | None = None,
) -> dict[str, SourceError]:
    """Pack the shards of these sources.

    After an error, shards that are complete are entered, others are discarded, and no thread and no
    process is left.

    Args:
        sink: takes shards and records of sources.
        sources: the sources to pack.
        options: the options of the run.
        progress: counts pairs and bytes.
        missing_shards: name of a source → numbers of shards to pack. Default: all that are not
            published.

    Returns:
        name → error, of the sources that were given up.

    Raises:
        Whatever else ends the run.
    """
    if not sources:
        return {}
    make_kept_features(sink.root, sink.ledger.options.kept_keys)
    with _many_open_files():
        readers = readers_of(options, sources)
        run = PackRun(sink, options, progress, readers)
        packers = []
        for source in sources:
            missing = None
            if missing_shards is not None:
                missing = missing_shards[source.name]
            packers.append(SourcePacker(run, source, missing))
        run.unfinished = len(packers)
        try:
            _run_packers(run, packers, readers)
        except BaseException as error:
            for packer in packers:
                packer.enter_what_is_built(error)
            raise
    failed = {}
    for packer in packers:
        if packer.error is not None:
            failed[packer.source.name] = packer.error
    return failed


def _run_packers(run: PackRun, packers: Sequence[SourcePacker], readers: int) -> None:
    """Run packers to their end; whatever happens, no thread and no process is left."""
    with (
        closing(run.decoder),
        run.background.pool,
        ThreadPool(readers, "sa1bpack-reader") as reader_pool,
    ):
        try:
            for serve in run.decoder.services:
                run.background.start(serve)
            for packer in packers:
                run.background.start(packer.read, then=packer.finish, pool=reader_pool)
            while run.unfinished:
                run.background.settle(_POLL_SECONDS)
        finally:
            reader_pool.shutdown(wait=False, cancel_futures=True)
            try:
                run.stop(packers)
            finally:  # all of it: Ctrl-C may come meanwhile, and a thread that waits would stay
                run.stop(packers)


@contextmanager
def _many_open_files() -> Iterator[None]:
    """Raise the soft limit of open files, usually 1024: a shard that is built has some twenty."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
