"""Rank and world size that nobody passed: those of torch.distributed at the first need."""

import os
import sys
from types import SimpleNamespace

import pytest

from sa1bpack import Extent, LoaderError, OptionError, OrderedBatches, ShuffleOrder, make_dataloader

# Of torchrun, and of srun.
ANNOUNCED = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
OF_GROUP = {"rank": None, "world_size": None}
ORDER = ShuffleOrder(Extent(20, "0123456789abcdef"), seed=3)
NEEDS = {
    "len": len,
    "batch size": lambda batches: batches.batch_size,
    "world size": lambda batches: batches.world_size,
    "steps": lambda batches: batches.first_step(2),
    "a batch": lambda batches: next(iter(batches)),
}


@pytest.fixture
def group(monkeypatch):
    """What stands for torch.distributed; uninitialized at first."""
    found = SimpleNamespace(rank=0, world_size=1, ready=False)
    found.is_available = lambda: True
    found.is_initialized = lambda: found.ready
    found.get_rank, found.get_world_size = lambda: found.rank, lambda: found.world_size
    monkeypatch.setitem(sys.modules, "torch.distributed", found)
    for name in ANNOUNCED:
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_batch_size_that_the_ranks_cannot_share_is_refused(group):
    batches = OrderedBatches(ORDER, global_batch_size=3, **OF_GROUP)
    group.ready, group.world_size = True, 2
    with pytest.raises(OptionError, match=r"batch_size 3 .* multiple of world_size 2"):
        next(iter(batches))
    with pytest.raises(OptionError, match=r"batch_size 3 .* multiple of world_size 2"):
        OrderedBatches(ORDER, global_batch_size=3, **OF_GROUP)


def test_the_next_epoch_begins_if_ranks_that_come_later_leave_no_full_batch(group):
    """A state of one rank, loaded before torch.distributed has two."""
    one = OrderedBatches(ORDER, 4, drop_last=True)
    taken = iter(one)
    for _ in range(4):  # of 5
        next(taken)
    batches = OrderedBatches(ORDER, 4, drop_last=True, **OF_GROUP)
    batches.load_state_dict(one.state_dict())
    group.ready, group.world_size = True, 2
    whole = OrderedBatches(ORDER, 4, drop_last=True, rank=0, world_size=2)
    whole.set_epoch(1)
    assert list(batches) == list(whole)
    assert batches.epoch == 1


@pytest.mark.parametrize("first", NEEDS.values(), ids=NEEDS)
@pytest.mark.parametrize("later", NEEDS.values(), ids=NEEDS)
def test_the_number_of_ranks_is_settled_by_the_first_need_and_a_later_change_is_an_error(
    group, first, later
):
    batches = OrderedBatches(ORDER, 4, **OF_GROUP)
    state, text = batches.state_dict(), repr(batches)
    first(batches)
    group.ready, group.world_size = True, 2
    with pytest.raises(LoaderError, match="is rank 0 of 2, but it was rank 0 of 1 when"):
        later(batches)
    assert batches.state_dict()["order"] == state["order"] and repr(batches) == text
    settled = OrderedBatches(ORDER, 4, **OF_GROUP)
    first(settled)
    later(settled)
    assert (len(settled), settled.world_size) == (3, 2)
    group.ready = False
    with pytest.raises(LoaderError, match="is rank 0 of 1, but it was rank 0 of 2 when"):
        later(settled)


@pytest.mark.parametrize("name", ANNOUNCED)
def test_ranks_that_are_announced_but_have_no_process_group_are_refused(group, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    batches = OrderedBatches(ORDER, global_batch_size=8, **OF_GROUP)
    for need in NEEDS.values():
        with pytest.raises(LoaderError, match=rf"{name} is 2, but .*init_process_group before"):
            need(batches)
    assert len(list(OrderedBatches(ORDER, 8, rank=0, world_size=1))) == 3
    group.ready, group.world_size = True, 2
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert batches.epoch == 0  # the refused beginning used up no epoch


@pytest.mark.parametrize(("ranks", "cores"), [("1", 6), ("2", 3), ("0", 6), ("1000000", 1)])
def test_the_ranks_of_a_node_share_its_cores(ds, ranks, cores, monkeypatch):
    """Of six that this process may use, each has a worker for transforms."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert make_dataloader(ds.with_options(transform=dict), 4).num_workers == cores
