"""Selected samples copied to a pack of their own: the same samples, and accounts that add up."""

import json
import shutil

import numpy as np
import pytest
from batches import same_samples
from edited_packs import flip
from small_tars import SMALL, changed, contents, members, write_tar
from verify_script import script_finds

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import OptionsDiffer, OutputRefused
from sa1bpack.format.shard_writer import ShardWriter

LAYOUTS = {
    "plain": {},
    "compact": {"preset": "compact"},
    "bits": {"fit": "squash", "pixels": "yuv420", "masks": "bits"},
    "native": {"fit": "native"},
}


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Two tars; the first has a record that is no JSON, an image without masks, and a lone JPEG."""
    folder = tmp_path_factory.mktemp("tars")
    first = members(range(100, 111), masks=lambda number: number % 4)
    first["./sa_103.json"] = b"{ not json"
    changed(first, 105, lambda record: record.update(annotations=[]))
    del first["./sa_109.json"]
    return [
        write_tar(folder / "sa_000000.tar", first, shuffle=1),
        write_tar(folder / "sa_000001.tar", members(range(400, 406)), shuffle=2),
    ]


@pytest.fixture(scope="module")
def packs(tars, tmp_path_factory):
    """Layout → a pack of both tars, which drops images without masks."""
    folder = tmp_path_factory.mktemp("packs")
    for name, options in LAYOUTS.items():
        sa1bpack.pack(tars, folder / name, workers=1, empty="drop", **SMALL | options)
    return {name: folder / name for name in LAYOUTS}


@pytest.fixture
def plain(packs):
    return packs["plain"]


@pytest.fixture
def small(tmp_path):
    """The folder of a copy."""
    return tmp_path / "small"


def some(pack):
    """Samples of both tars: of some shards all, of some a part, of some none."""
    ds = sa1bpack.open(pack)
    return ds[[0, 2, 3, len(ds) - 1, len(ds) - 3]]


def manifest_of(root) -> dict:
    return json.loads((root / "manifest.json").read_text())


def lengths_add_up(root) -> None:
    """As docs/format.md says, "Accounts": by the numbers of the pack and its shards themselves."""
    manifest = manifest_of(root)
    counts = manifest["counts"]
    pairs = sum(record["pairs"] for record in manifest["sources"])
    unpaired = {"missing-json", "missing-jpeg"}
    rejected = sum(
        count
        for key, count in counts.items()
        if key.startswith("rejects:") and key.removeprefix("rejects:") not in unpaired
    )
    left_out = counts.get("left_out_images", 0)
    assert manifest["samples"] + counts["dropped_images"] + rejected + left_out == pairs
    in_shards: dict[str, int] = {}
    for entry in manifest["shards"]:
        group = json.loads((root / "shards" / entry["name"] / "zarr.json").read_text())
        held = group["attributes"]["sa1bpack"]
        of_shard = held["samples"] + len(held["rejects"]) + held["dropped"]
        assert of_shard + held.get("left_out", 0) == held["pairs"]
        in_shards[entry["source"]] = in_shards.get(entry["source"], 0) + held["pairs"]
    for record in manifest["sources"]:
        pairs_rejected = [each for each in record["rejects"] if each["reason"] not in unpaired]
        of_source = in_shards[record["name"]] + len(pairs_rejected) + record["dropped"]
        assert of_source + record.get("left_out", 0) == record["pairs"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_is_a_sound_pack_of_the_same_samples(packs, layout, small, tmp_path):
    ds = some(packs[layout])
    result = sa1bpack.copy_selection(ds, small)
    copied = sa1bpack.open(small)
    expected = ds[np.argsort(ds.rows_at(np.arange(len(ds))))]
    assert copied.column("image_id").tolist() == expected.column("image_id").tolist()
    assert all(same_samples(ours, theirs) for ours, theirs in zip(copied, expected, strict=True))
    for index in range(len(ds)):
        theirs = expected.metadata(index)
        assert (copied.metadata(index).source, copied.metadata(index).file_name) == (
            theirs.source,
            theirs.file_name,
        )
    report = sa1bpack.verify(small)
    assert report.ok and report.complete
    assert script_finds(small)[0] == 0
    lengths_add_up(small)
    manifest = manifest_of(small)
    assert (result.images, result.masks) == (manifest["samples"], manifest["masks"])
    assert result.bytes == sum(entry["bytes"] for entry in manifest["shards"])
    assert (
        result.left_out
        == manifest["counts"]["left_out_images"]
        == len(sa1bpack.open(packs[layout])) - len(ds)
    )
    if copied.layout.runs:
        ids = ds.column("image_id").tolist()
        sa1bpack.export_sa1b(packs[layout], tmp_path / "theirs", image_ids=ids)
        sa1bpack.export_sa1b(small, tmp_path / "ours")
        assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


def test_a_copy_of_all_samples_has_the_bytes_of_the_pack(plain, small):
    result = sa1bpack.copy_selection(sa1bpack.open(plain), small)
    assert contents(small) == contents(plain) and result.left_out == 0


def test_a_copy_of_whole_sources_has_the_bytes_of_their_pack(plain, tars, small, tmp_path):
    sa1bpack.copy_selection(sa1bpack.open(plain).from_sources("sa_000001"), small)
    sa1bpack.pack(tars[1:], tmp_path / "alone", workers=1, empty="drop", **SMALL)
    assert contents(small) == contents(tmp_path / "alone")


def test_a_copy_that_ends_early_is_no_pack_that_looks_whole_and_is_continued(
    plain, small, tmp_path, monkeypatch
):
    ds = some(plain)
    sa1bpack.copy_selection(ds, tmp_path / "at_once")
    publish = ShardWriter.publish
    published = []

    def fails_the_second_time(writer, attributes):
        if published:
            raise OSError("the disk is full")
        published.append(writer.name)
        return publish(writer, attributes)

    monkeypatch.setattr(ShardWriter, "publish", fails_the_second_time)
    with pytest.raises(OSError, match="full"):
        sa1bpack.copy_selection(ds, small)
    assert sa1bpack.verify(small).complete is False
    names = {path.name for path in (small / "shards").iterdir()}
    assert published[0] in names and not any(name.startswith(".") for name in names)
    monkeypatch.undo()
    shards = len(manifest_of(tmp_path / "at_once")["shards"])
    result = sa1bpack.copy_selection(ds, small)
    assert 1 <= result.before < shards == result.shards
    assert contents(small) == contents(tmp_path / "at_once")
    assert sa1bpack.copy_selection(ds, small).before == shards


def test_a_dry_run_says_the_bytes_and_writes_nothing(plain, small):
    ds = some(plain)
    forecast = sa1bpack.copy_selection(ds, small, dry_run=True)
    assert not small.exists()
    result = sa1bpack.copy_selection(ds, small)
    assert forecast.bytes_to_copy == forecast.bytes == result.bytes > 0
    assert sa1bpack.copy_selection(ds, small, dry_run=True).bytes_to_copy == 0


def test_progress_ends_with_all_bytes(plain, small):
    steps = []
    result = sa1bpack.copy_selection(some(plain), small, progress=lambda *step: steps.append(step))
    assert steps[-1] == (result.bytes, result.bytes) and steps == sorted(steps)


def test_another_selection_is_not_mixed_into_a_copy(plain, small):
    ds = sa1bpack.open(plain)
    sa1bpack.copy_selection(ds[:1], small)
    before = contents(small)
    for other in (ds[1:2], ds[-1:]):
        with pytest.raises(OutputRefused, match="which this selection does not have"):
            sa1bpack.copy_selection(other, small)
    assert contents(small) == before


def test_a_copy_of_a_copy_adds_up(plain, small, tmp_path):
    sa1bpack.copy_selection(some(plain), small)
    ds = sa1bpack.open(small)
    sa1bpack.copy_selection(ds[1:3], tmp_path / "smaller")
    assert sa1bpack.verify(tmp_path / "smaller").complete
    lengths_add_up(tmp_path / "smaller")
    copied = sa1bpack.open(tmp_path / "smaller")
    assert all(same_samples(copied[k], ds[1 + k]) for k in range(2))


def test_tars_are_added_to_a_copy_and_its_own_bring_nothing_back(plain, tars, small):
    sa1bpack.copy_selection(sa1bpack.open(plain).from_sources("sa_000000")[:2], small)
    before = contents(small)
    assert sa1bpack.pack(tars[:1], small, workers=1).packed_before == 1
    assert contents(small) == before
    with pytest.raises(OutputRefused, match="a copy of some samples of this source"):
        sa1bpack.pack(tars[:1], small, workers=1, md5=True)
    assert contents(small) == before
    added = sa1bpack.pack(tars, small, workers=1)
    assert (added.new_images, added.images) == (6, 8)
    assert sa1bpack.verify(small).complete
    lengths_add_up(small)


def test_a_repair_mends_the_packs_own_files_and_leaves_a_damaged_shard(
    plain, tars, small, tmp_path
):
    own = shutil.copytree(plain, tmp_path / "own")  # files may be links to it
    sa1bpack.copy_selection(some(own), small)
    before = contents(small)
    (small / "rejects.jsonl").unlink()
    shutil.rmtree(next(small.glob("index-*")))
    assert sa1bpack.repair(small, workers=1).ok and contents(small) == before
    shard = manifest_of(small)["shards"][0]["name"]
    flip(small / "shards" / shard / "bbox/c.0.0")
    damaged = contents(small)
    result = sa1bpack.repair(small, tars, workers=1)
    assert "copy the selection again" in result.left[shard] and contents(small) == damaged
    shutil.rmtree(small / "shards" / shard)
    ds = some(own)
    flip(own / "shards" / shard / "bbox/c.0.0")  # a link of it was damaged
    assert sa1bpack.copy_selection(ds, small).before == len(manifest_of(small)["shards"]) - 1
    assert contents(small) == before
    (small / "manifest.json").unlink()
    with pytest.raises(FormatError, match="a copy of selected samples; restore a copy of it"):
        sa1bpack.repair(small, tars, workers=1)


def test_copies_of_other_sources_are_merged_and_of_one_source_refused(plain, small, tmp_path):
    ds = sa1bpack.open(plain)
    parts = {"a": ds[:1], "b": ds[1:2], "c": ds.from_sources("sa_000001")[:1]}
    for name, part in parts.items():
        sa1bpack.copy_selection(part, tmp_path / name)
    with pytest.raises(OutputRefused, match="a copy of some of its samples"):
        sa1bpack.merge([tmp_path / "a", plain], small)
    assert sa1bpack.merge([tmp_path / "a", tmp_path / "c"], small).complete
    assert sa1bpack.verify(small).complete
    lengths_add_up(small)


def test_selections_of_several_packs_are_copied_into_one(plain, tars, small, tmp_path):
    for number, tar in enumerate(tars):
        sa1bpack.pack(tar, tmp_path / f"{number}", workers=1, empty="drop", **SMALL)
    both = sa1bpack.open([tmp_path / "0", tmp_path / "1"])
    sa1bpack.copy_selection(both[1:-2], small)
    sa1bpack.copy_selection(sa1bpack.open(plain)[1:-2], tmp_path / "of_one")
    assert contents(small) == contents(tmp_path / "of_one")
    sa1bpack.pack(tars[1:], tmp_path / "other", workers=1, max_masks=1, **SMALL)
    others = sa1bpack.open([tmp_path / "0", tmp_path / "other"])
    with pytest.raises(
        OptionsDiffer, match=r"cannot be copied into one:\n  empty: .*\n  max_masks"
    ):
        sa1bpack.copy_selection(others, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_what_cannot_be_copied_is_refused_before_anything_is_written(plain, small, tmp_path):
    ds = sa1bpack.open(plain)
    for wrong, said in (
        (ds[:0], "has no sample"),
        (sa1bpack.open(plain, min_area=5), "thresholds min_area=5"),
        (str(plain), "open it"),
    ):
        with pytest.raises(OptionError, match=said):
            sa1bpack.copy_selection(wrong, small)
    for output in (plain, plain / "small"):
        with pytest.raises(OptionError, match="in the pack"):
            sa1bpack.copy_selection(ds, output)
    assert not small.exists()


def test_a_damaged_sample_is_not_copied(plain, small, tmp_path):
    own = shutil.copytree(plain, tmp_path / "own")
    flip(own / "shards/sa_000001-000/image/c.0.0.0.0", at=5)
    with pytest.raises(FormatError, match="checksum of sample 0"):
        sa1bpack.copy_selection(sa1bpack.open(own).from_sources("sa_000001")[:1], small)
    assert not list((small / "shards").glob("sa_*"))


def test_a_source_that_is_not_packed_to_its_end_is_named(plain, small, tmp_path):
    own = shutil.copytree(plain, tmp_path / "own")
    manifest = manifest_of(own)
    manifest["sources"] = manifest["sources"][1:]
    manifest["complete"] = False
    (own / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OptionError, match="the source sa_000000 is not packed to its end"):
        sa1bpack.copy_selection(sa1bpack.open(own), small)
    sa1bpack.copy_selection(sa1bpack.open(own).from_sources("sa_000001"), small)
    assert sa1bpack.verify(small).complete


def test_features_come_along_with_the_rows_of_the_copied_samples(plain, small, tmp_path):
    own = shutil.copytree(plain, tmp_path / "own")
    ds = sa1bpack.open(own)
    random = np.random.default_rng(0)
    scores = random.random((len(ds), 2, 3), np.float32)
    sa1bpack.attach(ds, "score", scores, ds.column("image_id"))
    ids = ds.mask_column("annotation_id")
    sa1bpack.attach(ds, "depth", random.integers(0, 9, (len(ids), 1)), ids, axis="mask")
    shutil.rmtree(next((own / "side/depth").glob("sa_000001-000-*")))
    selected = some(own)
    forecast = sa1bpack.copy_selection(selected, small, dry_run=True)
    steps = []
    result = sa1bpack.copy_selection(selected, small, progress=lambda *step: steps.append(step))
    assert forecast.features == result.features and set(result.features) == {"score", "depth"}
    without = {"sa_000001-000"} & {path.name for path in (small / "shards").iterdir()}
    assert (result.features["score"], set(result.features["depth"])) == ([], without)
    of_features = sum(path.stat().st_size for path in (small / "side").rglob("c.*"))
    assert result.bytes_to_copy == result.bytes + of_features
    assert steps[-1] == (result.bytes_to_copy, result.bytes_to_copy)
    assert sa1bpack.verify(small).ok
    first = selected.from_sources("sa_000000").with_options(features=["score", "depth"])
    copied = (
        sa1bpack.open(small).from_sources("sa_000000").with_options(features=["score", "depth"])
    )
    assert len(first) == len(copied) > 1
    assert all(same_samples(*pair) for pair in zip(copied, first, strict=True))
    before = contents(small)
    assert sa1bpack.copy_selection(selected, small).bytes_to_copy == 0
    assert contents(small) == before


def test_the_command_copies_what_it_would_select_and_says_what_it_leaves_out(
    plain, small, tmp_path, command
):
    own = shutil.copytree(plain, tmp_path / "own")
    scored = sa1bpack.open(own)
    scores = np.arange(len(scored), dtype=np.float32)
    sa1bpack.attach(scored, "score", scores[:, None], scored.column("image_id"))
    words = ("subset", own, "-o", small, "--copy", "--where", "mask_count < 3")
    code, out, error = command(*words, "--dry-run")
    assert (code, error) == (0, "") and "nothing was written" in out and not small.exists()
    code, out, error = command(*words)
    assert (code, error) == (0, "")
    ds = sa1bpack.open(own).where("mask_count < 3")
    assert sa1bpack.open(small).column("image_id").tolist() == ds.column("image_id").tolist()
    assert f"{small}: {len(ds)} images" in out and "\nfeature score\n" in out
    assert {ds.metadata(k).source for k in range(len(ds))} == {"sa_000000"}
    left_out = len(scored.from_sources("sa_000000")) - len(ds)
    assert left_out == 1 and "left out: 1 image of the same tars" in out
    said = command("info", small)[1]
    assert "1 image, when a selection was copied" in said and "\n  command" not in said
    code, _, error = command("subset", own, "-o", tmp_path / "ids", "--dry-run")
    assert code == 2 and "--dry-run is for --copy" in error
