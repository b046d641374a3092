"""Tars whose records lack numbers of masks, and what a pack of them lacks."""

import json
from collections.abc import Iterable

from small_tars import Members

# Number of a mask that a pack may lack → its key in an annotation, and in samples and batches.
JSON_KEYS = {
    "predicted_iou": "predicted_iou",
    "stability_score": "stability_score",
    "point_coords": "point_coords",
    "crop_box": "crop_box",
    "annotation_id": "id",
}
SAMPLE_KEYS = {
    "predicted_iou": "predicted_ious",
    "stability_score": "stability_scores",
    "point_coords": "point_coords",
    "crop_box": "crop_boxes",
    "annotation_id": "annotation_ids",
}
# As the packer writes them, in the order of docs/format.md.
ALL = tuple(JSON_KEYS)
COCO = ALL[:4]


def without(members: Members, absent: Iterable[str]) -> Members:
    """The members with annotations that lack these numbers."""
    keys = [JSON_KEYS[name] for name in absent]
    found = dict(members)
    for name, data in members.items():
        if name.endswith(".json"):
            record = json.loads(data)
            for annotation in record["annotations"]:
                for key in keys:
                    del annotation[key]
            found[name] = json.dumps(record).encode()
    return found
