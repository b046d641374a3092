"""The Loader's batches: those of Collate, for every layout, order, rank and point of resumption."""

import re

import numpy as np
import pytest
import torch
from batches import clone, same
from simulated_cuda import SimulatedCuda
from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack.batch.collate import Collate
from sa1bpack.batch.layout import LAYOUTS
from sa1bpack.batch.mask_choice import MaskChoice
from sa1bpack.batch.spec import BatchSpec
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.format import Layout
from sa1bpack.loading import devices
from sa1bpack.loading.batch_copy import BatchSource
from sa1bpack.loading.devices import Host
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.planner import Planner
from sa1bpack.order.batches import OrderedBatches
from sa1bpack.order.orders import LocalShuffleOrder, WeightedOrder
from sa1bpack.wording import size_text


@pytest.fixture
def ds(packed):
    return open_pack(packed.root)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("choice", [
    {}, {"max_masks": 3}, {"max_masks": 3, "choose": "iou"},
    {"max_masks": 3, "choose": "random", "seed": 5}, {"max_masks": 40},
])  # fmt: skip
def test_batches_are_those_of_collate(ds, layout, choice):
    collate = Collate(layout, **choice)
    with Loader(ds, 5, masks=layout, **choice) as loader:
        for epoch in range(2):
            collate.set_epoch(epoch)
            batches = [clone(batch) for batch in loader]
            assert len(batches) == len(loader) == 3
            for batch in batches:
                rows = batch["indices"].tolist()
                same(batch, collate([ds[row] for row in rows]))


@pytest.mark.parametrize("layout", ["padded", "padded_bits"])
def test_pad_to_max_makes_all_batches_the_same_shape(ds, layout):
    collate = Collate(layout, max_masks=6, pad_to_max=True)
    with Loader(ds, 2, masks=layout, max_masks=6, pad_to_max=True) as loader:
        for batch in loader:
            assert batch["masks"].shape[1] == 6
            same(batch, collate([ds[row] for row in batch["indices"].tolist()]))


def test_coordinates_are_those_that_the_dataset_was_opened_with(packed):
    ds = open_pack(packed.root, coordinates="stored")
    collate = Collate()
    with Loader(ds, 4) as loader:
        for batch in loader:
            same(batch, collate([ds[row] for row in batch["indices"].tolist()]))


def test_a_buffer_that_held_a_fuller_batch_leaves_no_trace(ds):
    with Loader(ds, 1, masks="padded", ahead=1, order="sequential") as loader:
        for epoch in range(3):
            for row, batch in enumerate(loader):
                same(batch, Collate()([ds[row]]))
            assert row == len(ds) - 1, epoch


def test_a_subset_in_any_order_is_read_through_its_own_rows(ds):
    rows = [7, 2, 2, 9]
    part = ds[np.array(rows)]
    with Loader(part, 3, order="sequential") as loader:
        assert torch.cat([batch["indices"] for batch in loader]).tolist() == rows


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_together_yield_the_same_global_batches(ds, world_size):
    ranks = [
        Loader(ds, 4, rank=rank, world_size=world_size, seed=3, last="pad")
        for rank in range(world_size)
    ]
    complete = Loader(ds, 4, rank=0, world_size=1, seed=3, last="pad")
    for parts in zip(complete, *ranks, strict=True):
        together = torch.cat([part["indices"] for part in parts[1:]])
        assert torch.equal(together, parts[0]["indices"])
    for loader in (complete, *ranks):
        loader.close()


@pytest.mark.parametrize("order", ["shuffle", "local", "home", "sequential"])
def test_every_sample_comes_once_per_epoch(ds, order):
    with Loader(ds, 5, order=order) as loader:
        for _ in range(2):
            rows = torch.cat([batch["indices"] for batch in loader])
            assert sorted(rows.tolist()) == list(range(len(ds)))


