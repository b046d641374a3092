"""Text, ragged and missing rows come along: merges, copies, several packs, caches, pictures."""

import shutil

import numpy as np
import pytest
from batches import all_same, same_samples
from cached_packs import driven, open_cached, open_rows  # noqa: F401 - a fixture
from commands import command  # noqa: F401 - a fixture
from edited_packs import edit
from page_client import Client
from ragged_features import RAGGED_KINDS, write_ragged
from shard_files import feature_shards_of
from small_tars import contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack import FormatError, OptionError

NAMES = [*RAGGED_KINDS]


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    return [
        write_tar(folder / f"sa_00000{tar}.tar", members(numbers, masks=lambda number: number % 4))
        for tar, numbers in enumerate((range(100, 107), range(200, 205)))
    ]


@pytest.fixture(scope="module")
def packs(tars, tmp_path_factory):
    """A pack of each tar, and one of both, with all kinds of features; never changed."""
    folder = tmp_path_factory.mktemp("packs")
    for name, sources in {"a": tars[:1], "b": tars[1:], "both": tars}.items():
        pack_small(sources, folder / name)
        for kind in RAGGED_KINDS.values():
            write_ragged(folder / name, kind)
    return folder


def test_a_merge_and_several_packs_have_the_rows_of_one_pack(packs, tmp_path):
    expected = sa1bpack.open(packs / "both", features=NAMES)
    sa1bpack.merge([packs / "a", packs / "b"], tmp_path / "merged")
    assert sa1bpack.verify(tmp_path / "merged").ok
    for name in NAMES:
        made = contents(tmp_path / "merged/side" / name)
        assert made == contents(packs / "both/side" / name)
    together = sa1bpack.open([packs / "a", packs / "b"], features=NAMES)
    assert all_same(together, expected)
    assert together.column("caption").tolist() == expected.column("caption").tolist()
    by_path = [packs / "both/side" / name for name in NAMES]
    alone = sa1bpack.open(packs / "a", features=by_path)
    assert all_same(alone, expected.from_sources("sa_000000"))


def test_a_copy_of_selected_samples_has_their_rows(packs, tmp_path):
    small = tmp_path / "small"
    ds = sa1bpack.open(packs / "both", features=NAMES)
    selected = ds[np.array([0, 2, 3, 7, 8, 9, 10, 11])]  # a shard whole, others in part
    forecast = sa1bpack.copy_selection(selected, small, dry_run=True)
    result = sa1bpack.copy_selection(selected, small)
    assert forecast.bytes_to_copy == result.bytes_to_copy
    of_features = sum(path.stat().st_size for path in (small / "side").rglob("c.*"))
    assert result.bytes_to_copy == result.bytes + of_features
    assert sa1bpack.verify(small).ok
    copied = sa1bpack.open(small, features=NAMES)
    for image in selected.column("image_id").tolist():
        assert same_samples(copied.by_id(image), ds.by_id(image))


@pytest.mark.parametrize("verified", [False, True])
def test_a_pack_behind_a_cache_has_the_same_rows(packs, tmp_path, verified):
    root = packs / "both"
    own = sa1bpack.open(root, features=NAMES, verify_checksums=verified)
    apart = shutil.copytree(root / "side/t5", tmp_path / "t5")
    inside = [name for name in NAMES if name != "t5"]
    features = [*inside[:4], apart.as_uri(), *inside[4:]]
    options = {"features": features, "verify_checksums": verified}
    ds = open_cached(root, tmp_path / "cache", **options)
    sizes = [ds.pack.fetched_bytes(number) for number in range(len(ds.pack))]
    assert all_same(ds, own)
    assert all_same(open_cached(root, tmp_path / "cache", **options), own)
    ragged = [name for name in NAMES if RAGGED_KINDS[name].ragged]
    stored = 0
    for path in (path for name in ragged for path in (root / "side" / name).rglob("c.*")):
        stored += path.stat().st_size
    assert sum(sizes) > stored


def test_which_rows_there_are_and_how_long_they_are_is_known_without_them(
    packs,
    tmp_path,
    driven,  # noqa: F811
):
    """At a URL neither conditions, columns nor a plan fetch rows; all are as for the pack here."""
    root = shutil.copytree(packs / "both", tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root, features=NAMES)
    ds = open_rows(root, tmp_path / "cache", features=NAMES)
    for condition in ("title", "t5", "~title & tokens.present", "tokens_lengths >= 2"):
        found = ds.where(condition).column("image_id")
        assert np.array_equal(found, own.where(condition).column("image_id")), condition
    for condition in ("phrase", "word.present & title.present", "points_lengths > 0"):
        selected = ds.where_masks(condition)
        expected = own.where_masks(condition)
        assert np.array_equal(selected.column("mask_count"), expected.column("mask_count"))
    for name in ("title_present", "t5_lengths", "tokens_lengths"):
        assert np.array_equal(ds.column(name), own.column(name)), name
    for name in ("phrase_present", "points_lengths", "bits_lengths"):
        assert np.array_equal(ds.mask_column(name), own.mask_column(name)), name
    lengths = [len(row) for row in own.column("tokens")]
    assert own.column("tokens_lengths").tolist() == lengths and max(lengths) > min(lengths)
    per_image = [max([0, *map(len, rows)]) for rows in _rows_of_masks(own, "points")]
    assert ds.column("points_lengths", "max").tolist() == per_image
    options = {"fields": ["t5", "caption"], "shuffle": True}
    plan = sa1bpack.Loader(ds, 2, **options).plan()
    here = sa1bpack.Loader(own, 2, **options).plan()
    assert 0.8 * here.batch_bytes <= plan.batch_bytes <= here.batch_bytes  # which counts files
    assert plan.epoch_bytes > 0 and plan.epoch_requests == 2 * len(ds)
    fetched = [path for path, _, _ in origin.ranges if "/values/" in path]
    assert fetched == []


