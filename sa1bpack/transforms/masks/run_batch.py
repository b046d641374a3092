"""The exact runs of the masks of a batch; and arguments for making masks on a grid over the canvas.

Masks are made from runs or from grids; compiled kernels, Triton kernels and torch operations take
the same arguments.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.transforms.checks import Sides
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.maps import AffineMaps, AxisMaps, Maps, pair
from sa1bpack.wording import counted

# Of one image: run_ends int32, run_offset int64, height, width.
ImageRuns = tuple[np.ndarray, np.ndarray, int, int]


@checks_options
@dataclass(frozen=True)
class RunBatch:
    """The runs of T masks of B samples; all tensors but `host_offset` are on one device.

    Attributes:
        run_ends: int32 (R,), runs of all masks, concatenated: column-major source pixels where runs
            end, background first, the last one H·W.
        run_offset: int64 (T + 1,), mask t has the ends run_offset[t] to run_offset[t + 1]; the
            first offset is 0; a mask without ends is padding, and background.
        mask_offset: int64 (B + 1,), sample b has the masks mask_offset[b] to mask_offset[b + 1].
        sizes: int64 (B, 2), source height and width.
        host_offset: int64 (T + 1,), run_offset on the CPU, so that nothing waits for the device.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> runs.run_ends.dtype, len(runs.run_offset) - 1, runs.sizes.shape
        (torch.int32, 180, torch.Size([2, 2]))
    """

    run_ends: Tensor
    run_offset: Tensor
    mask_offset: Tensor
    sizes: Tensor
    host_offset: Tensor

    def __repr__(self) -> str:
        masks = len(self.run_offset) - 1
        samples = len(self.sizes)
        ends = f"{len(self.run_ends):,} run ends on {self.run_ends.device}"
        return f"<RunBatch: {counted(masks, 'mask')} of {counted(samples, 'sample')}, {ends}>"

    @classmethod
    def collate(cls, samples: Sequence[ImageRuns]) -> "RunBatch":
        """Join samples (run_ends int32, run_offset int64, height, width), on the CPU.

        The offsets of a sample may be a slice of a larger array.

        Raises:
            MaskError: a mask's run ends decrease or do not end with its image's pixels.
            OptionError: an array has the wrong dtype or the offsets do not fit the runs.
        """
        ends = []
        offsets = [np.zeros(1, np.int64)]
        counts = [0]
        total = 0
        for run_ends, run_offset, height, width in samples:
            run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
            ends.append(run_ends[run_offset[0] : run_offset[-1]])
            offsets.append(run_offset[1:] - run_offset[0] + total)
            counts.append(len(run_offset) - 1)
            total += len(ends[-1])
        sizes = np.array([sample[2:] for sample in samples], np.int64).reshape(-1, 2)
        offset = torch.from_numpy(np.concatenate(offsets))
        return cls(
            run_ends=torch.from_numpy(np.concatenate([np.empty(0, np.int32), *ends])),
            run_offset=offset,
            mask_offset=torch.from_numpy(np.cumsum(counts)),
            sizes=torch.from_numpy(sizes),
            host_offset=offset,
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "RunBatch":
        """The runs on a device: a copy, or themselves if they are there."""
        return self._moved(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: str | None = None) -> "RunBatch":
        """A copy in pinned memory; a DataLoader with `pin_memory` calls this."""
        return self._moved(Tensor.pin_memory)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> "RunBatch":
        """The runs with all tensors moved but the host's; themselves if no tensor has changed."""
        tensors = {key: value for key, value in vars(self).items() if key != "host_offset"}
        moved = {key: move(tensor) for key, tensor in tensors.items()}
        if all(moved[key] is tensor for key, tensor in tensors.items()):
            return self
        return replace(self, **moved)

    @property
    def masks(self) -> int:
        """T, the number of masks."""
        return len(self.run_offset) - 1

    @property
    def owner(self) -> Tensor:
        """int64 (T,), the sample of each mask."""
        samples = torch.arange(len(self.sizes), device=self.mask_offset.device)
        return samples.repeat_interleave(self.mask_offset.diff(), output_size=self.masks)

    def slice(self, start: int, stop: int) -> "RunBatch":
        """The masks start..stop, without waiting for the device. All samples remain."""
        if stop - start == self.masks:
            return self
        first = int(self.host_offset[start])
        last = int(self.host_offset[stop])
        return RunBatch(
            run_ends=self.run_ends[first:last],
            run_offset=self.run_offset[start : stop + 1] - self.run_offset[start],
            mask_offset=(self.mask_offset - start).clamp(0, stop - start),
            sizes=self.sizes,
            host_offset=self.host_offset[start : stop + 1] - first,
        )

    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """The run ends of all masks: int64 (R,) each, position, mask, and index within the mask."""
        total = int(self.host_offset[-1])
        device = self.run_offset.device
        masks = torch.arange(self.masks, device=device)
        mask = masks.repeat_interleave(self.run_offset.diff(), output_size=total)
        number = torch.arange(total, device=device) - self.run_offset[mask]
        return self.run_ends[:total].long(), mask, number

    def by_sample(
        self, places: Tensor | None = None
    ) -> Iterator[tuple[int, np.ndarray, ImageRuns]]:
        """The samples of a batch on the CPU, as the kernels of `sa1bpack.masks` expect them.

        Args:
            places: int64 (T,), row of each mask in the result; by default its number.

        Yields:
            Per sample, its number; int64 (m,), the rows of its masks without padding; and their
            runs: run_ends, run_offset, height and width.
        """
        run_ends = self.run_ends.numpy()
        run_offset = self.run_offset.numpy()
        rows = np.arange(self.masks)
        if places is not None:
            rows = places.numpy()
        has_runs = np.diff(run_offset) > 0  # the others are padding
        sizes = self.sizes.tolist()
        for sample, (first, last) in enumerate(itertools.pairwise(self.mask_offset.tolist())):
            masks = first + np.flatnonzero(has_runs[first:last])
            offset = np.append(run_offset[masks], run_offset[last])
            height, width = sizes[sample]
            yield sample, rows[masks], (run_ends, offset, height, width)


