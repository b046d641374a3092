"""A tar full of traps is packed: what is sound in it goes in, each trap becomes a reject."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest
from small_tars import (
    SMALL,
    as_jpeg,
    changed,
    members,
    names_of,
    pixels_of,
    rejects_of,
)

import sa1bpack
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.packing.pack_state import ShardRecord, check_record
from sa1bpack.pixels.header import MAX_SCANS


def spoiled() -> dict[str, bytes]:
    """Members 1 and 2 are sound, the others are one trap each."""
    found = members(range(1, 13), masks=2)

    def counts(number, text):
        changed(found, number, lambda r: r["annotations"][1]["segmentation"].update(counts=text))

    text = found["./sa_3.json"].decode()
    found["./sa_3.json"] = text.replace('"id": ', '"id": ' + "[" * 100_000, 1).encode()
    found["./sa_4.json"] = found["./sa_4.json"].replace(b'"area": ', b'"area": 1' + b"0" * 400, 1)
    found["./sa_5.json"] = found["./sa_5.json"].replace(b'"area": ', b'"area": NaN, "x": ', 1)
    counts(6, "o" * 100_000)
    counts(7, "000" + "PPPPPPPPPPP2" * 40)
    counts(8, "\x1b[2J")
    jpeg = found["./sa_9.jpg"]
    at = jpeg.find(b"\xff\xc0") + 5
    found["./sa_9.jpg"] = jpeg[:at] + (60_000).to_bytes(2) * 2 + jpeg[at + 4 :]
    changed(found, 9, lambda r: r["image"].update(width=60_000, height=30_000))
    jpeg = as_jpeg(pixels_of(10), progressive=True)
    last = jpeg[jpeg.rfind(b"\xff\xda") : -2]
    found["./sa_10.jpg"] = jpeg[:-2] + last * MAX_SCANS + b"\xff\xd9"
    changed(found, 11, lambda r: r["image"].update(file_name="x" * 100_000))
    found["./sa_12.json"] = b"\xef\xbb\xbf" + found["./sa_12.json"]
    return found


REASONS = {
    **{f"sa_{number}.json": "bad-annotation" for number in (3, 4, 5, 9, 11, 12)},
    **{f"sa_{number}.json": "bad-mask" for number in (6, 7, 8)},
    "sa_10.jpg": "too-large", "/sa_20.jpg": "bad-name", "a/../sa_21.jpg": "bad-name",
    "sa_22.jpg": "not-a-file", "sa_23.json": "not-a-file", "sa_24.jpg": "not-a-file",
    "sa_25.jpg": "too-large", "a\\x1b[2J/sa_26.jpg": "bad-name",
}  # fmt: skip


def hostile_tar(path: Path) -> Path:
    """The members above, then names, links, devices, and 200 MB of zeros in a gzip stream."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        listed = [(name, data, tarfile.REGTYPE) for name, data in spoiled().items()]
        listed += [(name, b"x", tarfile.REGTYPE) for name in ("/sa_20.jpg", "a/../sa_21.jpg")]
        listed += [("sa_22.jpg", b"", tarfile.SYMTYPE), ("sa_23.json", b"", tarfile.LNKTYPE)]
        listed += [
            ("sa_24.jpg", b"", tarfile.CHRTYPE),
            ("a\x1b[2J/sa_26.jpg", b"", tarfile.REGTYPE),
        ]
        for name, data, type in listed:
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = len(data), type, "/etc/passwd"
            tar.addfile(entry, io.BytesIO(data))
    bomb = tarfile.TarInfo("sa_25.jpg")
    bomb.size = 200 << 20
    data = buffer.getvalue().rstrip(b"\0")
    data += bytes(-len(data) % 512) + bomb.tobuf(tarfile.GNU_FORMAT)
    zeros = gzip.compress(bytes(10 << 20), 1)
    path.write_bytes(gzip.compress(data, 1) + zeros * 20 + gzip.compress(bytes(1024)))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_sound_is_packed_and_every_trap_has_its_reason(tmp_path, workers):
    tar = hostile_tar(tmp_path / "sa_000000.tar")
    result = sa1bpack.pack(tar, tmp_path / "pack", workers=workers, **SMALL)
    assert result.complete and result.images == 2
    found = rejects_of(tmp_path / "pack")
    assert {line["member"]: line["reason"] for line in found} == REASONS
    for line in found:
        assert len(line["detail"]) < 1000 and line["detail"].isprintable(), line
        assert line["member"].isprintable()
    assert sa1bpack.verify(tmp_path / "pack").ok
    shard = open_shard(tmp_path / "pack" / "shards" / "sa_000000-000")
    assert names_of(shard) == ["sa_1.jpg", "sa_2.jpg"]
    check_record(shard.attributes, ShardRecord, str(shard.folder))
