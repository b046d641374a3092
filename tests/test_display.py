"""What objects look like: how they were made, and never a screen of numbers."""

import copy
import pickle
from importlib import import_module

import numpy as np
import pytest
import torch
from reading_packs import packed  # noqa: F401 - a fixture

import sa1bpack
from sa1bpack import transforms


@pytest.fixture(scope="module")
def ds(packed):  # noqa: F811
    return sa1bpack.open(packed.root)


@pytest.fixture(scope="module")
def batch(ds):
    with sa1bpack.Loader(ds, 2, max_masks=3, pad_to_max=True) as loader:
        return next(iter(loader))


def test_the_repr_of_a_dataset_says_how_much_there_is_and_in_which_form(ds, packed):  # noqa: F811
    masks = ds.column("mask_count")
    form = "24 × 24 rgb, masks 16 bits, boxes in image pixels"
    count = f"{len(ds)} samples, {masks.sum()} masks"
    assert repr(ds) == f"<Dataset {packed.root}: {count}, {form}>"
    count = f"2 of {len(ds)} samples, {masks[:2].sum()} masks"
    assert repr(ds[:2]) == f"<Dataset {packed.root}: {count}, {form}>"
    other = ds.with_options(mask_format="bool", mask_size=32, coordinates="source")
    assert "masks 32 bool, boxes in source pixels" in repr(other)
    assert "masks as runs" in repr(ds.with_options(mask_format="runs"))


def test_masks_that_would_have_to_be_read_are_not_counted_for_a_repr(ds):
    ruled = ds.with_options(min_area=20)
    assert f"{len(ds)} samples, masks with min_area=20, " in repr(ruled)
    left = ruled.column("mask_count").sum()
    assert f"{left} masks, masks with min_area=20, " in repr(ruled)


def test_readers_orders_buckets_and_collate_show_what_they_were_made_with(ds):
    size, weights = len(ds), np.ones(len(ds))
    assert repr(sa1bpack.ShuffleOrder(ds, seed=3)) == f"<ShuffleOrder: {size} samples, seed=3>"
    assert repr(sa1bpack.SequentialOrder(ds)) == f"<SequentialOrder: {size} samples>"
    local = sa1bpack.LocalShuffleOrder(ds, window=2, block=4)
    assert repr(local) == f"<LocalShuffleOrder: {size} samples, seed=0, window=2, block=4>"
    assert ", samples=5>" in repr(sa1bpack.WeightedOrder(ds, weights, samples=5))
    batches = sa1bpack.OrderedBatches(local, 4, rank=1, world_size=2)
    assert repr(batches) == (f"<OrderedBatches of {local!r}: batch_size=4, rank 1 of 2>")
    assert repr(sa1bpack.Buckets(ds, batches=8)) == (
        f"<Buckets by mask_count, windows of 8 batches, {size} samples>"
    )
    options = {"max_masks": sa1bpack.LinearSchedule(2, 4, epochs=2), "threads": 1}
    with sa1bpack.Loader(ds, 2, shuffle=True, **options) as loader:
        assert repr(loader).endswith(
            " of 2, shuffle order, epoch 0, max_masks LinearSchedule(2, 4, epochs=2) padded, cpu, "
            "1 thread>"
        )


def test_steps_show_their_parameters(ds):
    crop = transforms.RandomResizedCrop()
    assert repr(crop) == "RandomResizedCrop(scale=(0.08, 1), ratio=(0.75, 1.333))"
    jitter = transforms.ColorJitter(0.4, hue=0.1)
    ranges = "brightness=(0.6, 1.4), contrast=(1, 1), saturation=(1, 1), hue=(-0.1, 0.1)"
    assert repr(jitter) == f"ColorJitter({ranges})"  # as features have it since before random_order
    shuffled = transforms.ColorJitter(0.4, hue=0.1, random_order=True)
    assert repr(shuffled) == f"ColorJitter({ranges}, random_order=True)"
    pipeline = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip(), jitter])
    assert f"([RandomHorizontalFlip(p=0.5), {jitter!r}], size=(24, 24), " in repr(pipeline)

    class Own(transforms.GeometricStep):
        def __init__(self, amount):
            self.kept = amount

    assert repr(Own(3)) == "Own()"  # an argument that was kept under another name


