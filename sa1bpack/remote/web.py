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
# A larger number is no size; Python refuses to convert one of thousands of digits.
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

    def do_open(self, http_class: Any, req: Any, **options: Any) -> Any:
        """See urllib."""

        def connection_of(*args: Any, **more: Any) -> Any:
            connection = http_class(*args, **more)
            connect = connection.connect

            def connect_and_tell() -> None:
                connect()
                self._connected(connection.sock)

            connection.connect = connect_and_tell
            return connection

        return super().do_open(connection_of, req, **options)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows a few redirects; others are an answer of this status."""

    max_repeats = MAX_REDIRECTS
    max_redirections = MAX_REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See urllib."""
        fp.close()  # what the answer says is not read
        scheme = urlsplit(req.full_url).scheme.lower()
        new_scheme = urlsplit(newurl).scheme.lower()
        if new_scheme not in WEB_SCHEMES or (scheme == "https" and new_scheme == "http"):
            return None
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None:  # the proxy's own authorization is added to it
            redirected.remove_header("Proxy-authorization")
        return redirected


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
                end = self._end()
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

    def _end(self) -> int:
        """The byte up to which the file is read; its size is known."""
        nbytes = self.address.nbytes or 0
        if self._stop is None:
            return nbytes
        return min(self._stop, nbytes)

    def cancel(self) -> None:
        """End a `read` in another thread; it and all later ones raise SourceError."""
        self._cancelled.set()
        connected = self._socket
        if connected is not None:
            # The method of SSLSocket would take its state away from the thread that reads.
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

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
        self._answer = self._request()
        start, nbytes = self._take_head()
        version = self._answer.headers.get("ETag") or self._answer.headers.get("Last-Modified")
        if address.nbytes not in (None, nbytes) or address.version not in (None, version):
            raise self._changed()
        self.address = replace(address, nbytes=nbytes, version=version)
        if start != self._position:  # the server sends the file from its start
            self._compare_what_was_read()

    def _compare_what_was_read(self) -> None:
        """Read on to the current position, and compare what is sent with what was read before."""
        again = xxhash.xxh3_128()
        left = self._position
        while left:
            data = self._body(min(left, _SKIP_BYTES))
            if not data:
                break
            again.update(data)
            left -= len(data)
        if self._digest is None or again.hexdigest() != self._digest():
            raise self._changed()

    def _headers(self) -> dict[str, str]:
        """The headers of a request for the file from the current position on."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "sa1bpack"}
        if self._stop is not None:
            headers["Range"] = f"bytes={self._position}-{self._stop - 1}"
        elif self._position:
            headers["Range"] = f"bytes={self._position}-"
        version = self.address.version
        # A weak ETag never matches, and a time is compared afterwards.
        if version is not None and version.startswith('"'):
            headers["If-Match"] = version
        return headers

    def _request(self) -> Any:
        """The answer to a request for the file from the current position on."""
        opener = urllib.request.build_opener(_Connections(self._connected), _Redirects())
        try:
            url = quote(self.address.url, safe=_UNQUOTED)
            request = urllib.request.Request(url, headers=self._headers())
            return opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            self._answer = error
            raise self._refused(error.code) from None
        except ValueError:  # of names that no host can have, and of redirects to what is no URL
            raise SourceError(f"{self.address}: the URL cannot be used; check it") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.URLError) and isinstance(error.reason, Exception):
                raise self._no_answer(error.reason) from None
            raise self._no_answer(error) from None

    def _no_answer(self, error: Exception) -> SourceError | Broken:
        """The error for a request that got no answer."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return SourceError(
                f"{self.address}: its certificate cannot be trusted ({error.verify_message}); "
                "check the host, and the clock of this machine"
            )
        status = _status_of_proxy(error)
        if status is not None and not _may_pass(status):
            return SourceError(
                f"{self.address}: {failure_text(error)}; check the proxy that the environment "
                "names (https_proxy, no_proxy), and its user name and password"
            )
        return Broken(failure_text(error))

    def _connected(self, connected: socket.socket) -> None:
        self._socket = connected
        if self._cancelled.is_set():
            raise Broken("cancelled")

    def _take_head(self) -> tuple[int, int]:
        """The byte at which the body begins, and the size of the file."""
        headers = self._answer.headers
        status = self._answer.status
        if status == 206:
            match = _RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is not None:
                first, last, nbytes = map(int, match.groups())
                if self._position == first <= last < nbytes:
                    self._left = last + 1 - first
                    return first, nbytes
            raise SourceError(
                f"{self.address}: asked for the bytes from {self._position} on, the server "
                "sends others, or does not say which; download the file, and pack the copy"
            )
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
            data: bytes = self._answer.read(min(count, self._left))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Broken(failure_text(error)) from None
        if self._left and not data:  # http.client says nothing of it
            raise Broken(f"the connection ended {self._left} bytes too early")
        self._left -= len(data)
        return data

    def _refused(self, status: int) -> Exception:
        """The error for a status other than success."""
        phrase = http.client.responses.get(status, "")
        text = f"the server answers {status} {phrase}".strip()
        if _may_pass(status):
            seconds = self._answer.headers.get("Retry-After", "")
            return Broken(text, float(seconds) if _NUMBER.fullmatch(seconds) else 0.0)
        if status == 412:
            return self._changed()
        if status in _REDIRECTS:
            return SourceError(
                f"{self.address}: the server redirects more than {MAX_REDIRECTS} times, from https "
                "to http, or to what is no address of the web"
            )
        if status in _EXPIRED:
            return SourceError(
                f"{self.address}: {text}: a signed link has expired, or was cut; download the list "
                "of links again and repeat the command with it (sources already packed are not "
                "downloaded again)"
            )
        return SourceError(f"{self.address}: {text}; check the URL")

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
    if match is None:
        return None
    return int(match[1])


def failure_text(error: BaseException) -> str:
    """An exception of a connection, in words; http.client's have no text, or only a part of one."""
    if isinstance(error, TimeoutError):
        return f"no byte for {TIMEOUT} s"
    if isinstance(error, OSError):
        status = _status_of_proxy(error)
        if status is not None:
            return f"the proxy answered {status}"  # without its phrase
        return error.strerror or type(error).__name__
    return type(error).__name__
