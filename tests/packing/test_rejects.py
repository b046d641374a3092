"""Each bad input becomes its line in rejects.jsonl, and nothing else is lost."""

import json
import struct
from collections.abc import Callable

import pytest
from small_tars import (
    HEIGHT,
    SMALL,
    WIDTH,
    Members,
    as_jpeg,
    changed,
    members,
    names_of,
    photo,
    pixels_of,
    rejects_of,
    write_tar,
)  # fmt: skip

import sa1bpack
from sa1bpack.errors import TooManyRejects
from sa1bpack.format.shard_reader import open_shard

BAD = 2  # the photo that each case spoils, among 1, 2 and 3
JPEG, JSON = f"./sa_{BAD}.jpg", f"./sa_{BAD}.json"


def record_with(change: Callable[[dict], object]) -> Callable[[Members], None]:
    return lambda found: changed(found, BAD, change)


def counts(change: Callable[[str], str]) -> Callable[[Members], None]:
    def spoil(record):
        segmentation = record["annotations"][1]["segmentation"]
        segmentation["counts"] = change(segmentation["counts"])

    return record_with(spoil)


def member(name: str, data: bytes) -> Callable[[Members], None]:
    return lambda found: found.update({name: data})


def text(change: Callable[[bytes], bytes]) -> Callable[[Members], None]:
    return lambda found: found.update({JSON: change(found[JSON])})


def without(name: str) -> Callable[[Members], None]:
    return lambda found: found.pop(name) and None


def cut(fraction: float) -> Callable[[Members], None]:
    return lambda found: found.update({JPEG: found[JPEG][: int(len(found[JPEG]) * fraction)]})


def cut_between_scans() -> bytes:
    """A progressive JPEG without its last scan, but with a marker at its end."""
    jpeg = as_jpeg(pixels_of(2), progressive=True)
    return jpeg[: jpeg.rindex(b"\xff\xda")] + b"\xff\xd9"


def of_size(height: int, width: int) -> Callable[[Members], None]:
    """Lie about the size of the picture in its frame header, and in the record."""

    def spoil(found):
        jpeg = bytearray(found[JPEG])
        place = jpeg.index(b"\xff\xc0") + 5
        jpeg[place : place + 4] = struct.pack(">HH", height, width)
        found[JPEG] = bytes(jpeg)
        changed(found, BAD, lambda record: record["image"].update(height=height, width=width))
        changed(found, BAD, lambda record: record.update(annotations=[]))

    return spoil


