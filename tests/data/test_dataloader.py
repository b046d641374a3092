"""make_dataloader: the Loader's batches from a torch DataLoader, with a state and a plan."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from sa1bpack.data import dataloader as dataloader_module
from sa1bpack.data.dataloader import describe_dataloader, make_dataloader
from sa1bpack.data.dataset import open as open_pack
from sa1bpack.data.loader import Loader
from sa1bpack.errors import OptionError

OPTIONS = {"masks": "flat", "max_masks": 3, "choose": "random", "seed": 4}


@pytest.fixture
def ds(packed):
    return open_pack(packed.root)


def stop(loader: DataLoader) -> None:
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()


def rows_of(batches) -> list[list[int]]:
    return [batch["indices"].tolist() for batch in batches]


def halve(image):
    return image[:, ::2]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_loader_in_every_epoch(ds, workers):
    made = make_dataloader(ds, 5, workers=workers, **OPTIONS)
    assert isinstance(made, DataLoader) and len(made) == 3
    with Loader(ds, 5, **OPTIONS) as loader:
        for _ in range(3):
            for batch, due in zip(made, loader, strict=True):
                assert set(batch) == set(due)
                for key, tensor in due.items():
                    assert torch.equal(batch[key], tensor), key
    stop(made)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_counts_batches_that_came_out_not_those_fetched_ahead(ds, workers):
    made = make_dataloader(ds, 2, workers=workers, seed=1)
    whole = rows_of(made)
    made.set_epoch(0)
    for number, _ in enumerate(made):
        if number == 1:
            break
    state = made.state_dict()
    assert state["samples"] == 4
    other = make_dataloader(ds, 2, workers=workers, seed=1)
    other.load_state_dict(state)
    assert rows_of(other) == whole[2:]
    assert other.state_dict()["epoch"] == 1
    with Loader(ds, 2, seed=1) as loader:  # and the Loader can take it over
        loader.load_state_dict(state)
        assert rows_of(loader) == whole[2:]
    stop(made), stop(other)


def test_transforms_run(packed):
    ds = open_pack(packed.root, mask_transform=halve)
    made = make_dataloader(ds, 4, workers=0, masks="flat_bits")
    assert next(iter(made))["masks"].shape[1:] == (8, 2)


def test_workers_are_only_started_by_default_where_python_has_to_run(packed, monkeypatch):
    monkeypatch.setattr(dataloader_module, "cores", lambda: 1)
    plain, hooked = open_pack(packed.root), open_pack(packed.root, mask_transform=halve)
    assert make_dataloader(plain, 4).num_workers == 0
    made = make_dataloader(hooked, 4)
    assert made.num_workers == 1 and made.persistent_workers and made.prefetch_factor == 2


def test_dropping_needs_no_special_dataset(ds):
    made = make_dataloader(ds, 4, workers=0, on_error="drop")
    assert next(iter(made))["dropped"].tolist() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_the_plan_states_the_memory_of_the_batches(ds, workers):
    made = make_dataloader(ds, 4, workers=workers, masks="padded_bits", pin_memory=False)
    plan = describe_dataloader(made)
    assert plan == made.plan()
    assert plan.batches == (1 if workers == 0 else 2 * 3 + 1)
    assert plan.host_bytes == plan.batches * plan.batch_bytes
    assert plan.shared_bytes == (plan.host_bytes if workers else 0)
    for batch in made:
        assert sum(tensor.nbytes for tensor in batch.values()) <= plan.batch_bytes
    stop(made)


def test_too_little_shared_memory_is_said_before_a_worker_dies(ds, monkeypatch, caplog):
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(dataloader_module.shutil, "disk_usage", lambda path: usage)
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        make_dataloader(ds, 4, workers=2)
    assert "--shm-size" in caplog.text


@pytest.mark.parametrize(("options", "named"), [
    ({"workers": -1}, "workers is -1"), ({"prefetch_factor": 0}, "prefetch_factor is 0"),
    ({"timeout": 0}, "timeout is 0"), ({"order": "best"}, "order is 'best'"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_by_a_dataloader_is_named(ds, options, named):
    with pytest.raises(OptionError, match=named):
        make_dataloader(ds, 4, **options)
