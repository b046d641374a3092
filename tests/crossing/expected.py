"""What a batch must be: computed with numpy from `ds[i]`, by the rules that the documents state."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from splitmix import repeated_id

import sa1bpack
from sa1bpack import transforms

Batch = dict[str, np.ndarray]

# Key of a sample and of a batch → type in a batch: a number, or several, per mask.
NUMBERS = {
    "bboxes": np.float32,
    "point_coords": np.float32,
    "areas": np.int64,
    "predicted_ious": np.float32,
    "stability_scores": np.float32,
    "annotation_ids": np.int64,
}
RANKED = {"largest": "areas", "iou": "predicted_ious", "stability": "stability_scores"}
PAIRS = {"intersections", "ious", "containments", "touching", "distances", "children"}
SAM_MEAN, SAM_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
NONE = {"parents": -1, "levels": -1}  # of padding; of the others 0


def kept_masks(
    sample: dict, most: int | None, mask_select: Any, seed: int, epoch: int, repetition: int
) -> np.ndarray:
    """int64 (k,), ascending: the masks of a sample that a batch has.

    What is drawn cannot be computed here: it is what a Collate draws for this sample alone, because
    it depends on (seed, epoch, image id) only, and must obey the rule of its kind. Where an image
    comes again, another id stands for its own.
    """
    count = len(sample["areas"])
    if most is None or (count <= most and not callable(mask_select)):
        return np.arange(count)
    if isinstance(mask_select, str) and mask_select in RANKED:
        score = sample[RANKED[mask_select]].astype(np.float64)
        return np.sort(np.lexsort((np.arange(count), -score))[:most])
    if isinstance(mask_select, str) and mask_select == "in_turn":
        # In the order in which "random" draws them, as many in each turn.
        drawn = [kept_masks(sample, k, "random", seed, epoch, 0) for k in range(count + 1)]
        order = [*(set(more) - set(less) for less, more in pairwise(map(set, drawn)))]
        order = [mask for masks in order for mask in masks]
        turns = -(-count // most)
        turn = repetition % turns
        return np.sort(order[turn * count // turns : (turn + 1) * count // turns])
    image_id = int(sample["image_id"])
    select = mask_select
    if callable(mask_select):
        select = lambda columns: mask_select({**columns, "image_id": image_id})  # noqa: E731
    collate = sa1bpack.Collate("concat", max_masks=most, mask_select=select, seed=seed)
    collate.set_epoch(epoch)
    numbers = {key: sample[key] for key in (*NUMBERS, "crop_boxes", "size") if key in sample}
    numbers["image_id"] = repeated_id(image_id, repetition)
    numbers["predicted_ious"] = np.arange(count, dtype=np.float64)  # which nothing is drawn by
    kept = collate([numbers | {"row": 0}])["predicted_ious"].numpy().astype(int)
    assert (np.diff(kept) > 0).all() and len(kept) <= most
    assert len(kept) == min(most, count) or callable(mask_select)
    if isinstance(mask_select, str) and mask_select == "balanced":
        thirds = np.empty(count, np.int64)
        ranking = np.lexsort((np.arange(count), -sample["areas"]))
        for third, members in enumerate(np.array_split(ranking, 3)):
            thirds[members] = third
        found, available = np.bincount(thirds[kept], minlength=3), np.bincount(thirds, minlength=3)
        assert all(found[k] in (available[k], found.max(), found.max() - 1) for k in range(3))
    elif callable(mask_select):
        columns = {"area": sample["areas"], "bbox": sample["bboxes"]}
        columns |= {"annotation_id": sample.get("annotation_ids"), "image_id": sample["image_id"]}
        weights = np.asarray(mask_select(columns))
        assert (weights[kept] > 0).all()
        assert len(kept) == min(most, np.count_nonzero(weights > 0))
    return kept


def expected_batch(
    samples: Sequence[dict],
    kept: Sequence[np.ndarray],
    ds: sa1bpack.Dataset,
    layout: str,
    rows: int | None,
    relate: transforms.Relate | None,
    canvas: tuple[int, int] | None = None,
) -> Batch:
    """The arrays of a batch of these samples; `runs.NAME` are those of its runs.

    Args:
        kept: the masks of each sample.
        layout: the option `masks` of the loader.
        rows: of padded arrays; None: as many as the fullest sample has.
        canvas: height and width of that of a class of aspect; None: the pack's square.
    """
    counts = np.array([len(each) for each in kept], np.int64)
    padded = layout.startswith("padded")
    most = int(counts.max()) if rows is None else rows

    def joined(arrays: list[np.ndarray], none: int = 0) -> np.ndarray:
        """The rows of all masks, padded or one after the other."""
        if not padded:
            return np.concatenate(arrays)
        found = np.full((len(arrays), most, *arrays[0].shape[1:]), none, arrays[0].dtype)
        for target, array in zip(found, arrays, strict=True):
            target[: len(array)] = array
        return found

    def of_masks(key: str, convert: Callable = np.asarray) -> np.ndarray:
        pairs = zip(samples, kept, strict=True)
        return joined([convert(sample[key][masks]) for sample, masks in pairs])

    found: Batch = {
        "images": np.stack([cut(on_canvas(sample, ds), canvas) for sample in samples]),
        "mask_counts": counts,
        "image_ids": np.array([sample["image_id"] for sample in samples], np.int64),
        "indices": np.array([sample["row"] for sample in samples], np.int64),
        "sizes": np.stack([sample["size"] for sample in samples]).astype(np.int32),
    }
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if not padded:
        found["mask_offsets"] = offsets
    for key in NUMBERS.keys() & samples[0].keys():
        kind = NUMBERS[key]
        found[key] = of_masks(key, lambda rows, kind=kind: rows.astype(kind))
    for feature in ds.spec.features:
        present = f"{feature.name}_present"
        if feature.missing and feature.axis == "mask":
            found[present] = of_masks(present)
        elif feature.missing:
            found[present] = np.array([sample[present] for sample in samples])
        if feature.ragged:
            found |= any_length(feature, samples, kept, padded, most)
        elif feature.axis == "mask":
            found[feature.name] = of_masks(feature.name)
        else:
            found[feature.name] = np.stack([sample[feature.name] for sample in samples])
    if "masks" in samples[0]:
        found["masks"] = of_masks("masks", lambda m: as_layout(m, layout.endswith("bits")))
    else:
        pieces = [runs_of(sample, masks) for sample, masks in zip(samples, kept, strict=True)]
        lengths = [len(piece) for sample in pieces for piece in sample]
        empty = np.empty(0, np.int32)
        found["runs.run_ends"] = np.concatenate([empty, *(p for each in pieces for p in each)])
        found["runs.run_offset"] = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        found["runs.host_offset"] = found["runs.run_offset"]
        found["runs.mask_offset"] = offsets
        found["runs.sizes"] = found["sizes"][:, :2].astype(np.int64)
    if relate is not None:
        related = [related_masks(*each, relate) for each in zip(samples, kept, strict=True)]
        for name in relate.names:
            arrays = [getattr(each, name) for each in related]
            if name in PAIRS:
                arrays = [np.pad(a, ((0, 0), (0, most - len(a)))) for a in arrays]
            arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]
            found[name] = joined(arrays, NONE.get(name, 0))
    return found


def any_length(
    feature: Any, samples: Sequence[dict], kept: Sequence[np.ndarray], padded: bool, most: int
) -> Batch:
    """What a batch has of a feature with rows of any length."""
    name, by_mask = feature.name, feature.axis == "mask"
    rows = []
    for sample, masks in zip(samples, kept, strict=True):
        of_sample = [sample[name]]
        if by_mask and feature.dtype == "text":
            of_sample = [sample[name][mask] for mask in masks]
        elif by_mask:
            edges = sample[f"{name}_offsets"]
            of_sample = [sample[name][edges[mask] : edges[mask + 1]] for mask in masks]
        rows.append(of_sample)
    flat = [row for of_sample in rows for row in of_sample]
    if feature.dtype == "text":
        return {name: rows if by_mask and padded else flat}
    lengths = [len(row) for row in flat]
    empty = np.zeros((0, *feature.row_shape), feature.stored)
    if not padded:
        return {
            name: np.concatenate([empty, *flat]),
            f"{name}_offsets": np.cumsum([0, *lengths]),
        }
    shape = (len(rows), most) if by_mask else (len(rows), 1)
    values = np.zeros((*shape, max(lengths, default=0), *feature.row_shape), feature.stored)
    of_rows = np.zeros(shape, np.int64)
    for k, of_sample in enumerate(rows):
        for m, row in enumerate(of_sample):
            values[k, m, : len(row)] = row
            of_rows[k, m] = len(row)
    if not by_mask:
        values, of_rows = values[:, 0], of_rows[:, 0]
    return {name: values, f"{name}_lengths": of_rows}


def of_fields(
    batch: Batch, fields: Sequence[str], ds: sa1bpack.Dataset, relate: transforms.Relate | None
) -> Batch:
    """What a batch has with the option `fields`, by the table in docs/training.md."""
    of_masks = {feature.name for feature in ds.spec.features if feature.axis == "mask"}
    stored = {"images", "masks", "runs", *NUMBERS}
    keys = {"image_ids", "indices", *fields}
    if stored.intersection(fields):
        keys.add("sizes")
    if not {"masks", "runs", "mask_counts", *NUMBERS, *of_masks}.isdisjoint(fields):
        keys |= {"mask_counts", "mask_offsets"}
    if relate is not None:
        keys |= {*relate.names}
    for feature in ds.spec.features:
        if feature.name in fields:
            keys |= {f"{feature.name}_{end}" for end in ("offsets", "lengths", "present")}
    return {key: array for key, array in batch.items() if key.partition(".")[0] in keys}


def on_canvas(sample: dict, ds: sa1bpack.Dataset) -> np.ndarray:
    """The image of a sample as in a batch: a native one at the top left of a canvas of zeros."""
    image, side = sample["image"], ds.layout.image_size
    if not ds.layout.flat:
        return image
    if image.ndim == 3:
        canvas = np.zeros((side, side, 3), np.uint8)
        canvas[: image.shape[0], : image.shape[1]] = image
        return canvas
    planes, start = [], 0
    for scale in (1, 2, 2):
        height, width = (-(-int(edge) // scale) for edge in sample["size"][2:])
        plane = np.zeros((side // scale, side // scale), np.uint8)
        stop = start + height * width
        plane[:height, :width] = image[start:stop].reshape(height, width)
        planes.append(plane.ravel())
        start = stop
    assert start == len(image)
    return np.concatenate(planes).reshape(side * 3 // 2, side)


def cut(image: np.ndarray, canvas: tuple[int, int] | None) -> np.ndarray:
    """The top left of a square canvas of RGB or planes; what is cut off has no image."""
    if canvas is None:
        return image
    height, width = canvas
    if image.ndim == 3:
        assert not image[height:].any() and not image[:, width:].any()
        return image[:height, :width]
    side = image.shape[1]
    blue, red = image[side:].reshape(2, side // 2, side // 2)
    halves = [plane[: height // 2, : width // 2].ravel() for plane in (blue, red)]
    return np.concatenate([image[:height, :width], np.concatenate(halves).reshape(-1, width)])


def as_layout(masks: np.ndarray, packed: bool) -> np.ndarray:
    """Masks as bits, or as bool."""
    if packed == (masks.dtype == np.uint8):
        return masks
    if packed:
        return np.packbits(masks, axis=-1, bitorder="little")
    return np.unpackbits(masks, axis=-1, bitorder="little").view(bool)


def runs_of(sample: dict, masks: np.ndarray) -> list[np.ndarray]:
    """The run ends of some masks of a sample."""
    ends, offset = sample["run_ends"], sample["run_offset"]
    return [ends[offset[mask] : offset[mask + 1]] for mask in masks]


def related_masks(sample: dict, masks: np.ndarray, relate: transforms.Relate) -> Any:
    """The relations of some masks of a sample."""
    if "masks" in sample:
        part = {"masks": sample["masks"][masks]}
    else:
        pieces = runs_of(sample, masks)
        ends = np.concatenate([np.empty(0, np.int32), *pieces])
        offset = np.concatenate([[0], np.cumsum([len(p) for p in pieces], dtype=np.int64)])
        part = {"run_ends": ends, "run_offset": offset, "size": sample["size"]}
    return sa1bpack.masks.relate(part, share=relate.share, neighbors=relate.neighbors)


def expected_input(
    plain: Sequence[dict], kept: Sequence[np.ndarray], ds: sa1bpack.Dataset
) -> Batch:
    """What a Pipeline without steps makes of these samples; rows of masks one after the other.

    Args:
        plain: the samples with RGB images, and masks as bool.
        ds: that these come from.
    """
    images = np.stack([on_canvas(sample, ds) for sample in plain]).astype(np.float32)
    images = (images - np.float32(SAM_MEAN)) / np.float32(SAM_STD)
    boxes, points, inside = [], [], []
    for image, sample, masks in zip(images, plain, kept, strict=True):
        source, stored = sample["size"][[1, 0]], sample["size"][[3, 2]]  # width, height
        image[stored[1] :], image[:, stored[0] :] = 0, 0
        to_stored = stored / source
        unit = to_stored if ds.options.coordinates == "stored" else np.ones(2)
        box, scale = sample["bboxes"][masks], to_stored / unit
        edges = np.stack([box[:, :2], box[:, :2] + box[:, 2:] + unit], 1)
        boxes.append(np.clip(edges * scale, 0, stored).reshape(-1, 4))
        if "point_coords" in sample:
            points.append(sample["point_coords"][masks] * scale)
            inside.append(((points[-1] >= 0) & (points[-1] < stored)).all(1))
    found = {"images": images.transpose(0, 3, 1, 2), "boxes_xyxy": np.concatenate(boxes)}
    pairs = zip(plain, kept, strict=True)
    found["masks"] = np.concatenate([sample["masks"][masks] for sample, masks in pairs])
    if points:
        found["point_coords"] = np.concatenate(points)
        found["point_inside"] = np.concatenate(inside)
    shown = (found["boxes_xyxy"][:, 2:] > found["boxes_xyxy"][:, :2]).all(1)
    found["valid"] = shown & found["masks"].any((1, 2))
    return found
