"""Spatial features move as an image of as many pixels as they have cells."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, RECTANGLES, dataset, first_frame, moved, rectangle_batch
from packs_with_features import SPECS, with_features  # noqa: F401 - a fixture
from PIL import Image
from splitmix import uniform

import sa1bpack
from sa1bpack import OptionError
from sa1bpack import transforms as T

STEPS = [T.RandomHorizontalFlip(0.5), T.RandomResizedCrop()]
NAMES = list(SPECS)


@pytest.fixture
def ds(with_features):  # noqa: F811
    return sa1bpack.open(with_features.root, features=NAMES)


def batches(ds, size=4):
    with sa1bpack.Loader(ds, size, shuffle=True, seed=1) as loader:
        return list(loader)


def by_pil(rows: torch.Tensor, maps: torch.Tensor, side: int, canvas: int, out: int) -> np.ndarray:
    """One sample's (C, h, w) moved by PIL's resize of a box, and mirrored.

    Args:
        maps: (2, 3), from the canvas to the stored canvas, within it.
    """
    cells = rows.shape[-1]
    planes = []
    for plane in rows.float().numpy():
        ends = maps.numpy() @ np.array([[0, canvas], [0, canvas], [1, 1]])
        box = ends * cells / side
        flipped = box[0, 0] > box[0, 1]
        overturned = box[1, 0] > box[1, 1]
        left, right = sorted(box[0])
        top, bottom = sorted(box[1])
        image = Image.fromarray(plane).resize(
            (out, out), Image.Resampling.BILINEAR, (left, top, right, bottom)
        )
        cells_of_result = np.array(image)
        if flipped:
            cells_of_result = cells_of_result[:, ::-1]
        if overturned:
            cells_of_result = cells_of_result[::-1]
        planes.append(cells_of_result)
    return np.stack(planes)


@pytest.mark.parametrize(
    "steps",
    [STEPS, [T.RandomHorizontalFlip(1.0)], [T.RandomVerticalFlip(1.0)], [T.ScaleJitter()]],
    ids=["crop", "flip", "upside down", "scale"],
)
def test_rows_move_with_the_images(ds, steps):
    side = ds.layout.image_size
    pipeline = T.Pipeline(ds, steps, seed=4)
    for batch in batches(ds):
        done = pipeline(batch)
        frame = first_frame(batch["sizes"], pipeline.canvas)
        for number, step in enumerate(steps):
            frame = step(frame, partial(uniform, 4, batch["epoch"], batch["image_ids"], number))
        columns, rows = (flags.numpy() for flags in frame.covered((32, 32)))
        for k, maps in enumerate(done["input_to_source"]):
            size = batch["sizes"][k].double()
            to_stored = torch.stack([maps[0] * size[3] / size[1], maps[1] * size[2] / size[0]])
            np.testing.assert_allclose(to_stored, frame.maps.matrix()[k], atol=1e-9)
            wide = torch.zeros(4, 672, 672)  # zero beyond the canvas, as far as a step reaches
            wide[:, 320:352, 320:352] = batch["teacher"][k].float()
            shifted = to_stored + torch.tensor([[0, 0, 10 * side], [0, 0, 10 * side]])
            expected = by_pil(wide, shifted, 21 * side, side, 32)
            kept = rows[k][:, None] & columns[k]
            found = done["teacher"][k].float().numpy()
            assert not found[:, ~kept].any()
            there = torch.zeros(1, 672, 672)
            there[:, 320:352, 320:352] = 1
            [whole] = by_pil(there, shifted, 21 * side, side, 32)
            inside = kept & (whole > 0.999)
            assert inside.any() or not kept.any()
            np.testing.assert_allclose(found[:, inside], expected[:, inside], atol=0.1, rtol=2e-3)
        for name in NAMES[1:]:
            assert torch.equal(done[name], batch[name]), name


def test_types_and_sizes_of_the_result(ds):
    batch = batches(ds)[0]
    half = T.Pipeline(ds, size=(12, 24))(batch)["teacher"]
    assert half.dtype == torch.float16 and half.shape == (4, 4, 16, 32)
    rows = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    square = rectangle_batch(LAYOUT, [(0, 0, 9, 9)], source=(96, 96))
    other = dataset(LAYOUT)
    for interpolation, dtype in (("bilinear", torch.float32), ("nearest", torch.uint8)):
        row = SimpleNamespace(
            name="bytes",
            axis="sample",
            row_shape=(1, 4, 4),
            spatial=True,
            covers="canvas",
            interpolation=interpolation,
        )
        other.spec = SimpleNamespace(features=[row])
        for steps in ([], [T.RandomHorizontalFlip(0)]):
            found = T.Pipeline(other, steps)({**square, "bytes": rows}, 0)["bytes"]
            assert found.dtype == dtype
            assert torch.equal(found, rows.to(dtype))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("steps", [[], [T.RandomHorizontalFlip(1.0)], [T.RandomResizedCrop()],
                                   [T.ScaleJitter(0.3, 0.3)], [T.RandomAffine(30)]],
                         ids=["size", "flip", "crop", "reduced", "turned"])  # fmt: skip
def test_a_value_that_is_not_finite_is_seen_by_the_cells_whose_filter_takes_it_alone(
    steps, value, any_way
):
    """Those are the cells that another value in its place changes."""
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    specs = []
    for name, covers in (("depth", "canvas"), ("height", "photograph")):
        row = SimpleNamespace(
            name=name,
            axis="sample",
            row_shape=(2, 12, 16),
            spatial=True,
            covers=covers,
            interpolation="bilinear",
        )
        specs.append(row)
    other = dataset(LAYOUT)
    other.spec = SimpleNamespace(features=specs)
    pipeline = T.Pipeline(other, steps, size=(60, 80))
    rows = torch.rand(len(RECTANGLES), 2, 12, 16, generator=torch.Generator().manual_seed(0))
    results = []
    for number in (0.0, 1e6, value):
        changed = rows.clone()
        changed[:, 0, 3, 5] = number
        features = {"depth": changed, "height": changed}
        results.append(pipeline(moved({**batch, **features}, any_way), 0))
    low, high, lost = results
    for name in ("depth", "height"):
        takes = low[name] != high[name]
        assert takes.any() and not takes[:, 1].any()
        assert torch.equal(lost[name].isnan(), takes)
        torch.testing.assert_close(lost[name][~takes], low[name][~takes])


def test_rows_of_another_shape_are_refused(ds):
    batch = batches(ds)[0]
    with pytest.raises(OptionError, match=r"teacher are torch.float16 \(4, 4, 32, 31\)"):
        T.Pipeline(ds)({**batch, "teacher": batch["teacher"][..., :31]})
    with pytest.raises(OptionError, match="teacher are list"):
        T.Pipeline(ds)({**batch, "teacher": [1]})
    del batch["teacher"]
    assert "teacher" not in T.Pipeline(ds)(batch)


def test_maps_of_masks_go_from_an_array_to_a_pipeline(with_features, tmp_path):  # noqa: F811
    ds = sa1bpack.open(with_features.root)
    ids = ds.mask_column("annotation_id")
    mattes = np.random.default_rng(3).random((len(ids), 1, 16, 16)).astype("f2")
    options = {"axis": "mask", "spatial": True, "covers": "canvas", "output": tmp_path / "matte"}
    sa1bpack.attach(ds, "matte", mattes, ids, **options)
    manifest = json.loads((tmp_path / "matte/manifest.json").read_text())
    assert manifest["version"] == [2, 0] and manifest["spatial"] is True
    ds = sa1bpack.open(with_features.root, features=[tmp_path / "matte"])
    by_id = dict(zip(ids.tolist(), mattes, strict=True))
    for sample in ds:
        expected = [by_id[each] for each in sample["annotation_ids"].tolist()]
        np.testing.assert_array_equal(sample["matte"], np.array(expected).reshape(-1, 1, 16, 16))
    same = T.Pipeline(ds)
    finer = T.Pipeline(ds, [T.RandomHorizontalFlip(1)], feature_sizes={"matte": (8, 24)})
    for layout in ("padded", "concat"):
        with sa1bpack.Loader(ds, 4, mask_layout=layout, max_masks=3, device="cpu") as loader:
            for batch in loader:
                leading = batch["annotation_ids"].shape
                made = same(batch)["matte"]
                assert torch.equal(made, batch["matte"]) and made.shape == (*leading, 1, 16, 16)
                assert finer(batch)["matte"].shape == (*leading, 1, 8, 24)
                for mask, matte in zip(
                    batch["annotation_ids"].flatten().tolist(), made.flatten(0, -4), strict=True
                ):
                    assert np.array_equal(matte, by_id.get(mask, np.zeros((1, 16, 16))))
