"""What a check of a pack finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. What mends damage is the same for all: `sa1bpack repair`.

    what       what was found and what is due
    shard      name of the shard; None for the pack's own files
    array      name of the array, if one is meant
    sample     row of the sample in its shard, if one is meant
    image_id   its id, as far as it can be read
    file_name  its file name, as far as it can be read
    extra      something is there that is no part of the pack; nothing of the pack is damaged by it
    denied     this user may not read a file or folder; whether it is damaged is not known
    """

    what: str
    shard: str | None = None
    array: str | None = None
    sample: int | None = None
    image_id: int | None = None
    file_name: str | None = None
    extra: bool = False
    denied: bool = False

    def __str__(self) -> str:
        place = [f"shard {self.shard}"] if self.shard is not None else []
        if self.array is not None:
            place.append(f"array {self.array}")
        if self.sample is not None:
            place.append(f"sample {self.sample} (image_id {self.image_id}, {self.file_name})")
        return f"{', '.join(place)}: {self.what}" if place else self.what


@dataclass(frozen=True)
class Report:
    """The outcome of a check: problems in the order found, and how much was looked at.

    counts    shards, samples, masks, files (those whose digest was compared) and bytes (of all
              chunk files); whole shards that the manifest does not list yet are counted too
    notes     what is not damage: what a packer that is running or was killed left behind, which its
              next run settles; sources and image ids that the pack holds more than once
    complete  the manifest's word: every source was packed to its end; None if the manifest is
              damaged, which leaves nothing to check by
    """

    problems: tuple[Problem, ...]
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def reason_of(error: FormatError | OSError) -> str:
    """Why something of a pack cannot be read, in words."""
    if isinstance(error, OSError):
        return f"{error.filename}: cannot be read: {error.strerror}"
    return str(error)


class Findings:
    """Collects problems, notes and counts during a check."""

    def __init__(self):
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.files = 0
        self._said: set[tuple[str, str | None, int | None]] = set()

    def add(self, what: str, **place) -> None:
        """Add a problem, once; `place` holds the other fields of Problem.

        Several parts of a check come upon the same file, and say the same of it.
        """
        problem = Problem(what.removesuffix(f"; {REMEDY}"), **place)
        said = (problem.what, problem.shard, problem.sample)
        if said not in self._said:
            self._said.add(said)
            self.problems.append(problem)

    @contextmanager
    def collecting(self, **place) -> Iterator[None]:
        """Turn a FormatError or OSError in the block into a problem; the rest of it is left out."""
        try:
            yield
        except (FormatError, OSError) as error:
            self.add(reason_of(error), **place, denied=isinstance(error, PermissionError))
