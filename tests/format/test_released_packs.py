"""Packs written by every released version open, verify and hold what they held."""

import json
import tarfile

import pytest
from released_packs import LAYOUTS, RELEASED, facts_of, write_released

import sa1bpack

TARS = sorted(RELEASED.glob("*.tar.xz"))
CASES = [(tar, layout) for tar in TARS for layout in LAYOUTS]

# Keys of a sample that were called otherwise when a release wrote down what its packs hold.
RENAMED = {"index": "row"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Folder of the packs of each tar, by its name."""
    folder = tmp_path_factory.mktemp("released")
    for path in TARS:
        with tarfile.open(path) as tar:
            tar.extractall(folder, filter="data")
    return folder


def version_of(tar) -> str:
    return tar.name.removesuffix(".tar.xz")


def held_by(path) -> dict[str, list[dict]]:
    """What packs of a release held, by their layout, under today's names of the keys."""
    return {
        layout: [
            {RENAMED.get(key, key): value for key, value in sample.items()} for sample in samples
        ]
        for layout, samples in json.loads(path.read_text()).items()
    }


def test_this_version_has_its_packs():
    """A release adds its own, with `python tests/helpers/released_packs.py`."""
    assert f"sa1bpack-{sa1bpack.__version__}" in map(version_of, TARS)


@pytest.mark.parametrize(
    "tar, layout", CASES, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_a_pack_of_a_released_version_holds_what_it_held(tar, layout, unpacked):
    pack = unpacked / version_of(tar) / layout
    report = sa1bpack.verify(pack)
    assert report.ok and report.complete and report.counts["samples"] == 2
    held = held_by(tar.with_name(f"{version_of(tar)}.json"))
    assert facts_of(pack, layout) == held[layout]
    with sa1bpack.Loader(
        sa1bpack.open(pack, coordinates="source"), 2, mask_layout="concat"
    ) as loader:
        (batch,) = loader
    assert batch["image_ids"].tolist() == [sample["image_id"] for sample in held[layout]]


def test_this_version_still_writes_the_packs_of_its_release(tmp_path):
    """The same facts: pixels depend on the decoder, so those are compared where it is the same."""
    write_released(tmp_path)
    name = f"sa1bpack-{sa1bpack.__version__}.json"
    new = held_by(tmp_path / name)
    old = held_by(RELEASED / name)
    for layout in LAYOUTS:
        for found, held in zip(new[layout], old[layout], strict=True):
            differ = {key for key in held if found[key] != held[key]}
            assert differ <= {"image"}
            assert found["image"][:2] == held["image"][:2]
