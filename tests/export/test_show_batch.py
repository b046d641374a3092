"""`show` of a batch draws what the batch has, whatever its layout."""

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, RECTANGLES, dataset, noisy_batch, ragged, rectangle_batch
from PIL import Image
from small_packs import pack_small
from small_tars import members, write_tar

import sa1bpack
from sa1bpack import OptionError
from sa1bpack import transforms as T
from sa1bpack.export.batch_samples import Predictions, subject_of
from sa1bpack.export.lettering import short_text
from sa1bpack.export.subject import read_subject, subject_of_sample


def cells(bits: np.ndarray) -> np.ndarray:
    return np.unpackbits(bits, axis=2, bitorder="little").astype(bool)


@pytest.fixture
def batches(small_pack):
    """One batch of the same samples in each form, and its dataset."""

    def made(mask_format="bits", layout="padded", **options):
        ds = sa1bpack.open(small_pack, mask_format=mask_format, **options)
        with sa1bpack.Loader(
            ds, 6, shuffle=True, seed=3, mask_layout=layout, device="cpu"
        ) as loader:
            for batch in loader:
                kept = {k: v.clone() if torch.is_tensor(v) else v for k, v in batch.items()}
                return ds, type(batch)(kept)

    return made


@pytest.mark.parametrize("layout", ["padded", "concat", "padded_bits", "concat_bits"])
def test_subjects_are_the_samples_of_the_dataset(layout, batches):
    ds, batch = batches(layout=layout)
    found = [subject_of(batch, k) for k in range(6)]
    assert sum(subject.masks for subject in found) > 10
    for subject, index in zip(found, batch["indices"].tolist(), strict=True):
        sample = ds.with_options(coordinates="source")[index]
        assert subject.sample["image_id"] == sample["image_id"] and subject.masks == len(
            sample["bboxes"]
        )
        source_height, source_width, height, width = sample["size"].tolist()
        np.testing.assert_array_equal(subject.rgb, sample["image"][:height, :width])
        np.testing.assert_array_equal(subject.sample["masks"], sample["masks"])
        scale = np.array([width / source_width, height / source_height])
        x, y, w, h = subject.sample["bboxes"].T
        edges = np.stack([x, y, x + w + 1, y + h + 1], 1)
        expected = sample["bboxes"].astype(float).copy()
        expected[:, 2:] += expected[:, :2] + 1
        np.testing.assert_allclose(edges, expected * np.tile(scale, 2), rtol=1e-5)
        np.testing.assert_allclose(
            subject.sample["point_coords"], sample["point_coords"] * scale, rtol=1e-5
        )


def test_source_coordinates_and_runs_show_the_same(batches):
    _, batch = batches()
    expected = [subject_of(batch, k) for k in range(6)]
    for options in ({"coordinates": "source"}, {"mask_format": "runs"}):
        _, batch = batches(**options)
        found = [subject_of(batch, k) for k in range(6)]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.sample["bboxes"], other.sample["bboxes"], atol=1e-3)
            np.testing.assert_allclose(
                one.sample["point_coords"], other.sample["point_coords"], atol=1e-3
            )
            assert one.rgb.shape == other.rgb.shape
            differing = drawn_cells(one) != drawn_cells(other)
            assert differing.sum() <= 0.04 * differing.size


def drawn_cells(subject) -> np.ndarray:
    """bool (m, 16, 16): the masks of a sample, over what is shown of it."""
    found = np.zeros((subject.masks, 16, 16), bool)
    for mask in range(subject.masks):
        top, left, inside = subject.shapes.on(16, 16, mask)
        found[mask, top : top + inside.shape[0], left : left + inside.shape[1]] = inside
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_normalised_images_get_their_colours_back(dtype):
    batch = noisy_batch(LAYOUT, "bits")
    done = T.Pipeline(dataset(LAYOUT), dtype=dtype)(batch)
    for k, subject in enumerate(subject_of(done, row) for row in range(4)):
        expected = batch["images"][k, :64].numpy().astype(int)
        most = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}[dtype]
        assert subject.rgb.shape == (64, 96, 3)  # without the padding
        assert np.abs(subject.rgb.astype(int) - expected).max() <= most
        np.testing.assert_array_equal(cells(subject.sample["masks"])[0], done["masks"][k, 0] > 0)


