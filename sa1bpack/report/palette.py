"""Colours of masks: many distinct ones, always the same for the same number."""

import colorsys

import numpy as np

# A golden-ratio step on the hue circle: each new hue falls into one of the widest gaps.
_HUE_STEP = 0.6180339887498949
_FIRST_HUE = 0.58
# Lightness and saturation alternate, so that consecutive colours differ in more than hue.
_SHADES = ((0.62, 0.95), (0.52, 0.85), (0.70, 0.90))


def mask_colours(count: int) -> np.ndarray:
    """uint8 (count, 3): RGB colours; colour k does not depend on `count`."""
    colours = np.empty((count, 3), np.uint8)
    for number in range(count):
        lightness, saturation = _SHADES[number % len(_SHADES)]
        hue = (_FIRST_HUE + number * _HUE_STEP) % 1
        colours[number] = np.rint(255 * np.array(colorsys.hls_to_rgb(hue, lightness, saturation)))
    return colours
