"""Masks of a batch are those of its samples, whatever the values that they are chosen by."""

import numpy as np
import pytest
from batches import BOTH, clone, same
from reading_packs import overwrite_scores

from sa1bpack.adapters.collate import Collate
from sa1bpack.adapters.dataloader import make_dataloader
from sa1bpack.dataset.fields import MASK_FIELDS
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.transforms.geometry import RandomHorizontalFlip
from sa1bpack.transforms.pipeline import Pipeline

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
        samples = [ds[row] for row in batch["indices"].tolist()]
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


MASKS = {field.sample for field in MASK_FIELDS}
