"""One sample, with what a picture needs of it: of a dataset of any layout, or of a batch.

Arrays of a batch may be tensors on any device, or of numpy. This package does not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, OptionError, ReadError
from sa1bpack.export.painting import ExactShapes, GridShapes, Shapes, id_colours
from sa1bpack.format.problems import reason_of
from sa1bpack.masks import mask_area
from sa1bpack.pixels.yuv420 import yuv420_to_rgb

_LARGEST_GRID = 4096  # of masks that are drawn


@dataclass(frozen=True)
class Subject:
    """One sample with m masks.

    Attributes:
        sample: as `sa1bpack.open` makes it, with boxes and points in source coordinates, and
            `masks` uint8 (m, G, G / 8) on a grid of G x G cells, packed as `sa1bpack.masks.cells`
            says.
        annotation_count: number of masks in the JSON record, before filtering and capping.
        shard: name of the shard, "" outside a pack.
        fit: how image and grid were made from the source: "pad", "native" or "squash".
        from_runs: the bits were drawn from exact runs, because the pack stores no bits.
        exact: the masks by their exact runs; None where there are bits alone.
    """

    sample: Sample
    annotation_count: int
    shard: str = ""
    fit: str = "pad"
    from_runs: bool = False
    exact: ExactShapes | None = None

    @property
    def rgb(self) -> np.ndarray:
        """uint8 (h, w, 3): the stored pixels without padding."""
        height, width = self.sample["size"][2:].tolist()
        image: np.ndarray = self.sample["image"]
        return image[:height, :width]

    @property
    def source(self) -> tuple[int, int]:
        """Height and width of the source image in pixels, the coordinates of boxes and points."""
        height, width = self.sample["size"][:2].tolist()
        return height, width

    @property
    def masks(self) -> int:
        """m, the number of masks."""
        return len(self.sample["areas"])

    @property
    def shapes(self) -> Shapes:
        """What the masks are drawn from: their runs, or bits where there are no runs."""
        if self.exact is not None:
            return self.exact
        # A cell is 1 / G of the longer side of the source for "pad" and "native", and of each side
        # for "squash" (docs/format.md).
        height, width = self.source
        covered_height = height
        covered_width = width
        if self.fit != "squash":
            covered_height = covered_width = max(height, width)
        return GridShapes(self.sample["masks"], height, width, covered_height, covered_width)

    @property
    def colours(self) -> np.ndarray:
        """uint8 (m, 3): the colour of each mask, which its annotation id decides, if it has one."""
        ids = self.sample.get("annotation_ids")
        if ids is None:
            ids = np.arange(self.masks)
        return id_colours(ids)


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read.

    Attributes:
        index, image_id: row in the pack, and image id by the index of the pack.
        error: why the sample cannot be read.
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


def read_subject(dataset: Dataset, index: int, side: int) -> Subject | Unreadable:
    """A sample of a dataset, to be drawn at most `side` pixels wide or high, or why it cannot be.

    Its bytes are compared with their checksums. Without stored bits, the runs are drawn on a grid
    of one cell per pixel.

    Raises IndexError as the dataset does, StoreError if it cannot be fetched.
    """
    layout = dataset.layout
    exact = None
    grid = None
    if not layout.bits:
        grid = min(-(-side // 8) * 8, _LARGEST_GRID)
    as_stored = dataset.with_options(
        mask_format="bits",
        mask_size=grid,
        mask_sampling=None,
        pixels="rgb",
        coordinates="source",
        verify_checksums=True,
        transform=None,
        features=(),
    )
    try:
        sample = as_stored[index]
        if layout.runs:
            exact = exact_shapes(_with_runs(as_stored)[index])
        metadata = as_stored.metadata(index)
    except (FormatError, OSError) as error:
        if isinstance(error, ReadError) and isinstance(error.__cause__, FormatError | OSError):
            error = error.__cause__  # which names no sample, as every picture does
        row = int(dataset.rows_at(np.array([index]))[0])
        return Unreadable(row, dataset.pack.locate(row).image_id, error)
    return Subject(
        sample,
        annotation_count=metadata.annotations,
        shard=metadata.shard,
        fit=layout.fit,
        from_runs=not layout.bits,
        exact=exact,
    )


def _with_runs(as_stored: Dataset) -> Dataset:
    """The dataset with runs in place of bits, whose checksums were compared already."""
    return as_stored.with_options(mask_format="runs", mask_size=None, verify_checksums=False)


def exact_shapes(sample: Sample) -> ExactShapes:
    """The masks of a sample that has runs, on all of its image."""
    height, width = sample["size"][:2].tolist()
    return ExactShapes(sample["run_ends"], sample["run_offset"], height, width, height, width)


# -------------------------------------------------------------------------------------- of a batch

Batch = Mapping[str, Any]


def image_count(batch: Batch) -> int:
    """Number of samples of a batch. Raises OptionError for one without images."""
    if "images" not in batch:
        keys = ", ".join(map(str, batch))
        content = "is an empty dict"
        if keys:
            content = f"has {keys}, but no images"
        raise OptionError(
            f"the batch {content}: pass a batch of a Loader, or sa1bpack.show(ds, rows=[0])"
        )
    count = len(batch["images"])
    if not count:
        raise OptionError("the batch has no samples to show")
    return count


def _array(value: Any) -> np.ndarray:
    """A tensor, whatever its device and type, or an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.float()
        value = value.numpy()
    return np.asarray(value)


