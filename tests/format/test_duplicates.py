"""Image ids that a pack holds more than once."""

from format_files import manifest_of, publish, write_shard
from narrow_packs import NARROW, sample_of
from shard_files import writable_array

from sa1bpack import verify

REMEDY = "; open with duplicates='first' to leave the later ones out, or 'all' to keep them"


def pack_of(root, shards: list[tuple[str, list[int]]]):
    """A pack of shards of these sources and image ids."""
    for number, (source, ids) in enumerate(shards):
        samples = [sample_of(image_id, 0) for image_id in ids]
        write_shard(root / "shards", f"{source}-{number:03d}", samples, NARROW)
    names = [f"{source}-{number:03d}" for number, (source, _) in enumerate(shards)]
    publish(root, names, layout=NARROW)
    return root


def found_in(root) -> list[str]:
    """What a check notes, without the place."""
    report = verify(root)
    return [note.removeprefix(f"{root}: ") for note in report.notes]


def test_a_pack_without_repetitions_or_without_shards_has_no_findings(tmp_path):
    assert found_in(pack_of(tmp_path / "one", [("a", [3, 1]), ("b", [2])])) == []
    assert found_in(pack_of(tmp_path / "none", [])) == []


def test_an_id_in_two_sources_names_both_also_across_empty_shards(tmp_path):
    shards = [("a", [5, 9]), ("none", []), ("b", [7, 9]), ("c", [5])]
    expected = "2 image ids occur more than once: 5 in a and c, also 9"
    assert found_in(pack_of(tmp_path, shards)) == [expected + REMEDY]


def test_an_id_that_a_source_holds_twice_is_counted_once_and_said_so(tmp_path):
    root = pack_of(tmp_path, [("a", [5, 5, 1]), ("b", [5, 2])])
    order = writable_array(root / manifest_of(root)["index"], "id_order")
    order[:3] = 9, -9, 1 << 60  # which is not trusted
    order.flush()
    expected = "1 image id occurs more than once: 5 in a (2 times) and b"
    assert found_in(root) == [expected + REMEDY]


def test_of_many_ids_and_sources_the_first_are_named(tmp_path):
    text = (
        "8 image ids occur more than once: 0 in a, b, c, d and 3 more, also 1, 2, 3, 4 and 3 more"
    )
    root = pack_of(tmp_path, [(name, [*range(8)]) for name in "abcdefg"])
    assert found_in(root) == [text + REMEDY]
