"""Batches of chosen fields: these alone, as in complete batches, and nothing else is read."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import BOTH, OF_LOADERS, flattened
from cached_packs import open_cached, shards_in
from packs_with_features import with_features  # noqa: F401 - a fixture
from page_cache import drop, resident

import sa1bpack
from sa1bpack import Loader, OptionError, ReadError, make_dataloader, transforms

# Of a mask alone: counts and offsets come with whatever has a row per mask.
COUNTS = {"mask_counts"}
NUMBERS = ("bboxes", "areas", "predicted_ious", "stability_scores", "point_coords")
ALWAYS = {"image_ids", "indices", *OF_LOADERS}
FEATURES = ["teacher", "odd", "quality", "level", "scaled"]

# Fields, and the keys that batches have besides ALWAYS.
CHOICES = [
    (["teacher"], {"teacher"}),
    (["odd", "scaled", "image_ids"], {"odd", "scaled"}),
    (["quality"], {"quality"} | COUNTS),
    (["level", "teacher", "areas"], {"level", "teacher", "areas", "sizes"} | COUNTS),
    (["images"], {"images", "sizes"}),
    (["masks", "odd"], {"masks", "odd", "sizes"} | COUNTS),
    (["images", "annotation_ids"], {"images", "annotation_ids", "sizes"} | COUNTS),
    (list(NUMBERS), {*NUMBERS, "sizes"} | COUNTS),
    (["mask_counts"], COUNTS),
    (["sizes"], {"sizes"}),
    (["image_ids"], set()),
    ("odd", {"odd"}),
]


@pytest.fixture
def ds(with_features):  # noqa: F811
    return sa1bpack.open(with_features.root, features=FEATURES)


def same_fields(batch: dict, complete: dict, keys: set[str]) -> None:
    """Assert that a batch has these keys, with the values of a complete one."""
    batch, complete = flattened(batch), flattened(complete)
    assert batch.keys() == keys
    for key in keys:
        if isinstance(batch[key], torch.Tensor):
            assert torch.equal(batch[key], complete[key]), key
        else:
            assert batch[key] == complete[key], key


@BOTH
@pytest.mark.parametrize(("fields", "keys"), CHOICES, ids=lambda value: "+".join(sorted(value)))
def test_a_batch_has_the_chosen_fields_alone(ds, make, fields, keys):
    for layout in ("padded", "concat_bits"):
        offsets = set()
        if "concat" in layout and "mask_counts" in keys:
            offsets = {"mask_offsets"}
        options = {"mask_layout": layout, "shuffle": True, "seed": 3}
        if "mask_counts" in keys:
            options |= {"max_masks": 2, "mask_select": "random"}
        complete = make(ds, 2, **options)
        chosen = make(ds, 2, fields=fields, **options)
        for batch, expected in zip(chosen, complete, strict=True):
            same_fields(batch, expected, keys | offsets | ALWAYS)
            assert batch.spec == ds.spec_text


@BOTH
@pytest.mark.parametrize("rule", [{}, {"min_area": 200}], ids=str)
@pytest.mark.parametrize("form", [{"mask_format": "runs"}, {"mask_size": 24}], ids=str)
@pytest.mark.parametrize("layout", [("native", "yuv420", "runs"), ("pad", "rgb", "bits+runs")])
def test_it_is_so_for_runs_drawn_masks_and_rules(layout_packs, make, layout, form, rule):
    ds = sa1bpack.open(layout_packs(*layout), **form, **rule)
    masks = {"masks"}
    if form == {"mask_format": "runs"}:
        masks = {f"runs.{key}" for key in vars(next(iter(make(ds, 1)))["runs"])}
    for fields, keys in (
        (["images"], {"images"}),
        (["bboxes"], {"bboxes"} | COUNTS),
        (["runs" if "runs.run_ends" in masks else "masks"], masks | COUNTS),
    ):
        chosen = make(ds, 3, fields=fields)
        for batch, expected in zip(chosen, make(ds, 3), strict=True):
            same_fields(batch, expected, keys | ALWAYS | {"sizes"})


@pytest.mark.parametrize("fields", [["images", "runs"], ["images", "runs", "quality"]], ids=str)
@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_a_pipeline_draws_the_masks_of_batches_with_runs_and_no_number_of_masks(
    with_features,  # noqa: F811
    layout,
    fields,
):
    ds = sa1bpack.open(with_features.root, features=["quality"], mask_format="runs")
    steps = [transforms.RandomHorizontalFlip(), transforms.RandomResizedCrop((0.3, 0.9))]
    pipeline = transforms.Pipeline(ds, steps, seed=3)
    options = {"mask_layout": layout, "max_masks": 3}
    masks = 0
    with (
        sa1bpack.Loader(ds, 3, **options) as whole,
        sa1bpack.Loader(ds, 3, fields=fields, **options) as chosen,
    ):
        for batch, expected in zip(map(pipeline, chosen), map(pipeline, whole), strict=True):
            assert torch.equal(batch["masks"], expected["masks"])
            has_cells = expected["masks"].any(-1).any(-1)
            assert torch.equal(batch["valid"], has_cells)
            masks += int(has_cells.sum())
    assert masks


@BOTH
@pytest.mark.parametrize("verified", [False, True], ids=["", "verified"])
def test_features_alone_are_read_of_a_pack_whose_shards_are_gone(
    with_features,  # noqa: F811
    tmp_path,
    make,
    verified,
):
    root = Path(shutil.copytree(with_features.root, tmp_path / "pack"))
    ds = sa1bpack.open(root, features=FEATURES, verify_checksums=verified)
    complete = list(make(ds, 3))
    for shard in (root / "shards").iterdir():
        for path in shard.rglob("c*"):
            if path.is_file():
                path.unlink()
    fields = ["teacher", "quality"]
    ds = sa1bpack.open(root, features=FEATURES, verify_checksums=verified)
    for batch, expected in zip(make(ds, 3, fields=fields), complete, strict=True):
        same_fields(batch, expected, {*fields, *COUNTS, *ALWAYS})
    with pytest.raises(ReadError):
        list(make(ds, 3, fields=[*fields, "areas"]))


@pytest.mark.parametrize("io", ["cached", "direct"])
def test_pixels_and_masks_that_are_left_out_stay_on_the_disk(with_features, direct_folder, io):  # noqa: F811
    root = direct_folder / "pixels-left-out"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(with_features.root, root)
    left_out = [path for name in ("image", "mask_bits", "run_ends") for path in chunks(root, name)]
    drop(*left_out, *chunks(root, "values"))
    ds = sa1bpack.open(root, features=FEATURES)
    with Loader(ds, 2, fields=["areas", "teacher", "sizes"], io=io) as loader:
        assert sum(len(batch["areas"]) for batch in loader) == len(ds)
    assert left_out and not any(resident(path).any() for path in left_out)
    if io == "cached":
        assert all(resident(path).any() for path in chunks(root / "side" / "teacher", "values"))


def chunks(root: Path, name: str) -> list[Path]:
    """The files of an array in all shards of a pack, or of its features."""
    folders = [path for path in root.rglob(name) if path.is_dir()]
    return [path for folder in folders for path in folder.rglob("c*") if path.is_file()]


def test_features_alone_are_fetched_of_a_pack_at_a_url(with_features, tmp_path):  # noqa: F811
    own = sa1bpack.open(with_features.root, features=FEATURES)
    ds = open_cached(with_features.root, tmp_path / "one", features=FEATURES)
    with Loader(ds, 2, fields=["odd"], shuffle=True) as loader:
        for batch, expected in zip(loader, Loader(own, 2, shuffle=True), strict=True):
            same_fields(batch, expected, {"odd", *ALWAYS})
        alone = loader.stats()
    assert {name.split("-")[0] for name in shards_in(tmp_path / "one")} == {"odd"}
    others = open_cached(with_features.root, tmp_path / "two", features=FEATURES)
    with Loader(others, 2, fields=["odd", "areas"], shuffle=True) as loader:
        list(loader)
        assert loader.stats().fetched_bytes > 2 * alone.fetched_bytes


def test_a_changed_byte_of_what_is_left_out_is_no_error(with_features, tmp_path):  # noqa: F811
    root = Path(shutil.copytree(with_features.root, tmp_path / "pack"))
    for path in chunks(root, "image"):
        change_first_byte(path)
    ds = sa1bpack.open(root, features=FEATURES, verify_checksums=True)
    for make in (Loader, make_dataloader):
        assert sum(len(batch["odd"]) for batch in make(ds, 2, fields=["odd"])) == len(ds)
        with pytest.raises(ReadError, match="checksum"):
            list(make(ds, 2, fields=["odd", "sizes"]))
    for path in chunks(root / "side" / "odd", "values"):
        change_first_byte(path)
    for make in (Loader, make_dataloader):
        with pytest.raises(ReadError, match="odd"):
            list(make(ds, 2, fields=["odd"]))


def change_first_byte(path: Path) -> None:
    """Change the first byte of a file."""
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@BOTH
def test_order_and_state_are_those_of_complete_batches(ds, make):
    chosen = make(ds, 2, fields="odd", shuffle=True, seed=5)
    complete = make(ds, 2, shuffle=True, seed=5)
    next(iter(chosen))
    state = chosen.state_dict()
    complete.load_state_dict(state)
    rest = [batch["indices"].tolist() for batch in complete]
    chosen = make(ds, 2, fields="odd", shuffle=True, seed=5)
    assert [batch["indices"].tolist() for batch in chosen][1:] == rest


@BOTH
def test_relations_of_runs_are_padded_as_in_complete_batches(layout_packs, make):
    ds = sa1bpack.open(layout_packs(), mask_format="runs")
    options = {"max_masks": 20, "pad_to_max": True, "relations": ["ious", "parents"]}
    for chosen, complete in zip(
        make(ds, 3, fields=["runs"], **options), make(ds, 3, **options), strict=True
    ):
        for name, rows in (("ious", (3, 20, 20)), ("parents", (3, 20))):
            assert chosen[name].shape == rows
            assert torch.equal(chosen[name], complete[name])


def test_a_copy_of_a_loader_reads_the_same(ds):
    with Loader(ds, 2, fields=["odd"]) as loader:
        copy = pickle.loads(pickle.dumps(loader))
        expected = next(iter(loader))
    same_fields(next(iter(copy)), expected, {"odd", *ALWAYS})
    workers = make_dataloader(
        ds, 2, fields=["odd"], num_workers=1, multiprocessing_context="spawn", pin_memory=False
    )
    same_fields(next(iter(workers)), expected, {"odd", *ALWAYS})


def test_the_plan_and_the_figures_count_what_is_read(ds):
    row_bytes = 4 * 32 * 32 * 2
    for loader in (Loader(ds, 3, fields=["teacher"]), make_dataloader(ds, 3, fields=["teacher"])):
        plan = loader.plan()
        assert 3 * row_bytes <= plan.batch_bytes <= 3 * row_bytes + 4096
        assert plan.most_masks == 0
        assert not plan.uncapped
        batches = list(loader)
        taken = loader.stats().batches
        assert taken == len(batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": ["teachers"]}, "'teachers'.*they have images, masks, mask_counts.*teacher"),
        ({"fields": ["runs"]}, "mask_format"),
        ({"fields": []}, "empty"),
        ({"fields": [3]}, "fields has 3"),
        ({"fields": ["odd"], "max_masks": 3}, "max_masks.*fields=.*'odd'"),
        ({"fields": ["odd"], "max_masks": [3, None]}, "max_masks.*fields=.*'odd'"),
        ({"fields": ["areas"], "relations": ["ious"]}, "ious.*needs masks.*fields"),
    ],
)
@BOTH
def test_fields_that_do_not_fit_are_refused(ds, make, options, message):
    with pytest.raises(OptionError, match=message):
        make(ds, 2, **options)


def test_a_pipeline_that_needs_what_is_left_out_is_refused(ds):
    pipeline = transforms.Pipeline(ds, max_valid=2)
    with pytest.raises(OptionError, match=r"pipeline needs images and annotation_ids.*\['odd'\]"):
        Loader(ds, 2, fields=["odd"], pipeline=pipeline)
    fields = ["images", "annotation_ids", "odd"]
    with Loader(ds, 2, fields=fields, pipeline=pipeline) as loader:
        batch = next(iter(loader))
    assert batch["images"].dtype == torch.float32
    assert "bboxes" not in batch


def test_a_transform_gets_the_chosen_fields(ds):
    seen = []

    def doubled(sample):
        seen.append(set(sample))
        sample["odd"] = sample["odd"] * 2
        return sample

    changed = ds.with_options(transform=doubled)
    batch = next(iter(make_dataloader(changed, 2, fields=["odd"], num_workers=0)))
    assert seen == [{"odd", "image_id", "row"}] * 2
    assert np.array_equal(batch["odd"].numpy(), [ds[0]["odd"] * 2, ds[1]["odd"] * 2])


def test_a_feature_is_derived_from_another_one_alone(with_features, tmp_path):  # noqa: F811
    root = Path(shutil.copytree(with_features.root, tmp_path / "pack"))
    ds = sa1bpack.open(root, features=["odd"])
    result = sa1bpack.derive(ds, "sum", sum_of_odd, fields=["odd"], progress=False)
    assert result.made
    both = sa1bpack.open(root, features=["odd", "sum"])
    expected = both.column("odd").astype(np.int64).sum(1)
    np.testing.assert_array_equal(both.column("sum"), expected)
    with pytest.raises(OptionError, match="the pipeline needs images"):
        sa1bpack.derive(
            ds, "more", sum_of_odd, fields=["odd"], pipeline=transforms.Pipeline(ds), progress=False
        )
    assert not (root / "side" / "more").exists()


def sum_of_odd(batch: dict) -> torch.Tensor:
    """The sum of each row, of batches that have nothing else."""
    assert batch.keys() == {"odd", *ALWAYS}
    return batch["odd"].long().sum(1)
