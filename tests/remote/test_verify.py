"""`verify` of packs in an S3 server on loopback finds what it finds of the folder."""

import json
import shutil
from pathlib import Path

import pytest
from edited_packs import flip
from packs_with_features import attach_score
from ragged_features import RAGGED_KINDS, write_ragged
from s3_server import s3_client
from shard_files import writable_array

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import NotAPack, StoreError

SHARD, OTHER = "shards/sa_000000-000", "shards/sa_000000-001"
LAYOUT = ("native", "rgb", "bits+runs")


@pytest.fixture(scope="module")
def there() -> dict[str, bytes]:
    """What the folder of the bucket holds: path → bytes."""
    return {}


@pytest.fixture
def url(layout_packs, uploaded) -> str:
    """The URL of a sound pack in the bucket."""
    return uploaded(layout_packs(*LAYOUT))


@pytest.fixture
def uploaded(proxy, there):
    """uploaded(folder) → the URL of its copy in the bucket, of which only what differs is made."""
    client = s3_client()

    def upload(root: Path) -> str:
        files = {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*") if path.is_file()
        }  # fmt: skip
        for path in there.keys() - files.keys():
            client.delete_object(Bucket="verified", Key=f"pack/{path}")
            del there[path]
        for path, data in files.items():
            if there.get(path) != data:
                client.put_object(Bucket="verified", Key=f"pack/{path}", Body=data)
                there[path] = data
        proxy.requests.clear()
        return "s3://verified/pack"

    return upload


def damaged_bytes(root: Path) -> None:
    flip(root / SHARD / "image/c.0", 5000)
    flip(root / SHARD / "bbox/c.0.0", 5)
    flip(root / OTHER / "mask_offset/c.0", 23)  # offsets that fall
    flip(next(root.glob("index-*/image_id/c.0")), 9)


def damaged_structure(root: Path) -> None:
    """Also found by a quick check, by reading other bytes."""
    flip(root / SHARD / "mask_bits/c.0.0.0", -1)  # the tail of an array
    (root / OTHER / "image/c.0").write_bytes(b"short")
    (root / OTHER / "area/c.0").unlink()
    (root / SHARD / "notes.txt").write_text("hello")
    (root / SHARD / "image/zarr.json").write_text("{}")


def damaged_shards(root: Path) -> None:
    shutil.rmtree(root / OTHER)
    flip(root / SHARD / "checksums.xxh128", 3)


def damaged_features(root: Path) -> None:
    """Offsets that fall, a text of other bytes, and one that is missing and has bytes."""
    for name, damage in {"word": "offset/c.0", "caption": "values/c.0", "title": None}.items():
        folder = write_ragged(root, RAGGED_KINDS[name])
        first = next(folder.glob("sa_000000-000-*"))
        if damage is not None:
            flip(first / damage, 9)
        else:
            writable_array(first, "present")[:] = 0


def damaged_manifest(root: Path) -> None:
    (root / "manifest.json").write_text('{"a": 1')


@pytest.mark.parametrize(
    "damage",
    [damaged_bytes, damaged_structure, damaged_shards, damaged_features, damaged_manifest],
)
def test_damage_is_reported_as_of_a_folder(layout_packs, uploaded, tmp_path, damage):
    root = shutil.copytree(layout_packs(*LAYOUT), tmp_path / "pack")
    damage(root)
    url = uploaded(root)
    for quick in (True, False) if damage is damaged_structure else (False,):
        report, own = sa1bpack.verify(url, quick=quick), sa1bpack.verify(root, quick=quick)
        assert [str(problem) for problem in report.problems] == [
            str(problem).replace(str(root), url) for problem in own.problems
        ]
        assert (report.counts, report.complete) == (own.counts, own.complete)
    assert not report.ok


def test_parts_check_disjoint_shards(url, proxy):
    for number in (1, 2):
        proxy.requests.clear()
        assert sa1bpack.verify(url, part=(number, 2)).counts["shards"] == 1
        read = {path.split("/shards/")[1][:13] for _, path in proxy.requests if "/image/c" in path}
        assert read == {f"sa_000000-00{number - 1}"}


# What becomes of the first request for a file.
FAULTS = {
    "image/c": "cut", "mask_bits/c": "flip", "run_ends/c": "stall", "bbox/c": "truncate",
    "area/c": "slow down", "manifest.json": "refuse",
}  # fmt: skip


def test_faults_of_the_network_are_not_damage(url, proxy):
    proxy.rule = lambda method, path, number: next(
        (fault for word, fault in FAULTS.items() if number == 0 and word in path), None
    )
    assert sa1bpack.verify(url).ok
    assert set(proxy.faults) == set(FAULTS.values())


def test_a_store_that_fails_is_an_error_and_no_verdict(url, proxy):
    proxy.rule = lambda method, path, number: "expired" if "/image/c" in path else None
    with pytest.raises(StoreError, match="credentials have expired; log in again"):
        sa1bpack.verify(url)
    with pytest.raises(NotAPack, match=r"s3://verified/none: not a pack: it has no manifest\.json"):
        sa1bpack.verify("s3://verified/none")
    with pytest.raises(OptionError, match="not read from a disk"):
        sa1bpack.verify(url, io="direct")


def test_the_command_names_the_url_and_what_to_do(layout_packs, uploaded, proxy, tmp_path, command):
    root = shutil.copytree(layout_packs(*LAYOUT), tmp_path / "pack")
    (root / SHARD / "area/c.0").unlink()
    url = uploaded(root)
    code, out, _ = command("verify", url, "--quick")
    assert code == 1 and f"{url}/{SHARD}/area/c.0: missing" in out
    assert f"aws s3 sync {url} DIR" in out and str(tmp_path) not in out
    code, out, _ = command("verify", f"{url}/", "--json")
    assert code == 1 and json.loads(out)["pack"] == url
    proxy.rule = lambda method, path, number: "expired"
    assert command("verify", url)[0] == 4


def test_an_object_with_a_path_that_leads_out_is_refused(url, proxy):
    where = {"Bucket": "verified", "Key": "pack/shards/../../x/zarr.json"}
    s3_client().put_object(Body=b"{}", **where)
    with pytest.raises(StoreError, match=r"'pack/shards/\.\./.* cannot name a file; move"):
        sa1bpack.verify(url)
    s3_client().delete_object(**where)


def test_a_sound_pack_with_features_is_read_once_and_not_kept(
    layout_packs, uploaded, proxy, tmp_path, monkeypatch, small_requests
):
    root = shutil.copytree(layout_packs(*LAYOUT), tmp_path / "pack")
    attach_score(root, axis="mask")
    for name in ("title", "points"):
        write_ragged(root, RAGGED_KINDS[name])
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    url = uploaded(root)
    expected = sa1bpack.verify(root)
    report = sa1bpack.verify(url)
    assert report.ok and report == expected
    assert len(proxy.requests) > len(set(proxy.requests))  # several ranges of one object
    assert not any(temporary.iterdir())
    assert sa1bpack.verify(root.as_uri()) == expected
