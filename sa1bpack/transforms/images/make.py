"""The images of a batch, made by whichever way its device has."""

from collections.abc import Sequence

import numpy as np
import torch

from sa1bpack.pixels.resample import Normal, normal
from sa1bpack.transforms import ways
from sa1bpack.transforms.geometry.affine import scaling
from sa1bpack.transforms.geometry.frame import Frame
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.images.color import LUMA, ColorJitter
from sa1bpack.transforms.images.compiled import draw_images, planes_as_rgb, turn_images
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.resample import channels_first, enlarge, resample
from sa1bpack.transforms.images.turn import supports, turn
from sa1bpack.transforms.memory import Memory, Table

_TRITON, _TURNED = "images.sample_images", "turned_images.turn_images"
_COLORS = "colors.adjust_colors"
_UNCHANGED = normal(np.zeros(3, np.float32), np.ones(3, np.float32))


class ImageMaker:
    """Makes the images of batches on one canvas: moved, normalised and cast."""

    def __init__(
        self,
        canvas: tuple[int, int],
        dtype: torch.dtype,
        mean: Sequence[float],
        std: Sequence[float],
        shrinks: float,
        as_stored: bool,
    ):
        """
        canvas     (H, W) in pixels
        dtype      of the results, a floating-point type
        mean, std  of R, G, B in 0 to 255
        shrinks    the largest factor by which an image may be reduced
        as_stored  whether every pixel of the canvas is that of the stored image
        """
        self.canvas, self.dtype = canvas, dtype
        self._shrinks, self._as_stored = shrinks, as_stored
        means, stds = np.array(mean, np.float32), np.array(std, np.float32)
        self._mean, self._std = Table(means), Table(stds)
        self._normal = normal(means, stds)
        self._memory = Memory()

    def __call__(
        self,
        images: torch.Tensor,
        sizes: torch.Tensor,
        frame: Frame,
        colors: Sequence[tuple[ColorJitter, Uniform]],
    ) -> torch.Tensor:
        """`dtype` (B, 3, H, W), normalised, zero outside the images.

        images  of the batch: RGB (B, S, S, 3) or planes (B, S * 3 / 2, S), uint8
        sizes   (B, 4) of the batch
        colors  steps that change colours, each with its random numbers
        """
        compiled = images.device.type in ways.COMPILED_ON
        if compiled and not colors:
            return self._compiled(images, sizes, frame, self._normal).to(self.dtype)
        if compiled:
            made = self._compiled(images, sizes, frame, _UNCHANGED)
        else:
            values, dtype = (_UNCHANGED, torch.float32) if colors else (self._normal, self.dtype)
            made = self._sampled(images, sizes, frame, values, dtype)
            if made is not None and not colors:
                return made
            if made is None:
                made = self._resampled(images, sizes, frame)
        inside = frame.visible(self.canvas)
        if not compiled:
            done = self._jittered(made, inside, colors)
            if done is not None:
                return done
        inside = inside[:, None]
        for step, uniform in colors:
            made = step(made, inside, uniform)
        mean, std = self._mean.on(made.device), self._std.on(made.device)
        return normalize(made, mean, std, inside).to(self.dtype)

    def _jittered(
        self,
        images: torch.Tensor,
        inside: torch.Tensor,
        colors: Sequence[tuple[ColorJitter, Uniform]],
    ) -> torch.Tensor | None:
        """`dtype` (B, 3, H, W), with changed colours, normalised, by a Triton kernel; None where
        there is none. images: float32, 0 to 255, which may be overwritten."""
        if len(colors) != 1 or not ways.uses_triton(images.device, _COLORS):
            return None
        [(step, uniform)] = colors
        kind = self.dtype if self.dtype in ways.FLOATS else torch.float32
        out = images if kind == torch.float32 else torch.empty_like(images, dtype=kind)
        # If the kernel cannot be started, images are as they were.
        done = not out.numel() or ways.launch(
            images.device,
            _COLORS,
            images,
            inside.contiguous(),
            step.factors(uniform),
            step.used,
            LUMA,
            self._normal.mean.tolist(),
            self._normal.std.tolist(),
            out,
        )
        return out.to(self.dtype) if done else None

    def normalization(self, device: torch.device) -> dict[str, torch.Tensor]:
        """`pixel_mean` and `pixel_std` of a batch: float32 (3,) each, R, G, B in 0 to 255."""
        tables = {"pixel_mean": self._mean, "pixel_std": self._std}
        return {name: table.on(device).clone() for name, table in tables.items()}

    def _sampled(
        self,
        images: torch.Tensor,
        sizes: torch.Tensor,
        frame: Frame,
        values: Normal,
        dtype: torch.dtype,
    ) -> torch.Tensor | None:
        """`dtype` (B, 3, H, W), normalised, by a Triton kernel; None where there is none."""
        stored = sizes[:, 2:]
        kernel = _TRITON if frame.window is None else _TURNED
        if not ways.uses_triton(images.device, kernel):
            return None
        if images.dim() == 3:
            images = yuv420_to_rgb(images, stored)
        kind = dtype if dtype in ways.FLOATS else torch.float32
        out = torch.empty((len(images), 3, *self.canvas), dtype=kind, device=images.device)
        if frame.window is None:
            maps = scaling(torch.ones_like(frame.extent)) if self._as_stored else frame.maps
            where = (maps,)
        else:
            where = frame.steps(self.canvas), supports(frame.maps, self._shrinks), frame.edges()
        done = not out.numel() or ways.launch(
            images.device,
            kernel,
            images.contiguous(),
            *where,
            stored,
            frame.kept(self.canvas),
            values.mean.tolist(),
            values.std.tolist(),
            self._shrinks,
            out,
        )
        return out.to(dtype) if done else None

    def _resampled(self, images: torch.Tensor, sizes: torch.Tensor, frame: Frame) -> torch.Tensor:
        """float32 (B, 3, H, W), 0 to 255, in torch operations."""
        if images.dim() == 3:
            images = yuv420_to_rgb(images, sizes[:, 2:])
        if self._as_stored:
            return channels_first(images).float()
        if frame.window is not None:
            steps, support = frame.steps(self.canvas), supports(frame.maps, self._shrinks)
            return turn(images, sizes[:, 2:], steps, support, self.canvas, self._shrinks)
        way = enlarge if self._shrinks <= 1 else resample
        return way(images, frame.maps, sizes[:, 2:].flip(1).double(), self.canvas)

    def _compiled(
        self, images: torch.Tensor, sizes: torch.Tensor, frame: Frame, values: Normal
    ) -> torch.Tensor:
        """float32 (B, 3, H, W) on a CPU, zero outside the image."""
        if images.dim() == 3:
            images = planes_as_rgb(images, sizes[:, 2:])
        out = self._memory.empty((len(images), 3, *self.canvas), torch.float32)
        keep = frame.kept(self.canvas)
        if frame.window is not None:
            support = supports(frame.maps, self._shrinks)
            steps, edges = frame.steps(self.canvas), frame.edges()
            turn_images(images, steps, support, edges, sizes[:, 2:], keep, values, out)
            return out
        maps = scaling(torch.ones_like(frame.extent)) if self._as_stored else frame.maps
        draw_images(images, maps, sizes[:, 2:].flip(1), keep, values, out)
        return out
