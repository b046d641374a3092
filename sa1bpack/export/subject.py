"""One sample, with what a picture needs of it, for every layout."""

from dataclasses import dataclass

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, ReadError
from sa1bpack.format.problems import reason_of

_LARGEST_GRID = 4096  # of masks that are drawn


@dataclass(frozen=True)
class Subject:
    """One sample with m masks.

    sample
        As `sa1bpack.open` makes it, with boxes and points in source coordinates, and `masks` uint8
        (m, G, G / 8) on a grid of G x G cells, packed as `sa1bpack.masks.cells` says.
    annotation_count
        Number of masks in its record, before filtering and capping.
    shard
        Name of its shard, "" outside a pack.
    fit
        How image and grid were made from the source: "pad", "native" or "squash".
    from_runs
        Whether the bits were drawn from exact runs, because the pack stores no bits.
    """

    sample: Sample
    annotation_count: int
    shard: str = ""
    fit: str = "pad"
    from_runs: bool = False

    @property
    def rgb(self) -> np.ndarray:
        """uint8 (h, w, 3): the stored pixels without padding."""
        height, width = self.sample["size"][2:].tolist()
        return self.sample["image"][:height, :width]

    @property
    def source(self) -> tuple[int, int]:
        """Height and width of the source image in pixels, the coordinates of boxes and points."""
        return tuple(self.sample["size"][:2].tolist())

    @property
    def masks(self) -> int:
        """m, the number of masks."""
        return len(self.sample["areas"])


@dataclass(frozen=True)
class Unreadable:
    """A sample that could not be read.

    index, image_id
        Row in the pack and id, from the index of the pack.
    error
        The reason.
    """

    index: int
    image_id: int
    error: FormatError | OSError | ReadError

    @property
    def reason(self) -> str:
        """Text of the error."""
        return reason_of(self.error)

    def __str__(self) -> str:
        return f"row {self.index:,}, id {self.image_id}: {self.reason}"


def read_or_reason(dataset: Dataset, index: int, side: int) -> Subject | Unreadable:
    """A sample of a dataset, or why it cannot be read; see `read_subject`."""
    try:
        return read_subject(dataset, index, side)
    except (FormatError, OSError) as error:
        row = int(dataset.rows_at(np.array([index]))[0])
        return Unreadable(row, dataset.pack.image_id(row), error)


def read_subject(dataset: Dataset, index: int, side: int) -> Subject:
    """Read a sample of a dataset, to draw it at most `side` pixels wide or high.

    Without stored bits, the runs are drawn on a grid of one cell per pixel.

    Raises IndexError as the dataset does, FormatError if its shard is damaged or its bytes are not
    those that were written, OSError if a file cannot be read, StoreError if it cannot be fetched.
    """
    layout = dataset.layout
    grid = None if layout.bits else min(-(-side // 8) * 8, _LARGEST_GRID)
    wanted = {"mask_format": "bits", "mask_size": grid, "mask_sampling": None, "pixels": "rgb"}
    as_stored = dataset.with_options(
        **wanted, coordinates="source", verify_checksums=True, transform=None, features=()
    )
    try:
        sample, found = as_stored[index], as_stored.metadata(index)
    except ReadError as error:  # which names the sample, as every picture does
        if isinstance(error.__cause__, FormatError | OSError):
            raise error.__cause__ from None
        raise
    return Subject(sample, found.annotations, found.shard, layout.fit, not layout.bits)
