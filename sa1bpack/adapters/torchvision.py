"""Samples and batches as the tensors of torchvision's transforms v2."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from sa1bpack.arguments import choice
from sa1bpack.dataset.sample_spec import COORDINATES
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.transforms.masks.cells import unpack_bits


@checks_options
def as_tv_tensors(item: Mapping[str, Any], coordinates: str | None = None) -> dict[str, Any]:
    """A sample or a batch whose image, masks, boxes and points v2 transforms move together.

    Every v2 transform takes the result, moves these, and passes on everything else:

    ================  =============  ============================================================
    key               type           content
    ================  =============  ============================================================
    image, images     Image          uint8 (3, H, W) of a sample, (B, 3, H, W) of a batch
    masks             Mask           bool (m, H, W); of a batch (B, M, H, W) or (T, H, W)
    boxes             BoundingBoxes  float32 (m, 4), XYXY, in pixels of the image: x1, y1 are the
                                     edges right of and below the last pixel, as in a Pipeline.
                                     Of a batch (B * M, 4) or (T, 4), because they have two axes
    point_coords      KeyPoints      float32 (m, 2) or (..., 2), from torchvision 0.23 on
    ================  =============  ============================================================

    H and W are the canvas size. Other numbers become tensors. `bboxes` became `boxes`; `crop_boxes`
    are left out, because v2 would not move them, and so are points before torchvision 0.23.
    Spatial features are passed on as well, and not moved: a Pipeline moves them.

    Points are continuous, as boxes are, but v2 mirrors them as numbers of pixels, to W - 1 - x: a
    pixel short of their masks.

    v2 draws random numbers once per call: one crop for all images of a batch. To crop each image
    by itself, use this function on samples: it can be the `transform` of `sa1bpack.open`.

    Args:
        item: a sample of a Dataset, or a batch of Loader, make_dataloader or Collate, with masks
            of the image's size: `sa1bpack.open(pack, mask_format="bool", mask_size=1024)`.
        coordinates: those of the boxes and points in `item`, "source" or "stored". None: as the
            `spec` of a batch says; otherwise "stored", as `sa1bpack.open` does, unless the boxes
            cannot be that.

    Raises:
        OptionError: the masks are runs or have another size than the image, the pixels are planes,
            `item` is neither a sample nor a batch, or it does not say which coordinates it has, and
            a box has fewer pixels than its mask or leaves the image.
    """
    if not isinstance(item, Mapping) or not ("image" in item or "images" in item):
        raise OptionError(
            f"item is {type(item).__name__}: pass a sample of a Dataset or a batch of a loader"
        )
    image_key = "image"
    size_key = "size"
    if "image" not in item:
        image_key = "images"
        size_key = "sizes"
    spec = getattr(item, "spec", None)
    assumed = coordinates is None and spec is None
    if coordinates is None:
        coordinates = "stored"
        if spec is not None and ", source coordinates" in spec:
            coordinates = "source"
    choice("coordinates", coordinates, COORDINATES)
    tensors = {name: _tensor(value) for name, value in item.items()}
    image = tensors[image_key]
    if not isinstance(image, torch.Tensor) or image.ndim < 3 or image.shape[-1] != 3:
        raise OptionError(
            f"{image_key} is not RGB with channels last: open the pack with pixels='rgb', and "
            "convert before other transforms"
        )
    image = image.movedim(-1, -3).contiguous()
    height, width = canvas = tuple(image.shape[-2:])
    tensors[image_key] = tv_tensors.Image(image)
    if "masks" in tensors or "runs" in tensors or "run_ends" in tensors:
        tensors["masks"] = tv_tensors.Mask(_masks(tensors, height, width))
    size = tensors[size_key].double()
    if "bboxes" in tensors:
        boxes = tensors["bboxes"].double()
        scale, pixel = _scales(size, tensors, boxes.ndim, coordinates)
        first = boxes[..., :2]
        extent = boxes[..., 2:]
        edges = torch.cat([first * scale, (first + extent) * scale + pixel], -1)
        if assumed:
            _check_stored(tensors, edges, pixel, width, height)
        tensors["boxes"] = tv_tensors.BoundingBoxes(
            edges.float().reshape(-1, 4), format="XYXY", canvas_size=canvas
        )
    # What v2 could not move with the image is left out, not left behind.
    points = tensors.pop("point_coords", None)
    tensors.pop("bboxes", None)
    tensors.pop("crop_boxes", None)
    if points is not None and hasattr(tv_tensors, "KeyPoints"):
        scale, _ = _scales(size, tensors, points.ndim, coordinates)
        scaled = (points.double() * scale).float()
        tensors["point_coords"] = tv_tensors.KeyPoints(scaled, canvas_size=canvas)
    return tensors


def _tensor(value: Any) -> Any:
    """A tensor of an array, which shares its memory only if it may be written to."""
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.writeable:
        value = value.copy()
    return torch.from_numpy(value)


def _masks(tensors: Mapping[str, Any], height: int, width: int) -> torch.Tensor:
    """Masks of the image's size, bool (..., height, width)."""
    side = max(height, width)
    remedy = f"open the pack with mask_format='bool', mask_size={-(-side // 8) * 8}"
    masks = tensors.get("masks")
    if masks is None:
        raise OptionError(f"the masks are runs, which v2 does not know: {remedy}")
    if masks.dtype == torch.uint8:
        masks = unpack_bits(masks)
    # A native image has no padding, but its grid has: it covers the square of the longer side.
    if masks.shape[-1] != side:
        raise OptionError(
            f"masks have {masks.shape[-1]} cells per side and the image {height} x {width} pixels, "
            f"but v2 moves only what has one size: {remedy}"
        )
    return masks[..., :height, :width]


