"""Masks: COCO run-length text ↔ run ends → packed bits ↔ bool; their choice; their relations.

::

    counts text --parse_counts--> run ends --rasterize----> packed bits --unpack_bits--> bool
                <--encode_counts-     |   --draw_window-->              <--pack_bits---
                                      +-----draw_points--> prompts

`relate` computes how the masks of an image relate, from their runs or from bits.

None of these steps creates a full-size mask.
"""

from sa1bpack.lazy import names_of

# For the other packages of sa1bpack only: these may change in any release.
_INTERNAL = {
    "MaskRule": "sa1bpack.masks.select",
    "REGIONS": "sa1bpack.masks.prompts",
    "RELATIONS": "sa1bpack.masks.relations",
    "SAMPLINGS": "sa1bpack.masks.select",
    "check_image_runs": "sa1bpack.masks.arrays",
    "passes": "sa1bpack.masks.select",
    "ranked": "sa1bpack.masks.select",
    "select_masks": "sa1bpack.masks.select",
    "take_masks": "sa1bpack.masks.rle",
    "thirds_of": "sa1bpack.masks.relations",
}
_RENAMED = {"mask_bbox": "mask_boxes, which returns x0, y0, x1, y1"}

# Imported on first use: code that draws nothing needs no compiled kernel.
__all__, __getattr__, __dir__ = names_of(__name__, _RENAMED, _INTERNAL)
