"""Masks of a batch: those of its samples, whatever they are chosen by; by rule, with counts that
hold; and their relations."""

import numpy as np
import pytest
from batches import BOTH, clone, same
from loader_seams import before_copies
from reading_packs import overwrite_scores

import sa1bpack
from sa1bpack import Collate, Loader, LoaderError, OptionError, ReadError, make_dataloader
from sa1bpack import open as open_pack
from sa1bpack.format import replacing
from sa1bpack.transforms import Pipeline, RandomHorizontalFlip

MASKS = {"masks", "bboxes", "areas", "predicted_ious", "stability_scores", "point_coords"}
MASKS |= {"crop_boxes", "annotation_ids"}
RANDOM = np.random.default_rng(1)
DAMAGED = {
    "mixed": lambda values: RANDOM.permutation(np.linspace(-3, 3, len(values))),
    "random bytes": lambda values: np.frombuffer(RANDOM.bytes(values.nbytes), values.dtype),
}


@BOTH
@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize(("mask_select", "array"), [("iou", "predicted_iou"), ("largest", "area")])
def test_a_loader_yields_masks_of_its_own_samples_alone(root, make, damage, mask_select, array):
    """As many as there may be, whatever the numbers that decide it."""
    masks = "padded" if mask_select == "iou" else "concat_bits"
    overwrite_scores(root, array, DAMAGED[damage])
    ds, seen = open_pack(root), 0
    collate = Collate(masks, max_masks=3, mask_select=mask_select)
    for batch in make(ds, 4, mask_layout=masks, max_masks=3, mask_select=mask_select):
        samples = ds.__getitems__(batch["indices"].tolist())
        same(clone(batch), collate(samples))
        expected = [min(3, len(sample["areas"])) for sample in samples]
        assert batch["mask_counts"].tolist() == expected
        seen += len(samples)
    assert seen == len(ds) == 12


@BOTH
def test_an_array_that_does_not_weight_the_masks_of_the_dataset_is_refused(root, make):
    ds = open_pack(root)[3:]
    weights = np.ones(ds.mask_offsets[-1])
    bad, text = weights.copy(), weights.astype(str)
    bad[3] = np.nan
    for value, named in (
        (np.ones(5), r"float64 \(5,\): .* one number per mask of the dataset, \(\d+,\)"),
        (bad, "finite numbers of at least 0; mask of the dataset 3 has nan"),
        (-bad, "finite numbers of at least 0; mask of the dataset 0 has -1"),
        (text, "mask_select is <U"),
    ):
        with pytest.raises(OptionError, match=named):
            make(ds, 4, max_masks=2, mask_select=value)


@BOTH
def test_weights_of_samples_with_one_id_must_be_the_same(root, make):
    """Weights are found by the image id: those of a second sample with it were passed over."""
    whole = open_pack(root)
    fullest = int(whole.column("mask_count").argmax())
    ds = whole[[fullest, 0 if fullest else 1, fullest]]
    masks = np.diff(ds.mask_offsets)
    second_mask = np.arange(masks[0]) == 1
    others = np.ones(masks[1])
    weights = np.concatenate([second_mask, others, second_mask])
    batch = next(iter(make(ds, 3, max_masks=1, mask_select=weights)))
    expected = ds[0]["annotation_ids"][1]
    assert batch["annotation_ids"][[0, 2], 0].tolist() == [expected, expected]
    weights = np.concatenate([second_mask, others, ~second_mask])
    named = f"samples 0 and 2 of the dataset, which both have image_id {ds[0]['image_id']}, by"
    with pytest.raises(OptionError, match=named):
        make(ds, 3, max_masks=1, mask_select=weights)


@BOTH
def test_a_choice_that_has_no_effect_is_said(root, make, caplog):
    ds = open_pack(root)
    make(ds, 4, max_masks=[2, None], mask_select="random")
    make(ds, 4, mask_select="largest")
    assert not caplog.records
    make(ds, 4, mask_select="random")
    [record] = caplog.records
    assert (
        record.getMessage() == "mask_select has no effect: max_masks is None, so all masks are kept"
    )


