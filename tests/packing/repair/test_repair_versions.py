"""Repairs by other versions, and of packs of other versions."""

import re
from pathlib import Path

import pytest
import xxhash
from edited_packs import FIRST, FORMAT, VERSION, flip
from small_tars import contents

import sa1bpack
from sa1bpack.errors import VersionError


def test_other_versions_are_reported(root, tars, expected, other_decoder):
    other_decoder()
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.repaired == [FIRST] and result.rewritten
    (note,) = result.notes
    assert "simplejpeg 9.9; it was packed by " in note
    report = sa1bpack.verify(root)
    assert report.ok and report.complete
    differing = {name for name, data in contents(root).items() if data != expected.get(name)}
    assert {name.rpartition("/")[2] for name in differing if name.startswith("shards")} == {
        "zarr.json", "checksums.xxh128",
    }  # fmt: skip


def test_other_versions_replace_no_shard_if_a_pack_cannot_be_published(root, tars, other_decoder):
    other_decoder()
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    flip(root / "shards" / "sa_000001-000" / "zarr.json")
    before = contents(root)
    result = sa1bpack.repair(root, tars[0], workers=1)
    assert result.repaired == [] and FIRST in result.left
    assert "cannot be rewritten: sa_000001-000 is damaged" in result.left[FIRST]
    assert contents(root) == before


def newer(path: Path, old: bytes, *, listed: bool) -> None:
    """Make a file one of format 1.1, as its folder's checksum file then says if `listed`."""
    data = path.read_bytes()
    path.write_bytes(re.sub(old, rb'\g<1>1\2, "new": 1', data, count=1))
    assert path.read_bytes() != data
    if listed:
        sums = path.with_name("checksums.xxh128")
        was, now = (xxhash.xxh128_hexdigest(each) for each in (data, path.read_bytes()))
        sums.write_text(sums.read_text().replace(f"{was}  {path.name}\n", f"{now}  {path.name}\n"))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("complete", [True, False])
def test_a_pack_of_a_newer_minor_version_is_refused_and_stays(root, tars, listed, complete):
    manifest = root / "manifest.json"
    if not complete:
        manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
        assert '"complete": false' in manifest.read_text()
    newer(manifest, VERSION, listed=listed)
    flip(root / "rejects.jsonl")
    (root / "shards" / ".tmp-left").mkdir()
    before = contents(root)
    for dry_run in (True, False):
        with pytest.raises(VersionError, match=r"format version 1\.1, but this release writes"):
            sa1bpack.repair(root, tars, workers=1, dry_run=dry_run)
    assert contents(root) == before


def test_the_group_of_a_newer_minor_version_speaks_for_a_lost_manifest(root, tars):
    newer(root / "zarr.json", FORMAT, listed=True)
    (root / "manifest.json").unlink()
    before = contents(root)
    with pytest.raises(VersionError, match=r"format version 1\.1"):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root) == before
