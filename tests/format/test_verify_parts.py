"""The parts of a check together find what one check finds, and each damage is one part's."""

import pytest
from edited_packs import flip

from sa1bpack.errors import OptionError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.verify import verify


def parts_of(pack, count: int) -> list:
    return [verify(pack, part=(number, count)) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_parts_read_every_shard_once(pack, count):
    whole, parts = verify(pack), parts_of(pack, count)
    assert all(part.ok and part.complete for part in parts)
    for key in ("shards", "samples", "masks", "bytes", "files"):
        assert sum(part.counts[key] for part in parts) == whole.counts[key]


@pytest.mark.parametrize("damage", [lambda shard: flip(next((shard / "image").glob("c*")), 5),
                                    lambda shard: (shard / "zarr.json").unlink()])  # fmt: skip
@pytest.mark.parametrize("row", [0, 2])  # the other has no sample
def test_a_damaged_shard_is_found_by_its_part_alone(pack, row, damage):
    damage(pack / "shards" / read_manifest(pack).shards[row].name)
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
