"""Wrong arguments are refused by name, and damaged runs with the index of the mask."""

import numpy as np
import pytest
from made_runs import flat_runs
from mask_oracle import number

from sa1bpack import OptionError, masks
from sa1bpack.errors import MaskError
from sa1bpack.masks.rle import take_masks

FLAT = {"run_ends": np.array([480], np.int32), "run_offset": np.array([0, 1])}
RUNS = FLAT | {"height": 20, "width": 24}
KEY = {"ids": np.array([1]), "seed": 0, "epoch": 0}
WINDOW = {"affine": masks.window_map(0, 0, 24, 20, (8, 8)), "size": (8, 8)}
TEXT = {"text": np.frombuffer(b"<", np.uint8), "text_offset": np.array([0, 1]), "pixels": 12}
# Function → arguments that it takes.
CALLS = {
    "rasterize": RUNS | {"mask_size": 16},
    "draw_window": RUNS | WINDOW,
    "draw_points": RUNS | KEY | {"points": 2},
    "jitter_boxes": KEY | {"boxes": np.zeros((1, 4)), "extent": np.full(2, 10.0)},
    "mask_boxes": RUNS,
    "relate_runs": RUNS,
    "mask_area": FLAT,
    "encode_counts": FLAT,
    "take_masks": FLAT | {"keep": np.zeros(1, np.int64)},
    "relate_bits": {"masks": np.zeros((1, 8, 1), np.uint8)},
    "parse_counts": TEXT,
    "polygon_runs": {
        "coordinates": np.zeros(6),
        "polygon_offset": np.array([0, 6]),
        "mask_offset": np.array([0, 1]),
        "height": 20,
        "width": 24,
    },
    "counts_runs": {
        "counts": np.array([480]),
        "counts_offset": np.array([0, 1]),
        "height": 20,
        "width": 24,
    },
    "drawn_runs": {"mask": np.zeros((8, 8), np.uint8)},
    "pack_bits": {"masks": np.zeros((8, 8), bool)},
    "unpack_bits": {"bits": np.zeros((8, 1), np.uint8)},
}
OF_DRAWN_RUNS = [name for name, arguments in CALLS.items() if RUNS.keys() <= arguments.keys()]


