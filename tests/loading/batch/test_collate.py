"""Batches of Collate: what transforms may make of samples, unreadable samples, and what is refused
before it becomes a wrong batch."""

import numpy as np
import pytest
import torch
from batches import LAYOUTS, same, same_batches
from torch.utils.data import ConcatDataset, DataLoader, Subset

from sa1bpack import (
    Collate,
    Loader,
    LoaderError,
    OptionError,
    OrderedBatches,
    ReadError,
    ShuffleOrder,
    WeightedOrder,
    make_dataloader,
)
from sa1bpack import open as open_pack
from sa1bpack.transforms import Pipeline


def test_keys_that_a_transform_removes_or_adds_show_in_the_batch(packed):
    """Other keys are lists; arrays of any type and shape are stacked."""

    def transform(sample):
        image = sample["image"].astype(np.float32).transpose(2, 0, 1)
        masks = np.asarray(sample["masks"])[:1]
        return {"image": torch.from_numpy(image), "masks": masks, "row": sample["row"],
                "areas": sample["areas"][:1], "text": sample["file_name"]}  # fmt: skip

    ds = open_pack(packed.root, transform=transform)
    batch = Collate()(ds.__getitems__([4, 1]))
    assert batch.keys() == {"images", "masks", "indices", "areas", "mask_counts", "text"}
    assert batch["images"].dtype == torch.float32 and batch["images"].shape == (2, 3, 24, 24)
    assert batch["text"] == ["sa_4988.jpg", "sa_4997.jpg"]
    assert batch["mask_counts"].tolist() == [1, 0] and batch["masks"].shape == (2, 1, 16, 16)


def changed(key, change, row=None):
    """A transform that changes one key of a sample, or of all samples."""

    def transform(sample):
        here = row in (None, sample["row"])
        return sample | {key: change(sample.get(key))} if here else sample

    return transform


@pytest.mark.parametrize(
    ("key", "change", "fault"),
    [
        ("image", lambda a: a[:5], r"sa_4994.jpg.*image is uint8 \(5, 24, 3"),
        ("areas", lambda a: a[:1], "sa_4994.jpg.*different lengths.*'areas': 1"),
        ("extra", lambda _: 1, "sa_4994.jpg.*keys"),
        ("bboxes", lambda a: a[:, :2], r"bboxes is float64 \(2,\), but"),
        ("masks", lambda a: a.astype(np.float32), "masks.*float32"),
    ],
)  # fmt: skip
def test_samples_that_do_not_go_together_are_an_error_with_the_name(ds, key, change, fault):
    """Numpy would stretch an array of length one over the place of many."""
    samples = ds.with_options(transform=changed(key, change, 2)).__getitems__([0, 2])
    with pytest.raises(OptionError, match=fault):
        Collate()(samples)


@pytest.mark.parametrize(("key", "change", "fault"), [
    ("image", lambda a: (a / 255).astype(np.float32), ""),
    ("image", lambda a: a.astype(np.int64), ""),
    ("areas", lambda a: a / 2, "areas is float64 .*areas .* int64"),
    ("annotation_ids", lambda a: a.astype(str), "annotation_ids is <U"),
    ("bboxes", lambda a: a.astype(complex), "bboxes is complex128 .* float32"),
    ("row", float, "row is float64 .*indices .* int64"),
])  # fmt: skip
@pytest.mark.parametrize("rows", [[0, 2], [2, 0]])
def test_types_that_a_batch_would_change_are_an_error_with_the_name(ds, key, change, fault, rows):
    """Floats from 0 to 1 in a batch of bytes would be zeros."""
    samples = ds.with_options(transform=changed(key, change, 2)).__getitems__(rows)
    first, second = (sample["image"].dtype for sample in samples)
    fault = fault or f"image is {second} .*images .* {first}"
    with pytest.raises(OptionError, match=rf"sa_\d+.jpg .*{fault}"):
        Collate()(samples)


@pytest.fixture
def unread(damaged):
    """A dataset whose samples 4 to 6 are errors."""
    return damaged.with_options(on_error="return")


def test_a_sample_that_cannot_be_read_is_an_error_by_default(unread):
    """With its name."""
    with pytest.raises(ReadError, match=r"sa_4988\.jpg"):
        Collate()(unread.__getitems__([3, 4, 7]))


def test_dropped_samples_are_counted_named_and_not_replaced(unread, ds):
    """The rest of the batch is as it is without them; also if nothing is left."""
    collate = Collate(on_error="drop")
    batch = collate(unread.__getitems__([3, 4, 7, 6]))
    assert batch.pop("dropped").tolist() == [4, 6]
    expected = Collate()(ds.__getitems__([3, 7]))
    same(batch, expected)
    assert [error.image_id for error in collate.dropped] == [4988, 4982]
    assert collate(unread.__getitems__([1]))["dropped"].shape == (0,)
    assert len(collate.dropped) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_in_which_nothing_remains_is_an_error(unread, layout):
    with pytest.raises(LoaderError, match=r"none of the 2 samples .* could be read: row 4"):
        Collate(layout, on_error="drop")(unread.__getitems__([4, 5]))
    with pytest.raises(OptionError, match="at least one sample"):
        Collate(layout)([])


