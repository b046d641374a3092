"""Masks: COCO run-length text ↔ run ends → packed bits ↔ bool; their choice; their relations.

::

    counts text --parse_counts--> run ends --rasterize----> packed bits --unpack_bits--> bool
                <--encode_counts-     |   --draw_window-->              <--pack_bits---
                                      +-----draw_points--> prompts

`relate` computes how the masks of an image relate, from their runs or from bits.

None of these steps creates a full-size mask.
"""

from importlib import import_module

# Public name → module, imported on first use: code that draws nothing needs no compiled kernel.
_MODULES = {
    "FITS": "raster",
    "MAX_MASK_SIZE": "grid",
    "LEVELS": "relations.hierarchy",
    "MaskRule": "select",
    "ORDERS": "select",
    "REGIONS": "regions",
    "RELATIONS": "relations.relate",
    "Relations": "relations.relate",
    "SAMPLINGS": "grid",
    "check_image_runs": "_arrays",
    "count_pixels": "regions",
    "draw_points": "prompts",
    "draw_window": "window",
    "encode_counts": "rle",
    "jitter_boxes": "prompts",
    "mask_area": "rle",
    "mask_bbox": "boxes",
    "nth_pixels": "regions",
    "pack_bits": "bits",
    "passes": "select",
    "parse_counts": "rle",
    "rasterize": "raster",
    "relate": "relations.relate",
    "relate_bits": "relations.relate",
    "relate_runs": "relations.relate",
    "select_masks": "select",
    "take_masks": "rle",
    "thirds_of": "relations.hierarchy",
    "unpack_bits": "bits",
    "warm_up": "_warm_up",
    "window_map": "window",
}

__all__ = [*_MODULES]


def __getattr__(name: str):
    if name in _MODULES:
        return getattr(import_module(f"sa1bpack.masks.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'sa1bpack.masks' has no attribute {name!r}")