@pytest.mark.parametrize(
    "name, option, value, message",
    [
        ("rasterize", "mask_size", 0, "mask_size is 0: choose a whole number from 8 to 4096"),
        ("rasterize", "mask_size", 12, "mask_size is 12: choose a multiple of 8 from 8 to 4096"),
        ("rasterize", "width", -1, "width is -1: choose a whole number of at least 0"),
        ("rasterize", "fit", "crop", "fit is 'crop': choose one of pad, native, squash"),
        ("rasterize", "sampling", "nearest", "sampling is 'nearest': choose one of area, center"),
        ("rasterize", "out", np.empty((1, 16, 3), np.uint8), r"out must be .* \(1, 16, 2\)"),
        ("rasterize", "out", np.empty((1, 16, 4), np.uint8)[:, :, ::2], "out must be writable"),
        ("rasterize", "run_ends", np.array([480]), "run_ends must be int32 .n,., got int64"),
        ("draw_window", "size", (0, 5), r"size\[0\] is 0: choose a whole number from 1 to 4096"),
        ("draw_window", "size", 5, r"size is 5: give \(height, width\), whole numbers from 1"),
        ("draw_window", "height", True, "height is True: choose a whole number"),
        ("draw_window", "affine", np.eye(3), r"float64 \(b, 2, 3\), got float64 \(1, 3, 3\)"),
        ("draw_window", "affine", np.full((2, 3), np.nan), "more than 1048576 source pixels"),
        ("draw_window", "affine", np.eye(3)[:2] * 2**20, "map 0 of 1 places an output of 8x8"),
        ("draw_points", "region", "edge", "region is 'edge': choose one of inside, boundary"),
        ("draw_points", "ids", np.array([1, 2]), r"ids must be int64 \(1,\), .* got int64 \(2,\)"),
        ("draw_points", "ids", [1], r"ids must be int64 \(1,\), .* got a list, no numpy.ndarray"),
        ("draw_points", "boxes", np.zeros((1, 4), "u1"), r"boxes must be int64 or .*, got uint8"),
        ("draw_points", "points", -1, "points is -1: choose a whole number from 0"),
        ("draw_points", "draw", 2**32, "draw is 4294967296: choose a whole number from 0 to"),
        ("jitter_boxes", "boxes", np.zeros((1, 3)), r"\(\.\.\., 4\), got float64 \(1, 3\)"),
        ("jitter_boxes", "boxes", np.zeros((1, 4), "f2"), r"boxes must be float32 or .*float16"),
        ("jitter_boxes", "boxes", np.array([[5, 1.0, 4, 9]]), "^box 0 of 1 .*are x, y, w, h"),
        ("jitter_boxes", "boxes", np.array([[0, 0, np.nan, 1]]), "^box 0 of 1 .*are edges"),
        ("jitter_boxes", "extent", (10.0, 10.0), "^extent must be"),
        ("jitter_boxes", "extent", np.full(3, 10.0), "^extent must be"),
        ("jitter_boxes", "extent", -np.ones(2, int), "^extent must be"),
        ("relate_bits", "share", 0, "share is 0"),
        ("relate_bits", "share", 1.01, "share is 1.01"),
        ("relate_bits", "neighbors", 6, "neighbors is 6"),
        ("relate_bits", "masks", np.zeros((8, 8), bool), "masks must be"),
        ("relate_bits", "masks", [[1]], "masks must be"),
        ("parse_counts", "pixels", 12.0, "pixels is 12.0: choose a whole number of at least 0"),
        ("polygon_runs", "coordinates", np.zeros(6, int), "coordinates must be float64"),
        ("polygon_runs", "polygon_offset", np.array([0, 7]), "polygon_offset must be non-decr"),
        ("polygon_runs", "mask_offset", np.array([0, 2]), "mask_offset must be non-decreasing"),
        ("counts_runs", "counts", np.zeros(1), "counts must be int64"),
        ("counts_runs", "counts_offset", np.array([1, 0]), "counts_offset must be non-decreas"),
        ("drawn_runs", "mask", np.zeros((8, 8)), "mask must be uint8 or bool"),
        ("drawn_runs", "mask", np.zeros(8, np.uint8), "mask must be uint8 or bool"),
        ("pack_bits", "masks", np.zeros((8, 9), bool), "masks must be bool"),
        ("unpack_bits", "bits", np.zeros((8, 1), bool), "bits must be a uint8 array"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(name, option, value, message):
    call = getattr(masks, name)
    call(**CALLS[name])
    with pytest.raises(OptionError, match=message):
        call(**CALLS[name] | {option: value})


@pytest.mark.parametrize("ends", [[], [479], [481], [5, 4, 480], [-1, 480], [480, 7, 480]])
@pytest.mark.parametrize("name", OF_DRAWN_RUNS)
def test_damaged_runs_are_refused_with_the_index_of_the_mask(name, ends):
    run_ends, run_offset = flat_runs([[480], ends])
    given = CALLS[name] | {"run_ends": run_ends, "run_offset": run_offset}
    if name == "draw_points":
        given["ids"] = np.arange(2)
    with pytest.raises(MaskError, match=r"^mask 1 of 2: .*480 pixels") as caught:
        getattr(masks, name)(**given)
    assert caught.value.mask == 1


@pytest.mark.parametrize("size", [(0, 5), (65_536, 1), (1, 65_536), (50_000, 50_000)])
def test_an_image_size_without_masks_is_refused(size):
    height, width = size
    for name in ("rasterize", "draw_window", "draw_points"):
        with pytest.raises(MaskError, match=f"{height}x{width}"):
            getattr(masks, name)(**CALLS[name] | {"height": height, "width": width})
    with pytest.raises(MaskError, match="an image of 0 pixels"):
        masks.parse_counts(**TEXT | {"pixels": 0})


def test_a_sample_without_masks_cannot_be_related():
    with pytest.raises(OptionError, match="neither `masks` nor `run_ends`"):
        masks.relate({"size": [4, 4]})


OFFSETS = [
    [0, 2**63 - 1, -5, 3],  # no difference of adjacent offsets is negative in int64
    [0, 2**62, -(2**62) - 2, 3],
    [0, -(2**63), 3],
    [2, 2**63 - 1, -(2**63), 3],
    [0, 9],
    [-1, 3],
    [2, 1, 3],
]


@pytest.mark.parametrize("offset", OFFSETS)
def test_offsets_that_decrease_or_leave_their_array_are_refused(offset):
    """They would lead a kernel outside its arrays."""
    of_three = {"run_ends": np.array([1, 2, 4], np.int32), "run_offset": np.array(offset)}
    of_three |= {"text": np.frombuffer(b"123", np.uint8), "text_offset": np.array(offset)}
    calls = [masks.rasterize, masks.mask_area, masks.encode_counts, take_masks, masks.parse_counts]
    for call in calls:
        arguments = CALLS[call.__name__]
        with pytest.raises(OptionError, match="_offset must be non-decreasing"):
            call(**{key: of_three.get(key, value) for key, value in arguments.items()})


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**58, -(2**58)])
@pytest.mark.parametrize("repeats", [1, 2, 16, 40])
def test_counts_that_would_overflow_32_or_64_bits_are_refused(value, repeats):
    """Repeated differences add up: the 40th count would be 20 * 2^58, beyond int64."""
    text = np.frombuffer(b"000" + number(value) * repeats, np.uint8)
    with pytest.raises(MaskError, match=r"cover \d+ pixels|are not COCO's counts"):
        masks.parse_counts(text, np.array([0, len(text)]), 2**31 - 2)