def _rows_of_masks(ds, name):
    """The ragged rows of each sample's masks, as its values and offsets have them."""
    for sample in ds:
        edges = sample[f"{name}_offsets"]
        yield np.split(sample[name], edges[1:-1]) if len(edges) > 1 else []


@pytest.mark.parametrize("items", [-1, "many", 1 << 45])
def test_items_that_a_remote_feature_does_not_have_are_an_error(packs, tmp_path, items):
    root = shutil.copytree(packs / "a", tmp_path / "pack")
    for name in feature_shards_of(root / "side/t5"):
        path = root / "side/t5" / name / "zarr.json"
        edit(path, lambda data: data["attributes"]["sa1bpack"].update(items=items))
    ds = open_cached(root, tmp_path / "cache", features="t5")
    with pytest.raises((FormatError, sa1bpack.errors.StoreError, sa1bpack.ReadError)):
        ds[0]
    assert not list((tmp_path / "cache/shards").glob("t5-*/values/c.*"))


def test_info_says_what_features_hold_and_how_many_bytes(packs, command):  # noqa: F811
    _, out, _ = command("info", packs / "both")
    for name, text in {
        "caption": "text per image",
        "phrase": "text per mask, rows may be missing",
        "t5": "float16 (n, 8) per image",
        "depth": "float32 (2, 2) per image, rows may be missing",
    }.items():
        assert f"{name}" in out and text in out
    held = sa1bpack.info(packs / "both").features
    folder = packs / "both/side/points"
    nbytes = sum(path.stat().st_size for path in folder.rglob("c.*"))
    assert f"{nbytes:,}" in held["points"] or f"{nbytes / 1000:.1f} kB" in held["points"]


def test_explore_shows_texts_numbers_and_what_is_missing(packs, tmp_path):
    ds = sa1bpack.open(packs / "both")
    index = int(np.argmax(ds.column("mask_count")))
    with sa1bpack.explore(packs / "both", port=0, folder=tmp_path) as page:
        shown = Client(page.url).ask("/api/sample", index=index)
    shown = {feature["name"]: feature for feature in shown["features"]}
    assert shown.keys() == {*NAMES}
    image, masks = ds[index]["image_id"], ds[index]["annotation_ids"].tolist()
    for name, kind in RAGGED_KINDS.items():
        rows = [kind.row(row_id) for row_id in ([image] if kind.axis == "sample" else masks)]
        expected = []
        for row in rows:
            if row is None or isinstance(row, str):
                expected.append("(none)" if row is None else row)
                continue
            if kind.dtype == "bfloat16":
                row = (row.astype(np.uint32) << 16).view(np.float32)
            expected.append(row.ravel()[:24].astype(float).tolist())
        if kind.axis == "mask":
            assert shown[name]["rows"] == expected
        else:
            assert shown[name].get("text", shown[name].get("values")) == expected[0]


def test_show_writes_the_text_of_images_and_of_masks(packs):
    ds = sa1bpack.open(packs / "both")
    index = int(np.argmax(ds.column("mask_count")))
    for large in (False, True):
        plain = np.asarray(sa1bpack.show(packs / "both", rows=[index], large=large))
        for name in ("caption", "word"):
            with_text = sa1bpack.show(packs / "both", rows=[index], feature=name, large=large)
            assert with_text.size != plain.shape[1::-1] or (np.asarray(with_text) != plain).any()
        sample = ds.with_options(features=["caption"])[index]
        sa1bpack.show(sample, feature="caption", large=large)
    with pytest.raises(OptionError, match="are neither spatial nor text"):
        sa1bpack.show(packs / "both", feature="t5")


def test_derive_refuses_a_feature_of_another_kind(packs, tmp_path):
    root = shutil.copytree(packs / "a", tmp_path / "pack")
    ds = sa1bpack.open(root)

    def embed(batch):
        return np.ones((len(batch["image_ids"]), 2), np.float32)

    with pytest.raises(sa1bpack.errors.OutputRefused, match="missing is True, not False"):
        sa1bpack.derive(ds, "depth", embed)
    with pytest.raises(sa1bpack.errors.OutputRefused, match="t5"):
        sa1bpack.derive(ds, "t5", embed)