def test_an_order_can_be_given(ds):
    weights = ds.column("mask_count")
    with Loader(ds, 6, order=WeightedOrder(ds, weights, seed=1)) as loader:
        rows = torch.cat([batch["indices"] for batch in loader]).numpy()
    assert (weights[rows] > 0).all()
    with Loader(ds, 5, order=LocalShuffleOrder(ds, window=1), last="drop") as loader:
        assert [len(batch["indices"]) for batch in loader] == [5, 5]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_state_resumes_with_the_batch_that_was_not_taken(ds, threads):
    options = {"seed": 2, "masks": "flat", "max_masks": 2, "choose": "random", "threads": threads}
    with Loader(ds, 3, **options) as loader:
        complete = [clone(batch) for _ in range(2) for batch in loader]
        for taken in range(len(complete)):
            loader.load_state_dict(Loader(ds, 3, **options).state_dict())
            iterator = iter(loader)
            for number in range(taken):
                batch = next(iterator, None)
                if batch is None:
                    iterator = iter(loader)
                    batch = next(iterator)
                same(clone(batch), complete[number])
            state = loader.state_dict()
            with Loader(ds, 3, **options) as other:
                other.load_state_dict(state)
                rest = [clone(batch) for batch in other]
            epochs_end = len(loader) if taken < len(loader) else 2 * len(loader)
            assert len(rest) == epochs_end - taken
            for batch, expected in zip(rest, complete[taken:], strict=False):
                same(batch, expected)


def test_a_state_can_be_loaded_on_another_number_of_ranks(ds):
    with Loader(ds, 4, rank=0, world_size=1, last="pad") as one:
        complete = [batch["indices"].clone() for batch in one]
        one.load_state_dict(Loader(ds, 4, rank=0, world_size=1, last="pad").state_dict())
        next(iter(one))
        state = one.state_dict()
    parts = []
    for rank in range(2):
        with Loader(ds, 4, rank=rank, world_size=2, last="pad") as loader:
            loader.load_state_dict(state)
            parts.append([batch["indices"].clone() for batch in loader])
    both = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(both, complete[1:], strict=True))


