"""The place of the image: affine maps, one per sample of a batch, and the steps that change it.

The maps place the frame of the image, its boxes and its points on the canvas; flip, scale jitter,
crops, rotation and shear move them there.

A geometric step moves no pixels. It maps a `Frame` to the next one, and the pipeline moves images,
masks, boxes and points with the map of the last frame, each exactly once.

A map takes OUTPUT coordinates to SOURCE coordinates: it tells each output cell where it comes from.
Coordinates are continuous: x to the right, y down, pixel edges at whole numbers, the centre of
pixel i at i + 0.5.

Where images are upright, they cover a rectangle of the canvas, and what is made of them goes axis
by axis. Where they may be rotated or sheared, each pixel or cell is placed by itself, by its
centre, in whole numbers: all devices agree about where it is.

SA-1B's boxes are x, y, w, h with w = xmax - xmin of the outermost pixels, one less than the number
of pixels spanned. Here they become edges, x0, y0, x1, y1 with x1 = xmax + 1, which can be scaled,
mirrored and clipped independently of the pixel size. (Mirroring the original form is one pixel
off.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import radians, sqrt, tan
from typing import Any

import torch

from sa1bpack.arguments import number
from sa1bpack.display import call_text
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks.cells import FRACTION
from sa1bpack.transforms.checks import LEAST, MAX_CANVAS, as_range, check_made, check_sides


@checks_options
class Maps:
    """The attributes of all maps: `linear`, float64 (B, 2, 2), and `offset`, float64 (B, 2)."""

    linear: torch.Tensor
    offset: torch.Tensor

    def of(self, owner: torch.Tensor) -> "Maps":
        """The map of each of T masks.

        Args:
            owner: int64 (T,), sample of each mask.
        """
        return type(self)(*(numbers[owner] for numbers in vars(self).values()))

    def matrix(self) -> torch.Tensor:
        """float64 (B, 2, 3) `M` with [xs, ys] = M @ [x, y, 1]."""
        return torch.cat([self.linear, self.offset[:, :, None]], 2)


@checks_options
@dataclass(frozen=True)
class AxisMaps(Maps):
    """Maps source = scale * output + offset, for x and y of each of B samples.

    Without rotation and shear: any number of such maps can be composed, and everything is resampled
    once, axis by axis.

    Attributes:
        scale: float64 (B, 2), x and y: source pixels per output pixel; negative if mirrored, never
            0.
        offset: float64 (B, 2), x and y in source pixels.

    Examples:
        >>> half = T.AxisMaps(torch.full((1, 2), 2.0).double(), torch.zeros(1, 2).double())
        >>> half.scale.tolist()
        [[2.0, 2.0]]
    """

    scale: torch.Tensor
    offset: torch.Tensor

    @property
    def linear(self) -> torch.Tensor:
        """float64 (B, 2, 2): `scale` on the diagonals."""
        return torch.diag_embed(self.scale)

    def after(self, inner: Maps) -> Maps:
        """The composition: first `inner`, then this map."""
        offset = self.apply(inner.offset)
        if isinstance(inner, AffineMaps):
            return AffineMaps(self.scale[..., None] * inner.linear, offset)
        return AxisMaps(self.scale * inner.scale, offset)

    def inverse(self) -> "AxisMaps":
        """The maps from source to output coordinates."""
        return AxisMaps(1 / self.scale, -self.offset / self.scale)

    def apply(self, points: torch.Tensor) -> torch.Tensor:
        """Map points (B, 2), x and y, one per sample or mask. Returns float64 (B, 2)."""
        return points * self.scale + self.offset

    def centers(self, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Source coordinates of the centres of output columns and rows.

        Returns float64 (B, width), x, and (B, height), y.
        """
        return tuple(
            self.scale[:, axis, None] * cell_centers(count, self.scale.device)
            + self.offset[:, axis, None]
            for axis, count in enumerate((width, height))
        )


