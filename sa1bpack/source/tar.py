"""The members of a tar stream, walked in one pass, and checks of their names.

Headers follow POSIX.1-1988 (ustar), POSIX.1-2001 (pax) and GNU tar
(https://www.gnu.org/software/tar/manual/html_node/Standard.html). Only the data of regular files
is read; links, devices and sparse files are reported and skipped, never followed.

A tar ends with two blocks of zeros. One is accepted as proof that no member is missing. A tar that
ends without any is SourceTruncated, even between two members, where tarfile and GNU tar see nothing
wrong: that is what a killed writer leaves. The end mark may be followed by zeros or by another
archive (`cat a.tar b.tar`), which is read as well; other bytes are SourceCorrupt.

Nothing is ever written under a member's name, and only its last part counts for pairing. Names are
checked nevertheless, because they appear in journals and reports.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated
from sa1bpack.signatures import ZEROS, format_of, name_remedy, quoted
from sa1bpack.source.inflate import ByteStream, GzipStream, remedy
from sa1bpack.wording import brief

BLOCK = 512
MAX_EXTENDED_HEADER = 1 << 20  # bytes of a pax header or a GNU long name
MAX_ZERO_TAIL = 16 << 20  # zeros after the end mark; GNU tar pads to 10 KiB by default
_ZEROS = bytes(BLOCK)

MAX_NAME_BYTES = 64  # of `sa_5.jpg` in UTF-8: the space that a shard reserves
MAX_PATH_BYTES = 512  # of a member with its folders; longer paths are shortened

MemberKind = Literal["file", "directory", "link", "special", "sparse"]
Half = Literal["jpeg", "json"]
# Endings of names, in lower case. Those of images say which members are read as one; what a member
# is, its bytes say.
_JPEGS = ("jpg", "jpeg")
IMAGE_ENDINGS = (*_JPEGS, "png", "webp", "tif", "tiff", "bmp", "gif")
_HALVES: dict[str, Half] = {**dict.fromkeys(IMAGE_ENDINGS, "jpeg"), "json": "json"}
_CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f]")


_KINDS: dict[bytes, MemberKind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"5": "directory",
    b"1": "link",
    b"2": "link",
    b"S": "sparse",
}
# Types 1 to 6 have no data, whatever their size field says, as in tarfile.
_WITHOUT_DATA = frozenset(b"123456")
_PAX_LOCAL = (b"x", b"X")
_PAX_GLOBAL = b"g"  # for all members that follow
# The records for all members that are used; others are not kept, however many a tar has.
_PAX_FOR_ALL = {b"path", b"size"}
_GNU_LONG_NAME = b"L"
_GNU_LONG_LINK = b"K"
_GNU_SPARSE = b"S"
# Bytes of a sparse header, and of a block of its map, that say whether another block follows.
_SPARSE_HEADER_EXTENDED = 482
_SPARSE_BLOCK_EXTENDED = 504
_PAX_SPARSE = b"GNU.sparse."  # prefix of the keys of all records about sparse files


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a tar or one file of a folder.

    `name` is the full path as stored, with undecodable bytes and control characters as `\\xNN`; if
    it is longer than `MAX_PATH_BYTES`, its end. `size` is the number of data bytes. `problem` says
    why the name cannot be trusted, or is empty.
    """

    name: str
    size: int
    kind: MemberKind
    problem: str = ""


def split_name(name: str) -> tuple[str, Half | None]:
    """The parts of a name: `./sa_5.jpg` → ('sa_5', 'jpeg'); the half is None for a foreign member.

    The half is "jpeg" for images of all formats. The extension may be in any case. Hidden files
    (`._sa_5.jpg` of macOS) are foreign.
    """
    base = name.rsplit("/", 1)[-1]
    stem, _, extension = base.rpartition(".")
    if not stem or base.startswith("."):
        return base, None
    return stem, _HALVES.get(extension.lower())


def is_image(name: str) -> bool:
    """True for a name of an image."""
    return split_name(name)[1] == "jpeg"


def is_other_image(name: str) -> bool:
    """True for a name of an image in another format than JPEG."""
    return is_image(name) and not name.lower().endswith(_JPEGS)


def is_plain_name(name: str) -> bool:
    """True for a name that `decode_name` would make of its bytes, without a problem."""
    return (
        name.isascii()
        and name.isprintable()
        and len(name) <= MAX_PATH_BYTES
        and ".." not in name
        and not name.startswith("/")
    )


