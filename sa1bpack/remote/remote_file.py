"""A file of the web or of an object store, read once from start to end.

A body that breaks off is continued at its byte, of the same version of the file, after a wait that
grows. A server without ranges sends the file again from its start, and what was read is compared
by its digest and skipped.
"""

import functools
import os
import random
import re
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import xxhash

from sa1bpack.errors import SourceError
from sa1bpack.interrupts import result_of
from sa1bpack.remote.bucket import begin
from sa1bpack.remote.stores import (
    CONNECT_SECONDS,
    READ_SECONDS,
    error_text,
    final_error,
    open_store,
    package,
)
from sa1bpack.remote.web import REPEATED, Body, Broken, WebBody, changed
from sa1bpack.urls import STORE_SCHEMES, Address
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
_STATUS = re.compile(r"status code: (\d{3})")


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
            return await obstore.get_async(store, address.key, options=options)

        result = self._wait(get())
        self.nbytes, self.version = result.meta["size"], result.meta["e_tag"]
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
        address, text = self._address, error_text(error).rpartition(" - ")[2]
        if (found := final_error(error, address, SourceError)) is not None:
            return found
        if isinstance(error, FileNotFoundError):
            return SourceError(f"{address}: there is no such object; check the URL")
        if isinstance(error, package("obstore.exceptions").PreconditionError):
            return changed(address)
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
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
