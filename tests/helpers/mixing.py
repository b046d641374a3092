"""Three small packs, Mixes over Loaders of them, and what one sees of their batches."""

import re
from pathlib import Path
from typing import Any

from small_tars import members, pack_small, write_tar

import sa1bpack

# Name → number of images, and the first id.
PACKS = {"a": (59, 0), "b": (41, 100), "c": (31, 200)}
WEIGHTS = {"a": 5, "b": 2, "c": 1}
GLOBAL_SIZES = {"a": 12, "b": 12, "c": 12}
# Of all sources: some masks of each image, at random.
MASKS = {"max_masks": 2, "mask_select": "random", "pad_last": True, "threads": 1}


def write_packs(folder: Path) -> None:
    """Pack the photographs of each source into a folder of its name."""
    for name, (images, first) in PACKS.items():
        numbers = range(first, first + images)
        tar = write_tar(folder / f"sa_{first:06}.tar", members(numbers, lambda n: n % 4))
        pack_small(tar, folder / name)


def datasets(folder: Path) -> dict[str, sa1bpack.Dataset]:
    """Name → dataset."""
    return {name: sa1bpack.open(folder / name) for name in PACKS}


def mix_of(
    sets: dict[str, sa1bpack.Dataset],
    *,
    sizes: dict[str, int] | None = None,
    global_sizes: dict[str, int] | None = None,
    ranks: dict[str, int] | None = None,
    loader_options: dict[str, Any] | None = None,
    **options: Any,
) -> sa1bpack.Mix:
    """A Mix of some of the sources, shuffled; with `sizes`, by the size of a rank's batch."""
    loaders = {}
    for name, ds in sets.items():
        seed = list(PACKS).index(name)
        of_name = {**MASKS, **(loader_options or {}), **(ranks or {})}
        if sizes is None:
            of_name["global_batch_size"] = (global_sizes or GLOBAL_SIZES)[name]
        else:
            of_name["batch_size"] = sizes[name]
        loaders[name] = sa1bpack.Loader(ds, shuffle=True, seed=seed, **of_name)
    weights = {name: WEIGHTS[name] for name in sets}
    return sa1bpack.Mix(loaders, **{"weights": weights, "threads": 2, **options})


def source_of(located: Any) -> str:
    """The source of a batch that is about to be read, by its first image id."""
    (first_id,) = re.findall(r"\[(\d+)", located.name())
    return next(
        name for name, (images, first) in PACKS.items() if 0 <= int(first_id) - first < images
    )


def seen(batch: dict[str, Any]) -> list[Any]:
    """The identity of a batch: where it comes, and [image id, ids of its masks] of each sample."""
    counts = batch["mask_counts"].tolist()
    rows = batch["annotation_ids"].tolist()
    masks = [row[:count] for row, count in zip(rows, counts, strict=True)]
    images = [list(pair) for pair in zip(batch["image_ids"].tolist(), masks, strict=True)]
    names = ("source", "mix_epoch", "mix_step", "epoch", "batch_idx", "global_step")
    return [*(batch[name] for name in names), images]


def joined(parts: list[list[Any]]) -> list[Any]:
    """What all ranks together see of a batch."""
    first, *_ = parts
    assert all(part[:-1] == first[:-1] for part in parts), parts
    return [*first[:-1], [image for part in parts for image in part[-1]]]
