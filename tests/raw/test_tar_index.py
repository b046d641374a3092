"""The index of a tar is made once, fits its tar, and leads to the right bytes of a gzip stream."""

import ctypes
import gzip
import logging
import os
import random
import re
from contextlib import closing
from pathlib import Path

import pytest
from small_tars import SMALL, members, write_tar
from system import without_privileges

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import MissingPackage, SourceError, SourceTruncated
from sa1bpack.raw.seek_points import PointStream, SeekPoints, zlib_library
from sa1bpack.raw.tar_index import open_index
from sa1bpack.source.find import open_source
from sa1bpack.source.inflate import GzipStream

OPTIONS = sa1bpack.PackOptions(**SMALL)


INDEX = ".sa_000007.tar.index"


def opened(tar) -> list[str]:
    """The names of the images, in the order of the index; one of them was read."""
    ds = sa1bpack.TarDataset(tar, options=OPTIONS)
    names = [ds.metadata(index).file_name for index in range(len(ds))]
    good = names.index("sa_1.jpg")
    assert ds[good]["image_id"] == 1
    return names


def test_it_is_made_once_and_kept_beside_the_tar(source, caplog):
    caplog.set_level(logging.INFO, "sa1bpack")
    tar = source("tar")
    first = opened(tar)
    assert "indexed 8 pairs" in caplog.text and len(first) == 8
    caplog.clear()
    assert opened(tar) == first
    assert caplog.text == "" and {path.name for path in tar.parent.iterdir()} == {tar.name, INDEX}


@pytest.mark.parametrize("change", ["size", "time", "content"])
def test_one_that_does_not_fit_its_tar_is_made_again_and_that_is_said(
    source, found_members, change, caplog
):
    tar = source("tar")
    first, status = opened(tar), tar.stat()
    if change == "size":
        write_tar(tar, members([1, 2]), compress=False)
    elif change == "time":
        os.utime(tar, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:  # the same length and time
        write_tar(tar, found_members, compress=False, shuffle=3)
        assert status.st_size == tar.stat().st_size
        os.utime(tar, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = opened(tar)
    how = r"from \d+ to \d+ bytes " if change == "size" else ""
    assert re.search(rf"is stale: .*changed {how}after it was indexed; it is made", caplog.text)
    assert (again == first) == (change == "time")
    caplog.clear()
    assert opened(tar) == again and not caplog.records


def test_damage_to_its_file_is_found_and_repaired(source, caplog):
    tar = source("tar")
    first, path = opened(tar), tar.with_name(INDEX)
    sound = path.read_bytes()
    rng = random.Random(0)
    pairs_at = -(-(sound.index(b"\n") + 1) // 64) * 64
    places = [3, sound.index(b'"pairs"'), *(rng.randrange(pairs_at, len(sound)) for _ in range(6))]
    for place in places:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 64]) + sound[place + 1 :])
        caplog.clear()
        assert opened(tar) == first
        assert "made again" in caplog.text, place
        assert path.read_bytes() == sound
    for length in (0, 100, len(sound) - 1):
        path.write_bytes(sound[:length])
        assert opened(tar) == first


def test_it_lies_in_the_folder_that_is_named(source, tmp_path):
    tar = source("tar")
    other = tmp_path / "other" / tar.name
    other.parent.mkdir()
    write_tar(other, members([1]), compress=False)
    folder = tmp_path / "indices"
    for path, count in ((tar, 8), (other, 1)):
        assert len(sa1bpack.TarDataset(path, options=OPTIONS, index_folder=folder)) == count
    assert len(list(folder.iterdir())) == 2  # tars of the same name do not share one
    assert not list(tmp_path.glob(".sa_*"))


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(source):
    tar = source("tar")
    tar.parent.chmod(0o500)
    match = r"index_folder: the index of .*Permission denied; name a folder with room"
    with without_privileges(), pytest.raises(OptionError, match=match):
        sa1bpack.TarDataset(tar, options=OPTIONS)
    tar.parent.chmod(0o700)


def test_a_truncated_tar_is_named_and_leaves_no_index(source):
    tar = source("tar")
    tar.write_bytes(tar.read_bytes()[:-20000])
    with pytest.raises(SourceTruncated, match=r"sa_000007\.tar"):
        sa1bpack.TarDataset(tar, options=OPTIONS)
    assert [path.name for path in tar.parent.iterdir()] == [tar.name]


def test_a_tar_that_is_cut_short_later_says_so(source):
    tar = source("tar")
    ds = sa1bpack.TarDataset(tar, options=OPTIONS)
    with tar.open("r+b") as file:
        file.truncate(3000)
    for index in range(8):
        with pytest.raises(SourceError, match=r"sa_000007\.tar: has changed since the dataset"):
            ds[index]


def test_without_the_library_of_zlib_the_remedy_is_named(tmp_path, monkeypatch):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1]))

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    zlib_library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", missing)
        with pytest.raises(MissingPackage, match=r"zlib's library \(libz.so.1: .*apt install"):
            sa1bpack.TarDataset(tar, options=OPTIONS)
    assert list(tmp_path.iterdir()) == [tar]
    assert len(sa1bpack.TarDataset(tar, options=OPTIONS)) == 1


