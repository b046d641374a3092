"""The same sources and options give the same bytes, however they are packed."""

import random

from small_tars import SMALL, contents, names_of, rejects_of

import sa1bpack
from sa1bpack.format.shard_reader import open_shard


def test_the_order_of_the_arguments_does_not_matter(sources, undisturbed, tmp_path):
    mixed = random.Random(3).sample([*sources, sources[0]], len(sources) + 1)
    sa1bpack.pack(mixed, tmp_path / "pack", workers=1, **SMALL)
    assert contents(tmp_path / "pack") == undisturbed


def test_sources_added_later_give_the_pack_made_at_once(sources, undisturbed, tmp_path):
    root = tmp_path / "pack"
    for some in (sources[3:4], sources[:2], sources):
        result = sa1bpack.pack(some, root, workers=1, **SMALL)
        assert result.complete and sa1bpack.verify(root).ok
    assert contents(root) == undisturbed


def test_what_is_packed_is_all_that_is_sound(sources, tmp_path, manifest_of):
    root = tmp_path / "pack"
    result = sa1bpack.pack(sources, root, workers=1, **SMALL)
    shards = {folder.name: open_shard(folder) for folder in sorted(root.glob("shards/sa_*"))}
    samples = {name for shard in shards.values() for name in names_of(shard)}
    expected = {*range(100, 111), *range(200, 214), 300, 301, 302, *range(400, 406)}
    expected -= {103, 107, 109, *range(204, 212)}
    assert samples == {f"sa_{number}.jpg" for number in expected}
    assert result.images == len(expected) == sum(len(shard) for shard in shards.values())
    assert [name for name in shards if name.startswith("sa_000001")] == [
        "sa_000001-000", "sa_000001-003",
    ]  # fmt: skip
    found = {(line["source"], line["member"], line["reason"]) for line in rejects_of(root)}
    assert found >= {
        ("sa_000000", "sa_103.json", "bad-annotation"),
        ("sa_000000", "sa_107.jpg", "truncated-jpeg"),
        ("sa_000000", "sa_109.jpg", "missing-json"),
        ("sa_000001", "sa_207.jpg", "truncated-jpeg"),
    }
    assert len(rejects_of(root)) == 11 == result.rejects
    manifest = manifest_of(root)
    assert manifest["complete"]
    records = {record["name"]: record for record in manifest["sources"]}
    assert {name: record["pairs"] for name, record in records.items()} == {
        "sa_000000": 10, "sa_000001": 14, "sa_000002": 0, "sa_000003": 6, "sa_000004": 3,
    }  # fmt: skip
    assert records["sa_000000"]["ignored_names"] == ["./readme.txt"]
    assert sa1bpack.verify(root).ok