@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_of_a_pipeline_only_valid_masks_are_drawn_at_any_grid(layout):
    """A grid of 20 columns: not whole bytes."""
    pipeline = T.Pipeline(
        dataset(LAYOUT), [T.RandomResizedCrop((0.05, 0.1))], size=(64, 80), mask_size=(16, 20)
    )
    done = pipeline(ragged(layout), 1)
    found = [subject_of(done, k) for k in range(3)]
    assert [subject.rgb.shape for subject in found] == [(64, 80, 3)] * 3
    valid = done["valid"] if layout == "concat" else done["valid"][[0, 0, 2], [0, 1, 0]]
    assert sum(subject.masks for subject in found) == int(valid.sum()) < 3
    assert [subject.annotation_count for subject in found] == [2, 0, 1]
    whole = T.Pipeline(dataset(LAYOUT), mask_size=(16, 20))(ragged(layout))
    first = subject_of(whole, 0)
    mask = whole["masks"][0] if layout == "concat" else whole["masks"][0, 0]
    np.testing.assert_array_equal(cells(first.sample["masks"])[0, :, ::8], mask)


def test_planes_become_rgb(batches):
    layout = LAYOUT.__class__(image_size=96, mask_size=96, pixels="yuv420")
    batch = noisy_batch(layout, "bits")
    expected = T.yuv420_to_rgb(batch["images"], batch["sizes"][:, 2:])
    for row in (0, 3):
        height, width = batch["sizes"][row, 2:].tolist()
        subject = subject_of(batch, row)
        np.testing.assert_array_equal(subject.rgb, expected[row, :height, :width])


@pytest.fixture(params=[("pad", "rgb"), ("native", "yuv420"), ("scale_down", "yuv420")], ids=str)
def classes(request, tmp_path):
    """A dataset with maps over the photograph and over the canvas, and classes of aspect, most of
    which have smaller canvases."""
    fit, pixels = request.param
    sizes = {1: (128, 192), 2: (192, 128), 3: (127, 190), 4: (80, 80), 5: (192, 62), 6: (64, 190)}
    tar = write_tar(tmp_path / "sa_000000.tar", members(sizes, size=sizes.__getitem__))
    pack_small(tar, tmp_path / "packed", image_size=128, fit=fit, pixels=pixels)
    ds = sa1bpack.open(tmp_path / "packed", pixels="stored")
    maps = np.random.default_rng(0).random((len(ds), 1, 8, 8)).astype(np.float32)
    for covers in ("photograph", "canvas"):
        sa1bpack.attach(ds, covers, maps, ds.column("image_id"), spatial=True, covers=covers)
    ds = ds.with_options(features=["photograph", "canvas"])
    return ds, sa1bpack.Buckets(ds, aspects=[0.33, 0.7, 1.0, 1.5, 3.0], exact=True)


def test_on_the_canvas_of_a_class_of_aspect_a_sample_is_shown_as_on_the_square(classes):
    ds, buckets = classes
    expected = {}
    for batch in sa1bpack.Loader(ds, 2):
        for row, image_id in enumerate(batch["image_ids"].tolist()):
            expected[image_id] = [subject_of(batch, row, name) for name in ("photograph", "canvas")]
    smaller = 0
    for batch in sa1bpack.Loader(ds, 2, bucket_by=buckets):
        smaller += tuple(batch["images"].shape[1:3]) != (128, 128)
        for row, image_id in enumerate(batch["image_ids"].tolist()):
            for name, other in zip(("photograph", "canvas"), expected.pop(image_id), strict=True):
                subject = subject_of(batch, row, name)
                np.testing.assert_array_equal(subject.rgb, other.rgb)
                np.testing.assert_array_equal(drawn_cells(subject), drawn_cells(other))
                assert subject.panels[0].shown == other.panels[0].shown
    assert smaller > 1 and not expected


def test_a_map_over_the_photograph_is_shown_as_a_whole(classes):
    ds, _ = classes
    batch = next(iter(sa1bpack.Loader(ds, 2)))
    height, width = batch["sizes"][0, 2:].tolist()
    assert subject_of(batch, 0, "photograph").panels[0].shown is None
    assert subject_of(batch, 0, "canvas").panels[0].shown == (height / 16, width / 16)


def test_a_map_is_shown_beside_a_sample_as_by_its_dataset(classes):
    ds, _ = classes
    for index in range(len(ds)):
        for name in ("photograph", "canvas"):
            subject = subject_of_sample(ds.with_options(pixels="rgb")[index], name)
            expected = read_subject(ds, index, name)
            assert subject.panels[0].shown == expected.panels[0].shown
            np.testing.assert_array_equal(subject.panels[0].pixels, expected.panels[0].pixels)


