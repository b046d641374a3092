"""Where masks, boxes and points are drawn, compared with arithmetic in fractions; tables."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_oracle import decode, runs_of
from pycocotools import mask as mask_utils

from sa1bpack.export.drawing import drawn, fitted
from sa1bpack.export.large import as_tree
from sa1bpack.export.look import OPACITY
from sa1bpack.export.painting import ExactShapes, id_colours
from sa1bpack.export.subject import Subject
from sa1bpack.masks import pack_bits, relate_bits

NOWHERE = 1e9  # of a box or a point that must not be visible


def subject(
    masks: np.ndarray, source: tuple[int, int], fit: str = "pad", **changed: np.ndarray
) -> Subject:
    """A sample of bool (m, G, G) masks, in order of area, with boxes and points out of view."""
    count = len(masks)
    height, width = source
    rgb = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    sample = {
        "image": rgb, "size": np.array([height, width] * 2), "areas": np.arange(count, 0, -1) * 100,
        "masks": np.packbits(masks, axis=2, bitorder="little"),
        "bboxes": np.full((count, 4), np.nan), "point_coords": np.full((count, 2), NOWHERE),
    }  # fmt: skip
    return Subject(sample | changed, count, fit=fit)


def plain(sample: Subject, height: int, width: int):
    """The picture without masks, boxes and points."""
    return drawn(subject(np.zeros((0, 16, 16), bool), sample.rgb.shape[:2]), height, width)


def colour_of(number: int, count: int) -> np.ndarray:
    """The colour of one of several masks, int (3,): that of its outline."""
    masks = np.zeros((count, 16, 16), bool)
    masks[number] = True
    return np.array(drawn(subject(masks, (1, 1)), 1, 1).getpixel((0, 0)))


def cell_of(pixel: int, pixels: int, side: int, longer: int, grid: int) -> int:
    """The cell under the centre of a pixel, as docs/format.md defines cells."""
    source = (pixel + Fraction(1, 2)) * side / pixels
    return int(source / Fraction(longer, grid))


@settings(max_examples=25)
@given(
    source=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    screen=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    fit=st.sampled_from(["pad", "squash", "native"]),
    seed=st.integers(0, 1000),
)
def test_a_cell_of_the_picture_is_in_the_mask_of_the_bit_under_its_centre(
    source, screen, fit, seed
):
    grid = 16
    masks = np.random.default_rng(seed).random((1, grid, grid)) < 0.5
    longer = max(source)
    rows, columns = (
        [cell_of(at, screen[axis], source[axis], source[axis] if fit == "squash" else longer, grid)
         for at in range(screen[axis])]
        for axis in (0, 1)
    )  # fmt: skip
    top, left, inside = subject(masks, source, fit).shapes.on(*screen, 0)
    found = np.zeros(screen, bool)
    found[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
    assert np.array_equal(found, masks[0][np.ix_(rows, columns)])


def neighbours_inside(mask: np.ndarray) -> np.ndarray:
    """bool (h, w): the pixels whose four neighbours are in the mask."""
    around = np.pad(mask, 1)
    return around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]


def test_an_outline_of_runs_lies_on_the_border_of_the_decoded_mask():
    height = 60
    width = 90
    y, x = np.mgrid[:height, :width] + 0.5
    disc = (x - 40) ** 2 + (y - 30) ** 2 < 24**2
    record = mask_utils.encode(np.asfortranarray(disc.astype(np.uint8)))
    decoded = decode(record)
    ends, offset = runs_of([disc])
    bare = subject(np.zeros((1, 16, 16), bool), (height, width))
    sample = replace(bare, exact=ExactShapes(ends, offset, height, width, height, width))
    before = np.asarray(plain(sample, height, width)).astype(float)
    after = np.asarray(drawn(sample, height, width)).astype(float)
    colour = colour_of(0, 1)
    assert (after[~decoded] == before[~decoded]).all()
    border = decoded & ~neighbours_inside(decoded)
    assert border.sum() > 100 and (after[border] == colour).all()
    deep = (x - 40) ** 2 + (y - 30) ** 2 < 20**2
    mixed = before + OPACITY * (colour - before)
    assert np.abs(after - mixed)[deep].max() <= 0.5
    # At a third of the size, a pixel on the border has a colour between those of its two sides.
    small = np.asarray(drawn(sample, 20, 30)).astype(float)
    share = decoded.reshape(20, 3, 30, 3).mean((1, 3))
    before = np.asarray(plain(sample, 20, 30)).astype(float)
    expected = before + share[..., None] * (colour - before)
    partial = (share > 0) & (share < 1)
    assert partial.sum() > 30 and np.abs(small - expected)[partial].max() <= 1


def test_smaller_masks_are_drawn_over_larger_ones_in_any_order():
    masks = np.zeros((2, 16, 16), bool)
    masks[0, 4:12, 4:12] = True
    masks[1] = True
    sample = subject(masks, (64, 64), areas=np.array([100, 2000]))
    pixels = np.asarray(drawn(sample, 64, 64)).astype(int)
    under = np.asarray(plain(sample, 64, 64)).astype(int)
    assert (colour_of(0, 2) != colour_of(1, 2)).any()
    for at, colour in ((32, colour_of(0, 2)), (8, colour_of(1, 2))):
        expected = (1 - OPACITY) * under[at, at] + OPACITY * colour
        assert np.abs(pixels[at, at] - expected).max() <= 1


def test_a_mask_has_the_colour_of_its_id_whatever_other_masks_there_are():
    ids = np.random.default_rng(0).integers(0, 2**40, 50)
    assert np.array_equal(id_colours(ids)[7:9], id_colours(ids[7:9]))
    following = id_colours(np.arange(10**6, 10**6 + 12)).astype(int)
    apart = np.abs(following[:, None] - following).sum(2)
    assert apart[~np.eye(12, dtype=bool)].min() > 40


def test_a_box_covers_the_pixels_from_the_first_to_the_last():
    """w is xmax - xmin: a box of x 10 and w 5 is over the six pixels 10 to 15."""
    box = np.array([[10.0, 20.0, 5.0, 7.0]])
    sample = subject(np.zeros((1, 16, 16), bool), (64, 64), bboxes=box)
    changed = (np.asarray(drawn(sample, 64, 64)) != np.asarray(plain(sample, 64, 64))).any(axis=2)
    expected = np.zeros((64, 64), bool)
    expected[20:28, 10:16] = True
    expected[21:27, 11:15] = False
    assert (changed == expected).mean() > 0.999 and changed[[20, 27]].sum() == 12


def test_points_and_boxes_follow_the_scale_of_the_picture():
    sample = subject(np.zeros((1, 16, 16), bool), (60, 90), point_coords=np.array([[45.0, 30.0]]))
    pixels = np.asarray(drawn(sample, 120, 180))
    assert pixels[60, 90].tolist() == [255, 255, 255]


def test_numbers_that_are_not_finite_draw_nothing():
    masks = np.zeros((2, 16, 16), bool)
    sample = subject(masks, (32, 32), point_coords=np.array([[np.nan, 1.0], [np.inf, 0.0]]))
    assert drawn(sample, 32, 32) == plain(sample, 32, 32)


@settings(max_examples=50)
@given(*[st.integers(1, 3000)] * 2, *[st.integers(50, 1000)] * 2)
def test_a_picture_fits_its_box_and_is_enlarged_by_whole_factors_only(h, w, box_h, box_w):
    height, width = fitted((h, w), box_h, box_w)
    assert 1 <= height <= box_h and 1 <= width <= box_w
    if height > h or width > w:
        assert height % h == width % w == 0 and height // h == width // w
    else:
        assert abs(height - h * width / w) <= 1 + h / w or min(height, width) == 1


def test_enlarged_pixels_are_squares_of_one_colour():
    sample = subject(np.zeros((0, 16, 16), bool), (4, 6))
    pixels = np.asarray(plain(sample, 12, 18))
    assert np.array_equal(pixels, sample.rgb.repeat(3, axis=0).repeat(3, axis=1))


def squares(*corners: tuple[int, int, int]) -> np.ndarray:
    """Bits of squares x, y, side on a grid of 32 x 32 cells."""
    cells = np.zeros((len(corners), 32, 32), bool)
    for mask, (x, y, side) in zip(cells, corners, strict=True):
        mask[y : y + side, x : x + side] = True
    return pack_bits(cells)


def test_children_follow_their_parent_from_large_to_small():
    bits = squares((20, 20, 4), (0, 0, 16), (9, 9, 5), (1, 1, 7), (2, 2, 3), (20, 0, 8))
    shown = np.array([1, 5, 3, 2, 0, 4])  # by size
    expected = [(1, 0, None), (3, 1, 0), (4, 2, 1), (2, 1, 0), (5, 0, None), (0, 0, None)]
    assert as_tree(relate_bits(bits[shown]).parents, shown) == expected
