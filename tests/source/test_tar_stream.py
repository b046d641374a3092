"""Claims about walking a tar, compared with the standard library's tarfile."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import SourceCorrupt, SourceTruncated
from sa1bpack.source import tar as tar_module
from sa1bpack.source.inflate import open_stream
from sa1bpack.source.tar import TarStream, parse_pax

GNU, PAX, USTAR = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT


def walk(path, skip=lambda member: False):
    """[(name, kind, data or None)] of a plain tar."""
    stream = TarStream(open_stream(path, gzip=False))
    try:
        return [
            (m.name, m.kind, None if m.kind != "file" or skip(m) else stream.read()) for m in stream
        ]
    finally:
        stream.stream.close()


def special_tar(*infos, format=GNU):
    """A tar of the given TarInfo objects, each followed by a file `after_<n>`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for number, info in enumerate(infos):
            tar.addfile(info, io.BytesIO(bytes(info.size)))
            after = tarfile.TarInfo(f"after_{number}")
            after.size = 3
            tar.addfile(after, io.BytesIO(b"abc"))
    return buffer.getvalue()


def info(name, type=tarfile.REGTYPE, size=0, **fields):
    """A TarInfo."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = type, size
    for key, value in fields.items():
        setattr(entry, key, value)
    return entry


def patched(data, start, field):
    """The tar with a field of its first header replaced and the checksum corrected."""
    header = bytearray(data[:512])
    header[start : start + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


NAMES = st.text(st.sampled_from("aé雪_./"), min_size=1, max_size=260).map(
    lambda text: f"f{text}/sa_1.jpg".replace("//", "/x/").replace("//", "/y/")
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    members=st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=5),
    format=st.sampled_from([GNU, PAX]),
    skips=st.integers(0, 31),
)
def test_names_and_data_are_those_of_tarfile(tmp_path_factory, make_tar, members, format, skips):
    data = make_tar(members, format)
    path = tmp_path_factory.mktemp("walk") / "file.tar"
    path.write_bytes(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as reference:
        expected = [(m.name, reference.extractfile(m).read()) for m in reference]
    numbers = iter(range(len(members)))
    found = walk(path, skip=lambda member: skips >> next(numbers) & 1)
    assert [name for name, _, _ in found] == [name for name, _ in expected]
    for number, ((_, kind, got), (_, wanted)) in enumerate(zip(found, expected, strict=True)):
        assert kind == "file"
        assert got == (None if skips >> number & 1 else wanted)


def test_ustar_prefixes_are_joined(make_tar, write):
    name = "d" * 120 + "/sa_1.jpg"
    assert walk(write(make_tar([(name, b"x")], USTAR))) == [(name, "file", b"x")]


@pytest.mark.parametrize("format", [GNU, PAX, USTAR])
def test_members_that_are_not_files_are_reported_and_skipped(write, format):
    entries = [
        info("a", tarfile.SYMTYPE, linkname="/etc/passwd"),
        info("b", tarfile.LNKTYPE, linkname="a"),
        info("c", tarfile.CHRTYPE),
        info("d", tarfile.FIFOTYPE),
        info("e", tarfile.DIRTYPE),
        info("f", b"Q", size=700),
    ]
    found = walk(write(special_tar(*entries, format=format)))
    kinds = [kind for name, kind, _ in found if not name.startswith("after")]
    assert kinds == ["link", "link", "special", "special", "directory", "special"]
    assert [data for name, _, data in found if name.startswith("after")] == [b"abc"] * 6


def test_a_link_has_no_data_whatever_its_size_field_says(write):
    data = special_tar(info("a", tarfile.SYMTYPE))
    path = write(patched(data, 124, b"00000001000\0"))
    assert walk(path) == [("a", "link", None), ("after_0", "file", b"abc")]


def test_an_old_style_directory_is_a_name_that_ends_in_a_slash(write):
    data = patched(special_tar(info("d", tarfile.AREGTYPE)), 0, b"d/")
    assert walk(write(data))[0] == ("d/", "directory", None)


def test_sparse_files_are_skipped_unless_they_have_a_map_of_their_own(write):
    data = special_tar(info("s", tarfile.GNUTYPE_SPARSE, size=512))
    assert walk(write(data)) == [("s", "sparse", None), ("after_0", "file", b"abc")]
    with pytest.raises(SourceCorrupt, match="without --sparse"):
        walk(write(patched(data[:512], 482, b"\1") + data[512:]))


def test_pax_sparse_files_are_skipped(write):
    entry = info("s", size=512, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
    found = walk(write(special_tar(entry, format=PAX)))
    assert found == [("s", "sparse", None), ("after_0", "file", b"abc")]


def test_pax_headers_for_all_members_are_not_used(write):
    record, own = b"13 path=both\n", b"12 path=own\n"
    data = info("g", b"g", size=len(record)).tobuf(USTAR) + record.ljust(512, b"\0")
    data += info("first").tobuf(USTAR)
    data += info("x", b"x", size=len(own)).tobuf(USTAR) + own.ljust(512, b"\0")
    data += info("second").tobuf(USTAR) + bytes(1024)
    assert [name for name, _, _ in walk(write(data))] == ["first", "own"]


def test_pax_sizes_replace_the_size_in_the_header(write):
    pax = b"%d size=3\n" % 9
    header = info("pax", b"x", size=len(pax)).tobuf(USTAR)
    member = patched(info("sa_1.jpg").tobuf(USTAR), 124, b"00000000000\0")
    data = header + pax.ljust(512, b"\0") + member + b"abc".ljust(512, b"\0") + bytes(1024)
    assert walk(write(data)) == [("sa_1.jpg", "file", b"abc")]


def test_a_tar_without_end_mark_is_truncated_even_between_members(make_tar, write):
    data = make_tar([("sa_1.jpg", b"x")])
    with pytest.raises(SourceTruncated, match="without the blocks of zeros"):
        walk(write(data[:1024]))
    assert walk(write(data[: 1024 + 512])) == [("sa_1.jpg", "file", b"x")]


@pytest.mark.parametrize(
    ("length", "place"),
    [(300, "within a header"), (700, "within a member's data"), (1023, "within a member's data")],
)
def test_a_tar_that_ends_within_a_member_is_truncated(make_tar, write, length, place):
    with pytest.raises(SourceTruncated, match=f"{place}, at byte {length} of the tar"):
        walk(write(make_tar([("sa_1.jpg", b"x" * 400)])[:length]))


def test_an_extended_header_without_member_is_truncated(make_tar, write):
    data = make_tar([("d" * 300, b"")])
    with pytest.raises(SourceTruncated, match="whose member is missing"):
        walk(write(data[:1024]))
    with pytest.raises(SourceTruncated, match="whose member is missing"):
        walk(write(data[:1024] + bytes(1024)))
    with pytest.raises(SourceTruncated, match="within an extended header"):
        walk(write(data[:900]))


def test_a_second_archive_after_the_end_mark_is_read(make_tar, write):
    data = make_tar([("sa_1.jpg", b"x")]) + make_tar([("sa_2.jpg", b"y")])
    assert [name for name, _, _ in walk(write(data))] == ["sa_1.jpg", "sa_2.jpg"]


def test_other_bytes_after_the_end_mark_are_corrupt(make_tar, write):
    with pytest.raises(SourceCorrupt, match="checksum"):
        walk(write(make_tar([("sa_1.jpg", b"x")]) + b"G" * 512))


def test_a_long_tail_of_zeros_is_an_incomplete_download(make_tar, write, monkeypatch):
    monkeypatch.setattr(tar_module, "MAX_ZERO_TAIL", 20_000)
    data = make_tar([("sa_1.jpg", b"x")])
    assert len(walk(write(data + bytes(8000)))) == 1
    with pytest.raises(SourceTruncated, match="allocated but not completed"):
        walk(write(data + bytes(30_000)))


@pytest.mark.parametrize("place", [0, 110, 130, 148, 156, 300, 511])
def test_a_flipped_bit_in_a_header_is_corrupt(make_tar, write, place):
    data = bytearray(make_tar([("sa_1.jpg", b"x"), ("sa_1.json", b"y")]))
    data[1024 + place] ^= 1
    with pytest.raises(SourceCorrupt, match=r"at byte 1536 of the tar.*md5"):
        walk(write(bytes(data)))


@pytest.mark.parametrize(
    "size", [b"0000000x000\0", b"-0000000001\0", b"00000000_10\0", b"9\0", b"\xff" * 12]
)
def test_a_size_that_is_not_a_number_is_corrupt(make_tar, write, size):
    with pytest.raises(SourceCorrupt, match="which is not an octal number"):
        walk(write(patched(make_tar([("sa_1.jpg", b"x")]), 124, size)))


@pytest.mark.parametrize(
    "data", [b"x", b"8 k=ab\n", b"7 k=abc\n", b"0 k=a\n", b"99 k=a\n", b"6 kab\n", b"-6 k=\n"]
)
def test_malformed_pax_records_are_corrupt(data):
    with pytest.raises(ValueError, match="the pax record"):
        parse_pax(data)
