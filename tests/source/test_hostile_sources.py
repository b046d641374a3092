"""Malicious tars and folders: each is refused, rejected or skipped within bounded memory."""

import gzip
import os
import tarfile
from collections import Counter

import pytest
from small_tars import entry, tar_bytes
from system import peak_growth

from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated
from sa1bpack.source import inflate as inflate_module
from sa1bpack.source import pairs as pairs_module
from sa1bpack.source.find import MAX_LIST_BYTES, open_source, read_md5sums
from sa1bpack.source.inflate import open_stream
from sa1bpack.source.pairs import PairReader
from sa1bpack.source.tar import MAX_EXTENDED_HEADER, MAX_PATH_BYTES

MIB = 1 << 20
GOOD = [("./sa_7.jpg", b"jpeg"), ("./sa_7.json", b"json")]
READ = """
from pathlib import Path
path = Path(sys.argv[1])
with PairReader(open_source(path), spool_dir=path.parent) as reader:
    assert [(pair.name, pair.jpeg) for pair in reader] == [("sa_7", b"jpeg")]
assert sum(len(repr(reject)) for reject in reader.rejects) < 1 << 20
assert len(reader.rejects) == int(sys.argv[2]), reader.rejects[:3]
assert {reject.code for reject in reader.rejects} <= {sys.argv[3]}
"""
IMPORTS = """sa1bpack.source.pairs
from sa1bpack.source.find import open_source
from sa1bpack.source.pairs import PairReader
"""


def header(*given, **fields) -> bytes:
    """One header block of the GNU format."""
    return entry(*given, **fields).tobuf(tarfile.GNU_FORMAT)


def read(path):
    """(pairs, reader) of a complete source."""
    with PairReader(open_source(path), spool_dir=path.parent) as reader:
        return list(reader), reader


def growth(path, rejects=0, code="") -> int:
    """MiB needed to read the source, which must yield the good pair and this many rejects."""
    return peak_growth(READ, path, rejects, code, imports=IMPORTS)


@pytest.mark.parametrize(
    ("name", "gigabytes", "rejects", "code"),
    [
        ("./sa_1.jpg", 2, 1, "too-large"),
        ("./sa_1.json", 1, 1, "too-large"),
        ("./zeros.bin", 1, 0, ""),
    ],
)
def test_a_gzip_bomb_is_rejected_or_skipped_unread(write, name, gigabytes, rejects, code):
    """9 MB that inflate to 2 GB: gzip members of zeros, within one member of the tar."""
    zeros = gzip.compress(bytes(64 * MIB), 1)
    data = gzip.compress(header(name, size=gigabytes << 30)) + zeros * 16 * gigabytes
    path = write(data + gzip.compress(tar_bytes(GOOD)))
    assert path.stat().st_size < 5 * MIB * gigabytes
    assert growth(path, rejects, code) < 64


def test_a_member_that_claims_1_tb_allocates_nothing(write):
    size = 1 << 40
    path = write(header("./sa_1.jpg", size=size) + bytes(5000))
    reader = PairReader(open_source(path), spool_dir=path.parent)
    with reader, pytest.raises(SourceTruncated, match="within a member's data"):
        list(reader)
    assert [reject.code for reject in reader.rejects] == ["too-large"]
    assert f"{size} bytes" in reader.rejects[0].detail


