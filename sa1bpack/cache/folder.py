"""The folder of a cache: what its processes share, its limit, and what is removed to keep it.

::

    CACHE/
      cache.json      version of this layout, and the limit in bytes
      packs/NAME/     a pack: its manifest, its index, and links to its shards
      folders/NAME/   a shard, or a part of a side array, named after the digest of its contents
      lock, blocks, folders.lock     locked, see below
      used            int64 (2,): bytes that are present or expected, and the next free slot

Room is taken before anything is written, with `lock` held, so that all processes together keep the
limit. When there is none, the blocks that were used least recently are removed by punching holes: a
file keeps its length, and its disk blocks are free at once. A block is removed under its exclusive
lock, which nobody can have who reads or fetches it.
"""

import errno
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from sa1bpack.cache.blocks import ABSENT, PARTIAL, Blocks
from sa1bpack.cache.locks import ByteLocks
from sa1bpack.disk.holes import punch
from sa1bpack.errors import CacheFull, FormatError, OptionError
from sa1bpack.format.files import TEMPORARY_PREFIX, naming, replace_file
from sa1bpack.wording import size_text

# Blocks of one folder have successive bytes of the file of locks.
SLOT_BLOCKS = 1 << 24

# At least this part of the limit is freed at a time: finding what to remove reads all stamps.
FREED_SHARE = 1 / 64

# How long a fetch waits for room that others hold: batches in progress release theirs in time.
WAIT_SECONDS = 20.0
_PAUSE = 0.02

# Of the free space, the part that a cache without a limit may take.
_SHARE_OF_DISK = 0.8

_PAGE = 4096
_EVERYTHING = 1 << 62  # more bytes than there are
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_VERSION = 1


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    version: int = _VERSION
    limit: int


