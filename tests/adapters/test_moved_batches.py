"""A batch is still one after a library has moved, cut, joined, copied or saved it."""

import copy
import io
import pickle

import pytest
import torch
from accelerate.utils import broadcast, concatenate, send_to_device, slice_tensors
from batches import BOTH, same
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.utilities import move_data_to_device
from torch.utils import _pytree as pytree

import sa1bpack
from sa1bpack import Loader, OptionError, make_dataloader
from sa1bpack import transforms as T

OPTIONS = {"shuffle": True, "seed": 3, "max_masks": 2, "pad_to_max": True}


def saved(batch):
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# What libraries make of a batch of their own.
MOVES = {
    "accelerate, to a device": lambda batch: send_to_device(batch, "cpu"),
    "accelerate, one of one": lambda batch: concatenate([batch]),
    "accelerate, of one process": broadcast,
    "accelerate, all of it": lambda batch: slice_tensors(batch, slice(None)),
    "lightning, to a device": lambda batch: move_data_to_device(batch, torch.device("cpu")),
    "lightning, another dtype": lambda batch: apply_to_collection(batch, torch.Tensor, torch.clone),
    "torch, pinned": copy.copy,
    "torch, through a worker": lambda batch: pickle.loads(pickle.dumps(batch)),
    "torch, saved": saved,
    "torch, a tree": lambda batch: pytree.tree_map(lambda value: value, batch),
    "by itself": lambda batch: batch.copy() | {},
    "by its items": lambda batch: type(batch)(batch.items()),
}


@pytest.fixture(scope="module")
def datasets(photos):
    """Two of the same samples, which differ in what the boxes mean."""
    stored = sa1bpack.open(photos.root, coordinates="stored")
    return stored, stored.with_options(coordinates="source")


def dealt(ds):
    """What Accelerate takes of a loader: a batch of its DataLoader."""
    loader = make_dataloader(ds, 2, **OPTIONS)
    loaded = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    return next(iter(loaded))


MADE = {
    "Loader": lambda ds: next(iter(Loader(ds, 2, **OPTIONS))),
    "make_dataloader": lambda ds: next(iter(make_dataloader(ds, 2, **OPTIONS))),
    "dealt": dealt,
    "Collate": lambda ds: sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]]),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_moved_batch_has_the_spec_by_which_a_pipeline_knows_it(datasets, make, move):
    ds, other = datasets
    batch = make(ds)
    moved = move(batch)
    assert type(moved).__name__ == "Batch" and moved.spec == batch.spec == ds.spec_text
    same(moved, batch)
    same(T.Pipeline(ds)(moved), T.Pipeline(ds)(batch))
    with pytest.raises(OptionError, match="create the pipeline with the dataset"):
        T.Pipeline(other)(moved)


@BOTH
def test_a_batch_has_tensors_and_numbers_alone(datasets, make):
    batch = next(iter(make(datasets[0], 2, **OPTIONS)))
    assert {type(value) for value in batch.values()} == {torch.Tensor, int}


def test_what_accelerate_takes_is_tensors_with_a_row_per_sample_which_it_joins_and_cuts(datasets):
    ds, _ = datasets
    loader = make_dataloader(ds, 2, **OPTIONS)
    loader.set_epoch(1)
    loaded = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    batches = list(loaded)
    assert all(len(value) == 2 for value in batches[0].values())
    joined = concatenate(batches)
    assert len(joined["image_ids"]) == len(ds) and joined.spec == ds.spec_text
    first = slice_tensors(joined, slice(0, 2))
    same(first, batches[0])
    flip = T.Pipeline(ds, [T.RandomHorizontalFlip()])
    made = flip(joined)
    assert made["epoch"] == 1
    parts = torch.cat([flip(batch)["images"] for batch in batches])
    assert torch.equal(made["images"], parts)


def test_a_plain_dict_of_a_batch_makes_the_same_input(datasets):
    ds, _ = datasets
    batch = MADE["Loader"](ds)
    pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip()])
    same(pipeline(dict(batch)), pipeline(batch))
