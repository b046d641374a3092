"""Masks by a condition: samples, columns and files have the masks that fulfil it, and no others."""

import json
import pickle
import zlib

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packs_with_features import with_features  # noqa: F401 - a fixture
from reading_packs import MASK_ARRAYS

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import UnknownName, VersionError

PIXELS = 150 * 225  # of every image of the packs
SIGNS = {
    "<=": np.less_equal, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    "<": np.less, ">": np.greater,
}  # fmt: skip
# Name in a condition → the values of a stored sample's masks, (m,).
VALUES = {
    "area": lambda s: s["area"],
    "predicted_iou": lambda s: s["predicted_iou"],
    "stability_score": lambda s: s["stability_score"],
    "bbox.x": lambda s: s["bbox"][:, 0],
    "bbox.h": lambda s: s["bbox"][:, 3],
    "point_coords.y": lambda s: s["point_coords"][:, 1],
    "crop_box.w": lambda s: s["crop_box"][:, 2],
    "area_frac": lambda s: s["area"] / PIXELS,
    "mask_count": lambda s: np.full(len(s["area"]), len(s["area"])),
    "image_id": lambda s: np.full(len(s["area"]), s["image_id"][0]),
}


class Briefly:
    """A pack, for examples that are printed when they fail."""

    def __init__(self, packed):
        self.packed = packed


@pytest.fixture
def briefly(packed):
    return Briefly(packed)


@st.composite
def conditions(draw, depth=2):
    """A condition as text, and the function of a stored sample that numpy makes of it."""
    kind = draw(st.sampled_from(["compare"] if depth == 0 else ["compare", "not", "&", "|"]))
    if kind == "compare":
        name = draw(st.sampled_from(sorted(VALUES)))
        sign = draw(st.sampled_from(sorted(SIGNS)))
        number = draw(st.sampled_from([0, 3, 20, 0.25, 0.5, 0.875, 0.0007, 4991]))
        return f"{name} {sign} {number}", lambda s: SIGNS[sign](VALUES[name](s), number)
    text, holds = draw(conditions(depth - 1))
    if kind == "not":
        return f"~({text})", lambda s: ~holds(s)
    other, other_holds = draw(conditions(depth - 1))
    if kind == "&":
        return f"({text}) & ({other})", lambda s: holds(s) & other_holds(s)
    return f"({text}) | ({other})", lambda s: holds(s) | other_holds(s)


@given(condition=conditions(), verified=st.booleans(), rows=st.sampled_from(
    [slice(None), slice(None, None, -2), [7, 2, 2, 0, 9, 4], []]
))  # fmt: skip
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_samples_columns_and_batches_have_the_masks_that_numpy_would_keep(
    briefly, condition, verified, rows
):
    packed = briefly.packed
    text, holds = condition
    ds = sa1bpack.open(packed.root, verify_checksums=verified)[rows].where_masks(text)
    order = np.arange(len(packed.samples))[rows if isinstance(rows, slice) else np.array(rows, int)]
    stored = [packed.samples[k] for k in order]
    kept = [np.flatnonzero(holds(sample)) for sample in stored]
    counts = [len(masks) for masks in kept]
    assert ds.column("mask_count").tolist() == counts
    assert ds.mask_offsets.tolist() == np.cumsum([0, *counts]).tolist()
    assert ds.most_masks == max(counts, default=0)
    for name in MASK_ARRAYS:
        expected = [sample[name][masks] for sample, masks in zip(stored, kept, strict=True)]
        if expected:
            np.testing.assert_array_equal(ds.mask_column(name), np.concatenate(expected))
    for sample, source, masks in zip(ds, stored, kept, strict=True):
        assert not sample.stored()["masks"].flags.writeable
        np.testing.assert_array_equal(sample["annotation_ids"], source["annotation_id"][masks])
        np.testing.assert_array_equal(sample["masks"], source["mask_bits"][masks])
    if rows:
        with sa1bpack.Loader(ds, 4, mask_layout="concat", device="cpu") as loader:
            ids = np.concatenate([batch["annotation_ids"].numpy() for batch in loader])
        np.testing.assert_array_equal(
            ids, np.concatenate([s["annotation_id"][m] for s, m in zip(stored, kept, strict=True)])
        )


