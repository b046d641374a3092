"""The index of a tar is made once, fits its tar, and leads to the right bytes of a gzip stream."""

import gzip
import io
import logging
import os
import random
import re
import sys

import pytest
from small_tars import SMALL, members, write_tar
from system import without_privileges

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import MissingPackage, SourceError, SourceTruncated
from sa1bpack.raw.seek_points import SeekPoints

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


def test_without_indexed_gzip_the_remedy_is_named(tmp_path, monkeypatch):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1]))
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(MissingPackage, match="pip install indexed_gzip"):
        sa1bpack.TarDataset(tar, options=OPTIONS)
    assert list(tmp_path.iterdir()) == [tar]


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
    library = pytest.importorskip("indexed_gzip")
    exported = io.BytesIO()
    with library.IndexedGzipFile(path, spacing=spacing) as file:
        file.build_full_index()
        file.export_index(fileobj=exported)
    return SeekPoints.of_zran(exported.getvalue())


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
