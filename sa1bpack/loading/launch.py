"""What Loader and make_dataloader share: checks, and the default number of threads."""

from typing import Any

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError, ReadError
from sa1bpack.order import named
from sa1bpack.order.batches import OrderedBatches
from sa1bpack.order.named import order_seed
from sa1bpack.order.ranks import RankBatches, cores

__all__ = ["RankBatches", "cores", "make_batches", "order_seed"]

# More threads than this do not copy faster than a few memory channels allow.
MOST_THREADS = 12


def default_threads() -> int:
    """Threads of a Loader that was not told how many."""
    return min(cores(), MOST_THREADS)


def check_reads(reader: str, ds: Any) -> None:
    """Raise OptionError unless `ds` is a dataset; `reader` is what was to read it."""
    if not isinstance(ds, Dataset):
        raise OptionError(f"{reader} reads a dataset of sa1bpack.open, not {type(ds).__name__}")


def make_batches(ds, batch_size, order, seed, drop_last, pad_last, rank, world_size):
    """Until the loaders have `last`."""
    last = "drop" if drop_last else "pad" if pad_last else "short"
    return named.make_batches(ds, batch_size, order, seed, last, rank, world_size)


def ended_by(error: BaseException) -> str:
    """What an iteration says when it is asked to go on after an error."""
    text = f"this iteration was ended by {type(error).__name__}: {error}. Begin a new one"
    if isinstance(error, ReadError):
        text += "; with on_error='drop' samples that cannot be read end none"
    return text


# Until the loaders use OrderedBatches.cursor.
def _begin(self):
    self._generation, batches = self.cursor.begin()
    return batches


def _mark_used(self):
    self.cursor.took(self._generation, 1)


OrderedBatches.begin, OrderedBatches.mark_used = _begin, _mark_used
