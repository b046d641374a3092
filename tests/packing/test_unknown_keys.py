"""Keys of the JSON that are not stored are named with their number, and nothing else is lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import SMALL, changed, members, pack_part_small, pack_small, rejects_of, write_tar

import sa1bpack

# Level → where a key goes in a record.
PLACES = {
    "": lambda record: record,
    "image.": lambda record: record["image"],
    "annotations.": lambda record: record["annotations"][0],
    "annotations.segmentation.": lambda record: record["annotations"][1]["segmentation"],
}


def tar_with(path, keys_of: dict[int, list[str]]):
    """A tar of images 1 to 9, whose records have these keys in addition."""
    found = members(range(1, 10))
    for number, keys in keys_of.items():
        for key in keys:
            level = max((level for level in PLACES if key.startswith(level)), key=len)

            def add(record, level=level, key=key):
                PLACES[level](record)[key.removeprefix(level)] = {"any": ["value"]}

            changed(found, number, add)
    return write_tar(path, found, shuffle=None)


KEYS = {
    1: ["caption", "annotations.caption"],
    2: ["annotations.caption", "image.prompt", "annotations.segmentation.format"],
    5: ["annotations.category_id"],
    9: ["annotations.caption"],
}
NUMBERS = {
    "annotations.caption": 3, "annotations.category_id": 1,
    "annotations.segmentation.format": 1, "caption": 1, "image.prompt": 1,
}  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_the_end_of_a_run_names_them_with_the_number_of_images(tmp_path, root, capsys, workers):
    tar = tar_with(tmp_path / "sa_1.tar", KEYS)
    result = pack_small(tar, root, workers=workers)
    assert result.unknown_keys == NUMBERS
    said = (
        "this run: keys of the JSON that are not stored, because SA-1B does not have them: "
        "annotations.caption (in 3 images), annotations.category_id (in 1 image), "
    )
    assert said in result.notes[-1] and said in capsys.readouterr().err
    assert sa1bpack.info(root).unknown_keys == sorted(NUMBERS)


def test_a_dry_run_names_those_of_the_images_that_it_tries(tmp_path, root):
    tar = tar_with(tmp_path / "sa_1.tar", KEYS)
    forecast = sa1bpack.estimate(tar, root, workers=1, **SMALL)
    assert forecast.unknown_keys == NUMBERS
    assert "the images tried: keys of the JSON that are not stored" in forecast.as_text()
    assert "annotations.caption (in 3 images)" in forecast.as_text()


def test_a_run_that_continues_counts_its_own_images_and_one_without_work_none(tmp_path, root):
    first = tar_with(tmp_path / "sa_1.tar", KEYS)
    pack_small(first, root)
    again = pack_small(first, root)
    assert again.unknown_keys == {} and not any("not stored" in note for note in again.notes)
    found = members([20])
    changed(found, 20, lambda record: record.update(caption="a room"))
    second = write_tar(tmp_path / "sa_2.tar", found)
    more = pack_small([first, second], root)
    assert more.unknown_keys == {"caption": 1}


def test_a_part_of_a_job_names_those_of_its_images(tmp_path, root):
    tar = tar_with(tmp_path / "sa_1.tar", KEYS)
    result = pack_part_small(tar, root, (1, 1))
    assert result.unknown_keys == NUMBERS and "not stored" in result.notes[-1]


def test_records_as_sa1b_has_them_are_not_mentioned(tmp_path, root, capsys):
    tar = write_tar(tmp_path / "sa_1.tar", members([1]))
    result = pack_small(tar, root)
    assert result.unknown_keys == {} and result.notes == []
    forecast = sa1bpack.estimate(tar, tmp_path / "dry", **SMALL)
    assert "keys of the JSON" not in forecast.as_text()
    assert "keys of the JSON" not in capsys.readouterr().err


def test_of_many_keys_the_message_names_some_and_the_number_of_others(tmp_path, root):
    found = members([1])
    changed(found, 1, lambda record: record.update({f"k{n:03}": n for n in range(100)}))
    tar = write_tar(tmp_path / "sa_1.tar", found)
    result = pack_small(tar, root)
    assert len(result.unknown_keys) == 65 and result.unknown_keys["..."] == 1
    assert ", at least 45 more;" in result.notes[-1] and len(result.notes[-1]) < 1000
    assert "..." not in result.notes[-1]


WORDS = st.text("abcdefghij_\u00e9\x1b", min_size=1, max_size=6)
ADDED = st.dictionaries(
    st.integers(1, 9),
    st.lists(st.builds(str.__add__, st.sampled_from([*PLACES]), WORDS)),
    max_size=4,
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(added=ADDED)
def test_any_keys_at_any_level_are_counted_and_the_rest_is_exported_as_it_was(
    tmp_path_factory, added
):
    folder = tmp_path_factory.mktemp("keys")
    tar = tar_with(folder / "sa_1.tar", added)
    result = pack_small(tar, folder / "pack")
    assert (result.images, rejects_of(folder / "pack")) == (9, [])
    expected: dict[str, int] = {}
    for keys in added.values():
        for key in set(keys):
            level, _, name = key.rpartition(".")
            shown = key if name.isprintable() else f"{level}{'.' if level else ''}{name!r}"
            expected[shown] = expected.get(shown, 0) + 1
    assert result.unknown_keys == expected
    sa1bpack.export_sa1b(folder / "pack", folder / "json")
    originals = members(range(1, 10))
    for number in range(1, 10):
        text = (folder / "json" / "sa_1" / f"sa_{number}.json").read_bytes()
        assert text == originals[f"./sa_{number}.json"] == json.dumps(json.loads(text)).encode()
