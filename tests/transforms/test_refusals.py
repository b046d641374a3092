"""Options of steps, pipelines, prompts and relations that cannot be used, and batches of another
dataset, are refused by name."""

import numpy as np
import pytest
import torch
from made_batches import (
    LAYOUT,
    RECTANGLES,
    Layout,
    dataset,
    moved,
    ragged,
    rectangle_batch,
    rectangle_runs,
)

from sa1bpack import OptionError
from sa1bpack import transforms as T

DS = dataset(LAYOUT)
INF = float("inf")
BATCH = rectangle_batch(LAYOUT, RECTANGLES)
NO_MASKS = {key: value for key, value in BATCH.items() if key != "masks"}
FLIP = T.RandomHorizontalFlip()
TURN = T.RandomAffine(10)
BOOL = torch.ones(2, 4, 4, dtype=torch.bool)
KEY = {"seed": 0, "epoch": 0}
RUNS = T.RunBatch.collate([(np.array([20] * 6, np.int32), np.arange(7), 4, 5)] * 2)
ONE = torch.ones((2, 2), dtype=torch.float64)
IDS = torch.arange(12)


def with_spec(text):
    """BATCH with a spec, as batches of a loader have it."""
    kind = type("BatchOfSpec", (dict,), {"spec": text})
    return kind(BATCH)


def clicks(**change):
    given = {"predicted": BOOL, "masks": BOOL, "ids": torch.arange(2)} | KEY
    return T.correction_clicks(**given | change)


def points(**change):
    return T.draw_points(**{"runs": RUNS, "ids": IDS, "points": 2} | KEY | change)


def planes(samples=2, rows=12, columns=8, dtype=torch.uint8):
    return T.yuv420_to_rgb(
        torch.zeros((samples, rows, columns), dtype=dtype), torch.tensor([[8, 8], [5, 3]])
    )


MAPS = T.AxisMaps(ONE, ONE)


def drawn(maps=MAPS, size=(4, 5), sampling="area"):
    return T.draw_runs(RUNS, maps, size, sampling)


