"""A dataset is one of torch's, without loading torch."""

import copy
import pickle

import pytest
import torch
from commands import python
from reading_packs import packed  # noqa: F401 - a fixture

import sa1bpack


def test_a_dataset_is_an_instance_of_the_dataset_of_torch(packed, sample_tar, tmp_path):  # noqa: F811
    ds = sa1bpack.open(packed.root)
    for found in (ds, ds[:2], copy.copy(ds), pickle.loads(pickle.dumps(ds))):
        assert isinstance(found, torch.utils.data.Dataset)
        assert isinstance(found, sa1bpack.Dataset) and type(found) is sa1bpack.Dataset
        assert not isinstance(found, torch.utils.data.IterableDataset)
        assert not isinstance(found, sa1bpack.TarDataset)
        assert found.__class__.__name__ == "Dataset"
    pytest.importorskip("indexed_gzip")
    raw = sa1bpack.TarDataset(sample_tar, index_folder=tmp_path)
    assert isinstance(raw, torch.utils.data.Dataset) and isinstance(raw, sa1bpack.TarDataset)


def test_torch_is_not_loaded_for_it_and_counts_as_soon_as_it_is(packed):  # noqa: F811
    program = (
        "import sys, sa1bpack; ds = sa1bpack.open(sys.argv[1])\n"
        "assert ds.__class__ is sa1bpack.Dataset and isinstance(ds, sa1bpack.Dataset)\n"
        "assert 'torch' not in sys.modules\n"
        "import torch.utils.data\n"
        "assert isinstance(ds, torch.utils.data.Dataset)\n"
    )
    python("-c", program, packed.root)
