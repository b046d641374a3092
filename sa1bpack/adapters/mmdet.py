"""A sample as the `results` of MMDetection's transforms.

Nothing of mmdet is imported: `results` is a dict of numbers, arrays and text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sa1bpack.adapters.instances import instances_of
from sa1bpack.keywords import checks_options


@checks_options
def results(
    sample: Mapping[str, Any], classes: Sequence[int] | np.ndarray | None = None
) -> dict[str, Any]:
    """The dict that MMDetection 3 hands from transform to transform, with the image loaded.

    It stands where `LoadImageFromFile` has ended: a pipeline begins with
    `LoadAnnotations(with_bbox=True, with_mask=True)`. `img` is uint8 (h, w, 3), BGR as mmdet loads
    it, of the image in the pack without padding; `instances` has `bbox` (x0, y0, x1, y1),
    `bbox_label`, `mask` as compressed runs and `ignore_flag`, in pixels of that image.

    Args:
        sample: of a dataset with runs and RGB: `sa1bpack.open(pack, mask_format="runs",
            pixels="rgb")`.
        classes: int (m,), the label of each mask from 0 on. None: 0 for all, as SA-1B has none.

    Raises:
        OptionError: it is no such sample, or `classes` does not fit its masks.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs", pixels="rgb")
        >>> from sa1bpack.adapters import mmdet
        >>> results = mmdet.results(ds[0])
        >>> results["img"].shape[:2] == results["img_shape"]
        True
    """
    instances = instances_of(sample)
    listed = instances.records(classes, box="bbox", mask="mask", label="bbox_label")
    for instance in listed:
        instance["ignore_flag"] = 0
    height, width = instances.size
    return {
        "img": np.ascontiguousarray(instances.image[..., ::-1]),
        "img_id": sample["image_id"],
        "img_path": sample["file_name"],
        "img_shape": (height, width),
        "ori_shape": (height, width),
        "height": height,
        "width": width,
        "instances": listed,
    }
