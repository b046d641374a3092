"""A file of the web or of an object store, read once from start to end.

A body that breaks off is continued at its byte, of the same version of the file, after a wait that
grows. A server without ranges sends the file again from its start, and what was read is compared
by its digest and skipped.

The web is asked with the standard library (why: docs/decisions/0011). Redirects and the proxies of
the environment are followed. No text of a server is shown, since it may echo a signed query, and
none of an exception of `http.client` but those without a URL.
"""

import functools
import http.client
import os
import random
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import xxhash

from sa1bpack.errors import SourceError
from sa1bpack.interrupts import result_of
from sa1bpack.remote.stores import (
    CONNECT_SECONDS,
    READ_SECONDS,
    begin,
    error_text,
    final_error,
    open_store,
    package,
    status_of,
)
from sa1bpack.urls import STORE_SCHEMES, WEB_SCHEMES, Address
from sa1bpack.wording import counted

# Failures in a row, with less than PROGRESS_BYTES in between, after which a file is given up; the
# waits between them add up to 5 to 8 minutes, so that a short outage does not waste what was read.
ATTEMPTS = 20
PROGRESS_BYTES = 1 << 20
# Seconds of the first wait, which doubles, up to the longest; a random half of it is taken off, so
# that many readers do not return at the same moment.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
LONGEST_ASKED = 120.0  # that a server may ask for
_JITTER = random.Random()  # the program's own generator stays as it is
_SKIP_BYTES = 1 << 18
CHUNK_BYTES = 1 << 20  # which the library collects before it hands them over

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


def changed(address: Address) -> SourceError:
    """The error for a file that is not the one that was there when it was first asked for."""
    return SourceError(
        f"{address}: the file there has changed since it was first asked for; repeat the command "
        "when nothing writes to it any more"
    )


class RemoteFile:
    """The bytes of a file, forward only. Nothing is requested before the first `read`.

    nbytes, version
        Of the file, as in Address; None until the first `read`, unless the address has them. A
        file with others is an error.
    """

    def __init__(
        self,
        address: Address,
        digest: Callable[[], str] | None = None,
        *,
        stop: int | None = None,
        attempts: int = ATTEMPTS,
        on_wait: Callable[[str], object] | None = None,
    ):
        """
        digest
            Returns the hex XXH3-128 of all bytes that `read` has returned. Without it, a server
            without ranges cannot be continued from.
        stop
            Read no further than this byte.
        attempts
            As ATTEMPTS.
        on_wait
            Called with a line for the user when attempts fail for longer than a moment.
        """
        self.address = address
        self.position = 0
        self._digest = digest
        self._stop = stop
        self._attempts = attempts
        self._on_wait = on_wait
        self._body: Body | None = None
        self._failures = 0
        self._failed_at = 0
        self._cancelled = threading.Event()

    @property
    def nbytes(self) -> int | None:
        """Size of the file."""
        return self.address.nbytes

    def read(self, count: int) -> bytes:
        """At most `count` more bytes, b"" at the end.

        Raises SourceError if the file cannot be read, or changes.
        """
        while True:
            try:
                if self._body is None:
                    self._open()
                data = self._body.read(count)
                if not data and (left := self._end() - self.position):
                    raise Broken(f"the answer ended {left} bytes too early")
            except Broken as fault:
                self.close()
                self._wait(fault)
                continue
            self.position += len(data)
            return data

    def _end(self) -> int:
        """The byte at which reading ends, once the file is open."""
        return self.nbytes if self._stop is None else min(self._stop, self.nbytes)

    def cancel(self) -> None:
        """End a `read` in another thread; it and all later ones raise SourceError."""
        self._cancelled.set()
        if (body := self._body) is not None:
            body.cancel()

    def close(self) -> None:
        """Close the connection."""
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def _open(self) -> None:
        """Request the file from `position` on."""
        kind = StoreBody if self.address.scheme in STORE_SCHEMES else WebBody
        body = kind(self.address, self.position, self._stop)
        self._body = body
        if self._cancelled.is_set():
            raise Broken("cancelled")
        body.open()
        known = self.address.nbytes, self.address.version
        if known[0] not in (None, body.nbytes) or known[1] not in (None, body.version):
            raise changed(self.address)
        self.address = replace(self.address, nbytes=body.nbytes, version=body.version)
        if body.start != self.position:
            self._skip_to_position(body)

    def _skip_to_position(self, body: Body) -> None:
        """Read again what was read, from a server that sends the file from its start."""
        again, left = xxhash.xxh3_128(), self.position
        while left and (data := body.read(min(left, _SKIP_BYTES))):
            again.update(data)
            left -= len(data)
        if self._digest is None or again.hexdigest() != self._digest():
            raise changed(self.address)

    def _wait(self, fault: Broken) -> None:
        """Wait before the next attempt. Raises SourceError after the last one."""
        if self._cancelled.is_set():
            raise SourceError(f"{self.address}: reading was interrupted")
        if self.position >= self._failed_at + PROGRESS_BYTES:
            self._failures = 0
        self._failed_at = self.position
        self._failures += 1
        if self._failures >= self._attempts:
            raise SourceError(
                f"{self.address}: given up at byte {self.position} after "
                f"{counted(self._failures, 'attempt')} without progress, the last one: {fault}; "
                "check the network, and repeat the command"
            )
        if self._on_wait is not None and self._failures % 5 == 3:
            self._on_wait(
                f"{self.address}: {fault}; asking again from byte {self.position} "
                f"(attempt {self._failures + 1} of {self._attempts})"
            )
        self._cancelled.wait(seconds_to_wait(self._failures, fault.wait))


