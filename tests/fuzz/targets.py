"""Everything that reads bytes from outside, as functions of bytes that a fuzzer can call.

A target takes any bytes and returns nothing. It fails if it raises anything but an error of
sa1bpack, if a message is unreadable, if work or output is out of proportion to the input, or if
accepted input is read differently from an independent reading of the same bytes. The caller limits
memory and time: pytest's faulthandler, or the limits of the fuzzer.

`TARGETS` has them by name; `inputs.seeds(name)` returns inputs to start with.
"""

import contextlib
import functools
import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from gzip import decompress
from pathlib import Path

import numpy as np
from small_tars import SMALL, members, pack_small, write_tar

import sa1bpack
from sa1bpack import errors
from sa1bpack.format.file_checksums import read_checksums
from sa1bpack.masks import encode_counts, mask_area, parse_counts, rasterize
from sa1bpack.packing.publishers import inspect_pack
from sa1bpack.packing.requested_options import RequestedOptions
from sa1bpack.pixels.decode import decode_into
from sa1bpack.pixels.header import read_header
from sa1bpack.source.annotations import parse_annotations
from sa1bpack.source.find import open_source, read_md5sums
from sa1bpack.source.inflate import open_stream
from sa1bpack.source.pairs import PairReader
from sa1bpack.source.tar import TarStream

MAX_MESSAGE = 4000  # characters, including the path of the file
MAX_PATH_BYTES = 512  # of a member with its folders; longer paths are shortened
INFLATE_BYTES = 1 << 18  # of one step, which bounds a gzip bomb
MAX_INFLATION = 1032  # deflate's largest ratio, https://www.zlib.net/zlib_tech.html
SHARD = "shards/sa_000000-000"


@functools.cache
def _scratch() -> Path:
    """A folder for the process; the starter of the process removes what it leaves in TMPDIR."""
    return Path(tempfile.mkdtemp(prefix="sa1bpack-fuzz-"))


def _file(data: bytes, name: str = "sa_000000.tar") -> Path:
    path = _scratch() / name
    path.write_bytes(data)
    return path


@contextlib.contextmanager
def _refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Accept errors of these kinds, if their messages are readable and safe to print."""
    try:
        yield
    except kinds as error:
        message = str(error)
        assert 0 < len(message) <= MAX_MESSAGE, len(message)
        assert message.replace("\n", "").isprintable(), message


# ---------------------------------------------------------------------------------------- sources


def tar(data: bytes) -> None:
    """The members of a plain tar: all of it is walked, every second file is read."""
    stream = TarStream(open_stream(_file(data), gzip=False))
    with contextlib.closing(stream.stream), _refusing(errors.SourceError):
        for number, member in enumerate(stream):
            assert number <= len(data) // 512
            assert len(member.name) <= 4 * MAX_PATH_BYTES
            assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in member.name)
            if member.kind == "file" and number % 2:
                assert len(stream.read()) == member.size <= len(data)


def gzip(data: bytes) -> None:
    """The inflated bytes of a gzip file, compared with those of Python's gzip."""
    stream = open_stream(_file(data), gzip=True)
    found = []
    try:
        with _refusing(errors.SourceError):
            while piece := stream.read(50_000):
                found.append(piece)
                assert len(stream.chunk) <= INFLATE_BYTES
                assert stream.position <= MAX_INFLATION * len(data)
            assert b"".join(found) == decompress(data.lstrip(b"\0"))
    finally:
        stream.close()


def pairs(data: bytes) -> None:
    """A source as the packer reads it: kind, members, pairs, spool."""
    path = _file(data)
    with _refusing(errors.SourceError):
        source = open_source(path)
        with PairReader(source, spool_dir=_scratch(), spool_memory=1000) as reader:
            seen = set()
            for pair in reader:
                assert pair.name not in seen and len(pair.file_name.encode()) <= 64
                assert pair.name and "/" not in pair.file_name
                seen.add(pair.name)
            for reject in reader.rejects:
                assert len(reject.member) + len(reject.detail) <= MAX_MESSAGE
            assert len(reader.rejects) <= reader.members


