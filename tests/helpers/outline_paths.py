"""What a path of SVG covers that has horizontal and vertical lines alone."""

import re

import numpy as np


def filled(path: str, height: int, width: int) -> np.ndarray:
    """bool (height, width): the pixels to whose left a path has an odd number of vertical edges."""
    crossings = np.zeros((height, width + 1), np.int64)
    for part in path.split("M")[1:]:
        assert re.fullmatch(r"\d+ \d+(h-?\d+v-?\d+)+z", part), part
        x, y = first = tuple(map(int, re.match(r"(\d+) (\d+)", part).groups()))
        for across, down in re.findall(r"h(-?\d+)v(-?\d+)", part):
            assert across != "0" != down
            x, before, y = x + int(across), y, y + int(down)
            crossings[min(before, y) : max(before, y), x] += 1
        assert (x, y) == first
    return np.cumsum(crossings, axis=1)[:, :width] % 2 == 1
