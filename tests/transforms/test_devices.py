"""What a device does to transforms: autocast, default devices, and no data on the host.

Meta tensors have shapes but no contents, and raise where an operation needs contents: what works on
them never waits for a device.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from dict_ways import WAYS
from made_batches import (
    FEW_STEPS,
    LAYOUT,
    RECTANGLES,
    RELATIONS,
    dataset,
    made_by,
    moved,
    ragged,
    rectangle_batch,
    rectangle_runs,
    sent,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sa1bpack import transforms as T
from sa1bpack.display import Batch
from sa1bpack.transforms import host

META = torch.device("meta")
CPU = torch.device("cpu")
# What the host knows of the batches of this module; others have repetitions as well.
KNOWN = {"sizes", "image_ids", "mask_counts", "bboxes", "point_coords"}
of_all_forms = pytest.mark.parametrize("masks", ["padded_bits", "concat", "runs"])


def with_planes(batch: dict) -> dict:
    """The batch with planes of YUV in place of RGB."""
    side = batch["images"].shape[1]
    images = torch.zeros((len(batch["images"]), side * 3 // 2, side), dtype=torch.uint8)
    return {**batch, "images": images}


def with_teacher(batch: dict, ds: SimpleNamespace) -> dict:
    """The batch of three samples with a spatial feature, which the dataset then has."""
    row = SimpleNamespace(
        name="teacher",
        axis="sample",
        row_shape=(4, 6, 6),
        spatial=True,
        covers="canvas",
        interpolation="bilinear",
    )
    ds.spec = SimpleNamespace(features=[row])
    return {**batch, "teacher": torch.zeros((3, 4, 6, 6), dtype=torch.float16)}


@pytest.mark.parametrize("masks", ["padded", "concat_bits", "runs", "runs "])
@pytest.mark.parametrize("name", [*FEW_STEPS, "center"])
def test_no_step_depends_on_data(name, masks):
    steps = FEW_STEPS.get(name, [T.CenterCrop()])
    ds = dataset(LAYOUT)
    size = None if masks.endswith(("bits", " ")) else (48, 80)
    ds.mask_sampling = "center" if masks.endswith(" ") else "area"
    masks = masks.strip()
    batch = with_teacher(ragged(masks), ds)
    there = T.Pipeline(ds, steps, size=size)
    for given in (batch, with_planes(batch)):
        found = there(moved(given, META), 1)
        expected = there(given, 1)
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


# Whoever takes a small tensor of a batch may write to it by what torch does not count as a change:
# a collective operation, DLPack, a kernel.
TAKING = {**WAYS, "forget_sent": lambda batch, key: T.forget_sent(batch)}
# Those of a dict that yield no value, or those above that are operators.
NO_WAYS = {
    "clear", "fromkeys", "keys", "__class__", "__class_getitem__", "__contains__", "__delattr__",
    "__delitem__", "__dir__", "__doc__", "__eq__", "__format__", "__ge__", "__getattribute__",
    "__getstate__", "__gt__", "__hash__", "__init__", "__init_subclass__", "__ior__", "__le__",
    "__len__", "__lt__", "__ne__", "__new__", "__reduce__", "__reduce_ex__", "__repr__",
    "__reversed__", "__setattr__", "__setitem__", "__sizeof__", "__str__", "__subclasshook__",
}  # fmt: skip
OPERATORS = {"__getitem__", "__iter__", "__or__", "__ror__"}


def test_the_ways_to_a_tensor_of_a_batch_are_all_that_a_dict_has():
    assert set(dir(dict)) <= NO_WAYS | OPERATORS | WAYS.keys()


@of_all_forms
@pytest.mark.parametrize("way", TAKING)
def test_what_the_host_knows_counts_until_somebody_has_a_tensor_that_may_be_written(way, masks):
    for key in (*KNOWN, "mask_offsets", "runs"):
        batch = sent(ragged(masks), META)
        if key in batch:
            assert host.numbers_of(batch).keys() >= KNOWN
            TAKING[way](batch, key)
            assert host.numbers_of(batch) == {}


@pytest.mark.parametrize("copied", [Batch.copy, copy.copy, copy.deepcopy])
def test_the_host_knows_nothing_of_a_copy_of_a_batch(copied):
    assert host.numbers_of(copied(sent(ragged("concat"), META))) == {}


@of_all_forms
def test_a_pipeline_uses_what_the_host_knows_for_every_view_and_then_what_the_device_has(masks):
    made = T.Pipeline(dataset(LAYOUT), FEW_STEPS["any"])
    batch = sent(ragged(masks), META)
    batch["annotation_ids"] = batch["areas"]
    batch["epoch"] = 1
    prompts = T.Prompts({"box": 0.5, "point": 0.5}) if masks != "runs" else T.Prompts()
    views = [prompts(made(batch)), prompts(made(batch))]
    assert host.numbers_of(batch).keys() >= KNOWN
    assert batch["sizes"].is_meta and host.numbers_of(batch) == {}
    for found in (*views, made(batch, 1)):
        assert all(found[name].is_meta for name in ("images", "masks", "boxes_xyxy", "valid"))


@of_all_forms
def test_what_is_not_written_by_a_look_at_other_parts_of_a_batch_remains_known(masks):
    batch = sent(ragged(masks), META)
    images = batch["images"]
    assert len(batch) and "sizes" in batch and repr(batch) and [*batch] and batch.keys()
    batch["images"] = images
    batch["epoch"] = 1
    assert host.numbers_of(batch).keys() >= KNOWN


@of_all_forms
def test_a_batch_that_is_moved_to_where_it_is_remains_itself(masks):
    """As Lightning and Accelerate do with every batch."""
    batch = sent(ragged(masks), META)
    assert batch.to(META, non_blocking=True) is batch
    assert (
        pytest.importorskip("lightning_fabric.utilities").move_data_to_device(batch, META) is batch
    )
    assert pytest.importorskip("accelerate.utils").send_to_device(batch, META) is batch
    assert host.numbers_of(batch)
    here = ragged(masks)
    there = Batch(here).to(META)
    assert host.numbers_of(there) == {} and there.keys() == here.keys()
    assert all(value.run_ends.is_meta if key == "runs" else value.is_meta
               for key, value in there.items())  # fmt: skip


def test_a_tensor_that_takes_the_place_of_one_that_was_sent_is_not_known():
    batch = sent(ragged("concat"), META)
    batch["sizes"] = torch.zeros((3, 4), dtype=torch.int32, device=META)
    known = host.numbers_of(batch)
    assert "sizes" not in known and "bboxes" in known
    small = {"sizes": dict.__getitem__(batch, "sizes"), "bboxes": dict.get(batch, "bboxes")}
    assert host.all_on_host(small, known) == small


def test_what_a_pipeline_returns_has_the_tensors_of_the_batch_and_hands_out_those():
    made = T.Pipeline(dataset(LAYOUT), FEW_STEPS["any"])
    batch = sent(ragged("padded_bits"), META)
    first = made(batch, 1)
    assert first["images"].is_meta and host.numbers_of(batch)
    handed_out = first["image_ids"]
    assert handed_out is dict.get(batch, "image_ids") and host.numbers_of(batch) == {}


def test_what_the_host_knows_is_not_used_while_a_graph_is_captured(monkeypatch):
    batch = sent(ragged("concat"), META)
    known = host.numbers_of(batch)
    small = {"sizes": dict.get(batch, "sizes")}
    assert not host.all_on_host(small, known)["sizes"].is_meta
    monkeypatch.setattr(host, "captured", lambda tensors: True)
    assert host.all_on_host(small, known)["sizes"].is_meta


class HostData(TorchDispatchMode):
    """Records what takes data of the host to meta tensors."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        done = func(*args, **(kwargs or {}))
        tensors = [value for value in tree_leaves((args, kwargs)) if torch.is_tensor(value)]
        from_host = any(value.device.type == "cpu" for value in tensors)
        to_device = any(torch.is_tensor(value) and value.is_meta for value in tree_leaves(done))
        made = "lift_fresh" in func.name() and to_device  # torch.tensor(..., device=...)
        if made or (from_host and to_device):
            self.calls.append(func.name())
        return done