def annotations(data: bytes) -> None:
    """A JSON record and the masks in it, compared with Python's json."""
    with _refusing(errors.AnnotationError, errors.MaskError):
        found = parse_annotations(data)
        try:
            expected = json.loads(data, parse_int=lambda digits: int(digits[:4000]))
        except RecursionError:  # json's limit of depth differs slightly
            return
        image, masks = expected["image"], expected["annotations"]
        [entry] = found.images
        assert (entry.image_id, entry.width) == (image["image_id"], image["width"])
        assert entry.file_name == image["file_name"]
        assert found.numbers["area"].tolist() == [mask["area"] for mask in masks]
        assert found.numbers["bbox"].tolist() == [mask["bbox"] for mask in masks]
        assert found.numbers["annotation_id"].tolist() == [mask["id"] for mask in masks]
        assert len(entry.unknown_keys) <= 65
        parse_counts(found.counts_text, found.counts_offset, entry.height * entry.width)


def counts(data: bytes) -> None:
    """Run-length texts, separated by `|`, of an image whose size is in the first four bytes.

    Accepted texts are encoded again, which returns the canonical ones, and drawn.
    """
    height = 1 + int.from_bytes(data[:2], "little")
    width = 1 + int.from_bytes(data[2:4], "little") % (2**31 // height - 1 or 1)
    texts = data[4:].split(b"|")
    text = np.frombuffer(b"".join(texts), np.uint8)
    offset = np.array([0, *itertools.accumulate(map(len, texts))], np.int64)
    with _refusing(errors.MaskError):
        run_ends, run_offset, noncanonical = parse_counts(text, offset, height * width)
        again, again_offset = encode_counts(run_ends, run_offset)
        for m, text in enumerate(texts):
            written = again[again_offset[m] : again_offset[m + 1]].tobytes()
            assert (written == text) != noncanonical[m]
        assert (mask_area(run_ends, run_offset) <= height * width).all()
        for fit, sampling in itertools.product(("pad", "squash"), ("area", "center")):
            rasterize(run_ends, run_offset, height, width, 8, fit, sampling)


def jpeg(data: bytes) -> None:
    """A JPEG: its header, and its pixels if it is small."""
    with _refusing(errors.ImageError):
        header = read_header(data)
        if header.height * header.width <= 1 << 16:
            out = np.empty((64, 64, 3), np.uint8)
            source = header.height, header.width
            most = max(source)
            size = tuple(max(1, (128 * side + most) // (2 * most)) for side in source)
            decode_into(data, source, size, (out,))
            assert not out[size[0] :].any() and not out[:, size[1] :].any()


def image(data: bytes) -> None:
    """An image in another format, of 16 x 24 pixels as the seeds have; PIL may warn of damage."""
    out = np.empty((32, 32, 3), np.uint8)
    with warnings.catch_warnings(), _refusing(errors.ImageError, errors.MissingPackage):
        warnings.simplefilter("ignore")
        decode_into(data, (16, 24), (21, 32), (out,))
        assert not out[21:].any()


def md5sums(data: bytes) -> None:
    """A list of md5 sums."""
    with _refusing(errors.SourceError):
        for name, digest in read_md5sums(_file(data, "md5sums.txt")).items():
            assert "/" not in name and len(bytes.fromhex(digest)) == 16


# ------------------------------------------------------------------------------------------ packs


@functools.cache
def pristine() -> dict[str, bytes]:
    """The files of a pack of two shards, five photos and one reject, which is made for it."""
    root, found = _scratch() / "pack", members(range(1, 6), masks=lambda number: number % 3)
    found["./sa_9.jpg"] = b"no JPEG"
    pack_small(write_tar(_scratch() / "sa_000000.tar", found), root)
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.name[0] != "."]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@contextlib.contextmanager
def _pack_with(name: str, data: bytes) -> Iterator[Path]:
    """The pack with different bytes in one of its files."""
    sound, root = pristine()[name], _scratch() / "pack"
    (root / name).write_bytes(data)
    try:
        yield root
    finally:
        (root / name).write_bytes(sound)


def _use(root: Path) -> None:
    """Open a pack, read all of it, look up ids, check it, and resume it as the packer does."""
    opened = False
    with _refusing(errors.FormatError):
        dataset = sa1bpack.open(root)
        for row in range(len(dataset)):
            sample = dataset[row]
            assert sample["image"].shape == (64, 64, 3)
            assert len(sample["bboxes"]) == len(sample["masks"])
            sample["masks"].sum()
        for image_id in (1, 9, -(2**63)):
            with contextlib.suppress(KeyError):
                dataset.by_id(image_id)
        dataset.mask_column("area").sum()
        opened = True
    with _refusing(errors.FormatError):
        for problem in sa1bpack.verify(root, quick=not opened).problems:
            assert len(str(problem)) <= MAX_MESSAGE
    with _refusing(errors.FormatError, errors.OptionsDiffer):
        inspect_pack(root, RequestedOptions(SMALL))


def manifest(data: bytes) -> None:
    """manifest.json."""
    with _pack_with("manifest.json", data) as root:
        with _refusing(errors.FormatError):
            found = sa1bpack.info(root).manifest
            for shard in found.shards:
                assert (root / "shards" / shard.name).resolve().parent == root.resolve() / "shards"
            if found.index is not None:
                assert (root / found.index).resolve().parent == root.resolve()
        _use(root)


def shard_metadata(data: bytes) -> None:
    """zarr.json of a shard, with the attributes that describe the shard."""
    with _pack_with(f"{SHARD}/zarr.json", data) as root:
        with _refusing(errors.FormatError):
            shard = sa1bpack.open(root).shards[0]
            for spec in shard.layout.arrays:
                assert shard[spec.name].nbytes <= (root / SHARD / spec.chunk_path).stat().st_size
        _use(root)


def array_metadata(data: bytes) -> None:
    """zarr.json of an array of a shard or of the index, or of the pack; chosen by the length."""
    index = next(name for name in pristine() if name.endswith("id_order/zarr.json"))
    names = (f"{SHARD}/area/zarr.json", index, "zarr.json")
    with _pack_with(names[len(data) % len(names)], data) as root:
        _use(root)


def index(data: bytes) -> None:
    """The arrays of the index; the first byte chooses the one that the others replace."""
    names = [name for name in pristine() if name.startswith("index-") and name.endswith("c.0")]
    with _pack_with(names[data[0] % len(names)] if data else names[0], data[1:]) as root:
        _use(root)


def offsets(data: bytes) -> None:
    """The offset arrays of a shard, with their expected length; chosen by the first byte."""
    names = [f"{SHARD}/{array}/c.0" for array in ("mask_offset", "run_offset")]
    name = names[data[0] % len(names)] if data else names[0]
    size = len(pristine()[name])
    with _pack_with(name, data[1 : size + 1].ljust(size, b"\0")) as root:
        _use(root)


def checksums(data: bytes) -> None:
    """The two kinds of checksum files."""
    for name in ("checksums.xxh128", f"{SHARD}/checksums.xxh128"):
        with _pack_with(name, data) as root:
            with _refusing(errors.FormatError):
                for path in read_checksums(root / name):
                    assert (root / path).absolute().is_relative_to(root) and ".." not in path
            _use(root)


def rejects(data: bytes) -> None:
    """The packer's records in a shard, including rejects; the bytes replace them."""
    try:
        changes = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(changes, dict):
        return
    metadata = json.loads(pristine()[f"{SHARD}/zarr.json"])
    metadata["attributes"]["sa1bpack"] |= changes
    replaced = _pack_with(f"{SHARD}/zarr.json", json.dumps(metadata).encode())
    with replaced as root, _refusing(errors.FormatError):
        ledger = inspect_pack(root, RequestedOptions(SMALL))
        assert all(reject["source"] for reject in ledger.rejects())
        assert ledger.manifest(complete=True).counts["rejects"] == len(ledger.rejects())


TARGETS = {
    target.__name__: target
    for target in (
        tar, gzip, pairs, annotations, counts, jpeg, image, md5sums,
        manifest, shard_metadata, array_metadata, index, offsets, checksums, rejects,
    )
}  # fmt: skip


def forget() -> None:
    """Remove the folder of the process."""
    shutil.rmtree(_scratch())
    _scratch.cache_clear()
    pristine.cache_clear()
