"""A sample as a record of detectron2, for its mappers and those of Semantic-SAM, GLEE and others.

Nothing of detectron2 is imported: a record is a dict of numbers, arrays and text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sa1bpack.adapters.instances import instances_of
from sa1bpack.keywords import checks_options

# `BoxMode.XYXY_ABS` of detectron2.
_XYXY_ABS = 0


@checks_options
def record(
    sample: Mapping[str, Any], classes: Sequence[int] | np.ndarray | None = None
) -> dict[str, Any]:
    """The record that `DatasetCatalog` and mappers of detectron2 expect ("standard dataset dict").

    It has `file_name`, `image_id`, `height`, `width` and `annotations`: `bbox` with `bbox_mode`
    XYXY_ABS, `segmentation` as compressed runs, for `INPUT.MASK_FORMAT = "bitmask"`, `category_id`,
    `iscrowd`, and `id` if the pack has ids of masks. All are in pixels of the image in the pack
    without padding, h x w, which the record has under `image`, uint8 (h, w, 3), RGB: a mapper takes
    it in place of `read_image`.

    Args:
        sample: of a dataset with runs and RGB: `sa1bpack.open(pack, mask_format="runs",
            pixels="rgb")`.
        classes: int (m,), the category of each mask from 0 on. None: 0 for all, as SA-1B has none.

    Raises:
        OptionError: it is no such sample, or `classes` does not fit its masks.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs", pixels="rgb")
        >>> from sa1bpack.adapters import detectron2
        >>> record = detectron2.record(ds[0])
        >>> record["image"].shape == (record["height"], record["width"], 3)
        True
    """
    instances = instances_of(sample)
    annotations = instances.records(classes, box="bbox", mask="segmentation", label="category_id")
    for number, annotation in enumerate(annotations):
        annotation["bbox_mode"] = _XYXY_ABS
        annotation["iscrowd"] = 0
        if "annotation_ids" in sample:
            annotation["id"] = int(sample["annotation_ids"][number])
    height, width = instances.size
    return {
        "file_name": sample["file_name"],
        "image_id": sample["image_id"],
        "height": height,
        "width": width,
        "image": instances.image,
        "annotations": annotations,
    }
