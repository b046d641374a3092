"""What nobody has any more is gone at once: no reference cycle keeps memory, files or threads.

Memory that is pinned, and files of a pack that was replaced, cannot wait for the garbage collector,
which runs when it likes, and after an epoch on a GPU perhaps never.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sa1bpack import Loader, Mix, make_dataloader
from sa1bpack import open as open_pack
from sa1bpack.finalizers import settle
from sa1bpack.loading.order.orders import LocalShuffleOrder, ShuffleOrder
from sa1bpack.transforms import Pipeline, RandomHorizontalFlip


def _loaders(ds) -> dict[str, Loader]:
    return {"a": Loader(ds, 2, shuffle=True), "b": Loader(ds, 3)}


MAKERS: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda ds: ds,
    "samples": lambda ds: ds.where("width > 0"),
    "masks": lambda ds: ds.where_masks("area > 1"),
    "part": lambda ds: ds[:3],
    "order": lambda ds: ShuffleOrder(ds, seed=1),
    "local order": lambda ds: LocalShuffleOrder(ds, window=1, seed=1),
    "loader": lambda ds: Loader(ds, 2, shuffle=True),
    "loader of fields": lambda ds: Loader(ds, 2, fields=["image_ids"]),
    "loader with a pipeline": lambda ds: Loader(
        ds, 2, pipeline=Pipeline(ds, [RandomHorizontalFlip()])
    ),
    "DataLoader": lambda ds: make_dataloader(ds, 2, num_workers=0),
    "mix": lambda ds: Mix(_loaders(ds), {"a": 1, "b": 2}, steps=4),
    "mix to the end": lambda ds: Mix(_loaders(ds), at_end="stop"),
}
ITERATED = [name for name in MAKERS if "loader" in name.lower() or "mix" in name]


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing in a reference cycle is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_made_and_not_used(packed, no_collection, name):
    made = MAKERS[name](open_pack(packed.root))
    reference = weakref.ref(made)
    del made
    settle()
    assert reference() is None


@pytest.mark.parametrize("left_after", [1, 2, None])
@pytest.mark.parametrize("name", ITERATED)
def test_what_was_iterated(packed, no_collection, name, left_after):
    """Left after some batches, or at its end, and then begun again; with its state saved."""
    made = MAKERS[name](open_pack(packed.root))
    for number, batch in enumerate(made, start=1):
        assert len(batch["image_ids"]) > 0
        if number == left_after:
            break
    made.load_state_dict(made.state_dict())
    iterated = iter(made)
    next(iterated)
    references = [weakref.ref(each) for each in (made, iterated)]
    del made, iterated, batch
    settle()
    assert [reference() for reference in references] == [None, None]
