"""What the parts of a job leave for `finalize`, in OUT/.parts, each file written atomically.

::

    plan-<digest>.json     the sources of a job, and how many parts it has
    done-<source>.json     the record of a source that is packed to its end, and its shards
    failed-<source>.json   why a source was given up
    lock                   held for a moment, while a part changes what is of the whole pack
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.completeness import PARTS_NAME, PLAN_PREFIX
from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder, read_metadata_file, replace_file
from sa1bpack.format.manifest import SHARDS_NAME

_Kind = TypeVar("_Kind")

_LOCK_NAME = "lock"
_WORKING = f"{TEMPORARY_PREFIX}work-"


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

    def is_there(self, root: Path) -> bool:
        """Whether the shards of the source are still those that its record was written for."""
        try:
            return all(
                file_digest(root / SHARDS_NAME / name / CHECKSUMS_NAME) == digest
                for name, digest in self.shards.items()
            )
        except FileNotFoundError:
            return False


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


def read_plans(root: Path) -> list[Plan]:
    """The recorded jobs, the oldest first. Raises FormatError and OSError as `read_note` does."""
    paths = (root / PARTS_NAME).glob(f"{PLAN_PREFIX}*.json")
    paths = sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [read_note(path, Plan) for path in paths]


def write_note(root: Path, source: str, note: Done | Failed) -> None:
    """Record a source as Done or as Failed."""
    replace_file(note_path(root, type(note), source), msgspec.json.encode(note))


def note_path(root: Path, kind: type, source: str) -> Path:
    """Where a source is recorded as Done or as Failed."""
    return root / PARTS_NAME / f"{kind.__name__.lower()}-{source}.json"


def all_notes(root: Path, kind: type[_Kind], only: Set[str] | None = None) -> dict[str, _Kind]:
    """Name → its record, of every source that is recorded as Done, or as Failed, by name.

    only  names of sources; None: all
    """
    prefix = f"{kind.__name__.lower()}-"
    paths = sorted((root / PARTS_NAME).glob(f"{prefix}*.json"))
    names = {path.stem.removeprefix(prefix): path for path in paths}
    return {n: read_note(path, kind) for n, path in names.items() if only is None or n in only}


def read_note(path: Path, kind: type[_Kind]) -> _Kind:
    """What a part has written. Raises FormatError if it is damaged, OSError if unreadable."""
    try:
        return msgspec.json.decode(read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Only one part at a time is in such a block, which takes a moment."""
    make_folder(root / PARTS_NAME)
    lock = locked(root / PARTS_NAME / _LOCK_NAME)
    try:
        yield
    finally:
        os.close(lock)


def remove_empty_notes(root: Path) -> None:
    """Remove OUT/.parts if no part has left anything for `finalize`; no part runs now."""
    folder = root / PARTS_NAME
    if folder.is_dir() and all(path.name == _LOCK_NAME for path in folder.iterdir()):
        shutil.rmtree(folder)


@contextmanager
def working_folder(root: Path) -> Iterator[Path]:
    """A folder under shards/ of this process, where shards are made until they get their names.

    As long as a process is in the block, it holds a lock in it: what has none was left by a killed
    process, and is removed by the next. Raises OSError.
    """
    folder = root / SHARDS_NAME / (_WORKING + secrets.token_hex(8))
    with alone(root):
        for other in sorted(folder.parent.glob(_WORKING + "*")):
            try:
                os.close(locked(other / _LOCK_NAME, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                continue
            except FileNotFoundError:  # its owner has removed it right now
                pass
            shutil.rmtree(other, ignore_errors=True)
        make_folder(folder)
        lock = locked(folder / _LOCK_NAME)
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def locked(path: Path, lock: int = fcntl.LOCK_EX, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """The descriptor of a file that is locked until it is closed or the process ends, however.

    lock, flags  as in `fcntl.flock` and `os.open`

    Raises OSError; BlockingIOError if the lock is one that does not wait, and another has it. NFS
    supports such locks between machines, but not those on folders.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, lock)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
