"""`--dry-run` tells what packing takes, and writes nothing."""

import re
import shutil
import tempfile

import pytest
from edited_packs import unfinished_pack
from small_tars import SMALL, contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import OutputRefused


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    """60 photos with 0 to 5 masks in random order."""
    found = members(range(60), masks=lambda number: number % 6)
    return write_tar(tmp_path_factory.mktemp("estimate") / "sa_000000.tar", found)


def on_disk(root) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("image/c.*"))


@pytest.mark.parametrize("options", [{}, {"fit": "squash", "mask_size": 64}, {"empty": "drop"}])
def test_a_forecast_is_within_a_factor_of_two_of_the_pack(tar, tmp_path, options):
    options = {**SMALL, "image_size": 256, "samples_per_shard": 16, **options}
    forecast = sa1bpack.estimate(tar, tmp_path / "pack", workers=1, **options)
    assert not (tmp_path / "pack").exists()
    result = sa1bpack.pack(tar, tmp_path / "pack", workers=1, **options)
    info = sa1bpack.info(tmp_path / "pack")
    pairs = [
        (forecast.images, result.images),
        (forecast.masks, result.masks),
        (forecast.disk_bytes, info.bytes),
        (forecast.shards, len(info.manifest.shards)),
        (forecast.disk_bytes - forecast.hole_bytes, info.disk_bytes),
    ]
    for estimated, true in pairs:
        assert true / 2 <= estimated <= true * 2, pairs
    assert forecast.sources == 1 and forecast.source_bytes == tar.stat().st_size
    assert forecast.probed == 24 and forecast.rejected == 0


OPTIONS = {**SMALL, "image_size": 256, "samples_per_shard": 16, "workers": 1}


def test_a_pack_that_does_not_fit_is_refused_before_anything_is_written(tar, tmp_path, free):
    """With both numbers, the layouts that would fit, and the option to go on."""
    root = tmp_path / "pack"
    forecast = sa1bpack.estimate(tar, root, **OPTIONS)
    free(forecast.needed_bytes - 1)
    with pytest.raises(OutputRefused) as caught:
        sa1bpack.pack(tar, root, **OPTIONS)
    text = str(caught.value)
    assert "--ignore-space" in text
    assert "what would fit: " in text and "; --fit native --pixels yuv420 --masks runs (" in text
    takes, compact, has = re.search(
        r"about (\S+ \SB) more \((\S+ \SB) with --preset compact\).* and (\S+ \SB) are free", text
    ).groups()
    told = [forecast.needed_bytes, forecast.compact_bytes, forecast.needed_bytes - 1]
    for words, nbytes in zip((takes, compact, has), told, strict=True):
        number, unit = words.split()
        assert float(number) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(nbytes, rel=0.005)
    assert not root.exists()
    again = sa1bpack.estimate(tar, root, **OPTIONS)
    assert not again.fits and "DOES NOT FIT" in again.as_text()
    assert again.fitting and again.remedy in again.as_text() and again.remedy in text
    free(1)
    assert "no layout would fit" in sa1bpack.estimate(tar, root, **OPTIONS).as_text()
    free(forecast.needed_bytes - 1)
    result = sa1bpack.pack(tar, root, **OPTIONS, ignore_space=True)
    assert result.complete and sa1bpack.verify(root).ok


def test_a_source_in_part_needs_room_for_the_rest(tar, tmp_path, free):
    root = tmp_path / "pack"
    whole = sa1bpack.estimate(tar, root, **OPTIONS)
    sa1bpack.pack(tar, root, **OPTIONS)
    shutil.rmtree(root / "shards/sa_000000-001")
    rest = sa1bpack.estimate(tar, root, **OPTIONS)
    assert rest.begun == ["sa_000000"]
    assert 0 < rest.needed_bytes < whole.needed_bytes / 2
    free(rest.needed_bytes - 1)
    with pytest.raises(OutputRefused, match="takes about"):
        sa1bpack.pack(tar, root, **OPTIONS)
    free(rest.needed_bytes)
    assert sa1bpack.pack(tar, root, **OPTIONS).complete
    assert sa1bpack.verify(root).ok


