"""A sample of FiftyOne, to look at in its app."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fiftyone
import numpy as np
from PIL import Image

from sa1bpack.adapters.instances import Instances, instances_of
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.keywords import checks_options
from sa1bpack.paths import exists
from sa1bpack.wording import brief

# Field of a detection → key of a sample.
_NUMBERS = {
    "confidence": "predicted_ious",
    "annotation_id": "annotation_ids",
    "stability_score": "stability_scores",
    "area": "areas",
}


@checks_options
def sample(
    item: Mapping[str, Any],
    filepath: str | Path,
    *,
    field: str = "ground_truth",
    labels: Sequence[str] | None = None,
) -> fiftyone.Sample:
    """A FiftyOne sample with the masks of an item as detections, each cropped to its box.

    FiftyOne shows files, and a pack has none: the image is written to `filepath`, without padding,
    unless that exists; then it must have the same size. A detection has the predicted IoU as its
    `confidence`, and `annotation_id`, `stability_score` and `area` in source pixels; of a pack that
    lacks one of these numbers, it has none.

    Args:
        item: sample of a dataset with runs and RGB: `sa1bpack.open(pack, mask_format="runs",
            pixels="rgb")`.
        filepath: file of the image, with the suffix of a format that PIL writes; its folder exists.
        field: field of the FiftyOne sample that the detections are in.
        labels: text (m,), the label of each mask. None: "object" for all, as SA-1B has none.

    Raises:
        OptionError: it is no such sample, `labels` does not fit its masks, or PIL does not know the
            suffix.
        OutputRefused: the file exists and is no image of that size.
        OSError: it cannot be written.
    """
    instances = instances_of(item)
    if labels is None:
        labels = ["object"] * len(instances)
    if len(labels) != len(instances):
        raise OptionError(
            f"labels is {brief(labels)}: choose a label for each of the {len(instances)} masks"
        )
    path = Path(filepath)
    _write_image(path, instances)
    detections = []
    for number, label in enumerate(labels):
        detection = _detection(instances, number, str(label))
        for name, key in _NUMBERS.items():
            if key in item:
                detection[name] = item[key][number].item()
        detections.append(detection)
    shown = fiftyone.Sample(filepath=str(path))
    shown["image_id"] = item["image_id"]
    shown["file_name"] = item["file_name"]
    shown[field] = fiftyone.Detections(detections=detections)
    return shown


def _detection(instances: Instances, number: int, label: str) -> fiftyone.Detection:
    """The detection of one mask; without a mask where the image has no pixel of it."""
    height, width = instances.size
    mask = instances.mask(number)
    rows = np.flatnonzero(mask.any(axis=1))
    columns = np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        x0, y0, x1, y1 = instances.boxes[number].tolist()
        box = [x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height]
        return fiftyone.Detection(label=label, bounding_box=box)
    top = int(rows[0])
    bottom = int(rows[-1]) + 1
    left = int(columns[0])
    right = int(columns[-1]) + 1
    box = [left / width, top / height, (right - left) / width, (bottom - top) / height]
    cropped = np.ascontiguousarray(mask[top:bottom, left:right])
    return fiftyone.Detection(label=label, bounding_box=box, mask=cropped)


def _write_image(path: Path, instances: Instances) -> None:
    """Write the image, unless the file exists. Raises OutputRefused if that has another size."""
    height, width = instances.size
    if not exists(path):
        try:
            Image.fromarray(np.ascontiguousarray(instances.image)).save(path)
        except ValueError as error:  # PIL's, of a suffix that it does not know
            raise OptionError(f"filepath is {str(path)!r}: {error}; choose .png or .jpg") from None
        return
    try:
        with Image.open(path) as existing:
            size = existing.size
    except OSError as error:
        raise OutputRefused(f"{path}: {error}; name another file") from None
    if size != (width, height):
        raise OutputRefused(
            f"{path}: is {size[0]} x {size[1]} pixels, and the image of the pack {width} x "
            f"{height}; name another file"
        )
