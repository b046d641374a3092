"""`--dry-run` tells what packing takes, and writes nothing."""

import shutil
from collections import namedtuple

import pytest
from small_tars import SMALL, contents, members, write_tar

import sa1bpack
from sa1bpack.errors import OptionError

Usage = namedtuple("Usage", "total used free")


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
    for told, true in pairs:
        assert true / 2 <= told <= true * 2, pairs
    assert forecast.sources == 1 and forecast.source_bytes == tar.stat().st_size
    assert forecast.probed == 24 and forecast.rejected == 0


def test_a_forecast_of_several_sources_is_about_all_of_them(tar, tmp_path):
    second = shutil.copy(tar, tmp_path / "sa_000001.tar")
    one = sa1bpack.estimate(tar, tmp_path / "pack", workers=1, **SMALL)
    two = sa1bpack.estimate([tar, second], tmp_path / "pack", workers=1, **SMALL)
    assert (two.sources, two.images, two.shards) == (2, 2 * one.images, 2 * one.shards)


def test_a_forecast_writes_nothing_at_all(tar, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sa1bpack.estimate(tar, tmp_path / "a" / "pack", workers=1, **SMALL)
    assert contents(tmp_path) == {}


def test_rejects_among_the_probed_are_told(tmp_path):
    found = members(range(8))
    found["./sa_3.json"] = b"{ not json"
    tar = write_tar(tmp_path / "a.tar", found)
    forecast = sa1bpack.estimate(tar, tmp_path / "pack", workers=1, **SMALL)
    assert (forecast.probed, forecast.rejected) == (8, 1)
    assert "1 of these would be rejected" in forecast.as_text()


@pytest.mark.parametrize("sound", [False, True])
def test_a_source_that_gives_no_sample_is_told_as_such(tmp_path, sound):
    found = {"./readme.txt": b"hello"} if sound else {**members([1]), "./sa_1.json": b"x"}
    tar = write_tar(tmp_path / "a.tar", found)
    forecast = sa1bpack.estimate(tar, tmp_path / "pack", workers=1, **SMALL)
    assert (forecast.images, forecast.masks, forecast.shards) == (0, 0, 0)
    assert forecast.fits and forecast.as_text()


def test_what_does_not_fit_is_said_to_not_fit(tar, tmp_path, monkeypatch):
    asked = []

    def usage(path):
        asked.append(path)
        return Usage(10**12, 10**12 - 1000, 1000)

    monkeypatch.setattr("shutil.disk_usage", usage)
    forecast = sa1bpack.estimate(tar, tmp_path / "a" / "b", workers=1, **SMALL)
    assert not forecast.fits and "DOES NOT FIT" in forecast.as_text()
    assert asked == [tmp_path]  # the nearest folder that exists


def test_no_workers_are_refused_as_in_pack(tar, tmp_path):
    with pytest.raises(OptionError, match="workers is 0"):
        sa1bpack.estimate(tar, tmp_path / "pack", workers=0, **SMALL)