def seconds_to_wait(failures: int, asked: float | None) -> float:
    """Before the next attempt, after so many failures in a row.

    asked
        Seconds that the server asks for, if it does.
    """
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (failures - 1))
    wait = _JITTER.uniform(longest / 2, longest)
    return wait if asked is None else min(max(wait, asked), LONGEST_ASKED)


class _Connections(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Calls a function with each socket that is connected."""

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
    """Follows a few redirects; others are an answer of this status."""

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


class WebBody(Body):
    """One request over http or https."""

    _socket: socket.socket | None = None
    _answer: Any = None
    _left = 0

    def open(self) -> None:
        """Send the request, follow redirects, and read the head of the answer."""
        address, (start, stop) = self._address, self._wanted
        headers = {"Accept-Encoding": "identity", "User-Agent": "sa1bpack"}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
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
            self._refuse(error.code)
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
            raise Broken(failure_text(error)) from None
        self._take_head()

    def _connected(self, opened: socket.socket) -> None:
        self._socket = opened
        if self._cancelled:
            raise Broken("cancelled")

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
        if self._answer is not None:
            with suppress(OSError):
                self._answer.close()
        self._socket = None

    def _take_head(self) -> None:
        headers, address, status = self._answer.headers, self._address, self._answer.status
        if status not in (200, 206):
            self._refuse(status)
        self.version = headers.get("ETag") or headers.get("Last-Modified")
        if status == 206:
            found = _RANGE.fullmatch(headers.get("Content-Range", ""))
            first, last, self.nbytes = map(int, found.groups()) if found else (-1, -1, -1)
            if first != self._wanted[0] or not first <= last < self.nbytes:
                raise SourceError(
                    f"{address}: asked for the bytes from {self._wanted[0]} on, the server sends "
                    "others, or does not say which; download the file, and pack the copy"
                )
            self.start, self._left = first, last + 1 - first
            return
        length = headers.get("Content-Length", "")
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
            asked = self._answer.headers.get("Retry-After", "")
            wait = float(asked) if _NUMBER.fullmatch(asked) else None
            raise Broken(f"the server answers {what}", wait)
        if status == 412:
            raise changed(self._address)
        if status in _REDIRECTS:
            raise SourceError(
                f"{self._address}: the server redirects more than {MAX_REDIRECTS} times, from "
                "https to http, or to what is no address of the web, which is not followed"
            )
        if status in _EXPIRED:
            raise SourceError(
                f"{self._address}: the server answers {what}: a signed link has expired, or was "
                "cut; download the list of links again and repeat the command with it (sources "
                "already packed are not downloaded again)"
            )
        raise SourceError(f"{self._address}: the server answers {what}; check the URL")


def failure_text(error: BaseException) -> str:
    """An exception of a connection, in words; http.client's have no text, or only a part of one."""
    if isinstance(error, TimeoutError):
        return f"no byte for {TIMEOUT} s"
    if isinstance(error, OSError):
        if proxy := re.match(r"Tunnel connection failed: (\d{3})\b", str(error)):
            return f"the proxy answered {proxy[1]}"  # without its phrase
        return error.strerror or type(error).__name__
    return type(error).__name__


@functools.lru_cache(maxsize=64)
def _store(process: int, scheme: str, bucket: str) -> Any:
    """The store of a bucket, without retries: `remote_file` has its own."""
    return open_store(scheme, bucket, retries=0)


def opened_store(address: Address) -> Any:
    """The store that an address lies in, opened once per process; raises as `open_store` does."""
    return _store(os.getpid(), address.scheme, address.bucket)


class StoreBody(Body):
    """One request to an object store."""

    _future: Future | None = None
    _stream: Any = None
    _chunk = memoryview(b"")

    def open(self) -> None:
        address, (start, stop) = self._address, self._wanted
        obstore = package("obstore")
        store = opened_store(address)
        options: dict[str, Any] = {"if_match": address.version} if address.version else {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)

        async def get():
            result = await obstore.get_async(store, address.key, options=options)
            return result, result.meta  # of which a date may be none of Python's: a ValueError

        result, meta = self._wait(get())
        self.nbytes, self.version = meta["size"], meta["e_tag"]
        self.start = result.range[0]
        self._stream = result.stream(min_chunk_size=CHUNK_BYTES)

    def read(self, count: int) -> bytes:
        if not self._chunk:
            self._chunk = memoryview(self._wait(_next(self._stream)))
        data, self._chunk = bytes(self._chunk[:count]), self._chunk[count:]
        return data

    def cancel(self) -> None:
        self._cancelled = True
        if (future := self._future) is not None:
            future.cancel()

    def close(self) -> None:
        self._stream, self._chunk = None, memoryview(b"")

    def _wait(self, work: Coroutine) -> Any:
        self._future = begin(work)
        if self._cancelled:
            self._future.cancel()
        try:
            return result_of(self._future, READ_SECONDS + CONNECT_SECONDS)
        except CancelledError:
            raise Broken("cancelled") from None
        except TimeoutError:
            raise Broken(f"no byte for {READ_SECONDS} s") from None
        except (FileNotFoundError, ValueError, package("obstore.exceptions").BaseError) as error:
            raise self._meaning(error) from None
        finally:
            self._future.cancel()

    def _meaning(self, error: Exception) -> Exception:
        """Broken for an exception of obstore that may pass, or a SourceError that says why."""
        address, text = self._address, error_text(error)
        if (found := final_error(error, address, SourceError)) is not None:
            return found
        if isinstance(error, FileNotFoundError):
            return SourceError(f"{address}: there is no such object; check the URL")
        if isinstance(error, package("obstore.exceptions").PreconditionError):
            return changed(address)
        status = status_of(error)
        # A ValueError is one of a key that the library does not take, such as a//b.
        refused = 400 <= status < 500 and status not in REPEATED
        final = refused or isinstance(error, ValueError)
        return SourceError(f"{address}: {text}; check the URL") if final else Broken(text)


async def _next(stream: Any) -> Any:
    """The next chunk of a stream of obstore, b"" at its end."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return b""
