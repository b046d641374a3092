"""Inputs that a fuzzer starts with: generated ones, which are accepted, and kept ones.

A kept seed once made its target fail, or is a special case.
"""

import io
import json
import tarfile
import zlib
from pathlib import Path

from small_tars import as_jpeg, members, photo, pixels_of, record
from targets import SHARD, pristine

from sa1bpack.source.tar import BLOCK

SEEDS = Path(__file__).parent / "seeds"


def kept(name: str) -> dict[str, bytes]:
    """The kept seeds of a target by file name: each once made it fail, or is a special case."""
    return {path.name: path.read_bytes() for path in sorted((SEEDS / name).glob("*"))}


def seeds(name: str) -> list[bytes]:
    """Inputs to start with."""
    return [*_MADE[name](), *kept(name).values()]


def _tars() -> list[bytes]:
    small = {name: data[:600] for name, data in members([1, 2]).items()}
    found = []
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
            for member, data in (*small.items(), ("./" + "d" * 120 + "/é.txt", b"x")):
                if format == tarfile.USTAR_FORMAT and "é" in member:
                    continue
                entry = tarfile.TarInfo(member)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
        found.append(buffer.getvalue()[: -8 * BLOCK])  # two blocks of zeros suffice
    return found


def _gzips() -> list[bytes]:
    one = zlib.compress(b"abc" * 50, wbits=31)
    return [one, one + one + bytes(9), zlib.compress(bytes(20_000), wbits=31), one[:-3]]


def _records() -> list[bytes]:
    extra = record(2, 1) | {"info": {"a": [1]}}
    return [json.dumps(found).encode() for found in (record(1, 2), record(3, 0), extra)]


def _texts() -> list[bytes]:
    found = []
    for number in (1, 2):
        texts = [a["segmentation"]["counts"].encode() for a in record(number, 2)["annotations"]]
        size = (63).to_bytes(2, "little") + (95).to_bytes(2, "little")
        found.append(size + b"|".join(texts))
    return [*found, b"\3\0\2\0" + b"0<", b"\0\0\0\0" + b"01|1"]


def _jpegs() -> list[bytes]:
    picture = pixels_of(1, 16, 24)
    return [
        as_jpeg(picture), as_jpeg(picture, progressive=True), as_jpeg(picture.convert("L")),
        as_jpeg(picture.convert("CMYK")), photo(1)[:300],
    ]  # fmt: skip


def _lists() -> list[bytes]:
    return [b"d41d8cd98f00b204e9800998ecf8427e  sa_000000.tar\n# x\n", b"0" * 32 + b" *d/sa_1.tar"]


def _file_of_pack(*names: str):
    return lambda: [data for name, data in pristine().items() if name.endswith(names)]


def _numbered(*names: str):
    return lambda: [
        bytes([number]) + data
        for number, data in enumerate(data for name, data in pristine().items() if names[0] in name
                                      and name.endswith(names[1]))
    ]  # fmt: skip


def _recorded() -> list[bytes]:
    found = json.loads(pristine()[f"{SHARD}/zarr.json"])["attributes"]["sa1bpack"]
    return [json.dumps(found).encode(), json.dumps({"rejects": found["rejects"]}).encode()]


_MADE = {
    "tar": _tars, "pairs": lambda: [*_tars(), *(zlib.compress(t, wbits=31) for t in _tars())],
    "gzip": _gzips, "annotations": _records, "counts": _texts, "jpeg": _jpegs, "md5sums": _lists,
    "manifest": _file_of_pack("manifest.json"),
    "shard_metadata": _file_of_pack("-000/zarr.json"),
    "array_metadata": _file_of_pack("area/zarr.json", "id_order/zarr.json", "shards/zarr.json"),
    "index": _numbered("index-", "c.0"), "offsets": _numbered("-000/", "_offset/c.0"),
    "checksums": _file_of_pack(".xxh128"), "rejects": _recorded,
}  # fmt: skip