@BOTH
@pytest.mark.parametrize("mask_layout", ["padded", "concat", "padded_bits"])
def test_max_masks_of_0_yields_images_and_no_masks(ds, make, mask_layout):
    options = {"mask_layout": mask_layout, "max_masks": 0, "relations": ["ious"]}
    pipeline = Pipeline(ds, [RandomHorizontalFlip()])
    for batch in make(ds, 4, **options):
        images = np.stack([ds[row]["image"] for row in batch["indices"].tolist()])
        assert np.array_equal(batch["images"].numpy(), images)
        made = pipeline(batch)
        assert (
            batch["mask_counts"].sum() == made["masks"].numel() == made["boxes_xyxy"].numel() == 0
        )


@BOTH
@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("mask_layout", ["padded", "concat_bits"])
def test_a_mask_of_weight_0_never_comes(root, make, mask_layout, verified):
    """Not even where an image has fewer others than `max_masks`, or no others."""
    ds = open_pack(root, verify_checksums=verified)
    ids = ds.mask_column("annotation_id")
    owner = np.repeat(np.arange(len(ds)), np.diff(ds.mask_offsets))
    weights = np.where((owner % 3 == 0) | (ids % 2 == 0), 0.0, 1.0)
    has_weight = set(ids[weights > 0].tolist())
    counts = np.bincount(owner, weights=weights, minlength=len(ds)).astype(int)
    for most in (1, 2, 1000):
        options = {"mask_layout": mask_layout, "max_masks": most, "mask_select": weights}
        seen = 0
        for batch in make(ds, 4, **options):
            expected = np.minimum(counts[batch["indices"].tolist()], most)
            assert batch["mask_counts"].tolist() == expected.tolist()
            chosen = batch["annotation_ids"].flatten().tolist()
            if mask_layout == "padded":
                assert batch["masks"].shape[1] == expected.max()
                kept = np.arange(expected.max()) < expected[:, None]
                chosen = batch["annotation_ids"].numpy()[kept].tolist()
            assert len(chosen) == expected.sum()
            assert set(chosen) <= has_weight
            seen += len(batch["indices"])
        assert seen == len(ds)


def test_a_transform_that_drops_masks_is_refused_with_an_array(root):
    def half(sample):
        return {
            key: value[:-1] if key in MASKS and len(value) else value
            for key, value in sample.items()
        }

    ds = open_pack(root, transform=half)
    weights = np.ones(ds.mask_offsets[-1])
    with pytest.raises(LoaderError, match="a transform that drops masks needs a function"):
        list(make_dataloader(ds, 4, num_workers=0, max_masks=1, mask_select=weights))
    loader = make_dataloader(
        ds, 4, num_workers=0, max_masks=1, mask_select=lambda columns: columns["area"]
    )
    assert sum(len(batch["indices"]) for batch in loader) == 12


# ------------------------------------------------------------------------------------------- rules


@BOTH
@pytest.mark.parametrize("verified", [False, True])
def test_batches_in_which_no_sample_has_a_mask_are_batches(root, make, verified):
    ds = open_pack(root, min_area=51, verify_checksums=verified)
    for masks in ("padded", "concat"):
        batches = [clone(batch) for batch in make(ds, 4, mask_layout=masks, max_masks=3)]
        assert sorted(i for batch in batches for i in batch["indices"].tolist()) == list(range(12))
        assert all(not batch["mask_counts"].any() for batch in batches)
        assert all(batch["masks"].numel() == 0 for batch in batches)


def test_a_count_that_differs_from_the_plan_is_an_error_of_the_sample(root, monkeypatch):
    """What was read to plan with is damaged, and what was read to copy is sound."""
    sound = {path: path.read_bytes() for path in root.glob("shards/*/area/c.0*")}
    overwrite_scores(root, "area", np.zeros_like)

    def repaired(_):
        """Called by several threads, while others read."""
        for path, data in sound.items():
            replacing.replace_file(path, data)

    before_copies(monkeypatch, repaired)
    ds = open_pack(root, verify_checksums=True, min_area=1)
    with Loader(ds, 12) as loader, pytest.raises(ReadError) as caught:
        list(loader)
    assert "2 of its 2 masks are kept, where 0 were to be by what was read" in str(caught.value)


def test_a_plan_needs_no_scores_and_is_large_enough(root):
    ds = open_pack(root, min_area=12, min_iou=0.8)
    for path in root.glob("shards/*/predicted_iou/c.0*"):
        path.unlink()
    assert Loader(ds, 4).plan().most_masks == 12


# --------------------------------------------------------------------------------------- relations


def test_a_plan_counts_the_relations(ds):
    plans = [
        Loader(ds, 2, max_masks=9, relations=names).plan()
        for names in ((), ("intersections", "ious"))
    ]
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
