"""What a pack folder holds so far, and what is published of it.

Published shards carry their own record (the attributes of their Zarr group), so a killed run loses
at most its unpublished shards; the manifest adds what is known of whole sources. Everything that
this module writes follows from the shards and the sources alone: the same input gives the same
bytes, however often the run was interrupted.
"""

import errno
import fcntl
import json
import os
import time
from collections import Counter
from pathlib import Path
from shlex import quote

from sa1bpack.errors import FormatError, OutputLocked, OutputRefused, VersionError
from sa1bpack.format import (
    make_manifest,
    open_shard,
    publish,
    read_manifest,
    remove_stale,
)  # fmt: skip
from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder, remove_published, replace_file
from sa1bpack.format.layout import FORMAT_VERSION
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    write_manifest,
)
from sa1bpack.format.publish import REJECTS_NAME, shard_folders
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.records import check_shard_record, check_source_record
from sa1bpack.packing.request import existing_parent
from sa1bpack.packing.unit import PublishedShard, shard_name

LOCK_NAME = ".lock"
_UNHELD = -1  # in place of the lock of a folder that is only looked at


class Ledger:
    """The state of one pack folder, held by one process at a time.

    shards
        (source, part) → the published shard.
    sources
        Name of a finished source → its record in the manifest.
    """

    def __init__(self, root: Path, options: PackOptions, lock: int | None = None):
        """Take hold of `root`, making it when it is not there.

        lock
            What `lock_folder` gave: the caller has hold of the folder, and enters what is sound in
            it. Nothing is looked at here.

        Raises OutputLocked when another process holds it, OptionsDiffer when it was packed with
        other options, PackError when it is a folder of something else, FormatError when what is
        there is damaged.
        """
        self.root = root
        self.options = options
        self.shards: dict[tuple[str, int], PublishedShard] = {}
        self.sources: dict[str, dict] = {}
        self._published_at = self._publish_seconds = 0.0
        if lock is not None:
            self._lock = lock
            return
        make_folder(root)
        _check_ours(root)
        self._lock = lock_folder(root)
        try:
            self._load()
            if not (root / MANIFEST_NAME).exists():
                # It comes first of all files: a run killed at any moment leaves a pack, or nothing
                # but working files.
                write_manifest(root, self._manifest(complete=False))
            remove_stale(root)
        except BaseException:
            self.release()
            raise

    @classmethod
    def look(cls, root: Path, options: PackOptions) -> "Ledger":
        """What a run into `root` would find. Writes nothing and holds nothing.

        Raises what the run would raise: the same errors as the constructor, and PermissionError or
        OSError for a folder that cannot be written.
        """
        ledger = cls(root, options, lock=_UNHELD)
        if root.exists():
            _check_ours(root)
        _check_writable(root)
        if (root / LOCK_NAME).exists():
            os.close(lock_folder(root))
        ledger._load()
        return ledger

    @property
    def shards_dir(self) -> Path:
        return self.root / SHARDS_NAME

    def release(self) -> None:
        """Let other processes have the folder."""
        os.close(self._lock)

    def _load(self) -> None:
        """Enter what is published, or raise. Nothing is written."""
        listed = ()
        if (self.root / MANIFEST_NAME).exists():
            manifest = read_manifest(self.root)
            check_can_write(manifest.version, self.root / MANIFEST_NAME)
            self.options.check_same(manifest.options, str(self.root))
            for record in manifest.sources:
                check_source_record(record, self.root / MANIFEST_NAME)
            self.sources = {record["name"]: record for record in manifest.sources}
            listed = manifest.shards
        for folder in shard_folders(self.root):
            try:
                shard = open_shard(folder)
                check_shard_record(shard.attributes, folder)
                _check_name(folder, shard.entry)
            except FormatError as error:
                raise FormatError(
                    f"{error}\nRemove the folder {folder} and repeat the command: that part is "
                    "packed again. Or mend all that is damaged: sa1bpack repair "
                    f"{quote(str(self.root))} TARS"
                ) from error
            self.add_shard(PublishedShard(shard.entry, shard.attributes))
        for entry in listed:  # of a shard that someone removed, the source is not done any more
            if (entry.source, entry.part) not in self.shards:
                self.sources.pop(entry.source, None)

    def parts_of(self, source: str) -> dict[int, PublishedShard]:
        """Part → published shard, of one source."""
        return {part: shard for (name, part), shard in self.shards.items() if name == source}

    def add_shard(self, shard: PublishedShard) -> None:
        """Enter a published shard."""
        self.shards[shard.entry.source, shard.entry.part] = shard

    def finish_source(self, record: dict) -> None:
        """Enter a source of which every shard is published.

        The manifest and the index follow now and then: writing them takes two seconds for the whole
        of SA-1B, and may take one part in twenty of the time. A run killed in between reads the
        source again, but decodes nothing of it.
        """
        self.sources[record["name"]] = record
        if time.monotonic() - self._published_at >= 20 * self._publish_seconds:
            self.publish(complete=False)

    def withdraw(self, source: str) -> int:
        """Remove every shard of a source that cannot be trusted; return how many there were."""
        parts = self.parts_of(source)
        for part in parts:
            del self.shards[source, part]
        self.sources.pop(source, None)
        self.publish(complete=False)  # first: a manifest never lists a shard that is not there
        for shard in parts.values():
            remove_published(self.shards_dir / shard.entry.name)
        return len(parts)

    def rejects(self) -> list[dict]:
        """Every line of rejects.jsonl, by source and, within one, in the order of finding."""
        lines = [
            {"source": source, **reject}
            for (source, _), shard in self._in_order()
            for reject in shard.attributes["rejects"]
        ]
        lines += [
            {"source": name, **reject}
            for name, record in sorted(self.sources.items())
            for reject in record["rejects"]
        ]
        return sorted(lines, key=lambda line: line["source"])

    def counts(self) -> dict[str, int]:
        """Totals over the pack."""
        shards = self.shards.values()
        rejects = self.rejects()
        return {
            "images": sum(shard.entry.samples for shard in shards),
            "masks": sum(shard.entry.masks for shard in shards),
            "annotations": sum(shard.entry.annotations for shard in shards),
            "dropped_images": sum(shard.attributes["dropped"] for shard in shards)
            + sum(record["dropped"] for record in self.sources.values()),
            "rejects": len(rejects),
            **{
                f"rejects:{code}": count
                for code, count in sorted(Counter(line["reason"] for line in rejects).items())
            },
        }

    def publish(self, complete: bool) -> None:
        """Write the index, rejects.jsonl, the manifest and the checksums, each whole or not at all.

        complete
            Every source asked for is packed; the pack is when no other is packed in part either.
        """
        started = time.monotonic()
        rejects = "".join(json.dumps(line, sort_keys=True) + "\n" for line in self.rejects())
        replace_file(self.root / REJECTS_NAME, rejects.encode())
        publish(self.root, self._manifest(complete))
        self._published_at = time.monotonic()
        self._publish_seconds = self._published_at - started

    def _manifest(self, complete: bool) -> Manifest:
        return make_manifest(
            self.options.layout,
            [shard.entry for _, shard in self._in_order()],
            complete=complete and all(source in self.sources for source, _ in self.shards),
            options=self.options.to_json(),
            sources=[record for _, record in sorted(self.sources.items())],
            counts=self.counts(),
        )

    def _in_order(self) -> list[tuple[tuple[str, int], PublishedShard]]:
        """Shards by the name of their source and by part: the order of the pack's samples."""
        return sorted(self.shards.items(), key=lambda item: item[0])


