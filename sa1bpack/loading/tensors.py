"""The arrays of a batch as tensors: from the bytes of a buffer to what the consumer requested.

`host_views` and `batch_views` are views of the bytes; `arrange` brings those of a batch, on its
device, into the layout that the consumer gets. What that takes is known beforehand.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from sa1bpack.format.side.scaled import SCALE_BYTES
from sa1bpack.loading.batch.regions import Regions, split_span
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.located_batch import LocatedBatch
from sa1bpack.transforms.images.pixels import yuv420_to_rgb
from sa1bpack.transforms.masks.cells import unpack_bits
from sa1bpack.transforms.masks.run_batch import RunBatch
from sa1bpack.transforms.memory import allocated_bytes

Views = dict[str, torch.Tensor]

# Bytes per pixel that `arrange` takes at most to make RGB of planes: the result, and what is gone
# when it returns.
RGB_BYTES = 3
CONVERSION_BYTES = 33
_CONVERSION_TENSORS = 8  # that live at once
_SMALL_TENSORS = 64  # of at most 512 bytes, with numbers per sample or row


@lru_cache
def kind_of(dtype: np.dtype) -> torch.dtype:
    """The type of a tensor with the elements of an array of a batch."""
    if dtype == np.uint16:  # of features alone: numpy has no such type
        return torch.bfloat16
    return torch.from_numpy(np.empty(0, dtype)).dtype


ALL_ROWS = slice(None)


def host_views(data: np.ndarray, regions: Regions, parts: Sequence[slice]) -> list[Views]:
    """`batch_views` of a uint8 (n,) array, of some rows of each at a time.

    Without operations of torch: each releases the GIL, and waits for it while reader threads use
    it. For a batch of a few small samples that was a third of the time.
    """
    views: list[Views] = [{} for _ in parts]
    for key, region in regions.items():
        array = region.view(data)
        is_bfloat16 = region.dtype == np.uint16  # see kind_of
        for rows, of_part in zip(parts, views, strict=True):
            tensor = torch.from_numpy(array[rows])
            if is_bfloat16:
                tensor = tensor.view(torch.bfloat16)
            of_part[key] = tensor
    return views


def batch_views(data: torch.Tensor, regions: Regions, first: int = 0) -> Views:
    """The arrays of a batch as tensors that share the memory of one.

    The tensors are not views of one another: autograd, which follows changes of a tensor and of its
    views, does not take a change of one for a change of all. One operation of torch yields all that
    have one type, and another one the shape of each that has several axes.

    Args:
        data: contiguous, uint8 (n,).
        regions: regions of the batch, in ascending order.
        first: the byte of the batch that `data` begins with, a multiple of ALIGNMENT.
    """
    by_kind: dict[torch.dtype, list[str]] = {}
    for key, region in regions.items():
        by_kind.setdefault(kind_of(region.dtype), []).append(key)
    views = {}
    for kind, keys in by_kind.items():
        elements = data
        if kind != torch.uint8:
            elements = data.view(kind)
        numbers, sizes = _cuts(regions, keys, first, len(elements), kind.itemsize)
        pieces = torch.unsafe_split_with_sizes(elements, sizes)
        for key, number in zip(keys, numbers, strict=True):
            piece = pieces[number]
            shape = regions[key].shape
            if len(shape) != 1:
                piece = piece.view(shape)
            views[key] = piece
    return {key: views[key] for key in regions}


def parts_of(views: Views, spans: Sequence[tuple[int, int]]) -> list[Views]:
    """The rows of each of some batches that were joined, which follow one another in all tensors.

    As in `batch_views`, they are not views of one another.

    Args:
        views: the tensors of all of them.
        spans: first row of each, and one past its last.
    """
    sizes = [end - begin for begin, end in spans]
    parts: list[Views] = [{} for _ in spans]
    for key, tensor in views.items():
        pieces = torch.unsafe_split_with_sizes(tensor, sizes)
        for part, piece in zip(parts, pieces, strict=True):
            part[key] = piece
    return parts


def _cuts(
    regions: Regions, keys: list[str], first: int, total: int, itemsize: int
) -> tuple[list[int], list[int]]:
    """How memory is cut into the regions of some keys, and what lies between them.

    Args:
        regions: regions of the batch, in ascending order.
        keys: keys of those with this `itemsize`.
        first: byte of the batch that the memory begins with.
        total: elements of the memory.
        itemsize: bytes of an element.

    Returns:
        The number of each key's piece, and the elements of all pieces.
    """
    numbers = []
    sizes = []
    end = 0
    for key in keys:
        region = regions[key]
        start = (region.start - first) // itemsize
        if start > end:
            sizes.append(start - end)
        numbers.append(len(sizes))
        sizes.append(region.nbytes // itemsize)
        end = start + sizes[-1]
    sizes.append(total - end)
    return numbers, sizes


def sent_bytes(regions: Regions) -> int:
    """The most bytes that a batch with these regions takes on a device as it is sent."""
    _, _, of_small, of_large = split_span(regions)
    parts = (part.stop - part.start for part in (of_small, of_large))
    return sum(map(allocated_bytes, parts))


def arranging_bytes(spec: BatchSpec, samples: int, capacity: int, total: int) -> tuple[int, int]:
    """The most bytes that `arrange` adds to a batch on its device.

    Args:
        spec: layout of the batches.
        samples, capacity, total: b, M, T: samples, masks of the fullest sample, masks in all.

    Returns:
        Bytes in the batch that results, and bytes in addition until they return.
    """
    added = 0
    temporary = _SMALL_TENSORS * 512
    if spec.to_rgb:
        pixels = samples * prod(spec.largest_image.canvas)
        added += allocated_bytes(RGB_BYTES * pixels)
        temporary += allocated_bytes(CONVERSION_BYTES * pixels, _CONVERSION_TENSORS)
    if spec.mask_source in ("bits", "drawn"):
        rows = total
        bits = 0
        if spec.mask_layout.padded:
            rows = samples * capacity
            bits = allocated_bytes(rows * spec.mask_bytes)
        if spec.mask_layout.packed:
            added += bits
        else:
            added += allocated_bytes(8 * rows * spec.mask_bytes)
            temporary += bits
    for floats, scales in float_bytes(spec, samples, capacity, total):
        added += allocated_bytes(floats)
        temporary += allocated_bytes(scales)
    return added, temporary


def float_bytes(spec: BatchSpec, samples: int, capacity: int, total: int) -> list[tuple[int, int]]:
    """Per feature that is stored with scales, the bytes of a batch's floats, and of its scales.

    `arrange` makes the floats. A CPU multiplies in float32, which takes twice the floats for a
    moment.
    """
    rows_of_axis = {"sample": samples, "mask": total}
    if spec.mask_layout.padded:
        rows_of_axis["mask"] = samples * capacity
    of_features = []
    for feature in spec.features:
        if feature.scaled:
            rows = rows_of_axis[feature.axis]
            values = prod(feature.row_shape)
            nbytes = values * feature.row_dtype.itemsize
            of_features.append((rows * nbytes, rows * (feature.row_bytes - values)))
    return of_features


def arrange(
    views: Views, spec: BatchSpec, located: LocatedBatch, samples: slice = ALL_ROWS
) -> dict[str, Any]:
    """Bring a batch into the layout that the consumer requested, where its tensors are.

    Texts are strings, on the host.

    Args:
        views: the tensors of the batch.
        spec: layout of the batches.
        located: the batch, or several that were joined to one.
        samples: those of this one among them.
    """
    batch: dict[str, Any] = dict(views)
    for in_batch in spec.batch_features:
        if in_batch.spec.text:
            batch[in_batch.spec.name] = located.texts(in_batch)[samples]
    if spec.to_rgb:
        batch["images"] = yuv420_to_rgb(batch["images"], batch["sizes"][:, 2:])
    if spec.mask_source == "runs":
        sizes = batch["sizes"][:, :2].long()
        ends = batch.pop("run_ends")
        offset = batch.pop("run_offset")
        known = torch.from_numpy(located.run_offset)
        batch["runs"] = RunBatch(ends, offset, batch["mask_offsets"], sizes, known)
        if spec.mask_layout.padded:
            del batch["mask_offsets"]
    elif spec.to_device and spec.mask_source:  # concatenated bits, uint8 (T, Sm, Sm / 8)
        masks = batch["masks"]
        if spec.mask_layout.padded:
            rows = masks.new_zeros((len(located) * located.capacity, *masks.shape[1:]))
            rows.index_copy_(0, batch.pop("mask_positions"), masks)
            masks = rows.view(len(located), located.capacity, *masks.shape[1:])
        if not spec.mask_layout.packed:
            masks = unpack_bits(masks)
        batch["masks"] = masks
    for feature in spec.features:
        if feature.scaled:
            batch[feature.name] = floats_on_device(batch[feature.name], feature.row_shape)
    if spec.relate is not None:
        most = located.most
        if spec.mask_source == "runs" and spec.mask_layout.padded:
            most = located.capacity  # other padded arrays, which would tell, may be left out
        batch |= spec.relate(batch, most)
    return batch


def floats_on_device(stored: torch.Tensor, row_shape: tuple[int, ...]) -> torch.Tensor:
    """`floats_of` on the device, of rows (B, ...), (T, ...) or (B, M, ...)."""
    # A clone: what is contiguous already, such as one row, may have odd strides.
    scale = stored[..., :SCALE_BYTES].clone(memory_format=torch.contiguous_format)
    values = stored[..., SCALE_BYTES:]
    rows = torch.empty(values.shape, dtype=torch.float16, device=stored.device)
    if stored.dtype == torch.uint8:  # each float8 is a float16
        values = rows.copy_(values.view(torch.float8_e4m3fn))
    torch.mul(values, scale.view(torch.float32), out=rows)
    channels = row_shape[:-1][:1]
    return rows.view(*values.shape[: values.ndim - 1 - len(channels)], *row_shape)