@pytest.mark.parametrize(
    "thresholds, text",
    [
        ({"min_area": 20}, "area >= 20"),
        ({"max_area_frac": 2**-10}, "area_frac <= 0.0009765625"),
        ({"min_iou": 0.9, "min_stability": 0.25}, "predicted_iou >= 0.9 & stability_score >= .25"),
    ],
)
def test_a_threshold_is_a_condition(packed, thresholds, text):
    ds = sa1bpack.open(packed.root)
    text = text.replace(" .", " 0.")
    for one, other in zip(ds.with_options(**thresholds), ds.where_masks(text), strict=True):
        for key in ("annotation_ids", "masks", "bboxes"):
            np.testing.assert_array_equal(one[key], other[key])
    both = ds.with_options(**thresholds).where_masks("area < 40")
    expected = ds.where_masks(f"({text}) & area < 40")
    np.testing.assert_array_equal(both.mask_column("bbox"), expected.mask_column("bbox"))
    assert [len(s["areas"]) for s in both] == expected.column("mask_count").tolist()


def test_a_condition_after_another_one_is_of_the_masks_that_are_left(packed):
    ds = sa1bpack.open(packed.root)
    in_turn = ds.where_masks("area > 10").where_masks("area < 40")
    at_once = ds.where_masks("area > 10 & area < 40")
    assert in_turn.fingerprint == at_once.fingerprint
    assert "masks where area > 10; area < 40" in repr(in_turn)
    counted = ds.where_masks("area > 10").where_masks("mask_count > 1").column("mask_count")
    assert 1 not in counted and counted.any()


@pytest.mark.parametrize("form", ["bits", "runs"])
def test_relations_are_among_the_masks_that_the_dataset_has(layout_packs, form):
    layout = layout_packs("pad", "rgb", "bits+runs" if form == "runs" else "bits")
    ds = sa1bpack.open(layout)
    for start in (ds, ds.where_masks("area > 100")):
        expected = []
        for sample in start.with_options(mask_format=form):
            related = sa1bpack.masks.relate(sample)
            children = related.children.sum(1)
            touching = related.touching.sum(1)
            kept = (related.depths <= 1) & (children < 3) & (related.parents != 0)
            kept &= (touching != 2) | (related.levels == 1)
            expected.append(sample["annotation_ids"][kept])
        found = start.where_masks(
            "depth <= 1 & children < 3 & parent != 0 & (touching != 2 | level == 1)"
        )
        np.testing.assert_array_equal(found.mask_column("annotation_id"), np.concatenate(expected))


def test_features_are_names_of_conditions(with_features):  # noqa: F811
    ds = sa1bpack.open(with_features.root, features=["level", "score", "features"])
    level = ds.mask_column("level")
    found = ds.where_masks("level > 40 & score > 10")
    scores = np.repeat(ds.column("score"), ds.column("mask_count"))
    np.testing.assert_array_equal(found.mask_column("level"), level[(level > 40) & (scores > 10)])
    kept = [rows for sample in found for rows in sample["features"]]
    np.testing.assert_array_equal(np.array(kept), found.mask_column("features"))
    assert len(ds.where("score > 10 & max(level) > 90")) < len(ds)
    with pytest.raises(OptionError, match=r"'features' is not a number of a mask: it has .*level"):
        ds.where_masks("features > 1")


def test_a_function_and_bools_are_conditions(packed):
    ds = sa1bpack.open(packed.root)
    expected = ds.where_masks("area > 25")
    by_function = ds.where_masks(lambda columns: columns["area"] > 25)
    by_bools = ds.where_masks(ds.mask_column("area") > 25)
    assert expected.fingerprint == by_function.fingerprint == by_bools.fingerprint
    shuffled = ds[[3, 0, 11, 8]]
    again = shuffled.where_masks(shuffled.mask_column("area") > 25)
    assert again.fingerprint == expected[[3, 0, 11, 8]].fingerprint
    assert len(ds.where_masks("area > 25").where("mask_count > 0")) < len(ds)


