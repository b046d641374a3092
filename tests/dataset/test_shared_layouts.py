"""Packs of different layouts: what differs is named with the command that packs alike, and what all
of them have is one dataset, equal to that of packs which have nothing else."""

import itertools
import pickle
import shlex

import numpy as np
import pytest
from absent_numbers import ALL, COCO, SAMPLE_KEYS, without
from batches import same_samples
from small_tars import members, write_tar

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import OptionError, OptionsDiffer, UnknownName

IMAGES = {"a": {2: 3, 4: 0, 5: 6}, "b": {11: 2, 12: 5}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(name, absent, **options): a pack of photos of that name; no test may change it."""
    root = tmp_path_factory.mktemp("layouts")
    count = itertools.count()
    there = {}

    def made(name, absent=(), **options):
        key = name, absent, *options.items()
        if key not in there:
            folder = root / f"{next(count)}{name}"
            folder.mkdir()
            counts = IMAGES[name]
            found = without(members(counts, counts.__getitem__), absent)
            number = sorted(IMAGES).index(name)
            tar = write_tar(folder / f"sa_{number:06}.tar", found)
            options = {"image_size": 64, "mask_size": 16, "samples_per_shard": 2} | options
            sa1bpack.pack(tar, folder / "pack", workers=1, absent=absent, **options)
            there[key] = folder / "pack"
        return there[key]

    return made


# How two packs differ, and the options with which two others have what these share.
CASES = {
    "numbers": ({}, {"absent": COCO}, {"absent": COCO}),
    "each lacks another": (
        {"absent": ("crop_box",)}, {"absent": ("annotation_id", "predicted_iou")},
        {"absent": ("predicted_iou", "crop_box", "annotation_id")},
    ),
    "no bits": ({}, {"masks": "runs", "absent": ALL}, {"masks": "runs", "absent": ALL}),
    "no runs": ({"masks": "bits"}, {}, {"masks": "bits"}),
    "other grids": ({}, {"mask_size": 24}, {"masks": "runs"}),
    "other sampling": (
        {"mask_sampling": "center", "fit": "native"}, {"fit": "native"},
        {"fit": "native", "masks": "runs"},
    ),
}  # fmt: skip


def opened(made, first, second, **options):
    """Both packs as one, in either order."""
    roots = [made("a", **first), made("b", **second)]
    return sa1bpack.open(roots, layouts="shared", **options)


def test_commands_open_them_as_one(made, command, tmp_path):
    """`info`, `show` and `subset` with --layouts shared; without, the error names what differs."""
    roots = [made("a"), made("b", COCO)]
    for words in (
        ["info"],
        ["show", "-o", tmp_path / "sheet.png"],
        ["subset", "-o", tmp_path / "all.sel"],
    ):
        code, _, error = command(words[0], *roots, *words[1:])
        assert code == 2 and "packs of different layouts cannot be opened together" in error
        code, _, error = command(words[0], *roots, *words[1:], "--layouts", "shared")
        assert code == 0, error
    assert (tmp_path / "sheet.png").exists()
    assert sa1bpack.info(roots, layouts="shared").manifest.samples == 5
    selected = sa1bpack.open(tmp_path / "all.sel", layouts="shared")
    assert len(selected) == 5
    with pytest.raises(OptionError, match="layouts is 'other'"):
        sa1bpack.info(roots, layouts="other")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("verified", [False, True])
def test_what_all_have_is_one_dataset(made, case, verified):
    first, second, common = CASES[case]
    ds = opened(made, first, second, verify_checksums=verified)
    expected = sa1bpack.open([made("a", **common), made("b", **common)])
    assert ds.layout == expected.layout and len(ds) == 5
    assert all(same_samples(*pair) for pair in zip(ds, expected, strict=True))
    for name in (n.array for n in expected.layout.mask_numbers):
        np.testing.assert_array_equal(ds.mask_column(name), expected.mask_column(name))
    for absent in ds.layout.absent:
        assert SAMPLE_KEYS[absent] not in ds[0]
        with pytest.raises(UnknownName, match=f"have no {absent}"):
            ds.mask_column(absent)
    assert pickle.loads(pickle.dumps(ds)).layout == expected.layout
    backwards = sa1bpack.open([*reversed([f.root for f in ds.pack.folders])], layouts="shared")
    assert backwards.column("image_id").tolist() == ds.column("image_id").tolist()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("make", [sa1bpack.Loader, sa1bpack.make_dataloader])
def test_a_batch_has_images_of_both(made, case, make):
    first, second, common = CASES[case]
    of_torch = {"num_workers": 0} if make is sa1bpack.make_dataloader else {}
    batches = []

    def by_box(columns):
        """Weights, which see the numbers that all masks have and no others."""
        assert {"image_id", "epoch", "bbox", "area"} <= columns.keys()
        assert not set(columns) & set(ds.layout.absent)
        return columns["bbox"][:, 2] + 1

    for packs in ((first, second), (common, common)):
        ds = opened(made, *packs)
        options = {"max_masks": 2, "mask_select": by_box, "relations": ["ious"], **of_torch}
        batches.append(next(iter(make(ds, 5, **options))))
    mine, theirs = batches
    assert mine.keys() == theirs.keys()
    assert sorted(mine["image_ids"].tolist()) == [2, 4, 5, 11, 12]
    for key, value in theirs.items():
        if hasattr(value, "shape"):
            assert mine[key].dtype == value.dtype and (mine[key] == value).all(), key


@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_and_other_grids_work_as_for_one_pack(made, case):
    first, second, common = CASES[case]
    options = {} if "bits" in (first.get("masks"), second.get("masks")) else {"mask_format": "runs"}
    images = []
    for packs in ((first, second), (common, common)):
        ds = opened(made, *packs, **options)
        pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip()], size=48, mask_size=24, max_valid=3)
        with sa1bpack.Loader(ds, 5, shuffle=False, pipeline=pipeline) as loader:
            images.append(next(iter(loader)))
    for key in ("images", "masks", "boxes_xyxy", "valid"):
        assert (images[0][key] == images[1][key]).all(), key


def test_a_selection_of_both_is_saved_and_opened_again(made, tmp_path):
    ds = opened(made, *CASES["numbers"][:2])
    part = ds.where("mask_count > 2")
    part.save_selection(tmp_path / "part.sel")
    with pytest.raises(OptionError, match="layouts='shared'"):
        sa1bpack.open(tmp_path / "part.sel")
    again = sa1bpack.open(tmp_path / "part.sel", layouts="shared")
    assert again.fingerprint == part.fingerprint
    with pytest.raises(OptionsDiffer, match="absent"):
        sa1bpack.copy_selection(part, tmp_path / "copy")


# Of two packs: options of both, what is said to differ, and what of the first one is to be asked
# for; None: they can be opened as one.
DIFFERENT = [
    ({}, {"image_size": 48}, "image_size is 64 in {}, 48 in {}", "--image-size 64"),
    ({"fit": "squash"}, {}, "fit is 'squash' in {}, 'pad' in {}", "--fit squash"),
    ({"pixels": "yuv420"}, {}, "pixels is 'yuv420' in {}, 'rgb' in {}", "--pixels yuv420"),
    ({"masks": "bits"}, {"masks": "runs"}, "bits is True in {}, False in {}", "--masks bits"),
    ({"masks": "runs"}, {"masks": "bits"}, "runs is True in {}, False in {}", "--masks runs"),
    ({"masks": "bits"}, {"mask_size": 24}, "mask_size is 16 in {}, 24 in {}",
     "--mask-size 16 --masks bits"),
    ({}, {"fit": "native", "absent": ("crop_box",), "mask_sampling": "center"},
     "fit is 'pad' in {}, 'native' in {}; absent is nothing in {}, (crop_box) in {}; mask_sampling",
     "--fit pad --mask-sampling area"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "differ", "flags"), DIFFERENT)
@pytest.mark.parametrize("layouts", ["equal", "shared"])
def test_packs_that_have_no_samples_in_common_are_refused_with_the_command(
    made, first, second, differ, flags, layouts, tmp_path
):
    roots = [made("a", **first), made("b", **second)]
    with pytest.raises(OptionError) as caught:
        sa1bpack.open(roots, layouts=layouts)
    text = str(caught.value)
    parts = differ.split("; ")
    assert all(part.format(*roots) in text for part in parts)
    command = f"sa1bpack pack SOURCES -o NEW {flags}"
    assert f"pack alike, `{command}`" in text and "sa1bpack.Mix" in text
    assert "shared" not in text
    names = [flag.removeprefix("--").replace("-", "_") for flag in shlex.split(flags)[::2]]
    chosen = dict(zip(names, shlex.split(flags)[1::2], strict=True))
    sizes = ("image_size", "mask_size")
    chosen = {name: int(value) if name in sizes else value for name, value in chosen.items()}
    alike = made("b", **{**second, **chosen, "absent": first.get("absent", ())})
    assert len(sa1bpack.open([roots[0], alike])) == 5


@pytest.mark.parametrize("case", CASES)
def test_packs_that_can_be_one_dataset_are_refused_unless_that_is_asked_for(made, case):
    first, second, _ = CASES[case]
    roots = [made("a", **first), made("b", **second)]
    for act in (sa1bpack.open, sa1bpack.info):
        with pytest.raises(
            OptionError, match=r"open them with layouts='shared' \(--layouts shared\)"
        ) as caught:
            act(roots)
        assert "-o NEW `" not in str(caught.value)  # a command that asks for nothing
    with pytest.raises(OptionError, match="layouts is 'any': choose one of equal, shared"):
        sa1bpack.open(roots, layouts="any")


def test_packs_that_are_no_one_dataset_are_mixed_at_one_size(made):
    """Whole batches of each, which have one shape after a Pipeline, whatever the packs are like."""
    packs = {
        "a": made("a", image_size=96, fit="squash"),
        "b": made("b", ALL, image_size=48, fit="native", pixels="yuv420", masks="runs"),
    }
    loaders = {}
    for name, root in packs.items():
        ds = sa1bpack.open(root, mask_format="runs")
        pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip()], size=40, mask_size=20, max_valid=2)
        options = {"max_masks": 3, "pad_to_max": True, "drop_last": True, "pipeline": pipeline}
        loaders[name] = sa1bpack.Loader(ds, 2, shuffle=True, **options)
    with sa1bpack.Mix(loaders, {"a": 1, "b": 1}, steps=8, seed=1) as mix:
        batches = [(batch["source"], {**batch}) for batch in mix]
    assert {source for source, _ in batches} == {"a", "b"}
    for source, batch in batches:
        assert batch["images"].shape == (2, 3, 40, 40)
        assert batch["masks"].shape == (2, 3, 20, 20)
        assert set(batch["image_ids"].tolist()) <= IMAGES[source].keys()
        assert ("predicted_ious" in batch) == (source == "a")
        assert batch["valid"].sum(1).max() <= 2 and batch["boxes_xyxy"].isfinite().all()