def test_a_bfloat16_map_is_shown_beside_a_sample_as_by_its_dataset(own_pack):
    ds = sa1bpack.open(own_pack)

    def teacher(batch):
        return (
            torch.arange(3.0 * 64).view(1, 3, 8, 8).repeat(len(batch["images"]), 1, 1, 1).bfloat16()
        )

    sa1bpack.derive(ds, "teacher", teacher, spatial=True)
    ds = ds.with_options(features=["teacher"])
    [panel] = subject_of_sample(ds[0], "teacher").panels
    [expected] = read_subject(ds, 0, "teacher").panels
    np.testing.assert_array_equal(panel.pixels, expected.pixels)


def test_a_changed_sample_is_shown_as_it_was(classes):
    ds, _ = classes
    for sample in ds.with_options(pixels="rgb"):
        expected = subject_of_sample(sample, "photograph")
        for changed in (sample.copy(), sample | {"label": 7}):
            subject = subject_of_sample(changed, "photograph")
            np.testing.assert_array_equal(drawn_cells(subject), drawn_cells(expected))
            assert subject.panels[0].shown == expected.panels[0].shown


def test_a_map_per_mask_is_refused_in_every_layout(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(4), 2))
    pack_small(tar, tmp_path / "packed")
    ds = sa1bpack.open(tmp_path / "packed")
    ids = ds.mask_column("annotation_id")
    maps = np.ones((len(ids), 1, 8, 8), np.float32)
    sa1bpack.attach(ds, "matte", maps, ids, axis="mask", spatial=True, covers="canvas")
    ds = ds.with_options(features=["matte"])
    for layout in ("padded", "concat"):
        batch = next(iter(sa1bpack.Loader(ds, 4, mask_layout=layout)))
        for made in (batch, {**batch}, T.Pipeline(ds)(batch)):
            with pytest.raises(OptionError, match=r"'matte', w.* map per mask|are not spatial"):
                sa1bpack.show(made, feature="matte")


def test_predictions_cover_the_canvas_unless_they_are_on_the_grid_of_the_masks(classes):
    ds, buckets = classes
    for batch in sa1bpack.Loader(ds, 2, bucket_by=buckets, mask_layout="padded"):
        subject = subject_of(batch, 0, predictions=Predictions(batch["masks"]))
        shapes = subject.panels[0].shapes
        np.testing.assert_array_equal(subject.overlaps, np.ones(subject.masks))
        assert (shapes.covered_height, shapes.covered_width) == (128, 128)
        other = torch.ones(len(batch["images"]), batch["masks"].shape[1], 5, 7, dtype=torch.bool)
        shapes = subject_of(batch, 0, predictions=Predictions(other)).panels[0].shapes
        assert (shapes.covered_height, shapes.covered_width) == (
            buckets.canvases[batch["sample_class"]]
        )


def test_the_picture_has_a_tile_for_each_sample():
    steps = [T.RandomAffine(30), T.ColorJitter(0.4), T.CutMix()]
    batch = rectangle_batch(LAYOUT, RECTANGLES) | {"epoch": 2, "batch_idx": 5}
    done = T.Pipeline(dataset(LAYOUT), steps)(batch)
    pictures = [sa1bpack.show(done), sa1bpack.show(done, samples=2), sa1bpack.show(done, rows=[1])]
    assert all(isinstance(picture, Image.Image) for picture in pictures)
    assert pictures[0].width > pictures[1].width > pictures[2].width
    for same in (batch, done | {"masks": done["masks"].numpy()}):
        assert sa1bpack.show(same).size == pictures[0].size
    entire = sa1bpack.show({"images": batch["images"]})  # nothing says what is padding
    assert entire.width == pictures[0].width and entire.height > pictures[0].height


