"""Verification of a pack for a report: what was checked, and what was found."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from sa1bpack.format.manifest import SHARDS_NAME, Manifest
from sa1bpack.format.problems import Check, PackFiles, Problem, Progress, joined
from sa1bpack.format.verify import verify
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.wording import counted

VERIFY = ("sample", "quick", "full", "none")
SAMPLED_SHARDS = 8


@dataclass(frozen=True)
class Verification:
    """Result of a check: its extent, its time and its findings.

    how
        One of VERIFY: the check that was made. For a small pack it is "quick" if "sample" was asked
        for.
    covered
        What that check covers in this pack, in words.
    problems, notes
        As in `sa1bpack.verify`'s report.
    finished
        When the check ended.
    seconds
        How long it took.
    """

    how: str
    covered: str
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    finished: datetime
    seconds: float

    @property
    def ok(self) -> bool:
        """True if no problem was found, also if nothing was checked."""
        return not self.problems


_LIGHT = (
    "Structure, exact file sizes and the checksums of all files except pixels, mask bits and runs"
)


def verification(
    packs: Sequence[tuple[Path, Manifest]], how: str, seed: int, progress: Progress | None = None
) -> Verification:
    """Check packs, their folders and manifests, by `how`, one of VERIFY.

    progress  called as progress(bytes done, bytes in all), for one pack after the other
    """
    shards = [(root, manifest, entry) for root, manifest in packs for entry in manifest.shards]
    if how == "sample" and len(shards) <= SAMPLED_SHARDS:
        how = "quick"
    started = time.monotonic()
    if how == "sample":
        picked = np.random.default_rng(seed).permutation(len(shards))[:SAMPLED_SHARDS]
        chosen = [shards[number] for number in np.sort(picked).tolist()]
        check = Check(PackFiles(packs[0][0]), progress)
        check.total = sum(entry.bytes for _, _, entry in chosen)
        for root, manifest, entry in chosen:
            folder = root / SHARDS_NAME / entry.name
            check_shard(check, folder, entry, manifest.layout, quick=True)
        found = check.report({})
    else:
        roots = [root for root, _ in packs if how != "none"]
        found = joined([verify(root, quick=how == "quick", progress=progress) for root in roots])
    count, images = (found.counts.get(key, 0) for key in ("shards", "samples"))
    size = f"{counted(count, 'shard')} with {counted(images, 'image')}"
    own = "the pack's own files" if len(packs) == 1 else "the packs' own files"
    covered = {
        "none": "Nothing was checked for this report.",
        "sample": f"{_LIGHT}, of {SAMPLED_SHARDS} of {counted(len(shards), 'shard')}, chosen at "
        f"random (seed {seed}). `sa1bpack verify --quick` checks all shards.",
        "quick": f"{_LIGHT}, of {size} and of {own}.",
        "full": f"Every byte of {size} against the checksums of files and samples.",
    }[how]
    seconds = time.monotonic() - started
    return Verification(how, covered, found.problems, found.notes, datetime.now(UTC), seconds)
