"""What the parts of a job leave for `finalize`, in PACK/.parts.

"plan-<digest>.json" has a PackJob, "source-<name>.json" a SourceNote. Each is replaced atomically.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format import files
from sa1bpack.format.accounts import source_shortfall
from sa1bpack.format.manifest import JOB_PREFIX, PARTS_NAME, SHARDS_NAME

_NOTE_PREFIX = "source-"
_Note = TypeVar("_Note")


class PackJob(msgspec.Struct, frozen=True):
    """A job: what all its parts together pack.

    Attributes:
        parts: number of parts of the job.
        sources: names of all sources of the job, sorted: the K-th part has every `parts`-th, from
            the K-th on.
    """

    parts: int
    sources: tuple[str, ...]

    def write(self, root: Path) -> None:
        """Leave the job in a pack's folder, unless another part of it has."""
        data = msgspec.json.encode(self)
        path = root / PARTS_NAME / f"{JOB_PREFIX}{xxhash.xxh3_64_hexdigest(data)}.json"
        if not path.exists():
            files.replace_file(path, data)


class SourceNote(msgspec.Struct, frozen=True):
    """The note that a part of a job leaves on a source, in a file of its own, for `finalize`.

    Attributes:
        record: record of the source in the manifest; None if it was given up.
        shards: name of each shard of the source → XXH3-128 of its checksum file.
        error: why the source was given up.
        corrupt: it was given up because its bytes are wrong: no shard made from them can be
            trusted.
    """

    record: dict[str, Any] | None = None
    shards: dict[str, str] = {}
    error: str = ""
    corrupt: bool = False

    def write(self, root: Path, source: str) -> None:
        """Leave the note on a source, in place of an earlier one."""
        files.replace_file(note_path(root, source), msgspec.json.encode(self))

    def holds(self, root: Path) -> bool:
        """True if the source was packed to its end, and its shards are still those of the note."""
        if self.record is None:
            return False
        for name, digest in self.shards.items():
            try:
                if files.file_digest(root / SHARDS_NAME / name / files.CHECKSUMS_NAME) != digest:
                    return False
            except FileNotFoundError:
                return False
        return True

    def accounts_for_all(self, samples_per_shard: int) -> bool:
        """True if no pair of a source that was packed to its end is missing."""
        if self.record is None:
            return False
        samples = {}
        for name in self.shards:
            number = name.rpartition("-")[2]
            if not number.isdecimal():
                return False
            samples[int(number)] = 0  # the note does not tell
        return source_shortfall(self.record, samples, samples_per_shard) is None


def note_path(root: Path, source: str) -> Path:
    """The path of the note on a source."""
    return root / PARTS_NAME / f"{_NOTE_PREFIX}{source}.json"


def read_source_note(root: Path, source: str) -> SourceNote | None:
    """The note on a source; None if there is none. Raises as `read_jobs` does."""
    path = note_path(root, source)
    if not path.exists():
        return None
    return _read(path, SourceNote)


def read_source_notes(root: Path) -> dict[str, SourceNote]:
    """Name → note, of every source. Raises as `read_jobs` does."""
    notes = {}
    for path in sorted((root / PARTS_NAME).glob(f"{_NOTE_PREFIX}*.json")):
        notes[path.stem.removeprefix(_NOTE_PREFIX)] = _read(path, SourceNote)
    return notes


def read_jobs(root: Path) -> list[PackJob]:
    """The jobs of which parts were begun, the last begun last.

    Raises FormatError for a file that is damaged, OSError for one that cannot be read.
    """
    paths = (root / PARTS_NAME).glob(f"{JOB_PREFIX}*.json")
    in_order = sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [_read(path, PackJob) for path in in_order]


def _read(path: Path, kind: type[_Note]) -> _Note:
    try:
        return msgspec.json.decode(files.read_metadata_file(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"{path}: damaged ({error}); remove it, and repeat the parts of the job"
        ) from None
