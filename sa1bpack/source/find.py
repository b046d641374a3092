"""The tars and folders that a pack is made from, found by path or URL, and the kind of each.

The file's first bytes decide, never its name: SA-1B's own `.tar` files are gzip streams. Tars at
URLs are asked for size, version and kind with one short request each. Lists name tars at URLs, and
the md5 sums of tars.

An extracted tar is a folder, whose files `folder_files.py` lists.
"""

import glob
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Literal

from sa1bpack.errors import OptionError, SourceError
from sa1bpack.interrupts import result_of
from sa1bpack.parquet_files import import_arrow
from sa1bpack.paths import (
    exists,
    is_file,
    is_folder,
    looks_like_url,
    matches_of,
    matching,
    paths_below,
    real_path,
    refuse_url,
    refuse_windows_path,
)
from sa1bpack.signatures import EMPTY, TEXT, format_of, name_remedy, part_pattern, tar_to_be_made_of
from sa1bpack.source.folder_files import images_below, list_folder
from sa1bpack.source.inflate import GZIP_MAGIC, OnWait, remedy
from sa1bpack.source.tar import BLOCK, is_other_image, parse_header
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import Address, Patience, Stream, is_url, parse_address, scheme_of
from sa1bpack.wording import brief, counted

_TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_PARQUET_SUFFIX = ".parquet"
_PARQUET_MAGIC = b"PAR1"

# What the folder of a pack has, and no folder of extracted images.
_PACK_ENTRIES = ("manifest.json", "zarr.json", "shards")

AT_ONCE = 16  # URLs that are asked

MAX_LIST_BYTES = 64 << 20  # of a list; that of SA-1B's links has 0.5 MB

_LOOKED_AT = 100  # files of a folder that has neither tars nor images

# "<32 hex digits> <space or *><name>"; md5sum marks escaped names with a leading backslash.
_MD5_LINE = re.compile(r"([0-9a-fA-F]{32}) [ *](.+)")

Kind = Literal["gzip-tar", "tar", "folder", "parquet", "remote"]


@dataclass(frozen=True, slots=True)
class Source:
    """One tar, one extracted folder or one Parquet file.

    `name` is the stem that shards are called after: `sa_000000` for `sa_000000.tar`, the last
    part of the path for a folder. `nbytes` is the size of the file, for a folder the sum of the
    sizes of its images and JSON files. `kind` is "remote", and `nbytes` 0, for a tar at a URL that
    has not been asked for yet; `look_at` finds both. `expected_md5` is the md5 that a list says it
    has; None if there is no list.
    """

    name: str
    path: Path | Address
    kind: Kind
    nbytes: int
    expected_md5: str | None = None

    @property
    def local_path(self) -> Path:
        """The path of a source that is not at a URL."""
        assert isinstance(self.path, Path)
        return self.path


def find_sources(
    patterns: Iterable[str | Path],
    *,
    links: Iterable[Address] | None = None,
    leave_out: Path | None = None,
    on_wait: OnWait = None,
) -> list[Source]:
    """Find the sources that paths and globs stand for, sorted by name.

    A pattern is a path, or a glob such as `/data/sa_*.tar`; `~` is expanded. A folder is one
    source and must hold images or `.json` files at some depth; one that holds no image, but tars,
    or Parquet files, stands for these. A path matched by several patterns counts once.

    URLs are not requested, except for the names that match a pattern.

    Args:
        links: tars at these addresses as well; patterns may then be URLs too (of an object store
            also with `*`, `?` and `[...]`). None: URLs are refused.
        leave_out: a path that no glob stands for: the folder of the pack, beside its tars.
        on_wait: called with a line for the user when an object store does not answer.

    Raises:
        OptionError: a URL that cannot be used, or a bucket without credentials.
        MissingPackage: a bucket without the extra `cloud`, a Parquet file without pyarrow.
        SourceError: a pattern matches nothing, a file or folder is of no known kind or cannot be
            read, or two sources share a name (their shards would, too).
    """
    paths: dict[Path | str, Path | Address] = {}
    for address in links or ():
        scheme_of(address.url).find_files(address)  # raises if it cannot be read
        paths.setdefault(address.url, address)
    for pattern in patterns:
        if links is not None and isinstance(pattern, str) and is_url(pattern):
            asked = parse_address("source", pattern)
            for address in scheme_of(pattern).find_files(asked, on_wait):
                paths.setdefault(address.url, address)
            continue
        if links is not None and isinstance(pattern, Path) and looks_like_url(str(pattern)):
            raise OptionError(
                f"source is {pattern!r}: give a URL as text; a Path joins its slashes"
            )
        for path in _expand(pattern, leave_out):
            paths.setdefault(os.path.realpath(path), path)  # of a loop of links, too
    sources: dict[str, Source] = {}
    for found_path in paths.values():
        if isinstance(found_path, Address):
            source = Source(_stem(found_path), found_path, "remote", 0)
        else:
            source = open_source(found_path)
        other = sources.setdefault(source.name, source)
        if other is not source:
            remedy = "rename one, or pack them into two outputs"
            if source.kind == other.kind == "folder":
                remedy += "; if one has the records of the other, name it with --annotations"
            raise SourceError(
                f"{source.path} and {other.path} are both called {brief(source.name)}, and shards "
                f"are named after their source: {remedy}"
            )
    return sorted(sources.values(), key=attrgetter("name"))


