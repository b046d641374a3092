"""Several packs in one summary, as `sa1bpack.open` has them as one dataset."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from sa1bpack.dataset.pack import Pack
from sa1bpack.format import Completeness, Manifest
from sa1bpack.format.index import Index
from sa1bpack.report.records import REJECTS_PREFIX, TOTALS


def joined_manifest(pack: Pack) -> Manifest:
    """The manifest of a pack, or of several as one, with the sums of their checked counts.

    A total that one of them lacks is left out.
    """
    if len(pack.folders) == 1:
        return pack.manifest
    counts = [folder.manifest.counts for folder in pack.folders]
    totals = [key for key in TOTALS if all(key in each for each in counts)]
    reasons = {key for each in counts for key in each if key.startswith(REJECTS_PREFIX)}
    sums = {key: sum(each.get(key, 0) for each in counts) for key in (*totals, *sorted(reasons))}
    return msgspec.structs.replace(pack.manifest, counts=sums)


def joined_index(pack: Pack) -> Index:
    """The index of a pack; of several as one, in memory: 24 bytes per sample."""
    if len(pack.folders) == 1:
        return pack.folders[0].index
    rows = range(len(pack))
    return Index(
        shard_offset=np.array(pack.shards.first_row), image_id=pack.image_ids(rows),
        id_order=pack.ids.order, mask_offset=pack.mask_offsets(rows),
    )  # fmt: skip


def joined_completeness(found: Sequence[Completeness]) -> Completeness:
    """How much of several packs is published."""
    return Completeness(
        complete=all(each.complete for each in found),
        images=sum(each.images for each in found),
        shards=sum(each.shards for each in found),
        sources=sum(each.sources for each in found),
        partial=tuple(name for each in found for name in each.partial),
        unindexed=tuple(name for each in found for name in each.unindexed),
        remedy="; ".join(dict.fromkeys(each.remedy for each in found if not each.complete)),
    )


def name_of(roots: Sequence[Path]) -> str:
    """The folder of a pack, or what several are called."""
    return str(roots[0]) if len(roots) == 1 else f"{len(roots):,} packs, {roots[0]} to {roots[-1]}"
