"""Sources and image ids that a pack holds more than once."""

import dataclasses

import numpy as np
import pytest

from sa1bpack.format.duplicates import Duplicates, find_duplicates
from sa1bpack.format.index import Index
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import ShardEntry, make_manifest

REMEDY = "; open with duplicates='first' to leave the later ones out, or 'all' to keep them"

LAYOUT = Layout(image_size=16, mask_size=8)


def pack_of(shards: list[tuple[str, list[int]]], digests: dict[str, dict] | None = None):
    """The manifest and the index of a pack: (source, image ids) of each shard, and digests."""
    entries = [
        ShardEntry(
            name=f"{source}-{number:03d}", source=source, part=number, samples=len(ids), masks=0,
            runs=0, image_bytes=0, annotations=0, bytes=0,
        )
        for number, (source, ids) in enumerate(shards)
    ]  # fmt: skip
    manifest = make_manifest(
        LAYOUT, entries, complete=True, options={}, counts={},
        sources=[{"name": name, **found} for name, found in (digests or {}).items()],
    )  # fmt: skip
    image_id = np.array([i for _, ids in shards for i in ids], np.int64)
    edges = np.cumsum([0, *(len(ids) for _, ids in shards)])
    order = np.argsort(image_id, kind="stable")
    return manifest, Index(edges, image_id, order, np.zeros(len(image_id) + 1, np.int64))


def test_a_pack_without_repetitions_has_no_findings():
    digests = {"a": {"xxh128": "1" * 32, "md5": "2" * 32}, "b": {"xxh128": "2" * 32}}
    found = find_duplicates(*pack_of([("a", [3, 1]), ("b", [2])], digests))
    assert found == Duplicates() and not found and found.lines() == []


def test_an_id_in_two_sources_names_both_also_across_empty_shards():
    found = find_duplicates(*pack_of([("a", [5, 9]), ("hollow", []), ("b", [7, 9]), ("c", [5])]))
    assert found.image_ids == 2
    assert found.examples == ((5, ("a", "c")), (9, ("a", "b")))
    assert found.lines() == ["2 image ids occur more than once: 5 in a and c, also 9" + REMEDY]


def test_an_id_that_a_source_holds_twice_is_counted_once_and_said_so():
    manifest, index = pack_of([("a", [5, 5, 1]), ("b", [5, 2])])
    index = dataclasses.replace(index, id_order=np.array([9, -9, 1 << 60]))  # which is not trusted
    found = find_duplicates(manifest, index)
    assert (found.image_ids, found.examples) == (1, ((5, ("a", "a", "b")),))
    assert found.lines() == ["1 image id occurs more than once: 5 in a (2 times) and b" + REMEDY]


@pytest.mark.parametrize(("key", "kind"), [("xxh128", "XXH3-128"), ("md5", "md5")])
def test_sources_of_the_same_digest_are_named_and_folders_without_one_are_not(key, kind):
    shards = [(name, [number]) for number, name in enumerate("abcde")]
    values = {"a": "f" * 32, "b": None, "c": "f" * 32, "d": None, "e": "0" * 32}
    found = find_duplicates(*pack_of(shards, {name: {key: v} for name, v in values.items()}))
    assert found.files == ((kind, "f" * 32, ("a", "c")),)
    assert found.lines() == [f"sources a and c have the same {kind} {'f' * 32}"]


def test_sources_with_two_common_digests_are_named_once_and_old_ones_by_their_md5():
    both = {"xxh128": "f" * 32, "md5": "e" * 32}
    shards = [(name, [number]) for number, name in enumerate("abc")]
    found = find_duplicates(*pack_of(shards, {"a": both, "b": both}))
    assert found.files == (("XXH3-128", "f" * 32, ("a", "b")),)
    found = find_duplicates(*pack_of(shards, {"a": both, "b": both, "c": {"md5": "e" * 32}}))
    assert found.files == (
        ("XXH3-128", "f" * 32, ("a", "b")), ("md5", "e" * 32, ("a", "b", "c"))
    )  # fmt: skip


def test_a_pack_without_shards_and_records_of_other_kinds_are_no_error():
    manifest, _ = pack_of([], {"a": {"md5": 7}, "b": {"md5": 7}, "c": {"xxh128": ["x"]}})
    assert find_duplicates(manifest, None) == Duplicates()
