"""Relations of the masks of a batch, on its device: see `sa1bpack.masks.relations`.

On a device the common cells of all pairs are products of matrices of zeros and ones, for all
samples at once: in half precision, over so few cells at a time that every sum is a whole number
that it can hold. On a CPU compiled kernels do it, sample by sample, in as many threads as torch may
use. Whole numbers are the same; of the others, the last bit may differ.
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sa1bpack.arguments import choice, items_of
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks import relations as single
from sa1bpack.masks.relations import NEIGHBORS, RELATIONS, SHARE, Derived, Relation
from sa1bpack.transforms.backends import full_precision, run_jobs, uses_compiled
from sa1bpack.transforms.batch import Items
from sa1bpack.transforms.host import numbers_of, unseen
from sa1bpack.transforms.ids import MASK_KEYS
from sa1bpack.transforms.masks.cells import count_along, unpack_bits
from sa1bpack.transforms.masks.run_batch import padded_rows
from sa1bpack.transforms.memory import allocated_bytes
from sa1bpack.wording import brief

_EXACT = 2048  # half precision holds all whole numbers up to this
CHUNK_BYTES = 1 << 28  # of masks in half precision, at a time
_TENSORS = 8  # large ones that live at once


def _type(relation: Relation) -> torch.dtype:
    """The type in a batch."""
    dtype: torch.dtype = getattr(torch, relation.dtype.replace("float64", "float32"))
    return dtype


@checks_options
@dataclass(frozen=True)
class Relate:
    """Compute relations of the masks of batches: `Relate(["ious", "parents"])(batch)`.

    The result is a dict of tensors on the batch's device, with the names of
    `sa1bpack.masks.Relations`. "..." is (B, M) for padded masks and (T,) for concatenated ones; M
    is the mask count of the fullest sample in both layouts: pairs are pairs of masks of one sample,
    and the last axis numbers the masks of that sample.

    =============  =======  ===========
    intersections  int64    (..., M)
    ious           float32  (..., M)
    containments   float32  (..., M)
    touching       bool     (..., M)
    distances      float32  (..., M)
    children       bool     (..., M)
    centroids      float32  (..., 2)
    mask_boxes     int64    (..., 4)
    parents        int64    (...)
    depths         int64    (...)
    levels         int64    (...)
    =============  =======  ===========

    Padding is 0, but -1 in `parents` and `levels`. Units are pixels of the source with `runs`, and
    otherwise cells of the masks' grid. For concatenated masks on a device, M is known to the
    host if the batch is a Loader's; otherwise it waits for the device.

    Args:
        names: names of relations, or a single name.
        share: fraction of its area by which a mask lies in its parent; above 0, at most 1.
        neighbors: 8 or 4, number of neighbours of a cell, which decides what touches.

    Raises:
        OptionError: an unknown name, or a value that cannot be used.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     found = T.Relate(["ious", "parents"])(next(iter(loader)))
        >>> found["ious"].shape, found["parents"].shape
        (torch.Size([2, 8, 8]), torch.Size([2, 8]))
    """

    names: Iterable[str]
    _: KW_ONLY
    share: float = SHARE
    neighbors: int = NEIGHBORS

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else self.names
        if not isinstance(names, Iterable):
            raise OptionError(
                f"relations is {brief(names)}: choose {', '.join(RELATIONS)}, or a Relate"
            )
        names = tuple(dict.fromkeys(choice("relation", name, RELATIONS) for name in names))
        share, neighbors = single.check_rule(self.share, self.neighbors)
        vars(self).update(names=names, share=share, neighbors=neighbors)

    @classmethod
    def of(cls, value: Any, features: Iterable[Any] = ()) -> "Relate | None":
        """The option `relations` as a Relate, or None for no relation.

        Raises OptionError, also for a relation with the name of one of the features.
        """
        relate = value if isinstance(value, Relate) else cls(items_of(value))
        if not relate.names:
            return None
        relate.check_features(features)
        return relate

    def check_features(self, features: Iterable[Any]) -> None:
        """Raise OptionError for a relation with the name of one of the features of a dataset."""
        shared = sorted(set(self.names) & {feature.name for feature in features})
        if shared:
            raise OptionError(
                f"relations has {brief(shared[0])}, also a feature of the dataset: leave one out"
            )

    def nbytes(self, rows: int, most: int) -> int:
        """Bytes of the relations of `rows` masks, padding included, at most `most` per sample."""
        relations = [RELATIONS[name] for name in self.names]
        return sum(
            rows * _columns(relation, most) * _type(relation).itemsize for relation in relations
        )

    def scratch_bytes(
        self, samples: int, most: int, total: int, cells: int, padded: bool, packed: bool
    ) -> int:
        """The most bytes that relating a batch on a device takes besides its masks and the result.

        Args:
            samples, most, total: b, M, T: samples, masks of the fullest one, masks in all.
            cells: number of cells of a mask.
            padded, packed: the layout of the masks.
        """
        rows = samples * most
        chunk = min(-(-cells // _EXACT) * _EXACT, _chunk_cells(samples, most))
        # Two operands in half precision, and their product, which becomes int64.
        large = 4 * rows * chunk + 10 * rows * most * (chunk // _EXACT)
        if {"centroids", "distances"} & set(self.names):  # sums
            large += rows * cells // 4
        if "touching" in self.names:  # masks that have grown
            large += 2 * rows * cells
        if not padded:
            large += rows * cells
        if packed:
            large += (rows if padded else total) * cells
        small = 100 * rows * most + 2000 * rows + 64 * 512
        return allocated_bytes(large + small, _TENSORS)

    def __call__(self, batch: Items, most: int | None = None) -> dict[str, Tensor]:
        """The relations of a batch of Loader, make_dataloader, Collate or Pipeline.

        Args:
            batch: a batch with `mask_counts`, and `masks` or `runs`; padded unless it has
                `mask_offsets`.
            most: the mask count of the fullest sample, for concatenated masks; None: found in
                the host's copy of the counts, or on a device, which waits for it.

        Raises:
            OptionError: the batch has no masks, masks that are neither bool nor bits, or runs on a
                device: relate the masks that a Pipeline draws from them.
            MaskError: runs are damaged.
        """
        known = numbers_of(batch)
        batch = unseen(batch)
        if "mask_counts" not in batch or not {"masks", "runs"} & batch.keys():
            raise OptionError(
                f"the batch has {sorted(batch)}: relations need mask_counts, and masks or runs"
            )
        counts: Tensor = batch["mask_counts"]
        padded = "mask_offsets" not in batch
        if "runs" in batch:
            keys = [key for key in MASK_KEYS if key in batch]
            if padded and keys:
                most = batch[keys[0]].shape[1]
            runs = batch["runs"]
            if runs.run_ends.device.type != "cpu":
                raise OptionError(
                    "the batch has runs on a device: use Pipeline(relations=...), or a mask_size"
                )
            if most is None:
                most = fullest(counts)
            leading: tuple[int, ...] = (runs.masks,)
            result_rows = None
            if padded:
                leading = (len(counts), most)
                result_rows = padded_rows(runs.mask_offset, runs.masks, most)
            images = runs.by_sample(result_rows)
            samples = ((rows, image) for _, rows, image in images)
            return self._compiled(single.relate_runs, samples, leading, most)
        masks = batch["masks"]
        if masks.dtype not in (torch.bool, torch.uint8) or masks.dim() != 3 + padded:
            raise OptionError(f"masks are {masks.dtype} {tuple(masks.shape)}: give bool or bits")
        if not padded and most is None:
            most = fullest(known.get("mask_counts", counts))
        return self.of_masks(masks, counts, padded, most)

    def of_masks(
        self, masks: Tensor, counts: Tensor, padded: bool, most: int | None = None
    ) -> dict[str, Tensor]:
        """The relations of masks, on their device.

        Args:
            masks: bool (..., h, w), or bits, uint8 (..., h, w / 8).
            counts: int64 (B,), number of masks of each sample.
            padded: masks are padded.
            most: number of masks of the fullest sample, as in a call.
        """
        if padded or most is None:
            most = masks.shape[1] if padded else fullest(counts)
        if uses_compiled(masks.device):
            flat = masks.flatten(0, -3).numpy()
            firsts = counts.cumsum(0) - counts
            if padded:
                firsts = torch.arange(len(counts), device="cpu") * most
            samples = (
                (np.arange(first, first + count), (flat[first : first + count],))
                for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
            )
            return self._compiled(single.relate_bits, samples, masks.shape[: 1 + padded], most)
        cells = unpack_bits(masks) if masks.dtype == torch.uint8 else masks
        rows = None
        if not padded:
            rows = padded_rows(pad(counts.cumsum(0), (1, 0)), len(cells), most)
            wide = cells.new_zeros((len(counts) * most, *cells.shape[1:]))
            wide.index_copy_(0, rows, cells)
            cells = torch.unflatten(wide, 0, (len(counts), most))
        out = {}
        with full_precision(cells.device):
            relations = _OfBatch(cells, self.share, self.neighbors == 8)
            for name in self.names:
                value = getattr(relations, name).to(_type(RELATIONS[name]))
                if rows is not None:
                    value = value.flatten(0, 1)[rows]
                out[name] = value
        return out

    def _compiled(
        self,
        relate: Callable[..., single.Relations],
        samples: Iterable[tuple[np.ndarray, tuple[Any, ...]]],
        leading: tuple[int, ...],
        most: int,
    ) -> dict[str, Tensor]:
        """The relations by the compiled kernels.

        Args:
            relate: `relate_runs` or `relate_bits`.
            samples: for each sample, the rows of its masks in the result, and the arguments of
                `relate`.
            leading: (B, M) or (T,), the first axes of the result.
            most: number of masks of the fullest sample.
        """
        out = {}
        for name in self.names:
            relation = RELATIONS[name]
            shape = leading
            if relation.pairs or relation.columns > 1:
                shape = (*leading, _columns(relation, most))
            out[name] = torch.full(shape, relation.none, dtype=_type(relation), device="cpu")
        arrays = {name: value.flatten(0, len(leading) - 1).numpy() for name, value in out.items()}

        def write(rows: np.ndarray, masks: tuple[Any, ...]) -> None:
            relations = relate(*masks, share=self.share, neighbors=self.neighbors)
            for name, array in arrays.items():
                if RELATIONS[name].pairs:
                    array[rows, : len(rows)] = getattr(relations, name)
                else:
                    array[rows] = getattr(relations, name)

        # One alone first: threads that compile kernels would hold up a fork meanwhile.
        jobs = [partial(write, *sample) for sample in samples if len(sample[0])]
        for job in jobs[:1]:
            job()
        run_jobs(jobs[1:])
        return out


@checks_options
def relation(batch: Items, name: str, share: float = SHARE, neighbors: int = NEIGHBORS) -> Tensor:
    """One relation of a batch, with a row per mask: a function for `sa1bpack.derive`.

    Args:
        batch: a batch with masks or runs, as Loader, make_dataloader and Collate make it.
        name: name of the relation.
        share, neighbors: as for `Relate`.

    Raises:
        OptionError: a relation of pairs, whose rows have another length in every batch, or as for
            `Relate`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> batch = sa1bpack.Collate("concat", sample_spec=ds.spec)([ds[0], ds[1]])
        >>> T.relation(batch, "depths").shape
        torch.Size([180])
    """
    relate = Relate([name], share=share, neighbors=neighbors)
    if RELATIONS[name].pairs:
        single = ", ".join(key for key, relation in RELATIONS.items() if not relation.pairs)
        raise OptionError(f"{name} has a row per pair of masks; choose one of {single}")
    return relate(batch)[name]


def _columns(relation: Relation, most: int) -> int:
    """The numbers that each mask has; `most` is the number of masks of the fullest sample."""
    if relation.pairs:
        return most
    return relation.columns


def fullest(counts: Tensor) -> int:
    """The mask count of the fullest sample. Waits for a device that has the counts."""
    return int(counts.max()) if len(counts) else 0


class _OfBatch(Derived):
    """The relations of B samples with M masks each, bool (B, M, h, w), in torch operations.

    A mask without cells, and so padding, has the same values as in `masks.Relations`.
    """

    _arrays = torch

    def __init__(self, masks: Tensor, share: float, corners: bool):
        self._masks = masks
        self._share = share
        self._corners = corners
        self._numbers = torch.arange(masks.shape[1], device=masks.device)

    @staticmethod
    def _taken(values: Tensor, index: Tensor) -> Tensor:
        return values.gather(1, index)

    @staticmethod
    def _as_float64(numbers: Tensor) -> Tensor:
        return numbers.double()

    @cached_property
    def intersections(self) -> Tensor:
        return common_cells(self._masks, self._masks)

    @property
    def touching(self) -> Tensor:
        grown = grow(self._masks, self._corners)
        touching: Tensor = common_cells(grown, self._masks) > 0
        return touching & (self.intersections == 0)

    @cached_property
    def centroids(self) -> Tensor:
        height, width = self._masks.shape[2:]
        device = self._masks.device
        across = count_along(self._masks, -2) * (2 * torch.arange(width, device=device) + 1)
        down = count_along(self._masks, -1) * (2 * torch.arange(height, device=device) + 1)
        sums = torch.stack([across.sum(2), down.sum(2)], 2)
        doubled: Tensor = 2 * self.areas.clip(1)
        return sums.double() / doubled[:, :, None]

    @property
    def mask_boxes(self) -> Tensor:
        x0, x1 = _ends(self._masks.any(2))
        y0, y1 = _ends(self._masks.any(3))
        has_cells: Tensor = self.areas > 0
        return torch.stack([x0, y0, x1, y1], 2) * has_cells[:, :, None]


def _ends(flags: Tensor) -> tuple[Tensor, Tensor]:
    """int64 (B, M) each: the first true of bool (B, M, n), and one past the last.

    They are 0 and n if there is none.
    """
    flags = flags.to(torch.uint8)
    return flags.argmax(2), flags.shape[2] - flags.flip(2).argmax(2)


def common_cells(first: Tensor, second: Tensor) -> Tensor:
    """int64 (B, M, N): the common cells of each of bool (B, M, h, w) and each of (B, N, h, w)."""
    samples = len(first)
    cells = first.shape[2] * first.shape[3]
    out = first.new_zeros((samples, first.shape[1], second.shape[1]), dtype=torch.int64)
    step = _chunk_cells(samples, max(first.shape[1], second.shape[1]))
    first = first.flatten(2)
    second = second.flatten(2)
    for start in range(0, cells, step):
        chunk = slice(start, start + step)
        out += _common(first[:, :, chunk], second[:, :, chunk])
    return out


def _chunk_cells(samples: int, masks: int) -> int:
    """Cells of B samples with M masks each that are multiplied at a time."""
    if not samples:
        return 1
    return max(CHUNK_BYTES // (2 * samples * max(masks, 1) * _EXACT), 1) * _EXACT


def _common(first: Tensor, second: Tensor) -> Tensor:
    """`common_cells` of bool (B, M, n) and (B, N, n), all at once."""
    product = torch.matmul(_grouped(first), _grouped(second).transpose(2, 3))
    return product.sum(1, dtype=torch.int64)


def _grouped(cells: Tensor) -> Tensor:
    """bool (B, M, n) as half (B, groups, M, k), with at most _EXACT cells in each group."""
    samples, masks, count = cells.shape
    group = min(count, _EXACT)
    groups = -(-count // group)
    full = count // group * group
    out = torch.zeros((samples, groups, masks, group), dtype=torch.half, device=cells.device)
    groups_of_cells = torch.unflatten(cells[:, :, :full], 2, (-1, group))
    out[:, : full // group].copy_(groups_of_cells.transpose(1, 2))
    if full < count:
        out[:, -1, :, : count - full].copy_(cells[:, :, full:])
    return out


def grow(masks: Tensor, corners: bool) -> Tensor:
    """Bool (..., h, w) with the neighbours of their cells: 8 each with corners, otherwise 4."""
    wide = masks.clone()
    wide[..., 1:] |= masks[..., :-1]
    wide[..., :-1] |= masks[..., 1:]
    beside = wide.clone() if corners else masks
    wide[..., 1:, :] |= beside[..., :-1, :]
    wide[..., :-1, :] |= beside[..., 1:, :]
    return wide
