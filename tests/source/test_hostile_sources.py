"""Malicious tars and folders: each is refused, rejected or skipped within bounded memory."""

import gzip
import os
import tarfile
from collections import Counter

import pytest
from small_tars import SMALL, entry, members, tar_bytes, write_tar
from system import peak_growth
from zlib_ng import zlib_ng

from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated
from sa1bpack.source import pairs

MIB = 1 << 20
GOOD = [*members([7]).items()]
# The arguments are a sound tar, which is packed first, the tar, and a folder for the packs.
IMPORTS = f"""sa1bpack
options = {{**{SMALL}, "workers": 1}}
sa1bpack.pack(sys.argv[1], sys.argv[3] + "/sound", **options)
"""
PACK = """
result = sa1bpack.pack(sys.argv[2], sys.argv[3] + "/pack", **options)
assert (result.images, result.rejects) == (1, int(sys.argv[4])), result
"""


def header(*given, **fields) -> bytes:
    """One header block of the GNU format."""
    return entry(*given, **fields).tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("name", "gigabytes", "rejects"),
    [("./sa_1.jpg", 2, 1), ("./sa_1.json", 1, 1), ("./zeros.bin", 1, 0)],
)
def test_a_gzip_bomb_is_rejected_or_skipped_unread(write, tmp_path, name, gigabytes, rejects):
    """9 MB that inflate to 2 GB: gzip members of zeros, within one member of the tar."""
    zeros = gzip.compress(bytes(64 * MIB), 1)
    data = gzip.compress(header(name, size=gigabytes << 30)) + zeros * 16 * gigabytes
    path = write(data + gzip.compress(tar_bytes(GOOD)))
    assert path.stat().st_size < 5 * MIB * gigabytes
    sound = write_tar(tmp_path / "sound.tar", members([1]))
    assert peak_growth(PACK, sound, path, tmp_path, rejects, imports=IMPORTS) < 64


def test_a_member_that_claims_1_tb_allocates_nothing(write, read):
    path = write(header("./sa_1.jpg", size=1 << 40) + bytes(5000))
    with pytest.raises(SourceTruncated, match="within a member's data"):
        read(path)


@pytest.mark.parametrize("type", [b"x", b"g", tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_an_extended_header_of_a_gigabyte_is_corrupt(write, read, type):
    path = write(header("x", type, 1 << 30) + bytes(1024))
    with pytest.raises(SourceCorrupt, match=r"claims 1073741824 bytes.* 1048576"):
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
def test_a_path_of_a_megabyte_is_a_reject_with_a_short_name(write, read, kind):
    name = b"d/" * 500_000 + b"sa_1.jpg"
    path = write(long_name(name, kind) + header("x", size=3) + padded(b"abc") + tar_bytes(GOOD))
    _, ids, (reject,) = read(path)
    assert ids == [7]
    assert (reject["reason"], reject["member"][-8:]) == ("bad-name", "sa_1.jpg")
    assert f"{len(name)} bytes, over 512" in reject["detail"]
    assert len(reject["member"]) < 100


def test_a_source_with_too_many_rejects_is_an_error(write, read):
    path = write(header("sa_1.jpg") * 100_002)
    with pytest.raises(SourceError, match=r"more than 100000 members .*'sa_1.jpg': duplicate"):
        read(path)


def test_waiting_halves_cannot_fill_the_disk(write, read, monkeypatch):
    monkeypatch.setattr(pairs, "WAITING_ALWAYS", 10 * MIB)
    data = tar_bytes([(f"./sa_{number}.jpg", bytes(MIB)) for number in range(20)])
    assert len(read(write(data))[2]) == 20  # as large as the file itself: all may wait
    with pytest.raises(
        SourceCorrupt, match=r"11 members wait for their other half, the last one './sa_10.jpg'"
    ):
        read(write(gzip.compress(data, 1)))


def test_a_file_of_many_tiny_gzip_members_is_copied_about_once(write, read, monkeypatch):
    """The library copies what follows a member: with complete chunks, 25,000 times the file."""
    fed = []
    make = zlib_ng.decompressobj

    class Counting:
        def __init__(self, *arguments):
            self._inflater = make(*arguments)

        def decompress(self, data, limit):
            fed.append(len(data))
            return self._inflater.decompress(data, limit)

        def __getattr__(self, name):
            return getattr(self._inflater, name)

    monkeypatch.setattr(zlib_ng, "decompressobj", Counting)
    source = write(gzip.compress(b"") * 20_000 + gzip.compress(bytes(MIB)))
    read(source, records="sa1b")  # which need not be found out
    assert len(fed) >= 20_001 and max(fed) <= 4096 * 8
    assert sum(fed) <= 4096 * (20_000 + 2)


def test_links_and_special_files_in_a_folder_neither_hang_nor_escape_it(tmp_path, read):
    """Loops of links to files and to folders, /dev/zero under a member's name, a pipe."""
    folder = tmp_path / "sa_000000"
    (folder / "deep").mkdir(parents=True)
    for name, data in GOOD:
        (folder / name).write_bytes(data)
    photo = (folder / "sa_7.jpg").rename(tmp_path / "blob")
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "sa_1.jpg").symlink_to("sa_2.jpg")
    (folder / "sa_2.jpg").symlink_to("sa_1.jpg")
    (folder / "sa_3.jpg").symlink_to("/dev/zero")
    (folder / "sa_4.json").symlink_to(tmp_path)
    os.mkfifo(folder / "sa_6.jpg")
    (folder / "sa_7.jpg").symlink_to(photo)  # followed
    (folder / "a\x1b[2Jb").mkdir()
    (folder / "a\x1b[2Jb" / "sa_5.jpg").write_bytes(b"")
    _, ids, rejects = read(folder)
    assert ids == [7]
    codes = Counter((reject["member"], reject["reason"]) for reject in rejects)
    assert codes == Counter(
        [(f"sa_{number}.jpg", "not-a-file") for number in (1, 2, 3, 6)]
        + [("a\\x1b[2Jb/sa_5.jpg", "bad-name")]
    )


def test_a_huge_file_is_not_read_to_its_end_as_a_list_of_md5_sums(tmp_path, sample_tar, read):
    path = tmp_path / "list"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a single hole
    with pytest.raises(SourceError, match="more than 67108864 bytes"):
        read(sample_tar, md5sums=path)
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(SourceError, match="line 1") as caught:
        read(sample_tar, md5sums=path)
    assert len(str(caught.value)) < 500
