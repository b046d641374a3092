"""What a check of a pack finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sa1bpack.errors import FormatError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    what       what was found and what is due
    shard      name of the shard; None for the pack's own files
    array      name of the array, if one is meant
    sample     row of the sample in its shard, if one is meant
    image_id   its id, as far as it can be read
    file_name  its file name, as far as it can be read
    extra      something is there that is no part of the pack; nothing of the pack is damaged by it
    """

    what: str
    shard: str | None = None
    array: str | None = None
    sample: int | None = None
    image_id: int | None = None
    file_name: str | None = None
    extra: bool = False

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
    notes     what a run in progress or a killed one leaves, which is no damage; the next run of the
              packer settles it
    complete  the manifest's word: every source was packed to its end. False also when the manifest
              cannot be read
    """

    problems: tuple[Problem, ...]
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class Findings:
    """Collects problems, notes and counts during a check."""

    def __init__(self):
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.files = 0

    def add(self, what: str, **place) -> None:
        """Add a problem; `place` holds the other fields of Problem."""
        self.problems.append(Problem(what, **place))

    @contextmanager
    def collecting(self, **place) -> Iterator[None]:
        """Turn a FormatError or OSError in the block into a problem; the rest of it is left out."""
        try:
            yield
        except (FormatError, OSError) as error:
            self.add(str(error), **place)
