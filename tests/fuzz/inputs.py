"""Inputs that a fuzzer starts with, generated ones, which are accepted, and kept ones; and changes
that random bytes rarely make: still valid JSON, with other content.

A kept seed once made its target fail, or is a special case.
"""

import copy
import json
import random
import tarfile
import zlib
from pathlib import Path
from typing import Any

from image_files import WAYS, file_of, image_of
from sampled_jpegs import sampled_jpeg
from small_tars import as_jpeg, entry, members, photo, pixels_of, record, tar_bytes
from targets import SHARD, pristine

SEEDS = Path(__file__).parent / "seeds"


def seeds(name: str) -> list[bytes]:
    """Inputs to start with."""
    return [*_MADE[name](), *(path.read_bytes() for path in sorted((SEEDS / name).glob("*")))]


def _tars() -> list[bytes]:
    small = [(name, data[:600]) for name, data in members([1, 2]).items()]
    long = ("./" + "d" * 120 + "/é.txt", b"x")  # which the oldest format cannot have
    link = entry("link", tarfile.SYMTYPE, linkname="/etc/passwd")
    kinds = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT
    found = [tar_bytes([*small, long], kind, link) for kind in kinds]
    found.append(tar_bytes(small, tarfile.USTAR_FORMAT, link))
    return [data[: -8 * 512] for data in found]  # two blocks of zeros suffice


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
        sampled_jpeg(((4, 1), (2, 1), (2, 1)), 16, 24),
        sampled_jpeg(((4, 2), (1, 1), (1, 1)), 16, 24, progressive=True, restart_interval=1),
    ]  # fmt: skip


def _images() -> list[bytes]:
    picture = pixels_of(1, 16, 24)
    found = [file_of(picture, form, **options) for form, options in WAYS]
    found += [file_of(image_of(mode, 16, 24), "PNG") for mode in ("P", "LA", "I;16")]
    return [*found, file_of(picture.convert("CMYK"), "TIFF"), found[0][:200]]


_LISTS = [b"d41d8cd98f00b204e9800998ecf8427e  sa_000000.tar\n# x\n", b"0" * 32 + b" *d/sa_1.tar"]


def _of_pack(*ends: str, within: str = "") -> list[bytes]:
    files = pristine().items()
    return [data for name, data in files if within in name and name.endswith(ends)]


def _numbered(files: list[bytes]) -> list[bytes]:
    return [bytes([number]) + data for number, data in enumerate(files)]


def _recorded() -> list[bytes]:
    found = json.loads(pristine()[f"{SHARD}/zarr.json"])["attributes"]["sa1bpack"]
    return [json.dumps(found).encode(), json.dumps({"rejects": found["rejects"]}).encode()]


_MADE = {
    "tar": _tars, "pairs": lambda: [*_tars(), *(zlib.compress(t, wbits=31) for t in _tars())],
    "gzip": _gzips, "annotations": _records, "counts": _texts, "jpeg": _jpegs,
    "image": _images,
    "md5sums": lambda: _LISTS,
    "manifest": lambda: _of_pack("manifest.json"),
    "shard_metadata": lambda: _of_pack("-000/zarr.json"),
    "array_metadata": lambda: _of_pack("area/zarr.json", "id_order/zarr.json", "shards/zarr.json"),
    "index": lambda: _numbered(_of_pack("c.0", within="index-")),
    "offsets": lambda: _numbered(_of_pack("_offset/c.0", within="-000/")),
    "checksums": lambda: _of_pack(".xxh128"), "rejects": _recorded,
}  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 4, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400,
    0.0, -0.5, 1e308, float("nan"), float("inf"),
    "", "..", "../x", "/etc", "a/b", "a\\b", "\0", "\x1b[2J", "\ud800", "x" * 300, "é", "zarr.json",
    "index-00000000", "sa_000000-000", "yuv420", "native",
    [], {}, [[]], [None], [0, 0], [1, 0], {"": None},
)  # fmt: skip
JSON_TARGETS = ("annotations", "manifest", "shard_metadata", "array_metadata", "rejects")


def mutate_json(data: bytes, rng: random.Random) -> bytes | None:
    """The same JSON with one to three changes.

    None if it is not a JSON object, or is nested too deeply for Python to change it.
    """
    try:
        tree = json.loads(data)
        if not isinstance(tree, dict):
            return None
        for _ in range(rng.randint(1, 3)):
            if places := list(_places(tree)):
                _change(*rng.choice(places), rng)
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
        # Half a surrogate pair, which UTF-8 does not allow, is encoded as if it did.
        return text.encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return None


def _places(node: Any, depth: int = 0):
    """(container, key or index) of every part, down to the depth of real files."""
    keys = node if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield node, key
        if isinstance(node[key], dict | list) and depth < 12:
            yield from _places(node[key], depth + 1)


def _change(node: Any, key: Any, rng: random.Random) -> None:
    way = rng.randrange(6)
    if way == 0:
        del node[key]
    elif way == 1 and isinstance(node, dict):
        node[rng.choice(("", "x" * 100, "\x1b", key + "_"))] = node.pop(key)
    elif way == 1:
        node.insert(key, copy.deepcopy(node[key]))
    elif way == 2:  # wrapped, to make it deeper
        for _ in range(rng.choice((1, 5, 300))):
            node[key] = [node[key]] if rng.random() < 0.5 else {"x": node[key]}
    elif way == 3 and isinstance(node[key], int | float) and abs(node[key]) < 2**64:
        node[key] += rng.choice((-1, 1, 0.5, 2**32, 10**19))
    else:
        node[key] = copy.deepcopy(rng.choice(VALUES))