REFUSED = [
    (lambda: T.RandomHorizontalFlip(1.5), "p is 1.5"),
    (lambda: T.ScaleJitter(2.0, 1.0), r"\(low, high\) is \(2.0, 1.0\): choose \(low, high\)"),
    (lambda: T.ScaleJitter(1.0, INF), "of 1e-06 to 1e.06"),
    (lambda: T.RandomResizedCrop((0.5, 1.1)), "scale is"),
    (lambda: T.RandomResizedCrop(ratio=(1.0, INF)), "ratio is .1.0, inf.: choose"),
    (lambda: T.RandomResizedCrop(area=(0.5, 1.0)), r"no option 'area'.*scale"),
    (lambda: T.RandomAffine(181), "degrees is 181: choose a number from 0 to 180"),
    (lambda: T.RandomAffine(shear=(-70, 0)), "shear is"),
    (lambda: T.CenterCrop(0), "fraction is 0"),
    (lambda: T.ColorJitter(-0.1), "brightness is"),
    (lambda: T.ColorJitter(contrast=(1.5, 0.5)), "contrast is"),
    (lambda: T.ColorJitter(saturation="a"), "saturation is"),
    (lambda: T.ColorJitter(hue=0.6), "hue is"),
    (lambda: T.ColorJitter(random_order=1), "random_order is 1"),
    (lambda: T.RandomVerticalFlip(-0.1), "p is -0.1"),
    (lambda: T.RandomGrayscale(2), "p is 2"),
    (lambda: T.GaussianBlur(4), "kernel_size is 4: choose an odd number"),
    (lambda: T.GaussianBlur(513), "kernel_size is 513: .*from 1 to 511"),
    (lambda: T.GaussianBlur(5, 0), r"sigma is .*\(low, high\) of 1e-06 to 1000"),
    (lambda: T.GaussianBlur(5, (2, 1)), "sigma is"),
    (lambda: T.GaussianBlur(5, p=2), "p is 2"),
    (lambda: T.RandomErasing(1.5), "p is 1.5"),
    (lambda: T.RandomErasing(scale=(0.5, 2)), "scale is"),
    (lambda: T.RandomErasing(ratio=(0, 1)), "ratio is"),
    (lambda: T.RandomErasing(value=(1, 2)), "value is .1, 2.: choose one number, or three"),
    (lambda: T.RandomErasing(value="random"), "value is 'random': choose one number"),
    (lambda: T.RandomErasing(masks=None), "masks is None"),
    (lambda: T.Mixup(0.0), "alpha is"),
    (lambda: T.CutMix(float("nan")), "alpha is"),
    (lambda: T.Pipeline(None), "^ds is a NoneType: pass the dataset"),
    (lambda: T.Pipeline(DS, [T.Mixup(), FLIP]), "pass geometric ones .* first"),
    (lambda: T.Pipeline(DS, [T.ColorJitter(), T.ColorJitter()]), "at most one of each"),
    (lambda: T.Pipeline(DS, [T.Mixup(), T.CutMix()]), "at most one of each"),
    (lambda: T.Pipeline(DS, [T.GaussianBlur(3), T.RandomGrayscale()]), "in this order"),
    (lambda: T.Pipeline(DS, [T.RandomErasing(), FLIP]), "pass geometric ones .* first"),
    (lambda: T.Pipeline(DS, ["flip"]), "steps are .'flip'.: pass geometric"),
    (lambda: T.Pipeline(DS, FLIP), "^steps is RandomHorizontalFlip.*pass a list of steps"),
    (lambda: T.Pipeline(DS, dtype=torch.uint8), "choose a floating type"),
    (lambda: T.Pipeline(DS, std=(1, 1, 0)), "with std above 0"),
    (lambda: T.Pipeline(DS, std=(1, 1, 1e-50)), "with std above 0"),  # 0 as float32
    (lambda: T.Pipeline(DS, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), "255 times"),
    (lambda: T.Pipeline(DS, mean=0.5), "mean is 0.5 and .*three numbers each"),
    (lambda: T.Pipeline(DS, size=0), "^size is 0"),
    (lambda: T.Pipeline(DS, size=(96, True)), r"^size\[1\] is True: choose a whole number"),
    (lambda: T.Pipeline(DS, size=8192), r"^mask_size\[0\] is 8192: .*from 1 to 4096"),
    (lambda: T.Pipeline(DS, size=[48, 0]), "from epoch 1 on, size"),
    (lambda: T.Pipeline(DS, size=lambda epoch: 48 + epoch), "size is a function that still"),
    (lambda: T.Pipeline(DS, mask_size=5000), "^mask_size is 5000.*from 1 to 4096"),
    (lambda: T.Pipeline(DS, mask_size=[48, 5000]), "from epoch 1 on, mask_size"),
    (lambda: T.Pipeline(DS, min_area=-1), "^min_area is -1: choose a whole number from 0 to"),
    (lambda: T.Pipeline(DS, max_cover=1.1), "max_cover is 1.1: choose a number from 0 to 1"),
    (lambda: T.Pipeline(DS, max_valid=0), "max_valid is 0"),
    (lambda: T.Pipeline(DS, seed=-1), "^seed is -1: choose a whole number from 0 to"),
    (lambda: T.Prompts("scribble"), "choose one of point, box, mask"),
    (lambda: T.Prompts({"point": 0}), "the sum of kinds is 0"),
    (lambda: T.Prompts(None), "kinds is None: choose one of point, box, mask, or several"),
    (lambda: T.Prompts(["point", "box"]), "or several with their probabilities, such as"),
    (lambda: T.Prompts(points=0), "points is 0"),
    (lambda: T.Prompts(where="center"), "choose one of random"),
    (lambda: T.Prompts(per="batch"), "choose one of mask, image"),
    (lambda: clicks(where="center"), "choose one of random, interior"),
    (lambda: clicks(predicted=torch.zeros(2, 4, 4)), "predicted must be bool"),
    (lambda: clicks(ids=torch.arange(3)), "one per mask"),
    (lambda: points(region="edge"), "region is 'edge': choose one of inside, boundary, outside"),
    (lambda: points(ids=[1] * 12), r"ids must be int64 \(12,\).*got a list, no torch.Tensor"),
    (lambda: points(boxes=np.zeros((12, 4))), "boxes must be int64 .* a ndarray, no torch.Tensor"),
    (lambda: points(draw=2**32), "draw is 4294967296: choose a whole number"),
    (lambda: points(ids=IDS.view(2, 6)[:, :5]), "a sample has 6 masks"),
    (lambda: points(ids=IDS.view(3, 4)), r"ids must be int64 \(2, M"),
    (lambda: points(ids=IDS.view(2, 6), boxes=torch.zeros(2, 5, 4)), r"boxes .* \(2, 6, 4\)"),
    (lambda: drawn(T.AxisMaps(ONE, ONE * 2.0**20)), "more than 1048576 source pixels"),
    (lambda: drawn(T.AxisMaps(ONE, ONE * float("nan"))), "more than 1048576 source pixels"),
    (lambda: drawn(torch.eye(3).double()[None, :2]), "there are 1 maps for 2 samples"),
    (lambda: drawn(size=(0, 5)), r"size\[0\] is 0: choose a whole number from 1 to 4096"),
    (lambda: drawn(sampling="nearest"), r"sampling is .*choose one of area, center"),
    (lambda: points(seed=-1), "seed is -1: .* from 0 to 18446744073709551615"),
    (lambda: points(epoch=2**64), "epoch is 18446744073709551616: choose"),
    (lambda: points(draw=1.5), "draw is 1.5: choose a whole number"),
    (lambda: T.Pipeline(DS, [TURN, FLIP, TURN])(BATCH, 0), "two steps rotate or shear: only one"),
    (lambda: T.Pipeline(DS, relations=["ious"])(NO_MASKS), "needs masks or runs"),
    (lambda: T.Prompts(where="stored")({}), "has no boxes_xyxy, .*: give what a Pipeline"),
    (lambda: T.Prompts()(T.Pipeline(DS)(BATCH)), r"no 'epoch', on .*: set batch\['epoch'\]"),
    (lambda: T.unpack_bits(BOOL), r"bits must be uint8 \(..., w / 8\), got bool"),
    (lambda: planes(dtype=torch.float32), r"planes must be uint8 .* got float32 \(2, 12, 8\)"),
    (lambda: planes(rows=13), r"planes are \(2, 13, 8\): give .* with even H and W"),
    (lambda: planes(rows=10), r"planes are \(2, 10, 8\): give"),
    (lambda: planes(columns=7), r"planes are \(2, 12, 7\): give"),
    (lambda: planes(samples=3), r"stored must be int32 or int64 \(3, 2\), got int64 \(2, 2\)"),
    (lambda: T.image_region(BATCH), "no input_sizes, input_to_source: give what a Pipeline"),
    (lambda: T.Relate(["iou"]), "relation is 'iou': choose one of intersections, ious"),
    (lambda: T.Relate(5), "relations is 5"),
    (lambda: T.Relate("ious", share=2), "share is 2"),
    (lambda: T.Relate("ious")({"masks": BOOL[None]}), "relations need mask_counts"),
    (
        lambda: T.Relate("ious")({"masks": BOOL[None].float(), "mask_counts": IDS[:1]}),
        "give bool or bits",
    ),
]


