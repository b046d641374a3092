"""One GET from an object store, by obstore."""

import functools
import os
import re
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

from sa1bpack.errors import SourceError
from sa1bpack.interrupts import result_of
from sa1bpack.remote.body import REPEATED, Broken
from sa1bpack.remote.stores import (
    CONNECT_SECONDS,
    READ_SECONDS,
    begin,
    error_text,
    library_text,
    open_store,
    package,
)
from sa1bpack.remote.web import changed
from sa1bpack.urls import Address

CHUNK_BYTES = 1 << 20  # which the library collects before it hands them over
_STATUS = re.compile(r"status code: (\d{3})")


@functools.lru_cache(maxsize=64)
def _store(process: int, scheme: str, bucket: str) -> Any:
    """The store of a bucket, without retries: `remote_file` has its own."""
    return open_store(scheme, bucket, retries=0)


def opened_store(address: Address) -> Any:
    """The store that an address lies in, opened once per process; raises as `open_store` does."""
    return _store(os.getpid(), address.scheme, address.bucket)


class StoreBody:
    """A Body from an object store.

    start, stop
        As in WebBody.
    """

    def __init__(self, address: Address, start: int = 0, stop: int | None = None):
        self._address = address
        self._wanted = start, stop
        self._future: Future | None = None
        self._cancelled = False
        self._stream: Any = None
        self._chunk = memoryview(b"")
        self.nbytes, self.version, self.start = 0, None, 0

    def open(self) -> None:
        address, (start, stop) = self._address, self._wanted
        obstore = package("obstore")
        store = opened_store(address)
        options: dict[str, Any] = {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)
        if address.version:
            options["if_match"] = address.version

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
        self._stream = None
        self._chunk = memoryview(b"")

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
            self._raise(error)
        finally:
            self._future.cancel()

    def _raise(self, error: Exception) -> None:
        """Raise what an exception of obstore means."""
        kinds, address, text = package("obstore.exceptions"), self._address, error_text(error)
        said = library_text(error)
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"{address}: there is no such object; check the URL") from None
        if isinstance(error, ValueError):  # of a key that the library does not take, such as a//b
            raise SourceError(f"{address}: {text}") from None
        if isinstance(error, kinds.PreconditionError):
            raise changed(address) from None
        if "configured region" in said:  # a redirect without a target
            raise SourceError(
                f"{address}: the bucket lies in another region; set AWS_REGION to that one"
            ) from None
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        if 400 <= status < 500 and status not in REPEATED:
            raise SourceError(
                f"{address}: {_reason(text)}; check the URL, and whether the tools of the cloud "
                "may read it with the credentials that are in force here"
            ) from None
        raise Broken(_reason(text)) from None


async def _next(stream: Any) -> Any:
    """The next chunk of a stream of obstore, b"" at its end."""
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return b""


def _reason(text: str) -> str:
    """The end of a text of obstore, after the URL and the number of its own retries."""
    return text.rpartition(" - ")[2]