@pytest.mark.parametrize(
    "condition, error, text",
    [
        ("size > 3", OptionError, "'size' is not a number of a mask: it has .*area.*depth"),
        ("bbox > 3", OptionError, "'bbox' is not a number of a mask"),
        ("bbox.z > 3", OptionError, "'bbox.z' is not a number of a mask"),
        ("max(area) > 3", OptionError, "'area' is not a number of a mask: it has"),
        ("area", OptionError, "area alone is no condition"),
        ("area > 3 &", OptionError, "where_masks is 'area > 3 &': write NAME SIGN NUMBER"),
        ("area == 'x'", OptionError, "area is a number: compare it with a number, not 'x'"),
        ("file_name > 'x'", OptionError, "file_name is text: compare it by == or !="),
        ("(" * 200 + "area > 1" + ")" * 200, OptionError, "write NAME"),
        ("area > 1" + " & area > 1" * 2000, OptionError, "write NAME"),
        (lambda c: c["area"], OptionError, "returned int64 .*: it must return one bool per mask"),
        (lambda c: c["size"] > 1, OptionError, "returned bool .*: it must return one bool per m"),
        (lambda c: c["nothing"], UnknownName, "no column .nothing. has one value per mask"),
        (np.ones(46), OptionError, "takes bools, a function or a text, not float64"),
        (np.ones(3, bool), IndexError, r"shape \(3,\), but the dataset has 46 masks"),
    ],
)
def test_what_is_no_condition_of_masks_is_refused(ds, condition, error, text):
    with pytest.raises(error, match=text):
        ds.where_masks(condition)


def test_one_mask_cannot_be_kept_and_not(ds):
    twice = ds[[2, 2]]
    flags = np.zeros(twice.mask_offsets[-1], bool)
    flags[0] = True
    with pytest.raises(OptionError, match="True and False for one mask of a sample"):
        twice.where_masks(flags)


def test_text_is_compared_as_it_is(ds):
    name = ds[4]["file_name"]
    assert ds.where(f'file_name == "{name}"').column("image_id").tolist() == [ds[4]["image_id"]]
    assert len(ds.where(f"file_name != '{name}'")) == len(ds) - 1
    kept = ds.where_masks(f"file_name == '{name}'").column("mask_count")
    assert kept.tolist() == [n if k == 4 else 0 for k, n in enumerate(ds.column("mask_count"))]


# ------------------------------------------------------------------------------------- what it is


def test_other_masks_are_another_dataset_and_the_same_ones_the_same(several):
    ds = sa1bpack.open(several.roots)
    kept = ds.where_masks("area > 20")
    found = {ds.fingerprint, kept.fingerprint, ds.where_masks("area > 30").fingerprint}
    assert len({*found, ds.with_options(min_area=21).fingerprint}) == 4
    assert kept[3:7].fingerprint == ds[3:7].where_masks("area > 20").fingerprint
    assert kept[::-1].fingerprint == ds[::-1].where_masks("area > 20").fingerprint
    joined = sa1bpack.open(several.joined).where_masks("area > 20")
    assert joined.fingerprint == kept.fingerprint
    again = pickle.loads(pickle.dumps(kept[3:7]))
    assert again.fingerprint == kept[3:7].fingerprint
    np.testing.assert_array_equal(again.mask_column("area"), kept[3:7].mask_column("area"))
    assert kept.with_options(mask_format="bool").fingerprint == kept.fingerprint


def test_the_fingerprint_is_what_the_format_says(packed):
    ds = sa1bpack.open(packed.root)
    kept = ds.where_masks("area > 20")
    digests = [identity.digest for identity in ds.pack.identities]
    digest = xxhash.xxh3_64(b"sa1bpack samples 1\n")
    used = [n for n, shard in enumerate(ds.manifest.shards) if shard.samples]
    digest.update("".join(f"{digests[n]}\n" for n in used).encode())
    stretches = [(k, 0, ds.manifest.shards[n].samples) for k, n in enumerate(used)]
    digest.update(np.array(stretches, "<i8").tobytes())
    assert digest.hexdigest() == ds.fingerprint
    digest.update(b"masks\n")
    for sample in packed.samples:
        digest.update(np.packbits(sample["area"] > 20, bitorder="little").tobytes())
    assert digest.hexdigest() == kept.fingerprint


