"""The findings of a check of a pack."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY


@dataclass(frozen=True)
class Problem:
    """One problem of a pack. The remedy for damage of a pack is `sa1bpack repair`.

    what       what was found and what is expected
    side       name of the side array; None for the pack itself. Its remedy is to derive it again
    shard      name of the shard, or of the part of a side array; None for the pack's own files
    array      name of the array, if the problem is in one
    sample     row of the sample in its shard, if the problem is in one
    image_id   its id, as far as it can be read
    file_name  its file name, as far as it can be read
    extra      a file that does not belong to the pack; the pack itself is not damaged by it
    denied     this user may not read a file or folder, or nobody could; whether it is damaged is
               unknown
    """

    what: str
    shard: str | None = None
    array: str | None = None
    sample: int | None = None
    image_id: int | None = None
    file_name: str | None = None
    extra: bool = False
    denied: bool = False
    side: str | None = None

    def __str__(self) -> str:
        place = [f"side array {self.side}"] if self.side is not None else []
        if self.shard is not None:
            place.append(f"{'shard' if self.side is None else 'part'} {self.shard}")
        if self.array is not None:
            place.append(f"array {self.array}")
        if self.sample is not None:
            place.append(f"sample {self.sample} (image_id {self.image_id}, {self.file_name})")
        return f"{', '.join(place)}: {self.what}" if place else self.what


@dataclass(frozen=True)
class Report:
    """The result of a check: problems in the order found, and how much was checked.

    counts    shards, samples, masks, files (whose digest was compared) and bytes (of all chunk
              files), including complete shards that the manifest does not list yet
    notes     what is not damage: what a packer that is running or was killed left behind, which its
              next run settles; sources and image ids that the pack holds more than once
    complete  whether every source was packed to its end, by the manifest; None if the manifest is
              damaged, so that nothing else can be checked
    """

    problems: tuple[Problem, ...]
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool | None = None

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def joined(reports: Sequence[Report]) -> Report:
    """One report of those on the parts of a check, the first part first."""
    problems = dict.fromkeys(problem for report in reports for problem in report.problems)
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    counts: dict[str, int] = {}
    for report in reports:
        for key, count in report.counts.items():
            # Every part looks at all side arrays, and at its own shards.
            both = max if key == "side arrays" else int.__add__
            counts[key] = both(counts.get(key, 0), count)
    complete = next((r.complete for r in reports if r.complete is not None), None)
    in_order = sorted(problems, key=lambda problem: problem.side is not None)
    return Report(tuple(in_order), counts, tuple(notes), complete)


_PLACE = tuple(each.name for each in fields(Problem) if each.name != "what")


def reason_of(error: FormatError | OSError) -> str:
    """Why a part of a pack cannot be read, as a text."""
    if isinstance(error, OSError):
        return f"{error.filename}: cannot be read: {error.strerror}"
    return str(error)


class Findings:
    """Collects problems, notes and counts during a check."""

    def __init__(self):
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.files = 0
        self._reported: set[tuple[str, str | None, str | None, int | None]] = set()

    def add(self, what: str, **place) -> None:
        """Add a problem, once; `place` holds the other fields of Problem.

        Several parts of a check can find the same problem in the same file.
        """
        problem = Problem(what.removesuffix(f"; {REMEDY}"), **place)
        key = (problem.what, problem.side, problem.shard, problem.sample)
        if key not in self._reported:
            self._reported.add(key)
            self.problems.append(problem)

    def take(self, other: "Findings") -> None:
        """Add what another check found."""
        for problem in other.problems:
            place = {name: getattr(problem, name) for name in _PLACE}
            self.add(problem.what, **place)
        self.notes += other.notes
        self.files += other.files

    @contextmanager
    def collecting(self, **place) -> Iterator[None]:
        """Turn a FormatError or OSError into a problem; it ends the block."""
        try:
            yield
        except (FormatError, OSError) as error:
            self.add(reason_of(error), **place, denied=isinstance(error, PermissionError))
