"""A file of the web, read once from start to end.

A body that breaks off is continued at its byte, of the same version of the file, after a wait that
grows. A server without ranges sends the file again from its start, and what was read is compared
by its digest and skipped.

The web is asked with the standard library (why: docs/decisions/0011). Redirects and the proxies of
the environment are followed. No text of a server is shown, since it may echo a signed query, and
none of an exception of `http.client` but those without a URL.
"""

import http.client
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import xxhash

from sa1bpack.errors import SourceError
from sa1bpack.remote.attempts import MAY_PASS, Attempts, OnWait
from sa1bpack.urls import WEB_SCHEMES, Address, Patience

_SKIP_BYTES = 1 << 18

# Seconds without a byte, or without a connection, after which a request is broken.
TIMEOUT = 30
MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_EXPIRED = frozenset({401, 403, 410})
# Larger numbers are no sizes: Python refuses to read those of thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_UNQUOTED = "%/:?#[]@!$&'()*+,;=~"  # in a URL, what is not quoted again


class Broken(Exception):
    """A request or its body failed in a way that may pass.

    Args:
        why: what failed.
        wait: seconds after which the server asks to be asked again.
    """

    def __init__(self, why: str, wait: float = 0.0):
        super().__init__(why)
        self.wait = wait


class _Connections(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """A handler that calls a function with each socket that is connected."""

    def __init__(self, connected: Callable[[socket.socket], None]):
        super().__init__()
        self._connected = connected

    def do_open(self, kind, request, **options):
        """See urllib."""

        def made(*args, **more):
            connection = kind(*args, **more)
            connect = connection.connect
            connection.connect = lambda: (connect(), self._connected(connection.sock))
            return connection

        return super().do_open(made, request, **options)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows a few redirects; others are an answer of this status."""

    max_repeats = max_redirections = MAX_REDIRECTS

    def redirect_request(self, request, answer, code, message, headers, url):
        """See urllib."""
        answer.close()  # what it says is not read
        schemes = urlsplit(request.full_url).scheme.lower(), urlsplit(url).scheme.lower()
        if schemes[1] not in WEB_SCHEMES or schemes == ("https", "http"):
            return None
        found = super().redirect_request(request, answer, code, message, headers, url)
        found.remove_header("Proxy-authorization")  # that of the proxy for this one is added
        return found


class WebFile:
    """The bytes of a file, forward only, see `urls.Stream`.

    Nothing is requested before the first `read`. A file of another size or version than its address
    has, or than the first answer had, is an error.
    """

    _socket: socket.socket | None = None
    _answer: Any = None  # that is being read, None before a request
    _left = 0  # bytes of its body

    def __init__(
        self,
        address: Address,
        *,
        digest: Callable[[], str] | None = None,
        stop: int | None = None,
        patience: Patience | None = None,
        on_wait: OnWait = None,
    ):
        """
        Args:
            address: address of the file.
            digest: returns the hex XXH3-128 of all bytes that `read` has returned. Without it,
                reading cannot continue from a server without ranges.
            stop: read no further than this byte.
            patience: attempts that the files of its host have; None: that of this file alone.
            on_wait: as for Attempts.
        """
        self.address = address
        self._digest = digest
        self._stop = stop
        self._attempts = Attempts(address, patience or Patience(), on_wait)
        self._position = 0
        self._cancelled = threading.Event()

    @property
    def nbytes(self) -> int | None:
        """Size of the file; None before the first `read`, unless the address has it."""
        return self.address.nbytes

    def read(self, count: int) -> bytes:
        """At most `count` more bytes, b"" at the end.

        Raises SourceError if the file cannot be read, or changes.
        """
        while True:
            try:
                if self._answer is None:
                    self._open()
                data = self._body(count)
                end = self.nbytes if self._stop is None else min(self._stop, self.nbytes)
                if not data and self._position < end:
                    raise Broken(f"the answer ended {end - self._position} bytes too early")
            except Broken as fault:
                self.close()
                why = str(fault)
                wait = self._attempts.failed(SourceError, why, self._position, fault.wait)
                if self._cancelled.wait(wait):
                    raise SourceError(f"{self.address}: reading was interrupted") from None
                continue
            self._attempts.succeeded()
            self._position += len(data)
            return data

    def cancel(self) -> None:
        """End a `read` in another thread; it and all later ones raise SourceError."""
        self._cancelled.set()
        if (opened := self._socket) is not None:
            # That of SSLSocket would take its state away from the thread that reads.
            with suppress(OSError):
                socket.socket.shutdown(opened, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        answer = self._answer
        self._answer = None
        self._socket = None
        if answer is not None:
            with suppress(OSError):
                answer.close()

    # ------------------------------------------------------------------------------- one request
    # What may pass is Broken, also after `cancel`; what no repetition changes is a SourceError.

    def _open(self) -> None:
        """Request the file from the current position on, and read the head of the answer."""
        address = self.address
        headers = {"Accept-Encoding": "identity", "User-Agent": "sa1bpack"}
        if self._position or self._stop is not None:
            last = "" if self._stop is None else self._stop - 1
            headers["Range"] = f"bytes={self._position}-{last}"
        # A weak ETag never matches, and a time is compared afterwards.
        if (address.version or "").startswith('"'):
            headers["If-Match"] = address.version
        opener = urllib.request.build_opener(_Connections(self._connected), _Redirects())
        try:
            url = quote(address.url, safe=_UNQUOTED)
            request = urllib.request.Request(url, headers=headers)
            self._answer = opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            self._answer = error
            raise self._refused(error.code) from None
        except ValueError:  # of names that no host can have, and of redirects to what is no URL
            raise SourceError(f"{address}: the URL cannot be used; check it") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
                error = error.reason
            if isinstance(error, ssl.SSLCertVerificationError):
                raise SourceError(
                    f"{address}: its certificate cannot be trusted ({error.verify_message}); "
                    "check the host, and the clock of this machine"
                ) from None
            if (status := _status_of_proxy(error)) is not None and not _may_pass(status):
                raise SourceError(
                    f"{address}: {failure_text(error)}; check the proxy that the environment names "
                    "(https_proxy, no_proxy), and its user name and password"
                ) from None
            raise Broken(failure_text(error)) from None
        start, nbytes = self._take_head()
        version = self._answer.headers.get("ETag") or self._answer.headers.get("Last-Modified")
        if address.nbytes not in (None, nbytes) or address.version not in (None, version):
            raise self._changed()
        self.address = replace(address, nbytes=nbytes, version=version)
        if start == self._position:
            return
        # The server sends the file from its start: what was read before is compared.
        again = xxhash.xxh3_128()
        left = self._position
        while left and (data := self._body(min(left, _SKIP_BYTES))):
            again.update(data)
            left -= len(data)
        if self._digest is None or again.hexdigest() != self._digest():
            raise self._changed()

    def _connected(self, opened: socket.socket) -> None:
        self._socket = opened
        if self._cancelled.is_set():
            raise Broken("cancelled")

    def _take_head(self) -> tuple[int, int]:
        """The byte at which the body begins, and the size of the file."""
        headers = self._answer.headers
        status = self._answer.status
        if status == 206:
            found = _RANGE.fullmatch(headers.get("Content-Range", ""))
            first, last, nbytes = map(int, found.groups()) if found else (-1, -1, -1)
            if first != self._position or not first <= last < nbytes:
                raise SourceError(
                    f"{self.address}: asked for the bytes from {self._position} on, the server "
                    "sends others, or does not say which; download the file, and pack the copy"
                )
            self._left = last + 1 - first
            return first, nbytes
        if status != 200:
            raise self._refused(status)
        length = headers.get("Content-Length", "")
        if not _NUMBER.fullmatch(length):
            raise SourceError(
                f"{self.address}: the server does not send the size of the file (Content-Length), "
                "so a truncated answer could not be noticed; download the file, and pack the copy"
            )
        self._left = int(length)
        return 0, self._left

    def _body(self, count: int) -> bytes:
        """At most `count` more bytes, b"" at the end of the file or of the part asked for."""
        try:
            data = self._answer.read(min(count, self._left))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Broken(failure_text(error)) from None
        if self._left and not data:  # http.client says nothing of it
            raise Broken(f"the connection ended {self._left} bytes too early")
        self._left -= len(data)
        return data

    def _refused(self, status: int) -> Exception:
        """The error for a status other than success."""
        what = f"the server answers {status} {http.client.responses.get(status, '')}".strip()
        if _may_pass(status):
            asked = self._answer.headers.get("Retry-After", "")
            return Broken(what, float(asked) if _NUMBER.fullmatch(asked) else 0.0)
        if status == 412:
            return self._changed()
        if status in _REDIRECTS:
            what = f"the server redirects more than {MAX_REDIRECTS} times, from https to http, "
            what += "or to what is no address of the web"
        elif status in _EXPIRED:
            what += (
                ": a signed link has expired, or was cut; download the list of links again and "
                "repeat the command with it (sources already packed are not downloaded again)"
            )
        else:
            what += "; check the URL"
        return SourceError(f"{self.address}: {what}")

    def _changed(self) -> SourceError:
        """The error for a file that is not the one that was there when it was first asked for."""
        return SourceError(
            f"{self.address}: the file there has changed since it was first asked for; repeat the "
            "command when nothing writes to it any more"
        )


def _may_pass(status: int) -> bool:
    """True if a request that was answered with this status may be answered better later."""
    return status in MAY_PASS or status >= 500


def _status_of_proxy(error: BaseException) -> int | None:
    """The status with which a proxy refused a connection to the server; None for other errors."""
    match = re.match(r"Tunnel connection failed: (\d{3})\b", str(error))
    return None if match is None else int(match[1])


def failure_text(error: BaseException) -> str:
    """An exception of a connection, in words; http.client's have no text, or only a part of one."""
    if isinstance(error, TimeoutError):
        return f"no byte for {TIMEOUT} s"
    if isinstance(error, OSError):
        if (status := _status_of_proxy(error)) is not None:
            return f"the proxy answered {status}"  # without its phrase
        return error.strerror or type(error).__name__
    return type(error).__name__