class Cache:
    """The folder of a cache, in this process. Its methods may be called by any thread.

    root     the folder
    limit    bytes that it may take
    readers  locks on blocks: shared for who reads one, exclusive for who fetches it
    folders  locks on folders, by slot: shared for who uses one, exclusive for who changes it
    """

    def __init__(self, root: Path, limit: int | None):
        """Open the folder, or make it.

        limit  None: that of who opened it last, or four fifths of the free disk

        Raises OptionError if its file system cannot punch holes, OSError.
        """
        self.root = root
        for name in ("packs", "folders"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.folders, self.readers = ByteLocks(root / "folders.lock"), ByteLocks(root / "blocks")
        # Other owners of the same files: what this process holds excludes them as well.
        self._removing, self._lock = ByteLocks(root / "blocks"), ByteLocks(root / "lock")
        self._mutex = threading.RLock()
        self.limit = self._settle(limit)
        _probe(root)
        _caches.add(self)

    @classmethod
    def at(cls, root: Path, limit: int | None = None) -> "Cache":
        """The cache in a folder, one object per process. Raises as `Cache` does."""
        root = root.absolute()
        with _mutex:
            found = next((each for each in _caches if each.root == root and each.is_there), None)
            if found is None:
                return cls(root, limit)
            if limit is not None:
                found.limit = found._settle(limit)
            return found

    @property
    def is_there(self) -> bool:
        """Whether the folder is the one that was opened, neither removed nor made again."""
        return self.readers.is_there

    def _settle(self, limit: int | None) -> int:
        """The limit to keep, which becomes that of processes that do not name one."""
        path = self.root / "cache.json"
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_Settings)
        except FileNotFoundError:
            stored = None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: {error}; remove the cache {self.root}") from None
        if stored is not None and stored.version != _VERSION:
            raise OptionError(
                f"cache is {self.root}, which another release of sa1bpack made (version "
                f"{stored.version}); choose another folder, or remove it"
            )
        if limit is None:
            if stored is not None:
                return stored.limit
            disk = os.statvfs(self.root)
            limit = int(_SHARE_OF_DISK * disk.f_bavail * disk.f_frsize)
        if stored is None or stored.limit != limit:
            replace_file(path, msgspec.json.encode(_Settings(limit=limit)))
        return limit

    # ------------------------------------------------------------------------------------- room

    @contextmanager
    def _locked(self) -> Iterator[np.ndarray]:
        """Hold the lock of the shared numbers: int64 (2,), written back at the end."""
        path = self.root / "used"
        with self._mutex:
            self._lock.wait(0, True, "count what is in the cache")
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    data = os.pread(file, 16, 0)
                    found = np.frombuffer(data.ljust(16, b"\0"), np.int64).copy()
                    yield found
                    os.pwrite(file, found.tobytes(), 0)
                finally:
                    os.close(file)
            finally:
                self._lock.release(0)

    @property
    def used(self) -> int:
        """Bytes that are present or expected."""
        with self._locked() as numbers:
            return int(numbers[0])

    def new_slot(self) -> int:
        """A number for a folder that is being made."""
        with self._locked() as numbers:
            numbers[1] += 1
            return int(numbers[1]) - 1

    def take_block(self, blocks: Blocks, block: int, wait: bool = True) -> bool:
        """Take room for a block, which becomes PARTIAL; the caller has its exclusive lock.

        wait  for what batches in progress hold; otherwise False if there is no room now

        Raises CacheFull if there is none.
        """
        if blocks.stamps[block] == PARTIAL:  # taken before, by a process that was killed
            return True
        nbytes = blocks.nbytes(block)
        return self._take(nbytes, wait, lambda: _set(blocks, block, PARTIAL))

    def take_folder(self, nbytes: int) -> None:
        """Take room for the small files of a folder. Raises CacheFull if there is none."""
        self._take(nbytes, True, lambda: None)

    def count_again(self) -> None:
        """Count what is there: a folder could not be made, for which room was taken."""
        with self._locked() as numbers:
            numbers[0] = self._remove(_EVERYTHING)

    def _take(self, nbytes: int, wait: bool, then) -> bool:
        limit = time.monotonic() + WAIT_SECONDS
        while True:
            with self._locked() as numbers:
                if numbers[0] + nbytes > self.limit:
                    freed = max(nbytes, int(self.limit * FREED_SHARE))
                    numbers[0] = self._remove(max(0, self.limit - freed))
                if numbers[0] + nbytes <= self.limit:
                    numbers[0] += nbytes
                    then()
                    return True
                used = int(numbers[0])
            if not wait:
                return False
            if time.monotonic() > limit:
                raise CacheFull(
                    f"{self.root}: no room for {size_text(nbytes)}: {size_text(used)} of its limit "
                    f"of {size_text(self.limit)} are metadata of shards, or held by batches in "
                    "progress; raise cache_bytes, or lower batch_size or ahead"
                )
            time.sleep(_PAUSE)

    def give_back(self, blocks: Blocks, block: int) -> None:
        """Remove what there is of a block; the caller has its exclusive lock."""
        with self._locked() as numbers:
            if blocks.stamps[block] != ABSENT:
                self._punch(blocks, block)
                numbers[0] -= blocks.nbytes(block)

    def make_room(self, nbytes: int) -> bool:
        """Remove at least so many bytes, for a disk that is full. False if nothing can be."""
        with self._locked() as numbers:
            before = self._remove(_EVERYTHING)
            numbers[0] = after = self._remove(max(0, before - nbytes))
            return after < before

    # ------------------------------------------------------------------------------- removing

    def _remove(self, target: int) -> int:
        """Remove blocks, those used least recently first, until no more than `target` is used.

        Counts what is there. Blocks that someone reads or fetches stay. Returns what is used then.
        The caller holds the lock.
        """
        folders, stamps, sizes, owners = [], [], [], []
        used = 0
        for folder in self.opened_folders():
            used += folder.about.whole
            found = np.abs(folder.stamps)
            present = np.flatnonzero(found)
            size = folder.sizes()[present]
            used += int(size.sum())
            owners.append(np.stack([np.full(len(present), len(folders)), present], 1))
            folders.append(folder)
            stamps.append(found[present])
            sizes.append(size)
        if used <= target or not folders:
            return used
        at, nbytes, where = map(np.concatenate, (stamps, sizes, owners))
        for k in np.argsort(at, kind="stable").tolist():
            if used <= target:
                break
            number, block = where[k].tolist()
            if self._remove_block(folders[number], block, int(at[k])):
                used -= int(nbytes[k])
        return used

    def _remove_block(self, blocks: Blocks, block: int, seen: int) -> bool:
        """Remove a block that nobody reads or fetches; False if somebody does."""
        at = blocks.about.slot * SLOT_BLOCKS + block
        if not self._removing.acquire(at, exclusive=True):
            return False
        try:
            if abs(int(blocks.stamps[block])) != seen:  # used meanwhile, or removed
                return False
            self._punch(blocks, block)
            return True
        finally:
            self._removing.release(at)

    def _punch(self, blocks: Blocks, block: int) -> None:
        """Give the disk blocks of a block back. The caller has its lock, and that of the cache."""
        blocks.stamps[block] = PARTIAL
        beside = [near for near in (block - 1, block + 1) if 0 <= near < blocks.about.blocks]
        base, locked = blocks.about.slot * SLOT_BLOCKS, []
        try:
            # Pages shared with a neighbour are free once neither is there.
            for near in beside:
                if blocks.stamps[near] == ABSENT and self._removing.acquire(base + near, True):
                    locked.append(near)
                    if blocks.stamps[near] != ABSENT:
                        locked.remove(near)
                        self._removing.release(base + near)
            for path, edges in zip(blocks.paths(), blocks.edges, strict=True):
                low, high = edges[block : block + 2].tolist()
                if block - 1 in locked:
                    low = max(low // _PAGE * _PAGE, int(edges[block - 1]))
                if block + 1 in locked:
                    high = min(-(-high // _PAGE) * _PAGE, int(edges[block + 2]))
                if high > low:
                    with suppress(FileNotFoundError):
                        punch(path, low, high)
        finally:
            for near in locked:
                self._removing.release(base + near)
        blocks.stamps[block] = ABSENT

    def opened_folders(self) -> Iterator[Blocks]:
        """The blocks of every complete folder of the cache."""
        for entry in os.scandir(self.root / "folders"):
            if not entry.name.startswith(TEMPORARY_PREFIX):
                with suppress(FileNotFoundError, FormatError):
                    yield Blocks(Path(entry.path))

    def after_fork(self) -> None:
        """In a child: nothing is locked, and no other thread is in here."""
        self._mutex = threading.RLock()
        for locks in (self.folders, self.readers, self._removing, self._lock):
            locks.after_fork()


def disk_is_full(error: OSError, path: Path) -> CacheFull:
    """The error for a full disk when nothing in the cache can be removed."""
    return CacheFull(
        f"{path}: the disk of the cache is full ({error.strerror}), and nothing in the cache can "
        "be removed: free some of it, or choose another folder"
    )


def _set(blocks: Blocks, block: int, stamp: int) -> None:
    blocks.stamps[block] = stamp


def _probe(root: Path) -> None:
    """Find out whether the file system can punch holes. Raises OptionError if not."""
    path = root / f"{TEMPORARY_PREFIX}probe-{os.getpid()}-{threading.get_ident()}"
    try:
        with naming(path):
            path.write_bytes(bytes(2 * _PAGE))
            punch(path, 0, _PAGE)
    except (OSError, AttributeError) as error:
        raise OptionError(
            f"cache is {root}: its file system cannot punch holes in files ({error}): choose a "
            "folder on a local disk, with ext4, xfs or btrfs, or on tmpfs"
        ) from None
    finally:
        path.unlink(missing_ok=True)


_mutex = threading.Lock()
_caches: "weakref.WeakSet[Cache]" = weakref.WeakSet()


def _after_fork() -> None:
    global _mutex
    _mutex = threading.Lock()
    for cache in list(_caches):
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)
