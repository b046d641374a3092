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
    "LEVELS": "relations",
    "Relations": "relations",
    "count_pixels": "prompts",
    "draw_points": "prompts",
    "draw_window": "window",
    "encode_counts": "rle",
    "jitter_boxes": "prompts",
    "mask_area": "rle",
    "mask_boxes": "rle",
    "nth_pixels": "prompts",
    "pack_bits": "bits",
    "parse_counts": "rle",
    "rasterize": "raster",
    "relate": "relations",
    "relate_bits": "relations",
    "relate_runs": "relations",
    "unpack_bits": "bits",
    "window_map": "window",
}
# The same for the other packages of sa1bpack only: these may change in any release.
_INTERNAL = {
    "MaskRule": "select",
    "ORDERS": "select",
    "REGIONS": "prompts",
    "RELATIONS": "relations",
    "SAMPLINGS": "raster",
    "check_image_runs": "_arrays",
    "passes": "select",
    "select_masks": "select",
    "take_masks": "rle",
    "thirds_of": "relations",
}

__all__ = [*_MODULES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str):
    module = _MODULES.get(name) or _INTERNAL.get(name)
    if module is not None:
        found = getattr(import_module(f"sa1bpack.masks.{module}"), name)
        globals()[name] = found  # from now on
        return found
    now = ": it is mask_boxes, which returns x0, y0, x1, y1" if name == "mask_bbox" else ""
    raise AttributeError(f"module 'sa1bpack.masks' has no attribute {name!r}{now}")
