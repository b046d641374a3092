"""Relations as keys of a loader's batches."""

import numpy as np
import pytest
import torch
from batches import same

import sa1bpack
from sa1bpack import masks
from sa1bpack.errors import OptionError
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader
from sa1bpack.transforms import Pipeline, Relate

NAMES = tuple(masks.RELATIONS)
BOTH = pytest.mark.parametrize("make", [Loader, make_dataloader])


@pytest.fixture(params=["bits", "runs"])
def ds(request, layout_packs):
    return sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"), masks=request.param)


@BOTH
@pytest.mark.parametrize("layout", ["padded", "flat", "padded_bits", "flat_bits"])
def test_relations_of_a_batch_are_those_of_the_kept_masks(ds, make, layout):
    if "bits" in layout and ds.options.masks == "runs":
        pytest.skip("a dataset that yields runs has no bits")
    loader = make(ds, 4, masks=layout, max_masks=7, relations=iter(NAMES), order="sequential")
    seen = 0
    for batch in loader:
        most = max(batch["mask_counts"].tolist())
        for k, row in enumerate(batch["indices"].tolist()):
            count, sample = int(batch["mask_counts"][k]), ds[row]
            start = 0 if "padded" in layout else int(batch["mask_offsets"][k])
            at = (k, slice(count)) if "padded" in layout else slice(start, start + count)
            ids = sample["annotation_ids"].tolist()
            kept = np.array([ids.index(number) for number in batch["annotation_ids"][at].tolist()])
            expected, seen = masks.relate(chosen(sample, kept.astype(np.int64))), seen + count
            for name, relation in masks.RELATIONS.items():
                found = batch[name][at]
                if relation.pairs:
                    assert found.shape[1] == most
                    assert not found[:, count:].any()
                    found = found[:, :count]
                value = getattr(expected, name).astype(found.numpy().dtype)
                np.testing.assert_array_equal(found.numpy(), value, name)
    assert seen == 3 + 0 + 5 + 1 + 2 + 7


def chosen(sample: dict, kept: np.ndarray) -> dict:
    """The masks of a sample at some places."""
    if "run_ends" not in sample:
        return {"masks": sample["masks"][kept]}
    runs = masks.take_masks(sample["run_ends"], sample["run_offset"], kept)
    return {"run_ends": runs[0], "run_offset": runs[1], "size": sample["size"]}


def test_both_loaders_yield_the_same_relations_and_all_else_as_without(ds):
    relate = Relate(["intersections", "touching", "parents"], share=0.5, neighbors=4)
    options = {"max_masks": 5, "pad_to_max": True, "seed": 3}
    loaders = [make(ds, 3, relations=relate, **options) for make in (Loader, make_dataloader)]
    for first, second, plain in zip(*loaders, Loader(ds, 3, **options), strict=True):
        found, others = dict(first), dict(second)
        for key in [key for key in found if key not in plain] + ["runs"]:
            value, other = found.pop(key, None), others.pop(key, None)
            assert key == "runs" or torch.equal(value, other), key
        plain = {key: value for key, value in plain.items() if key != "runs"}
        same(found, plain)
        same(others, plain)
        assert set(first) - set(plain) - {"runs"} == set(relate.names)
        assert first["intersections"].shape[1:] == (5, 5)


def test_worker_processes_send_relations(layout_packs):
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"))
    batches = [
        list(make_dataloader(ds, 2, workers=workers, order="sequential", relations="ious"))
        for workers in (0, 1)
    ]
    for single, sent in zip(*batches, strict=True):
        same(single, sent)


def test_a_plan_counts_the_relations(layout_packs):
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"))
    plans = [Loader(ds, 2, max_masks=9, relations=names).plan() for names in ((), NAMES[:2])]
    # int64 and float32 of pairs, for two batches.
    assert plans[1].host_bytes - plans[0].host_bytes == 2 * (2 * 9) * 9 * 12


@BOTH
def test_names_that_do_not_exist_are_refused_at_once(layout_packs, make):
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"))
    with pytest.raises(OptionError, match="relation is 'overlap': choose one of intersections"):
        make(ds, 2, relations=["overlap"])


def test_a_transform_that_returns_a_relation_is_refused(layout_packs):
    ds = sa1bpack.open(
        layout_packs("pad", "rgb", "bits+runs"), transform=lambda sample: sample | {"ious": 0}
    )
    with pytest.raises(OptionError, match="relations include 'ious', but the samples"):
        next(iter(make_dataloader(ds, 2, workers=0, relations=["ious"])))


def test_a_side_array_with_the_name_of_a_relation_is_refused_at_once(layout_packs, tmp_path):
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"))
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "ious", ids, ids, out=tmp_path / "ious")
    ds = ds.with_options(side=[tmp_path / "ious"])
    for make in (
        lambda names: Loader(ds, 2, relations=names),
        lambda names: make_dataloader(ds, 2, workers=0, relations=names),
        lambda names: Pipeline(ds, relations=names),
    ):
        with pytest.raises(OptionError, match="but the dataset has a side array of that name"):
            make(["parents", "ious"])
        make(["parents"])
