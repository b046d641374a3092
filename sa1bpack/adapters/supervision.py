"""A sample as `Detections` of Roboflow's supervision, for its annotators, filters and metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import supervision

from sa1bpack.adapters.instances import classes_of, instances_of
from sa1bpack.keywords import checks_options


@checks_options
def detections(
    sample: Mapping[str, Any], classes: Sequence[int] | np.ndarray | None = None
) -> supervision.Detections:
    """The masks of a sample, at the size of the image in the pack without padding, h x w.

    `xyxy` is float32 (m, 4) and `mask` bool (m, h, w); `confidence` is the predicted IoU,
    `class_id` the class, and `data` has `annotation_id` and `stability_score`; of a pack that lacks
    one of these numbers, `confidence` is None and `data` lacks it. The image to draw on is the
    sample's without padding, `sample["image"][:h, :w]`.

    Args:
        sample: of a dataset with runs and RGB: `sa1bpack.open(pack, mask_format="runs",
            pixels="rgb")`.
        classes: int (m,), the class of each mask. None: 0 for all, as SA-1B has none.

    Raises:
        OptionError: it is no such sample, or `classes` does not fit its masks.
    """
    instances = instances_of(sample)
    confidence = None
    if "predicted_ious" in sample:
        confidence = sample["predicted_ious"].astype(np.float32)
    data: dict[str, Any] = {}
    for name, key in (("annotation_id", "annotation_ids"), ("stability_score", "stability_scores")):
        if key in sample:
            data[name] = sample[key].copy()
    return supervision.Detections(
        xyxy=instances.boxes,
        mask=instances.masks(),
        confidence=confidence,
        class_id=np.array(classes_of(classes, len(instances)), np.int64),
        data=data,
    )