@pytest.mark.parametrize("call, message", REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_used_is_refused_by_name(call, message):
    with pytest.raises(OptionError, match=message):
        call()


def test_a_name_that_people_look_for_is_answered_with_its_name():
    with pytest.raises(AttributeError, match="it is RandomHorizontalFlip"):
        _ = T.RandomFlip


def test_anything_but_a_batch_of_tensors_is_refused_by_name():
    for wrong, match in (
        ({**BATCH, "bboxes": BATCH["bboxes"].numpy()}, "bboxes is a numpy.ndarray: pass a tensor"),
        ({"image": BATCH["images"][0], "sizes": BATCH["sizes"]}, "a single sample, without images"),
        ({key: BATCH[key] for key in BATCH if key != "mask_counts"}, "without mask_counts: pass a"),
        ({}, "has no keys, without images and sizes and image_ids: "),
        ([BATCH], "the batch is a list: pass a batch as Loader"),
    ):
        with pytest.raises(OptionError, match=match):
            T.Pipeline(DS, [FLIP])(wrong, 0)


@pytest.mark.parametrize(
    "fit, sizes, match",
    [
        ("pad", [150, 225, 64, 97], "sample 2 of the batch are .150, .*sides of 1 to 96"),
        ("native", [150, 225, 0, 96], "sample 2 .*has fit 'native'"),
        ("squash", [150, 225, 64, 96], "has fit 'squash', and sides of 96$"),
        ("pad", None, r"sizes are \(4, 2\) for 4 images"),
    ],
)
def test_sizes_impossible_for_the_dataset_are_refused_by_name(fit, sizes, match):
    layout = Layout(fit=fit)
    batch = rectangle_batch(layout, RECTANGLES)
    pipeline = T.Pipeline(dataset(layout))
    pipeline(batch)
    if sizes is None:
        batch["sizes"] = batch["sizes"][:, 2:]
    else:
        batch["sizes"][2] = torch.tensor(sizes)
    with pytest.raises(OptionError, match=match):
        pipeline(batch)


@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_masks_dropped_without_their_runs_are_refused_by_name(layout):
    """The masks are those of `ragged`, 2, 0 and 1; the runs are of 2, 0 and 2 masks, and others."""
    pipeline = T.Pipeline(DS, [FLIP])
    batch = ragged(layout)
    batch["masks"] = batch["masks"][:, :2] if layout == "padded" else batch["masks"]
    for key in ("bboxes", "point_coords", "areas"):
        batch[key] = batch[key][:, :2] if layout == "padded" else batch[key]
    one = rectangle_runs([RECTANGLES[0]])
    ends = one.run_ends.numpy()
    offset = one.run_offset.numpy()
    height = 150
    width = 225

    def runs(*counts):
        return T.RunBatch.collate(
            [(np.tile(ends, n), np.arange(n + 1) * offset[1], height, width) for n in counts]
        )

    assert pipeline({**batch, "runs": runs(2, 0, 1)}, 0)["valid"].sum() == 3
    for counts, match in (
        ((2, 0, 2), r"runs have 4 masks .* has 3 rows of 3|.2, 0, 1. by sample, not .2, 0, 2."),
        ((0, 2, 1), "by sample, not .0, 2, 1.: a transform that"),
        ((2, 0, 5), "the runs have 7 masks of 3 samples, but"),
        ((2, 1), "the runs have 3 masks of 2 samples, but .* of 3: a transform"),
    ):
        with pytest.raises(OptionError, match=match):
            pipeline({**batch, "runs": runs(*counts)}, 0)


def test_a_batch_of_another_pack_and_a_missing_epoch_are_refused_by_name():
    with pytest.raises(OptionError, match=r"images are torch.uint8 \(4, 96, 96, 3\).*'B', 64, 64"):
        T.Pipeline(dataset(Layout(image_size=64, mask_size=64)))(BATCH)
    for other in (BATCH["masks"].float(), BATCH["masks"].bool(), BATCH["masks"][..., :64, :]):
        with pytest.raises(OptionError, match=r"masks are torch.*have 96 x 96 cells"):
            T.Pipeline(DS)({**BATCH, "masks": other})
    with pytest.raises(OptionError, match=r"no 'epoch', but .*: pipeline\(batch, epoch=...\)"):
        T.Pipeline(DS, [FLIP])(BATCH)


def test_the_epoch_is_that_of_the_batch(device):
    """As Loader and DataLoader yield batches; `epoch=` is for those that do not name theirs."""
    batch = moved(BATCH, device)
    pipeline = T.Pipeline(DS, [T.ScaleJitter(), T.ColorJitter(0.4), T.Mixup()])
    expected = pipeline(batch, epoch=3)
    numbered = {**batch, "epoch": 3, "batch_idx": 17}
    for found in (pipeline(numbered), pipeline(numbered, epoch=3), pipeline(numbered, np.int64(3))):
        assert (found.pop("epoch"), found.pop("batch_idx")) == (3, 17)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert not torch.equal(
        pipeline({**batch, "epoch": 4})["input_to_source"], expected["input_to_source"]
    )
    with pytest.raises(OptionError, match=r"^epoch is 4, but the batch is from epoch 3: call"):
        pipeline(numbered, epoch=4)
    for wrong in (-1, 2**64, True, 1.0, "1"):
        with pytest.raises(OptionError, match=r"^epoch is .*choose a whole number from 0 to"):
            pipeline(batch, epoch=wrong)
        with pytest.raises(OptionError, match=r"^batch\['epoch'\] is .*choose a whole number"):
            pipeline({**batch, "epoch": wrong})


def test_a_batch_of_another_spec_is_refused_by_name():
    """Same sizes throughout: only the spec distinguishes source and stored coordinates."""
    ds = dataset(LAYOUT)
    ds.spec_text = "pad 96 rgb, masks 96 area, source coordinates"
    pipeline = T.Pipeline(ds)
    assert pipeline(with_spec(ds.spec_text)).spec is None  # images are no longer uint8
    assert "images" in pipeline(BATCH)  # of a Collate without sample_spec
    other = ds.spec_text.replace("source", "stored")
    with pytest.raises(OptionError, match=f"{other!r}, but those of .* {ds.spec_text!r}: create"):
        pipeline(with_spec(other))
    assert "images" in T.Pipeline(DS)(with_spec(other))