def open_source(path: str | Path) -> Source:
    """Determine what an existing path is. Raises as `find_sources` does."""
    path = Path(path)
    try:
        path.stat()  # fails for what a link does not lead to
        if not is_folder(path):
            if not is_file(path):
                raise SourceError(f"{path}: neither a file nor a folder")
            with path.open("rb") as file:
                kind = kind_of(file.read(BLOCK), path)
            if kind == "parquet":
                import_arrow(path)
            _refuse_first_part(path)
            return Source(_stem(path), path, kind, path.stat().st_size)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if all(exists(path / name) for name in _PACK_ENTRIES):
        raise SourceError(
            f"{path}: a pack, where a tar or a folder of images is expected; sa1bpack.open reads "
            "it; leave it out of the sources, or choose a pattern such as 'sa_*.tar'"
        )
    files = list_folder(path)
    if not files:
        raise SourceError(
            f"{path}: the folder holds no image (.jpg, .png, .webp, .tif, .bmp or .gif) and no "
            f".json file, and no .tar, .tar.gz, .tgz or .parquet file in their place; "
            f"{_in_place_of_images(path)}"
        )
    # Path.name is empty for '.', and '/' has no better name than its own.
    name = real_path(path).name or "root"
    return Source(name, path, "folder", sum(file.size() or 0 for file in files))


def _refuse_first_part(path: Path) -> None:
    """Raise SourceError for the first part of a split tar, whose end would be missing in hours."""
    pattern = part_pattern(path.name)
    if pattern is None:
        return
    for other in matching(path.parent, f"{glob.escape(pattern[1])}*"):
        if other.name > path.name and part_pattern(other.name) == pattern:
            with other.open("rb") as file:
                try:
                    kind_of(file.read(BLOCK), other)
                except SourceError:
                    raise SourceError(
                        f"{path}: {other.name} beside it does not begin like a tar: "
                        f"{name_remedy(path)}"
                    ) from None


def _in_place_of_images(folder: Path) -> str:
    """What a folder has in place of tars and images, and the remedy."""
    paths = sorted(path for path in paths_below(folder) if is_file(path))
    paths = [path for path in paths if not path.name.startswith(".")]
    for path in paths[:_LOOKED_AT]:
        if path.name.lower().endswith(_PARQUET_SUFFIX):
            return f"its Parquet files are in {path.parent}: give that folder"
        if path.name.lower().endswith(_TAR_SUFFIXES):
            return f"its tars are in {path.parent}: give that folder"
        with suppress(OSError), path.open("rb") as file:
            known = format_of(file.read(BLOCK))
            if (text := name_remedy(path)) is not None:
                return f"{path}: {text}"
            if known not in (None, EMPTY, TEXT):
                return f"{path} is {known.name}: {known.remedy_for(path)}"
    return "name tars, or the folder that holds them"