def bytes_read() -> int:
    """Bytes that this process has read from files."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    return int(found[1])


@pytest.mark.parametrize("compress", [True, False])
def test_a_tar_is_read_once_to_be_indexed_and_a_plain_one_only_where_headers_are(
    tmp_path, compress
):
    rng = random.Random(0)
    noise = {f"./noise{number}": rng.randbytes(2 << 20) for number in range(4)}
    listed = members(range(20)) | noise
    opened(write_tar(tmp_path / "sa_000001.tar", members(range(4)), compress=compress))
    tar = write_tar(tmp_path / "sa_000000.tar", listed, compress=compress)
    before = bytes_read()
    index = open_index(open_source(tar), None)
    taken = bytes_read() - before
    assert len(index) == 20
    size = tar.stat().st_size
    assert size > 8 << 20
    if compress:
        assert size <= taken < 1.1 * size
    else:
        assert taken < 0.5 * size


# ---------------------------------------------------------------------------------- seek points


@pytest.fixture(scope="module")
def stream() -> bytes:
    """Incompressible and compressible stretches, so that blocks of every type follow each other."""
    rng = random.Random(1)
    parts = []
    for number in range(60):
        parts.append(rng.randbytes(rng.randrange(1, 30_000)))
        parts.append(b"the same words again, " * rng.randrange(1, 2000))
        parts.append(bytes(rng.choice(b"abcdefgh") for _ in range(rng.randrange(1, 20_000))))
        parts.append(str(number).encode())
    return b"".join(parts)


def points_of(path, spacing: int) -> SeekPoints:
    """The points of a file that is read once, whose bytes are those that gzip inflates."""
    with closing(PointStream(path, spacing)) as stream:
        read = b""
        while data := stream.read(100_001):
            read += data
        found = stream.seek_points()
    with gzip.open(path) as file:
        assert read == file.read()
    return found


@pytest.mark.parametrize("level", [1, 6, 9])
def test_any_part_of_a_gzip_stream_is_what_zlib_inflates(stream, level, tmp_path):
    """Blocks begin at every bit of a byte; members follow each other, with zeros between them."""
    half = len(stream) // 2
    path = tmp_path / "some.gz"
    path.write_bytes(
        gzip.compress(stream[:half], level) + bytes(100) + gzip.compress(stream[half:], level)
    )
    found = points_of(path, 1 << 16)
    assert len(found.points) > 10
    assert level == 1 or len(set(found.points["bits"].tolist())) >= 4
    rng = random.Random(0)
    starts = [*found.points["stream"].tolist(), *(rng.randrange(len(stream)) for _ in range(100))]
    with path.open("rb") as file:
        for start in starts:
            count = min(rng.choice((1, 100, 200_000)), len(stream) - start)
            assert found.read(file.fileno(), path, start, count) == stream[start : start + count]
        assert found.read(file.fileno(), path, 0, len(stream)) == stream


def test_damage_to_stream_or_window_is_named(stream, tmp_path):
    path = tmp_path / "some.gz"
    path.write_bytes(gzip.compress(stream, 6))
    found = points_of(path, 1 << 16)
    with path.open("rb") as file:
        with pytest.raises(SourceError, match="ends 5 bytes before"):
            found.read(file.fileno(), path, len(stream) - 5, 10)
        windows = found.windows.copy()
        windows[0, 5] ^= 1
        damaged = SeekPoints(found.points, windows)
        with pytest.raises(SourceError, match="its index is damaged"):
            damaged.read(file.fileno(), path, int(found.points["stream"][1]), 10)
    data = bytearray(path.read_bytes())
    middle = int(found.points["file"][3])
    data[middle : middle + 2000] = bytes(2000)
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(SourceError, match=r"some\.gz"):
        for start in range(int(found.points["stream"][3]), len(stream) - 100_000, 50_000):
            read = found.read(file.fileno(), path, start, 100_000)
            assert read == stream[start : start + 100_000]


def test_points_of_many_small_members_are_few_and_lead_to_every_byte(tmp_path):
    path, rng = tmp_path / "some.gz", random.Random(2)
    pieces = [rng.randbytes(rng.choice((0, 1, 500, 5000))) for _ in range(200)]
    path.write_bytes(b"".join(gzip.compress(piece) for piece in pieces))
    whole = b"".join(pieces)
    found = points_of(path, 1 << 16)
    assert 1 < len(found.points) < len(whole) / (1 << 16) + 2
    with path.open("rb") as file:
        for start in range(0, len(whole) - 1000, 997):
            read = found.read(file.fileno(), path, start, 1000)
            assert read == whole[start : start + 1000]


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_stream_is_refused_while_its_points_are_found(stream, tmp_path, seed):
    rng, path = random.Random(seed), tmp_path / "some.gz"
    data = bytearray(gzip.compress(stream, 6))
    place = rng.choice((rng.randrange(len(data) // 2), len(data) - 1 - rng.randrange(8)))
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data[: len(data) - (seed % 3 == 0) * 5000])
    errors = []
    for kind in (GzipStream, PointStream):
        with closing(kind(path)) as opened_stream:
            try:
                while opened_stream.read(1 << 16):
                    pass
                errors.append(None)
            except SourceError as error:
                errors.append(type(error))
    assert errors[0] == errors[1]
    assert errors[0] is not None or place < 10  # flags and time of the header
