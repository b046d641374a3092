"""Loaders over several packs: the batches of one pack with all their shards, and its states."""

import numpy as np
import pytest
from batches import clone, same

from sa1bpack.batch.collate import Collate
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader
from sa1bpack.transforms import Pipeline, RandomFlip


def batches_of(loader) -> list[dict]:
    with loader:
        return [clone(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize("check", ["open", "read"])
@pytest.mark.parametrize("order", ["shuffle", "local", "home", "sequential"])
def test_batches_are_those_of_one_pack(several, check, order):
    options = {"order": order, "seed": 3, "max_masks": 4}
    found = batches_of(Loader(open_pack(several.roots, check=check), 4, **options))
    expected = batches_of(Loader(open_pack(several.joined, check=check), 4, **options))
    assert len(found) == len(expected) == 8
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def test_batches_are_those_of_collate(several):
    ds, collate = open_pack(several.roots), Collate(max_masks=4)
    with Loader(ds[::-2], 3, max_masks=4) as loader:
        for batch in loader:
            same(batch, collate([ds[row] for row in batch["indices"].tolist()]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_has_the_same_batches(several, workers):
    ds = open_pack(several.roots)
    options = {"seed": 3, "max_masks": 4}
    loader = make_dataloader(ds, 4, workers=workers, **options)
    with Loader(ds, 4, **options) as expected:
        for one, other in zip(loader, expected, strict=True):
            np.testing.assert_array_equal(one["image_ids"], other["image_ids"])
            np.testing.assert_array_equal(one["images"], other["images"])
            np.testing.assert_array_equal(one["masks"], other["masks"])


def test_a_state_resumes_over_other_packs_of_the_same_shards(several):
    with Loader(open_pack(several.roots), 3, seed=1) as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                state = loader.state_dict()
                break
    rest = []
    for path in (several.roots, several.joined, several.roots[::-1]):
        with Loader(open_pack(path), 3, seed=1) as loader:
            loader.load_state_dict(state)
            rest.append([batch["image_ids"].tolist() for batch in loader])
    assert rest[0] == rest[1] == rest[2] and len(rest[0]) == 4


def test_a_state_of_a_source_resumes_when_its_pack_is_one_of_several(several):
    with Loader(open_pack(several.roots[1]).source("sa_000000"), 2, seed=1) as loader:
        first = clone(next(iter(loader)))
        state = loader.state_dict()
    with Loader(open_pack(several.roots).source("sa_000000"), 2, seed=1) as loader:
        loader.load_state_dict(state)
        rest = [batch["image_ids"].tolist() for batch in loader]
    assert len(rest) == 1
    assert sorted([*first["image_ids"].tolist(), *rest[0]]) == [4991, 4994, 4997, 5000]


def test_a_pipeline_takes_batches_of_several_packs_as_of_one(several):
    made = []
    for path in (several.roots, several.joined):
        ds = open_pack(path)
        pipeline = Pipeline(ds, [RandomFlip()], size=24, mask_size=16)
        with Loader(ds, 4, seed=2) as loader:
            made.append([{k: v.clone() for k, v in pipeline(b).items() if hasattr(v, "clone")}
                         for b in loader])  # fmt: skip
    assert len(made[0]) == 4
    for one, other in zip(*made, strict=True):
        same(one, other)