def _expand(pattern: str | Path, leave_out: Path | None) -> list[Path]:
    """The paths that a pattern stands for, with the tars in folders of tars in their place.

    A path that is left out may be named, but no glob stands for it.

    Raises SourceError for a folder that has tars and images, or one that the disk does not list.
    """
    refuse_url("source", os.fspath(pattern))
    refuse_windows_path("source", os.fspath(pattern))
    text = os.path.expanduser(os.fspath(pattern))  # noqa: PTH111 - a Path drops a closing slash
    matches = [Path(text)]  # a literal path first: it may hold * or [
    try:
        os.lstat(text)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a NUL is the last
        try:
            matches = [Path(name) for name in matches_of(text, recursive=True)]
        except OSError as error:
            raise SourceError(f"{error.filename}: cannot be listed: {error.strerror}") from error
        if leave_out is not None:
            matches = [path for path in matches if real_path(path) != real_path(leave_out)]
    except OSError as error:
        raise SourceError(f"{text}: cannot be read: {error.strerror}") from error
    if not matches:
        reason = "no such file or folder"
        if glob.has_magic(text):
            reason = "nothing matches this pattern"
        raise SourceError(f"{pattern}: {reason}; check the path")
    paths = []
    for path in matches:
        tars: list[Path] = []
        with suppress(OSError):  # said when it is opened
            if is_folder(path):
                tars = _tars_in(path) or _parquet_files_in(path)
        files = []
        if tars:  # pictures may lie beside them
            files = [file for file in images_below(path) if not is_other_image(file.name)]
        if files:
            raise SourceError(
                f"{path}: has {counted(len(tars), 'tar')}, such as {tars[0].name}, and "
                f"{counted(len(files), 'file')} of images, such as {files[0].name}: to pack "
                f"the tars, give '{glob.escape(str(path))}/*{tars[0].suffix}'; for the images, a "
                "folder without tars"
            )
        paths += tars or [path]
    return paths


def _tars_in(folder: Path) -> list[Path]:
    """The tars in a folder, and beside them what one must be made of first, refused when opened."""
    names = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208
        if not name.startswith("."):
            names.append(name)
    tars = [name for name in names if name.lower().endswith(_TAR_SUFFIXES)]
    if not tars:
        return []
    others = []
    for name in names:
        whole = tar_to_be_made_of(name)
        if whole is not None and whole not in tars and name not in tars:
            others.append(name)
    return [folder / name for name in sorted(tars + others)]


def _parquet_files_in(folder: Path) -> list[Path]:
    """The Parquet files in a folder without images, beside which they may describe these."""
    names = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208
        if name.lower().endswith(_PARQUET_SUFFIX) and not name.startswith("."):
            names.append(name)
    if names and images_below(folder):
        return []
    return [folder / name for name in names]


def _stem(path: Path | Address) -> str:
    for suffix in (*_TAR_SUFFIXES, _PARQUET_SUFFIX):
        if path.name.lower().endswith(suffix) and len(path.name) > len(suffix):
            return path.name[: -len(suffix)]
    return path.name


def kind_of(head: bytes, path: Path | Address) -> Kind:
    """The kind of a file, by its first 512 bytes (`BLOCK`); `path` is for messages.

    Raises SourceError for what is none of a gzip stream, a tar and a local Parquet file, and says
    what it is, if that is known.
    """
    if head.startswith(GZIP_MAGIC):
        return "gzip-tar"
    if len(head) >= BLOCK and any(head):
        with suppress(ValueError):  # ustar and GNU have a magic, older ones a checksum
            if head[257:262] == b"ustar" or parse_header(head):
                return "tar"
    if head.startswith(_PARQUET_MAGIC):
        if isinstance(path, Address):
            raise SourceError(
                f"{path}: it is a Parquet file, whose end must be read first, and only tars are "
                "read from URLs: download it, and pack the file"
            )
        return "parquet"
    known = format_of(head)
    if known is not None:
        # Of a part of a split file, these bytes come from its middle.
        text = name_remedy(path) or known.remedy_for(path)
        raise SourceError(f"{path}: it is {known.name}, where a tar is expected; {text}")
    raise SourceError(
        f"{path}: begins with {head[:16]!r}, which is neither a gzip stream nor a tar header; "
        f"{remedy(path)}"
    )


