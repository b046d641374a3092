"""URLs: what they name, how they are shown, and which module reads what is there.

Tars may be at URLs, and packs. Who reads and writes them is not a matter of the core: the table
`SCHEMES` of the package names a module for each scheme, see `scheme_of`. Without that module, packs
and tars of this machine can still be read.

A URL is shown without its query, which signs it, and without a password.
"""

import operator
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from sa1bpack import SCHEMES
from sa1bpack.errors import MissingPackage, OptionError
from sa1bpack.wording import brief

WEB_SCHEMES = ("https", "http")
STORE_SCHEMES = ("s3", "gs", "az")
# Of packs alone: data sets of Hugging Face's hub, hf://datasets/USER/NAME/FOLDER.
HUB_SCHEME = "hf"

# Bytes that a fetched folder takes besides the files of its arrays.
FOLDER_BYTES = 1 << 16

_FILE_URL = re.compile(rf"({'|'.join(STORE_SCHEMES + WEB_SCHEMES)})://", re.IGNORECASE)
_PACK_SCHEMES = (*STORE_SCHEMES, *WEB_SCHEMES, HUB_SCHEME, "file")
_PACK_URL = re.compile(rf"({'|'.join(_PACK_SCHEMES)})://", re.IGNORECASE)
# In the path of a URL, what need not be quoted.
_UNQUOTED = "/:@!$&'()*+,;="
# What no URL contains, and what would end a line of a request. A key in an object store may have a
# space.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A URL without what may be secret. In a key, # is a character like others.
_WITHOUT_QUERY = re.compile(r"[^?#]*")
_WITHOUT_QUERY_IN_STORE = re.compile(r"[^/?#]*(?:/[^?]*)?")
# In the key of a tar, which may be a pattern with ?, what begins a signature.
_QUERY_OF_KEY = re.compile(r"\?[^/?]*=")


@dataclass
class Counts:
    """Counts of what this process has read from one place.

    Attributes:
        hits: number of shards, and feature shards, that were on this machine when they were
            opened.
        misses: number of those that were fetched.
        requests: number of requests that were made.
        nbytes: bytes that were fetched.
    """

    hits: int = 0
    misses: int = 0
    requests: int = 0
    nbytes: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.add, vars(self).values(), vars(other).values()))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*map(operator.sub, vars(self).values(), vars(other).values()))


class Lease(Protocol):
    """A hold on files, which stay where they are as long as this object lives."""

    def touch(self) -> None:
        """Note that the files are in use now."""


class FetchedFrom(Protocol):
    """A place that is not on this machine, and what is fetched from there.

    Attributes:
        url: URL of the place.
        root: the folder that has the manifest of what is there, and whatever was fetched.
        limit: bytes that may be kept on this machine at most.
        forks: it can be used in a child that was forked.
        fetches_rows: rows of large arrays are fetched when they are needed: a shard is here without
            them.
        window: bytes of rows that are asked for ahead of their use, as the way there needs it now.
        most_ahead: the most that `window` can be.
    """

    url: str
    root: Path
    limit: int
    forks: bool
    fetches_rows: bool
    most_ahead: int

    @property
    def window(self) -> int: ...

    def counts(self) -> Counts:
        """Counts of what this process has fetched from this URL so far."""


class SideSource(FetchedFrom, Protocol):
    """The place that feature shards come from; its root has links for all of them."""

    def fetch(self, spec: Any, shard: Any) -> Lease:
        """Fetch the rows of a shard; `SideSpec` and `ShardIdentity`. Raises as ShardSource."""

    def reader(self, spec: Any, shard: Any) -> Any:
        """The `RangeReader` of the values of a feature shard; None: they are on this machine."""

    def kept_bytes(self, spec: Any, shard: Any, items: int) -> int:
        """Bytes that the rows of a shard, of so many items, take on this machine."""

    def items(self, spec: Any, shard: Any) -> int:
        """The items of all ragged rows of a shard, 0 if rows are fixed. Raises as ShardSource."""


