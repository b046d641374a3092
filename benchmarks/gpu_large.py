"""The part of gpu.py with more than 2**31 elements, where 32 bits are too few for an index.

Each operation is called for a batch that is so large, and for its last samples alone: where an
index overflowed, the end of the large result would be another one.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from gpu_parts import DEVICE, Options, Report, synchronize
from steps import as_sent, made_batch, made_runs

from sa1bpack import transforms
from sa1bpack.format.layout import Layout
from sa1bpack.transforms import RunBatch, draw_runs
from sa1bpack.transforms.maps import scaling

BEYOND = 1 << 31
LAST = 3  # samples of the end that are compared


def large(options: Options, report: Report) -> None:
    """Results beyond 2**31 elements, against those of their last samples alone."""
    cases: dict[str, Callable[[int], tuple[int, bool]]] = {
        "bits to bool": unpacked,
        "masks from runs": drawn,
        "images": normalised,
        "planes to RGB": converted,
        "crops of masks": cropped,
    }
    beyond = BEYOND
    if options.rehearse:
        beyond = 1 << 14
    wrong = []
    for name, case in cases.items():
        try:
            elements, is_same = case(beyond)
            synchronize()
        except Exception as error:
            report(way=name, error=f"{type(error).__name__}: {error}"[:300])
            continue
        report(way=name, elements=elements, same=is_same)
        if not is_same:
            wrong.append(name)
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    if wrong:
        raise SystemExit(f"another result beyond 2**31 elements: {', '.join(wrong)}")


def count_beyond(elements: int, beyond: int) -> int:
    """The samples of so many elements that are more than `beyond`, and some."""
    return beyond // elements + LAST + 1


def unpacked(beyond: int) -> tuple[int, bool]:
    """Bits of 256 x 256 masks."""
    masks = count_beyond(256 * 256, beyond)
    bits = torch.randint(0, 256, (masks, 256, 32), dtype=torch.uint8, device=DEVICE)
    cells = transforms.unpack_bits(bits)
    return cells.numel(), torch.equal(cells[-LAST:], transforms.unpack_bits(bits[-LAST:]))


def drawn(beyond: int) -> tuple[int, bool]:
    """Masks of one sample, from runs, over many cells."""
    side = 1024
    masks = count_beyond(side * side, beyond)
    runs = made_runs(1, masks)
    first = int(runs.run_offset[-LAST - 1])
    height, width = runs.sizes[0].tolist()
    offset = (runs.run_offset[-LAST - 1 :] - first).numpy()
    few = RunBatch.collate([(runs.run_ends[first:].numpy(), offset, height, width)])
    scale = torch.tensor([[width / side] * 2], dtype=torch.float64, device=DEVICE)
    cells = draw_runs(runs.to(DEVICE), scaling(scale), (side, side))
    alone = draw_runs(few.to(DEVICE), scaling(scale), (side, side))
    return cells.numel(), torch.equal(cells[-LAST:], alone)


def normalised(beyond: int) -> tuple[int, bool]:
    """Images of a pipeline without steps: bfloat16 (B, 3, H, W)."""
    side = 1024
    layout = Layout(image_size=side, mask_size=256)
    samples = count_beyond(3 * side * side, beyond)
    ds = SimpleNamespace(
        layout=layout, mask_size=256, mask_sampling="area",
        options=SimpleNamespace(coordinates="source"),
    )  # fmt: skip
    pipeline = transforms.Pipeline(ds, dtype=torch.bfloat16)
    keys = ("images", "mask_counts", "image_ids", "sizes")
    one = made_batch(1, 1, DEVICE, layout)
    batch = {key: one[key].expand(samples, *one[key].shape[1:]).contiguous() for key in keys}
    batch["image_ids"] = torch.arange(samples)
    shown = batch["images"][:, : int(one["sizes"][0, 2])]  # the rest is padding
    shown.random_(0, 256)
    few = {key: value[-LAST:].clone() for key, value in batch.items()}
    images = pipeline(as_sent(batch, DEVICE))["images"]
    return images.numel(), torch.equal(images[-LAST:], pipeline(as_sent(few, DEVICE))["images"])


def converted(beyond: int) -> tuple[int, bool]:
    """Planes of 1024 x 1024 to RGB."""
    side = 1024
    samples = count_beyond(3 * side * side, beyond)
    planes = torch.randint(0, 256, (samples, side * 3 // 2, side), dtype=torch.uint8, device=DEVICE)
    stored = torch.full((samples, 2), side, dtype=torch.int32, device=DEVICE)
    pixels = transforms.yuv420_to_rgb(planes, stored)
    few = transforms.yuv420_to_rgb(planes[-LAST:].clone(), stored[-LAST:])
    return pixels.numel(), torch.equal(pixels[-LAST:], few)


def cropped(beyond: int) -> tuple[int, bool]:
    """Crops of 256 x 256 around the masks of a few images."""
    side, samples = 256, 4
    masks = count_beyond(3 * side * side, beyond) // samples + 1
    layout = Layout(image_size=side, mask_size=64)
    ds = SimpleNamespace(
        layout=layout, mask_size=64, mask_sampling="area",
        options=SimpleNamespace(coordinates="source"),
    )  # fmt: skip
    pipeline = transforms.Pipeline(ds)
    batch = made_batch(samples, masks, DEVICE, layout)
    batch["bboxes"][..., 2:] += 200.0  # in source pixels
    many = transforms.mask_crops(pipeline(as_sent(batch, DEVICE)), size=side)
    of_masks = ("masks", "bboxes", "point_coords", "areas")
    few = {key: value[:, -LAST:] if key in of_masks else value for key, value in batch.items()}
    few["mask_counts"] = torch.full((samples,), LAST)
    few = transforms.mask_crops(pipeline(as_sent(few, DEVICE)), size=side)
    return many.images.numel(), torch.equal(many.images[-LAST:], few.images[-LAST:])