@checks_options
@dataclass(frozen=True)
class AffineMaps(Maps):
    """Maps source = linear @ output + offset, for each of B samples: with rotation and shear.

    Operations are sums and products of numbers, not products of matrices: they round in the same
    way on every device.

    Attributes:
        linear: float64 (B, 2, 2), x and y in source pixels per output pixel along x and y.
        offset: float64 (B, 2), x and y in source pixels.

    Examples:
        >>> rotated = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]], dtype=torch.float64)
        >>> maps = T.AffineMaps(rotated, torch.tensor([[100.0, 0.0]], dtype=torch.float64))
        >>> maps.linear.shape, maps.offset.shape
        (torch.Size([1, 2, 2]), torch.Size([1, 2]))
    """

    linear: torch.Tensor
    offset: torch.Tensor

    def after(self, inner: Maps) -> "AffineMaps":
        """The composition: first `inner`, then this map."""
        offset = self.apply(inner.offset)
        if isinstance(inner, AxisMaps):
            return AffineMaps(self.linear * inner.scale[..., None, :], offset)
        products = self.linear[:, :, :, None] * inner.linear[:, None]
        return AffineMaps(products[:, :, 0] + products[:, :, 1], offset)

    def apply(self, points: torch.Tensor) -> torch.Tensor:
        """Map points (B, 2), x and y, one per sample or mask. Returns float64 (B, 2)."""
        moved = self.linear * points[..., None, :]
        return moved[:, :, 0] + moved[:, :, 1] + self.offset

    def inverse(self) -> "AffineMaps":
        """The maps from source to output coordinates."""
        (a, b), (c, d) = (row.unbind(1) for row in self.linear.unbind(1))
        rows = torch.stack([d, -b, -c, a], 1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
        back = AffineMaps(rows, torch.zeros_like(self.offset))
        return AffineMaps(rows, -back.apply(self.offset))


def scaling(scale: torch.Tensor) -> AxisMaps:
    """The map source = scale * output, from float64 (B, 2), x and y."""
    return AxisMaps(scale, torch.zeros_like(scale))


def pair(x: float, y: float, device: torch.device) -> torch.Tensor:
    """float64 (2,) of two numbers. Unlike `torch.tensor`, it does not wait for the device."""
    both = torch.full((2,), x, dtype=torch.float64, device=device)
    both[1:].fill_(y)
    return both


def cell_centers(count: int, device: torch.device) -> torch.Tensor:
    """float64 (count,): 0.5, 1.5, ..."""
    return torch.arange(count, dtype=torch.float64, device=device) + 0.5


_FAR = 2.0**20  # pixels; positions beyond are in no image


@checks_options
@dataclass(frozen=True)
class Frame:
    """The place of the stored images on the canvas.

    Attributes:
        maps: maps from canvas to stored coordinates.
        extent: float64 (B, 2), x and y in canvas pixels: the image covers exactly the part of the
            canvas from the top left corner to here.
        canvas: (height, width) in pixels, the same for all images.
        window: float64 (B, 4), x0, y0, x1, y1 in stored pixels, of images that may be rotated:
            within `extent`, they cover the part of the canvas that shows this window. None if all
            images are upright.

    Examples:
        >>> same = T.AxisMaps(torch.ones(1, 2).double(), torch.zeros(1, 2).double())
        >>> frame = T.Frame(same, torch.tensor([[682.0, 1024.0]]).double(), (1024, 1024))
        >>> frame.canvas, frame.extent.tolist(), frame.window
        ((1024, 1024), [[682.0, 1024.0]], None)
    """

    maps: Maps
    extent: torch.Tensor
    canvas: tuple[int, int]
    window: torch.Tensor | None = None

    @property
    def sides(self) -> torch.Tensor:
        """float64 (2,), x and y: width and height of the canvas."""
        height, width = self.canvas
        return pair(width, height, self.extent.device)

    def covered(self, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """bool (B, width) and (B, height): the columns and rows whose centre the image covers.

        They are those of a grid over the canvas; always the first ones.
        """
        sides = zip(grid[::-1], self.canvas[::-1], strict=True)
        return tuple(
            cell_centers(count, self.extent.device) * (side / count) < self.extent[:, axis, None]
            for axis, (count, side) in enumerate(sides)
        )

    def kept(self, grid: tuple[int, int]) -> torch.Tensor:
        """int64 (B, 2): how many rows and columns of the grid are `covered`."""
        columns, rows = self.covered(grid)
        return torch.stack([rows.sum(1), columns.sum(1)], 1)

    def step(self, maps: Maps, extent: torch.Tensor) -> "Frame":
        """The next frame.

        Args:
            maps: maps from its canvas to the canvas of this frame.
            extent: extent of the images in the next frame, see Frame.

        Raises:
            OptionError: it is the second step that may rotate: what the first one left would not be
                a window of the stored image.
        """
        window = self.window
        if isinstance(maps, AffineMaps):
            if window is not None:
                raise OptionError("two steps rotate or shear: only one may; RandomAffine does both")
            ends = self.maps.apply(torch.zeros_like(self.extent)), self.maps.apply(self.extent)
            window = torch.cat([torch.minimum(*ends), torch.maximum(*ends)], 1)
        return Frame(self.maps.after(maps), extent, self.canvas, window)

    def visible(self, grid: tuple[int, int]) -> torch.Tensor:
        """bool (B, height, width): the cells of a grid whose centre shows the image.

        The grid lies over the canvas. For any frame.
        """
        columns, rows = self.covered(grid)
        shown = rows[:, :, None] & columns[:, None, :]
        if self.window is None:
            return shown
        height, width = grid
        x, y = positions(self.steps(grid), (0, height), width)
        x0, y0, x1, y1 = self.edges()[:, :, None, None].unbind(1)
        return shown & (x >= x0) & (x < x1) & (y >= y0) & (y < y1)

    def steps(self, grid: tuple[int, int]) -> torch.Tensor:
        """int64 (B, 2, 3), see `positions`: of the centres of cells, in stored pixels."""
        height, width = grid
        to_canvas = scaling(self.sides / pair(width, height, self.extent.device))
        return fixed_steps(self.maps.after(to_canvas))

    def edges(self) -> torch.Tensor:
        """int64 (B, 4): the window, in units of 2**-FRACTION stored pixels."""
        return _fixed(self.window.clamp(-_FAR, _FAR))


@checks_options
def image_region(
    batch: Mapping[str, Any], size: int | tuple[int, int] | None = None
) -> torch.Tensor:
    """The cells of a grid over the canvas that show the image, for losses without the padding.

    Args:
        batch: a batch that a `Pipeline` returned.
        size: size of the grid: its side or (height, width) in cells, up to 16384. None: the pixels
            of the canvas.

    Returns:
        bool (B, h, w), made on the batch's device without waiting for it: the centre of the cell
        shows the image. That is a rectangle at the top left of `input_sizes`, of which a rotation
        or shear leaves the corners empty, and what it cuts off.

    Raises:
        OptionError: the batch is not a Pipeline's, or the size is invalid.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = T.Pipeline(ds, [T.RandomHorizontalFlip()])(next(iter(loader)))
        >>> batch["input_sizes"].tolist(), T.image_region(batch, 64).sum((1, 2)).tolist()
        ([[1024.0, 682.0], [693.0, 1024.0]], [2752, 2752])
    """
    check_made(batch, ("images", "input_sizes", "input_to_source"))
    canvas = tuple(batch["images"].shape[-2:])
    matrices = batch["input_to_source"]
    maps = AffineMaps(matrices[:, :, :2], matrices[:, :, 2])
    frame = Frame(maps, batch["input_sizes"].flip(1), canvas, batch.get("source_window"))
    return frame.visible(canvas if size is None else check_sides("size", size, MAX_CANVAS))


def places(frame: Frame, grid: tuple[int, int]) -> torch.Tensor:
    """int64 (B, 12), of images that may be rotated: where cells are, and which show the image.

    The cells are those of a grid over the canvas; the numbers are the frame's `kept`, `steps` and
    `edges`.
    """
    return torch.cat([frame.kept(grid), frame.steps(grid).flatten(1), frame.edges()], 1)


def fit_frame(sizes: torch.Tensor, canvas: tuple[int, int]) -> Frame:
    """The first frame: complete images, as large as possible, in the top left corner.

    Args:
        sizes: (B, 4), pixels: source height and width, stored height and width.
        canvas: (height, width) in pixels.
    """
    stored = sizes[:, 2:].flip(1).double()
    sides = pair(canvas[1], canvas[0], stored.device)
    scale = (sides / stored).amin(1, keepdim=True)  # canvas pixels per stored pixel
    return Frame(scaling((1 / scale).expand(-1, 2)), stored * scale, canvas)


def stored_to_source(sizes: torch.Tensor) -> AxisMaps:
    """The maps from stored to source coordinates.

    Args:
        sizes: see `fit_frame`.
    """
    sizes = sizes.double()
    return scaling((sizes[:, :2] / sizes[:, 2:]).flip(1))


def source_to_grid(sizes: torch.Tensor, cells: int, fit: str) -> AxisMaps:
    """The maps from source coordinates to cells of a stored mask grid, see docs/format.md.

    Args:
        sizes: see `fit_frame`.
        cells: side of the grid in cells.
        fit: fit of the pack.
    """
    source = sizes[:, :2].flip(1).double()
    if fit != "squash":
        source = source.amax(1, keepdim=True).expand(-1, 2)
    return scaling(cells / source)


def fixed_steps(maps: AffineMaps, points: int = 1) -> torch.Tensor:
    """The places of the centres of cells in the source, in whole numbers.

    Args:
        maps: maps from cells to source pixels.
        points: sample points along each side of a cell, in place of its centre.

    Returns:
        int64 (B, 2, 3) in units of 2**-FRACTION pixels, see `positions`; arbitrary numbers for maps
        that reach too far or are not finite.
    """
    offset = maps.offset + (maps.linear[:, :, 0] + maps.linear[:, :, 1]) * (0.5 / points)
    offset = offset.nan_to_num(_FAR).clamp(-_FAR, _FAR)
    linear = (maps.linear / points).nan_to_num(0.0).clamp(-_FAR, _FAR)
    return torch.cat([_fixed(linear), _fixed(offset)[:, :, None]], 2)


def positions(
    steps: torch.Tensor, rows: tuple[int, int], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The x and y of cells, in units of 2**-FRACTION pixels.

    Args:
        steps: int64 (B, 2, 3): the position of cell (i, j) is [..., 0] j + [..., 1] i + [..., 2].
        rows: the first row, and the one after the last.
        width: number of columns.

    Returns:
        Two int64 (B, rows, width) arrays, x and y.
    """
    j = torch.arange(width, device=steps.device)
    i = torch.arange(*rows, device=steps.device)[:, None]
    across, down, first = steps[..., None, None].unbind(2)
    return tuple((across * j + (down * i + first)).unbind(1))


def _fixed(value: torch.Tensor) -> torch.Tensor:
    """Finite float64 of at most 2**30 as int64 in units of 2**-FRACTION, rounded to even."""
    return (value * 2.0**FRACTION).round().long()


def place_annotations(
    small: Mapping[str, torch.Tensor], owner: torch.Tensor, frame: Frame, coordinates: str
) -> dict[str, torch.Tensor]:
    """The boxes and points of a batch on the canvas.

    Args:
        small: `sizes` of the batch, see `fit_frame`, and `bboxes` and `point_coords` if it has
            them.
        owner: int64 (T,), sample of each mask.
        frame: frame of the images.
        coordinates: coordinates of the dataset: "source" or "stored".

    Returns:
        boxes_xyxy: float64 (T, 4), if there are boxes: upright boxes around the moved ones, clipped
            to the image (one that is outside has no width or no height).
        point_coords: float64 (T, 2), if there are points.
        point_inside: bool (T,), with them: the point is on the part of the canvas that the image
            covers.
    """
    found = {}
    to_canvas = frame.maps.inverse().of(owner)
    sizes = small["sizes"].double()
    limit = frame.extent[owner]
    scale = (sizes[:, 2:] / sizes[:, :2]).flip(1)[owner]  # stored pixels per source pixel
    pixel = torch.ones_like(scale)
    to_stored = scale
    if coordinates == "stored":
        pixel, to_stored = scale, pixel
    if "bboxes" in small:
        corner, extent = small["bboxes"].reshape(-1, 4).double().split(2, 1)
        first = corner * to_stored
        last = (corner + extent + pixel) * to_stored
        corners = [to_canvas.apply(first), to_canvas.apply(last)]
        if isinstance(to_canvas, AffineMaps):  # the other two corners may be outermost
            for x, y in ((last, first), (first, last)):
                corners.append(to_canvas.apply(torch.stack([x[:, 0], y[:, 1]], 1)))
        ends = torch.stack(corners)
        edges = [torch.minimum(end.clamp(min=0), limit) for end in (ends.amin(0), ends.amax(0))]
        found["boxes_xyxy"] = torch.cat(edges, 1)
    if "point_coords" in small:
        stored = small["point_coords"].reshape(-1, 2) * to_stored
        points = found["point_coords"] = to_canvas.apply(stored)
        inside = (points >= 0) & (points < limit)
        if frame.window is not None:
            low, high = frame.window[owner].split(2, 1)
            inside &= (stored >= low) & (stored < high)
        found["point_inside"] = inside.all(1)
    return found


# ------------------------------------------------------------------------------------------- steps

Uniform = Callable[[int], torch.Tensor]

CROP_ATTEMPTS = 10  # as in torchvision


@checks_options
class GeometricStep:
    """A step from one frame to the next; the base class for custom steps.

    Attributes:
        shrinks: the largest factor by which the step may reduce an image; 1 for never.

    Examples:
        >>> issubclass(T.RandomHorizontalFlip, T.GeometricStep), T.RandomHorizontalFlip.shrinks
        (True, 1.0)
    """

    shrinks = 1.0

    def __repr__(self) -> str:
        return call_text(self)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The next frame.

        uniform(n), to be called once, returns float64 (B, n) in [0, 1) that depend on the seed, the
        epoch, the image and the position of the step in the pipeline; on the device of the frame,
        which for a batch of a Loader is the CPU, wherever its images are.
        """
        raise NotImplementedError


@checks_options
class RandomHorizontalFlip(GeometricStep):
    """Mirror left and right; padding stays to the right of and below the image.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip()], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, p: float = 0.5):
        """
        Args:
            p: probability per image.

        Raises:
            OptionError: `p` is not from 0 to 1.
        """
        self.p = number("p", p, 0, 1)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with some images mirrored."""
        flips = uniform(1) < self.p  # (B, 1)
        scale = torch.ones_like(frame.extent)
        scale[:, :1] = torch.where(flips, -1.0, 1.0)
        offset = torch.zeros_like(frame.extent)
        offset[:, :1] = torch.where(flips, frame.extent[:, :1], 0.0)
        return frame.step(AxisMaps(scale, offset), frame.extent)


@checks_options
class ScaleJitter(GeometricStep):
    """Scale, then crop randomly where the image is too large and pad where it is too small.

    The scale is uniform in a range; 1 keeps the image at the size that fits the canvas. 0.1 to 2 is
    the large-scale jittering of Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation
    Method for Instance Segmentation" (2021), with crop and padding as in Detectron2's
    `FixedSizeCrop`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.ScaleJitter(0.5, 2.0)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, low: float = 0.1, high: float = 2.0):
        """
        Args:
            low, high: range of the scale.

        Raises:
            OptionError: not 1e-6 <= low <= high <= 1e6.
        """
        self.low, self.high = as_range("(low, high)", (low, high), LEAST, 1 / LEAST)
        self.shrinks = max(1.0, 1 / self.low)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with images scaled, cropped and padded."""
        drawn = uniform(3)
        scale = self.low + (self.high - self.low) * drawn[:, :1]
        extent = frame.extent * scale
        offset = drawn[:, 1:] * (extent - frame.sides).clamp(min=0)
        maps = AxisMaps((1 / scale).expand(-1, 2), offset / scale)
        return frame.step(maps, torch.minimum(extent, frame.sides))


@checks_options(area="scale, as in torchvision")
class RandomResizedCrop(GeometricStep):
    """Cut out a rectangle and stretch it over the full canvas.

    Area and aspect ratio are drawn as in torchvision's `RandomResizedCrop` (Szegedy et al., "Going
    Deeper with Convolutions", 2015): area uniform, ratio log-uniform, ten attempts, and after them
    the largest rectangle with an allowed ratio. Unlike there, the rectangle is not rounded to whole
    pixels. `scale` and `ratio` refer to the part of the canvas that the image covers, before
    stretching.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomResizedCrop(scale=(0.25, 1.0))], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(
        self, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ):
        """
        Args:
            scale: range of the rectangle's fraction of the area of the image, 0 < low <= high <= 1.
            ratio: range of width / height, 0 < low <= high, both finite.

        Raises:
            OptionError: an invalid range.
        """
        self.scale = as_range("scale", scale, LEAST, 1)
        self.ratio = as_range("ratio", ratio, LEAST, 1 / LEAST)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame of the rectangles."""
        drawn = uniform(2 * CROP_ATTEMPTS + 2)
        sides = self._sides(frame.extent, drawn[:, 2:].view(len(drawn), CROP_ATTEMPTS, 2))
        offset = drawn[:, :2] * (frame.extent - sides)
        maps = AxisMaps(sides / frame.sides, offset)
        return frame.step(maps, frame.sides.expand_as(frame.extent))

    def _sides(self, extent: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """float64 (B, 2): width and height of the rectangles, from numbers (B, attempts, 2)."""
        low, high = self.ratio
        area = self.scale[0] + (self.scale[1] - self.scale[0]) * drawn[..., 0]
        ratio = low * (high / low) ** drawn[..., 1]
        whole = extent.prod(1, keepdim=True)
        tried = torch.stack([area * whole * ratio, area * whole / ratio], 2).sqrt()
        fits = (tried <= extent[:, None]).all(2)
        first = fits.byte().argmax(1)
        found = tried[torch.arange(len(tried), device=tried.device), first]
        width, height = extent.unbind(1)
        largest = torch.minimum(width, height * high), torch.minimum(height, width / low)
        return torch.where(fits.any(1, keepdim=True), found, torch.stack(largest, 1))


@checks_options
class CenterCrop(GeometricStep):
    """Cut out the middle and enlarge it to the canvas, for evaluation: nothing is random.

    The part has the aspect ratio of the canvas. With `fraction` 1 it is as large as fits the image:
    on a square canvas, the shorter side of the image becomes that of the canvas. A smaller fraction
    leaves out more on all sides: resizing the shorter side to 256 and cropping 224 x 224 pixels is
    `CenterCrop(224 / 256)` with `size=224`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.CenterCrop()], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, fraction: float = 1.0):
        """
        Args:
            fraction: fraction of the sides of the largest part.

        Raises:
            OptionError: not 0 < fraction <= 1.
        """
        self.fraction = number("fraction", fraction, LEAST, 1)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame of the middle."""
        scale = (frame.extent / frame.sides).amin(1, keepdim=True) * self.fraction
        offset = (frame.extent - scale * frame.sides) / 2
        whole = frame.sides.expand_as(frame.extent)
        return frame.step(AxisMaps(scale.expand(-1, 2), offset), whole)


@checks_options
class RandomAffine(GeometricStep):
    """Shear and rotate by random angles around the middle of the image.

    As in torchvision's `RandomAffine`, the rectangle that the image covered remains: what leaves it
    is cut off, and its empty corners are zero, as padding is. A pipeline may have one such step.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomAffine(degrees=15, shear=5)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(
        self, degrees: float | tuple[float, float] = 0.0, shear: float | tuple[float, float] = 0.0
    ):
        """
        Args:
            degrees: angle of the rotation, clockwise: a number of 0 to 180, for an angle uniform
                from -degrees to degrees; or a range (low, high) of -180 to 180.
            shear: angle of vertical lines in degrees, clockwise before the rotation: a number of 0
                to 60 or a range of -60 to 60.

        Raises:
            OptionError: a value that is out of range.
        """
        self.degrees = as_range("degrees", degrees, -180, 180, around=0)
        self.shear = as_range("shear", shear, -60, 60, around=0)
        steepest = max(abs(tan(radians(angle))) for angle in self.shear)
        # The norm of [[1, t], [0, 1]]: what it reduces most.
        self.shrinks = (steepest + sqrt(steepest**2 + 4)) / 2

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with images sheared and rotated."""
        drawn = uniform(2)
        angle, shear = (
            torch.deg2rad(low + (high - low) * drawn[:, k])
            for k, (low, high) in enumerate((self.degrees, self.shear))
        )
        # On the canvas, y down, an image is sheared by [[1, -t], [0, 1]] and then rotated by
        # [[c, -s], [s, c]]; its pixels come from the inverse.
        c = angle.cos()
        s = angle.sin()
        t = shear.tan()
        linear = torch.stack([c - t * s, s + t * c, -s, c], 1).view(-1, 2, 2)
        middle = frame.extent / 2
        rotated = AffineMaps(linear, torch.zeros_like(middle)).apply(middle)
        return frame.step(AffineMaps(linear, middle - rotated), frame.extent)