class ShardSource(FetchedFrom, Protocol):
    """The place that the shards of a pack come from if they are not on this machine.

    Attributes:
        lists: the server says which files there are, hence which features.
    """

    lists: bool

    def fetch(self, entry: Any, digest: str, layout: Any) -> Lease:
        """Fetch a shard, whole or without its large arrays, if it is not there.

        Args:
            entry, layout: the shard's `ShardEntry`, and the `Layout` of the pack.
            digest: XXH3-128 of its checksum file.

        Raises:
            StoreError: the shard cannot be fetched.
            CacheFull: there is no room.
            FormatError: the shard is damaged where it comes from.
            OSError: the disk fails.
        """

    def reader(self, entry: Any, digest: str) -> Any:
        """The `RangeReader` of a shard's large arrays, see `fetch`; None: they are here."""

    def kept_bytes(self, entry: Any, layout: Any) -> int:
        """Bytes that a shard takes on this machine."""

    def open_side(self, name: str, whole: bool = False) -> SideSource | None:
        """One of the pack's own features, None if it has none of that name; or one at a URL.

        With `whole` its feature shards are fetched whole, whatever is fetched of shards.
        """

    def fetch_records(self, folder: Path) -> None:
        """Make a folder look like that of the pack, without shards and rows of features.

        It has what the pack says of itself: manifest, index, checksums, rejects, the log of runs,
        and what features say of themselves, if the server can list them. Raises as `fetch`.
        """

    def fetch_shard_records(self, folder: Path) -> None:
        """Add to such a folder what each shard says of itself: its checksum file and attributes.

        Raises as `fetch`.
        """


@dataclass
class Patience:
    """The number of attempts at one host, in a row and without progress, until a file is given up.

    The files of a host share it. After one of them was given up, the others have a few attempts
    each, until the host answers again: a thousand files of a host that is down must not be waited
    for one after the other.

    Attributes:
        attempts: number of attempts, the waits between which add up to 5 to 8 minutes.
        attempts_when_down: number of attempts after a file was given up; they take seconds.
        seconds_unreachable: how long at least a file is asked for, while no connection succeeds to
            a host that has answered before: it is being started again.
        seconds_busy: how long at least a file is asked for, while the host answers that it is asked
            too often.
        answers: number of answers so far.
        is_down: a file was given up, and nothing was answered while it was waited for, nor since.
        reported: largest number of failures in a row that was reported to the user since the
            host answered last; files that wait for the same host are reported once.
    """

    attempts: int = 20
    attempts_when_down: int = 4
    seconds_unreachable: float = 0.0
    seconds_busy: float = 0.0
    answers: int = 0
    is_down: bool = False
    reported: int = 0

    def most_attempts(self) -> int:
        """Number of attempts that a file has now."""
        if self.is_down:
            return min(self.attempts, self.attempts_when_down)
        return self.attempts

    def unreachable_seconds(self) -> float:
        """Seconds for which a file is asked for now, while no connection succeeds."""
        if self.is_down or not self.answers:
            return 0.0
        return self.seconds_unreachable

    def answered(self) -> None:
        """Note that the host has answered: every file has all attempts again."""
        self.answers += 1
        self.is_down = False
        self.reported = 0


class Stream(Protocol):
    """A file that is read once, from start to end. See `remote.web.WebFile`."""

    address: "Address"
    nbytes: int | None

    def read(self, count: int) -> bytes: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...


