"""One GET over http or https, with the standard library (why: docs/decisions/0011).

Redirects and the proxies of the environment are followed. No text of a server is shown, since it
may echo a signed query, and none of an exception of `http.client` but those without a URL.
"""

import http.client
import re
import socket
import ssl
import urllib.request
from base64 import b64encode
from contextlib import suppress
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from sa1bpack.errors import SourceError
from sa1bpack.urls import WEB_SCHEMES, Address

# Seconds without a byte, or without a connection, after which a request is broken.
TIMEOUT = 30
MAX_REDIRECTS = 5
REPEATED = frozenset({408, 425, 429})  # statuses, besides those of 500 and more, that may pass
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_EXPIRED = frozenset({401, 403, 410})
# Larger numbers are no sizes: Python refuses to read those of thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_UNQUOTED = "%/:?#[]@!$&'()*+,;=~"  # in a URL, what is not quoted again


class Broken(Exception):
    """A request or its body failed in a way that may pass.

    wait
        Seconds after which the server asks to be asked again, if it does.
    """

    def __init__(self, why: str, wait: float | None = None):
        super().__init__(why)
        self.wait = wait


class Body:
    """One request for a file, and the body of its answer. Nothing is sent before `open`.

    After `open`: `nbytes` is the size of the file, `version` what distinguishes it from another
    file in its place (its ETag, or the time of its last change; None if the server tells neither),
    and `start` the byte at which the body begins: the one asked for, or 0 from a server without
    ranges.

    `open` and `read`, of at most so many more bytes, b"" at the end, raise Broken, and SourceError
    for what no repetition changes. `cancel` may be called by another thread, and makes them raise
    Broken; `close` ends the connection.
    """

    def __init__(self, address: Address, start: int = 0, stop: int | None = None):
        """start, stop: the bytes asked for; a `stop` of None is the end of the file."""
        self._address = address
        self._wanted = start, stop
        self._cancelled = False
        self.nbytes, self.version, self.start = 0, None, 0


