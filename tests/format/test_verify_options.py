"""A check in parts, and past the page cache, finds what a whole one through it finds."""

import os
import shutil

import pytest
from edited_packs import flip
from format_files import manifest_of
from page_cache import direct_folder, drop, resident  # noqa: F401 - a fixture

from sa1bpack import OptionError, verify


def parts_of(pack, count: int) -> list:
    return [verify(pack, part=(number, count)) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_parts_read_every_shard_once(pack, count):
    whole = verify(pack)
    parts = parts_of(pack, count)
    assert all(part.ok and part.complete for part in parts)
    for key in ("shards", "samples", "masks", "bytes", "files"):
        assert sum(part.counts[key] for part in parts) == whole.counts[key]


@pytest.mark.parametrize("damage", [lambda shard: flip(next((shard / "image").glob("c*")), 5),
                                    lambda shard: (shard / "zarr.json").unlink()])  # fmt: skip
@pytest.mark.parametrize("row", [0, 2])  # the other has no sample
def test_a_damaged_shard_is_found_by_its_part_alone(pack, row, damage):
    damage(pack / "shards" / manifest_of(pack)["shards"][row]["name"])
    parts = parts_of(pack, 3)
    assert [part.ok for part in parts] == [number != row for number in range(3)]
    assert parts[row].problems == verify(pack).problems


@pytest.mark.parametrize("name", ["zarr.json", "checksums.xxh128"])
def test_a_damaged_file_of_the_pack_itself_is_found_by_the_first_part(pack, name):
    (pack / name).write_text("{}")
    parts = parts_of(pack, 3)
    assert [part.ok for part in parts] == [False, True, True]
    assert parts[0].problems == verify(pack).problems


@pytest.mark.parametrize("part", [(0, 2), (3, 2), (1, 0), 3, (1,)])
def test_what_is_no_part_is_refused(pack, part):
    with pytest.raises(OptionError, match="part is"):
        verify(pack, part=part)


@pytest.fixture
def cold_pack(pristine_pack, direct_folder, tmp_path):  # noqa: F811
    """A pack on a file system with direct reads, none of which is in memory."""
    root = shutil.copytree(pristine_pack, direct_folder / tmp_path.name)
    yield root
    shutil.rmtree(root)


def images(root):
    return sorted(root.glob("shards/*/image/c*/*")) or sorted(root.glob("shards/*/image/c*"))


def test_direct_leaves_the_images_out_of_the_page_cache_and_cached_reads_them_into_it(cold_pack):
    paths = [path for path in images(cold_pack) if path.is_file()]
    assert paths
    for io, found in (("direct", False), ("cached", True)):
        drop(*paths)
        report = verify(cold_pack, io=io)
        assert report.ok and report.counts["samples"] == 7
        assert all(resident(path).all() == found for path in paths)


def has_memory(monkeypatch, nbytes: int) -> None:
    """A machine with so many bytes of memory."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": nbytes, "SC_PAGE_SIZE": 1}.__getitem__)


def test_auto_goes_past_the_page_cache_from_half_of_the_memory_on(cold_pack, monkeypatch):
    paths = [path for path in images(cold_pack) if path.is_file()]
    nbytes = sum(shard["bytes"] for shard in manifest_of(cold_pack)["shards"])
    for memory, found in ((2 * nbytes, True), (2 * nbytes - 2, False)):
        drop(*paths)
        has_memory(monkeypatch, memory)
        assert verify(cold_pack).ok
        assert all(resident(path).all() == found for path in paths)


def test_where_it_is_impossible_direct_is_refused_and_auto_reads_cached(cold_pack, monkeypatch):
    real = os.open

    def refusing(path, flags, *mode, **options):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", path)
        return real(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refusing)
    has_memory(monkeypatch, 1)
    with pytest.raises(OptionError, match=r"manifest.json cannot be read with O_DIRECT"):
        verify(cold_pack, io="direct")
    assert verify(cold_pack).ok
    with pytest.raises(OptionError, match="io"):
        verify(cold_pack, io="fast")


def test_damage_of_any_block_is_found_and_named_past_the_page_cache(cold_pack):
    [path, *_] = [path for path in images(cold_pack) if path.is_file()]
    sound = path.read_bytes()
    for at in (0, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        problems = verify(cold_pack, io="direct").problems
        assert problems and problems == verify(cold_pack, io="cached").problems