def padded_rows(mask_offset: Tensor, masks: int, columns: int) -> Tensor:
    """int64 (T,): the row of each mask if each sample has `columns` rows, one after another.

    Args:
        mask_offset: int64 (B + 1,), as in a `RunBatch`; the result is on its device.
        masks: T.
    """
    samples = torch.arange(len(mask_offset) - 1, device=mask_offset.device)
    owner = samples.repeat_interleave(mask_offset.diff(), output_size=masks)
    numbers = torch.arange(masks, device=owner.device)
    return numbers + owner * columns - mask_offset[owner]


# ------------------------------------------------------------- how masks are made on a grid


@dataclass(frozen=True)
class Placing:
    """The arguments for masks from runs and from grids alike. The tensors may be on the CPU.

    Attributes:
        owner: int64 (n,), sample of each mask of the result.
        samples: B, number of samples.
        size: (h, w) of the result in cells.
        maps: per sample, map from cells of the result to where they come from.
        frame: frame of the images; None if all cells show them. Cells that do not are False.
    """

    owner: Tensor
    samples: int
    size: Sides
    maps: Maps | None
    frame: Frame | None

    @property
    def rotates(self) -> bool:
        """True if the maps may rotate or shear."""
        return isinstance(self.maps, AffineMaps)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, h, w)."""
        return len(self.owner), *self.size

    @property
    def keep(self) -> Tensor:
        """int64 (B, 2): the rows and columns that show upright images."""
        if self.frame is not None:
            return self.frame.kept(self.size)
        return pair(*self.size, self.owner.device).long().expand(self.samples, 2)


@dataclass(frozen=True)
class Drawing(Placing):
    """Masks that are drawn from their runs; maps are from cells of the result to source pixels.

    Attributes:
        runs: runs of T masks, on the device of the result.
        sizes: int64 (B, 2), `sizes` of the runs.
        rows: int64 (T,), row of the result for each mask of the runs; the other rows are False.
        sampling: "area" or "center".
    """

    maps: Maps
    runs: RunBatch
    sizes: Tensor
    rows: Tensor
    sampling: str


@dataclass(frozen=True)
class Taking(Placing):
    """Masks that are taken from a grid each.

    Maps are from cells of the result to those of the grid, None if they are the same. Under maps
    that rotate, a cell outside is the nearest one.

    Attributes:
        masks: bool (T, s, s), or bits uint8 (T, s, s / 8), of which `owner` is non-decreasing.
    """

    masks: Tensor

    @property
    def columns_and_rows(self) -> tuple[Tensor, Tensor]:
        """int64 (B, w) and (B, h), of the grid, for each of the result, under upright maps."""
        side = self.masks.shape[1]
        if not isinstance(self.maps, AxisMaps):
            numbers = torch.arange(side, device=self.owner.device).expand(self.samples, -1)
            return numbers, numbers
        x, y = self.maps.centers(*self.size)
        return x.floor().long().clamp_(0, side - 1), y.floor().long().clamp_(0, side - 1)
