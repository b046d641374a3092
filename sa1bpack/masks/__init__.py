"""Masks: COCO run-length text ↔ run ends → packed bits ↔ bool; their choice; their relations.

::

    counts text --parse_counts--> run ends --rasterize----> packed bits --unpack_bits--> bool
                <--encode_counts-     |   --draw_window-->              <--pack_bits---
                                      +-----draw_points--> prompts

`relate` computes how the masks of an image relate, from their runs or from bits.

None of these steps creates a full-size mask.
"""

from sa1bpack.lazy import names_of

# Public name → module, imported on first use: code that draws nothing needs no compiled kernel.
_MODULES = {
    "LEVELS": "sa1bpack.masks.relations",
    "Relations": "sa1bpack.masks.relations",
    "count_pixels": "sa1bpack.masks.prompts",
    "draw_points": "sa1bpack.masks.prompts",
    "draw_window": "sa1bpack.masks.window",
    "encode_counts": "sa1bpack.masks.rle",
    "jitter_boxes": "sa1bpack.masks.prompts",
    "mask_area": "sa1bpack.masks.rle",
    "mask_boxes": "sa1bpack.masks.rle",
    "nth_pixels": "sa1bpack.masks.prompts",
    "pack_bits": "sa1bpack.masks.cells",
    "parse_counts": "sa1bpack.masks.rle",
    "rasterize": "sa1bpack.masks.raster",
    "relate": "sa1bpack.masks.relations",
    "relate_bits": "sa1bpack.masks.relations",
    "relate_runs": "sa1bpack.masks.relations",
    "unpack_bits": "sa1bpack.masks.cells",
    "window_map": "sa1bpack.masks.window",
}
# The same for the other packages of sa1bpack only: these may change in any release.
_INTERNAL = {
    "MaskRule": "sa1bpack.masks.select",
    "REGIONS": "sa1bpack.masks.prompts",
    "RELATIONS": "sa1bpack.masks.relations",
    "SAMPLINGS": "sa1bpack.masks.raster",
    "check_image_runs": "sa1bpack.masks.arrays",
    "passes": "sa1bpack.masks.select",
    "select_masks": "sa1bpack.masks.select",
    "take_masks": "sa1bpack.masks.rle",
    "thirds_of": "sa1bpack.masks.relations",
}
_RENAMED = {"mask_bbox": "mask_boxes, which returns x0, y0, x1, y1"}

__all__ = [*_MODULES]
__getattr__, __dir__ = names_of(__name__, _MODULES | _INTERNAL, _RENAMED)
