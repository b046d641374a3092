"""The names that `sa1bpack/masks/__init__.py` imports on first use."""

from sa1bpack.masks.cells import pack_bits as pack_bits
from sa1bpack.masks.cells import unpack_bits as unpack_bits
from sa1bpack.masks.forms import counts_runs as counts_runs
from sa1bpack.masks.forms import drawn_runs as drawn_runs
from sa1bpack.masks.polygons import polygon_runs as polygon_runs
from sa1bpack.masks.prompts import draw_points as draw_points
from sa1bpack.masks.prompts import jitter_boxes as jitter_boxes
from sa1bpack.masks.raster import rasterize as rasterize
from sa1bpack.masks.relations import LEVELS as LEVELS
from sa1bpack.masks.relations import Relations as Relations
from sa1bpack.masks.relations import relate as relate
from sa1bpack.masks.relations import relate_bits as relate_bits
from sa1bpack.masks.relations import relate_runs as relate_runs
from sa1bpack.masks.rle import encode_counts as encode_counts
from sa1bpack.masks.rle import mask_area as mask_area
from sa1bpack.masks.rle import mask_boxes as mask_boxes
from sa1bpack.masks.rle import parse_counts as parse_counts
from sa1bpack.masks.window import draw_window as draw_window
from sa1bpack.masks.window import window_map as window_map
