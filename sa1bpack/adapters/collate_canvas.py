"""Images of samples on the canvas of a batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sa1bpack.dataset.sample_spec import RGB_ON_CANVAS, YUV_ON_CANVAS, ImageSpec
from sa1bpack.errors import OptionError
from sa1bpack.format.layout import half
from sa1bpack.loading.batch.put import put_image


def canvas_shape(image: np.ndarray, sides: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the canvas for an image without one: (h, w, 3), or the bytes (n,) of its planes.

    Args:
        image: the image.
        sides: height and width of the canvas in pixels.
    """
    height, width = sides
    if image.ndim == 3:
        return (height, width, 3)
    return (height * 3 // 2, width)


def put_on_canvas(
    sample: Mapping[str, Any], image: np.ndarray, canvas: np.ndarray, sides: tuple[int, int]
) -> None:
    """Copy an image to the top left of a canvas, with these sides in pixels, and zero the rest."""
    planes = image.ndim == 1
    canvas_height, canvas_width = sides
    if planes:
        height, width = sample["size"][2:].tolist()
        chroma = half(height) * half(width)
    else:
        height, width = image.shape[:2]
        chroma = height * width
    # What is put there is copied unchecked.
    fits = image.dtype == canvas.dtype == np.uint8 and image.size == height * width + 2 * chroma
    fits = fits and canvas.shape == canvas_shape(image, sides)
    fits = fits and not (planes and (canvas_height % 2 or canvas_width % 2))
    if not fits or not (1 <= height <= canvas_height and 1 <= width <= canvas_width):
        raise OptionError(
            f"{name_of(sample)}: image is {image.dtype} {image.shape}, which does not fit a canvas "
            f"of {canvas.dtype} {canvas.shape}; a transform must keep it uint8 and not enlarge it, "
            "and planes need an even canvas"
        )
    how = YUV_ON_CANVAS if planes else RGB_ON_CANVAS
    stored = np.ascontiguousarray(image).reshape(-1)
    address = stored.__array_interface__["data"][0]
    put_image(
        how,
        address,
        height,
        width,
        width,
        height,
        canvas_height,
        canvas_width,
        canvas.reshape(-1),
    )


def cut_canvas(image: np.ndarray, spec: ImageSpec, sides: tuple[int, int], out: np.ndarray) -> None:
    """Copy the top left of a stored canvas to a smaller one with these sides in pixels."""
    height, width = sides
    if spec.pixels == "rgb":
        out[...] = image[:height, :width]
        return
    stored_height, stored_width = spec.canvas
    out[:height] = image[:height, :width]
    chroma = image[stored_height:].reshape(2, stored_height // 2, stored_width // 2)
    out[height:].reshape(2, height // 2, width // 2)[...] = chroma[:, : height // 2, : width // 2]


def name_of(sample: Mapping[str, Any]) -> str:
    """What a sample is called in messages: its file name and its image id."""
    return f"{sample.get('file_name', 'a sample')} (image_id {sample.get('image_id')})"
