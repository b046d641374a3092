"""What the batches of a loader are made of, for its planner and for the copies that it plans."""

from dataclasses import dataclass

from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.spec import BatchSpec
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.sample import read_error
from sa1bpack.errors import ReadError


@dataclass(frozen=True)
class BatchSource:
    """A dataset, and how its batches are made.

    spec      what they look like in a buffer
    choice    which masks are kept
    capacity  masks per sample in padded arrays; None: as many as the fullest sample of a batch
    """

    ds: Dataset
    spec: BatchSpec
    choice: MaskChoice
    capacity: int | None

    def error(self, index: int, number: int, local: int, cause: Exception) -> ReadError:
        """The error of a sample: its index in the dataset, shard, row in it, and what happened."""
        row = int(self.ds.rows_at(index))
        error = read_error(self.ds.pack, row, number, int(local), cause)
        error.__cause__ = cause
        return error
