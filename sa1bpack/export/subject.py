"""One sample, with what a picture needs of it: of a dataset of any layout, or of a batch.

Arrays of a batch may be tensors on any device, or of numpy. This package does not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, OptionError, ReadError
from sa1bpack.format.problems import reason_of
from sa1bpack.masks import rasterize
from sa1bpack.pixels.yuv420 import yuv420_to_rgb

_LARGEST_GRID = 4096  # of masks that are drawn


@dataclass(frozen=True)
class Subject:
    """One sample with m masks.

    sample
        As `sa1bpack.open` makes it, with boxes and points in source coordinates, and `masks` uint8
        (m, G, G / 8) on a grid of G x G cells, packed as `sa1bpack.masks.cells` says.
    annotation_count
        Number of masks in its record, before filtering and capping.
    shard
        Name of its shard, "" outside a pack.
    fit
        How image and grid were made from the source: "pad", "native" or "squash".
    from_runs
        Whether the bits were drawn from exact runs, because the pack stores no bits.
    """

    sample: Sample
    annotation_count: int
    shard: str = ""
    fit: str = "pad"
    from_runs: bool = False

    @property
    def rgb(self) -> np.ndarray:
        """uint8 (h, w, 3): the stored pixels without padding."""
        height, width = self.sample["size"][2:].tolist()
        return self.sample["image"][:height, :width]

    @property
    def source(self) -> tuple[int, int]:
        """Height and width of the source image in pixels, the coordinates of boxes and points."""
        return tuple(self.sample["size"][:2].tolist())

    @property
    def masks(self) -> int:
        """m, the number of masks."""
        return len(self.sample["areas"])


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read.

    index, image_id
        Row in the pack and id, from the index of the pack.
    error
        The reason.
    """

    index: int
    image_id: int
    error: FormatError | OSError | ReadError

    @property
    def reason(self) -> str:
        """Text of the error."""
        return reason_of(self.error)

    def __str__(self) -> str:
        return f"row {self.index:,}, id {self.image_id}: {self.reason}"


def read_or_reason(dataset: Dataset, index: int, side: int) -> Subject | Unreadable:
    """A sample of a dataset, or why it cannot be read; see `read_subject`."""
    try:
        return read_subject(dataset, index, side)
    except (FormatError, OSError) as error:
        row = int(dataset.rows_at(np.array([index]))[0])
        return Unreadable(row, dataset.pack.image_id(row), error)


