"""The Loader's batches: those of Collate, for every layout, order, rank and point of resumption."""

import pytest
from simulated_cuda import SimulatedCuda
from simulated_loading import simulate
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack import Loader, OptionError
from sa1bpack import open as open_pack


def test_the_plan_states_the_memory_before_any_is_allocated(ds, memory):
    loader = Loader(ds, 4, prefetch=3, threads=2, mask_layout="padded_bits")
    plan = loader.plan()
    assert memory == []
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
        tmp_path / "sa_000000.tar", members([1, 2, 3], masks=lambda n: 410 if n == 2 else 3)
    )
    pack_small(tar, tmp_path / "pack", progress=False)
    ds = sa1bpack.open(tmp_path / "pack")
    for plan in (Loader(ds, 2).plan(), sa1bpack.make_dataloader(ds, 2).plan()):
        assert "without max_masks the image with the most masks, 410, decides" in plan.uncapped
        capped = Loader(ds, 2, max_masks=64).plan()
        assert capped.uncapped == "" and capped.batch_bytes < plan.batch_bytes / 3
        assert "max_masks=64 takes" in str(plan)
    assert f"max_masks=64 takes {capped.batch_bytes / 1e3:.3g} kB" in Loader(ds, 2).plan().uncapped
    assert Loader(ds, 2, max_masks=[4, 8]).plan().uncapped == ""


@pytest.mark.parametrize("layout, row", [("padded", 16), ("concat", 16), ("concat_bits", 2)])
def test_the_plan_counts_the_masks_that_the_device_unpacks(ds, layout, row, monkeypatch):
    """Those of two batches; of a device that is simulated."""
    simulate(monkeypatch, SimulatedCuda())
    plan = Loader(ds, 4, mask_layout=layout, device="cuda").plan()
    made = 2 * 4 * 12 * 16 * row if layout != "concat_bits" else 0
    temporary = 4 * 12 * 32 if layout == "padded" else 0
    # Besides, small tensors are copied, and every allocation is rounded up.
    least = (plan.batches + 1) * plan.batch_bytes + made + temporary
    assert least <= plan.device_bytes < least + 2 * 6000 + 100 * 512


@pytest.mark.parametrize(("options", "named"), [
    ({"batch_size": None}, "batch_size is None and"),
    ({"batch_size": 0}, "batch_size"),
    ({"order": "random"}, "order is 'random'.*shuffle"),
    ({"order": 3}, "order is 3"),
    ({"mask_layout": "bits"}, "mask_layout is 'bits'.*padded_bits"),
    ({"max_masks": -1}, "max_masks is -1"),
    ({"mask_select": "best"}, "mask_select is 'best'"),
    ({"pad_to_max": True}, "pad_to_max needs max_masks"),
    ({"device": "tpu"}, "device is 'tpu'"),
    ({"device": "meta"}, "device is 'meta'.*'cpu' or 'cuda'"),
    ({"threads": 0}, "threads is 0: choose a whole number from 1 to 1024"),
    ({"threads": 1.5}, "threads is 1.5"),
    ({"prefetch": 0}, "prefetch is 0"),
    ({"prefetch": True}, "prefetch is True"),
    ({"timeout": 0}, "timeout is 0"),
    ({"timeout": float("nan")}, "timeout is nan"),
    ({"io": "mmap"}, r"io .*'mmap'.*auto.*cached.*direct"),
    ({"on_error": "skip"}, "on_error is 'skip'"),
    ({"rank": 0}, "world_size is None: choose a whole number"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_is_named(ds, options, named):
    with pytest.raises(OptionError, match=named):
        Loader(ds, **({"batch_size": 4} | options))


def test_a_transform_is_refused_with_the_remedy(packed):
    ds = open_pack(packed.root, transform=dict)
    with pytest.raises(OptionError, match="make_dataloader"):
        Loader(ds, 4)
