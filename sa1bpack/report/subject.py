"""One sample, with what a picture needs of it, for every layout."""

from dataclasses import dataclass

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import FormatError, MaskError, OptionError
from sa1bpack.format.array_reader import REMEDY
from sa1bpack.format.problems import reason_of
from sa1bpack.format.shard_reader import Shard
from sa1bpack.masks import passes, rasterize
from sa1bpack.pixels import yuv420_to_rgb

_LARGEST_GRID = 4096  # of `rasterize`


@dataclass(frozen=True)
class Subject:
    """One sample with m masks.

    index, shard, image_id, file_name
        Row in the pack or tar, name of its shard ("" outside a pack), and id and file name from
        the JSON.
    rgb
        uint8 (h, w, 3): the stored pixels without padding.
    source_height, source_width
        Size of the source image in pixels, the coordinates of boxes and points.
    fit
        How image and grid were made from the source: "pad", "native" or "squash".
    bits
        uint8 (m, G, G / 8): masks on a grid of G x G cells, packed as `sa1bpack.masks.bits` says.
    from_runs
        Whether the bits were drawn from exact runs, because the pack stores no bits.
    bboxes, points, areas, predicted_ious, stability_scores
        (m, 4) x, y, w, h; (m, 2) x, y; (m,) source pixels; (m,); (m,).
    annotation_count
        Number of masks in its record, before filtering and capping.
    """

    index: int
    shard: str
    image_id: int
    file_name: str
    rgb: np.ndarray
    source_height: int
    source_width: int
    fit: str
    bits: np.ndarray
    from_runs: bool
    bboxes: np.ndarray
    points: np.ndarray
    areas: np.ndarray
    predicted_ious: np.ndarray
    stability_scores: np.ndarray
    annotation_count: int

    @property
    def masks(self) -> int:
        """m, the number of masks."""
        return len(self.areas)


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read.

    index, image_id
        Row in the pack and id, from the index of the pack.
    reason
        Text of the error.
    """

    index: int
    image_id: int
    reason: str

    @classmethod
    def of(cls, dataset: Dataset, index: int, error: FormatError | OSError) -> "Unreadable":
        """The sample at an index of a dataset, and the error of reading it."""
        row = int(dataset.rows_at(np.array([index]))[0])
        image_id = dataset.pack.image_id(row)
        return cls(row, image_id, reason_of(error))

    def __str__(self) -> str:
        return f"row {self.index:,}, id {self.image_id}: {self.reason}"


def read_subject(dataset: Dataset, index: int, side: int) -> Subject:
    """Read a sample of a dataset, to draw it at most `side` pixels wide or high.

    Raises IndexError as the dataset does, FormatError if its shard is damaged or its bytes are not
    those that were written, OSError if a file cannot be read, StoreError if it cannot be fetched.
    """
    number, row, _, _ = dataset.locate(index)
    pack_row = int(dataset.rows_at(np.array([index]))[0])
    dataset.pack.read_rows(pack_row)  # compares them with the checksum of the sample
    opened = dataset.shards.open(number)
    return _read(dataset, pack_row, opened.shard, row, side)


def _read(dataset: Dataset, pack_row: int, shard: Shard, row: int, side: int) -> Subject:
    sample = shard.sample(row)
    height, width = sample["size"][:2].tolist()
    kept: slice | np.ndarray = slice(None)
    if dataset.options.rule is not None:
        scores = (sample[name] for name in ("area", "predicted_iou", "stability_score"))
        kept = np.flatnonzero(passes(dataset.options.rule, *scores, height * width))
    return Subject(
        index=pack_row,
        shard=shard.entry.name,
        image_id=int(sample["image_id"]),
        file_name=file_name_of(sample),
        rgb=rgb_of(shard, row),
        source_height=height,
        source_width=width,
        fit=shard.layout.fit,
        bits=_bits(shard, sample, side)[kept],
        from_runs="mask_bits" not in sample,
        bboxes=sample["bbox"][kept],
        points=sample["point_coords"][kept],
        areas=sample["area"][kept],
        predicted_ious=sample["predicted_iou"][kept],
        stability_scores=sample["stability_score"][kept],
        annotation_count=int(sample["annotation_count"]),
    )


def file_name_of(sample: dict[str, np.ndarray]) -> str:
    """The file name of a sample's arrays, as far as it can be read."""
    return bytes(sample["file_name"]).rstrip(b"\0").decode(errors="replace")


def _bits(shard: Shard, sample: dict[str, np.ndarray], side: int) -> np.ndarray:
    """The stored bits; without them, the runs drawn on a grid of one cell per pixel."""
    if "mask_bits" in sample:
        return sample["mask_bits"]
    height, width = sample["size"][:2].tolist()
    offsets = sample["run_offset"] - sample["run_offset"][0]
    grid = min(-(-side // 8) * 8, _LARGEST_GRID)
    try:
        return rasterize(sample["run_ends"], offsets, height, width, grid, shard.layout.fit)
    except (MaskError, OptionError) as error:  # a sound pack raises neither
        name = file_name_of(sample)
        raise FormatError(f"{shard.folder / 'run_ends'}: {name}: {error}; {REMEDY}") from error


def rgb_of(shard: Shard, row: int) -> np.ndarray:
    """The stored part of an image, without padding: uint8 (stored height, stored width, 3), RGB.

    Read-only if it is a view of the memory map. Raises IndexError for a row outside the shard,
    FormatError or OSError if a file cannot be mapped or the image has another size.
    """
    planes = shard.planes(row)
    return planes["rgb"] if "rgb" in planes else yuv420_to_rgb(**planes)