def _check_ours(root: Path) -> None:
    """Refuse a folder of something else before anything in it is touched."""
    if (root / MANIFEST_NAME).exists():
        return
    working = (LOCK_NAME, TEMPORARY_PREFIX + MANIFEST_NAME)
    if any(not path.name.startswith(working) for path in root.iterdir()):
        raise OutputRefused(
            f"{root} is not empty and holds no {MANIFEST_NAME}; choose an empty or a new "
            "folder. If it is a pack that has lost it: sa1bpack repair "
            f"{quote(str(root))} TARS"
        )


def _check_writable(root: Path) -> None:
    """Raise OSError, as writing would, if nothing can be made in a folder, or where it would be."""
    for folder in map(existing_parent, (root, root / SHARDS_NAME)):
        if not os.access(folder, os.W_OK | os.X_OK):
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            code = errno.EROFS if read_only else errno.EACCES
            raise OSError(code, os.strerror(code), str(folder))


def lock_folder(root: Path) -> int:
    """Lock a folder until the descriptor is closed or the process ends, however it ends.

    The lock is on a file in it, which stays: NFS carries such locks between machines, but not
    those on folders.
    """
    descriptor = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OutputLocked(
            f"{root}: another process packs into this folder; wait for it, or choose another folder"
        ) from None
    return descriptor


def check_can_write(version: tuple[int, int], path: Path) -> None:
    """Raise VersionError for a pack that this release can read, but not write as it was."""
    if version > FORMAT_VERSION:
        found, ours = (".".join(map(str, each)) for each in (version, FORMAT_VERSION))
        raise VersionError(
            f"{path}: format version {found}, but this release writes {ours}, and would lose what "
            "is new in it; install the sa1bpack that made it to add to it or to repair it"
        )


def _check_name(folder: Path, entry: ShardEntry) -> None:
    """Raise FormatError for a copy of a shard, or one that was renamed."""
    due = shard_name(entry.source, entry.part)
    if folder.name != due:
        raise FormatError(f"{folder}: it holds part {entry.part} of {entry.source}, which is {due}")
