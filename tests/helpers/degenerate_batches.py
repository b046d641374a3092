"""Random degenerate batches, steps and options, whose results all ways to make batches share."""

from types import SimpleNamespace

import numpy as np
import torch
from made_batches import KEYS, Layout, dataset, made_by
from mask_oracle import runs_of

from sa1bpack import transforms as T

SIDE = 16
GRID = 8
FORMS = ("padded", "padded_bits", "concat", "concat_bits", "runs", "padded_runs")
# Source height and width, of which the longer side is stored with SIDE pixels.
SOURCES = [(1, 1), (1, 500), (500, 1), (3, 2), (16, 16), (37, 23)]


def drawn_step(random: np.random.Generator) -> T.GeometricStep:
    """A geometric step, often an extreme one."""
    low = 10.0 ** random.choice([-6.0, -3.0, -1.0, 0.0])
    high = 10.0 ** random.choice([0.0, 1.0, 3.0, 6.0])
    steps = [
        T.RandomHorizontalFlip(),
        T.ScaleJitter(low, low),
        T.ScaleJitter(high, high),
        T.ScaleJitter(low, high),
        T.RandomResizedCrop((1e-6, 1e-6), (1e-3, 1e3)),
        T.RandomResizedCrop(),
        T.CenterCrop(1e-6),
        T.CenterCrop(),
    ]
    return steps[random.integers(len(steps))]


def drawn_steps(random: np.random.Generator) -> list:
    """Geometric steps, of which one may rotate, then steps that change pixels."""
    steps = [drawn_step(random) for _ in range(random.integers(3))]
    if random.random() < 0.5:
        degrees = random.choice([0.0, 10.0, 180.0])
        shear = random.choice([0.0, 60.0])
        steps.insert(random.integers(len(steps) + 1), T.RandomAffine(degrees, shear))
    if random.random() < 0.2:
        steps.append(T.ColorJitter(0.4, 0.4, 0.4, 0.1))
    if random.random() < 0.2:
        steps.append(random.choice([T.Mixup(), T.CutMix()]))
    return steps


def drawn_masks(random: np.random.Generator, height: int, width: int, count: int) -> np.ndarray:
    """bool (count, height, width): empty, full, or a random rectangle."""
    masks = np.zeros((count, height, width), bool)
    for mask in masks:
        kind = random.integers(3)
        if kind == 1:
            mask[:] = True
        if kind == 2:
            top = random.integers(height)
            left = random.integers(width)
            mask[top:, left:] = True
    return masks


def drawn_batch(random: np.random.Generator) -> tuple[dict, Layout]:
    """A batch of few images and masks, in one of the forms of batches, and its layout."""
    form = FORMS[random.integers(len(FORMS))]
    layout = Layout(SIDE, GRID, ["pad", "squash"][random.integers(2)])
    samples = int(random.integers(1, 4))
    counts = random.integers(0, 3, samples) * (random.random() < 0.7)
    total = int(counts.sum())
    sizes = []
    images = np.zeros((samples, SIDE, SIDE, 3), np.uint8)
    grids = random.random((total, GRID, GRID)) < 0.5
    run_samples = []
    for sample in range(samples):
        height, width = SOURCES[random.integers(len(SOURCES))]
        stored = [SIDE, SIDE]
        if layout.fit == "pad":
            ratio = SIDE / max(height, width)
            stored = [max(1, int(height * ratio + 0.5)), max(1, int(width * ratio + 0.5))]
        sizes.append([height, width, *stored])
        images[sample, : stored[0], : stored[1]] = random.integers(0, 256, (*stored, 3))
        masks = drawn_masks(random, height, width, int(counts[sample]))
        run_samples.append((*runs_of(masks), height, width))
    batch = {
        "images": torch.from_numpy(images),
        "image_ids": torch.arange(samples),
        "sizes": torch.tensor(sizes, dtype=torch.int32),
        "mask_counts": torch.from_numpy(counts.astype(np.int64)),
    }
    rows = {
        "masks": torch.from_numpy(grids),
        "bboxes": torch.from_numpy(random.random((total, 4)).astype("f4") * 20),
        "point_coords": torch.from_numpy(random.random((total, 2)).astype("f4") * 20),
        "annotation_ids": torch.arange(total),
    }
    if form.endswith("bits"):
        bits = np.packbits(grids, axis=-1, bitorder="little")
        rows["masks"] = torch.from_numpy(bits)
    if form.endswith("runs"):
        del rows["masks"]
        batch["runs"] = T.RunBatch.collate(run_samples)
    if form.startswith("padded"):
        for key, values in rows.items():
            padded = values.new_zeros((samples, int(counts.max()), *values.shape[1:]))
            of_samples = values.split(counts.tolist())
            for sample, own_rows in enumerate(of_samples):
                padded[sample, : len(own_rows)] = own_rows
            rows[key] = padded
    else:
        batch["mask_offsets"] = torch.tensor([0, *np.cumsum(counts).tolist()])
    return {**batch, **rows}, layout


