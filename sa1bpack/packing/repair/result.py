"""What a repair reports."""

from dataclasses import dataclass, field
from pathlib import Path

from sa1bpack.format import Problem

# What `RepairResult.left` calls the manifest, the index and the other files at the top of a pack.
OWN_FILES = "the pack's own files"


@dataclass
class RepairResult:
    """What was damaged, and the outcome.

    root
        The pack's folder.
    problems
        What the check found before anything was repaired.
    repaired
        Names of the shards that were rebuilt; after a dry run, those that would be.
    rewritten
        Whether the pack's own files (manifest, index, checksums, ...) were rewritten, or would be.
    left
        What is still damaged → why, and the remedy. Keys are names of shards and sources, and
        OWN_FILES.
    extra
        Problems that are not damage: files that are not part of the pack. They are never touched.
    notes
        What was reported to the user.
    complete
        The pack holds every source to its end.
    dry_run
        Nothing was written.
    seconds
        Wall time.

    Examples:
        >>> result = sa1bpack.repair("packed", dry_run=True)
        >>> result.ok, result.repaired, result.left
        (True, [], {})
    """

    root: Path
    problems: tuple[Problem, ...] = ()
    repaired: list[str] = field(default_factory=list)
    rewritten: bool = False
    left: dict[str, str] = field(default_factory=dict)
    extra: tuple[Problem, ...] = ()
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no problem is left (after a dry run: would be)."""
        return not (self.left or self.extra)
