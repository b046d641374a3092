"""Takes the place of PackState for a part of a job: many may work in one folder at once."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sa1bpack.errors import OutputRefused, SourceCorrupt, SourceError
from sa1bpack.format import open_shard, read_manifest
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.files import flush_folder, make_folder, remove_published
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, write_manifest
from sa1bpack.format.publish import shard_folders
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import (
    PackState,
    check_can_write,
    check_ours,
    lock_folder,
    published_shard,
)
from sa1bpack.packing.parts.outcomes import (
    PARTS_NAME,
    Done,
    Failed,
    PartFolder,
    Plan,
    alone,
    done_path,
    failed_path,
    read_done,
    shards_are_there,
    write_done,
    write_failed,
    write_plan,
)
from sa1bpack.packing.records import check_shard_record, check_source_record
from sa1bpack.packing.shard_builder import PublishedShard
from sa1bpack.wording import printable


class PartState(PackState):
    """What a pack's folder holds of the sources of one part. It never writes index and manifest,
    except the first, empty one.

    Shards are built in a working folder, and moved to their names when they are complete. If
    another process has published the same shard meanwhile, that one stays.
    """

    def __init__(self, root: Path, options: PackOptions, plan: Plan, sources: Sequence[str]):
        """Prepare the folder, which is created if it does not exist, and read the state of sources.

        plan
            The job that the part belongs to.
        sources
            Names of the sources of the part.

        Raises what PackState does; OutputLocked only if `pack` without a part, `finalize`, `repair`
        or `merge` works on the folder.
        """
        make_folder(root)
        check_ours(root)
        lock = lock_folder(root, shared=True)
        try:
            super().__init__(root, options, lock)
            make_folder(root / PARTS_NAME)
            with alone(self.root):
                self.write_first_manifest()
                manifest = read_manifest(root)
                check_can_write(manifest.version, root / MANIFEST_NAME)
                options.check_same(manifest.options, str(root))
                write_plan(root, plan)
            self._listed = frozenset(entry.name for entry in manifest.shards)
            self._enter(manifest, frozenset(sources))
            self._work = PartFolder(root)
        except BaseException:
            os.close(lock)
            raise

    @property
    def shards_dir(self) -> Path:
        """Where shards are built."""
        return self._work.folder

    @property
    def notes(self) -> Path:
        """A folder of this process, for its log of runs."""
        return self._work.notes

    def release(self) -> None:
        """Remove the working folder, and unlock the pack."""
        self._work.close()
        super().release()

    def begin(self) -> None:
        """Shards will be added: until `finalize`, the manifest says that the pack is incomplete."""
        with alone(self.root):
            manifest = read_manifest(self.root)
            if manifest.complete:
                write_manifest(self.root, msgspec.structs.replace(manifest, complete=False))

    def add_shard(self, shard: PublishedShard) -> None:
        """Give a complete shard of the working folder its final name, and enter it.

        Raises OutputRefused if another process has published one that was made from other images.
        """
        name = shard.entry.name
        final = self.root / SHARDS_NAME / name
        try:
            (self.shards_dir / name).rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shard = _published_meanwhile(final, shard)
        flush_folder(final.parent)
        super().add_shard(shard)

    def finish_source(self, record: dict, *, at_once: bool = True) -> None:
        """Record a source of which every shard is published; it is always done at once."""
        name = record["name"]
        self.sources[name] = record
        folder = self.root / SHARDS_NAME
        shards = sorted(shard.entry.name for shard in self.parts_of(name).values())
        flush_folder(folder)  # another process may have renamed a shard without flushing it yet
        digests = {shard: file_digest(folder / shard / CHECKSUMS_NAME) for shard in shards}
        write_done(self.root, Done(record, digests))
        failed_path(self.root, name).unlink(missing_ok=True)

    def withdraw(self, source: str) -> int:
        """Remove the shards of a source that cannot be trusted; returns their number.

        Those that the manifest lists are left to `finalize`, which `fail` notifies. None is removed
        if another process has read the source to its end and found it sound.
        """
        if done_path(self.root, source).exists():
            return 0
        removed = 0
        for part, shard in self.parts_of(source).items():
            if shard.entry.name not in self._listed:
                del self.shards[source, part]
                remove_published(self.root / SHARDS_NAME / shard.entry.name)
                removed += 1
        return removed

    def fail(self, source: str, error: SourceError) -> None:
        """Record why a source was given up."""
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        write_failed(self.root, source, Failed(printable(text), isinstance(error, SourceCorrupt)))

    def _enter(self, manifest: Manifest, sources: frozenset[str]) -> None:
        """Enter what is published of these sources."""
        for record in manifest.sources:
            check_source_record(record, self.root / MANIFEST_NAME)
            if record["name"] in sources:
                self.sources[record["name"]] = record
        for name in sorted(sources):
            if (path := done_path(self.root, name)).exists():
                done = read_done(path)
                if shards_are_there(self.root, done):
                    self.sources[name] = done.record
        for folder in shard_folders(self.root):
            if folder.name.rpartition("-")[0] in sources:
                super().add_shard(published_shard(folder, self.root))
        for entry in manifest.shards:
            if entry.source in sources and (entry.source, entry.part) not in self.shards:
                self.sources.pop(entry.source, None)


def _published_meanwhile(folder: Path, mine: PublishedShard) -> PublishedShard:
    """The shard that another process has published under the name of this one."""
    found = open_shard(folder)
    check_shard_record(found.attributes, folder)
    for key in ("source", "part", "pairs", "pairs_digest"):
        if found.attributes[key] != mine.attributes[key]:
            raise OutputRefused(
                f"{folder}: another process has published this shard from other images: its {key} "
                f"is {found.attributes[key]!r}, here it is {mine.attributes[key]!r}; give all "
                "parts the same files"
            )
    return PublishedShard(found.entry, found.attributes)
