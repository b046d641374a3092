"""Relations as keys of a loader's batches."""

import pytest
from batches import BOTH

import sa1bpack
from sa1bpack import masks
from sa1bpack.adapters.dataloader import make_dataloader
from sa1bpack.errors import OptionError
from sa1bpack.loading.loader import Loader
from sa1bpack.transforms import Pipeline

NAMES = tuple(masks.RELATIONS)


@pytest.fixture
def ds(layout_packs):
    return sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"))


def test_a_plan_counts_the_relations(ds):
    plans = [Loader(ds, 2, max_masks=9, relations=names).plan() for names in ((), NAMES[:2])]
    # int64 and float32 of pairs, for two batches.
    assert plans[1].host_bytes - plans[0].host_bytes == 2 * (2 * 9) * 9 * 12


@BOTH
def test_names_that_do_not_exist_are_refused_at_once(ds, make):
    with pytest.raises(OptionError, match="relation is 'overlap': choose one of intersections"):
        make(ds, 2, relations=["overlap"])


def test_a_transform_that_returns_a_relation_is_refused(ds):
    ds = ds.with_options(transform=lambda sample: sample | {"ious": 0})
    with pytest.raises(OptionError, match="relations include 'ious', but the samples"):
        next(iter(make_dataloader(ds, 2, num_workers=0, relations=["ious"])))


def test_a_feature_with_the_name_of_a_relation_is_refused_at_once(ds, tmp_path):
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "ious", ids, ids, output=tmp_path / "ious")
    ds = ds.with_options(features=[tmp_path / "ious"])
    for make in (
        lambda names: Loader(ds, 2, relations=names),
        lambda names: make_dataloader(ds, 2, num_workers=0, relations=names),
        lambda names: Pipeline(ds, relations=names),
    ):
        with pytest.raises(OptionError, match="also a feature of the dataset"):
            make(["parents", "ious"])
        make(["parents"])
