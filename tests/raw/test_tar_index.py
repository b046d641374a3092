"""The index of a tar is made once, fits its tar, and leads to the right bytes of a gzip stream."""

import gzip
import io
import logging
import os
import random
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from small_tars import SMALL, members, write_tar
from system import without_privileges

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import MissingPackage, SourceError, SourceTruncated
from sa1bpack.raw import tar_index
from sa1bpack.raw.seek_points import SeekPoints
from sa1bpack.raw.tar_index import index_path, open_index
from sa1bpack.source.find import open_source

OPTIONS = sa1bpack.PackOptions(**SMALL)


@pytest.fixture
def opened(source):
    """opened(kind) → (the source, its index, made)."""

    def make(kind: str):
        found = open_source(source(kind))
        return found, open_index(found, None)

    return make


@pytest.mark.parametrize("kind", ["gzip-tar", "tar"])
def test_it_leads_to_the_bytes_of_every_member(opened, found_members, kind):
    _, index = opened(kind)
    for row in range(len(index)):
        name = index.file_name(row)
        expected = found_members[f"./{name}"], found_members[f"./{name[:-4]}.json"]
        assert (index.read(row, "jpeg"), index.read(row, "json")) == expected
    assert len(index) == 8


def test_it_is_made_once_and_mapped_after_that(opened, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "sa1bpack")
    source, first = opened("tar")
    assert "indexed 8 pairs" in caplog.text
    monkeypatch.setattr(tar_index, "write_index", lambda *_: pytest.fail("made again"))
    again = open_index(source, None)
    assert np.array_equal(again.pairs, first.pairs) and again.digest == first.digest
    assert not again.pairs.flags.writeable and not again.pairs.flags.owndata
    assert index_path(source, None).name == ".sa_000007.tar.index"


@pytest.mark.parametrize("change", ["size", "time", "content"])
def test_one_that_does_not_fit_its_tar_is_made_again_and_that_is_said(
    opened, found_members, change, caplog
):
    source, first = opened("tar")
    status = source.path.stat()
    if change == "size":
        write_tar(source.path, members([1, 2]), compress=False)
    elif change == "time":
        os.utime(source.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:  # the same length and time
        write_tar(source.path, found_members, compress=False, shuffle=3)
        assert status.st_size == source.path.stat().st_size
        os.utime(source.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = open_index(open_source(source.path), None)
    how = r"from \d+ to \d+ bytes " if change == "size" else ""
    assert re.search(rf"is stale: .*changed {how}after it was indexed; it is made", caplog.text)
    assert (again.digest == first.digest) == (change == "time")
    assert again.read(0, "jpeg")
    caplog.clear()
    open_index(open_source(source.path), None)
    assert not caplog.records


def test_damage_to_its_file_is_found_and_repaired(opened, caplog):
    source, first = opened("tar")
    path = index_path(source, None)
    sound = path.read_bytes()
    rng = random.Random(0)
    pairs_at = -(-(sound.index(b"\n") + 1) // 64) * 64
    places = [3, sound.index(b'"pairs"'), *(rng.randrange(pairs_at, len(sound)) for _ in range(6))]
    for place in places:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 64]) + sound[place + 1 :])
        caplog.clear()
        assert np.array_equal(open_index(source, None).pairs, first.pairs)
        assert "made again" in caplog.text, place
        assert path.read_bytes() == sound
    for length in (0, 100, len(sound) - 1):
        path.write_bytes(sound[:length])
        assert np.array_equal(open_index(source, None).pairs, first.pairs)


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


def test_a_tar_that_is_cut_short_later_says_so(opened):
    source, index = opened("tar")
    with source.path.open("r+b") as file:
        file.truncate(3000)
    last = int(np.argmax(index.pairs["jpeg_at"]))
    with pytest.raises(SourceError, match=r"sa_000007\.tar: has changed since the dataset"):
        index.read(last, "jpeg")
    unnoticed = replace(index, stamp=(3000, source.path.stat().st_mtime_ns))
    with pytest.raises(SourceTruncated, match=r"sa_000007\.tar: ends \d+ bytes before"):
        unnoticed.read(last, "jpeg")


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
