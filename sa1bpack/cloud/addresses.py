"""URLs, as they may be shown: without the query, which signs it, and without a password."""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from sa1bpack.errors import OptionError

WEB_SCHEMES = ("https", "http")
STORE_SCHEMES = ("s3", "gs")
SCHEMES = (*STORE_SCHEMES, *WEB_SCHEMES)

_URL = re.compile(rf"({'|'.join(SCHEMES)})://", re.IGNORECASE)
# What no URL contains, and what would end a line of a request.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f]")


def is_url(text: object) -> bool:
    """Whether a text begins like a URL that can be read: s3, gs, https or http."""
    return isinstance(text, str) and _URL.match(text) is not None


def shown(url: str) -> str:
    """A URL for messages: without user, password, query and fragment, in which secrets are."""
    scheme, _, rest = url.partition("://")
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def folder_url(name: str, text: str) -> str:
    """The URL of a folder in a bucket in its one spelling: "s3://bucket/key", or "s3://bucket".

    name
        Of the argument, for messages.

    Raises OptionError, which shows no more of the URL than `shown`, for one without a bucket, with
    a user or a password, or with a query or a fragment.
    """
    scheme, _, rest = text.partition("://")
    host, _, key = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    safe = shown(text)
    if "@" in host or "?" in rest or "#" in rest:
        what = "a user name before the bucket" if "@" in host else "a query or a fragment"
        raise OptionError(
            f"{name} is {safe!r}, with {what}: leave it out (credentials of object stores are "
            "found as the tools of the cloud find them; signed links are for single files)"
        )
    if not host:
        raise OptionError(f"{name} is {safe!r}: the URL names no bucket")
    key = "/".join(filter(None, key.split("/")))
    return f"{scheme.lower()}://{host}" + (f"/{key}" if key else "")


@dataclass(frozen=True)
class Address:
    """Where a file lies that is read over the network. `str` of it is safe to show.

    url
        Complete, with a query that may be a signature; never shown, and not part of the `repr`.
    name
        Name of the file, in place of the last part of a path.
    listed
        Whether the name is that of a list of links. The path of such a link need not resemble it,
        so that messages show the name and the host.
    nbytes, version
        Size of the file, and what distinguishes it from a later one in its place, once it has been
        asked for; None before.
    """

    url: str = field(repr=False)
    name: str
    listed: bool = False
    nbytes: int | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.listed:
            return f"{self.name} (from {urlsplit(self.url).hostname})"
        return shown(self.url)

    @property
    def scheme(self) -> str:
        """s3, gs, https or http."""
        return self.url.partition("://")[0].lower()

    @property
    def bucket(self) -> str:
        """Host of a web address, bucket of an object store."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """What follows the bucket: the key of the object, as it is written in the URL."""
        return self.url.partition("://")[2].partition("/")[2]


def parse_address(name: str, text: str, file_name: str | None = None) -> Address:
    """The address that a URL stands for.

    name
        Of the argument, for messages.
    file_name
        Name of the file in a list of links; None: the last part of the URL's path.

    Raises OptionError, which shows no more of the URL than `shown`, for one that holds a user or a
    password, white space or control characters, that has no host or bucket, or names no file.
    """
    if _FORBIDDEN.search(text):
        raise OptionError(
            f"{name} is {shown(_FORBIDDEN.split(text)[0])!r}..., which contains white space or a "
            "control character: a URL has %20 for a space"
        )
    safe = shown(text)
    host, _, path = re.split(r"[?#]", text.partition("://")[2], maxsplit=1)[0].partition("/")
    if "@" in host:
        raise OptionError(
            f"{name} is {safe!r}, with a user name before the host: leave it out (credentials of "
            "object stores are found as the tools of the cloud find them)"
        )
    address = Address(text, file_name or "", file_name is not None)
    in_store = address.scheme in STORE_SCHEMES
    try:
        urlsplit(text).port  # noqa: B018 - raises for a port that is none
    except ValueError:
        host = ""
    if not host:
        raise OptionError(
            f"{name} is {safe!r}: the URL names no {'bucket' if in_store else 'host'}"
        )
    last = path.rpartition("/")[2]
    found = file_name or (last if in_store else unquote(last))
    if not found or "/" in found:
        pattern = ", or a pattern such as sa_*.tar" if in_store else ""
        raise OptionError(f"{name} is {safe!r}: the URL names no file; give that of a tar{pattern}")
    return Address(text, found, file_name is not None)
