"""Takes the place of PackState for a part of a job: many may work in one folder at once.

They share nothing but the folder. A part publishes complete shards under their final names, and
each source's record in a file of its own, atomically. It waits for no other part: they hold a
shared lock on the pack, which only keeps off what needs the folder for itself (`pack`, `repair`,
`merge`, `finalize`).
"""

import errno
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import deepcopy
from pathlib import Path

import msgspec

from sa1bpack.errors import OutputRefused, SourceCorrupt, SourceError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.files import flush_folder, make_folder, remove_published, replace_file
from sa1bpack.format.manifest import (
    SHARDS_NAME,
    read_manifest,
    write_manifest,
)
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import (
    PackState,
    PublishedShard,
    check_ours,
    lock_folder,
    published_shard,
)
from sa1bpack.packing.part_notes import (
    Done,
    Failed,
    Plan,
    alone,
    note_path,
    working_folder,
    write_plan,
)
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
        super().__init__(root, options, lock_folder(root, shared=True))
        self._work = ExitStack()
        try:
            with self.alone():
                self.write_first_manifest()
            self._load(frozenset(sources))
            write_plan(root, plan)
            self._recorded = deepcopy(self.sources)
            self._reopened = False
            self.shards_dir = self._work.enter_context(working_folder(root))
        except BaseException:
            self.release()
            raise

    def alone(self) -> AbstractContextManager[None]:
        return alone(self.root)

    def release(self) -> None:
        """Remove the working folder, and unlock the pack."""
        self._work.close()
        super().release()

    def publish(self, complete: bool) -> None:
        """Record for `finalize` what has changed in the records of sources."""
        for name, record in self.sources.items():
            if record != self._recorded.get(name):
                shards = sorted(shard.entry.name for shard in self.parts_of(name).values())
                folder = self.root / SHARDS_NAME
                flush_folder(folder)  # another process may have renamed a shard, and not flushed it
                digests = {shard: file_digest(folder / shard / CHECKSUMS_NAME) for shard in shards}
                replace_file(
                    note_path(self.root, Done, name), msgspec.json.encode(Done(record, digests))
                )
                note_path(self.root, Failed, name).unlink(missing_ok=True)
                self._recorded[name] = deepcopy(record)

    def add_shard(self, shard: PublishedShard) -> None:
        """Give a complete shard of the working folder its final name, and enter it.

        Raises OutputRefused if another process has published one that was made from other images.
        """
        self._reopen()
        name = shard.entry.name
        final = self.root / SHARDS_NAME / name
        try:
            (self.shards_dir / name).rename(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shard = _published_meanwhile(final, self.root, shard)
        flush_folder(final.parent)
        super().add_shard(shard)

    def finish_source(self, record: dict, *, at_once: bool = True) -> None:
        """Record a source of which every shard is published; it is always done at once."""
        self._reopen()
        super().finish_source(record, at_once=True)

    def _reopen(self) -> None:
        """Before anything is added: until `finalize`, the manifest says that it is incomplete."""
        if not self._reopened:
            with self.alone():
                manifest = read_manifest(self.root)
                if manifest.complete:
                    write_manifest(self.root, msgspec.structs.replace(manifest, complete=False))
            self._reopened = True

    def withdraw(self, source: str) -> int:
        """Remove the shards of a source that cannot be trusted; returns their number.

        Those that the manifest lists are left to `finalize`, which `fail` notifies. None is removed
        if another process has read the source to its end and found it sound.
        """
        if note_path(self.root, Done, source).exists():
            return 0
        removed = 0
        for part, shard in self.parts_of(source).items():
            if shard.entry.name not in self.listed:
                del self.shards[source, part]
                remove_published(self.root / SHARDS_NAME / shard.entry.name)
                removed += 1
        return removed

    def findings(self) -> list[str]:
        """Nothing: they are of the whole pack, and reported by `finalize`."""
        return []

    def fail(self, failed: dict[str, SourceError]) -> None:
        """Record which sources were given up, and why."""
        for source, error in failed.items():
            text = printable("\n".join([str(error), *getattr(error, "__notes__", ())]))
            note = Failed(text, isinstance(error, SourceCorrupt))
            replace_file(note_path(self.root, Failed, source), msgspec.json.encode(note))


def _published_meanwhile(folder: Path, root: Path, mine: PublishedShard) -> PublishedShard:
    """The shard that another process has published under the name of this one."""
    found = published_shard(folder, root)
    for key in ("source", "part", "pairs", "pairs_digest"):
        if found.attributes[key] != mine.attributes[key]:
            raise OutputRefused(
                f"{folder}: another process has published this shard from other images: its {key} "
                f"is {found.attributes[key]!r}, here it is {mine.attributes[key]!r}; give all "
                "parts the same files"
            )
    return found
