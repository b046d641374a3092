"""`finalize`: makes one pack of what the parts of a job have published."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.arguments import checks_options, local_path
from sa1bpack.format.files import flush_folder
from sa1bpack.format.manifest import MANIFEST_NAME, read_manifest
from sa1bpack.packing.options import recorded_options
from sa1bpack.packing.pack_state import PackState, check_can_write, totals_of
from sa1bpack.packing.part_notes import (
    PARTS_NAME,
    Done,
    Failed,
    Plan,
    all_notes,
    note_path,
    read_plans,
)
from sa1bpack.wording import counted


@dataclass(frozen=True)
class FinalizeResult:
    """What a pack holds now, and what its job lacks.

    root
        The pack's folder.
    images, masks, annotations, dropped, rejects
        Totals of the pack, as in PackResult.
    sources
        Number of sources that it holds to their end.
    missing
        Name of each other source of the job → why it is missing.
    parts
        Parts (K, N) to be repeated, of the job begun last: those that have the missing sources.
    known
        Whether it is known which sources belong to the pack: from the parts of a job, or because it
        was complete before.
    identity
        Which digests of its tars the pack records, in words.
    left_out
        How many masks of its images the pack does not hold, and which options left them out, in
        words; empty if it holds all.
    notes
        Duplicate sources and image ids, and shards that were removed.

    Examples:
        >>> for k in (1, 2):
        ...     done = sa1bpack.pack_part("tests/samples/*.tar", "job", (k, 2), workers=1)
        >>> result = sa1bpack.finalize("job")
        >>> result.complete, result.parts, result.missing
        (True, (), {})
    """

    root: Path
    images: int
    masks: int
    annotations: int
    dropped: int
    rejects: int
    sources: int
    missing: dict[str, str]
    parts: tuple[tuple[int, int], ...]
    known: bool
    identity: str
    notes: list[str]
    left_out: str = ""

    @property
    def complete(self) -> bool:
        """Whether every source of the job is packed to its end."""
        return self.known and not self.missing


@checks_options
def finalize(out: str | Path) -> FinalizeResult:
    """Make one pack of the shards that the parts of a job (`pack_part`) have published in `out`.

    Writes index, rejects.jsonl, manifest and checksums. If sources are missing, the pack holds the
    others, its manifest says that it is not complete, and the result names them; repeat their parts
    and then the call. Shards of a source whose bytes were found to be wrong are removed.

    Reads no tar. Killed at any moment, it is repeated.

    Raises NotAPack and other FormatErrors for a damaged pack, OutputLocked while a part or another
    command works on it, VersionError for one of a newer version, and OSError if the disk fails.

    Examples:
        >>> sa1bpack.finalize("packed").missing
        {}
    """
    root = local_path("out", out)
    manifest = read_manifest(root)
    check_can_write(manifest.version, root / MANIFEST_NAME)
    state = PackState(root, recorded_options(manifest.options, root))
    try:
        plans, failed = read_plans(root), all_notes(root, Failed)
        gone = all_notes(root, Done).keys() - state.sources.keys()
        if manifest.complete and (root / PARTS_NAME).is_dir():
            state.publish(complete=False)  # a complete one must match its checksums all the time
        notes = _withdraw(state, failed)
        missing = _missing(state, plans, failed, gone)
        known = bool(plans) or manifest.complete
        done = known and not missing
        state.publish(complete=done)
        if done:
            shutil.rmtree(root / PARTS_NAME, ignore_errors=True)
            flush_folder(root)
        for name in state.sources:  # what names the missing ones stays
            note_path(root, Failed, name).unlink(missing_ok=True)
        notes += state.findings()
        return FinalizeResult(
            **totals_of(state),
            sources=len(state.sources),
            missing=missing,
            parts=_parts_of(plans, missing),
            known=known,
            notes=notes,
        )
    finally:
        state.release()


def _withdraw(state: PackState, failed: dict[str, Failed]) -> list[str]:
    """Remove the shards of sources whose bytes are wrong."""
    notes = []
    for name, found in failed.items():
        if found.corrupt and name not in state.sources and state.parts_of(name):
            count = state.withdraw(name)
            notes.append(f"{name}: its bytes are wrong; {counted(count, 'shard')} withdrawn")
    return notes


def _missing(
    state: PackState, plans: list[Plan], failed: dict[str, Failed], gone: set[str]
) -> dict[str, str]:
    """Name → why it is missing, of every source that the pack should have, but has not."""
    expected = {name for plan in plans for name in plan.sources}
    expected |= {source for source, _ in state.shards} | failed.keys() | gone
    missing = {}
    for name in sorted(expected - state.sources.keys()):
        if name in failed:
            missing[name] = f"given up: {failed[name].error}"
        elif name in gone:
            missing[name] = "shards that it had are gone"
        elif shards := state.parts_of(name):
            missing[name] = f"packed in part, {counted(len(shards), 'shard')}"
        else:
            missing[name] = "no shard is published"
    return missing


def _parts_of(plans: list[Plan], missing: dict[str, str]) -> tuple[tuple[int, int], ...]:
    """The parts of the last job that have these sources."""
    if not plans:
        return ()
    last = plans[-1]
    numbers = {row % last.parts + 1 for row, name in enumerate(last.sources) if name in missing}
    return tuple((number, last.parts) for number in sorted(numbers))
