"""Each bad input becomes its line in rejects.jsonl, and nothing else is lost."""

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from format_files import manifest_of
from shard_files import arrays_of
from small_tars import (
    HEIGHT,
    WIDTH,
    Members,
    as_jpeg,
    changed,
    entry,
    members,
    names_of,
    pack_small,
    photo,
    pixels_of,
    rejects_of,
    write_tar,
)

import sa1bpack
from sa1bpack.errors import TooManyRejects

Spoil = Callable[[Members, int], object]


def data_with(half: str, change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(found, number):
        found[f"./sa_{number}.{half}"] = change(found[f"./sa_{number}.{half}"])

    return spoil


def record_with(change: Callable[[dict], object]) -> Spoil:
    return lambda found, number: changed(found, number, change)


def counts(text: str) -> Spoil:
    return record_with(lambda r: r["annotations"][1]["segmentation"].update(counts=text))


def progressive(change: Callable[[bytes, int], bytes]) -> Spoil:
    """A progressive JPEG, changed at its last scan."""
    data = as_jpeg(pixels_of(2), progressive=True)
    return data_with("jpg", lambda _: change(data, data.rindex(b"\xff\xda")))


def of_size(height: int, width: int, recorded: int | None = None) -> Spoil:
    """Lie about the size of the picture in its frame header, and in the record."""

    def spoil(found, number):
        jpeg = bytearray(found[f"./sa_{number}.jpg"])
        place = jpeg.index(b"\xff\xc0") + 5
        jpeg[place : place + 4] = struct.pack(">HH", height, width)
        found[f"./sa_{number}.jpg"] = bytes(jpeg)
        size = {"height": recorded or height, "width": width}
        changed(found, number, lambda record: record["image"].update(size))
        changed(found, number, lambda record: record.update(annotations=[]))

    return spoil


# What is done, the half that is named, its code, and what the detail says.
CASES: dict[str, tuple[Spoil, str, str, str]] = {
    "orphan jpg": (
        lambda found, number: found.pop(f"./sa_{number}.json"), "jpg", "missing-json", "sa_",
    ),
    "not JSON": (data_with("json", lambda _: b"{ not json"), "json", "bad-annotation", "byte"),
    "no JSON": (data_with("json", lambda _: b""), "json", "bad-annotation", "an empty file"),
    "null": (data_with("json", lambda _: b"null"), "json", "bad-annotation", "got `null`"),
    "deep JSON": (
        data_with("json", lambda data: data.replace(b'"id": ', b'"id": ' + b"[" * 100_000, 1)),
        "json", "bad-annotation", "",
    ),
    "a number of 400 digits": (
        data_with("json", lambda data: data.replace(b'"area": ', b'"area": 1' + b"0" * 400, 1)),
        "json", "bad-annotation", "area",
    ),
    "NaN": (
        data_with("json", lambda data: data.replace(b'"area": ', b'"area": NaN, "x": ', 1)),
        "json", "bad-annotation", "is NaN, which JSON does not have",
    ),
    "missing field": (
        record_with(lambda record: record["annotations"][1].pop("bbox")),
        "json", "bad-annotation", "bbox",
    ),
    "a long name": (
        record_with(lambda record: record["image"].update(file_name="x" * 100_000)),
        "json", "bad-annotation", "file_name",
    ),
    "mask of another size": (
        record_with(lambda r: r["annotations"][1]["segmentation"].update(size=[HEIGHT, 95])),
        "json", "bad-annotation", "segmentation.size is [64, 95]",
    ),
    "another file's record": (
        record_with(lambda record: record["image"].update(file_name="sa_3.jpg")),
        "json", "name-mismatch", "'sa_3.jpg'",
    ),
    "too many masks": (
        record_with(lambda record: record.update(annotations=record["annotations"][:1] * 10_065)),
        "json", "too-many-masks", "has 10,065 masks, and the limit is 10,000",
    ),
    "runs that end early": (counts("0P1"), "json", "bad-mask", "6144"),
    "garbage": (counts("\x01!!"), "json", "bad-mask", "are not COCO's counts"),
    "a run without an end": (counts("o" * 100_000), "json", "bad-mask", ""),
    "a sequence for terminals": (counts("\x1b[2J"), "json", "bad-mask", ""),
    "JPEG of another size": (
        data_with("jpg", lambda _: photo(2, HEIGHT, WIDTH + 2)), "jpg", "size-mismatch", "98",
    ),
    "no PNG": (data_with("jpg", lambda _: b"\x89PNG" + bytes(99)), "jpg", "not-image", "89"),
    "a JPEG cut at its half": (
        data_with("jpg", lambda data: data[: len(data) // 2]), "jpg", "truncated-jpeg", "too early",
    ),
    "a progressive JPEG cut between two scans": (
        progressive(lambda data, last: data[:last] + b"\xff\xd9"),
        "jpg", "truncated-jpeg", "of its scans",
    ),
    "a JPEG of many scans": (
        progressive(lambda data, last: data[:-2] + data[last:-2] * 100 + b"\xff\xd9"),
        "jpg", "too-large", "",
    ),
    "a decompression bomb": (of_size(30_000, 30_000), "jpg", "too-large", "30000"),
    "a record of more pixels than a mask has": (
        of_size(60_000, 60_000, recorded=30_000 * 2), "json", "bad-annotation", "",
    ),
    "a large picture of few bytes": (of_size(8000, 8000), "jpg", "", ""),
}  # fmt: skip

# Members whose names or kinds cannot be used, and the reasons.
STRANGE = {
    ("/sa_90.jpg", tarfile.REGTYPE): ("/sa_90.jpg", "bad-name"),
    ("a/../sa_91.jpg", tarfile.REGTYPE): ("a/../sa_91.jpg", "bad-name"),
    ("a\x1b[2J/sa_92.jpg", tarfile.REGTYPE): ("a\\x1b[2J/sa_92.jpg", "bad-name"),
    ("\x85/sa_96.jpg", tarfile.REGTYPE): ("\\x85/sa_96.jpg", "bad-name"),
    ("\udcff\n/sa_97.jpg", tarfile.REGTYPE): ("\\xff\\x0a/sa_97.jpg", "bad-name"),
    ("sa_93.jpg", tarfile.SYMTYPE): ("sa_93.jpg", "not-a-file"),
    ("sa_94.json", tarfile.LNKTYPE): ("sa_94.json", "not-a-file"),
    ("sa_95.jpg", tarfile.CHRTYPE): ("sa_95.jpg", "not-a-file"),
}


def hostile_tar(path: Path) -> Path:
    """Photo 1 and 2 are sound, each other one is a case; then strange members, and 200 MB of zeros
    in a gzip stream."""
    found = members(range(1, len(CASES) + 3), masks=2)
    for number, (spoil, *_) in enumerate(CASES.values(), 3):
        spoil(found, number)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        listed = [(name, data, tarfile.REGTYPE) for name, data in found.items()]
        for name, data, kind in [*listed, *((name, b"", kind) for name, kind in STRANGE)]:
            member = entry(name, kind, len(data), linkname="/etc/passwd")
            tar.addfile(member, io.BytesIO(data))
    bomb = entry("sa_99.jpg", size=200 << 20)
    data = buffer.getvalue().rstrip(b"\0")
    data += bytes(-len(data) % 512) + bomb.tobuf(tarfile.GNU_FORMAT)
    zeros = gzip.compress(bytes(10 << 20), 1)
    path.write_bytes(gzip.compress(data, 1) + zeros * 20 + gzip.compress(bytes(1024)))
    return path


@pytest.mark.parametrize(("workers", "more"), [(1, {}), (2, {"min_area": 10**6})])
def test_what_is_sound_is_packed_and_every_bad_input_becomes_a_line(tmp_path, workers, more):
    """Also a bad mask that the filters leave out."""
    root, tar = tmp_path / "pack", hostile_tar(tmp_path / "sa_000000.tar")
    result = pack_small(tar, root, workers=workers, max_masks=None, **more)
    lines = rejects_of(root)
    found = {line["member"]: line for line in lines}
    expected = dict(STRANGE.values()) | {"sa_99.jpg": "too-large"}
    for number, (name, (_, half, reason, detail)) in enumerate(CASES.items(), 3):
        line = found[f"sa_{number}.{half}"]
        expected[f"sa_{number}.{half}"] = reason or line["reason"]
        assert detail in line["detail"], name
        if reason == "bad-annotation":
            assert line["detail"].endswith("; correct or remove the record"), name
    assert {member: line["reason"] for member, line in found.items()} == expected
    for line in lines:
        assert line.keys() == {"source", "member", "reason", "detail"}
        assert line["source"] == "sa_000000" and line["member"].isprintable()
        assert len(line["detail"]) < 1000 and line["detail"].isprintable(), line
    assert (result.complete, result.images, result.rejects) == (True, 2, len(lines))
    counted = sa1bpack.info(root).manifest.counts
    assert counted["rejects:bad-name"] == 5 and counted["rejects"] == len(lines)
    assert names_of(arrays_of(root / "shards" / "sa_000000-000")) == ["sa_1.jpg", "sa_2.jpg"]
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


def test_one_reject_more_than_allowed_ends_the_run_and_the_next_resumes(root, tmp_path):
    found = members(range(20))
    for number in (9, 13, 17):
        found[f"./sa_{number}.json"] = b"{ not json"
    tar = write_tar(tmp_path / "a.tar", found, shuffle=None)
    with pytest.raises(TooManyRejects, match=r"is 2, but 3 members .*\n.*a\.tar: sa_9\.json: "):
        pack_small(tar, root, max_rejects=2)
    manifest = manifest_of(root)
    assert not manifest["complete"]
    assert [shard["name"] for shard in manifest["shards"]] == [f"a-00{part}" for part in range(4)]
    assert not list(root.rglob(".tmp*"))
    assert sa1bpack.verify(root).ok
    with pytest.raises(TooManyRejects):
        pack_small(tar, root, workers=2, max_rejects=2)
    result = pack_small(tar, root, max_rejects=3)
    assert (result.images, result.rejects, result.complete) == (17, 3, True)
    assert result.new_images in (0, 3)  # the second run may have completed the last shard


def test_rejects_of_earlier_runs_are_named_and_those_past_ten_are_counted(tmp_path, root):
    found = members(range(13))
    for number in range(12):
        found[f"./sa_{number}.json"] = b"{"
    tar = write_tar(tmp_path / "sa_1.tar", found, shuffle=None)
    pack_small(tar, root)
    with pytest.raises(TooManyRejects) as caught:
        pack_small(tar, root, max_rejects=3)
    first, *named, more, remedy = str(caught.value).splitlines()
    assert first.startswith("max_rejects is 3, but 12 members were rejected")
    assert len(named) == 10 and all(line.startswith("  sa_1: sa_") for line in named)
    assert more == "  and 2 more" and "rejects.jsonl" in remedy
