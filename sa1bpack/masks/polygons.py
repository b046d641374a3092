"""Polygons to run ends, as pycocotools draws them.

A polygon is drawn by the rule of pycocotools (maskApi.c, rleFrPoly): its corners are rounded to
fifths of a pixel, its outline is walked in steps of a fifth along the longer side of each segment,
and wherever the walk passes the centre line of a column of pixels, the mask changes from the pixel
there on, down the column. So two neighbours that share an outline share no pixel, and what lies
outside the image is cut off. Several polygons of one mask are joined.

In fifths of a pixel, the centre line of column c is between 5 c + 2 and 5 c + 3. Two neighbouring
points of the walk with these x cross it at the height of the upper one, y, and the first pixel
below has the row ceil((y - 2) / 5). Only these points are computed here, from the same numbers: a
segment and its reverse have the same ones, those from its lower end.
"""

import numpy as np

from sa1bpack.errors import MaskError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import checked_pieces, mask_error
from sa1bpack.masks.raster import check_image

# Pixels from the image's corner; pycocotools overflows far beyond it.
MAX_COORDINATE = 2**24
# Of outlines with centre lines of columns, in all polygons of an image.
MAX_CROSSINGS = 2**26
_PARTS = 5  # of a pixel
_FEW = 16  # crossings in a column, so few that each is put in its place among those before it


@njit
def _fifths(value: float) -> np.int64:
    """A coordinate in fifths of a pixel, rounded as C does it: towards zero, after adding 1/2."""
    return np.int64(_PARTS * value + 0.5)


