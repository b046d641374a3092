"""A sample as detectors see one: the photograph without padding, and its masks at that size.

The masks are drawn from the exact runs, and boxes enclose the runs. So neither is as coarse as the
pack's grid, and both fit the pixels of the image edge to edge, whatever fit the pack has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as coco_masks

from sa1bpack import masks
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief


@dataclass(frozen=True)
class Instances:
    """The image of a sample and its masks, at one size: h x w pixels, without padding.

    Attributes:
        image: uint8 (h, w, 3), RGB, a view of the sample's.
        boxes: float32 (m, 4): x0, y0, x1, y1 around each mask, as edges in pixels of the image: x1
            is the right edge of the last pixel. Zeros for a mask without foreground.
        bits: uint8 (m, h, ceil(w / 8)), the masks as packed bits, the first pixel the lowest bit.
    """

    image: np.ndarray
    boxes: np.ndarray
    bits: np.ndarray

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the image in pixels."""
        return self.image.shape[0], self.image.shape[1]

    def mask(self, number: int) -> np.ndarray:
        """bool (h, w): one mask."""
        mask: np.ndarray = self._unpacked(self.bits[number : number + 1])[0]
        return mask

    def masks(self) -> np.ndarray:
        """bool (m, h, w): all masks."""
        return self._unpacked(self.bits)

    def _unpacked(self, bits: np.ndarray) -> np.ndarray:
        cells: np.ndarray = masks.unpack_bits(bits, self.size[1]).view(bool)
        return cells

    def encoded(self, number: int) -> dict[str, Any]:
        """One mask as COCO's compressed runs: `size`, [h, w], and `counts`, a str."""
        encoded = coco_masks.encode(np.asfortranarray(self.mask(number).view(np.uint8)))
        return {"size": list(self.size), "counts": encoded["counts"].decode("ascii")}

    def records(
        self, classes: Sequence[int] | np.ndarray | None, *, box: str, mask: str, label: str
    ) -> list[dict[str, Any]]:
        """A dict for each mask, with its box, its compressed runs and its class under these keys.

        Args:
            classes: as for `classes_of`.
            box, mask, label: the keys.
        """
        records = []
        for number, of_mask in enumerate(classes_of(classes, len(self))):
            records.append(
                {box: self.boxes[number].tolist(), mask: self.encoded(number), label: of_mask}
            )
        return records


def instances_of(sample: Mapping[str, Any]) -> Instances:
    """The image and the masks of a sample.

    Args:
        sample: of a dataset with runs and RGB: `sa1bpack.open(pack, mask_format="runs",
            pixels="rgb")`.

    Raises:
        OptionError: it is no sample, or has no runs, or planes in place of RGB.
    """
    remedy = 'open the pack with mask_format="runs", pixels="rgb"'
    if not isinstance(sample, Mapping) or "image" not in sample:
        raise OptionError(f"sample is {brief(sample)}: pass a sample of a dataset, such as ds[0]")
    if "run_ends" not in sample:
        raise OptionError(f"the sample has no runs, from which masks are drawn: {remedy}")
    if sample["image"].ndim != 3 or sample["image"].shape[-1] != 3:
        raise OptionError(f"the image is not RGB (h, w, 3), but {sample['image'].shape}: {remedy}")
    height, width, stored_height, stored_width = sample["size"].tolist()
    size = (stored_height, stored_width)
    bits = masks.draw_window(
        sample["run_ends"],
        sample["run_offset"],
        height,
        width,
        affine=masks.window_map(0, 0, width, height, size),
        size=size,
    )
    edges = masks.mask_boxes(sample["run_ends"], sample["run_offset"], height, width)
    scale = np.array([stored_width / width, stored_height / height] * 2)
    return Instances(
        image=sample["image"][:stored_height, :stored_width],
        boxes=(edges * scale).astype(np.float32),
        bits=bits,
    )


def classes_of(classes: Sequence[int] | np.ndarray | None, count: int) -> list[int]:
    """The class of each mask as ints: 0 where none are given.

    Raises OptionError unless there is one for each of the `count` masks.
    """
    if classes is None:
        return [0] * count
    numbers = np.asarray(classes)
    if numbers.shape != (count,) or not (np.issubdtype(numbers.dtype, np.integer) or not count):
        raise OptionError(
            f"classes is {brief(classes)}: choose a whole number for each of the {count} masks, "
            "such as a feature with a row per mask"
        )
    listed: list[int] = numbers.astype(np.int64).tolist()
    return listed