@pytest.mark.parametrize(
    "change, options, match",
    [
        (lambda batch: batch.pop("images"), {}, "but no images: pass a batch"),
        (lambda batch: batch.clear(), {}, "the batch is an empty dict: pass a batch"),
        (lambda batch: batch.pop("pixel_mean"), {}, "normalised, but without pixel_mean"),
        (lambda batch: batch.update(images=batch["images"][:, 0]), {}, "images are float32"),
        (lambda batch: batch.update(images=batch["images"][:0]), {}, "no samples to show"),
        (lambda batch: batch.pop("image_ids"), {"image_ids": [1]}, "it has no image_ids"),
        (lambda batch: None, {"rows": [4]}, "rows is 4"),
        (lambda batch: None, {"rows": [0], "samples": 1}, "choose by one of"),
    ],
)
def test_what_is_not_in_the_batch_is_refused_by_name(change, options, match):
    done = T.Pipeline(dataset(LAYOUT))(rectangle_batch(LAYOUT, RECTANGLES))
    change(done)
    with pytest.raises(OptionError, match=match):
        sa1bpack.show(done, **options)


@pytest.mark.parametrize("layout", ["padded", "concat", "padded_bits", "concat_bits"])
def test_texts_of_a_batch_are_those_of_its_samples_and_valid_masks(layout, small_pack, tmp_path):
    ds = sa1bpack.open(small_pack)
    captions = {int(image_id): f"image {image_id}" for image_id in ds.column("image_id")[1:]}
    phrases = {int(mask_id): f"mask {mask_id}" for mask_id in ds.mask_column("annotation_id")[1:]}
    for name, texts, axis in (("caption", captions, "sample"), ("phrase", phrases, "mask")):
        sa1bpack.attach(ds, name, texts, axis=axis, missing="allow", output=tmp_path / name)
    ds = sa1bpack.open(small_pack, features=[tmp_path / "caption", tmp_path / "phrase"])
    pipeline = T.Pipeline(ds, [T.RandomResizedCrop(scale=(0.2, 0.4))])
    seen = []
    with sa1bpack.Loader(ds, 6, mask_layout=layout, device="cpu") as loader:
        for raw in loader:
            for batch in (raw, pipeline(raw)):
                if "bits" in layout and batch is not raw:
                    continue
                for row, image_id in enumerate(batch["image_ids"].tolist()):
                    [caption] = subject_of(batch, row, "caption").text.texts
                    assert caption == captions.get(image_id, "(none)")
                    subject = subject_of(batch, row, "phrase")
                    ids = subject.sample["annotation_ids"].tolist()
                    expected = tuple(phrases.get(mask_id, "(none)") for mask_id in ids)
                    assert subject.text.texts == expected and subject.text.of_masks
                    seen.append((len(ids), subject.annotation_count))
                assert sa1bpack.show(batch, feature="caption").width == 1600
                assert sa1bpack.show(batch, rows=[0], feature="phrase", large=True).width == 1600
    assert len({valid == count for valid, count in seen}) == 1 + ("bits" not in layout)


@pytest.mark.parametrize("masks", [(1, 0), (1, 1)])
def test_texts_are_told_apart_where_there_are_few_masks(masks, tmp_path):
    """Fewer texts than images, or as many: a batch without its spec cannot tell them apart then."""
    found = members(range(2), masks=lambda number: masks[number])
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    pack_small(tar, tmp_path / "pack")
    ds = sa1bpack.open(tmp_path / "pack")
    sa1bpack.attach(ds, "caption", dict.fromkeys(ds.column("image_id").tolist(), "a cat"))
    counts = ds.column("mask_count").tolist()
    phrases = dict.fromkeys(ds.mask_column("annotation_id").tolist(), "its tail")
    sa1bpack.attach(ds, "phrase", phrases, axis="mask")
    ds = sa1bpack.open(tmp_path / "pack", features=["caption", "phrase"])
    with sa1bpack.Loader(ds, 2, mask_layout="concat", device="cpu") as loader:
        for batch in loader:
            for row in range(2):
                assert subject_of(batch, row, "caption").text.texts == ("a cat",)
                assert subject_of(batch, row, "phrase").text.texts == ("its tail",) * counts[row]
            if sum(counts) == 2:
                with pytest.raises(OptionError, match="2 texts, as many as images and as masks"):
                    sa1bpack.show(dict(batch), feature="caption")


def test_a_text_that_is_cut_ends_with_dots():
    assert short_text("a " * 150) == ("a " * 150).strip()
    for text in ("a " * 151, "a" * 301, "\u00e9" * 300, "a" * 10_000):
        short = short_text(text)
        assert len(short) <= 300 and short.endswith("...") and not short.endswith("....")
    assert short_text("x" * 32, 32) == "x" * 32
    assert short_text("x" * 33, 32) == "x" * 29 + "..."
