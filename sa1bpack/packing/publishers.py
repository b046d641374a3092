"""Publishers: where the shards that a run makes go, and what the pack there says of them.

`folder_publisher` has a pack's folder for itself, and writes its manifest and index.
`part_publisher` works beside other parts of a job, which share nothing but the folder: it publishes
complete shards under their final names, and leaves a note on each source for `finalize`.
`remote/upload.py` has one for a bucket.

Each keeps a `Ledger` of what it has published.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Protocol

import msgspec

from sa1bpack.errors import OutputRefused, SourceCorrupt, SourceError
from sa1bpack.format import file_checksums, files, removal, replacing
from sa1bpack.format.index import publish, remove_stale
from sa1bpack.format.manifest import (
    LOCK_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    SHARDS_NAME,
    Manifest,
    read_manifest,
    write_manifest,
)
from sa1bpack.format.side.kept import remove_kept_rows
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_folder import (
    alone_among_parts,
    check_can_hold_pack,
    check_locks,
    locked_folder,
    pack_folder,
    working_folder,
)
from sa1bpack.packing.records import (
    PackJob,
    PublishedShard,
    SourceNote,
    SourceRead,
    note_path,
    published_shard,
    read_source_note,
)
from sa1bpack.packing.requested_options import RequestedOptions
from sa1bpack.paths import exists
from sa1bpack.wording import printable


class ShardSink(Protocol):
    """What takes the shards of sources that are packed; the base of those that do.

    Attributes:
        ledger: what it has so far.
        root: folder of the pack.
        shards_dir: folder in which shards are made.
    """

    ledger: Ledger
    root: Path
    shards_dir: Path

    def add_shard(self, shard: PublishedShard) -> None:
        """Take a shard that is complete in `shards_dir`, and enter it."""
        self.ledger.add_shard(shard)

    def finish_source(self, read: SourceRead, at_once: bool) -> None:
        """Take the record of a source that was read to its end, and of which all is entered.

        Args:
            read: what was found in the source.
            at_once: make it durable now, because reading this source again would take long.

        Raises:
            PackError: a shard of it was not entered.
        """

    def withdraw(self, source: str) -> int:
        """Remove the shards of a source that cannot be trusted; returns their number."""

    def how_to_remove(self, names: Sequence[str]) -> str:
        """How a user removes published shards, in words for a message."""
        folders = " ".join(quote(name) for name in names)
        return f"run `cd {quote(str(self.root / SHARDS_NAME))} && rm -r {folders}`"


class Publisher(ShardSink, Protocol):
    """What publishes the pack of a run; the base of those that do.

    Attributes:
        shards_at_once: number of its shards that are on this disk at once; None: all.
    """

    shards_at_once: int | None = None

    def begin(self) -> None:
        """Make the folder a pack, or leave it one, before anything is added to it."""

    def publish(self) -> Manifest:
        """Make durable what is entered so far, as a pack that is not complete.

        Returns the manifest of what is entered.
        """

    def finish(self, failed: Mapping[str, SourceError]) -> Manifest:
        """Publish what is entered at the end of a run.

        Args:
            failed: name of each source that was given up → why. The next run tries them again.

        Returns:
            The manifest of what is entered.
        """


@contextmanager
def folder_publisher(root: Path, options: RequestedOptions) -> Iterator["FolderPublisher"]:
    """The publisher of a folder, which is created if it does not exist, and locked in the block.

    If the block raises before the folder is a pack, and it was created here, it is removed.

    Args:
        root: folder of the pack.
        options: options that are asked for; the others are those of the pack, if there is one.

    Raises:
        OutputLocked: another process has locked the folder.
        OptionsDiffer: the folder was packed with other options.
        OutputRefused: the folder holds something else.
        FormatError: the pack is damaged.
    """
    with pack_folder(root), locked_folder(root):
        ledger = Ledger.load(root, options)
        remove_stale(root)
        yield FolderPublisher(root, ledger)


@contextmanager
def part_publisher(root: Path, options: RequestedOptions) -> Iterator["PartPublisher"]:
    """The publisher of a part of a job, in a folder that is created if it does not exist.

    If the block raises before the folder is a pack, and it was created here, it is removed.

    Args:
        root: folder of the pack.
        options: options that are asked for; the others are those of the pack, if there is one.

    Raises:
        OutputLocked: `pack` without a part, `finalize`, `repair` or `merge` works on the folder.
        OutputRefused: the file system has no locks.
        Whatever else `folder_publisher` raises.
    """
    check_locks(root, of_part=True)  # before anything is made
    with pack_folder(root), locked_folder(root, of_part=True):
        # Raises if the options differ; which sources are its own, the part finds out later.
        ledger = Ledger.load(root, options, only=frozenset())
        with ExitStack() as working:
            yield PartPublisher(root, options, ledger, working)


def inspect_pack(root: Path, options: RequestedOptions) -> Ledger:
    """The ledger that a run into `root` would find. Writes nothing, and leaves nothing locked.

    Raises the same errors as `folder_publisher`.
    """
    if exists(root):
        check_can_hold_pack(root)
    if exists(root / LOCK_NAME):
        with locked_folder(root):
            pass
    else:
        check_locks(root)
    return Ledger.load(root, options)


def make_pack(root: Path, options: PackOptions) -> None:
    """Make the folder a pack, which holds nothing yet, unless it is one.

    Before all other files: a run killed at any moment leaves a pack, or only working files.
    """
    if not exists(root / MANIFEST_NAME):
        write_manifest(root, Ledger(options).manifest(complete=False))


class FolderPublisher(Publisher):
    """Publishes a pack in its folder, which this process has for itself.

    Shards are made in the folder of the pack's shards, and have their names when they are complete.
    """

    def __init__(self, root: Path, ledger: Ledger, *, rebuild_index: bool = False):
        """
        Args:
            root: folder of the pack; the caller has locked it.
            ledger: what is published there.
            rebuild_index: write the index even if it exists: it may be damaged.
        """
        self.root = root
        self.shards_dir = root / SHARDS_NAME
        self.ledger = ledger
        self._rebuild_index = rebuild_index
        self._published_at = 0.0
        self._publish_seconds = 0.0

    def finish_source(self, read: SourceRead, at_once: bool) -> None:
        """See `ShardSink`.

        Manifest and index are written from time to time, in at most one twentieth of the time of
        the run: they take two seconds for all of SA-1B. A run killed in between reads the source
        again, but does not decode it again.
        """
        self.ledger.finish_source(read)
        if at_once or time.monotonic() - self._published_at >= 20 * self._publish_seconds:
            self.publish()

    def withdraw(self, source: str) -> int:
        """See `ShardSink`."""
        shards = self.ledger.withdraw(source)
        self.publish()  # first: a manifest never lists a missing shard
        for shard in shards:
            removal.remove_published(self.shards_dir / shard.entry.name)
            remove_kept_rows(self.root, self.ledger.options.kept_keys, shard.entry.name)
        return len(shards)

    def begin(self) -> None:
        """See `Publisher`."""
        self.publish()

    def finish(self, failed: Mapping[str, SourceError]) -> Manifest:
        """See `Publisher`."""
        return self.publish(complete=not failed)

    def publish(self, complete: bool = False) -> Manifest:
        """Write the index, rejects.jsonl, the manifest and the checksums, each atomically.

        Args:
            complete: as in `Ledger.manifest`.

        Returns:
            The manifest, without its index.
        """
        started = time.monotonic()
        if not self.ledger.shards:
            make_pack(self.root, self.ledger.options)
        text = ""
        for line in self.ledger.rejects():
            text += json.dumps(line, sort_keys=True) + "\n"
        replacing.replace_file(self.root / REJECTS_NAME, text.encode())
        manifest = self.ledger.manifest(complete)
        publish(self.root, manifest, rebuild_index=self._rebuild_index)
        self._rebuild_index = False
        while self.ledger.noted:  # the manifest has their records now
            note_path(self.root, self.ledger.noted.pop()).unlink(missing_ok=True)
        self._published_at = time.monotonic()
        self._publish_seconds = self._published_at - started
        return manifest


class PartPublisher(Publisher):
    """Publishes the shards of one part of a job, beside other parts.

    It writes no index. Of the manifest, it writes into that of a complete pack that it is not
    complete any more.

    Shards are made in a working folder, and moved to their names when they are complete. If another
    process has published the same shard meanwhile, that one stays.
    """

    def __init__(self, root: Path, options: RequestedOptions, ledger: Ledger, working: ExitStack):
        """
        Args:
            root: folder of the pack; the caller holds a part's lock of it.
            options: options that are asked for.
            ledger: a ledger without entries.
            working: a stack, on which the working folder is put.
        """
        self.root = root
        self.shards_dir = root / SHARDS_NAME
        self.ledger = ledger
        self._options = options
        self._working = working
        self._job: PackJob | None = None
        self._noted_records: dict[str, dict[str, Any]] = {}
        self._reopened = False

    def take_part(self, job: PackJob, sources: Iterable[str]) -> None:
        """Load what is published of the sources of a part. Writes nothing.

        Args:
            job: the one that the part belongs to.
            sources: names of the sources of the part.
        """
        self._job = job
        self.ledger = Ledger.load(self.root, self._options, only=frozenset(sources))
        self._noted_records = dict(self.ledger.sources)

    def begin(self) -> None:
        """Make the folder a pack, and leave the job in it, unless another part has.

        Raises OptionsDiffer if another part has meanwhile made a pack with other options.
        """
        options = self.ledger.options
        with alone_among_parts(self.root):
            make_pack(self.root, options)
            RequestedOptions.all_of(options).of_pack(read_manifest(self.root).options, self.root)
        if self._job is not None:
            self._job.write(self.root)
        self.shards_dir = self._working.enter_context(working_folder(self.root, of_part=True))

    def add_shard(self, shard: PublishedShard) -> None:
        """Give a complete shard of the working folder its final name, and enter it.

        Raises OutputRefused if another process has published one that was made from other images.
        """
        self._reopen()
        name = shard.entry.name
        final = self.root / SHARDS_NAME / name
        if not replacing.claim_name(self.shards_dir / name, final):
            published = published_shard(final, self.root)
            if published.attributes["pairs_digest"] != shard.attributes["pairs_digest"]:
                raise OutputRefused(
                    f"{final}: another process has published this shard from other images; give "
                    "all parts the same files"
                )
            shard = published
        self.ledger.add_shard(shard)

    def finish_source(self, read: SourceRead, at_once: bool) -> None:
        """See `ShardSink`; a note is always left at once."""
        self._reopen()
        self.ledger.finish_source(read)
        self.publish()

    def _reopen(self) -> None:
        """Mark the pack as incomplete until `finalize`, before anything is added."""
        if self._reopened:
            return
        with alone_among_parts(self.root):
            manifest = read_manifest(self.root)
            if manifest.says_complete:
                incomplete = msgspec.structs.replace(manifest, says_complete=False)
                write_manifest(self.root, incomplete)
        self._reopened = True

    def withdraw(self, source: str) -> int:
        """Remove the shards of a source that cannot be trusted; returns their number.

        Those that the manifest lists are left to `finalize`, which finds the note that `finish`
        leaves. None is removed if another process has read the source to its end and found it
        sound.
        """
        if self._is_packed(source):
            return 0
        removed = 0
        for number, shard in self.ledger.shards_of(source).items():
            if shard.entry.name not in self.ledger.listed:
                del self.ledger.shards[source, number]
                removal.remove_published(self.root / SHARDS_NAME / shard.entry.name)
                remove_kept_rows(self.root, self.ledger.options.kept_keys, shard.entry.name)
                removed += 1
        return removed

    def publish(self) -> Manifest:
        """Leave a note for `finalize` on each source whose record has changed.

        Returns the manifest that the sources of the part alone would have.
        """
        folder = self.root / SHARDS_NAME
        for name, record in self.ledger.sources.items():
            if record == self._noted_records.get(name):
                continue
            files.flush_folder(folder)  # another process may have renamed a shard only
            digests = {}
            for shard in self.ledger.shards_of(name).values():
                path = folder / shard.entry.name / file_checksums.CHECKSUMS_NAME
                digests[shard.entry.name] = file_checksums.file_digest(path)
            SourceNote(record, digests).write(self.root, name)
            self._noted_records[name] = record
        return self.ledger.manifest(complete=False)

    def finish(self, failed: Mapping[str, SourceError]) -> Manifest:
        """Leave a note on each source; returns the manifest that these alone would have."""
        for source, error in failed.items():
            if not self._is_packed(source):
                text = printable("\n".join([str(error), *getattr(error, "__notes__", ())]))
                corrupt = isinstance(error, SourceCorrupt)
                SourceNote(error=text, corrupt=corrupt).write(self.root, source)
        self.publish()
        return self.ledger.manifest(complete=not failed)

    def _is_packed(self, source: str) -> bool:
        """True if another process has packed a source to its end."""
        note = read_source_note(self.root, source)
        if note is None or not note.holds(self.root):
            return False
        return note.accounts_for_all(self.ledger.options.pairs_per_shard)
