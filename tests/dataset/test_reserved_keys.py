"""One table has every key that anything writes into a sample or a batch, and nothing else."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from packs_with_features import Feature as Spec
from packs_with_features import write_side

import sa1bpack
from sa1bpack import OptionError
from sa1bpack import transforms as T
from sa1bpack.dataset.fields import TAKEN_BY, WRITTEN_KEYS
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.masks.relations import RELATIONS

STEPS = {
    "none": [],
    "affine, mixup": [T.RandomAffine(10), T.ColorJitter(0.1), T.Mixup()],
    "around a mask": [T.CropAroundMask((1.3, 3.0))],
    "crop, cutmix": [T.RandomResizedCrop(), T.RandomErasing(), T.CutMix()],
}
PROMPTS = T.Prompts({"point": 1, "box": 1, "mask": 1})
ON_THE_WAY = {"mask_positions"}  # in the buffer of a Loader that sends to a device
OF_ADAPTERS = set(WRITTEN_KEYS["as_tv_tensors"])
# Only packs that store them have these.
OPTIONAL = {number.key for number in MASK_NUMBERS if number.optional}


def loaded_batches(ds: sa1bpack.Dataset) -> Iterator[dict]:
    """Batches of everything that makes them, with the options that add keys."""
    relations = [] if ds.spec.masks.source == "runs" else list(RELATIONS)
    layouts = ["padded", "concat", "padded_bits", "concat_bits"]
    if ds.spec.masks.source == "runs":
        layouts = layouts[:2]
    weighted = sa1bpack.WeightedOrder(ds, np.ones(len(ds)), samples=9)
    for layout in layouts:
        masks = {"mask_layout": layout, "max_masks": 3, "relations": relations}
        for more in ({"order": weighted}, {"on_error": "drop", "pad_last": True}):
            yield from sa1bpack.Loader(ds, 8, **masks, **more)
            yield from sa1bpack.make_dataloader(ds, 8, num_workers=0, **masks, **more)
        buckets = sa1bpack.Buckets(ds, np.arange(len(ds)) % 2, exact=True)
        yield from sa1bpack.Loader(ds, 2, bucket_by=buckets, **masks)
        collate = sa1bpack.Collate(on_error="drop", sample_spec=ds.spec, **masks)
        yield collate([ds[0], ds[1]])


def written_keys(ds: sa1bpack.Dataset) -> set[str]:
    """The keys of samples and batches, before and after everything that takes batches."""
    keys = set(ds[0])
    for batch in loaded_batches(ds):
        keys |= batch.keys()
    with sa1bpack.Loader(ds, 2, max_masks=3) as loader:
        batch = next(iter(loader))
    for steps, relations in itertools.product(STEPS.values(), ((), list(RELATIONS))):
        options = {"relations": relations, "max_valid": 2, "max_cover": 0.9, "size": 32}
        made = T.Pipeline(ds, steps, **options)(batch)
        keys |= PROMPTS(made).keys()
    return keys


def test_what_is_written_anywhere_is_what_the_table_has(root):
    write_side(root, Spec("mine", "sample", "float16", (2, 4, 4), spatial=True))
    write_side(root, Spec("of_masks", "mask", "float32", (2,)))
    found = set()
    for mask_format, pixels in itertools.product(("bits", "bool", "runs"), ("rgb", "stored")):
        options = {"mask_format": mask_format, "pixels": pixels, "features": ["mine", "of_masks"]}
        found |= written_keys(sa1bpack.open(root, **options))
    table = set(RELATIONS).union(*WRITTEN_KEYS.values())
    assert found - table == {"mine", "of_masks"}
    assert table - found - OPTIONAL == ON_THE_WAY | OF_ADAPTERS


def attached(root, name):
    ds = sa1bpack.open(root)
    sa1bpack.attach(ds, name, np.zeros(len(ds)), ds.column("image_id"))


def derived(root, name):
    sa1bpack.derive(sa1bpack.open(root), name, mean_grey)


def opened(root, name):
    write_side(root, Spec(name, "sample", "float16", ()))
    sa1bpack.open(root, features=[name])


def mean_grey(batch):
    return batch["images"].float().mean((1, 2, 3))


@pytest.mark.parametrize("door", [attached, derived, opened])
def test_no_feature_is_called_as_a_key_that_is_written(root, door):
    for name in sorted(TAKEN_BY):
        with pytest.raises(OptionError, match=rf"name is '{name}': .* that key.*; choose another"):
            door(root, name)
    door(root, "ious")  # as a relation, which is refused where both are asked for
    ds = sa1bpack.open(root, features=["ious"])
    with pytest.raises(OptionError, match="relations has 'ious', also a feature"):
        T.Pipeline(ds, relations=["ious"])


def test_no_transform_adds_a_key_that_is_written(root):
    own = set(sa1bpack.open(root)[0]) | set(sa1bpack.open(root, mask_format="runs")[0])
    for name in sorted(TAKEN_BY.keys() - own - OF_ADAPTERS - OPTIONAL):
        ds = sa1bpack.open(root, transform=lambda sample, name=name: sample | {name: 1})
        with pytest.raises(OptionError, match=rf"the transform added '{name}' to a sample: "):
            next(iter(sa1bpack.make_dataloader(ds, 2, num_workers=0)))
    ds = sa1bpack.open(root, transform=lambda sample: sample | {"caption": 1, "boxes": 2})
    batch = next(iter(sa1bpack.make_dataloader(ds, 2, num_workers=0)))
    assert batch["caption"] == [1, 1]


COLUMNS = ("height", "mask_count", "annotation_count", "area", "bbox", "annotation_id")


@pytest.mark.parametrize("name", COLUMNS)
def test_no_new_feature_has_the_name_of_a_column(root, name):
    for door in (attached, derived):
        with pytest.raises(OptionError, match=rf"name is '{name}': .* a column of that name"):
            door(root, name)


def test_a_column_comes_before_an_old_feature_of_its_name(root):
    ds = sa1bpack.open(root, min_area=10)
    write_side(root, Spec("height", "sample", "float16", ()))
    write_side(root, Spec("area", "mask", "float16", ()))
    old = sa1bpack.open(root, min_area=10, features=["height", "area"])
    assert old.column("height").tolist() == ds.column("height").tolist()
    assert old.mask_column("area").tolist() == ds.mask_column("area").tolist()
    assert old.column("mask_count").tolist() == ds.column("mask_count").tolist()
    assert [len(sample["area"]) for sample in old] == ds.column("mask_count").tolist()
    limit = int(ds.column("height").max())
    assert len(old.where(f"height == {limit}")) == len(ds.where(f"height == {limit}")) > 0
