"""The folder of a cache: whole shards, what its processes share of them, and its limit.

::

    CACHE/
      limit                in bytes
      room.lock            locked while room is taken
      shards/NAME/         a shard, or a feature shard, complete and checked
      packs/NAME/          manifest and index of a pack, and links to its shards that are here
      .../NAME.lock        locked shared while NAME is used, exclusively while it is fetched or
                           removed
      .../.NAME.part/      NAME while it is fetched
      .../.tmp-NAME-…/     NAME while it is removed

A folder gets its name when it is complete. Its lock is one of the system (flock), so that a kill
releases it: what a killed process had begun is removed by the next one that opens the cache, or
needs the same folder. The file of a lock records how many bytes its folder takes, or will take,
during which run of the machine it was made, and how many bytes it had without kept ranges; its
modification time is that of the last use. Nothing is flushed: a folder that was made before the
machine started is compared with its digests first.

Room is taken before anything is written, with `room.lock` held, so that all processes together
keep the limit. When there is none, what processes that are done had taken for ranges and not used
is given back, and then the folders that were used least recently are removed. Memory maps of what
is removed stay valid, as those of any removed file.
"""

import errno
import fcntl
import io
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from sa1bpack.dataset.shard_cache import CACHE as OPEN_SHARDS
from sa1bpack.errors import CacheFull, FormatError, OptionError, StoreError
from sa1bpack.finalizers import Living, settle, when_gone
from sa1bpack.format.file_locks import NoFileLocks, lock_open_file, try_locks
from sa1bpack.format.files import read_metadata_file
from sa1bpack.format.removal import discard_entry, remove_temporaries
from sa1bpack.format.replacing import replace_file
from sa1bpack.format.working_names import TEMPORARY_PREFIX, temporary_beside
from sa1bpack.paths import exists, is_folder, matching, naming
from sa1bpack.remote.kept_ranges import kept_bytes
from sa1bpack.threads import start_thread
from sa1bpack.wording import brief, size_text

# How long a fetch waits for room that others use: batches in progress release theirs in time.
WAIT_SECONDS = 30.0
# A process that fetches one folder for longer than this, and lives, must have been stopped.
PATIENCE = 3600.0
# A shard that was not used for this long may be removed, though it is open.
IDLE_SECONDS = 5.0

_SHORTEST_WAIT = 0.002
_LONGEST_WAIT = 0.05
# Of the free space, the part that a cache without a limit may take.
_SHARE_OF_DISK = 0.8
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
_KINDS = ("packs", "shards")
# Identifies the start of the machine; the same in all of its containers.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Record(NamedTuple):
    """What the file of a lock says of its folder.

    Attributes:
        nbytes: bytes that it takes, or may take.
        boot: the start of the machine that it is from.
        begun_with: bytes of it without the ranges that were kept since.
    """

    nbytes: int
    boot: str
    begun_with: int


