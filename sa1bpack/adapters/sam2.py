"""A raw dataset for SAM 2's training code, in place of its `SA1BRawDataset`.

Its `VOSDataset` asks a raw dataset for a *video*, here of one frame, and for a *segment loader*,
whose `load` maps the ids of the frame's objects to their masks. It needs no class of theirs, and
nothing of theirs is imported: what they use of one is what is here.

In a configuration of theirs, one line replaces `SA1BRawDataset` and its folders::

    video_dataset: {_target_: sa1bpack.adapters.sam2.RawDataset, pack: /data/packed}
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sa1bpack import masks
from sa1bpack.adapters import opened
from sa1bpack.arguments import number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.mask_numbers import lacks_text
from sa1bpack.masks.rle import take_masks

# `tensor_2_PIL` of their vos_dataset.py multiplies by 255 and drops the fraction: all 256 return.
_UNIT = np.arange(256, dtype=np.float32) / np.float32(255)


@dataclass
class VideoFrame:
    """One frame of a video.

    Attributes:
        frame_idx: number of the frame in the video.
        image_path: name of the image in its tar; no such file exists.
        data: float32 (3, h, w), RGB from 0 to 1, as their `load_images` expects it.
        is_conditioning_only: always False.
    """

    frame_idx: int
    image_path: str
    data: torch.Tensor = field(repr=False)
    is_conditioning_only: bool = False


@dataclass
class Video:
    """An image as a video: its id, as text and as a number, and its frames."""

    video_name: str
    video_id: int
    frames: list[VideoFrame]

    def __len__(self) -> int:
        return len(self.frames)


class Segment:
    """One mask that is not drawn before it is asked for."""

    def __init__(self, segments: "Segments", key: int):
        """Mask `key` of `segments`."""
        self._segments = segments
        self._key = key

    def sum(self) -> int:
        """The area in pixels of the source image, from the pack: nothing is drawn."""
        return int(self._segments.areas[self._key])

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The mask, drawn, and converted as `Tensor.to` does."""
        return self._segments[self._key].to(*args, **kwargs)


class Segments(Mapping[int, Any]):
    """The masks of a frame by object id, 0 to n - 1 in the order of the annotations.

    `segments[k]` draws mask k from its exact runs, uint8 (h, w), once. `keys`, `len` and `in` draw
    nothing, and neither do `items` and `values`, whose `Segment`s know their area: a sampler that
    looks for visible objects by `segment.sum()` need not draw all of them.
    """

    def __init__(self, sample: Mapping[str, Any], chosen: np.ndarray, fit: str, sampling: str):
        """The masks `chosen`, int64 (n,), of a sample with runs; the rest is that of the pack."""
        self._run_ends, self._run_offset = take_masks(
            sample["run_ends"], sample["run_offset"], chosen
        )
        self._size = sample["size"].tolist()
        self._fit = fit
        self._sampling = sampling
        self.areas = sample["areas"][chosen]
        self._drawn: dict[int, torch.Tensor] = {}

    def load(self, frame_idx: int) -> "Segments":
        """The masks of a frame, as their segment loaders have it: the same in all frames."""
        return self

    def __getitem__(self, key: int) -> torch.Tensor:
        if key not in self:
            raise KeyError(key)
        if key not in self._drawn:
            self._drawn[key] = self._draw(key)
        return self._drawn[key]

    def _draw(self, key: int) -> torch.Tensor:
        """uint8 (h, w): one mask."""
        height, width, *size = self._size
        x1 = width
        y1 = height
        if self._fit != "squash":  # one scale for both axes, that of the grid of masks
            cell = max(height, width) / max(size)
            x1 = size[1] * cell
            y1 = size[0] * cell
        first, last = self._run_offset[key : key + 2].tolist()
        bits = masks.draw_window(
            self._run_ends[first:last],
            np.array([0, last - first]),
            height,
            width,
            affine=masks.window_map(0, 0, x1, y1, size),
            size=size,
            sampling=self._sampling,
        )
        cells = masks.unpack_bits(bits, size[1])[0].view(np.uint8)
        return torch.from_numpy(cells)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int | np.integer) and bool(0 <= key < len(self))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.areas)))

    def __len__(self) -> int:
        return len(self.areas)

    def items(self) -> ItemsView[int, Segment]:
        """(object id, Segment) of each mask; see the class."""
        return {key: Segment(self, key) for key in self}.items()

    def values(self) -> ValuesView[Segment]:
        """The Segment of each mask; see the class."""
        return {key: Segment(self, key) for key in self}.values()


