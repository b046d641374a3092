"""One sample, with what a picture needs of it, for every layout."""

from dataclasses import dataclass

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.sample import Sample
from sa1bpack.errors import FormatError, ReadError
from sa1bpack.format.problems import reason_of

_LARGEST_GRID = 4096  # of masks that are drawn


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

    Without stored bits, the runs are drawn on a grid of one cell per pixel.

    Raises IndexError as the dataset does, FormatError if its shard is damaged or its bytes are not
    those that were written, OSError if a file cannot be read, StoreError if it cannot be fetched.
    """
    layout = dataset.layout
    grid = None if layout.bits else min(-(-side // 8) * 8, _LARGEST_GRID)
    wanted = {"masks": "bits", "mask_size": grid, "mask_sampling": None, "pixels": "rgb"}
    as_stored = dataset.with_options(
        **wanted, coordinates="source", check="read", transform=None, side=()
    )
    try:
        sample, found = as_stored[index], as_stored.info(index)
    except ReadError as error:  # which names the sample, as every picture does
        if isinstance(error.__cause__, FormatError | OSError):
            raise error.__cause__ from None
        raise
    return subject_of(sample, found.annotations, found.shard, layout.fit, not layout.bits)


def subject_of(
    sample: Sample, annotations: int, shard: str = "", fit: str = "pad", from_runs: bool = False
) -> Subject:
    """A sample with its masks as bits and in source coordinates; see Subject for the others."""
    height, width, stored_height, stored_width = sample["size"].tolist()
    return Subject(
        index=sample["index"],
        shard=shard,
        image_id=sample["image_id"],
        file_name=sample["file_name"],
        rgb=sample["image"][:stored_height, :stored_width],
        source_height=height,
        source_width=width,
        fit=fit,
        bits=sample["masks"],
        from_runs=from_runs,
        bboxes=sample["bboxes"],
        points=sample["point_coords"],
        areas=sample["areas"],
        predicted_ious=sample["predicted_ious"],
        stability_scores=sample["stability_scores"],
        annotation_count=annotations,
    )