def read_subject(dataset: Dataset, index: int, side: int) -> Subject:
    """Read a sample of a dataset, to draw it at most `side` pixels wide or high.

    Without stored bits, the runs are drawn on a grid of one cell per pixel.

    Raises IndexError as the dataset does, FormatError if its shard is damaged or its bytes are not
    those that were written, OSError if a file cannot be read, StoreError if it cannot be fetched.
    """
    layout = dataset.layout
    grid = None if layout.bits else min(-(-side // 8) * 8, _LARGEST_GRID)
    wanted = {"mask_format": "bits", "mask_size": grid, "mask_sampling": None, "pixels": "rgb"}
    as_stored = dataset.with_options(
        **wanted, coordinates="source", verify_checksums=True, transform=None, features=()
    )
    try:
        sample, found = as_stored[index], as_stored.metadata(index)
    except ReadError as error:  # which names the sample, as every picture does
        if isinstance(error.__cause__, FormatError | OSError):
            raise error.__cause__ from None
        raise
    return Subject(sample, found.annotations, found.shard, layout.fit, not layout.bits)


# -------------------------------------------------------------------------------------- of a batch

_GRID = 512  # cells of masks that are drawn from runs, if the batch has nothing else

Batch = Mapping[str, Any]


def image_count(batch: Batch) -> int:
    """Number of samples of a batch. Raises OptionError for one without images."""
    if "images" not in batch:
        found = f"has {', '.join(map(str, batch))}, but no images" if batch else "is an empty dict"
        raise OptionError(
            f"the batch {found}: pass a batch as Loader, DataLoader, Collate or Pipeline makes it; "
            "samples of a dataset are drawn by sa1bpack.show(ds, rows=[0])"
        )
    if not (count := len(batch["images"])):
        raise OptionError("the batch has no samples to show")
    return count


def subjects_of(batch: Batch, rows: Sequence[int]) -> list[Subject]:
    """The samples in these places of a batch: the entire canvas, with the masks that are valid.

    Raises OptionError if the arrays are not those of a batch of Loader, DataLoader, Collate or
    Pipeline, or if its images are normalised by an unknown mean.
    """
    return [_subject(batch, row) for row in rows]


def _array(value: Any) -> np.ndarray:
    """A tensor, whatever its device and type, or an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _subject(batch: Batch, row: int) -> Subject:
    rgb = _pixels(batch, row)
    part = _part(batch, row)
    bits, boxes, points = found = [look(batch, row, part) for look in (_bits, _boxes, _points)]
    count = next((len(array) for array in found if array is not None), 0)
    valid = _array(batch["valid"][part]) if "valid" in batch else np.ones(count, bool)
    boxes = np.full((count, 4), np.nan) if boxes is None else boxes
    points = np.full((count, 2), np.nan) if points is None else points
    extents = boxes[:, 2:] - boxes[:, :2]
    if bits is None:
        bits, areas = np.zeros((count, 1, 1), np.uint8), extents.prod(1)
    else:
        areas = np.bitwise_count(bits).sum((1, 2), dtype=np.int64)
    sample = {
        "index": row,
        "image_id": int(_array(batch["image_ids"])[row]) if "image_ids" in batch else -1,
        "file_name": f"{row} of the batch",
        "image": rgb,
        "size": np.tile(rgb.shape[:2], 2),
        "masks": bits[valid],
        "bboxes": np.concatenate([boxes[:, :2], extents - 1], 1)[valid],
        "point_coords": points[valid],
        "areas": areas[valid],
        "predicted_ious": np.zeros(valid.sum()),
        "stability_scores": np.zeros(valid.sum()),
    }
    return Subject(sample, count, fit="squash")  # the grid of the masks covers the canvas


def _pixels(batch: Batch, row: int) -> np.ndarray:
    """uint8 (H, W, 3): the canvas, as RGB."""
    image = _array(batch["images"][row])
    if image.dtype == np.uint8 and image.ndim == 2:  # planes
        side = image.shape[1]
        chroma = image[side:].reshape(2, side // 2, side // 2)
        return yuv420_to_rgb(np.ascontiguousarray(image[:side]), *chroma)
    if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return image
    if image.ndim != 3 or image.shape[0] != 3:
        raise OptionError(
            f"images are {image.dtype} {('B', *image.shape)}: pass a batch as Loader, DataLoader, "
            "Collate or Pipeline makes it"
        )
    missing = [name for name in ("pixel_mean", "pixel_std") if name not in batch]
    if missing:
        raise OptionError(
            f"the images are normalised, but the batch has no {' and no '.join(missing)}: pass the "
            "batch as Pipeline returned it"
        )
    mean, std = (_array(batch[name]).reshape(3, 1, 1) for name in ("pixel_mean", "pixel_std"))
    return np.rint(np.clip(image * std + mean, 0, 255)).astype(np.uint8).transpose(1, 2, 0)


def _part(batch: Batch, row: int) -> Any:
    """The rows of a sample in the arrays with one row per mask: a slice of concatenated arrays, or
    the sample and a slice of padded ones."""
    if "mask_counts" not in batch:
        return slice(0, 0)
    count = int(batch["mask_counts"][row])
    if "mask_offsets" in batch:
        first = int(batch["mask_offsets"][row])
        return slice(first, first + count)
    return row, slice(0, count)


def _bits(batch: Batch, row: int, part: Any) -> np.ndarray | None:
    """uint8 (m, h, w / 8): the masks, over the canvas; None if the batch has none."""
    if "mask_counts" not in batch:
        return None
    if "masks" in batch:
        masks = _array(batch["masks"][part])
        if masks.dtype == np.uint8:
            return masks
        cells = masks > 0.5 if masks.dtype != np.bool_ else masks
        if cells.shape[2] % 8:  # eight cells in place of each, so that a row is whole bytes
            cells = np.repeat(cells, 8, 2)
        return np.packbits(cells, axis=2, bitorder="little")
    if "runs" in batch:
        runs = batch["runs"]
        ends, offset = _array(runs.run_ends), _array(runs.run_offset)
        first, last = _array(runs.mask_offset)[row : row + 2].tolist()
        present = first + np.flatnonzero(np.diff(offset[first : last + 1]) > 0)
        height, width = _array(runs.sizes)[row].tolist()
        fit = "squash" if str(batch.get("spec", "")).startswith("squash") else "pad"
        return rasterize(ends, np.append(offset[present], offset[last]), height, width, _GRID, fit)
    return None


def _boxes(batch: Batch, row: int, part: Any) -> np.ndarray | None:
    """float (m, 4): edges x0, y0, x1, y1 in pixels of the canvas; None if the batch has none."""
    if "boxes_xyxy" in batch:  # of a pipeline
        return _array(batch["boxes_xyxy"][part])
    if "bboxes" not in batch:
        return None
    boxes, (scale, pixel) = _array(batch["bboxes"][part]), _scales(batch, row)
    corner = boxes[:, :2]
    return np.concatenate([corner * scale, (corner + boxes[:, 2:] + pixel) * scale], 1)


def _points(batch: Batch, row: int, part: Any) -> np.ndarray | None:
    """float (m, 2): x and y in pixels of the canvas; None if the batch has none."""
    if "point_coords" not in batch:
        return None
    points = _array(batch["point_coords"][part])
    if "boxes_xyxy" in batch or "input_to_source" in batch:
        inside = batch.get("point_inside")
        shown = np.ones(len(points), bool) if inside is None else _array(inside[part])
        return np.where(shown[:, None], points, np.nan)
    return points * _scales(batch, row)[0]


def _scales(batch: Batch, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Two float (2,), x and y: from the coordinates of a loader's batch to stored pixels, and the
    extent of a source pixel in these coordinates."""
    sizes = _array(batch["sizes"])[row].astype(float)
    stored = (sizes[2:] / sizes[:2])[::-1]
    in_source = "source coordinates" in str(batch.get("spec", ""))
    return (stored, np.ones(2)) if in_source else (np.ones(2), stored)