def decode_name(raw: bytes) -> tuple[str, str]:
    """A stored name as (text, problem). The text is of bounded length and safe to print."""
    if len(raw) > MAX_PATH_BYTES:
        end = raw[-MAX_NAME_BYTES:].decode("utf-8", "backslashreplace")
        return f"...{_escaped(end)}", f"the path has {len(raw)} bytes, over {MAX_PATH_BYTES}"
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        return _escaped(raw.decode("utf-8", "backslashreplace")), "the name is not UTF-8"
    if "\0" in name:
        return _escaped(name), "the name contains a NUL byte"
    if _CONTROL.search(name):
        return _escaped(name), "the name contains a control character"
    if name.startswith("/"):
        return name, "the name is an absolute path"
    if ".." in name.split("/"):
        return name, "the name contains '..'"
    return name, ""


def _escaped(name: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", name)


class TarStream:
    """The members of a tar; `read` returns the data of the current one, otherwise it is skipped.

    `stream` has the bytes of the tar, and is closed by the caller.

    Raises SourceTruncated if the stream ends too early and SourceCorrupt if a header is wrong; both
    name the file and the place; SourceError if it is no tar at all.
    """

    def __init__(self, stream: ByteStream):
        self.stream = stream
        self._path = stream.path
        self._unread = 0  # data and padding of the current member
        self._data_size = 0
        self._global_records: dict[bytes, bytes] = {}  # of pax, for all members that follow

    def __iter__(self) -> Iterator[Member]:
        self._check_beginning()
        while (header := self._next_header()) is not None:
            try:
                member = self._member(header)
            except ValueError as error:
                raise SourceCorrupt(
                    f"{self._path}: {error}, {self.stream.where()}; {remedy(self._path)}"
                ) from None
            yield member
            unread = self._unread
            self._unread = 0
            if self.stream.skip(unread) < unread:
                raise self._truncated("within a member's data")

    def _check_beginning(self) -> None:
        """Raise SourceError if a gzip stream holds another kind of file, as its beginning says."""
        if not isinstance(self.stream, GzipStream):  # the kind of a plain file is known
            return
        head = self.stream.peek(BLOCK)
        with suppress(ValueError):
            parse_header(head.ljust(BLOCK, b"\0"))
            return
        known = format_of(head)
        if known in (None, ZEROS):  # zeros are the end of a tar, of one without members here
            return
        text = known.remedy_for(PurePath("NEW"))
        if "{file}" in known.remedy or "FOLDER" in known.remedy:
            text = f"inflate it, `gunzip -c {quoted(self._path)} > NEW`; then {text}"
        raise SourceError(
            f"{self._path}: its gzip stream holds {known.name}, where a tar is expected; "
            f"{name_remedy(self._path) or text}"
        )

    def read(self) -> bytes:
        """All data of the current member; may be called once."""
        size = self._data_size
        data = self.stream.read(size)
        self._unread -= len(data)
        if len(data) < size:
            raise self._truncated("within a member's data")
        return data

    def _member(self, header: bytes) -> Member:
        """The member that starts with this header. Raises ValueError if that is wrong."""
        pax: dict[bytes, bytes] = {}
        long_name = None
        while True:
            raw_name, size, kind_byte = parse_header(header)
            if kind_byte in _PAX_LOCAL:
                pax |= parse_pax(self._extended(size))
            elif kind_byte == _GNU_LONG_NAME:
                long_name = self._extended(size).rstrip(b"\0")
            elif kind_byte == _PAX_GLOBAL:
                records = parse_pax(self._extended(size))
                for key in _PAX_FOR_ALL & records.keys():
                    self._global_records[key] = records[key]
            elif kind_byte == _GNU_LONG_LINK:
                self._extended(size)
            else:
                break
            header = self.stream.read(BLOCK)
            if len(header) < BLOCK or header == _ZEROS:
                raise self._truncated("after an extended header whose member is missing")
        if kind_byte == _GNU_SPARSE:
            self._pass_sparse_map(header)
        for stored_name in (self._global_records.get(b"path"), long_name, pax.get(b"path")):
            if stored_name:
                raw_name = stored_name
        text = pax.get(b"size", self._global_records.get(b"size"))
        if text:
            if not text.isdigit() or len(text) > 20:
                raise ValueError(f"a pax header has size {brief(text[:40])}, which is not a number")
            size = int(text)
        kind = _KINDS.get(kind_byte, "special")
        if kind == "file" and raw_name.endswith(b"/"):
            kind = "directory"  # as tars older than ustar mark them
        if kind == "file" and _PAX_SPARSE in b"".join(pax):
            kind = "sparse"
        if kind_byte[0] in _WITHOUT_DATA:
            size = 0
        self._data_size = size
        self._unread = -(-size // BLOCK) * BLOCK
        name, problem = decode_name(raw_name)
        return Member(name, size, kind, problem)

    def _next_header(self) -> bytes | None:
        """The next block that is not zeros, None at the end of the archive."""
        zeros = 0
        while True:
            block = self.stream.read(BLOCK)
            if len(block) == BLOCK and block != _ZEROS:
                return block
            if any(block):
                raise self._truncated("within a header")
            zeros += len(block)
            if len(block) < BLOCK:
                if zeros < BLOCK:
                    raise self._truncated("without the blocks of zeros that end a tar")
                return None
            if zeros > MAX_ZERO_TAIL:
                raise SourceTruncated(
                    f"{self._path}: more than {MAX_ZERO_TAIL} zeros follow the last member, "
                    f"{self.stream.where()}: a download that was allocated but not completed? "
                    f"{remedy(self._path)}"
                )

    def _pass_sparse_map(self, header: bytes) -> None:
        """Pass over the blocks between the header of a sparse file and its data."""
        more = header[_SPARSE_HEADER_EXTENDED]
        while more:
            block = self.stream.read(BLOCK)
            if len(block) < BLOCK:
                raise self._truncated("within the map of a sparse file")
            more = block[_SPARSE_BLOCK_EXTENDED]

    def _extended(self, size: int) -> bytes:
        """The data of a pax header or a GNU long name."""
        if size > MAX_EXTENDED_HEADER:
            raise ValueError(
                f"an extended header claims {size} bytes, the limit is {MAX_EXTENDED_HEADER}"
            )
        padded = -(-size // BLOCK) * BLOCK
        data = self.stream.read(padded)
        if len(data) < padded:
            raise self._truncated("within an extended header")
        return data[:size]

    def _truncated(self, where: str) -> SourceTruncated:
        return SourceTruncated(
            f"{self._path}: the tar ends {where}, {self.stream.where()}; {remedy(self._path)}"
        )


def parse_header(header: bytes) -> tuple[bytes, int, bytes]:
    """A 512-byte header block as (name with its prefix, size of the data in bytes, type byte).

    Raises ValueError for a wrong checksum or number.
    """
    stored = _number(header[148:156], "checksum")
    # The checksum counts its own field as eight spaces (8 * 32).
    total = sum(header) - sum(header[148:156]) + 256
    if stored != total and stored != total - 256 * _bytes_from_128(header):
        raise ValueError(f"a tar header has checksum {stored}, but its bytes sum to {total}")
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0]
    if prefix and header[257:263] == b"ustar\0":  # in GNU's own format other fields are there
        name = prefix + b"/" + name
    return name, _number(header[124:136], "size"), header[156:157]


def _bytes_from_128(header: bytes) -> int:
    """Number of bytes that old tar programs sum as negative ones, as signed chars."""
    counted = header[:148] + header[156:]
    return sum(byte >= 128 for byte in counted)


def parse_pax(data: bytes) -> dict[bytes, bytes]:
    """The records `<length> <key>=<value>\\n` of a pax header.

    Raises ValueError for a malformed record.
    """
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        digits, space, _ = data[position : position + 10].partition(b" ")
        if not digits.isdigit() or not space:
            break
        end = position + int(digits)
        key, equals, value = data[position + len(digits) + 1 : end].partition(b"=")
        if end > len(data) or not equals or not value.endswith(b"\n"):
            break
        records[key] = value[:-1]
        position = end
    if position < len(data):
        raise ValueError(f"the pax record {brief(data[position : position + 40])} is malformed")
    return records


def _number(field: bytes, name: str) -> int:
    """An octal number padded with spaces or NULs, or GNU's base-256 for large ones."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.isdigit() or not digits:
        try:
            return int(digits or b"0", 8)
        except ValueError:  # 8 or 9
            pass
    raise ValueError(f"a tar header has {name} {brief(field)}, which is not an octal number")
