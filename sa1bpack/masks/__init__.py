"""Masks: COCO run-length text ↔ run ends → packed bits ↔ bool; their choice; their relations.

::

    counts text --parse_counts--> run ends --rasterize----> packed bits --unpack_bits--> bool
                <--encode_counts-     |   --draw_window-->              <--pack_bits---
    polygons    --polygon_runs->      +-----draw_points--> prompts
    counts      --counts_runs-->
    image       --drawn_runs--->

`relate` computes how the masks of an image relate, from their runs or from bits.

None of these steps creates a full-size mask.
"""

from sa1bpack.lazy import names_of

# Imported on first use: code that draws nothing needs no compiled kernel.
__all__, __getattr__, __dir__ = names_of(__name__)