def scheme_of(url: str) -> Any:
    """The module that reads and writes what is at a URL. Raises MissingPackage if it is missing.

    It has the functions

        open_pack(url, cache: Path | None, limit: int | None, fetch: str) → ShardSource, of a pack
            of which "rows" are fetched, or whole "shards", and what is kept is in a folder, up to a
            limit in bytes
        open_side(url, shards) → SideSource, of a feature of packs on this machine, whose shards
            these are
        verify(url, **options) → Report, as `sa1bpack.verify`
        bucket_publisher(url, staging: Path, options) → a context manager of the `Publisher` of
            a pack that is made in a staging folder and uploaded
        find_files(address, on_wait) → list[Address], the files that an address, or a pattern of
            one, stands for; it asks for nothing else
        open_stream(address, **options) → Stream, a file that is read once; options are `digest`,
            `stop`, `patience` (Patience) and `on_wait`, which is called with a line for the user
            when the host does not answer
    """
    name = SCHEMES[url.partition("://")[0].lower()]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if not (error.name and name.startswith(error.name)):
            raise
        raise MissingPackage(
            f"{shown(url)}: this installation of sa1bpack reads no URLs, because {error.name} is "
            "missing; install sa1bpack again, or copy the files to a disk and name their folder"
        ) from None


def is_url(text: object) -> bool:
    """True for a text that begins like the URL of a tar: s3, gs, az, https or http."""
    return isinstance(text, str) and _FILE_URL.match(text) is not None


def is_store_url(text: object) -> bool:
    """True for a text that begins like a URL in an object store: s3, gs or az."""
    if not isinstance(text, str):
        return False
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.lower() in STORE_SCHEMES


def is_pack_url(text: object) -> bool:
    """True for a text that begins like the URL of a pack: s3, gs, az, https, http, hf or file."""
    return isinstance(text, str) and _PACK_URL.match(text) is not None


def pack_url(name: str, text: str) -> str:
    """The URL of a pack in its one spelling, without secrets, as it may be shown and written.

    In a file URL, and in that of a web server, %20 is a space; the keys of object stores, and the
    paths of the hub, are what they are.

    Args:
        name: name of the argument, for messages.
        text: the URL.

    Raises:
        OptionError: as for `folder_url`, and for a file URL whose path is not absolute.
    """
    if not text.lower().startswith("file://"):
        url = folder_url(name, text)
        scheme, _, address = url.partition("://")
        if scheme in WEB_SCHEMES:
            host, slash, path = address.partition("/")
            return f"{scheme}://{host}{slash}{quote(unquote(path), safe=_UNQUOTED)}"
        return url
    folder = Path(unquote(text.partition("://")[2]))
    if not folder.is_absolute():
        raise OptionError(f"{name} is {brief(text)}: after file:// comes an absolute path")
    return folder.as_uri()


def local_folder(url: str) -> Path | None:
    """The folder that a file URL, as `pack_url` spells it, names; None for any other URL."""
    scheme, _, path = url.partition("://")
    return Path(unquote(path)) if scheme == "file" else None


def shown(url: str) -> str:
    """A URL for messages: without user, password, query and fragment, in which secrets are."""
    scheme, _, _ = url.partition("://")
    host, slash, path = _without_query(url).partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _without_query(url: str) -> str:
    """What follows the scheme of a URL, without query and fragment."""
    _, _, rest = url.partition("://")
    pattern = _WITHOUT_QUERY_IN_STORE if is_store_url(url) else _WITHOUT_QUERY
    match = pattern.match(rest)
    return match[0] if match else ""


def folder_url(name: str, text: str) -> str:
    """The URL of a folder in a bucket in its one spelling: "s3://bucket/key", or "s3://bucket".

    Args:
        name: name of the argument, for messages.
        text: the URL.

    Raises:
        OptionError: the URL has no bucket, or has a user or a password, a query or a fragment, or
            what no key has. The message shows no more of it than `shown`.
    """
    host, key = _host_and_path(name, text)
    if _without_query(text) != text.partition("://")[2]:
        raise OptionError(
            f"{name} is {shown(text)!r}, with a query or a fragment: leave it out (signed links "
            "are for single files)"
        )
    parts = [part for part in key.split("/") if part]
    if {".", ".."} & set(parts) or _CONTROL.search(key):
        raise OptionError(
            f"{name} is {shown(text)!r}: in the path of a URL, no part is . or .., and no "
            "character is a control character; name the folder itself"
        )
    key = "/".join(parts)
    return f"{text.partition('://')[0].lower()}://{host}/{key}".removesuffix("/")