def drawn_options(random: np.random.Generator) -> dict:
    """Options of a Pipeline, with tiny canvases and grids among them."""
    options = {}
    if random.random() < 0.5:
        options["size"] = [(1, 1), (1, 40), (40, 1), (20, 24)][random.integers(4)]
    if random.random() < 0.5:
        options["mask_size"] = [(1, 1), (1, 9), (12, 8)][random.integers(3)]
    if random.random() < 0.3:
        options["max_cover"] = 0.5
    if random.random() < 0.3:
        options["max_valid"] = 1
    if random.random() < 0.3:
        options["relations"] = RELATED
    if random.random() < 0.3:
        options["min_area"] = 0
    return options


def drawn_features(random: np.random.Generator, batch: dict) -> list[SimpleNamespace]:
    """Specs of spatial features, of any shape, whose rows are added to a batch."""
    specs = []
    for name, interpolation in (("depth", "bilinear"), ("labels", "nearest")):
        shape = (int(random.integers(1, 3)), *random.choice([1, 2, 5, SIDE], 2).tolist())
        covers = ["canvas", "photograph"][random.integers(2)]
        spec = SimpleNamespace(name=name, axis="sample", row_shape=shape, covers=covers)
        spec.interpolation = interpolation
        spec.spatial = True
        rows = random.integers(0, 100, (len(batch["images"]), *shape), dtype=np.uint8)
        batch[name] = torch.from_numpy(rows)
        specs.append(spec)
    return specs


def drawn_prompts(random: np.random.Generator) -> T.Prompts:
    """Prompts of several kinds."""
    kinds = [{"point": 1, "box": 1, "mask": 1}, "point", "box", "mask"][random.integers(4)]
    where = ["random", "interior", "stored"][random.integers(3)]
    per = ["mask", "image"][random.integers(2)]
    return T.Prompts(kinds, points=2, where=where, per=per)


RELATED = ("ious", "parents", "levels", "centroids")
EXACT = {*KEYS, *RELATED, "labels", "prompt_kinds", "prompt_points", "prompt_labels"}
CLOSE = ("images", "depth")


def compare(seed: int, triton: bool) -> None:
    """Make one random batch in every way, and compare the results."""
    random = np.random.default_rng([seed, 26])
    batch, layout = drawn_batch(random)
    batch["epoch"] = 1
    ds = dataset(layout)
    ds.spec = SimpleNamespace(features=drawn_features(random, batch))
    pipeline = T.Pipeline(ds, drawn_steps(random), seed=seed, **drawn_options(random))
    prompts = drawn_prompts(random)
    with made_by(compiled_on=("cpu",)):
        expected = prompts(pipeline(batch))
    for triton_on in ((), ("cpu",)) if triton else ((),):
        with made_by((), triton_on):
            made = prompts(pipeline(batch))
        told = f"seed {seed}, {pipeline}, Triton on {triton_on}"
        assert made.keys() == expected.keys(), told
        for key in expected.keys() & {*EXACT, *CLOSE}:
            is_close = key in CLOSE
            torch.testing.assert_close(
                made[key],
                expected[key],
                rtol=1e-3 * is_close,
                atol=4e-3 * is_close,
                equal_nan=True,
                msg=lambda text, key=key, told=told: f"{key}, {told}: {text}",
            )
