"""Image ids that a pack holds more than once."""

import dataclasses

import numpy as np
from reading_packs import manifest_of

from sa1bpack.format.index import Index, find_duplicates
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import ShardEntry

REMEDY = "; open with duplicates='first' to leave the later ones out, or 'all' to keep them"

LAYOUT = Layout(image_size=16, mask_size=8)


def pack_of(shards: list[tuple[str, list[int]]]):
    """The manifest and the index of a pack: (source, image ids) of each shard."""
    entries = [
        ShardEntry(
            name=f"{source}-{number:03d}", source=source, part=number, samples=len(ids), masks=0,
            runs=0, image_bytes=0, annotations=0, bytes=0,
        )
        for number, (source, ids) in enumerate(shards)
    ]  # fmt: skip
    manifest = manifest_of(LAYOUT, entries)
    image_id = np.array([i for _, ids in shards for i in ids], np.int64)
    edges = np.cumsum([0, *(len(ids) for _, ids in shards)])
    order = np.argsort(image_id, kind="stable")
    return manifest, Index(edges, image_id, order, np.zeros(len(image_id) + 1, np.int64))


def test_a_pack_without_repetitions_or_without_shards_has_no_findings():
    assert find_duplicates(*pack_of([("a", [3, 1]), ("b", [2])])) == []
    assert find_duplicates(pack_of([])[0], None) == []


def test_an_id_in_two_sources_names_both_also_across_empty_shards():
    found = find_duplicates(*pack_of([("a", [5, 9]), ("hollow", []), ("b", [7, 9]), ("c", [5])]))
    assert found == ["2 image ids occur more than once: 5 in a and c, also 9" + REMEDY]


def test_an_id_that_a_source_holds_twice_is_counted_once_and_said_so():
    manifest, index = pack_of([("a", [5, 5, 1]), ("b", [5, 2])])
    index = dataclasses.replace(index, id_order=np.array([9, -9, 1 << 60]))  # which is not trusted
    found = find_duplicates(manifest, index)
    assert found == ["1 image id occurs more than once: 5 in a (2 times) and b" + REMEDY]


def test_of_many_ids_and_sources_the_first_are_named():
    found = find_duplicates(*pack_of([(name, [*range(8)]) for name in "abcdefg"]))
    text = (
        "8 image ids occur more than once: 0 in a, b, c, d and 3 more, also 1, 2, 3, 4 and 3 more"
    )
    assert found == [text + REMEDY]