def test_a_state_is_refused_by_a_loader_of_other_masks(ds):
    def loader(text: str) -> sa1bpack.Loader:
        return sa1bpack.Loader(ds.where_masks(text), 4, shuffle=True, device="cpu")

    with loader("area > 20") as first:
        next(iter(first))
        state = first.state_dict()
    with loader("area > 20") as same:
        same.load_state_dict(state)
    with (
        loader("area > 30") as other,
        pytest.raises(OptionError, match="another order: fingerprint was"),
    ):
        other.load_state_dict(state)


def test_features_and_copies_are_of_all_masks(ds, tmp_path):
    kept = ds.where_masks("area > 20")
    with pytest.raises(OptionError, match="has the masks where area > 20, but a feature"):
        sa1bpack.attach(kept, "x", np.zeros(len(kept)), kept.column("image_id"))
    with pytest.raises(OptionError, match="has the masks where area > 20, but samples are copied"):
        sa1bpack.copy_selection(kept, tmp_path / "copy")


# -------------------------------------------------------------------------------------- selections


@pytest.mark.parametrize("select", [
    lambda ds: ds, lambda ds: ds[[7, 3, 3, 0]], lambda ds: ds[::-1], lambda ds: ds[:0],
])  # fmt: skip
def test_a_saved_selection_has_its_masks(several, tmp_path, select):
    for path in (several.roots, several.joined):
        ds = select(sa1bpack.open(path)).where_masks("area > 20 & bbox.w < 0.75")
        ds.save_selection(tmp_path / "file")
        again = sa1bpack.open(tmp_path / "file")
        assert again.fingerprint == ds.fingerprint
        np.testing.assert_array_equal(again.mask_column("bbox"), ds.mask_column("bbox"))
        assert "masks where area > 20 & bbox.w < 0.75" in repr(again)
    fewer = sa1bpack.open(several.joined).where_masks("area < 40").load_selection(tmp_path / "file")
    expected = ds.where_masks("area < 40")
    assert fewer.fingerprint == expected.fingerprint


def test_the_file_of_a_selection_of_masks_is_read_with_numpy_alone(several, tmp_path):
    ds = sa1bpack.open(several.roots)[5:9]
    kept = ds.where_masks("area > 20")
    kept.save_selection(tmp_path / "file")
    line, _, body = (tmp_path / "file").read_bytes().partition(b"\n")
    head = json.loads(line)
    data = zlib.decompress(body)
    bits = data[8 * head["samples"] :]
    expected = [np.packbits(s["areas"] > 20, bitorder="little").tobytes() for s in ds]
    assert bits == b"".join(expected) and head["version"] == [2, 0]
    assert head["masks"] == {
        "count": int(ds.mask_offsets[-1]), "bytes": len(bits),
        "kept_xxh128": xxhash.xxh3_128_hexdigest(bits), "where": "area > 20",
    }  # fmt: skip


def edited(path, edit, change=lambda bits: bits) -> None:
    line, _, body = path.read_bytes().partition(b"\n")
    head = json.loads(line)
    data = zlib.decompress(body)
    ids = 8 * head["samples"]
    edit(head)
    text = json.dumps(head, separators=(",", ":")).encode()
    path.write_bytes(text + b"\n" + zlib.compress(data[:ids] + change(data[ids:])))


@pytest.mark.parametrize(
    "edit, change, error, text",
    [
        (lambda h: None, lambda b: bytes(len(b)), FormatError, "its masks are not those whose"),
        (lambda h: None, lambda b: b + b"\0", FormatError, "its ids are not"),
        (lambda h: h["masks"].update(bytes=1), bytes, FormatError, "its ids are not"),
        (lambda h: h["masks"].update(count=-1), bytes, FormatError, "masks.count"),
        (lambda h: h["masks"].update(count=3), bytes, OptionError, "keeps some of 3 masks, but"),
        (lambda h: h.update(version=[3, 0]), bytes, VersionError, "this release reads 2.x"),
        (lambda h: h.pop("masks"), bytes, VersionError, "this release reads 1.x"),
    ],
)
def test_damaged_masks_of_a_selection_are_refused(several, tmp_path, edit, change, error, text):
    sa1bpack.open(several.roots).where_masks("area > 20").save_selection(tmp_path / "file")
    edited(tmp_path / "file", edit, change)
    with pytest.raises(error, match=text):
        sa1bpack.open(tmp_path / "file")
