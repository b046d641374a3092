"""The size at which an image is stored, in whole numbers only.

With image H x W and target S, r = S / max(H, W):

======== =========================================================================
pad      floor(H r + 1/2) x floor(W r + 1/2), in the top left of an S x S canvas
squash   S x S, each side scaled by its own factor
native   the size of pad, without the canvas
======== =========================================================================
"""

from sa1bpack.arguments import choice
from sa1bpack.errors import OptionError

FITS = ("pad", "squash", "native")


def stored_size(height: int, width: int, image_size: int, fit: str) -> tuple[int, int]:
    """Return (height, width) in pixels of the stored image, without any padding.

    `height` and `width` are those of the source image, `image_size` is S. The longer side of a
    `pad` or `native` image becomes exactly S, the shorter one at least 1; images smaller than S are
    enlarged. floor(H S / M + 1/2) is computed as (2 H S + M) // 2 M, with M = max(H, W), to avoid
    floating-point rounding.

    Raises OptionError for a size below 1 or an unknown `fit`.
    """
    if min(height, width, image_size) < 1:
        raise OptionError(
            f"height, width and image_size must be at least 1, not {height}, {width}, {image_size}"
        )
    if fit == "squash":
        return image_size, image_size
    choice("fit", fit, FITS)
    longer = max(height, width)

    def scaled(side: int) -> int:
        return max(1, (2 * side * image_size + longer) // (2 * longer))

    return scaled(height), scaled(width)