@of_all_forms
@pytest.mark.parametrize("name", FEW_STEPS)
def test_after_a_warm_up_a_graph_can_be_captured_as_nothing_comes_from_the_host(
    name, masks, monkeypatch
):
    """The batch of the warm-up is a Loader's, of which the host knows the numbers."""
    made = T.Pipeline(dataset(LAYOUT), FEW_STEPS[name])
    made(sent(ragged(masks), META), 1)
    batch = sent(ragged(masks), META)
    monkeypatch.setattr(host, "captured", lambda tensors: True)
    with HostData() as mode:
        made(batch, 1)
    assert mode.calls == []
    with HostData() as mode:  # which records what a first call does
        T.Pipeline(dataset(LAYOUT), FEW_STEPS[name])(batch, 1)
    assert mode.calls


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
    edges = boxes.double()
    extent = torch.ones((4, 2), dtype=torch.float64, device=META)
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
    made = T.Pipeline(dataset(LAYOUT), FEW_STEPS["any"])
    relate = T.Relate(tuple(RELATIONS))
    expected = made(batch, 3) | relate(batch)
    with torch.autocast(any_way.type, half):
        found = made(batch, 3) | relate(batch)
        product = torch.ones((2, 2), device=any_way) @ torch.ones((2, 2), device=any_way)
    assert product.dtype == half  # of the caller, who is still in autocast
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


