"""What a device does to transforms: autocast, default devices, and no data on the host.

Meta tensors have shapes but no contents, and raise where an operation needs contents: what works on
them never waits for a device.
"""

from types import SimpleNamespace

import pytest
import torch
from made_batches import (
    FEW_STEPS,
    LAYOUT,
    RECTANGLES,
    RELATIONS,
    dataset,
    moved,
    ragged,
    rectangle_batch,
    rectangle_runs,
    sent,
)

from sa1bpack import transforms as T
from sa1bpack.transforms import host

META, CPU = torch.device("meta"), torch.device("cpu")


def with_planes(batch: dict) -> dict:
    """The batch with planes of YUV in place of RGB."""
    side = batch["images"].shape[1]
    images = torch.zeros((len(batch["images"]), side * 3 // 2, side), dtype=torch.uint8)
    return {**batch, "images": images}


def with_teacher(batch: dict, ds: SimpleNamespace) -> dict:
    """The batch of three samples with a spatial feature, which the dataset then has."""
    row = SimpleNamespace(name="teacher", row_shape=(4, 6, 6), spatial=True)
    ds.spec = SimpleNamespace(features=[row])
    return {**batch, "teacher": torch.zeros((3, 4, 6, 6), dtype=torch.float16)}


@pytest.mark.parametrize("masks", ["padded", "concat_bits", "runs", "runs "])
@pytest.mark.parametrize("name", [*FEW_STEPS, "center"])
def test_no_step_depends_on_data(name, masks):
    steps = FEW_STEPS.get(name, [T.CenterCrop()])
    ds, size = dataset(LAYOUT), None if masks.endswith(("bits", " ")) else (48, 80)
    ds.mask_sampling = "center" if masks.endswith(" ") else "area"
    masks = masks.strip()
    batch = with_teacher(ragged(masks), ds)
    there = T.Pipeline(ds, steps, size=size)
    for given in (batch, with_planes(batch)):
        found, expected = there(moved(given, META), 1), there(given, 1)
        assert set(found) == set(expected)
        for key, tensor in expected.items():
            if torch.is_tensor(tensor):
                assert found[key].is_meta and found[key].dtype == tensor.dtype, key
                assert found[key].shape == tensor.shape, key
        assert T.image_region(found, 6).is_meta


@pytest.mark.parametrize("masks", ["concat", "concat_bits", "runs"])
def test_relations_of_a_batch_that_a_loader_sent_do_not_wait_for_the_device(masks):
    made = T.Pipeline(dataset(LAYOUT), FEW_STEPS["enlarging"], relations=tuple(RELATIONS))
    expected, found = (
        made(way(ragged(masks), there), 1) for way, there in ((moved, CPU), (sent, META))
    )
    assert found["ious"].is_meta and found["ious"].shape == expected["ious"].shape
    if masks != "runs":
        with pytest.raises(RuntimeError, match="meta"):  # nobody but the device knows the counts
            made(moved(ragged(masks), META), 1)


@pytest.mark.parametrize("masks", ["padded_bits", "concat", "runs"])
def test_what_the_host_knows_counts_as_long_as_the_device_has_it(masks, monkeypatch):
    made = T.Pipeline(dataset(LAYOUT), FEW_STEPS["any"])
    batch = sent(ragged(masks), META)
    known = [host.on_host(batch[key]) for key in ("sizes", "bboxes", "mask_counts")]
    assert None not in known
    batch["sizes"] += 0
    batch["bboxes"] = batch["bboxes"] * 1
    assert host.on_host(batch["sizes"]) is None and host.on_host(batch["bboxes"]) is None
    there = sent(ragged(masks), META)
    there["mask_counts"] = there["mask_counts"].clone()
    found = made(there, 1)
    assert all(found[key].is_meta for key in ("images", "masks", "boxes_xyxy", "valid"))
    known = sent(ragged(masks), META)
    monkeypatch.setattr(host, "captured", lambda tensors: True)
    assert host.all_on_host({"sizes": known["sizes"]})["sizes"].is_meta


def test_small_tensors_are_sent_as_they_are():
    given = [torch.tensor([True, False, True]), torch.tensor(2.5), torch.zeros(0, 3),
             torch.arange(6).view(2, 3).T, torch.tensor([[1, 2]], dtype=torch.int32)]  # fmt: skip
    for found, expected in zip(host.sent(given, META), given, strict=True):
        assert found.is_meta and found.dtype == expected.dtype and found.shape == expected.shape
    # Another name of the CPU takes the way of a device, and has the numbers.
    for there in (CPU, torch.device("cpu:0")):
        assert all(map(torch.equal, host.sent(given, there), given))


@pytest.mark.parametrize("region", ["inside", "boundary", "outside"])
def test_no_prompt_depends_on_data(region):
    runs = rectangle_runs(RECTANGLES).to(META)
    ids = torch.arange(runs.masks, device=META)
    boxes = torch.zeros((runs.masks, 4), dtype=torch.int64, device=META)
    points, valid = T.draw_points(runs, ids, 5, region, seed=1, epoch=2)
    assert points.shape == (4, 5, 2) and valid.shape == (4,)
    edges, extent = boxes.double(), torch.ones((4, 2), dtype=torch.float64, device=META)
    assert T.jitter_boxes(edges, extent, ids, seed=0, epoch=0).is_meta
    maps = T.AxisMaps(extent, 0 * extent)
    assert T.draw_runs(runs, maps, (6, 7), "center").shape == (4, 6, 7)


# ------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_changes_neither_what_a_pipeline_makes_nor_relations(half, any_way):
    batch = moved(ragged("padded_bits"), any_way)
    torch.manual_seed(0)
    batch["images"].copy_(torch.randint(0, 256, batch["images"].shape))
    # ScaleJitter may reduce an image: its filters are matrices, and autocast rounds their product,
    # as it would round the cells that masks have in common.
    made, relate = T.Pipeline(dataset(LAYOUT), FEW_STEPS["any"]), T.Relate(tuple(RELATIONS))
    expected = made(batch, 3) | relate(batch)
    with torch.autocast(any_way.type, half):
        found = made(batch, 3) | relate(batch)
        product = torch.ones((2, 2), device=any_way) @ torch.ones((2, 2), device=any_way)
    assert product.dtype == half  # of the caller, who is still in autocast
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


# ------------------------------------------------------------------------- memory on other devices


def test_a_default_device_does_not_move_the_results_of_a_cpu():
    steps = [T.RandomResizedCrop(), T.ColorJitter(0.4), T.Mixup()]
    expected = T.Pipeline(dataset(LAYOUT), steps)(rectangle_batch(LAYOUT, RECTANGLES), 0)
    runs = rectangle_runs(RECTANGLES)
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    with torch.device(META):
        found = T.Pipeline(dataset(LAYOUT), steps)(batch, 0)
        again = rectangle_runs(RECTANGLES)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    assert vars(again).keys() == vars(runs).keys()
    for name, tensor in vars(runs).items():
        assert torch.equal(getattr(again, name), tensor), name