class Lock:
    """An open file with a lock of the system, released soon after the object goes, or its process.

    Attributes:
        path: path of the file.
        touched: time when what is locked was used last.
    """

    def __init__(self, path: Path, create: bool = True):
        """Open the file. Raises FileNotFoundError if it is not there, and not to be made."""
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        self.path = path
        self.touched = 0.0
        self._file = io.FileIO(path, "r+", opener=lambda name, _: os.open(name, flags, 0o666))
        when_gone(self, self._file.close)

    def fileno(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Release the lock now."""
        self._file.close()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, exclusive: bool) -> bool:
        """Lock it; False if another has it, or if the file lost its name meanwhile."""
        if exclusive:
            _exclusive.add(self)
        try:
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            lock_open_file(self.fileno(), kind | fcntl.LOCK_NB, self.path)
            return os.path.samestat(self.status(), self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def touch(self) -> None:
        """Note that what is locked is in use now."""
        now = time.monotonic()
        if now - self.touched > _LONGEST_WAIT:
            self.touched = now
            with naming(self.path):
                os.utime(self.fileno())

    @property
    def record(self) -> "Record":
        """What is noted of the folder."""
        with naming(self.path):
            data = os.pread(self.fileno(), 200, 0)
        line, _, _ = data.decode(errors="replace").partition("\n")
        match line.split():
            case [nbytes, boot, begun_with] if nbytes.isdecimal() and begun_with.isdecimal():
                return Record(int(nbytes), boot, int(begun_with))
            case [nbytes, boot] if nbytes.isdecimal():  # of an earlier release
                return Record(int(nbytes), boot, int(nbytes))
        return Record(0, "", 0)  # as after a power failure

    def note(self, nbytes: int, begun_with: int) -> None:
        """Write the record in one step, over another one: processes read it without a lock."""
        with naming(self.path):
            os.pwrite(self.fileno(), f"{nbytes:20} {boot_id()} {begun_with:20}\n".encode(), 0)

    def clear(self) -> None:
        """Remove the record."""
        with naming(self.path):
            os.ftruncate(self.fileno(), 0)

    def status(self) -> os.stat_result:
        """The status of the file."""
        with naming(self.path):
            return os.fstat(self.fileno())


class Cache:
    """The folder of a cache, in this process. Its methods may be called by any thread.

    Attributes:
        root: the folder.
        limit: bytes that it may take.
    """

    def __init__(self, root: Path, limit: int | None = None):
        """Open the folder, or make it; remove what killed processes left.

        Args:
            root: the folder.
            limit: bytes that it may take. None: the limit with which it was opened last, or four
                fifths of the free disk.

        Raises:
            OptionError: its file system has no locks, by which processes share it.
            OSError: the folder cannot be opened or made.
        """
        self.root = root.absolute()
        self._is_counted_again = False
        for kind in _KINDS:
            (self.root / kind).mkdir(parents=True, exist_ok=True)
        try:
            try_locks(self.root)
        except NoFileLocks as error:
            raise OptionError(
                f"cache_dir: {error}, by which processes share a cache; choose a folder on a local "
                "disk"
            ) from None
        with self._alone("room"):
            remove_temporaries(self.root)
            for kind in _KINDS:
                for leftover in matching(self.root / kind, f"{TEMPORARY_PREFIX}*"):
                    discard_entry(leftover)  # it was in use when it was removed
            self.limit = self._settle(limit)
        for lock in list(self._locks()):
            self._remove(lock, only_begun=True)

    def _settle(self, limit: int | None) -> int:
        """The limit to keep, which becomes that of processes that do not name one."""
        path = self.root / "limit"
        if limit is None:
            with suppress(FileNotFoundError):
                return _read_limit(path)
            disk = os.statvfs(self.root)
            limit = int(_SHARE_OF_DISK * disk.f_bavail * disk.f_frsize)
        replace_file(path, str(limit).encode())
        return limit

    # ------------------------------------------------------------------------------ what is here

    def lease(self, name: str) -> Lock | None:
        """A folder, "shards/NAME", in use until the result goes; None if it has to be fetched."""
        try:
            lock = Lock(self.root / f"{name}.lock", create=False)
        except FileNotFoundError:
            return None
        is_there = lock.take(exclusive=False) and is_folder(self.root / name)
        if not is_there or lock.record.boot != boot_id():
            lock.close()
            return None
        lock.touch()
        _in_use.add(lock)
        if os.getpid() not in _watching:
            _watching.clear()
            _watching.add(os.getpid())
            start_thread(_release, "sa1bpack-release")
        return lock

    def hold(
        self,
        name: str,
        nbytes: int,
        fetch: Callable[[Path], None],
        is_sound: Callable[[Path], bool],
    ) -> Lock:
        """A folder in use, fetched if it is not here, by one process and thread of those that ask.

        A thread of its own fetches, so that a signal, which raises in the main thread, interrupts
        no more than the wait for it.

        Args:
            name: name of the folder.
            nbytes: bytes that it takes.
            fetch: makes the folder.
            is_sound: True if a folder that is here is complete and undamaged.

        Raises:
            CacheFull: there is no room.
            StoreError, OSError: fetching failed.
            Whatever `fetch` raises.
        """
        outcome: Future[None]

        def work() -> None:
            try:
                with self._alone(name) as lock:
                    if lock is not None:
                        self._make(lock, self.root / name, nbytes, fetch, is_sound)
                outcome.set_result(None)
            except BaseException as error:
                outcome.set_exception(error)

        while (lease := self.lease(name)) is None:
            outcome = Future()
            start_thread(work, "sa1bpack-cache")
            try:
                outcome.result()
            except OSError as error:
                if error.errno in _DISK_IS_FULL:
                    raise CacheFull(
                        f"{error.filename or self.root}: the disk of the cache is full "
                        f"({error.strerror}): free some of it, or choose another folder"
                    ) from error
                if not exists(self.root):
                    why = f"{self.root}: it was removed while it was in use; open the pack again"
                    raise StoreError(why) from None
                raise
        return lease

    def _make(
        self,
        lock: Lock,
        folder: Path,
        nbytes: int,
        fetch: Callable[[Path], None],
        is_sound: Callable[[Path], bool],
    ) -> None:
        """Make a folder that is not here, with its lock held."""
        if is_folder(folder):
            if lock.record.boot == boot_id():  # which counts what was added to the folder, too
                return
            if is_sound(folder):
                lock.note(nbytes, begun_with=nbytes)
                return
        try:
            while True:
                self._empty(lock)
                self._take(lock, nbytes)
                begun = _begun(folder)
                begun.mkdir()
                try:
                    fetch(begun)
                    begun.rename(folder)
                    return
                except OSError as error:
                    if error.errno not in _DISK_IS_FULL or not self.make_room(nbytes):
                        raise
        except BaseException:
            self._empty(lock)
            lock.path.unlink()
            raise

    @contextmanager
    def _alone(self, name: str) -> Iterator[Lock | None]:
        """The lock of a folder, taken exclusively as soon as others release it.

        None as soon as the folder is here: its fetcher may keep the lock, shared, for long.
        """
        path = self.root / f"{name}.lock"
        pause = _SHORTEST_WAIT
        limit = time.monotonic() + PATIENCE
        while not (lock := Lock(path)).take(exclusive=True):
            lock.close()
            if self.lease(name) is not None:
                yield None
                return
            if time.monotonic() > limit:
                raise StoreError(
                    f"{path}: another process has held this lock for {PATIENCE:.0f} s; was it "
                    "stopped? End it, and the system releases the lock"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)
        with lock:
            yield lock

    # ------------------------------------------------------------------------------------- room

    @property
    def used(self) -> int:
        """Bytes that are here, or expected."""
        nbytes = 0
        for lock in self._locks():
            with lock:
                nbytes += lock.record.nbytes
        return nbytes

    def make_room(self, nbytes: int) -> int:
        """Remove `nbytes` bytes, those used least recently first, as far as they are not in use.

        Returns how many bytes were removed.
        """
        freed = 0
        for release in (False, True):
            if release:
                release_idle(0)
            settle()  # what is not in use any more loses its lock
            with ExitStack() as opened:
                locks = [opened.enter_context(lock) for lock in self._locks()]
                for lock in sorted(locks, key=lambda lock: lock.status().st_mtime_ns):
                    if freed >= nbytes:
                        return freed
                    freed += self._remove(lock)
        return freed

    def _take(self, lock: Lock, nbytes: int) -> None:
        """Note the bytes of a folder, which fit. Raises CacheFull."""
        limit = time.monotonic() + WAIT_SECONDS
        while True:
            with self._alone("room"):
                self.limit = self._settle(None)  # another process may have named another one
                over = self._over(nbytes)
                if over <= 0 or self.make_room(over) >= over:
                    lock.note(nbytes, begun_with=nbytes)
                    lock.touch()
                    return
            if nbytes > self.limit or time.monotonic() > limit:
                raise CacheFull(
                    f"{self.root}: no room for the {size_text(nbytes)} of {lock.path.stem}: the "
                    f"limit is {size_text(self.limit)}, of which {size_text(self.used)} are in "
                    "use; raise cache_size, lower the order's window, or pack smaller shards "
                    "(--samples-per-shard)"
                )
            time.sleep(_LONGEST_WAIT)

    def grow(self, name: str, nbytes: int) -> bool:
        """Note that a folder in use takes more bytes; False if they are not free.

        Nothing is removed for them.
        """
        with self._alone("room"):
            if self._over(nbytes) > 0:
                return False
            with (
                suppress(FileNotFoundError),
                Lock(self.root / f"{name}.lock", create=False) as lock,
            ):
                known = lock.record
                lock.note(known.nbytes + nbytes, known.begun_with)
                return True
        return False

    def _over(self, nbytes: int) -> int:
        """Bytes that so many more would be above the limit; with the lock of the room held."""
        over = self.used + nbytes - self.limit
        if over > 0 and not self._is_counted_again:  # which reads all lists of ranges
            self._is_counted_again = True
            over -= self._count_again()
        return over

    def _count_again(self) -> int:
        """Give back room that was taken for ranges, and left by processes that are done.

        Returns how many bytes that is.
        """
        unused = 0
        for lock in self._locks():
            with lock:
                known = lock.record
                if known.nbytes > known.begun_with and lock.take(exclusive=True):
                    known = lock.record
                    nbytes = known.begun_with + kept_bytes(lock.path.with_suffix(""))
                    if nbytes < known.nbytes:
                        lock.note(nbytes, known.begun_with)
                        unused += known.nbytes - nbytes
        return unused

    def _locks(self) -> Iterator[Lock]:
        for kind in _KINDS:
            for path in matching(self.root / kind, "*.lock"):
                with suppress(FileNotFoundError):
                    yield Lock(path, create=False)

    def _remove(self, lock: Lock, only_begun: bool = False) -> int:
        """Remove a folder that nobody uses or fetches.

        Args:
            lock: lock of the folder.
            only_begun: remove it only if it is not complete.

        Returns:
            Bytes of the folder.
        """
        folder = lock.path.with_suffix("")
        with lock:
            if not lock.take(exclusive=True) or (only_begun and is_folder(folder)):
                return 0
            nbytes = lock.record.nbytes
            self._empty(lock)
            lock.path.unlink()
            return nbytes

    def _empty(self, lock: Lock) -> None:
        """Remove what there is of a folder, with its lock held: it loses its name first."""
        folder = lock.path.with_suffix("")
        for path in (_begun(folder), folder):
            removed = temporary_beside(folder)  # a file in use may keep it, under this name
            with suppress(FileNotFoundError):
                path.rename(removed)
                discard_entry(removed)
        lock.clear()


def _read_limit(path: Path) -> int:
    """The limit of a cache. Raises FormatError for a file that is damaged, OSError."""
    text = read_metadata_file(path)
    if not re.fullmatch(rb"[0-9]{1,18}", text):
        raise FormatError(
            f"{path}: {brief(text)} is not a number of bytes; pass cache_size, which replaces it, "
            "or remove the file"
        )
    return int(text)


def _begun(folder: Path) -> Path:
    """The name of a folder while it is fetched."""
    return folder.with_name(f".{folder.name}.part")


def boot_id() -> str:
    """The identifier of the latest start of the machine."""
    return _BOOT.read_text().strip()


# What this process has in use, so that what it does not need any more can be given up: a shard
# stays open after its use, and nothing says when it will be used again.

_in_use = Living[Lock]()
_exclusive = Living[Lock]()
_watching: set[int] = set()  # the process that has the thread which releases


def release_idle(seconds: float) -> None:
    """Close open shards that were not used for `seconds`; what reads one keeps it until then."""
    before = time.monotonic() - seconds
    idle = {id(lock) for lock in list(_in_use) if lock.touched <= before}
    OPEN_SHARDS.drop(lambda opened: any(id(lease) in idle for lease in opened.leases))


def _release() -> None:
    while True:
        time.sleep(IDLE_SECONDS / 4)
        release_idle(IDLE_SECONDS)


def _after_fork() -> None:
    """Close the locks of threads that fetch: these remained in the parent."""
    for lock in list(_exclusive):
        lock.close()


os.register_at_fork(after_in_child=_after_fork)