# ------------------------------------------------------------------------- memory on other devices


def everything_made_of(batch: dict) -> dict:
    """A batch after all kinds of steps and with prompts, and crops of its masks."""
    steps = [
        T.RandomResizedCrop(),
        T.ColorJitter(0.4),
        T.GaussianBlur(3),
        T.RandomErasing(1.0, masks=True),
        T.Mixup(),
    ]
    ids = {"annotation_ids": torch.arange(len(RECTANGLES), device="cpu")[:, None]}
    pipeline = T.Pipeline(dataset(LAYOUT), steps, relations=list(RELATIONS), max_valid=1)
    result = pipeline({**batch, **ids, "epoch": 0})
    result = T.Prompts({"point": 1, "box": 1, "mask": 1})(result)
    return {**result, **T.mask_crops(result, 24, background=255)._asdict()}


def test_a_default_type_does_not_change_the_types_of_results(any_way):
    batch = moved(rectangle_batch(LAYOUT, RECTANGLES), any_way)
    expected = everything_made_of(batch)
    torch.set_default_dtype(torch.float64)
    try:
        found = everything_made_of(batch)
    finally:
        torch.set_default_dtype(torch.float32)
    for key, value in expected.items():
        if torch.is_tensor(value):
            assert found[key].dtype == value.dtype, key


def test_a_default_device_does_not_move_the_relations_of_another():
    masks = T.unpack_bits(rectangle_batch(LAYOUT, RECTANGLES)["masks"])
    batch = {"masks": masks, "mask_counts": torch.ones(len(masks), dtype=torch.int64)}
    with made_by():
        expected = T.Relate(list(RELATIONS))(batch)
        with torch.device(META):
            found = T.Relate(list(RELATIONS))(batch)
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_a_default_device_does_not_move_the_results_of_a_cpu():
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    expected = everything_made_of(batch)
    runs = rectangle_runs(RECTANGLES)
    with torch.device(META):
        found = everything_made_of(batch)
        again = rectangle_runs(RECTANGLES)
    for key, value in expected.items():
        assert found[key] is value or torch.equal(found[key], value), key
    assert vars(again).keys() == vars(runs).keys()
    for name, tensor in vars(runs).items():
        assert torch.equal(getattr(again, name), tensor), name