# What is done, the member that is named, its code, and what the detail says.
CASES = {
    "orphan jpg": (without(JSON), "sa_2.jpg", "missing-json", "sa_2"),
    "not JSON": (member(JSON, b"{ not json"), "sa_2.json", "bad-annotation", "byte"),
    "missing field": (
        record_with(lambda record: record["annotations"][1].pop("bbox")),
        "sa_2.json", "bad-annotation", "bbox",
    ),
    "JPEG of another size": (
        member(JPEG, photo(2, HEIGHT, WIDTH + 2)), "sa_2.jpg", "size-mismatch", "98",
    ),
    "mask of another size": (
        record_with(lambda r: r["annotations"][1]["segmentation"].update(size=[HEIGHT, 95])),
        "sa_2.json", "bad-annotation", "segmentation.size is [64, 95]",
    ),
    "runs that end early": (counts(lambda text: "0P1"), "sa_2.json", "bad-mask", "6144"),
    "garbage counts": (counts(lambda text: "\x01!!"), "sa_2.json", "bad-mask", "48..111"),
    "a PNG": (member(JPEG, b"\x89PNG\r\n\x1a\n" + bytes(99)), "sa_2.jpg", "not-jpeg", "89"),
    "a JPEG cut at its half": (cut(0.5), "sa_2.jpg", "truncated-jpeg", "too early"),
    "a progressive JPEG cut between two scans": (
        member(JPEG, cut_between_scans()), "sa_2.jpg", "truncated-jpeg", "of its scans",
    ),
    "too many masks": (
        record_with(lambda record: record.update(annotations=record["annotations"][:1] * 10_065)),
        "sa_2.json", "too-many-masks", "image 2 has 10,065 masks, and the limit is 10,000",
    ),
    "a decompression bomb": (of_size(30000, 30000), "sa_2.jpg", "too-large", "30000"),
    "a large picture of few bytes": (of_size(8000, 8000), "sa_2.jpg", "", ""),
    "another file's record": (
        record_with(lambda record: record["image"].update(file_name="sa_3.jpg")),
        "sa_2.json", "name-mismatch", "'sa_3.jpg'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_bad_input_becomes_a_line_and_nothing_else_is_lost(tmp_path, case):
    spoil, name, code, detail = CASES[case]
    found = members([1, 2, 3])
    spoil(found)
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    root = tmp_path / "pack"
    result = sa1bpack.pack(tar, root, workers=1, **SMALL)
    assert (result.complete, result.images, result.rejects) == (True, 2, 1)
    (line,) = rejects_of(root)
    assert line.keys() == {"source", "member", "reason", "detail"}
    assert (line["source"], line["member"]) == ("sa_000000", name)
    if code:
        assert line["reason"] == code
    assert detail in line["detail"]
    assert result.rejects == sa1bpack.info(root).manifest.counts[f"rejects:{line['reason']}"]
    assert sorted(names_of(open_shard(root / "shards" / "sa_000000-000"))) == [
        "sa_1.jpg", "sa_3.jpg",
    ]  # fmt: skip
    assert sa1bpack.verify(root).ok


def test_masks_whose_bits_take_too_much_are_a_reject_before_memory_is_taken(tmp_path):
    """Each takes 2 MiB on the largest grid. Without bits, or with a cap, the image is packed."""
    found = members([1])
    changed(found, 1, lambda record: record.update(annotations=record["annotations"][:1] * 1025))
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    options = {"workers": 1, "image_size": 32, "mask_size": 4096}
    assert sa1bpack.pack(tar, tmp_path / "runs", masks="runs", **options).images == 1
    assert sa1bpack.pack(tar, tmp_path / "few", max_masks=3, **options).masks == 3
    assert sa1bpack.pack(tar, tmp_path / "bits", **options).images == 0
    (line,) = rejects_of(tmp_path / "bits")
    assert line["reason"] == "too-many-masks" and "1,025 masks" in line["detail"]
    assert "2.15 GB" in line["detail"] and "--max-masks" in line["detail"]


def test_a_bad_mask_rejects_the_image_also_when_the_filters_leave_it_out(tmp_path):
    found = members([1, 2, 3])
    CASES["runs that end early"][0](found)
    tar = write_tar(tmp_path / "a.tar", found)
    result = sa1bpack.pack(tar, tmp_path / "pack", workers=1, **SMALL, min_area=10**6)
    assert (result.images, result.rejects) == (2, 1)


def test_one_reject_more_than_allowed_ends_the_run_and_the_next_resumes(tmp_path):
    found = members(range(20))
    for number in (9, 13, 17):
        found[f"./sa_{number}.json"] = b"{ not json"
    tar = write_tar(tmp_path / "a.tar", found, shuffle=None)
    root = tmp_path / "pack"
    with pytest.raises(TooManyRejects, match=r"is 2, but 3 members .*\n.*a\.tar: sa_9\.json: "):
        sa1bpack.pack(tar, root, workers=1, max_rejects=2, **SMALL)
    manifest = json.loads((root / "manifest.json").read_text())
    assert not manifest["complete"]
    assert [shard["name"] for shard in manifest["shards"]] == [f"a-00{part}" for part in range(4)]
    assert not list(root.rglob(".tmp*"))
    assert sa1bpack.verify(root).ok
    with pytest.raises(TooManyRejects):
        sa1bpack.pack(tar, root, workers=2, max_rejects=2, **SMALL)
    result = sa1bpack.pack(tar, root, workers=1, max_rejects=3, **SMALL)
    assert (result.images, result.rejects, result.complete) == (17, 3, True)
    assert result.new_images in (0, 3)  # the second run may have completed the last shard


def test_rejects_of_earlier_runs_are_named_and_those_past_ten_are_counted(tmp_path):
    found = members(range(13))
    for number in range(12):
        found[f"./sa_{number}.json"] = b"{"
    tar = write_tar(tmp_path / "sa_1.tar", found, shuffle=None)
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, **SMALL)
    with pytest.raises(TooManyRejects) as caught:
        sa1bpack.pack(tar, tmp_path / "pack", workers=1, max_rejects=3, **SMALL)
    first, *named, more, remedy = str(caught.value).splitlines()
    assert first.startswith("max_rejects is 3, but 12 members were rejected")
    assert len(named) == 10 and all(line.startswith("  sa_1: sa_") for line in named)
    assert more == "  and 2 more" and "rejects.jsonl" in remedy
