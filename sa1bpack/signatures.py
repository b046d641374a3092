"""What a file is, by its first bytes, and what to do with it where something else is expected.

One table, for tars, JSON records and images that are none: users meet archives of other kinds, web
pages under the name of a tar, pointers of Git LFS, parts of a split file. Names are not trusted,
except that a part of a split file has nothing else to be known by.
"""

import re
from dataclasses import dataclass
from pathlib import PurePath
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sa1bpack.urls import Address

# Bytes of a file by which its kind is known. More do no harm.
HEAD_BYTES = 512

_NEW_TAR = "NEW.tar"
_DOCUMENT = "docs/from-your-dataset.md"


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file.

    Attributes:
        name: the kind, with its article: "a zip archive".
        remedy: what to do with it in place of a tar; `{file}` stands for its path, quoted for a
            shell.
    """

    name: str
    remedy: str

    def remedy_for(self, file: "PurePath | Address") -> str:
        """The remedy for a file of this kind."""
        return self.remedy.replace("{file}", quoted(file))


def quoted(file: "PurePath | Address") -> str:
    """A path for a command, or of a file at a URL the name that it has when it is downloaded."""
    return quote(str(file) if isinstance(file, PurePath) else file.name)


def _compressed(name: str, command: str) -> Format:
    return Format(name, f"decompress it, `{command} > {_NEW_TAR}`, and pack that")


def _archive(name: str, command: str) -> Format:
    return Format(name, f"unpack it, `{command}`, and pack FOLDER")


def _table(name: str) -> Format:
    return Format(
        name,
        "write its images and records into a folder as sa_<id>.jpg and sa_<id>.json "
        f"({_DOCUMENT}), and pack that",
    )


def _image(name: str) -> Format:
    return Format(name, "pack the folder that has it and its JSON record, as sa_<id>.jpg and .json")


JPEG = _image("a JPEG image")
PNG = _image("a PNG image")
WEBP = _image("a WebP image")
TIFF = _image("a TIFF image")
BMP = _image("a BMP image")
GIF = _image("a GIF image")
JSON = Format("a JSON text", "pack the folder that has it and its image, as sa_<id>.json and .jpg")
TEXT = Format("a text", "look into it, `head {file}`; give the tars")
UTF_16 = Format("UTF-16 text", "convert it, `iconv -f UTF-16 -t UTF-8 {file}`")
GZIP = Format("a gzip stream", "pack {file}")
EMPTY = Format("an empty file", "download it again")
ZEROS = Format("nothing but zeros", "a download that was not completed? Download it again")

# The first bytes, and what has them.
_PREFIXES: dict[bytes, Format] = {
    b"\x1f\x8b": GZIP,
    b"PK\x03\x04": _archive("a zip archive", "unzip {file} -d FOLDER"),
    b"PK\x05\x06": _archive("an empty zip archive", "unzip {file} -d FOLDER"),
    b"PK\x07\x08": _archive("a zip archive in parts", "unzip {file} -d FOLDER"),
    b"7z\xbc\xaf\x27\x1c": _archive("a 7z archive", "7z x {file} -oFOLDER"),
    b"Rar!\x1a\x07": _archive("a rar archive", "unrar x {file} FOLDER/"),
    b"\xfd7zXZ\0": _compressed("an xz stream", "xz -dc {file}"),
    b"\x5d\0\0": _compressed("an lzma stream", "xz --format=lzma -dc {file}"),
    b"LZIP": _compressed("an lzip stream", "lzip -dc {file}"),
    b"BZh": _compressed("a bzip2 stream", "bzip2 -dc {file}"),
    b"\x28\xb5\x2f\xfd": _compressed("a zstd stream", "zstd -dc {file}"),
    b"\x04\x22\x4d\x18": _compressed("an lz4 stream", "lz4 -dc {file}"),
    b"\x1f\x9d": _compressed("a file of compress (.Z)", "gzip -dc {file}"),
    b"\x89LZO\0": _compressed("an lzop stream", "lzop -dc {file}"),
    b"\xff\x06\0\0sNaPpY": _compressed("a snappy stream", "snzip -dc {file}"),
    b"PAR1": _table("a parquet file"),
    b"ARROW1": _table("an Arrow file"),
    b"\xff\xff\xff\xff": _table("an Arrow stream"),
    b"\x89HDF\r\n\x1a\n": _table("an HDF5 file"),
    b"SQLite format 3\0": _table("an SQLite database"),
    b"\x93NUMPY": _table("a numpy array"),
    b"\x80\x02": _table("a pickle"),
    b"\x80\x03": _table("a pickle"),
    b"\x80\x04": _table("a pickle"),
    b"\x80\x05": _table("a pickle"),
    b"\xff\xd8\xff": JPEG,
    b"\x89PNG\r\n\x1a\n": PNG,
    b"GIF8": GIF,
    b"II*\0": TIFF,
    b"MM\0*": TIFF,
    b"II+\0": TIFF,  # of more than 4 GiB: BigTIFF
    b"MM\0+": TIFF,
    b"\xff\x0a": _image("a JPEG XL image"),
    b"\0\0\0\x0cJXL ": _image("a JPEG XL image"),
    b"\0\0\0\x0cjP  ": _image("a JPEG 2000 image"),
    b"\xff\x4f\xff\x51": _image("a JPEG 2000 image"),
    b"%PDF-": Format("a PDF document", "download the tar itself"),
    b"\x7fELF": Format("a program", "give the tars"),
    b"d8:announce": Format("a torrent", "give it to a BitTorrent client, and pack what that gets"),
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
}
# The brand of an ISO media file, which follows its size and `ftyp`.
_BRANDS: dict[bytes, Format] = {
    b"heic": _image("an HEIC image"),
    b"heix": _image("an HEIC image"),
    b"mif1": _image("an HEIC image"),
    b"avif": _image("an AVIF image"),
    b"avis": _image("an AVIF image"),
}
_VIDEO = Format("a video", "give the tars")

_PAGE = "it was sent in place of the file: open its link in a browser, log in, and download again"
# A pattern at the beginning of a text, white space left out, and what such a text is.
_TEXTS: list[tuple[re.Pattern[str], Format]] = [
    (
        re.compile(r"version https://git-lfs"),
        Format("a pointer of Git LFS", "fetch the file itself, `git lfs pull`"),
    ),
    (
        re.compile(r"(\.\./|\.?/)*(\.git)?/?annex/objects/"),
        Format("a pointer of git-annex", "fetch the file itself, `git annex get {file}`"),
    ),
    (re.compile(r"<!doctype html|<html|<head|<script", re.IGNORECASE), Format("a web page", _PAGE)),
    (
        re.compile(r"<\?xml|<error", re.IGNORECASE),
        Format("an XML document, such as the answer of a store to an expired link", _PAGE),
    ),
    (
        re.compile(r"[0-9a-fA-F]{32} [ *]"),
        Format("a list of md5 sums", "give it as --md5sums {file}, beside the tars"),
    ),
    (
        re.compile(r"[^\n]*://|file_name\tcdn_link"),
        Format("a list of links", "give it as --links {file}"),
    ),
    (re.compile(r"[\[{]"), JSON),
    (re.compile(r""), TEXT),
]
_CONTROL = re.compile(r"[\0-\x08\x0e-\x1f\x7f]")


def format_of(head: bytes) -> Format | None:
    """The format of a file that begins with these bytes; None for a tar and what is not known.

    Args:
        head: the first `HEAD_BYTES` of a file, or all of a shorter one.
    """
    if not head:
        return EMPTY
    if not any(head):
        return ZEROS
    for prefix, kind in _PREFIXES.items():
        if head.startswith(prefix):
            return kind
    if head.startswith(b"BM") and head[6:10] == bytes(4):
        return BMP
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], _VIDEO)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return WEBP
    return _text_format(head)


def _text_format(head: bytes) -> Format | None:
    """The kind of a text, or None for bytes that are no text in UTF-8."""
    try:
        text = head[:HEAD_BYTES].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The last character may be cut.
        if len(head) < HEAD_BYTES or error.start < HEAD_BYTES - 4:
            return None
        text = head[: error.start].decode("utf-8-sig")
    if "\0" in text and not _CONTROL.search(text.replace("\0", "")):
        every_second = not any(head[::2]) or not any(head[1::2])
        return UTF_16 if every_second and len(head) > 1 else None
    if _CONTROL.search(text):
        return None
    for pattern, kind in _TEXTS:
        if pattern.match(text.lstrip()):
            return kind
    return None


# -------------------------------------------------------------------------------- parts of a file

# `split` names its parts after the whole: sa_1.tar.aa, sa_1.tar.part-ab, sa_1.tar.gz.001.
_PART = re.compile(
    r"(?P<whole>.+\.(?:tar|tgz)(?:\.gz)?)"
    r"(?P<joint>[._-]?part[._-]?(?=.)|[._-])"
    r"(?P<number>(?!(?:gz|xz|lz|bz|br)$)[a-z]{2}|a[a-z]{2}|\d{1,3})"
)
_COMPRESSED_TAR = re.compile(r"(?P<whole>.+\.tar)\.(?:xz|lzma|lz|bz2|zst|lz4|lzo|z)", re.IGNORECASE)
_UNFINISHED = (".part", ".partial", ".crdownload", ".download", ".filepart", ".aria2", ".tmp")


def part_pattern(name: str) -> tuple[str, str] | None:
    """Of the name of a part of a split file: that of the whole, and how those of parts begin."""
    match = _PART.fullmatch(name)
    if match is None:
        return None
    return match["whole"], match["whole"] + match["joint"]


def tar_to_be_made_of(name: str) -> str | None:
    """The name of the tar that a file is a part or a compressed form of, by its own; or None.

    Of parts with letters, the first ones only (.aa): others could be anything (.ok, .md).
    """
    if match := _COMPRESSED_TAR.fullmatch(name):
        return match["whole"]
    match = _PART.fullmatch(name)
    if match is None or match["number"][0] >= "b":
        return None
    return match["whole"]


def name_remedy(file: "PurePath | Address") -> str | None:
    """The remedy for a file that is not whole, if its name says why: a part, or a download."""
    if pattern := part_pattern(file.name):
        folder = file.parent if isinstance(file, PurePath) else PurePath()
        whole = quoted(folder / pattern[0])
        parts = quoted(folder / pattern[1])
        return (
            "it is one part of a file that was split: join all parts in the order of their "
            f"numbers, `cat {parts}* > {whole}`"
        )
    if file.name.lower().endswith(_UNFINISHED):
        return "its name is that of a download that has not ended: complete it"
    return None
