"""The pipeline from a batch of a loader to training input, on the batch's device."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sa1bpack.arguments import MAX_WORD, items_of, number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks.prompts import prompt_draw
from sa1bpack.transforms import checks
from sa1bpack.transforms.backends import describe_kernels, full_precision
from sa1bpack.transforms.batch import Batch, Items, Tensors
from sa1bpack.transforms.checks import Sides, StoredBatches
from sa1bpack.transforms.frame import (
    Frame,
    fit_frame,
    in_boxes,
    place_annotations,
    stored_to_source,
)
from sa1bpack.transforms.geometric_steps import GeometricStep, Step
from sa1bpack.transforms.host import all_on_host, numbers_of, sent, unseen
from sa1bpack.transforms.ids import MASK_KEYS, mask_ids
from sa1bpack.transforms.images.make import ImageMaker
from sa1bpack.transforms.images.mixing import MixStep
from sa1bpack.transforms.images.pixel_steps import (
    Erasing,
    PixelChanges,
    PixelStep,
)
from sa1bpack.transforms.images.pixels import SAM_MEAN, SAM_STD
from sa1bpack.transforms.images.spatial import SpatialRows, move_spatial
from sa1bpack.transforms.mask_steps import CropAroundMask, MaskBoxes
from sa1bpack.transforms.masks.cells import count_cells, ranks, uncovered
from sa1bpack.transforms.masks.make import MaskMaker, MaskRows
from sa1bpack.transforms.masks.relations import Relate, fullest
from sa1bpack.transforms.memory import Table
from sa1bpack.transforms.random import repeated_ids, uniform
from sa1bpack.transforms.sizes import Size, SizeSchedules
from sa1bpack.transforms.step_order import checked_steps
from sa1bpack.user_code import call_user, is_of_user
from sa1bpack.wording import brief

# Keys of a batch with a few numbers per mask, or image as well, that a pipeline reads.
_PLACED = ("bboxes", "point_coords")
_SMALL = ("image_ids", "repetitions", "sizes", "mask_counts", *_PLACED)


class Moves(NamedTuple):
    """What the steps do to the images of a batch.

    Attributes:
        frame: where the images are.
        crop_mask: int64 (B,), the mask that each image is cropped around; None: not by a mask.
        pixels: what changes the pixels of each image by itself.
        mix: a function of the images that returns what mixing changes in the batch; None: nothing.
    """

    frame: Frame
    crop_mask: Tensor | None = None
    pixels: PixelChanges = PixelChanges()
    mix: Callable[[Tensor], dict[str, Tensor]] | None = None

    @property
    def erases_masks(self) -> Erasing | None:
        """The rectangles in which masks and points are erased; None for none."""
        erasing = self.pixels.erasing
        if erasing is None or not erasing.masks:
            return None
        return erasing


@checks_options
class Pipeline:
    """Make training input from batches of a dataset, as Loader, DataLoader and Collate make them.

    ::

        steps = [transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.4)]
        pipeline = transforms.Pipeline(ds, steps)
        for batch in loader:
            batch = pipeline(batch)

    The result is a dict with the keys of the batch, except for the following. "..." is (B, M) for
    padded masks and (T,) for concatenated ones; the canvas has H x W pixels, the mask grid of the
    result h x w cells. Coordinates are continuous, in pixels of the canvas, with pixel edges at
    whole numbers:

    ===============  =======  ==================================================================
    key              type     shape and content
    ===============  =======  ==================================================================
    images           `dtype`  (B, 3, H, W), channels first: (RGB - mean) / std, zero outside the
                              image
    pixel_mean       float32  (3,), and
    pixel_std        float32  (3,): of R, G, B in 0 to 255, what images were normalised with
    masks            bool     (..., h, w), over the canvas
    boxes_xyxy       float32  (..., 4) x0, y0, x1, y1: edges, clipped to the image, in place of
                              `bboxes`. For a rotated box, the upright box around it
    point_coords     float32  (..., 2) x, y
    point_inside     bool     (...): the point is still inside the image
    valid            bool     (...): the mask still has `min_area` cells and is not padding, nor
                              left out by `max_cover` or `max_valid`
    input_to_source  float64  (B, 2, 3): [xs, ys] = input_to_source @ [x, y, 1], in pixels of the
                              source image
    source_to_input  float64  (B, 2, 3): the inverse
    input_sizes      float64  (B, 2): height and width of the part of the canvas, from its top left
                              corner, that the image is in: its size before padding
    source_window    float64  (B, 4), if a step may rotate: x0, y0, x1, y1 in source pixels. Within
                              `input_sizes`, the image is what shows this window, see `image_region`
    crop_mask        int64    (B,) with `CropAroundMask`, see there
    erase_box        int64    (B, 4) with `RandomErasing`, see there
    mix_lambda       float32  (B,) and
    mix_partner      int64    (B,) with `Mixup` or `CutMix`, see there
    mix_box          int64    (B, 4) with `CutMix`
    ===============  =======  ==================================================================

    Spatial features of the dataset, (B, C, h, w), or (..., C, h, w) with a map per mask, are over
    the canvas of the stored image or over the photograph. They are moved with the image: afterwards
    all of them are over the canvas of the result, zero where there is no image, with as many pixels
    per cell as before, or on a grid of `feature_sizes`. Those with the interpolation "nearest",
    such as integers, keep their type. Other features stay as they are.
    `Mixup` and `CutMix` mix neither: use `mix_lambda` and `mix_partner`. Nor does `RandomErasing`
    erase them: use `erase_box`.

    Masks are drawn from the exact runs if the batch has `runs`, a `RunBatch` of its masks in the
    same order, without padding or with padding that has no run ends: by the rule of the dataset's
    `mask_sampling`, which in a pipeline that may rotate takes sample points of each cell (see
    `sa1bpack.masks.draw_window`). Otherwise they are sampled from the grid in the batch, at the
    centres of the cells.

    With `relations` there is one more key for each of them, see `Relate`: they describe the
    resulting masks, as far as they are in the picture, in cells. Relations in the batch, of the
    masks as they were stored, are passed through or replaced.

    No mask is dropped, so that all arrays keep their shapes: ignore masks that are not `valid`.

    What a step draws depends on (seed, epoch, image_id) and on the position of the step among the
    steps, and what `max_valid` draws on (seed, epoch, id of `mask_ids`); the epoch is
    `batch["epoch"]`. So an image is treated the same in every batch and on every rank, and there is
    no state to save. Where an image comes again in an epoch, `batch["repetitions"]`, which does not
    depend on batches or ranks either, makes it differ from its earlier occurrences.

    `epoch`, `batch_idx` and `global_step` of a batch are passed through, `spec` is not: it
    describes the stored images. A batch whose `spec` differs from that of `ds` is refused. A batch
    without one, from a Collate without `sample_spec`, is taken to come from `ds`: its shapes are
    checked, and on a CPU its sizes, but not in which coordinates its boxes are.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs")
        >>> steps = [T.RandomHorizontalFlip(), T.RandomResizedCrop()]
        >>> pipeline = T.Pipeline(ds, steps, size=256, mask_size=64, dtype=torch.bfloat16)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["images"].dtype
        (torch.Size([2, 3, 256, 256]), torch.bfloat16)
        >>> batch["masks"].shape, batch["boxes_xyxy"].shape
        (torch.Size([2, 8, 64, 64]), torch.Size([2, 8, 4]))
    """

    def __init__(
        self,
        ds: Any,
        steps: Sequence[Step] | None = (),
        *,
        size: Size = None,
        mask_size: Size = None,
        dtype: torch.dtype = torch.float32,
        mean: Sequence[float] = SAM_MEAN,
        std: Sequence[float] = SAM_STD,
        min_area: int = 1,
        max_cover: float = 1.0,
        max_valid: int | None = None,
        relations: Relate | Sequence[str] | None = (),
        feature_sizes: Mapping[str, int | Sides] | None = None,
        seed: int = 0,
    ):
        """
        Args:
            ds: the dataset that the batches come from, or a torch Subset of it. Its layout,
                mask_size and options define the meaning of the numbers of a batch.
            steps: geometric steps, of which one may rotate or shear, then at most one of each of
                these: ColorJitter and RandomGrayscale, in either order; GaussianBlur;
                RandomErasing; Mixup or CutMix.
            size: the canvas: its side or (height, width) in pixels, up to 16384; or a tuple of
                pairs, one for each class of exact `Buckets`, such as their `sizes`. None: that of
                the batch, which is the pack's, or that of its class. Images start as large as
                possible, in the top left corner.
            mask_size: the grid of the masks: its side or (height, width) in cells, up to 4096, or
                that of each class. None: as many pixels per cell as in the batch. Both sizes may
                change:
                `PiecewiseSchedule`, `LinearSchedule`, `CosineSchedule`, `FunctionSchedule`, a list
                with one value per epoch (so a pair is a tuple), or a function of the
                epoch; epoch and step are those of the batch.
            dtype: type of the images, a floating-point type.
            mean, std: mean and std of R, G, B in 0 to 255; by default those of SAM.
            min_area: cells that a mask must still have to be valid.
            max_cover: fraction of a valid mask's cells, 0 to 1, that larger valid masks may cover
                together; 0.8 is EdgeSAM's `mask_nms_thresh`. 1: any.
            max_valid: at most this many masks of each image are valid, drawn from the valid ones by
                (seed, epoch, id of `mask_ids`). None: all.
            relations: names of relations of the resulting masks, or a `Relate`. Batches must have
                masks or runs.
            feature_sizes: name of a spatial feature → its grid over the canvas of the result: its
                side or (height, width) in cells, up to 16384. Others keep their number of pixels
                per cell.
            seed: seed of the random steps, 0 to 2**64 - 1.

        Raises:
            OptionError: an invalid value.
        """
        self.stored = StoredBatches.of(ds)
        side = self.stored.image_size
        self._sizes = SizeSchedules.of(size, mask_size, side, self.stored.cells)
        self._feature_sizes = _checked_feature_sizes(feature_sizes, self.stored)
        # Of the beginning, and of the first class.
        self.canvas, self.grid = self._sizes.at(0, 0, 0, (side, side))
        self.dtype = checks.checked_dtype(dtype)
        self.min_area = whole_number("min_area", min_area, 0, 2**31 - 1)
        self.max_cover = number("max_cover", max_cover, 0, 1)
        self.max_valid = max_valid
        if max_valid is not None:
            self.max_valid = whole_number("max_valid", max_valid, 1)
        self._relate = Relate.of(relations, self.stored.features.values())
        self.seed = whole_number("seed", seed, 0, MAX_WORD)
        self.steps = checked_steps(items_of(steps))
        moving = [step for step in self.steps if isinstance(step, GeometricStep)]
        # Images that were not enlarged to their canvas are enlarged here, whatever the steps.
        moves = bool(moving) or self.stored.fit == "scale_down"
        self._images = ImageMaker(
            dtype=dtype,
            normal=Table(checks.checked_normal(mean, std)),
            side=side,
            geometric=moves,
            shrinks=prod(step.shrinks for step in moving),
        )
        self._masks = MaskMaker(
            cells=self.stored.cells,
            fit=self.stored.fit,
            image_size=side,
            sampling=self.stored.sampling,
            geometric=moves,
        )

    def __str__(self) -> str:
        """Everything that decides the result: steps, sizes, types and numbers."""
        steps = ", ".join(map(repr, self.steps))
        mean, std = np.round(self._images.normal.values.astype(float), 4).tolist()
        others = f"dtype={str(self.dtype)[6:]}, mean={mean}, std={std}, min_area={self.min_area}"
        if self.max_cover < 1:
            others += f", max_cover={self.max_cover}"
        if self.max_valid is not None:
            others += f", max_valid={self.max_valid}"
        if self._relate is not None:
            relations: Any = self._relate
            if relations == Relate(relations.names):  # as features' records have always had them
                relations = relations.names
            others += f", relations={relations}"
        if self._feature_sizes:
            others += f", feature_sizes={self._feature_sizes}"
        return f"Pipeline([{steps}], {self._sizes}, {others}, seed={self.seed})"

    def __repr__(self) -> str:
        """The text of `str`, and what makes images and masks."""
        on_cpu = describe_kernels("cpu")
        on_cuda = describe_kernels("cuda")
        return f"{self}, on a CPU: {on_cpu}, on CUDA: {on_cuda}"

    @property
    def needed_keys(self) -> tuple[str, ...]:
        """Keys that batches must have, besides those that all batches with images have."""
        needed = ["images"]
        if any(isinstance(step, CropAroundMask) for step in self.steps):
            needed.append("bboxes")
        if self._draws_by_ids:
            needed.append("annotation_ids")
        if self._relate is not None:
            needed.append("masks")
        return tuple(needed)

    @property
    def _draws_by_ids(self) -> bool:
        """True if something is drawn by annotation ids, which the pack has."""
        return self.max_valid is not None and self.stored.has_annotation_ids

    def __call__(self, batch: Items, epoch: int | None = None) -> Batch:
        """Make training input from a batch.

        Args:
            batch: tensors, all on one device; they are not changed. Its `spec`, if it has one, must
                be that of the pipeline's dataset: a plain dict has none, and is not checked for it.
            epoch: epoch of a batch without `batch["epoch"]`, as plain `Collate` makes them. Random
                steps depend on it, and sizes may.

        Raises:
            OptionError: `batch` is not a batch of tensors, does not come from this dataset, or has
                runs that do not fit its masks; or its epoch is missing though there are random
                steps, or differs from `epoch`. The contents of sizes and counts are checked where
                the host knows them, as those of a Loader's batches: nothing waits for a device.
            MaskError: runs on the CPU are damaged.
        """
        begin = perf_counter()
        result = self._made(batch, epoch)
        if isinstance(batch, Batch):
            result.numbers = batch.numbers  # it has the same small tensors
            result.counts = batch.counts
            if batch.counts is not None:
                batch.counts.worked("pipeline", begin)
        return result

    def _made(self, batch: Items, epoch: int | None) -> Batch:
        """The training input of a batch, see a call."""
        checks.check_spec(batch, self.stored.spec)
        items = unseen(batch)
        small = self._checked(items, numbers_of(batch))
        draws = bool(self.steps) or self.max_valid is not None
        needed = draws or self._sizes.change_by("epoch")
        epoch = checks.check_epoch(items, epoch, needed)
        step = checks.number_of_batch(items, "global_step")
        if step is None and self._sizes.change_by("step"):
            raise OptionError(
                "sizes change by step, but the batch has no 'global_step': take it from a Loader"
            )
        of_class = checks.number_of_batch(items, "sample_class")
        batch_canvas = checks.canvas_of(items["images"])
        canvas, grid = self._sizes.at(epoch, step, of_class, batch_canvas)
        device = items["images"].device
        for table in self._tables():
            table.on(device)  # a graph that is captured later may read it there alone
        with full_precision(device):
            rows = _mask_rows(items, small, self.stored.features)
            moves = self._run_steps(small, rows, epoch, canvas)
            return self._transform(items, small, rows, epoch, moves, grid)

    def _tables(self) -> list[Table]:
        """The constants that are read on the device of a batch."""
        mixing = [step.table for step in self.steps if isinstance(step, MixStep)]
        return [*self._images.tables, *mixing]

    def _checked(self, batch: Items, known: Tensors) -> dict[str, Tensor]:
        """Check a batch, of which the host knows some numbers.

        Returns its numbers per image and mask, on the host if they are known there: those of
        `_SMALL`, and of runs `mask_offset` and `source_sizes`.
        """
        needed = ["images", "sizes"]
        if self.steps:
            needed.append("image_ids")
        if self._draws_by_ids:
            needed.append("annotation_ids")
        elif self.max_valid is not None:
            needed.append("image_ids")
        checks.check_tensors(batch, needed, MASK_KEYS)
        checks.check_arrays(batch, self.stored)
        small = {key: batch[key] for key in _SMALL if key in batch}
        if "runs" in batch:
            runs = batch["runs"]
            small |= {"mask_offset": runs.mask_offset, "source_sizes": runs.sizes}
        small = all_on_host(small, known)
        images = batch["images"]
        checks.check_sizes(small["sizes"], len(images), self.stored, checks.canvas_of(images))
        if self._relate is not None and not {"masks", "runs"} & batch.keys():
            raise OptionError(f"{self._relate!r} needs masks or runs, but the batch has neither")
        return small

    def _run_steps(
        self, small: Tensors, rows: MaskRows | None, epoch: int | None, canvas: Sides
    ) -> Moves:
        """Run the steps of a batch, by the numbers that `_checked` returned and its masks."""
        frame = fit_frame(small["sizes"], canvas)
        if not self.steps:
            return Moves(frame)
        pixels = PixelChanges()
        mix: partial[dict[str, Tensor]] | None = None
        crop_mask: Tensor | None = None
        assert epoch is not None, "a batch without an epoch is refused where numbers are drawn"
        image_ids = repeated_ids(small["image_ids"], small.get("repetitions"))
        for k, step in enumerate(self.steps):
            drawn = partial(uniform, self.seed, epoch, image_ids, k)
            if isinstance(step, PixelStep):
                pixels = step(pixels, frame, drawn)
            elif isinstance(step, MixStep):
                mix = partial(step, uniform=drawn)
            elif isinstance(step, CropAroundMask):
                masks = self._mask_boxes(small, rows, frame)
                frame, crop_mask = step.around(frame, drawn, masks)
            elif isinstance(step, GeometricStep) and is_of_user(step):
                subject = f"a batch of {len(image_ids)} images in epoch {epoch}"
                frame = call_user(step, frame, drawn, role=f"step {step!r}", subject=subject)
            elif isinstance(step, GeometricStep):
                frame = step(frame, drawn)
        return Moves(frame, crop_mask, pixels, mix)

    def _mask_boxes(self, small: Tensors, rows: MaskRows | None, frame: Frame) -> MaskBoxes:
        """The boxes of the masks of a batch in a frame."""
        if rows is None or "bboxes" not in small:
            raise OptionError(
                "CropAroundMask needs boxes of masks, but the batch has no 'bboxes': add them to "
                "the fields of the loader"
            )
        coordinates = self.stored.coordinates
        boxes = place_annotations(small, rows.owner, frame, coordinates)["boxes_xyxy"]
        return MaskBoxes(boxes, rows.owner, rows.valid)

    def _transform(
        self,
        batch: Items,
        small: Tensors,
        rows: MaskRows | None,
        epoch: int | None,
        moves: Moves,
        grid: Sides,
    ) -> Batch:
        """The result for a checked batch.

        Args:
            small: numbers per image and mask of the batch, all on the host if possible: what is
                made of them is sent to the device of the batch.
            rows: rows of its masks; None: it has none.
            epoch: as in a call.
            moves: what the steps do.
            grid: (height, width) of the masks in cells.
        """
        frame = moves.frame
        result = Batch(batch)  # without its spec, which does not describe the images of the result
        if "epoch" in result:
            result["epoch"] = epoch
        result.pop("bboxes", None)
        result["images"] = self._images(batch["images"], small["sizes"], frame, moves.pixels)
        placed = self._frame_numbers(small["sizes"], frame)
        if moves.pixels.erasing is not None:
            placed["erase_box"] = moves.pixels.erasing.boxes
        if moves.crop_mask is not None:
            placed["crop_mask"] = moves.crop_mask
        usable = None
        if rows is not None:
            placed |= self._annotations(small, rows, moves)
            is_in_picture = placed["valid"].flatten()
            usable = self._add_masks(result, batch, small, rows, is_in_picture, moves, grid)
        sent_values = sent([*placed.values()], batch["images"].device)
        result |= dict(zip(placed, sent_values, strict=True))
        if usable is not None:
            result["valid"] &= usable.view(result["valid"].shape)
        if rows is not None and self.max_valid is not None:
            rank = self._random_ranks(result, rows, epoch)
            result["valid"] &= rank < self.max_valid
        for name, feature in self.stored.spatial.items():
            if name in batch:
                result[name] = self._move_feature(batch[name], feature, small, frame)
        if moves.mix is not None:
            result |= moves.mix(result["images"])
        return result

    def _frame_numbers(self, sizes: Tensor, frame: Frame) -> dict[str, Tensor]:
        """What a result says of its images: maps, sizes, and what they are normalised with."""
        mean, std = self._images.normal.on(sizes.device)
        to_source = stored_to_source(sizes)
        maps = to_source.after(frame.maps)
        numbers = {
            "pixel_mean": mean.clone(),
            "pixel_std": std.clone(),
            "input_to_source": maps.matrix(),
            "source_to_input": maps.inverse().matrix(),
            "input_sizes": frame.extent.flip(1),
        }
        if frame.window is not None:
            numbers["source_window"] = frame.window * to_source.scale.repeat(1, 2)
        return numbers

    def _annotations(self, small: Tensors, rows: MaskRows, moves: Moves) -> dict[str, Tensor]:
        """Boxes and points on the canvas, and `valid` as far as boxes and padding decide it."""
        annotations = place_annotations(small, rows.owner, moves.frame, self.stored.coordinates)
        valid = rows.valid
        erasing = moves.erases_masks
        if erasing is not None and "point_coords" in annotations:
            boxes = erasing.boxes[rows.owner]
            points = annotations["point_coords"]
            erased = (points >= boxes[:, :2]) & (points < boxes[:, 2:])
            annotations["point_inside"] &= ~erased.all(1)
        if "boxes_xyxy" in annotations:
            boxes = annotations["boxes_xyxy"]
            valid = valid & (boxes[:, 2:] > boxes[:, :2]).all(1)
        annotations["valid"] = valid
        for name, value in annotations.items():
            if value.is_floating_point():
                value = value.float()
            annotations[name] = value.view(*rows.shape, *value.shape[1:])
        return annotations

    def _add_masks(
        self,
        result: Batch,
        batch: Items,
        small: Tensors,
        rows: MaskRows,
        is_in_picture: Tensor,
        moves: Moves,
        grid: Sides,
    ) -> Tensor | None:
        """Move masks, erase cells of them, and relate them.

        `is_in_picture` is bool (T,): masks, not padding, with a part of their box in the picture.
        Returns bool (T,), which of them are large enough and not covered; None without masks.
        """
        if not {"runs", "masks"} & batch.keys():
            return None
        if "runs" in batch:
            checks.check_runs(batch["runs"], small, rows.shape)
        masks, areas = self._masks(batch, small, rows, moves.frame, grid)
        erasing = moves.erases_masks
        if erasing is not None:
            boxes, owner = sent([erasing.boxes, rows.owner], masks.device)
            masks = masks & ~in_boxes(boxes, grid, moves.frame.canvas)[owner]
            areas = count_cells(masks)
        result["masks"] = masks.view(*rows.shape, *grid)
        usable = areas >= self.min_area
        if self._relate is None and self.max_cover == 1:
            return usable
        counts = batch["mask_counts"]
        most = rows.shape[1] if rows.padded else fullest(small["mask_counts"])
        if self._relate is not None:
            result |= self._relate.of_masks(result["masks"], counts, rows.padded, most)
        if self.max_cover < 1:
            owner, may_cover = sent([rows.owner, is_in_picture], masks.device)
            # Those that are left out anyway come last, where they cover no other one.
            areas = areas.where(usable & may_cover, 0)
            usable &= uncovered(masks, areas, owner, len(counts), most, self.max_cover)
        return usable

    def _random_ranks(
        self,
        result: Batch,
        rows: MaskRows,
        epoch: int | None,
    ) -> Tensor:
        """int64 (...): ranks of the masks of each image in a random order, the valid ones first."""
        assert epoch is not None, "a batch without an epoch is refused where numbers are drawn"
        valid = result["valid"].flatten()
        [owner] = sent([rows.owner], valid.device)
        ids = mask_ids(result).flatten()
        drawn = uniform(self.seed, epoch, ids, prompt_draw("valid", 0), 1)[:, 0]
        return ranks(drawn.where(valid, 1.0), owner, len(result["images"])).view(rows.shape)

    def _move_feature(self, values: Tensor, feature: Any, small: Tensors, frame: Frame) -> Tensor:
        """Rows of a spatial feature, of images or of masks, under the maps of their images."""
        sizes = small["sizes"]
        leading = values.shape[:-3]
        if feature.axis == "mask":
            rows = MaskRows.of(small["mask_counts"], values.shape, len(leading) == 2)
            values = values.flatten(0, -4)
            sizes = sizes[rows.owner]
            frame = frame.of(rows.owner)
        stored = None
        # With the fit "squash", the photograph fills the canvas.
        if feature.covers == "photograph" and self.stored.fit != "squash":
            stored = sizes[:, 2:]
        moved = move_spatial(
            SpatialRows(values, self.stored.image_size, stored, feature.interpolation),
            frame,
            self._images.geometric,
            self._images.most(frame),
            self._feature_sizes.get(feature.name),
        )
        return moved.view(*leading, *moved.shape[1:])


def _mask_rows(batch: Items, small: Tensors, features: Items) -> MaskRows | None:
    """The rows of the arrays of a batch that have one for each mask; None if it has none.

    Args:
        features: specs of the features of the dataset, by name.
    """
    padded = "mask_offsets" not in batch
    for key in MASK_KEYS:
        if key in batch:
            return MaskRows.of(small["mask_counts"], batch[key].shape, padded)
    if "runs" not in batch:
        return None
    counts = small["mask_counts"]
    shape = torch.Size([batch["runs"].masks])
    if padded:
        shape = torch.Size([len(counts), fullest(counts)])
        for name, feature in features.items():
            if feature.axis == "mask" and isinstance(batch.get(name), Tensor):
                shape = batch[name].shape
    return MaskRows.of(counts, shape, padded)


def _checked_feature_sizes(sizes: Any, stored: StoredBatches) -> dict[str, Sides]:
    """The option `feature_sizes`. Raises OptionError for other names and sizes."""
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise OptionError(f"feature_sizes is {brief(sizes)}: give a dict, such as {{'depth': 518}}")
    checked = {}
    for name, size in sizes.items():
        if name not in stored.spatial:
            known = ", ".join(stored.spatial) or "none"
            raise OptionError(
                f"feature_sizes has {brief(name)}: the dataset has the spatial features {known}; "
                "open it with features=[...]"
            )
        checked[name] = checks.check_sides(f"feature_sizes[{name!r}]", size, checks.MAX_CANVAS)
    return checked