def test_set_epoch_decides_the_epoch_and_the_state(ds):
    with Loader(ds, 4) as loader:
        first = [batch["indices"].clone() for batch in loader]
        second = [batch["indices"].clone() for batch in loader]
        assert loader.state_dict()["epoch"] == 2
        loader.set_epoch(1)
        assert loader.state_dict()["epoch"] == 1
        again = [batch["indices"].clone() for batch in loader]
    assert all(torch.equal(a, b) for a, b in zip(second, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_plan_states_the_memory_before_any_is_allocated(ds, monkeypatch):
    loader = Loader(ds, 4, ahead=3, threads=2, masks="padded_bits")
    monkeypatch.setattr(Host, "allocate", lambda self, nbytes: pytest.fail("allocated"))
    plan = loader.plan()
    pixels, masks = 24 * 24 * 3, 12 * 16 * 2
    assert (plan.samples, plan.most_masks, plan.batches, plan.threads) == (4, 12, 5, 2)
    assert plan.host_bytes == 5 * plan.batch_bytes and plan.pinned_bytes == plan.device_bytes == 0
    numbers = 12 * (4 * 4 + 8 + 4 + 4 + 2 * 4 + 8)
    least = 4 * (pixels + masks + numbers)
    assert least < plan.batch_bytes < least + 1100 + 4096  # masks begin at a block of the disk
    assert str(plan).startswith("5 batches at once, of up to 4 samples with up to 12 masks")


def test_the_plan_says_what_a_batch_without_a_cap_takes(tmp_path):
    """The image with the most masks decides, as those of SA-1B do that have more than 400."""
    tar = write_tar(
        tmp_path / "sa_000000.tar", members([1, 2], masks=lambda n: 410 if n == 2 else 3)
    )
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, progress=False, **SMALL)
    ds = sa1bpack.open(tmp_path / "pack")
    for plan in (Loader(ds, 2).plan(), sa1bpack.make_dataloader(ds, 2).plan()):
        assert "without max_masks the image with the most masks, 410, decides" in plan.uncapped
        capped = Loader(ds, 2, max_masks=64).plan()
        assert capped.uncapped == "" and capped.batch_bytes < plan.batch_bytes / 3
        assert "max_masks=64 takes" in str(plan)
    assert size_text(capped.batch_bytes) in Loader(ds, 2).plan().uncapped
    assert Loader(ds, 2, max_masks=[4, 8]).plan().uncapped == ""


@pytest.mark.parametrize("layout, row", [("padded", 16), ("flat", 16), ("flat_bits", 2)])
def test_the_plan_counts_the_masks_that_the_device_unpacks(ds, layout, row, monkeypatch):
    """Those of two batches; of a device that is simulated."""
    monkeypatch.setattr(devices, "CUDA", SimulatedCuda())
    plan = Loader(ds, 4, masks=layout, device="cuda").plan()
    made = 2 * 4 * 12 * 16 * row if layout != "flat_bits" else 0
    temporary = 4 * 12 * 32 if layout == "padded" else 0
    # Besides, small tensors are copied, and every allocation is rounded up.
    least = (plan.batches + 1) * plan.batch_bytes + made + temporary
    assert least <= plan.device_bytes < least + 2 * 6000 + 100 * 512


def test_the_plan_counts_what_the_allocator_of_a_device_does_not_cut_off(
    pack_writer, tmp_path, monkeypatch
):
    """Blocks of 31 MiB are made of 32: as much as cannot be cut off is in use."""
    pack_writer(tmp_path / "pack", {"sa_000000-000": (14,)}, Layout(image_size=1024, mask_size=256))
    ds = open_pack(tmp_path / "pack")[np.zeros(10, int)]
    cuda = SimulatedCuda()
    monkeypatch.setattr(devices, "CUDA", cuda)
    plan = Loader(ds, 10, masks="padded_bits", device="cuda", ahead=1).plan()
    assert 31 << 20 < plan.batch_bytes < 32 << 20
    held = [cuda.empty(plan.batch_bytes, 0) for _ in range(plan.batches + 1)]
    assert len(held) == 4 and cuda.live[0] == 4 * 32 << 20
    assert cuda.live[0] <= plan.device_bytes < cuda.live[0] + (5 << 20)


def test_the_plan_counts_the_samples_of_one_rank(ds):
    alone, one_of_two = Loader(ds, 4), Loader(ds, 4, rank=0, world_size=2)
    assert (alone.plan().samples, one_of_two.plan().samples) == (4, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_batch_needs_more_than_the_plan_says(ds, layout):
    loader = Loader(ds, len(ds), masks=layout)
    fullest = np.argsort(-ds.column("mask_count"))[:1].repeat(len(ds))
    loader.close()
    spec = BatchSpec.of(ds, LAYOUTS[layout], to_device=False)
    [(copy, errors)] = Planner(BatchSource(ds, spec, MaskChoice(), None)).plan([fullest], 0)
    assert not errors and copy.nbytes == loader.plan().batch_bytes


TIMEOUTS = (0, -1, float("inf"), float("nan"), "a", None, True, 1e10)


@pytest.mark.parametrize(("options", "named"), [
    ({"batch_size": None}, "batch_size is None"),
    ({"batch_size": 0}, "batch_size"),
    ({"order": "random"}, "order is 'random'.*shuffle"),
    ({"order": 3}, "order is 3"),
    ({"masks": "bits"}, "masks is 'bits'.*padded_bits"),
    ({"max_masks": 0}, "max_masks is 0"),
    ({"choose": "best"}, "choose is 'best'"),
    ({"pad_to_max": True}, "pad_to_max needs max_masks"),
    ({"device": "tpu"}, "device is 'tpu'"),
    ({"device": "meta"}, "device is 'meta'.*'cpu' or 'cuda'"),
    ({"threads": 0}, "threads is 0: choose a whole number from 1 to 1024"),
    ({"threads": 1.5}, "threads is 1.5"),
    ({"ahead": 0}, "ahead is 0"),
    ({"ahead": True}, "ahead is True"),
    *[({"timeout": value}, re.escape(f"timeout is {value!r}")) for value in TIMEOUTS],
    ({"on_error": "skip"}, "on_error is 'skip'"),
    ({"rank": 0}, "give both or neither"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_is_named(ds, options, named):
    with pytest.raises(OptionError, match=named):
        Loader(ds, **({"batch_size": 4} | options))


def test_whole_numbers_of_numpy_are_whole_numbers(ds):
    numbers = {"max_masks": np.int64(3), "threads": np.int32(2), "ahead": np.uint8(1)}
    with Loader(ds, np.int64(4), rank=np.int64(0), world_size=np.int64(1), **numbers) as loader:
        plan = loader.plan()
        assert all(type(number) is int for number in (plan.threads, plan.batches, plan.samples))
        assert [len(batch["images"]) for batch in loader] == [4, 4, 4]


def test_an_order_of_another_dataset_is_refused(ds):
    with pytest.raises(OptionError, match="fingerprint"):
        Loader(ds, 4, order=WeightedOrder(ds[1:], np.ones(len(ds) - 1)))
    with pytest.raises(OptionError, match=r"order=batches\.order"):
        Loader(ds, 4, order=OrderedBatches(LocalShuffleOrder(ds), 4))


def test_a_transform_is_refused_with_the_remedy(packed):
    ds = open_pack(packed.root, transform=dict)
    with pytest.raises(OptionError, match="make_dataloader"):
        Loader(ds, 4)
    with pytest.raises(OptionError, match=r"is a builtins\.list: .* sa1bpack\.open"):
        Loader([1, 2], 4)