def test_samples_and_batches_show_the_shape_and_type_of_each_array_and_no_numbers(ds, batch):
    sample = ds[0]
    assert isinstance(sample, dict) and isinstance(batch, dict)
    lines = repr(sample).splitlines()
    assert lines[0] == f"Sample of {len(sample)} keys" and len(lines) == len(sample) + 1
    assert f"  image             uint8 {sample['image'].shape}" in lines
    assert f"  file_name         {sample['file_name']!r}" in lines
    text = str(batch)
    assert "  masks             bool (2, 3, 16, 16)\n" in text and "tensor" not in text
    assert "  epoch             0\n" in text
    more = {"names": [np.zeros(3), np.ones(3)], "meta": torch.empty(2, device="meta")}
    added = batch | more | {"note": "long " * 100}
    assert "names             list of 2, the first float64 (3,)" in repr(added)
    assert "meta              float32 (2,) meta" in repr(added)
    assert max(map(len, repr(added).splitlines())) < 100
    ends, offset = np.array([4, 8, 16], np.int32), np.array([0, 3])
    runs = transforms.RunBatch.collate([(ends, offset, 4, 4)])
    assert repr(runs) == "<RunBatch: 1 mask of 1 sample, 3 run ends on cpu>"
    pipeline = transforms.Pipeline(ds)
    assert "  images            float32 (2, 3, 24, 24)\n" in repr(pipeline(batch))
    assert repr(type(batch)()) == "Batch of 0 keys"


def test_samples_and_batches_are_dicts_wherever_dicts_are_expected(ds, batch):
    sample, Batch = ds[0], type(batch)
    Sample = type(sample)
    for made in (copy.copy(batch), batch.copy(), batch | {}, pickle.loads(pickle.dumps(batch))):
        assert type(made) is Batch and made.keys() == batch.keys()
        assert torch.equal(made["masks"], batch["masks"])
    assert type({**batch}) is dict and type({} | sample) is dict and type(sample.copy()) is Sample
    more = batch | {"note": 1}
    assert "note" not in batch and more["note"] == 1
    with pytest.raises(TypeError):
        batch | [1]
    with pytest.raises(KeyError, match=r"an attribute, batch\.spec"):
        batch["spec"]
    # torch's, for a DataLoader without Collate; samples must be of one shape.
    own = torch.utils.data.default_collate([Sample(x=np.ones(2)), Sample(x=np.zeros(2))])
    assert own["x"].tolist() == [[1, 1], [0, 0]]
    pin_memory = import_module("torch.utils.data._utils.pin_memory").pin_memory
    pinned = pin_memory(Batch(step=1, names=["a"]))
    assert type(pinned) is Batch and pinned == {"step": 1, "names": ["a"]}
    found = {"images": batch["images"], "mask_counts": batch["mask_counts"]}
    doubled = torch.func.vmap(lambda each: each | {"images": 2 * each["images"]})(Batch(found))
    assert type(doubled) is Batch and torch.equal(doubled["images"], 2 * batch["images"])


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_a_compiled_function_takes_a_batch(batch):
    def bright(given):
        return given["images"].float().mean() + given["global_step"]

    compiled = torch.compile(bright, backend="eager")
    assert compiled(batch) == bright(batch)


def test_a_saved_batch_is_loaded_by_torch_as_safe_data(batch, tmp_path):
    torch.save(batch, tmp_path / "batch.pt")
    found = torch.load(tmp_path / "batch.pt", weights_only=True)
    assert type(found) is type(batch) and torch.equal(found["masks"], batch["masks"])