@pytest.mark.parametrize("type", [b"x", b"g", tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_an_extended_header_of_a_gigabyte_is_corrupt(write, type):
    path = write(header("x", type, 1 << 30) + bytes(1024))
    with pytest.raises(SourceCorrupt, match=f"claims 1073741824 bytes.* {MAX_EXTENDED_HEADER}"):
        read(path)


def long_name(name: bytes, kind: str) -> bytes:
    """The header or headers that give the next member this name."""
    if kind == "gnu":
        return header("long", tarfile.GNUTYPE_LONGNAME, len(name)) + padded(name)
    length = len(name) + 7
    while len(str(length)) + len(name) + 7 != length:
        length = len(str(length)) + len(name) + 7
    record = b"%d path=%s\n" % (length, name)
    return header("long", b"x", len(record)) + padded(record)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_a_path_of_a_megabyte_is_a_reject_with_a_short_name(write, kind):
    name = b"d/" * 500_000 + b"sa_1.jpg"
    path = write(long_name(name, kind) + header("x", size=3) + padded(b"abc") + tar_bytes(GOOD))
    pairs, reader = read(path)
    assert [pair.name for pair in pairs] == ["sa_7"]
    (reject,) = reader.rejects
    assert (reject.code, reject.member[-8:]) == ("bad-name", "sa_1.jpg")
    assert f"{len(name)} bytes, over {MAX_PATH_BYTES}" in reject.detail
    assert len(reject.member) < 100


def test_a_source_with_too_many_rejects_is_an_error(write, monkeypatch):
    monkeypatch.setattr(pairs_module, "MAX_REJECTS", 3)
    members = [(f"../sa_{number}.jpg", b"") for number in range(4)]
    assert len(read(write(tar_bytes(members[:3])))[1].rejects) == 3
    with pytest.raises(SourceError, match=r"more than 3 members .*'\.\./sa_3.jpg': bad-name"):
        read(write(tar_bytes(members)))


def test_waiting_halves_cannot_fill_the_disk(write, monkeypatch):
    monkeypatch.setattr(pairs_module, "WAITING_ALWAYS", 10 * MIB)
    data = tar_bytes([(f"./sa_{number}.jpg", bytes(MIB)) for number in range(20)])
    assert len(read(write(data))[1].rejects) == 20  # as large as the file itself: all may wait
    with pytest.raises(
        SourceCorrupt, match=r"11 members wait for their other half, the last one './sa_10.jpg'"
    ):
        read(write(gzip.compress(data, 1)))


def test_a_file_of_many_tiny_gzip_members_is_copied_about_once(write, monkeypatch):
    """The library copies what follows a member: with complete chunks, 25,000 times the file."""
    fed = []
    make = inflate_module.zlib_ng.decompressobj

    class Counting:
        def __init__(self, *arguments):
            self._inflater = make(*arguments)

        def decompress(self, data, limit):
            fed.append(len(data))
            return self._inflater.decompress(data, limit)

        def __getattr__(self, name):
            return getattr(self._inflater, name)

    monkeypatch.setattr(inflate_module.zlib_ng, "decompressobj", Counting)
    path = write(gzip.compress(b"") * 20_000 + gzip.compress(bytes(MIB)))
    stream = open_stream(path, gzip=True)
    assert stream.skip(1 << 40) == MIB
    stream.close()
    assert len(fed) >= 20_001 and max(fed) <= 4096 * 8
    assert sum(fed) <= 4096 * (20_000 + 2)


def test_links_and_special_files_in_a_folder_neither_hang_nor_escape_it(tmp_path):
    """Loops of links to files and to folders, /dev/zero under a member's name, a pipe."""
    folder = tmp_path / "sa_000000"
    (folder / "deep").mkdir(parents=True)
    for name, data in GOOD:
        (folder / name).write_bytes(data)
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "sa_1.jpg").symlink_to("sa_2.jpg")
    (folder / "sa_2.jpg").symlink_to("sa_1.jpg")
    (folder / "sa_3.jpg").symlink_to("/dev/zero")
    (folder / "sa_4.json").symlink_to(tmp_path)
    os.mkfifo(folder / "sa_6.jpg")
    (tmp_path / "blob").write_bytes(b"jpeg")
    (folder / "sa_7.jpg").unlink()
    (folder / "sa_7.jpg").symlink_to(tmp_path / "blob")  # followed
    (folder / "a\x1b[2Jb").mkdir()
    (folder / "a\x1b[2Jb" / "sa_5.jpg").write_bytes(b"")
    pairs, reader = read(folder)
    assert [pair.name for pair in pairs] == ["sa_7"]
    codes = Counter((reject.member, reject.code) for reject in reader.rejects)
    assert codes == Counter(
        [(f"sa_{number}.jpg", "not-a-file") for number in (1, 2, 3, 6)]
        + [("a\\x1b[2Jb/sa_5.jpg", "bad-name")]
    )


def test_a_huge_file_is_not_read_to_its_end_as_a_list_of_md5_sums(tmp_path):
    path = tmp_path / "list"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a single hole
    with pytest.raises(SourceError, match=f"more than {MAX_LIST_BYTES} bytes"):
        read_md5sums(path)
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(SourceError, match="line 1") as caught:
        read_md5sums(path)
    assert len(str(caught.value)) < 500