def _check_stored(
    tensors: Mapping[str, Any], edges: torch.Tensor, pixel: torch.Tensor, width: int, height: int
) -> None:
    """Raise OptionError for boxes that cannot be in stored coordinates, which were assumed.

    Args:
        tensors: the sample or batch.
        edges: float64 (..., 4), edges of the boxes in pixels of the image, if they are in stored
            coordinates.
        pixel: float64 (..., 2): extent of a source pixel in pixels of the image.
        width, height: size of the image in pixels.
    """
    ends = edges[..., 2:]
    extent = (ends - edges[..., :2]).prod(-1)
    limit = ends.new_tensor([width, height]) + 1
    outside = bool((ends > limit).any())
    if "crop_boxes" in tensors:  # of a sample: most are the whole image
        crops = tensors["crop_boxes"].double()
        outside |= bool((crops[..., :2] + crops[..., 2:] > limit).any())
    pixel_area = pixel.prod(-1)
    areas = torch.zeros_like(extent)
    if "areas" in tensors:
        areas = tensors["areas"].double() * pixel_area
    fault = ""
    if (areas > extent * 1.01 + pixel_area).any():
        fault = "has fewer pixels than its mask"
    if outside:
        fault = "leaves the image"
    if fault:
        raise OptionError(
            f"coordinates is None, which means stored coordinates here, but a box {fault}: pass "
            "coordinates='source' if the pack was opened so"
        )


def _scales(
    size: torch.Tensor, tensors: Mapping[str, Any], axes: int, coordinates: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factors of x and y, and the extent of a source pixel, in pixels of the image.

    Args:
        size: float64 (4,) or (B, 4): source height, width, stored height, width.
        tensors: the sample or batch; of a batch with concatenated masks, `mask_counts` is used.
        axes: number of axes of the boxes: 2 for those of a sample and of concatenated masks, 3 for
            padded ones.
        coordinates: "source" or "stored".

    Returns:
        Two float64 tensors, (2,), (T, 2) or (B, 1, 2).
    """
    pixel = size[..., [3, 2]] / size[..., [1, 0]]
    if size.ndim == 2 and axes == 3:
        pixel = pixel[:, None]
    elif size.ndim == 2:
        pixel = pixel.repeat_interleave(tensors["mask_counts"], 0)
    if coordinates == "source":
        return pixel, pixel
    return torch.ones_like(pixel), pixel