@njit
def _most_crossings(
    coordinates: np.ndarray, polygon_offset: np.ndarray, mask_offset: np.ndarray, widths: np.ndarray
) -> np.int64:
    """The most crossings of centre lines that the outlines of the polygons of masks can have."""
    crossings = np.int64(0)
    for m in range(len(mask_offset) - 1):
        for polygon in range(mask_offset[m], mask_offset[m + 1]):
            first = polygon_offset[polygon]
            corners = (polygon_offset[polygon + 1] - first) // 2
            for corner in range(corners):
                corner_at = first + 2 * corner
                next_at = first + 2 * ((corner + 1) % corners)
                dx = abs(_fifths(coordinates[corner_at]) - _fifths(coordinates[next_at]))
                crossings += min(widths[m], dx // _PARTS + 1)
    return crossings


@njit
def _crossings_of(
    coordinates: np.ndarray, height: np.int64, width: np.int64, crossings: np.ndarray
) -> np.int64:
    """Write where the outline of a polygon crosses centre lines; returns how often it does.

    A crossing is the column-major position of the first pixel below it.
    """
    count = np.int64(0)
    corners = len(coordinates) // 2
    for corner in range(corners):
        following = (corner + 1) % corners
        x0 = _fifths(coordinates[2 * corner])
        y0 = _fifths(coordinates[2 * corner + 1])
        x1 = _fifths(coordinates[2 * following])
        y1 = _fifths(coordinates[2 * following + 1])
        dx = abs(x1 - x0)
        dy = abs(y1 - y0)
        along_x = dx >= dy
        if (along_x and x0 > x1) or (not along_x and y0 > y1):
            x0, x1 = x1, x0
            y0, y1 = y1, y0
        if dx == 0:
            continue
        slope = (y1 - y0) / dx if along_x else (x1 - x0) / dy
        first_column = (max(min(x0, x1), np.int64(0)) + 2) // _PARTS
        last_column = min((max(x0, x1) - 3) // _PARTS, width - 1)
        for column in range(first_column, last_column + 1):
            line = _PARTS * column + 2
            if along_x:
                t = line - x0
                y = min(
                    np.int64(y0 + slope * t + 0.5),
                    np.int64(y0 + slope * (t + 1) + 0.5),
                )
            else:
                # The first point beyond the line is close to this one.
                t = min(max(np.int64((line + 0.5 - x0) / slope), np.int64(0)), dy)
                if slope > 0:
                    while t > 0 and np.int64(x0 + slope * (t - 1) + 0.5) > line:
                        t -= 1
                    while t < dy and np.int64(x0 + slope * t + 0.5) <= line:
                        t += 1
                else:
                    while t > 0 and np.int64(x0 + slope * (t - 1) + 0.5) <= line:
                        t -= 1
                    while t < dy and np.int64(x0 + slope * t + 0.5) > line:
                        t += 1
                y = y0 + t - 1
            row = -((2 - y) // _PARTS)
            row = min(max(row, np.int64(0)), height)
            crossings[count] = column * height + row
            count += 1
    return count


@njit
def _sort_by_column(
    crossings: np.ndarray, height: np.int64, ends: np.ndarray, in_order: np.ndarray
) -> None:
    """Sort the crossings of an outline, a few of which are in each column.

    Args:
        crossings: int32 (n,), column-major positions; at least one.
        height: pixels in a column.
        ends: int32, working memory for two columns more than the image has.
        in_order: int32 (n,), takes them in their order.
    """
    first_column = np.int64(crossings.min()) // height
    columns = np.int64(crossings.max()) // height - first_column + 1
    ends[: columns + 1] = 0
    for crossing in crossings:
        ends[np.int64(crossing) // height - first_column + 1] += 1
    for column in range(columns):
        ends[column + 1] += ends[column]
    for crossing in crossings:  # until it is their end, it is where the next one of a column goes
        its_column = np.int64(crossing) // height - first_column
        in_order[ends[its_column]] = crossing
        ends[its_column] += 1
    begin = 0
    for column in range(columns):
        end = ends[column]
        if end - begin > _FEW:
            in_order[begin:end].sort()
        else:
            for k in range(begin + 1, end):
                crossing = in_order[k]
                while k > begin and in_order[k - 1] > crossing:
                    in_order[k] = in_order[k - 1]
                    k -= 1
                in_order[k] = crossing
        begin = end


@njit
def _runs_between(crossings: np.ndarray, pixels: int, run_ends: np.ndarray) -> np.int64:
    """Write the run ends of a mask that changes at sorted crossings; returns their number.

    Two crossings at one pixel cancel each other. The run ends may take the place of the crossings.
    """
    runs = np.int64(0)
    k = 0
    while k < len(crossings):
        if k + 1 < len(crossings) and crossings[k] == crossings[k + 1]:
            k += 2
            continue
        if crossings[k] == pixels:
            break
        run_ends[runs] = crossings[k]
        runs += 1
        k += 1
    run_ends[runs] = pixels
    return runs + 1


@njit
def _join(begins: np.ndarray, ends: np.ndarray, pixels: int, run_ends: np.ndarray) -> np.int64:
    """Write the run ends of the union of foreground runs; returns their number.

    `begins` and `ends` of all runs are sorted, each for itself.
    """
    runs = np.int64(0)
    depth = 0
    b = 0
    e = 0
    while e < len(ends):
        if b < len(begins) and begins[b] <= ends[e]:
            if depth == 0:
                run_ends[runs] = begins[b]
                runs += 1
            depth += 1
            b += 1
        else:
            depth -= 1
            if depth == 0:
                run_ends[runs] = ends[e]
                runs += 1
            e += 1
    if runs == 0 or run_ends[runs - 1] != pixels:
        run_ends[runs] = pixels
        runs += 1
    return runs


@njit
def _draw_polygons(
    coordinates: np.ndarray,
    polygon_offset: np.ndarray,
    mask_offset: np.ndarray,
    heights: np.ndarray,
    widths: np.ndarray,
    crossings: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    run_ends: np.ndarray,
    run_offset: np.ndarray,
) -> None:
    """Write the run ends of all masks; `crossings`, `begins` and `ends` are working memory."""
    run_offset[0] = 0
    column_ends = np.empty(widths.max() + 2 if len(widths) else 0, np.int32)
    for m in range(len(mask_offset) - 1):
        pixels = heights[m] * widths[m]
        of_mask = run_ends[run_offset[m] :]
        runs = np.int64(0)
        foreground = np.int64(0)
        polygons = mask_offset[m + 1] - mask_offset[m]
        for polygon in range(mask_offset[m], mask_offset[m + 1]):
            corners = coordinates[polygon_offset[polygon] : polygon_offset[polygon + 1]]
            count = _crossings_of(corners, heights[m], widths[m], crossings)
            if count:
                _sort_by_column(crossings[:count], heights[m], column_ends, of_mask[:count])
            runs = _runs_between(of_mask[:count], pixels, of_mask)
            if polygons > 1:
                for k in range(1, runs, 2):
                    begins[foreground] = of_mask[k - 1]
                    ends[foreground] = of_mask[k]
                    foreground += 1
        if polygons != 1:
            begins[:foreground].sort()
            ends[:foreground].sort()
            runs = _join(begins[:foreground], ends[:foreground], pixels, of_mask)
        run_offset[m + 1] = run_offset[m] + runs


@checks_options
def polygon_runs(
    coordinates: np.ndarray,
    polygon_offset: np.ndarray,
    mask_offset: np.ndarray,
    height: int,
    width: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the polygons of n masks, bit for bit as pycocotools does (frPyObjects, then merge).

    Args:
        coordinates: float64 (c,), x and y of the corners in source pixels, polygon after polygon.
            The pixel in the top left corner covers 0 to 1. Of an odd number of coordinates, the
            last one is not used. A polygon of fewer than three corners covers no pixel.
        polygon_offset: int64 (q + 1,), polygon p is
            ``coordinates[polygon_offset[p]:polygon_offset[p + 1]]``.
        mask_offset: int64 (n + 1,), mask m is the union of the polygons ``mask_offset[m]`` to
            ``mask_offset[m + 1] - 1``; of none, it has no pixel.
        height, width: size of the source image in pixels.

    Returns:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).

    Raises:
        MaskError: a coordinate is not finite or beyond `MAX_COORDINATE`: the error's `mask` is
            then the index of the mask; or the outlines cross more than `MAX_CROSSINGS` columns.
        OptionError: an array has the wrong dtype, or offsets do not fit.

    Examples:
        >>> square = np.array([1.0, 1, 3, 1, 3, 3, 1, 3])
        >>> one = np.array([0, 1])
        >>> sa1bpack.masks.polygon_runs(square, np.array([0, 8]), one, height=4, width=4)
        (array([ 5,  7,  9, 11, 16], dtype=int32), array([0, 5]))
    """
    height, width = check_image(height, width)
    masks = max(np.size(mask_offset) - 1, 0)
    return polygon_runs_of_images(
        coordinates,
        polygon_offset,
        mask_offset,
        np.full(masks, height, np.int64),
        np.full(masks, width, np.int64),
    )


def polygon_runs_of_images(
    coordinates: np.ndarray,
    polygon_offset: np.ndarray,
    mask_offset: np.ndarray,
    heights: np.ndarray,
    widths: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """`polygon_runs` of masks of several images.

    Args:
        heights, widths: int64 (n,), size of the source image of each mask, which is checked.
    """
    coordinates, polygon_offset = checked_pieces(
        ("coordinates", "polygon_offset"), coordinates, np.float64, polygon_offset
    )
    _, mask_offset = checked_pieces(
        ("polygon_offset", "mask_offset"), polygon_offset[1:], np.int64, mask_offset
    )
    masks = len(mask_offset) - 1
    # Written so that NaN is outside, too.
    outside = np.flatnonzero(~(np.abs(coordinates) <= MAX_COORDINATE))
    if outside.size:
        polygon = np.searchsorted(polygon_offset, outside[0], side="right") - 1
        mask = int(np.searchsorted(mask_offset, polygon, side="right")) - 1
        raise mask_error(
            mask,
            masks,
            f"a polygon has the coordinate {coordinates[outside[0]]}, and the limit is "
            f"{MAX_COORDINATE} pixels on either side; correct or remove the annotation",
        )
    most_crossings = _most_crossings(coordinates, polygon_offset, mask_offset, widths)
    if most_crossings > MAX_CROSSINGS:
        raise MaskError(
            f"the outlines of the polygons of {masks} masks cross columns up to {most_crossings} "
            f"times, and the limit is {MAX_CROSSINGS}; remove polygons"
        )
    most_runs = int(most_crossings) + len(polygon_offset) + masks
    run_ends = np.empty(most_runs, np.int32)
    run_offset = np.empty(masks + 1, np.int64)
    crossings = np.empty(most_crossings, np.int32)
    begins = np.empty(most_runs, np.int32)
    ends = np.empty(most_runs, np.int32)
    _draw_polygons(
        coordinates,
        polygon_offset,
        mask_offset,
        heights,
        widths,
        crossings,
        begins,
        ends,
        run_ends,
        run_offset,
    )
    return run_ends[: run_offset[-1]].copy(), run_offset
