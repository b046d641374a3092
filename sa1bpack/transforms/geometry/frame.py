"""The place of the image on the canvas."""

from dataclasses import dataclass

import torch

from sa1bpack.transforms.geometry.affine import AxisMaps, cell_centers, pair, scaling


@dataclass(frozen=True)
class Frame:
    """How the stored images lie on the canvas.

    maps    from canvas to stored coordinates
    extent  float64 (B, 2), x and y in canvas pixels: the image covers exactly the part of the
            canvas from the top left corner to here
    canvas  (height, width) in pixels, the same for all images
    """

    maps: AxisMaps
    extent: torch.Tensor
    canvas: tuple[int, int]

    @property
    def sides(self) -> torch.Tensor:
        """float64 (2,), x and y: width and height of the canvas."""
        height, width = self.canvas
        return pair(width, height, self.extent.device)

    def covered(self, grid: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """bool (B, width) and (B, height): the columns and rows of a grid over the canvas whose
        centre the image covers; always the first ones."""
        height, width = grid
        return tuple(
            cell_centers(count, self.extent.device) * (side / count) < self.extent[:, axis, None]
            for axis, (count, side) in enumerate(
                zip((width, height), self.canvas[::-1], strict=True)
            )
        )

    def kept(self, grid: tuple[int, int]) -> torch.Tensor:
        """int64 (B, 2): how many rows and columns that is."""
        columns, rows = self.covered(grid)
        return torch.stack([rows.sum(1), columns.sum(1)], 1)

    def step(self, maps: AxisMaps, extent: torch.Tensor) -> "Frame":
        """The next frame. maps: from its canvas to this one's."""
        return Frame(self.maps.after(maps), extent, self.canvas)


def fit_frame(sizes: torch.Tensor, canvas: tuple[int, int]) -> Frame:
    """The first frame: complete images, as large as possible, in the top left corner.

    sizes   (B, 4), pixels: source height and width, stored height and width
    canvas  (height, width)
    """
    stored = sizes[:, 2:].flip(1).double()
    sides = pair(canvas[1], canvas[0], stored.device)
    scale = (sides / stored).amin(1, keepdim=True)  # canvas pixels per stored pixel
    return Frame(scaling((1 / scale).expand(-1, 2)), stored * scale, canvas)


def stored_to_source(sizes: torch.Tensor) -> AxisMaps:
    """From stored to source coordinates. sizes: see `fit_frame`."""
    sizes = sizes.double()
    return scaling((sizes[:, :2] / sizes[:, 2:]).flip(1))


def source_to_grid(sizes: torch.Tensor, cells: int, fit: str) -> AxisMaps:
    """From source coordinates to cells of a stored mask grid, by the rule of docs/format.md.

    sizes  see `fit_frame`
    cells  side of the grid
    fit    of the pack
    """
    source = sizes[:, :2].flip(1).double()
    if fit != "squash":
        source = source.amax(1, keepdim=True).expand(-1, 2)
    return scaling(cells / source)
