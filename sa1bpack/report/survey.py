"""Distributions of masks and images, from some of the shards of a pack.

All of SA-1B has 1.1 billion masks; blocks of samples from a few shards show the same. A pack of up
to 20,000 images is surveyed completely.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import FormatError
from sa1bpack.format.problems import reason_of
from sa1bpack.format.shard_reader import Shard
from sa1bpack.report.records import Stored

MAX_IMAGES = 20_000
MAX_SHARDS = 64

# The mask arrays that a survey collects.
_COLUMNS = ("area", "predicted_iou", "stability_score")


@dataclass
class Survey:
    """Findings in the surveyed shards.

    images
        Number of surveyed samples.
    shards
        Names of the shards that were read.
    unreadable
        The errors of the shards that could not be read.
    area, predicted_iou, stability_score
        (m,) values of all masks of those samples: int64 source pixels, float64, float64.
    sizes
        (width, height) of a source image in pixels → number of those samples.
    stored
        What those shards take on the disk, and record of their making.
    """

    images: int = 0
    shards: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    area: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    predicted_iou: np.ndarray = field(default_factory=lambda: np.empty(0))
    stability_score: np.ndarray = field(default_factory=lambda: np.empty(0))
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    stored: Stored = field(default_factory=Stored)


def survey(dataset: Dataset, seed: int) -> Survey:
    """Survey up to 64 shards of a complete dataset, chosen at random, and 20,000 of their images.

    From each shard it takes a block of samples at a random start. Damage does not end the survey:
    it is named in `unreadable`.
    """
    rng = np.random.default_rng(seed)
    total, entries = len(dataset), dataset.manifest.shards
    whole = total <= MAX_IMAGES and len(entries) <= MAX_SHARDS
    numbers = np.sort(rng.permutation(len(entries))[:MAX_SHARDS]).tolist()
    block = total if whole else -(-MAX_IMAGES // len(numbers))
    found = Survey()
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    for number in numbers:
        first = int(rng.integers(max(1, entries[number].samples - block + 1)))
        try:
            _look_at(dataset.shards[number], first, block, found, columns)
        except (FormatError, OSError) as error:
            found.unreadable.append(reason_of(error))
    for name, parts in columns.items():
        if parts:
            setattr(found, name, np.concatenate(parts))
    return found


def _look_at(
    shard: Shard, first: int, block: int, found: Survey, columns: dict[str, list[np.ndarray]]
) -> None:
    stop = min(first + block, len(shard))
    masks = slice(*(int(shard["mask_offset"][edge]) for edge in (first, stop)))
    stored = Stored.of(shard)
    parts = {name: np.array(shard[name][masks]) for name in _COLUMNS}
    sizes = Counter((width, height) for height, width in shard["size"][first:stop, :2].tolist())
    # Only after everything was read: a shard counts completely or not at all.
    for name, part in parts.items():
        columns[name].append(part)
    found.sizes += sizes
    found.images += stop - first
    found.shards.append(shard.entry.name)
    found.stored += stored
