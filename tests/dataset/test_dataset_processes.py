"""The dataset in other processes and in torch's DataLoader; it is one of torch's, which it does not
load."""

import copy
import pickle

import numpy as np
import pytest
import torch
from commands import python
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

import sa1bpack
from sa1bpack import Collate
from sa1bpack import open as open_pack

# Newer Pythons warn of a fork while other threads run: torch has some, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_reading_samples_loads_neither_torch_nor_numba_and_torch_counts_as_soon_as_it_is(packed):
    """They take longer to import, and more memory, than everything else together."""
    program = (
        "import sys, sa1bpack; ds = sa1bpack.open(sys.argv[1]); ds[0]\n"
        "assert ds.__class__ is sa1bpack.Dataset and isinstance(ds, sa1bpack.Dataset)\n"
        "assert not {'torch', 'numba', 'zarr'} & set(sys.modules)\n"
        "import torch.utils.data\n"
        "assert isinstance(ds, torch.utils.data.Dataset)\n"
    )
    python("-c", program, packed.root)


def test_a_dataset_is_an_instance_of_the_dataset_of_torch(packed, sample_tar, tmp_path):
    ds = sa1bpack.open(packed.root)
    for found in (ds, ds[:2], copy.copy(ds), pickle.loads(pickle.dumps(ds))):
        assert isinstance(found, torch.utils.data.Dataset)
        assert isinstance(found, sa1bpack.Dataset) and type(found) is sa1bpack.Dataset
        assert not isinstance(found, torch.utils.data.IterableDataset)
        assert not isinstance(found, sa1bpack.TarDataset)
        assert found.__class__.__name__ == "Dataset"
    raw = sa1bpack.TarDataset(sample_tar, index_folder=tmp_path)
    assert isinstance(raw, torch.utils.data.Dataset) and isinstance(raw, sa1bpack.TarDataset)


def test_a_dataset_pickles_to_a_few_hundred_bytes(ds):
    """Path and options; a regular subset adds next to nothing, an irregular one its rows."""
    ds[0]
    for subset in (ds, ds[2:9], ds[::-3], ds.from_sources("sa_000001")):
        pickled = pickle.dumps(subset)
        assert len(pickled) < 1000
        again = pickle.loads(pickled)
        assert [s["row"] for s in again] == [s["row"] for s in subset]
        assert again.fingerprint == subset.fingerprint
    irregular = ds[[5, 1, 7]]
    assert pickle.loads(pickle.dumps(irregular)).fingerprint == irregular.fingerprint


def batches(ds, workers, context, **sampling):
    loader = DataLoader(
        ds, num_workers=workers, collate_fn=Collate(), timeout=60 if workers else 0,
        multiprocessing_context=context if workers else None, **sampling,
    )  # fmt: skip
    return list(loader)


@pytest.mark.parametrize("workers, context", [(0, None), (2, "fork"), (1, "spawn")])
def test_a_plain_dataloader_yields_every_sample_as_it_was_packed(ds, packed, workers, context):
    """Without a warning: torch must never see a read-only array."""
    sampler = RandomSampler(ds, generator=torch.Generator().manual_seed(0))
    found = batches(ds, workers, context, batch_size=5, sampler=sampler)
    assert sorted(torch.cat([batch["indices"] for batch in found]).tolist()) == list(range(12))
    for batch in found:
        for k, row in enumerate(batch["indices"].tolist()):
            expected = packed.samples[row]
            count = int(batch["mask_counts"][k])
            np.testing.assert_array_equal(batch["images"][k].numpy(), expected["image"])
            assert batch["image_ids"][k] == expected["image_id"][0]
            masks = np.packbits(batch["masks"][k, :count].numpy(), axis=-1, bitorder="little")
            np.testing.assert_array_equal(masks, expected["mask_bits"])


def test_any_sampler_of_torch_works(ds):
    """Batches of a BatchSampler, and the shares of a DistributedSampler."""
    found = batches(ds, 0, None, batch_sampler=BatchSampler(SequentialSampler(ds), 5, True))
    assert [batch["indices"].tolist() for batch in found] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    seen = []
    for rank in range(3):
        sampler = DistributedSampler(ds, num_replicas=3, rank=rank, shuffle=True, seed=1)
        found = batches(ds, 0, None, batch_size=2, sampler=sampler)
        seen += torch.cat([batch["indices"] for batch in found]).tolist()
    assert sorted(seen) == list(range(12))


def test_a_pickled_dataset_opens_from_another_folder(packed, monkeypatch, tmp_path):
    """A relative path is resolved when the pack is opened."""
    monkeypatch.chdir(packed.root.parent)
    ds = open_pack(packed.root.name)
    pickled = pickle.dumps(ds)
    monkeypatch.chdir(tmp_path)
    assert ds[0]["row"] == pickle.loads(pickled)[0]["row"] == 0