def test_a_part_needs_room_for_all_that_is_left_of_its_job(tar, tmp_path, free):
    """So that parts that begin at once are not all let in where the last would not fit."""
    root, tars = tmp_path / "pack", [tar, shutil.copy(tar, tmp_path / "sa_000001.tar")]
    both = sa1bpack.estimate(tars, root, **OPTIONS).needed_bytes
    free(both - 1)
    with pytest.raises(OutputRefused, match="continue with --ignore-space"):
        sa1bpack.pack_part(tars, root, (1, 2), **OPTIONS)
    assert not root.exists()
    assert sa1bpack.pack_part(tars, root, (1, 2), **OPTIONS, ignore_space=True).complete
    free(int(0.6 * both))
    assert sa1bpack.pack_part(tars, root, (2, 2), **OPTIONS).complete


def test_a_source_that_cannot_be_looked_at_is_left_to_the_run(tar, tmp_path, free):
    bad = tmp_path / "a.tar"
    bad.write_bytes(tar.read_bytes()[:100])
    free(10**12)
    assert not sa1bpack.pack([bad, tar], tmp_path / "pack", **OPTIONS).complete
    free(0)
    result = sa1bpack.pack(bad, tmp_path / "other", **OPTIONS)
    assert list(result.failed) == ["a"]


@pytest.fixture
def root(tar, tmp_path):
    pack_small(tar, tmp_path / "pack")
    return tmp_path / "pack"


@pytest.mark.parametrize(
    ("spoilt", "refusal"),
    [
        ("something else", OutputRefused), ("another tar of the name", OutputRefused),
        ("a damaged shard", FormatError), ("a file in its place", OptionError),
    ],
)  # fmt: skip
def test_what_a_run_would_refuse_is_refused_in_the_same_words(tar, root, spoilt, refusal):
    call, said = {"sources": tar, "output": root, "workers": 1, **SMALL}, []
    match spoilt:
        case "something else":
            shutil.rmtree(root)
            root.mkdir()
            (root / "thesis.txt").write_text("all my work")
        case "another tar of the name":
            (root.parent / "other").mkdir()
            call["sources"] = write_tar(root.parent / "other" / tar.name, members([900]))
        case "a damaged shard":
            next((root / "shards").glob("sa_*/zarr.json")).write_text("{}")
            (root / "shards" / ".tmp-sa_000001-000-0").mkdir()
        case "a file in its place":
            call["output"] = tar
    before = contents(root.parent)
    for function in (sa1bpack.estimate, sa1bpack.pack):
        with pytest.raises(refusal) as found:
            function(**call)
        said.append((type(found.value), str(found.value)))
        assert contents(root.parent) == before
    assert said[0] == said[1]
    assert spoilt != "a damaged shard" or re.search("Remove the folder .* and repeat", said[0][1])


def test_what_the_pack_has_is_skipped_and_what_it_has_in_part_is_named(tar, root, tmp_path):
    forecast = sa1bpack.estimate(tar, root, workers=1, **SMALL)
    assert (forecast.sources, forecast.packed, forecast.images) == (0, 1, 0)
    assert forecast.as_text() == "the source is in the pack already; nothing to do"
    begun = unfinished_pack(root, range(70, 79), "sa_000001")
    forecast = sa1bpack.estimate([tar, begun], root, workers=1, **SMALL)
    assert (forecast.sources, forecast.packed, forecast.begun) == (1, 1, ["sa_000001"])
    assert forecast.images < sa1bpack.estimate(begun, tmp_path / "new", **SMALL).images
    text = forecast.as_text()
    assert "skipped: 1 source already in the pack" in text
    assert "packed in part, and counted here without that: sa_000001" in text


def test_what_writes_nothing_into_a_temporary_folder_needs_none(tar, tmp_path, monkeypatch):
    """As in a container whose file system is read-only, but for the folders that are mounted."""

    def no_place() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    expected = sa1bpack.estimate(tar, tmp_path / "pack", **OPTIONS)
    images = [sample["image_id"] for sample in sa1bpack.IterableTarDataset(tar)]
    monkeypatch.setattr(tempfile, "gettempdir", no_place)
    assert sa1bpack.estimate(tar, tmp_path / "pack", **OPTIONS).images == expected.images
    assert [sample["image_id"] for sample in sa1bpack.IterableTarDataset(tar)] == images
    assert len(sa1bpack.TarDataset(tar, index_folder=tmp_path / "index")) == len(images)
