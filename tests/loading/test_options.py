"""Options of Loader and make_dataloader: refused by name, with the name to use instead."""

import pickle

import pytest
import torch
from batches import BOTH, OF_LOADERS

from sa1bpack import OptionError


@BOTH
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("sampler", "use order"), ("collate_fn", "use sa1bpack.Collate"), ("mask_transform", "use"),
        ("persistent_workers", "use it without this one: threads and workers"),
        ("num_replicas", "use world_size"),
        ("maxmasks", "is max_masks meant\\? valid options: "), ("xyz", "; valid options: "),
    ],
)  # fmt: skip
def test_an_option_of_other_loaders_is_refused_with_its_name_here(ds, make, option, named):
    name = make.__name__
    with pytest.raises(OptionError, match=rf"{name} has no option '{option}'.*{named}"):
        make(ds, 4, **{option: True})


@BOTH
def test_parts_of_random_split_are_read_as_subsets(ds, make):
    generator = torch.Generator().manual_seed(3)
    train, val = torch.utils.data.random_split(ds, [9, 3], generator)
    inner = torch.utils.data.Subset(train, [4, 0, 4])
    for part, rows in ((val, val.indices), (inner, [train.indices[k] for k in (4, 0, 4)])):
        loader = make(part, 2)
        found = [row for batch in loader for row in batch["indices"].tolist()]
        assert found == list(rows)


@BOTH
def test_every_batch_carries_epoch_number_and_spec(ds, make):
    """Peeking uses up an epoch, so only the batch knows its epoch."""
    loader = make(ds, 5, shuffle=True)
    peeked = next(iter(loader))
    assert set(peeked) >= OF_LOADERS and (peeked["epoch"], peeked["batch_idx"]) == (0, 0)
    seen = [(batch["epoch"], batch["batch_idx"], batch.spec) for batch in loader]
    assert seen == [(1, number, ds.spec_text) for number in range(3)]
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    resumed = make(ds, 5, shuffle=True)
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [(batch["epoch"], batch["batch_idx"]) for batch in resumed] == [(2, 1), (2, 2)]