@pytest.mark.parametrize("made", [None, [1, 2], 7])
def test_a_transform_that_does_not_return_a_dict_is_named(packed, made):
    dataset = open_pack(packed.root, transform=lambda sample: made)
    named = f"transform returned {type(made).__name__}: it must return a dict"
    with pytest.raises(OptionError, match=named):
        Collate()(dataset.__getitems__([0, 2]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask_layout": "bits"}, {"mask_layout": "flat"}, {"mask_select": "best"},
        {"on_error": "skip"}, {"max_masks": -1},
        {"max_masks": 2.0}, {"max_masks": True}, {"max_masks": 2**31}, {"seed": -1},
        {"seed": 2**64}, {"pad_to_max": True},
        {"pad_to_max": True, "max_masks": 3, "mask_layout": "concat"},
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused(wrong):
    """When the object is made, not in the first batch."""
    with pytest.raises(OptionError):
        Collate(**wrong)


def as_bytes(masks):
    return np.asarray(masks).astype(np.uint8)


@pytest.mark.parametrize("layout", ["padded", "concat_bits"])
@pytest.mark.parametrize("hook", [as_bytes, lambda masks: as_bytes(masks)[:, 2:10, :12]])
def test_unpacked_masks_that_are_bytes_are_not_taken_for_bits(packed, layout, hook):
    ds = open_pack(packed.root, mask_format="bool", transform=changed("masks", hook))
    with pytest.raises(OptionError, match=r"the masks of a sample are uint8 .* as bool"):
        next(iter(make_dataloader(ds, 4, mask_layout=layout, num_workers=0)))
    square = ds.with_options(transform=changed("masks", as_bytes))
    with pytest.raises(OptionError, match=r"the masks of a sample are uint8"):
        Collate(layout)(square.__getitems__([0, 2]))


def test_masks_of_an_odd_width_cannot_become_bits(packed):
    ds = open_pack(
        packed.root, mask_format="bool", transform=changed("masks", lambda a: a[:, :, :9])
    )
    with pytest.raises(OptionError, match=r"bool \(2, 16, 9\): .* a multiple of 8"):
        Collate("concat_bits")([ds[0]])
    assert Collate("concat")([ds[0]])["masks"].shape == (2, 16, 9)


@pytest.mark.parametrize("make", [Loader, make_dataloader])
def test_bits_of_a_dataset_of_runs_are_refused_when_the_loader_is_made(ds, make):
    with pytest.raises(OptionError, match="the dataset yields their runs"):
        make(ds.with_options(mask_format="runs"), 4, mask_layout="padded_bits")


def test_runs_of_fewer_masks_than_the_rest_are_an_error_with_the_name(ds):
    samples = []
    for row in (0, 2):  # the made pack's runs are random, so they are put in here
        sample = ds[row]
        del sample["masks"]
        count = len(sample["areas"]) - (row == 2)
        ends, offset = np.full(count, 150 * 225, np.int32), np.arange(count + 1)
        samples.append(sample | {"run_ends": ends, "run_offset": offset})
    with pytest.raises(OptionError, match=r"sa_4994.jpg.*different lengths.*'run_offset .*': 4"):
        Collate()(samples)


def test_a_batch_has_the_spec_of_its_samples_where_collate_knows_it(ds):
    stored, ds = ds.with_options(coordinates="stored"), ds.with_options(coordinates="source")
    samples = [stored[0], stored[3]]
    batch = Collate(sample_spec=stored.spec)(samples)
    assert batch.spec == stored.spec_text and "stored coordinates" in batch.spec
    plain = Collate()(samples)
    assert plain.spec is None and batch.keys() == plain.keys()
    with pytest.raises(OptionError, match="create the pipeline with the dataset that the batches"):
        Pipeline(ds)(batch)
    for described in (stored, Subset(stored, [3]), Subset(Subset(stored, [0, 3]), [1])):
        assert "boxes_xyxy" in Pipeline(described)(batch)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("repeats", [False, True])
def test_a_dataloader_of_ones_own_chooses_the_masks_of_a_loader_in_every_epoch(
    ds, repeats, workers
):
    """OrderedBatches pass on the epoch and the repetitions: nobody has to set them."""
    order = ShuffleOrder(ds, seed=3)
    if repeats:
        weights = np.ones(len(ds))
        weights[0] = 20
        order = WeightedOrder(ds, weights, seed=3)
    choice = {"max_masks": 1, "mask_select": "random"}
    collate = Collate(seed=3, sample_spec=ds.spec, **choice)
    batches = OrderedBatches(order, 3)
    own = DataLoader(ds, batch_sampler=batches, collate_fn=collate, num_workers=workers)
    with Loader(ds, 3, order=order, **choice) as loader:
        for _ in range(3):
            made = list(own)
            same_batches(made, loader)
            repeated = sum(int(batch.get("repetitions", torch.zeros(1)).max()) for batch in made)
            assert (repeated > 0) == repeats


def test_repetitions_of_dropped_samples_are_dropped_with_them(unread):
    rows = [3, 4, 3, 7]
    weights = np.zeros(len(unread))
    weights[rows] = 1
    order = WeightedOrder(unread, weights, samples=12, seed=1)
    collate = Collate(on_error="drop", sample_spec=unread.spec)
    batches = OrderedBatches(order, 12)
    [batch] = DataLoader(unread, batch_sampler=batches, collate_fn=collate)
    seen = {}
    pairs = zip(batch["indices"].tolist(), batch["repetitions"].tolist(), strict=True)
    for index, repetition in pairs:
        assert repetition == seen.get(index, 0)
        seen[index] = repetition + 1
    assert seen.keys() == {3, 7} and len(batch["dropped"]) > 0


def test_anything_but_a_list_of_samples_is_refused(ds):
    for wrong in (ds[0], None, 3):
        with pytest.raises(OptionError, match=r"a list of samples, .* pass \[sample\]"):
            Collate()(wrong)
    with pytest.raises(OptionError, match="sample_spec is 3: pass the `spec` of a dataset"):
        Collate(sample_spec=3)


@pytest.mark.parametrize("size", [(64, 64), (-4, 4), (4, 6)])
def test_planes_that_are_not_of_their_size_are_refused(layout_packs, size):
    """Their pixels are copied by address."""
    spec = open_pack(layout_packs("native", "yuv420"), pixels="stored").spec
    image = np.zeros(4 * 4 + 2 * 2 * 2, np.uint8)
    sample = {"image": image, "image_id": 1, "size": np.array([8, 8, *size], np.int32)}
    with pytest.raises(OptionError, match="does not fit a canvas"):
        Collate(sample_spec=spec)([sample])


def test_bits_that_a_hook_cut_are_still_bits(packed):
    ds = open_pack(packed.root, transform=changed("masks", lambda bits: bits[:, 4:12, :1]))
    batch = next(iter(make_dataloader(ds, 4, num_workers=0)))
    complete = Collate()([open_pack(packed.root)[k] for k in range(4)])["masks"]
    assert torch.equal(batch["masks"], complete[:, :, 4:12, :8])


def test_numbers_that_a_batch_can_hold_may_be_of_any_type(ds):
    def transform(sample):
        return sample | {"bboxes": sample["bboxes"].astype(np.int16), "row": np.int8(3)}

    batch = Collate()(ds.with_options(transform=transform).__getitems__([0, 2]))
    assert batch["bboxes"].dtype == torch.float32 and batch["indices"].tolist() == [3, 3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("select", ["random", lambda columns: columns["area"] ** 0.5])
def test_masks_are_not_drawn_for_a_loader_whose_epoch_is_not_known(packed, workers, select):
    """Every epoch had the same masks."""
    ds = open_pack(packed.root).where("mask_count >= 2")

    def loader_of(dataset=ds, **sampling):
        collate = Collate(max_masks=1, mask_select=select)
        return DataLoader(dataset, collate_fn=collate, num_workers=workers, **sampling)

    def drawn(loader):
        return [batch["annotation_ids"].tolist() for batch in loader]

    batches = OrderedBatches(ShuffleOrder(ds), 1)
    for unknown in (
        loader_of(shuffle=True),
        loader_of(Subset(ds, range(len(ds))), batch_sampler=batches),
        loader_of(ConcatDataset([ds]), shuffle=True),
        map(Collate(max_masks=1, mask_select=select), [[*ds]]),  # a loop by hand
    ):
        with pytest.raises(OptionError, match=r"does not pass on the epoch.*set_epoch of"):
            next(iter(unknown))
    loader = loader_of()
    seen = []
    for epoch in range(6):
        loader.collate_fn.set_epoch(epoch)
        seen.append(drawn(loader))
    assert len(set(map(str, seen))) > 3
    passed_on = loader_of(batch_sampler=batches)
    assert len({str(sorted(drawn(passed_on))) for _ in range(6)}) > 3
    by_hand = Collate(max_masks=1, mask_select=select)
    by_hand.set_epoch(0)
    assert np.array_equal(by_hand([*ds])["annotation_ids"], np.concatenate(seen[0]))
    # Nothing is drawn of what is not random.
    largest = Collate(max_masks=1)
    assert len(list(DataLoader(ds, collate_fn=largest, num_workers=workers))) == len(ds)
