"""Libraries that count by themselves: Fabric from 0 again, torchdata without the epoch."""

import importlib.util

import pytest
from lightning_fabric import Fabric

import sa1bpack
from sa1bpack import LoaderError, make_dataloader

OPTIONS = {"shuffle": True, "seed": 1, "num_workers": 0, "pin_memory": False}

has_torchdata = pytest.mark.skipif(
    importlib.util.find_spec("torchdata") is None,
    reason="torchdata is not installed: make frameworks",
)


def seen(loader, epochs):
    return [
        [(batch["epoch"], batch["image_ids"].tolist()) for batch in loader] for _ in range(epochs)
    ]


def test_fabric_has_every_epoch_and_one_that_is_resumed_with_its_count_from_0_is_refused(photos):
    ds = sa1bpack.open(photos.root)
    fabric = Fabric(accelerator="cpu", devices=1)
    whole = seen(make_dataloader(ds, 2, **OPTIONS), 3)
    assert seen(fabric.setup_dataloaders(make_dataloader(ds, 2, **OPTIONS)), 3) == whole
    first = make_dataloader(ds, 2, **OPTIONS)
    first.set_epoch(1)
    next(iter(first))
    later = make_dataloader(ds, 2, **OPTIONS)
    later.load_state_dict(first.state_dict())
    of_fabric = fabric.setup_dataloaders(later)
    with pytest.raises(
        LoaderError, match=r"epoch 1 was loaded, but then set_epoch\(0\).*: leave set_epoch"
    ):
        next(iter(of_fabric))
    later.set_epoch(1)
    assert seen(later, 2) == [whole[1][1:], whole[2]]


@has_torchdata
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's use of torch
@pytest.mark.parametrize("workers", [0, 1])
def test_accelerates_stateful_dataloader_is_refused_with_the_way_that_works(photos, workers):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    loader = make_dataloader(
        sa1bpack.open(photos.root), 2, shuffle=True, num_workers=workers, pin_memory=False
    )
    with pytest.raises(LoaderError, match=r"leave use_stateful_dataloader out.*skip_first_batches"):
        Accelerator(cpu=True, dataloader_config=config).prepare(loader)


def test_what_it_would_save_is_refused_without_torchdata_too(photos):
    loader = make_dataloader(sa1bpack.open(photos.root), 2)
    with pytest.raises(LoaderError, match="leave use_stateful_dataloader out"):
        loader.dataset.state_dict()
    with pytest.raises(LoaderError, match="leave use_stateful_dataloader out"):
        loader.dataset.load_state_dict({})