def _host_and_path(name: str, text: str) -> tuple[str, str]:
    """Host, or bucket, and path, or key, of a URL.

    Raises OptionError for one without a host, or with a user, who may have a password.
    """
    scheme, _, _ = text.partition("://")
    host, _, path = _without_query(text).partition("/")
    kind = "bucket" if scheme.lower() in STORE_SCHEMES else "host"
    if "@" in host:
        raise OptionError(
            f"{name} is {shown(text)!r}, with a user name before the {kind}: leave it out "
            "(credentials of object stores are found as the tools of the cloud find them)"
        )
    try:
        urlsplit(text).port  # noqa: B018 - raises for what is not a port
    except ValueError:
        host = ""
    if not host:
        raise OptionError(f"{name} is {shown(text)!r}: the URL names no {kind}")
    return host, path


@dataclass(frozen=True)
class Address:
    """The place of a file that is read over the network. `str` of it is safe to show.

    Attributes:
        url: the complete URL, with a query that may be a signature; never shown, and not part of
            the `repr`.
        name: name of the file, in place of the last part of a path.
        listed: the name is that of a list of links. The path of such a link need not resemble it,
            so messages show the name and the host.
        nbytes, version: size of the file, and what distinguishes it from a later one in its place,
            once it has been asked for; None before.
    """

    url: str = field(repr=False)
    name: str
    listed: bool = False
    nbytes: int | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.listed:
            return f"{self.name} (from {urlsplit(self.url).hostname})"
        if self.scheme in STORE_SCHEMES:
            return f"{self.scheme}://{self.bucket}/{_without_signature(self.key)}"
        return shown(self.url)

    @property
    def scheme(self) -> str:
        """s3, gs, az, https or http."""
        return self.url.partition("://")[0].lower()

    @property
    def bucket(self) -> str:
        """Host of a web address, bucket of an object store."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """The key of the object: what follows the bucket, as it is written in the URL."""
        return self.url.partition("://")[2].partition("/")[2]


def _without_signature(key: str) -> str:
    """A key, which may be a pattern, without the query that would sign it."""
    return _QUERY_OF_KEY.split(key, maxsplit=1)[0]


def parse_address(name: str, text: str, file_name: str | None = None) -> Address:
    """The address that a URL stands for.

    Args:
        name: name of the argument, for messages.
        text: the URL.
        file_name: name of the file in a list of links; None: the last part of the URL's path.

    Raises:
        OptionError: the URL holds a user or a password, control characters or, on the web, white
            space, has no host or bucket, or names no file. The message shows no more of it than
            `shown`.
    """
    in_store = is_store_url(text)
    if in_store and (match := _CONTROL.search(text)):
        raise OptionError(
            f"{name} is {shown(text[: match.start()])!r}..., which contains a control character"
        )
    if not in_store and (match := _FORBIDDEN.search(text)):
        raise OptionError(
            f"{name} is {shown(text[: match.start()])!r}..., which contains white space or a "
            "control character: a URL has %20 for a space"
        )
    _, path = _host_and_path(name, text)
    if in_store:
        path = _without_signature(text.partition("://")[2].partition("/")[2])
    last = path.rpartition("/")[2]
    file_name_in_url = last if in_store else unquote(last)
    tar_name = file_name or file_name_in_url
    if not tar_name or "/" in tar_name:
        pattern = ", or a pattern such as sa_*.tar" if in_store else ""
        raise OptionError(
            f"{name} is {shown(text)!r}: the URL names no file; give that of a tar{pattern}"
        )
    return Address(text, tar_name, file_name is not None)