def subject_of(batch: Batch, row: int) -> Subject:
    """The sample in this place of a batch: the entire canvas, with the masks that are valid.

    Raises OptionError if the arrays are not those of a batch of Loader, DataLoader, Collate or
    Pipeline, or if its images are normalised by an unknown mean.
    """
    rgb = _pixels(batch, row)
    count = 0
    if "mask_counts" in batch:
        count = int(batch["mask_counts"][row])
    rows: Any = row, slice(0, count)  # of arrays with one row per mask: padded, or concatenated
    if "mask_offsets" in batch:
        first = int(batch["mask_offsets"][row])
        rows = slice(first, first + count)
    exact = _exact(batch, row, rgb.shape)
    bits = _bits(batch, rows, count)
    areas = np.bitwise_count(bits).sum((1, 2), dtype=np.int64)
    if exact is not None:
        areas = mask_area(exact.run_ends, exact.run_offset)
    boxes, points = _boxes_and_points(batch, row, rows, count)
    valid = np.ones(count, bool)
    if "valid" in batch:
        valid = _array(batch["valid"][rows])
    image_id = -1
    if "image_ids" in batch:
        image_id = int(_array(batch["image_ids"])[row])
    sample = Sample(
        image_id=image_id,
        file_name=f"{row} of the batch",
        image=rgb,
        size=np.tile(rgb.shape[:2], 2),
        masks=bits[valid],
        bboxes=np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2] - 1], 1)[valid],
        point_coords=points[valid],
        areas=areas[valid],
    )
    if "annotation_ids" in batch:
        sample["annotation_ids"] = _array(batch["annotation_ids"][rows])[valid]
    # The grid of the masks covers the canvas, as that of "squash".
    return Subject(sample, count, fit="squash", exact=exact)


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
        raise OptionError(f"images are {image.dtype} {('B', *image.shape)}: pass a Loader's batch")
    missing = [name for name in ("pixel_mean", "pixel_std") if name not in batch]
    if missing:
        raise OptionError(
            f"images are normalised, but without {' and '.join(missing)}: pass a Pipeline's batch"
        )
    mean, std = (_array(batch[name]).reshape(3, 1, 1) for name in ("pixel_mean", "pixel_std"))
    rgb: np.ndarray = np.rint(np.clip(image * std + mean, 0, 255)).astype(np.uint8)
    return rgb.transpose(1, 2, 0)


def _bits(batch: Batch, rows: Any, count: int) -> np.ndarray:
    """uint8 (m, h, w / 8): the masks, over the canvas; without cells if the batch has none."""
    if "masks" not in batch:
        return np.zeros((count, 1, 1), np.uint8)
    masks = _array(batch["masks"][rows])
    if masks.dtype == np.uint8:
        return masks
    cells = masks
    if cells.dtype != np.bool_:
        cells = masks > 0.5
    if cells.shape[2] % 8:  # eight cells in place of each, so that a row is whole bytes
        cells = np.repeat(cells, 8, 2)
    return np.packbits(cells, axis=2, bitorder="little")


def _exact(batch: Batch, row: int, canvas: tuple[int, ...]) -> ExactShapes | None:
    """The masks of a sample in a batch of exact runs; None for another batch.

    Args:
        batch, row: the batch, and the place of the sample in it.
        canvas: shape of the canvas, its height and width in pixels first.
    """
    if "masks" in batch or "runs" not in batch:
        return None
    runs = batch["runs"]
    first, last = _array(runs.mask_offset)[row : row + 2].tolist()
    offset = _array(runs.run_offset)[first : last + 1]
    with_runs = offset[:-1][np.diff(offset) > 0]  # the others are padding
    height, width = _array(runs.sizes)[row].tolist()
    stored_height, stored_width = _array(batch["sizes"])[row, 2:].tolist()
    return ExactShapes(
        run_ends=_array(runs.run_ends)[offset[0] : offset[-1]],
        run_offset=np.append(with_runs, offset[-1]) - offset[0],
        height=height,
        width=width,
        shown_height=canvas[0] * height / stored_height,
        shown_width=canvas[1] * width / stored_width,
    )


def _spec(batch: Any) -> str:
    """The spec of a batch, "" for one without."""
    return getattr(batch, "spec", None) or ""


def _boxes_and_points(
    batch: Batch, row: int, rows: Any, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Edges x0, y0, x1, y1, float (m, 4), and x, y, float (m, 2), in pixels of the canvas.

    They are not finite where the batch has none, or where a point is outside.
    """
    boxes = np.full((count, 4), np.nan)
    points = np.full((count, 2), np.nan)
    if "boxes_xyxy" in batch or "input_to_source" in batch:  # of a pipeline
        if "boxes_xyxy" in batch:
            boxes = _array(batch["boxes_xyxy"][rows])
        if "point_coords" in batch:
            points = _array(batch["point_coords"][rows])
        if "point_inside" in batch:
            points = np.where(_array(batch["point_inside"][rows])[:, None], points, np.nan)
        return boxes, points
    if "bboxes" in batch or "point_coords" in batch:
        sizes = _array(batch["sizes"])[row].astype(float)
        scale = pixel = (sizes[2:] / sizes[:2])[::-1]  # of a source pixel on the canvas, x and y
        if "source coordinates" not in _spec(batch):
            scale = np.ones(2)
        if "bboxes" in batch:
            edges = np.split(_array(batch["bboxes"][rows]), 2, axis=1)
            boxes = np.concatenate([edges[0] * scale, sum(edges) * scale + pixel], 1)
        if "point_coords" in batch:
            points = _array(batch["point_coords"][rows]) * scale
    return boxes, points
