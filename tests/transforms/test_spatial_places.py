"""Spatial features are where their images are, whatever they cover and however these are moved.

Rows are a function of the position in the photograph. Where a cell of the result comes from is told
by `input_to_source` alone, and the function there is what the cell must have.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from made_batches import Layout, dataset, made_by, stored_size

from sa1bpack import OptionError
from sa1bpack import transforms as T

SIDE = 64
SOURCES = [(320, 480), (480, 320), (400, 400), (150, 700), (90, 91)]
WAYS = {"compiled": (("cpu",), ()), "torch": ((), ()), "Triton": ((), ("cpu",))}


@dataclass(frozen=True)
class Rows:
    """The spec of a spatial feature, as a pipeline reads it."""

    name: str
    row_shape: tuple[int, int, int]
    covers: str | None
    interpolation: str
    axis: str = "sample"
    spatial: bool = True


def slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A function of the place in a photograph, x and y as fractions of its sides: (2, ...)."""
    return np.stack([100 + 80 * x - 40 * y, 50 + 120 * y])


def centers(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y of the centres of the cells of a grid, as fractions of its sides: (h, w) each."""
    return np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)


def places_of_cells(
    spec: Rows, sources: list[tuple[int, int]], layout: Layout
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each image, the places of the centres of the cells, as fractions of its sides."""
    _, height, width = spec.row_shape
    x, y = centers(height, width)
    places = []
    for source in sources:
        stored_height, stored_width = stored_size(*source, layout)
        if spec.covers == "photograph":
            places.append((x, y))
        else:
            places.append((x * SIDE / stored_width, y * SIDE / stored_height))
    return places


def drawn_sources(random: np.random.Generator) -> list[tuple[int, int]]:
    return [SOURCES[k] for k in random.integers(0, len(SOURCES), random.integers(1, 4))]


def batch_of(sources: list[tuple[int, int]], layout: Layout) -> dict:
    """Images that are the function `slope` in red and green, 8 bits; without masks."""
    images = np.zeros((len(sources), SIDE, SIDE, 3), np.uint8)
    sizes = []
    for image, source in zip(images, sources, strict=True):
        height, width = stored_size(*source, layout)
        x, y = centers(height, width)
        image[:height, :width, :2] = np.rint(slope(x, y)).transpose(1, 2, 0)
        sizes.append([*source, height, width])
    return {
        "images": torch.from_numpy(images),
        "image_ids": torch.arange(len(sources)) + 7,
        "sizes": torch.tensor(sizes, dtype=torch.int32),
    }


def drawn_steps(random: np.random.Generator) -> list:
    """Some geometric steps, one of which may rotate."""
    steps = [
        T.RandomHorizontalFlip(),
        T.RandomResizedCrop((0.2, 0.9)),
        T.ScaleJitter(0.4, 2.5),
        T.CenterCrop(0.8),
    ]
    steps = [steps[k] for k in random.integers(0, len(steps), random.integers(0, 3))]
    if random.random() < 0.5:
        steps.insert(random.integers(len(steps) + 1), T.RandomAffine(180, 30))
    return steps


def drawn_case(seed: int, interpolation: str):
    """Spec, layout, sources, steps and options of a pipeline."""
    random = np.random.default_rng([seed, 21])
    fit = ["pad", "squash"][random.integers(2)]
    covers = ["canvas", "photograph"][random.integers(2)]
    sides = [(16, 16), (12, 20), (32, 24), (64, 64), (43, 64), (5, 40)]
    height, width = sides[random.integers(len(sides))]
    spec = Rows("depth", (2, height, width), covers, interpolation)
    sizes = [None, 48, 96, (40, 72)]
    size = sizes[random.integers(len(sizes))]
    layout = Layout(SIDE, 8, fit)
    return spec, layout, drawn_sources(random), drawn_steps(random), size


def moved(spec: Rows, layout: Layout, steps: list, size, batch: dict, seed: int, grid=None) -> dict:
    ds = dataset(layout)
    ds.spec = type("Spec", (), {"features": (spec,)})
    sizes = {spec.name: grid} if grid else None
    pipeline = T.Pipeline(
        ds, steps, size=size, seed=seed, mean=(0.01,) * 3, std=(1,) * 3, feature_sizes=sizes
    )
    made = pipeline(batch, 3)
    if grid:
        assert made[spec.name].shape[-2:] == (grid if isinstance(grid, tuple) else (grid, grid))
    return made


def drawn_grid(seed: int) -> int | tuple[int, int] | None:
    """A grid for the maps of the result; None: that of the pipeline."""
    return [None, None, 37, (20, 51)][seed % 4]


def places_of_result(
    made: dict, sample: int, grid: tuple[int, int], source: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Where the centres of a grid over the canvas come from, as fractions of the photograph."""
    canvas = made["images"].shape[2:]
    x, y = centers(*grid)
    on_canvas = np.stack([x * canvas[1], y * canvas[0], np.ones(grid)])
    x, y = np.einsum("ac,cij->aij", made["input_to_source"][sample].numpy(), on_canvas)
    return x / source[1], y / source[0]


def longest_step(at: np.ndarray) -> float:
    """The longest way along one axis between neighbours of a grid, both ways together."""
    return sum(np.abs(np.diff(at, axis=axis)).max(initial=0) for axis in (0, 1))


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_a_map_is_where_its_image_is(first):
    """By crops, flips, scales and rotations: where the filter reaches no edge, exactly."""
    compared = 0
    for seed in range(first, first + 20):
        spec, layout, sources, steps, size = drawn_case(seed, "bilinear")
        batch = batch_of(sources, layout)
        rows = np.stack([slope(x, y) for x, y in places_of_cells(spec, sources, layout)])
        batch["depth"] = torch.from_numpy(rows.astype(np.float32))
        made = moved(spec, layout, steps, size, batch, seed, drawn_grid(seed))
        grid = tuple(made["depth"].shape[2:])
        visible = T.image_region(made, grid).numpy()
        whole = T.image_region(made).numpy()
        for k, source in enumerate(sources):
            x, y = places_of_result(made, k, grid, source)
            stored = stored_size(*source, layout)
            covered = stored if spec.covers == "photograph" else (SIDE, SIDE)
            # Cells of the rows per side of the photograph, and from one cell of the result on.
            across = spec.row_shape[2] * stored[1] / covered[1]
            down = spec.row_shape[1] * stored[0] / covered[0]
            step = max(longest_step(x) * across, longest_step(y) * down)
            margin_x = max(step, 1) * 1.5 / across
            margin_y = max(step, 1) * 1.5 / down
            inner = (x > margin_x) & (x < 1 - margin_x) & (y > margin_y) & (y < 1 - margin_y)
            inner &= visible[k]
            # A filter that is widened is one of whole cells: off by a part of one.
            off = 0.02 if step < 1 + 1e-9 else 0.3 * 120 / min(across, down)
            expected = slope(x, y)[:, inner]
            found = made["depth"][k].numpy()
            np.testing.assert_allclose(found[:, inner], expected, atol=off, err_msg=f"{seed}")
            assert not found[:, ~visible[k]].any() or not (steps or spec.covers == "photograph")
            compared += inner.sum()
            # And so is the image: what the map is compared with is where its pixels are.
            x, y = places_of_result(made, k, whole.shape[1:], source)
            inner = (x > 0.2) & (x < 0.8) & (y > 0.2) & (y < 0.8) & whole[k]
            image = made["images"][k, :2].numpy()[:, inner]
            np.testing.assert_allclose(image, slope(x, y)[:, inner], atol=3.5, err_msg=f"{seed}")
    assert compared > 1000


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_a_label_is_that_of_the_cell_it_comes_from(first):
    """No label is made up, types stay, and all ways to make a batch agree."""
    compared = 0
    for seed in range(first, first + 20):
        spec, layout, sources, steps, size = drawn_case(seed, "nearest")
        dtype = [torch.uint8, torch.int16, torch.int64, torch.float16][seed % 4]
        _, height, width = spec.row_shape
        batch = batch_of(sources, layout)
        labels = torch.arange(height * width).view(height, width) % 251 + 1
        rows = torch.stack([labels, labels.flip(1)]).expand(len(sources), -1, -1, -1)
        batch["depth"] = rows.to(dtype)
        made = moved(spec, layout, steps, size, batch, seed, drawn_grid(seed // 4))
        found = made["depth"]
        assert found.dtype == dtype
        assert set(found.unique().tolist()) <= {0, *labels.flatten().tolist()}
        grid = tuple(found.shape[2:])
        visible = T.image_region(made, grid).numpy()
        for k, source in enumerate(sources):
            x, y = places_of_result(made, k, grid, source)
            if spec.covers == "canvas":
                stored = stored_size(*source, layout)
                x, y = x * stored[1] / SIDE, y * stored[0] / SIDE
            x, y = x * width, y * height
            clear = (np.abs(x - np.rint(x)) > 1e-6) & (np.abs(y - np.rint(y)) > 1e-6)
            inside = (x > 0) & (x < width) & (y > 0) & (y < height) & visible[k] & clear
            column = x[inside].astype(int)
            line = y[inside].astype(int)
            expected = labels.numpy()[line, column]
            assert np.array_equal(found[k, 0].numpy()[inside], expected), seed
            compared += len(expected)
        if seed % 20 == 0:
            for compiled_on, triton_on in WAYS.values():
                with made_by(compiled_on, triton_on):
                    again = moved(spec, layout, steps, size, batch, seed, drawn_grid(seed // 4))
                assert torch.equal(again["depth"], found), seed
    assert compared > 1000


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "concat"])
def test_the_map_of_a_mask_moves_as_that_of_its_image_does(interpolation, padded):
    for seed in range(12):
        spec, layout, sources, steps, size = drawn_case(seed, interpolation)
        random = np.random.default_rng([seed, 5])
        counts = random.integers(0, 4, len(sources))
        most = max(int(counts.max()), seed % 2)
        maps = random.random((len(sources), most, *spec.row_shape), np.float32)
        batch = batch_of(sources, layout)
        grid = drawn_grid(seed)
        of_images = []
        for m in range(most):
            rows = {**batch, "depth": torch.from_numpy(maps[:, m])}
            of_images.append(moved(spec, layout, steps, size, rows, seed, grid)["depth"])
        of_masks = {**batch, "mask_counts": torch.from_numpy(counts)}
        of_masks["depth"] = torch.from_numpy(maps)
        real = np.arange(most) < counts[:, None]
        if not padded:
            of_masks["depth"] = torch.from_numpy(maps[real])
            of_masks["mask_offsets"] = torch.from_numpy(np.cumsum([0, *counts]))
        spec = replace(spec, axis="mask")
        found = moved(spec, layout, steps, size, of_masks, seed, grid)["depth"]
        if padded:
            assert found.shape[:2] == (len(sources), most)
            found = found[torch.from_numpy(real)]
        assert len(found) == counts.sum()
        if most:
            expected = torch.stack(of_images, 1)[torch.from_numpy(real)]
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "sizes, text",
    [
        ({"depths": 5}, "feature_sizes has 'depths': the dataset has the spatial features depth;"),
        ({"depth": 0}, r"feature_sizes\['depth'\] is 0: choose a whole number from 1 to 16384"),
        ({"depth": (5, 20000)}, r"feature_sizes\['depth'\]"),
        (518, "feature_sizes is 518: give a dict"),
    ],
)
def test_grids_that_cannot_be_meant_are_refused(sizes, text):
    ds = dataset(Layout(SIDE, 8, "pad"))
    spec = Rows("depth", (1, 8, 8), "canvas", "bilinear")
    ds.spec = type("Spec", (), {"features": (spec,)})
    with pytest.raises(OptionError, match=text):
        T.Pipeline(ds, feature_sizes=sizes)
    assert "feature_sizes={'depth': (518, 518)}" in str(
        T.Pipeline(ds, feature_sizes={"depth": 518})
    )


def test_integers_are_blended_if_that_is_asked_for():
    layout = Layout(SIDE, 8)
    batch = batch_of([(320, 480)], layout)
    batch["depth"] = torch.tensor([[[[0, 10], [0, 10]]]])
    spec = Rows("depth", (1, 2, 2), "photograph", "bilinear")
    found = moved(spec, layout, [T.ScaleJitter(3, 3)], 96, batch, 0)["depth"]
    assert found.dtype == torch.float32
    assert set(found.unique().tolist()) - {0.0, 10.0}


def test_rows_of_the_shape_of_the_photograph_stay_as_they_are():
    """At the size of the pack: the cells are pixels, at the top left of the canvas."""
    layout = Layout(SIDE, 8)
    batch = batch_of([(320, 480)], layout)
    height, width = stored_size(320, 480, layout)
    for interpolation in ("bilinear", "nearest"):
        spec = Rows("depth", (1, height, width), "photograph", interpolation)
        batch["depth"] = torch.rand(1, 1, height, width)
        for steps in ([], [T.RandomHorizontalFlip(0)]):
            found = moved(spec, layout, steps, None, batch, 0)["depth"]
            assert found.shape == (1, 1, SIDE, SIDE)
            assert torch.equal(found[:, :, :height, :width], batch["depth"])
            assert not found[:, :, height:].any()


def test_rows_that_do_not_say_what_they_cover_are_refused():
    """Those of earlier releases that are not as high as wide, but where nothing is padded."""
    spec = Rows("depth", (1, 20, 30), None, "bilinear")
    for fit, refused in (("pad", True), ("native", True), ("squash", False)):
        ds = dataset(Layout(SIDE, 8, fit))
        ds.spec = type("Spec", (), {"features": (spec,)})
        if not refused:
            T.Pipeline(ds)
            continue
        with pytest.raises(OptionError, match=r"depth: rows are .* whether they cover the canvas"):
            T.Pipeline(ds)
