"""A check of a pack under way: the files that it reads, and what it finds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

from sa1bpack.disk.direct import FileStream, choose_mode, direct_obstacle
from sa1bpack.errors import FormatError
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.files import REMEDY, is_shortage
from sa1bpack.format.manifest import MANIFEST_NAME
from sa1bpack.progress import Advance
from sa1bpack.threads import ThreadPool


@dataclass(frozen=True)
class Problem:
    """One problem of a pack. The remedy for damage of a pack is `sa1bpack repair`.

    Attributes:
        what: what was found and what is expected.
        feature: name of the feature; None for the pack itself. Its remedy is to derive it again.
        shard: name of the shard, or of the feature shard; None for the pack's own files.
        array: name of the array, if the problem is in one.
        sample: row of the sample in its shard, if the problem is in one.
        image_id: image id of the sample, as far as it can be read.
        file_name: file name of the sample, as far as it can be read.
        extra: a file that does not belong to the pack; the pack itself is not damaged by it.
        denied: this user may not read a file or folder, or nobody could; whether it is damaged is
            unknown.
    """

    what: str
    shard: str | None = None
    array: str | None = None
    sample: int | None = None
    image_id: int | None = None
    file_name: str | None = None
    extra: bool = False
    denied: bool = False
    feature: str | None = None

    def __str__(self) -> str:
        names = []
        if self.feature is not None:
            names.append(f"feature {self.feature}")
        if self.shard is not None:
            names.append(f"shard {self.shard}")
        if self.array is not None:
            names.append(f"array {self.array}")
        if self.sample is not None:
            names.append(f"sample {self.sample} (image_id {self.image_id}, {self.file_name})")
        if not names:
            return self.what
        return f"{', '.join(names)}: {self.what}"


class ProblemFields(TypedDict, total=False):
    """Fields of a Problem besides `what`."""

    shard: str | None
    array: str | None
    sample: int | None
    image_id: int | None
    file_name: str | None
    extra: bool
    denied: bool
    feature: str | None


@dataclass(frozen=True)
class Report:
    """The result of a check: problems in the order found, and how much was checked.

    Attributes:
        counts: shards, samples, masks, files (whose digest was compared), bytes (of all chunk
            files) and, if there are any, features, including complete shards that the manifest does
            not list yet; of a feature alone feature_shards, files and bytes.
        notes: findings that are not damage: what a packer that is running or was killed left
            behind, which its next run settles; image ids that the pack holds more than once.
        complete: every source was packed to its end, by the manifest; None if the manifest is
            damaged, so that nothing else can be checked.
    """

    problems: tuple[Problem, ...]
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool | None = None

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems


def joined(reports: Sequence[Report]) -> Report:
    """One report of those on the parts of a check, the first part first."""
    problems = dict.fromkeys(problem for report in reports for problem in report.problems)
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    counts: dict[str, int] = {}
    for report in reports:
        for key, count in report.counts.items():
            if key == "features":  # every part looks at all of them
                counts[key] = max(counts.get(key, 0), count)
            else:
                counts[key] = counts.get(key, 0) + count
    complete = None
    for report in reports:
        if complete is None:
            complete = report.complete
    in_order = sorted(problems, key=lambda problem: problem.feature is not None)
    return Report(tuple(in_order), counts, tuple(notes), complete)


def reason_of(error: FormatError | OSError) -> str:
    """The reason why a part of a pack cannot be read, as a text."""
    if isinstance(error, OSError):
        return f"{error.filename}: cannot be read: {error.strerror}"
    return str(error)


class PackFiles:
    """The files of a pack, or of a feature, that is checked: here, those of a folder.

    Attributes:
        root: the folder. Every file is there with its length. Its bytes are there as well, unless
            `stream` and `digest` read them elsewhere, or the shard has not been fetched yet.
        tries: number of times that a shard is checked at most, as long as something is wrong with
            it.
    """

    tries = 1

    def __init__(self, root: Path, io: str = "auto"):
        self.root = root
        self._io = io
        self._direct = False

    def choose_mode(self, nbytes: int) -> None:
        """Decide how streams are read that have `nbytes` bytes together.

        Raises OptionError if `io` is impossible.
        """
        # A small file stands for the others: those may be damaged.
        small = self.root / MANIFEST_NAME
        mode = choose_mode(self._io, nbytes, "the pack's", lambda: direct_obstacle(small))
        self._direct = mode.direct

    def stream(self, path: Path, nbytes: int, helper: ThreadPool) -> FileStream:
        """A file of `nbytes` bytes, to be read once; `helper` may read ahead. Raises OSError."""
        return FileStream(str(path), nbytes, self._direct, helper)

    def digest(self, path: Path) -> str:
        """XXH3-128 of a file. Raises OSError."""
        return file_digest(path)

    def fetch(self, shard: str) -> None:
        """Fetch the files of a shard before they are looked at, again for each try."""

    def release(self, shard: str) -> None:
        """Free the room of a shard, but for `image_id`, `mask_offset` and metadata."""


class Check:
    """A check under way: what it reads, how far it is, and what it has found.

    Attributes:
        files: the files that are checked.
        notes: as in Report.
        compared: number of files whose digest was compared.
        total: bytes to check.
        done: bytes that were checked.
    """

    def __init__(self, files: PackFiles, advance: Advance | None = None):
        self.files = files
        self.notes: list[str] = []
        self.compared = 0
        self.total = 0
        self.done = 0
        self._advance = advance
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._fields: ProblemFields = {}  # of problems that are added now

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems in the order found."""
        return tuple(self._problems.values())

    def report(self, counts: dict[str, int], complete: bool | None = None) -> Report:
        """The report of the check, with the number of files that were compared among the counts."""
        counts = {**counts, "files": self.compared}
        return Report(self.problems, counts, tuple(self.notes), complete)

    def add(self, what_is_wrong: str, **fields: Unpack[ProblemFields]) -> None:
        """Add a problem, once. It has these fields, and those of the `collecting` that it is in.

        Several parts of a check can find the same problem in the same file.
        """
        fields = {**self._fields, **fields}
        problem = Problem(what_is_wrong.removesuffix(f"; {REMEDY}"), **fields)
        key = problem.what, problem.feature, problem.shard, problem.sample
        self._problems.setdefault(key, problem)

    @contextmanager
    def collecting(self, **fields: Unpack[ProblemFields]) -> Iterator[None]:
        """Give problems these fields; turn a FormatError or OSError into one, which ends the block.

        What the system refuses for lack of resources is raised: it says nothing about the pack.
        """
        outer = self._fields
        self._fields = {**outer, **fields}
        try:
            yield
        except (FormatError, OSError) as error:
            if isinstance(error, OSError) and is_shortage(error):
                raise
            self.add(reason_of(error), denied=isinstance(error, PermissionError))
        finally:
            self._fields = outer

    def digest(self, path: Path, expected: str, **fields: Unpack[ProblemFields]) -> None:
        """Compare the XXH3-128 of a file with the listed one; a missing file is no finding here."""
        with self.collecting(**fields):
            try:
                digest = self.files.digest(path)
            except (FileNotFoundError, NotADirectoryError):
                return
            self.same_digest(path, digest, expected)

    def same_digest(self, path: Path, digest: str, expected: str) -> None:
        """Compare the XXH3-128 that was computed of a file with the listed one."""
        self.compared += 1
        if digest != expected:
            self.add(f"{path}: XXH3-128 is {digest}, but {CHECKSUMS_NAME} says {expected}")

    def advance(self, nbytes: int) -> None:
        """Count bytes that were checked."""
        self.done += nbytes
        if self._advance is not None:
            self._advance(min(self.done, self.total), self.total)

    def again(self, work: Callable[[], None]) -> None:
        """Do a part of the check, up to `files.tries` times as long as it finds a problem.

        Only what the last try finds is kept.
        """
        problems = self._problems
        notes = self.notes
        compared = self.compared
        checked_bytes = self.done
        for _ in range(self.files.tries):
            self._problems = dict(problems)
            self.notes = list(notes)
            self.compared = compared
            self.done = checked_bytes
            work()
            if len(self._problems) == len(problems):
                break