@checks_options
class RawDataset:
    """The images of a pack as videos of one frame, with the methods of SAM 2's `VOSRawDataset`.

    Pixels are those of the pack without padding, h x w, such as 683 x 1024 for `fit="pad"` and
    1024 x 1024 for `fit="squash"`; masks are drawn at the same size from the exact runs, and only
    those that the sampler chose. Pickles, and works in worker processes, as a Dataset does.
    """

    def __init__(
        self,
        pack: Any,
        *,
        num_frames: int = 1,
        mask_area_frac_thresh: float = 1.1,
        uncertain_iou: float = -1,
    ):
        """Take the images of a pack.

        Masks without area are left out. If none is left, SAM 2's sampler fails, and training
        continues with another image: leave such images out by `ds.where`.

        Args:
            pack: what `sa1bpack.open` takes, a saved selection included; or a dataset, whose
                selection and thresholds stay. `sa1bpack subset` replaces their lists of files.
            num_frames: frames per video, all of the same image.
            mask_area_frac_thresh: masks that cover at least this fraction of the image are left
                out, as in SAM 2; above 1, none are.
            uncertain_iou: masks with a stability score below this are left out. SAM 2 looks for a
                key of this name, which no file of SA-1B has, and so leaves out none.

        Raises:
            OptionError: a value that cannot be used, a dataset with a transform, a pack without the
                exact runs, or an `uncertain_iou` for masks without stability scores.
        """
        ds = opened(pack)
        if ds.options.transform is not None:
            raise OptionError("the dataset has a transform: SAM 2's own come after this one")
        self._ds = ds.with_options(mask_format="runs", mask_size=None, pixels="rgb")
        self._num_frames = whole_number("num_frames", num_frames, 1)
        self._most = number("mask_area_frac_thresh", mask_area_frac_thresh)
        self._least = number("uncertain_iou", uncertain_iou)
        if self._least >= 0 and "stability_score" in ds.layout.absent:
            raise OptionError(
                f"uncertain_iou is {uncertain_iou}, but "
                f"{lacks_text('stability_score', ds.layout.mask_numbers)}; leave it out"
            )

    def __len__(self) -> int:
        """Images of the dataset."""
        return len(self._ds)

    def get_video(self, idx: int) -> tuple[Video, Segments]:
        """Image `idx` of the dataset, and its masks, which are their own loader.

        Raises IndexError, and ReadError naming the image if it cannot be read.
        """
        sample = self._ds[idx]
        height, width, *stored = sample["size"].tolist()
        areas = sample["areas"]
        passing = areas > 0
        if "stability_scores" in sample:
            passing &= ~(sample["stability_scores"] < self._least)
        if self._most <= 1:
            passing &= areas / (height * width) < self._most
        pixels = sample["image"][: stored[0], : stored[1]].transpose(2, 0, 1)
        data = torch.from_numpy(_UNIT[pixels])
        frames = [VideoFrame(k, sample["file_name"], data) for k in range(self._num_frames)]
        spec = self._ds.spec.masks
        segments = Segments(sample, np.flatnonzero(passing), spec.fit, spec.sampling)
        return Video(str(sample["image_id"]), sample["image_id"], frames), segments

    def __repr__(self) -> str:
        return f"<RawDataset of {self._ds!r}>"