class WebBody(Body):
    """One request over http or https."""

    _connection: http.client.HTTPConnection | None = None
    _socket: socket.socket | None = None
    _answer: http.client.HTTPResponse | None = None
    _left = 0

    def open(self) -> None:
        """Send the request, follow redirects, and read the head of the answer."""
        url = self._address.url
        for _ in range(MAX_REDIRECTS + 1):
            self._answer = self._request(url)
            if self._answer.status not in _REDIRECTS:
                self._take_head()
                return
            url = self._redirected(url, self._answer.getheader("Location", ""))
            self.close()
        raise SourceError(f"{self._address}: more than {MAX_REDIRECTS} redirects")

    def read(self, count: int) -> bytes:
        """At most `count` more bytes, b"" at the end of the file or of the part asked for."""
        try:
            data = self._answer.read(min(count, self._left))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Broken(failure_text(error)) from None
        if self._left and not data:  # http.client says nothing of it
            raise Broken(f"the connection ended {self._left} bytes too early")
        if len(data) > self._left:
            raise Broken("the server sends more than it announced")
        self._left -= len(data)
        return data

    def cancel(self) -> None:
        """End what is waited for."""
        self._cancelled = True
        if (opened := self._socket) is not None:
            # That of SSLSocket would take its state away from the thread that reads.
            with suppress(OSError):
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        for closed in (self._answer, self._connection):
            if closed is not None:
                with suppress(OSError):
                    closed.close()
        self._socket = None

    def _request(self, url: str) -> http.client.HTTPResponse:
        try:
            parts = urlsplit(quote(url, safe=_UNQUOTED))
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            self._connection = _connection(parts)
            headers = self._headers()
            if parts.scheme == "http" and (proxy := _proxy(parts)):
                target = f"http://{parts.netloc}{target}"
                headers |= _authorization(urlsplit(proxy))
            self._connection.connect()
            self._socket = self._connection.sock
            if self._cancelled:
                raise Broken("cancelled")
            self._connection.request("GET", target, headers=headers)
            return self._connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            raise SourceError(
                f"{self._address}: its certificate cannot be trusted ({error.verify_message}); "
                "check the host, and the clock of this machine"
            ) from None
        except ValueError:  # InvalidURL, and names that no host can have; their texts show the URL
            raise SourceError(f"{self._address}: the URL cannot be used; check it") from None
        except (OSError, http.client.HTTPException) as error:
            raise Broken(failure_text(error)) from None

    def _headers(self) -> dict[str, str]:
        start, stop = self._wanted
        headers = {"Accept-Encoding": "identity", "User-Agent": "sa1bpack"}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        # A weak ETag never matches, and a time is compared afterwards.
        if (self._address.version or "").startswith('"'):
            headers["If-Match"] = self._address.version
        return headers

    def _redirected(self, url: str, location: str) -> str:
        try:
            target = urljoin(url, location)
            ways = urlsplit(url).scheme.lower(), urlsplit(target).scheme.lower()
        except ValueError:  # it is no URL
            ways = "", ""
        if ways[1] not in WEB_SCHEMES or ways == ("https", "http"):
            raise SourceError(
                f"{self._address}: the server redirects from https to http, or to what is no "
                "address of the web, which is not followed"
            )
        return target

    def _take_head(self) -> None:
        answer, address = self._answer, self._address
        status = answer.status
        if status not in (200, 206):
            self._refuse(status)
        self.version = answer.getheader("ETag") or answer.getheader("Last-Modified")
        if status == 206:
            found = _RANGE.fullmatch(answer.getheader("Content-Range", ""))
            first, last, self.nbytes = map(int, found.groups()) if found else (-1, -1, -1)
            if first != self._wanted[0] or not first <= last < self.nbytes:
                raise SourceError(
                    f"{address}: asked for the bytes from {self._wanted[0]} on, the server sends "
                    "others, or does not say which; download the file, and pack the copy"
                )
            self.start, self._left = first, last + 1 - first
            return
        length = answer.getheader("Content-Length", "")
        if not _NUMBER.fullmatch(length):
            raise SourceError(
                f"{address}: the server does not send the size of the file (Content-Length), so "
                "a truncated answer could not be noticed; download the file, and pack the copy"
            )
        self.start, self._left = 0, int(length)
        self.nbytes = self._left

    def _refuse(self, status: int) -> None:
        """Raise what a status other than success means."""
        what = f"{status} {http.client.responses.get(status, '')}".strip()
        if status in REPEATED or status >= 500:
            asked = self._answer.getheader("Retry-After", "")
            wait = float(asked) if _NUMBER.fullmatch(asked) else None
            raise Broken(f"the server answers {what}", wait)
        if status == 412:
            raise changed(self._address)
        if status in _EXPIRED:
            raise SourceError(
                f"{self._address}: the server answers {what}: a signed link has expired, or was "
                "cut; download the list of links again and repeat the command with it (sources "
                "already packed are not downloaded again)"
            )
        raise SourceError(f"{self._address}: the server answers {what}; check the URL")


def changed(address: Address) -> SourceError:
    """The error for a file that is not the one that was there when it was first asked for."""
    return SourceError(
        f"{address}: the file there has changed since it was first asked for; repeat the command "
        "when nothing writes to it any more"
    )


def _proxy(parts: SplitResult) -> str | None:
    """URL of the proxy that the environment names for a URL."""
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _authorization(proxy: SplitResult) -> dict[str, str]:
    """The header with the user and password that the URL of a proxy has, if it does."""
    if proxy.username is None:
        return {}
    secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(secret.encode()).decode()}"}


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    """An unopened connection to the host of a URL, or to the proxy in between."""
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    port = parts.port or kind.default_port  # without one, it would be looked for in the host
    if (proxy := _proxy(parts)) is None:
        return kind(parts.hostname, port, timeout=TIMEOUT)
    through = urlsplit(proxy)
    connection = kind(through.hostname, through.port or 80, timeout=TIMEOUT)
    if secure:
        connection.set_tunnel(parts.hostname, port, _authorization(through))
    return connection


def failure_text(error: BaseException) -> str:
    """An exception of a connection, in words; http.client's have no text, or only a part of one."""
    if isinstance(error, TimeoutError):
        return f"no byte for {TIMEOUT} s"
    if isinstance(error, OSError):
        if proxy := re.match(r"Tunnel connection failed: (\d{3})\b", str(error)):
            return f"the proxy answered {proxy[1]}"  # without its phrase
        return error.strerror or type(error).__name__
    return type(error).__name__
