"""The arrays of a sent batch as tensors, in the layout that the consumer requested."""

import numpy as np
import torch

from sa1bpack.loading.batch.spec import BatchSpec, Region, Regions, split_regions
from sa1bpack.loading.batch_copy import BatchCopy
from sa1bpack.transforms.images.pixels import yuv420_to_rgb
from sa1bpack.transforms.masks.cells import unpack_bits
from sa1bpack.transforms.masks.run_batch import RunBatch
from sa1bpack.transforms.memory import on_device

Batch = dict[str, torch.Tensor | RunBatch]

# Bytes per pixel that `finish` takes at most to make RGB of planes: the result, and what is gone
# when it returns.
RGB_BYTES, CONVERSION_BYTES = 3, 33
_CONVERSION_TENSORS = 8  # that live at once
_SMALL_TENSORS = 64  # of at most 512 bytes, with numbers per sample or row


def host_views(data: np.ndarray, regions: Regions) -> Batch:
    """`batch_views` of a uint8 (n,) array.

    Without operations of torch: each releases the GIL, and waits for it while reader threads use
    it. For a batch of a few small samples that was a third of the time.
    """
    views = {key: torch.from_numpy(region.view(data)) for key, region in regions.items()}
    for key, region in regions.items():
        if region.dtype == np.uint16:  # bfloat16, see _TORCH
            views[key] = views[key].view(torch.bfloat16)
    return views


def batch_views(data: torch.Tensor, regions: Regions) -> Batch:
    """The arrays of a batch as tensors that share the memory of a uint8 (n,) tensor.

    data  contiguous, at the beginning of its memory

    The tensors are not views of one another: autograd, which follows changes of a tensor and of its
    views, does not take a change of one for a change of all.
    """
    memory = data.untyped_storage()
    return {key: _placed(memory, region, data.device) for key, region in regions.items()}


def _placed(memory: torch.UntypedStorage, region: Region, device: torch.device) -> torch.Tensor:
    strides = [1] * len(region.shape)
    for axis in range(len(strides) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * region.shape[axis]
    tensor = torch.empty(0, dtype=_TORCH[region.dtype], device=device)
    return tensor.set_(memory, region.start // region.dtype.itemsize, region.shape, strides)


_TORCH = {
    np.dtype("u1"): torch.uint8,
    np.dtype("?"): torch.bool,
    np.dtype("i4"): torch.int32,
    np.dtype("i8"): torch.int64,
    np.dtype("f4"): torch.float32,
    np.dtype("i1"): torch.int8,
    np.dtype("i2"): torch.int16,
    np.dtype("u2"): torch.bfloat16,  # of side arrays alone: numpy has no such type
    np.dtype("f2"): torch.float16,
    np.dtype("f8"): torch.float64,
}


def finishing_bytes(spec: BatchSpec, samples: int, capacity: int, total: int) -> tuple[int, int]:
    """At most what `batch_views` and `finish` add to a batch on its device: in the batch that
    results, and in addition until they return.

    samples, capacity, total  B, M, T
    """
    regions, _ = spec.regions(samples, capacity, total, 0)
    _, _, span = split_regions(regions)
    small, images, converting = on_device(span.stop - span.start), 0, 0
    if spec.to_rgb:
        pixels = samples * spec.image.side**2
        images = on_device(RGB_BYTES * pixels)
        converting = on_device(CONVERSION_BYTES * pixels, _CONVERSION_TENSORS)
    masks = padding = 0
    if spec.to_device and spec.masks.source != "runs":
        rows = samples * capacity if spec.layout.padded else total
        bits = on_device(rows * spec.mask_bytes) if spec.layout.padded else 0
        if spec.layout.packed:
            masks = bits
        else:
            masks, padding = on_device(8 * rows * spec.mask_bytes), bits
    # Images come first.
    return small + images + masks, max(converting - masks, padding) + _SMALL_TENSORS * 512


def finish(batch: Batch, spec: BatchSpec, copy: BatchCopy) -> Batch:
    """Bring a sent batch into the layout that the consumer requested, on the batch's device."""
    if spec.to_rgb:
        batch["images"] = _to_rgb(batch["images"], batch["sizes"][:, 2:])
    if spec.masks.source == "runs":
        batch["runs"] = _run_batch(batch, copy)
        if spec.layout.padded:
            del batch["mask_offsets"]
    elif spec.to_device:
        finish_masks(batch, spec, len(copy), copy.capacity)
    if spec.relate is not None:
        batch |= spec.relate(batch, copy.most)
    return batch


def _to_rgb(planes: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Planes as RGB, zero beyond `stored`: heights and widths, integers (B, 2)."""
    rgb = yuv420_to_rgb(planes, stored)
    steps = torch.arange(rgb.shape[1], device=rgb.device)
    inside = (steps[:, None] < stored[:, 0, None, None]) & (steps < stored[:, 1, None, None])
    return rgb.masked_fill_(~inside[..., None], 0).contiguous()  # as on a CPU


def _run_batch(batch: Batch, copy: BatchCopy) -> RunBatch:
    """The runs of a batch, from the three arrays that hold them."""
    return RunBatch(
        batch.pop("run_ends"),
        batch.pop("run_offset"),
        batch["mask_offsets"],
        batch["sizes"][:, :2].long(),
        torch.from_numpy(copy.run_offset),
    )


def finish_masks(batch: Batch, spec: BatchSpec, samples: int, capacity: int) -> None:
    """Bring flat mask bits into the layout that the consumer requested, on their device.

    batch     `masks` uint8 (T, Sm, Sm / 8), and for the padded layouts `mask_positions` int64 (T,)
    samples   B
    capacity  M: masks per sample
    """
    places = batch.pop("mask_positions", None)
    masks = batch["masks"]
    if places is not None:
        padded = masks.new_zeros((samples * capacity, *masks.shape[1:]))
        masks = padded.index_copy_(0, places, masks).view(samples, capacity, *masks.shape[1:])
    batch["masks"] = masks if spec.layout.packed else unpack_bits(masks)
