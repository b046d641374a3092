"""attach: rows find their images and masks by id, in any order."""

import ml_dtypes
import numpy as np
import pytest
import torch
from format_files import manifest_of
from packs_with_features import Feature, stored, write_side
from small_tars import members, pixels_of, write_tar
from torch.utils.data import Subset, random_split

import sa1bpack
from sa1bpack import OptionError, attach, transforms, verify
from sa1bpack.errors import OutputRefused


@pytest.fixture
def given(ds):
    """Rows for all images and some others, in random order: (ids, rows)."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.concatenate([ds.column("image_id"), np.arange(70, 80)]))
    return ids, np.stack([ids, -ids], 1).astype(np.float32)


def test_rows_are_matched_by_image_id_of_a_dataset_or_a_subset_of_complete_shards(
    ds, pack, given, monkeypatch
):
    monkeypatch.setattr("sa1bpack.deriving.attach.PIECE_BYTES", 16)  # two rows at a time
    ids, rows = given
    every, _ = random_split(ds, [len(ds), 0], torch.Generator().manual_seed(0))
    result = sa1bpack.attach(every, "a", rows, ids)
    expected = ds.column("image_id")[:, None] * np.array([1, -1], np.float32)
    np.testing.assert_array_equal(stored(result.folder, pack), expected)
    assert result.missing == () and verify(pack).ok
    assert attach(ds, "a", rows, ids).existing == result.made
    with pytest.raises(OptionError, match="is for a complete shard"):
        attach(Subset(ds, [0]), "b", rows, ids)
    with pytest.raises(OptionError, match=r"sa1bpack\.open"):
        attach(Subset([1, 2], [0]), "b", rows, ids)


def test_rows_are_matched_by_annotation_id(ds, pack):
    ids = ds.mask_column("annotation_id")
    order = np.random.default_rng(1).permutation(len(ids))
    rows = torch.from_numpy(ids[order] % 1000)[:, None].to(torch.bfloat16)
    result = attach(ds, "a", rows, torch.from_numpy(ids[order]), axis="mask")
    found = torch.from_numpy(stored(result.folder, pack).copy()).view(torch.bfloat16)
    assert torch.equal(found, torch.from_numpy(ids % 1000)[:, None].to(torch.bfloat16))


def test_a_memory_map_and_bits_of_bfloat16_are_taken(ds, pack, given, tmp_path):
    ids, rows = given
    bits = torch.from_numpy(rows).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.save(tmp_path / "a.npy", bits)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="c")
    tensor = torch.from_numpy(mapped.view(np.int16)).view(torch.bfloat16)
    result = attach(ds, "a", tensor, ids)
    assert manifest_of(result.folder)["dtype"] == "bfloat16"
    lookup = dict(zip(ids.tolist(), bits, strict=True))
    expected = np.stack([lookup[image] for image in ds.column("image_id").tolist()])
    np.testing.assert_array_equal(stored(result.folder, pack), expected)


def test_a_repeated_call_keeps_the_same_rows_and_refuses_others(ds, given):
    ids, rows = given
    made = attach(ds, "a", rows, ids).made
    assert attach(ds, "a", rows, ids).existing == made
    with pytest.raises(OutputRefused, match="other rows for sample 0"):
        attach(ds, "a", rows + 1, ids)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda ids, rows: (ids[1:], rows), "one integer for each"),
        (lambda ids, rows: (ids.astype(float), rows), "one integer for each"),
        (lambda ids, rows: (np.full_like(ids, 7), rows), "ids has 7 more than once"),
        (lambda ids, rows: (ids + 10**6, rows), "rows lack 12 images .* of shard sa_000000-000"),
        (lambda ids, rows: (ids, rows.astype(complex)), "rows are complex128"),
        (lambda ids, rows: (ids, rows.tolist()), "is a list: choose an array of all rows"),
        (lambda ids, rows: (ids[:0], rows[:0]), "rows lack 12 images"),
        (lambda ids, rows: (np.where(ids == ids[ids > 79].min(), 1, ids), rows),  # the last image
         "rows lack 1 image of the dataset, such as .* of shard sa_000002-000"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_refused(ds, pack, given, change, message):
    ids, rows = change(*given)
    with pytest.raises(OptionError, match=message):
        attach(ds, "a", rows, ids)
    assert not (pack / "side").exists()


# -------------------------------------------------------------------------------- spatial rows


def spatial_rows(ds, shape, dtype="f4"):
    """Rows of a shape for all images of a dataset, and their ids."""
    ids = ds.column("image_id")
    return np.ones((len(ids), *shape), dtype), ids


def test_rows_that_come_from_elsewhere_must_say_what_they_cover(ds, pack):
    for shape in ((1, 4, 6), (1, 4, 4)):
        rows, ids = spatial_rows(ds, shape)
        with pytest.raises(OptionError, match="covers is None: choose covers='photograph' if"):
            attach(ds, "depth", rows, ids, spatial=True)
    assert not (pack / "side/depth").exists()
    rows, ids = spatial_rows(ds, (1, 4, 6))
    for covers in ("photograph", "canvas"):
        folder = attach(ds, covers, rows, ids, spatial=True, covers=covers).folder
        assert manifest_of(folder)["covers"] == covers
        [spec] = sa1bpack.open(pack, features=[covers]).spec.features
        assert (spec.covers, spec.interpolation) == (covers, "bilinear")
        assert attach(ds, covers, rows, ids, spatial=True, covers=covers).made == ()
    with pytest.raises(OutputRefused, match="covers is 'photograph', not 'canvas'"):
        attach(ds, "photograph", rows, ids, spatial=True, covers="canvas")


def test_what_a_pack_that_is_not_padded_covers_is_not_asked(layout_packs, tmp_path):
    squashed = sa1bpack.open(layout_packs("squash", "rgb", "bits+runs"))
    rows, ids = spatial_rows(squashed, (1, 4, 6))
    attach(squashed, "depth", rows, ids, spatial=True, output=tmp_path / "depth")
    found = squashed.with_options(features=tmp_path / "depth")
    assert found.spec.features[0].covers == "canvas"


def test_a_manifest_has_what_is_not_so_without_saying(ds):
    """What earlier releases wrote of square rows over the canvas is written as before."""
    cases = (
        ("f4", {"covers": "canvas"}, {}),
        ("f4", {"covers": "canvas", "interpolation": "bilinear"}, {}),
        ("u1", {"interpolation": "nearest"}, {}),
        ("u1", {"covers": "canvas"}, {}),
        ("u1", {"interpolation": "bilinear"}, {"interpolation": "bilinear"}),
        ("f4", {"interpolation": "nearest"}, {"interpolation": "nearest"}),
        ("f4", {"covers": "photograph"}, {"covers": "photograph"}),
    )
    for number, (dtype, options, written) in enumerate(cases):
        rows, ids = spatial_rows(ds, (2, 4, 4), dtype)
        options = {"covers": "canvas", **options}
        made = attach(ds, f"map_{number}", rows, ids, spatial=True, **options)
        keys = manifest_of(made.folder)
        assert {key: keys[key] for key in ("covers", "interpolation") if key in keys} == written
        [spec] = ds.with_options(features=[f"map_{number}"]).spec.features
        assert spec.covers == options.get("covers", "canvas")
        default = "nearest" if dtype == "u1" else "bilinear"
        assert spec.interpolation == options.get("interpolation", default)


SHAPES = [(96, 144), (144, 96), (120, 120), (60, 150)]
STEPS = [
    [],
    [transforms.RandomHorizontalFlip()],
    [transforms.RandomResizedCrop((0.3, 0.8)), transforms.RandomHorizontalFlip()],
    [transforms.RandomAffine(30, 10)],
]


@pytest.mark.parametrize("fit", ["pad", "squash", "native"])
def test_a_map_of_photographs_lies_on_their_images_after_any_step(tmp_path, fit):
    """The green channel of photographs of any shape, as a model of photographs returns it."""
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(4), size=SHAPES.__getitem__))
    options = {"image_size": 128, "mask_size": 16, "fit": fit, "workers": 1, "progress": False}
    sa1bpack.pack(tar, tmp_path / "pack", **options)
    ds = sa1bpack.open(tmp_path / "pack")
    ids = ds.column("image_id")
    greens = [pixels_of(number, *SHAPES[number]).getchannel(1) for number in ids]
    maps = np.stack([np.asarray(green.resize((90, 60)), np.float32) for green in greens])
    attach(ds, "map", maps[:, None], ids, spatial=True, covers="photograph")
    levels = (maps[:, None] // 16).astype(np.uint8)
    attach(ds, "levels", levels, ids, spatial=True, covers="photograph")
    ds = ds.with_options(features=["map", "levels"])
    for steps in STEPS:
        pipeline = transforms.Pipeline(ds, steps, size=128, mean=(0.01,) * 3, std=(1,) * 3)
        with sa1bpack.Loader(ds, 4, max_masks=0) as loader:
            made = pipeline(next(iter(loader)))
        grid = made["map"].shape[2:]
        green = torch.nn.functional.interpolate(made["images"][:, 1:2], grid, mode="area")
        inner = transforms.image_region(made, grid)[:, None]
        # Without the outermost cells, which the average above mixes with what is beyond.
        inner = -torch.nn.functional.max_pool2d(-inner.float(), 3, 1, 1) > 0
        assert inner.sum() > 500
        assert (made["map"] - green)[inner].abs().mean() < 2.5
        assert made["levels"].dtype == torch.uint8
        apart = (made["levels"] * 16.0 + 8 - green)[inner].abs()
        assert apart.mean() < 8


def test_rows_of_an_earlier_release_that_are_not_square_are_not_placed_by_guess(ds, pack):
    """They are read as they were written; a pipeline refuses them, with the remedy."""
    write_side(pack, Feature("old", "sample", "float32", (1, 4, 6), spatial=True))
    found = ds.with_options(features=["old"])
    assert found.spec.features[0].covers is None
    assert found[0]["old"].shape == (1, 4, 6)
    with pytest.raises(OptionError, match=r"old: rows are .* again with covers='photograph'"):
        transforms.Pipeline(found)


class Column:
    """An array of a library that is not numpy or torch, as a Series of pandas or an array of jax.

    Its positions may be labels: nobody may take rows of it by positions.
    """

    def __init__(self, values: np.ndarray):
        self._values = values
        self.dtype, self.shape = values.dtype, values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, positions):
        return Column(self._values[positions])

    def __array__(self, dtype=None, copy=None):
        return self._values


def column_of_ones(batch) -> Column:
    return Column(np.ones(len(batch["image_ids"])))


def test_an_array_of_another_library_is_refused_with_the_way_to_give_it(ds, tmp_path):
    """Not by naming the type that it has."""
    ids = ds.column("image_id")
    rows = Column(ids.astype(np.float32))
    options = {"output": tmp_path / "a", "progress": False}
    with pytest.raises(OptionError, match=r"\.Column: give an array of numpy, such as np\.asarray"):
        sa1bpack.attach(ds, "a", rows, ids, **options)
    with pytest.raises(OptionError, match=r"\.Column: give an array of numpy"):
        sa1bpack.derive(ds, "a", column_of_ones, **options)
    rows = ids.astype(ml_dtypes.bfloat16)
    with pytest.raises(OptionError, match="bfloat16, which numpy does not know: give a tensor"):
        sa1bpack.attach(ds, "a", rows, ids, **options)
