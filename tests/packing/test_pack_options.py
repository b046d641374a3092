"""Every option reaches the bytes, and no mask is left out by mistake."""

import itertools
import re
import time

import pytest
from format_files import manifest_of
from small_tars import SMALL, changed, members, pack_small, record, write_tar

import sa1bpack
from sa1bpack import OptionError, PackOptions
from sa1bpack.errors import EmptyPack, OptionsDiffer


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    """Photos 1 to 6 with 0 to 5 masks."""
    folder = tmp_path_factory.mktemp("options")
    found = members(range(1, 7), masks=lambda number: number - 1)
    return write_tar(folder / "sa_000000.tar", found)


@pytest.fixture
def pack_with(tar, tmp_path):
    """pack_with(**options): {image id: annotation ids stored of it}."""

    def pack_with(**options) -> dict[int, list[int]]:
        root = tmp_path / f"pack{options.get('seed')}"
        pack_small(tar, root, **{"samples_per_shard": 100, **options})
        kept, ds = {}, sa1bpack.open(root)
        assert (ds.column("annotation_count") == ds.column("image_id") - 1).all()
        for sample in ds:
            number = sample["image_id"]
            kept[number] = sample["annotation_ids"].tolist()
            found = {a["id"]: a for a in record(number, number - 1)["annotations"]}
            assert [found[name]["area"] for name in kept[number]] == sample["areas"].tolist()
        return kept

    return pack_with


def ids(passing) -> dict[int, list[int]]:
    """What is kept of photos 1 to 6 when `passing` takes their annotations and gives those kept."""
    return {
        number: [a["id"] for a in passing(record(number, number - 1)["annotations"])]
        for number in range(1, 7)
    }


def best(rule: str, key: str):
    """The two best masks of each image."""

    def passing(found):
        chosen = sorted(found, key=lambda a: -a[key])[:2]
        return [a for a in found if a in chosen]

    return {"max_masks": 2, "mask_select": rule}, passing


RULES = {"largest": "area", "iou": "predicted_iou", "stability": "stability_score"}
THRESHOLDS = {"min_area": "area", "min_iou": "predicted_iou", "min_stability": "stability_score"}


def meeting(option: str, key: str):
    """A threshold that some masks are below, one meets exactly, and others exceed."""
    middle = sorted(a[key] for a in record(6, 5)["annotations"])[2]
    return {option: middle}, lambda found: [a for a in found if a[key] >= middle]


@pytest.mark.parametrize(
    ("options", "passing"),
    [
        ({}, lambda annotations: annotations),
        *(best(rule, key) for rule, key in RULES.items()),
        *(meeting(option, key) for option, key in THRESHOLDS.items()),
    ],
)
def test_the_masks_that_options_ask_for_are_kept(pack_with, options, passing):
    expected = ids(passing)
    assert pack_with(**options) == expected
    assert 0 < sum(map(len, expected.values())) < 15 or not options


def test_random_selection_depends_on_the_seed(pack_with):
    kept = [pack_with(max_masks=2, mask_select="random", seed=seed) for seed in (1, 1, 2, 3)]
    assert all(len(found[6]) == 2 for found in kept)
    assert kept[0] == kept[1] and len({str(found) for found in kept}) > 1


def test_a_manifest_records_mask_select_as_select(tar, root):
    options = {**SMALL, "max_masks": 2, "mask_select": "random"}
    sa1bpack.pack(tar, root, workers=1, **options)
    recorded = manifest_of(root)["options"]
    assert recorded["select"] == "random" and "mask_select" not in recorded
    assert PackOptions.from_json(recorded) == PackOptions(**options)
    sa1bpack.pack(tar, root, workers=1, **options)
    with pytest.raises(OptionsDiffer, match="\n  mask_select: the pack has 'random', this run"):
        sa1bpack.pack(tar, root, workers=1, **options | {"mask_select": "iou"})


def test_images_without_a_mask_are_kept_or_dropped_and_counted(tar, tmp_path):
    kept = pack_small(tar, tmp_path / "kept", min_area=10**6)
    assert (kept.images, kept.masks, kept.dropped) == (6, 0, 0)
    dropped = pack_small(tar, tmp_path / "dropped", empty="drop")
    assert (dropped.images, dropped.masks, dropped.dropped) == (5, 15, 1)
    assert sa1bpack.verify(tmp_path / "kept").ok and sa1bpack.verify(tmp_path / "dropped").ok
    pack_small(tar, tmp_path / "none", empty="drop", min_area=10**6)
    with pytest.raises(EmptyPack, match="no images: 6 images dropped, without a mask left"):
        sa1bpack.open(tmp_path / "none")


@pytest.mark.parametrize(("samples", "expected"), [(1, [1] * 6), (4, [4, 2]), (6, [6]), (7, [6])])
def test_samples_per_shard_cuts_the_tar(tar, root, samples, expected):
    pack_small(tar, root, samples_per_shard=samples)
    shards = sa1bpack.info(root).manifest.shards
    assert [shard.samples for shard in shards] == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"fit": "stretch"}, {"resample": "best"}, {"mask_sampling": "any"}, {"empty": "maybe"},
        {"image_size": 8}, {"image_size": 64.0}, {"mask_size": 12}, {"samples_per_shard": 0},
        {"pixels": "yuv444"}, {"masks": "none"}, {"masks": True}, {"max_masks": -1},
        {"max_masks": 0}, {"image_size": True}, {"mask_size": True}, {"max_masks": True},
        {"seed": True}, {"min_area": True}, {"samples_per_shard": True}, {"workers": True},
        {"max_rejects": True},
        {"mask_select": "first"}, {"seed": -1}, {"min_area": -1},
        {"image_size": 63, "pixels": "yuv420"},
        {"max_area_frac": 1.5}, {"min_iou": float("nan")}, {"workers": 0}, {"max_rejects": -1},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_that_cannot_be_used_is_named_before_anything_is_written(tar, root, wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        sa1bpack.pack(tar, root, **{**SMALL, "workers": 1, **wrong})
    assert not root.exists()


def test_keys_of_the_json_that_are_not_stored_are_recorded(tmp_path, root):
    found = members([1, 2])
    changed(found, 2, lambda record: record["annotations"][0].update(caption="a cat"))
    tar = write_tar(tmp_path / "sa_1.tar", found)
    pack_small(tar, root)
    assert sa1bpack.info(root).unknown_keys == ["annotations.caption"]


def test_a_pack_within_its_own_source_is_refused(tmp_path):
    for name, data in members([1]).items():
        (tmp_path / name).write_bytes(data)
    for call in (sa1bpack.pack, sa1bpack.estimate):
        with pytest.raises(OptionError, match="lies within the source"):
            call(tmp_path, tmp_path / "inside", **SMALL)
    assert not (tmp_path / "inside").exists()


def test_without_a_terminal_a_long_run_writes_a_line_now_and_then(
    tmp_path, root, monkeypatch, capsys
):
    monkeypatch.setattr(time, "perf_counter", itertools.count(step=61).__next__)
    tar = write_tar(tmp_path / "sa_1.tar", members(range(40)))  # several groups of pairs
    pack_small(tar, root)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert re.fullmatch(
        r"sa1bpack: 100.0%, 40 images, \d+ images/s, \d+ MB/s, 0 min left, 0 rejected", lines[-1]
    )
