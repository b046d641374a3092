"""Claims about walking a tar, compared with the standard library's tarfile."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import entry, tar_bytes

from sa1bpack.errors import SourceCorrupt, SourceTruncated
from sa1bpack.source.inflate import open_stream
from sa1bpack.source.tar import TarStream, parse_header

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
            tar.addfile(entry(f"after_{number}", size=3), io.BytesIO(b"abc"))
    return buffer.getvalue()


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
def test_names_and_data_are_those_of_tarfile(tmp_path_factory, members, format, skips):
    data = tar_bytes(members, format)
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


@pytest.mark.parametrize("format", [GNU, PAX, USTAR])
def test_members_that_are_not_files_are_reported_and_skipped(write, format):
    entries = [
        entry("a", tarfile.SYMTYPE, linkname="/etc/passwd"),
        entry("b", tarfile.LNKTYPE, linkname="a"),
        entry("c", tarfile.CHRTYPE),
        entry("d", tarfile.FIFOTYPE),
        entry("e", tarfile.DIRTYPE),
        entry("f", b"Q", size=700),
    ]
    found = walk(write(special_tar(*entries, format=format)))
    kinds = [kind for name, kind, _ in found if not name.startswith("after")]
    assert kinds == ["link", "link", "special", "special", "directory", "special"]
    assert [data for name, _, data in found if name.startswith("after")] == [b"abc"] * 6


def test_a_name_for_all_members_holds_for_those_without_their_own_as_in_tarfile(write):
    every, own = b"13 path=both\n13 comment=x\n", b"12 path=own\n"
    data = entry("g", b"g", size=len(every)).tobuf(USTAR) + every.ljust(512, b"\0")
    data += entry("first", size=3).tobuf(USTAR) + b"abc".ljust(512, b"\0")
    data += entry("x", b"x", size=len(own)).tobuf(USTAR) + own.ljust(512, b"\0")
    data += entry("second", size=3).tobuf(USTAR) + b"def".ljust(512, b"\0") + bytes(1024)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(info.name, "file", tar.extractfile(info).read()) for info in tar]
    assert walk(write(data)) == expected == [("both", "file", b"abc"), ("own", "file", b"def")]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    fields=st.binary(min_size=60, max_size=60),
    place=st.sampled_from([0, 100, 136, 265, 345]),
    kind=st.sampled_from(["unsigned", "signed", "neither"]),
)
def test_a_checksum_of_signed_or_unsigned_bytes_is_accepted_as_tarfile_accepts_it(
    fields, place, kind
):
    header = bytearray(entry("sa_1.jpg", size=3).tobuf(USTAR))
    if place in (0, 345):
        fields = fields.replace(b"\0", b"a").replace(b"/", b"b")
    if place in (100, 136):  # numbers that nobody uses: mode, time
        fields = fields[:12] if place == 136 else fields[:8]
    header[place : place + len(fields)] = fields
    header[148:156] = b" " * 8
    total = sum(header)
    if kind == "signed":
        total = sum(byte - 256 if byte > 127 else byte for byte in header)
    if kind == "neither":
        total += 1
    if total < 0:  # no octal number
        return
    header[148:156] = b"%06o\0 " % total
    if total in tarfile.calc_chksums(bytes(header)):
        _, size, type_byte = parse_header(bytes(header))
        assert (size, type_byte) == (3, b"0")
    else:
        with pytest.raises(ValueError, match="its bytes sum to"):
            parse_header(bytes(header))


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_map_of_a_sparse_member_is_passed_over(write, blocks):
    header = patched(SPARSE, 482, b"\1")[:512]
    chain = b""
    for left in reversed(range(blocks)):
        block = bytearray(512)
        block[504] = left > 0
        chain += bytes(block)
    data = header + chain + SPARSE[512:]
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [info.name for info in tar] == ["s", "after_0"]
    assert walk(write(data)) == [("s", "sparse", None), AFTER]
    with pytest.raises(SourceTruncated, match="within the map of a sparse file"):
        walk(write(data[: 512 * blocks + 100]))


AFTER = ("after_0", "file", b"abc")
ONE, LONG = tar_bytes([("sa_1.jpg", b"x" * 400)]), tar_bytes([("d" * 300, b"")])
SPARSE = special_tar(entry("s", tarfile.GNUTYPE_SPARSE, 512))
PAX_SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
WALKS = {
    "a prefix of ustar": (
        tar_bytes([(f"{'d' * 120}/a.jpg", b"x")], USTAR), [(f"{'d' * 120}/a.jpg", "file", b"x")],
    ),
    "a link, whatever its size field says": (
        patched(special_tar(entry("a", tarfile.SYMTYPE)), 124, b"00000001000\0"),
        [("a", "link", None), AFTER],
    ),
    "an old-style directory, whose name ends in a slash": (
        patched(special_tar(entry("d", tarfile.AREGTYPE)), 0, b"d/"),
        [("d/", "directory", None), AFTER],
    ),
    "a sparse file": (SPARSE, [("s", "sparse", None), AFTER]),
    "a sparse file of pax": (
        special_tar(entry("s", size=512, pax_headers=PAX_SPARSE), format=PAX),
        [("s", "sparse", None), AFTER],
    ),
    "a size of pax, in place of that in the header": (
        entry("pax", b"x", 9).tobuf(USTAR) + b"9 size=3\n".ljust(512, b"\0")
        + entry("sa_1.jpg").tobuf(USTAR) + b"abc".ljust(512, b"\0") + bytes(1024),
        [("sa_1.jpg", "file", b"abc")],
    ),
    "an end mark of one block": (ONE[: 1024 + 512], [("sa_1.jpg", "file", b"x" * 400)]),
    "a second archive after the end mark": (
        ONE + tar_bytes([("sa_2.jpg", b"y")]),
        [("sa_1.jpg", "file", b"x" * 400), ("sa_2.jpg", "file", b"y")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "found"), WALKS.values(), ids=WALKS)
def test_every_kind_of_member_is_read_as_what_it_is(write, data, found):
    assert walk(write(data)) == found


BROKEN = {
    "no end mark": (ONE[:1024], SourceTruncated, "without the blocks of zeros"),
    "300 bytes": (ONE[:300], SourceTruncated, "within a header, at byte 300 of the tar"),
    "700 bytes": (ONE[:700], SourceTruncated, "within a member's data, at byte 700 of the tar"),
    "1023 bytes": (ONE[:1023], SourceTruncated, "within a member's data, at byte 1023 of the tar"),
    "an extended header without its member": (LONG[:1024], SourceTruncated, "member is missing"),
    "one before the end mark": (LONG[:1024] + bytes(1024), SourceTruncated, "member is missing"),
    "an extended header in part": (LONG[:900], SourceTruncated, "within an extended header"),
    "bytes after the end mark": (ONE + b"G" * 512, SourceCorrupt, "checksum"),
}  # fmt: skip
for size in (b"0000000x000\0", b"-0000000001\0", b"00000000_10\0", b"9\0", b"\xff" * 12):
    BROKEN[f"size {size}"] = patched(ONE, 124, size), SourceCorrupt, "which is not an octal number"


@pytest.mark.parametrize(("data", "error", "message"), BROKEN.values(), ids=BROKEN)
def test_what_ends_too_soon_is_truncated_and_what_cannot_be_is_corrupt(write, data, error, message):
    with pytest.raises(error, match=message):
        walk(write(data))


def test_a_long_tail_of_zeros_is_an_incomplete_download(write):
    assert len(walk(write(ONE + bytes(15 << 20)))) == 1
    with pytest.raises(SourceTruncated, match="allocated but not completed"):
        walk(write(ONE + bytes(17 << 20)))


@pytest.mark.parametrize("place", [0, 110, 130, 148, 156, 300, 511])
def test_a_flipped_bit_in_a_header_is_corrupt(write, place):
    data = bytearray(tar_bytes([("sa_1.jpg", b"x"), ("sa_1.json", b"y")]))
    data[1024 + place] ^= 1
    with pytest.raises(SourceCorrupt, match=r"at byte 1536 of the tar.*md5"):
        walk(write(bytes(data)))


@pytest.mark.parametrize(
    "data", [b"x", b"8 k=ab\n", b"7 k=abc\n", b"0 k=a\n", b"99 k=a\n", b"6 kab\n", b"-6 k=\n"]
)
def test_malformed_pax_records_are_corrupt(write, data):
    header = entry("pax", b"x", len(data)).tobuf(USTAR)
    with pytest.raises(SourceCorrupt, match="the pax record"):
        walk(write(header + data.ljust(512, b"\0") + ONE))