def look_at(
    sources: Sequence[Source], on_wait: OnWait = None
) -> tuple[list[Source], dict[str, SourceError]]:
    """The sources, with size and kind of those at URLs, in their order; and errors.

    Errors are name → error of those that cannot be read, which are left out. A host that does not
    answer is waited for as long as in the middle of a tar.

    Args:
        sources: sources of any kind.
        on_wait: called with a line for the user when a host does not answer.

    Raises:
        OptionError, MissingPackage: an object store cannot be opened.
    """
    known = list(sources)
    failed: dict[str, SourceError] = {}
    files: dict[int, Stream] = {}
    patience_of_host: defaultdict[tuple[str, str], Patience] = defaultdict(Patience)
    for number, source in enumerate(sources):
        address = source.path
        if source.kind == "remote" and isinstance(address, Address):
            files[number] = scheme_of(address.url).open_stream(
                address,
                stop=BLOCK,
                patience=patience_of_host[address.scheme, address.bucket],
                on_wait=on_wait,
            )
    if not files:
        return known, failed
    with ThreadPool(AT_ONCE, "sa1bpack-look") as pool:
        try:
            heads = {number: pool.submit(_ask, file) for number, file in files.items()}
            for number, head in heads.items():
                source = sources[number]
                try:
                    data = result_of(head, float("inf"))
                    address = files[number].address
                    kind = kind_of(data, address)
                    nbytes = address.nbytes or 0  # the server has said it
                    known[number] = replace(source, path=address, kind=kind, nbytes=nbytes)
                except SourceError as error:
                    failed[source.name] = error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for file in files.values():
                file.cancel()
            raise
    return [source for source in known if source.name not in failed], failed


def _ask(file: Stream) -> bytes:
    """The first bytes of a file."""
    head = b""
    with closing(file):
        while len(head) < BLOCK and (data := file.read(BLOCK - len(head))):
            head += data
    return head


# ------------------------------------------------------------------------------------------ lists


def _lines(path: Path, contents: str) -> Iterator[tuple[str, str]]:
    """Place and text of each line of a list, without empty ones and those that begin with #.

    Args:
        path: the list.
        contents: what it lists, for messages.

    Raises:
        SourceError: the list cannot be read, or has more than `MAX_LIST_BYTES`.
    """
    try:
        with Path(path).open("rb") as file:  # it may be a pipe, which has no size
            data = file.read(MAX_LIST_BYTES + 1)
        if len(data) > MAX_LIST_BYTES:
            raise SourceError(f"{path}: more than {MAX_LIST_BYTES} bytes: not a list of {contents}")
        lines = data.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise SourceError(
            f"{path}: the list of {contents} cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
        known = format_of(data[:BLOCK])
        if known is not None:
            reason = f"it is {known.name}"
        raise SourceError(f"{path}: the list of {contents} cannot be read: {reason}") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            yield f"{path}, line {number}", line


def read_links(path: Path) -> list[Address]:
    """The addresses in a list of links, in its order.

    The first line may be a header (`file_name<TAB>cdn_link`); empty lines and lines that begin with
    # are skipped. A line that is repeated counts once.

    Raises SourceError for a list that cannot be read or names no link, a line in any other format,
    a name with two different links, and what cannot be a name of a file. No message shows a link.
    """
    links: dict[str, Address] = {}
    for count, (where, line) in enumerate(_lines(path, "links")):
        name, _, url = (text.strip() for text in line.strip().partition("\t"))
        if count == 0 and url and "://" not in line:
            continue
        if not is_url(url) or "://" in name:
            raise SourceError(
                f"{where}: not a file name, a tab and a URL (https://...), as the download page of "
                "SA-1B lists them"
            )
        if "/" in name or name in ("", ".", ".."):
            raise SourceError(f"{where}: {brief(name)} is no name of a file")
        try:
            address = parse_address(where, url, name)
        except OptionError as error:
            raise SourceError(str(error)) from None
        if links.setdefault(name, address).url != address.url:
            raise SourceError(f"{where}: a second, different link for {brief(name)}")
    if not links:
        raise SourceError(f"{path}: the list names no link")
    return list(links.values())


def read_md5sums(path: Path) -> dict[str, str]:
    """Read a list in md5sum's format: file name (without folders) → 32 lower-case hex digits.

    Empty lines and lines that start with # are skipped. Raises SourceError for a line in any other
    format, for a name with two different sums, and for a list that cannot be read or has more than
    `MAX_LIST_BYTES`.
    """
    sums: dict[str, str] = {}
    for where, line in _lines(path, "md5 sums"):
        match = _MD5_LINE.fullmatch(line.rstrip())
        if match is None:
            raise SourceError(
                f"{where}: {brief(line)} is not in md5sum's format ('<32 hex digits>  <file name>')"
            )
        digest = match[1].lower()
        name = match[2].rsplit("/", 1)[-1]
        if sums.setdefault(name, digest) != digest:
            raise SourceError(f"{where}: a second, different sum for {brief(name)}")
    return sums
