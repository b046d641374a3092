"""What the parts of a job leave for `finalize`, in OUT/.parts, each file written atomically.

::

    plan-<digest>.json     the sources of a job, and how many parts it has
    done-<source>.json     the record of a source that is packed to its end, and its shards
    failed-<source>.json   why a source was given up
    lock                   held for a moment, while a part prepares the folder
    <name>/                of one process: its lock, and its log of runs
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.completeness import PARTS_NAME, PLAN_PREFIX
from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder, read_metadata_file, replace_file
from sa1bpack.format.manifest import SHARDS_NAME
from sa1bpack.packing.records import check_source_record

_Kind = TypeVar("_Kind")


class Plan(msgspec.Struct, frozen=True):
    """A job: what all its parts together pack.

    parts
        Into how many parts it is cut.
    sources
        Names of all its sources, sorted: the K-th part has every `parts`-th, from the K-th on.
    """

    parts: int
    sources: tuple[str, ...]


class Done(msgspec.Struct, frozen=True):
    """A source that is packed to its end.

    record
        Its record in the manifest.
    shards
        Name of each of its shards → the XXH3-128 of its checksum file.
    """

    record: dict[str, Any]
    shards: dict[str, str]


class Failed(msgspec.Struct, frozen=True):
    """A source that was given up.

    error
        Why.
    corrupt
        Its bytes are wrong: no shard made from them can be trusted.
    """

    error: str
    corrupt: bool


def write_plan(root: Path, plan: Plan) -> None:
    """Record a job, unless it is recorded."""
    data = msgspec.json.encode(plan)
    path = root / PARTS_NAME / f"{PLAN_PREFIX}{xxhash.xxh3_64_hexdigest(data)}.json"
    if not path.exists():
        replace_file(path, data)


def write_done(root: Path, done: Done) -> None:
    """Record that a source is packed to its end."""
    replace_file(done_path(root, done.record["name"]), msgspec.json.encode(done))


def write_failed(root: Path, source: str, failed: Failed) -> None:
    """Record that a source was given up."""
    replace_file(failed_path(root, source), msgspec.json.encode(failed))


def done_path(root: Path, source: str) -> Path:
    """Where `write_done` records a source."""
    return root / PARTS_NAME / f"done-{source}.json"


def failed_path(root: Path, source: str) -> Path:
    """Where `write_failed` records a source."""
    return root / PARTS_NAME / f"failed-{source}.json"


def read_plans(root: Path) -> list[Plan]:
    """The recorded jobs, the oldest first. Raises FormatError and OSError as `read_done` does."""
    paths = sorted((root / PARTS_NAME).glob(f"{PLAN_PREFIX}*.json"), key=_written)
    return [_read(path, Plan) for path in paths]


def read_done(path: Path) -> Done:
    """What `write_done` wrote. Raises FormatError if it is damaged, OSError if unreadable."""
    done = _read(path, Done)
    check_source_record(done.record, path)
    return done


def all_done(root: Path) -> Iterator[tuple[Path, Done]]:
    """Every source that is recorded as packed to its end, by name."""
    for path in sorted((root / PARTS_NAME).glob("done-*.json")):
        yield path, read_done(path)


def all_failed(root: Path) -> dict[str, Failed]:
    """Name → why it was given up, of every source recorded so."""
    paths = sorted((root / PARTS_NAME).glob("failed-*.json"))
    return {path.stem.removeprefix("failed-"): _read(path, Failed) for path in paths}


def shards_are_there(root: Path, done: Done) -> bool:
    """Whether the shards of a source are still those that its record was written for."""
    try:
        return all(
            file_digest(root / SHARDS_NAME / name / CHECKSUMS_NAME) == digest
            for name, digest in done.shards.items()
        )
    except FileNotFoundError:
        return False


def _read(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None


def _written(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name


_LOCK_NAME = "lock"
_PREFIX = f"{TEMPORARY_PREFIX}part-"


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Only one part at a time is in such a block, which takes a moment. OUT/.parts must exist."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(root / PARTS_NAME / _LOCK_NAME, flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_empty_notes(root: Path) -> None:
    """Remove OUT/.parts if no part has left anything for `finalize`; no part runs now."""
    folder = root / PARTS_NAME
    if folder.is_dir() and all(p.name == _LOCK_NAME or p.is_dir() for p in folder.rglob("*")):
        shutil.rmtree(folder)


class PartFolder:
    """A working folder under shards/, which a process keeps as long as it holds a lock.

    folder
        Where complete shards wait to be moved to their final names, within one file system.
    notes
        A folder in OUT/.parts that stays: it has the lock, and takes the log of runs.

    The lock is on a file: NFS supports such locks between machines, but not those on folders. It
    decides only whether the folder is in use or abandoned.
    """

    def __init__(self, root: Path):
        """Create it, and remove what killed processes left. Raises OSError."""
        make_folder(root / SHARDS_NAME)
        _remove_abandoned(root)
        name = secrets.token_hex(8)
        self.notes = root / PARTS_NAME / name
        self.folder = root / SHARDS_NAME / (_PREFIX + name)
        make_folder(self.notes)
        self._lock = os.open(self.notes / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.folder.mkdir()  # only now: without a lock it would look abandoned
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the working folder, and what is empty of the other."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.notes / _LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):  # it holds a log
            self.notes.rmdir()
        os.close(self._lock)


def _remove_abandoned(root: Path) -> None:
    for folder in sorted((root / SHARDS_NAME).glob(_PREFIX + "*")):
        path = root / PARTS_NAME / folder.name.removeprefix(_PREFIX) / _LOCK_NAME
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # its owner removes it right now, or was killed doing so
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
