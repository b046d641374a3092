"""Folders of buckets: requests to an object store, repeated where that may help.

obstore is waited for in one event loop, by its asynchronous calls alone. The blocking ones do not
notice signals, and cannot be ended from another thread.
"""

import asyncio
import atexit
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import xxhash

from sa1bpack.errors import FormatError, SourceError, StoreError
from sa1bpack.finalizers import Living
from sa1bpack.format.files import MAX_METADATA_BYTES
from sa1bpack.interrupts import result_of
from sa1bpack.remote.attempts import BUSY, NETWORK_REMEDY, Attempts, OnWait
from sa1bpack.remote.origin import (
    RANGE_BYTES,
    TRIES,
    Answered,
    EndsEarly,
    Origin,
    interrupted,
)
from sa1bpack.remote.stores import (
    CHANGED,
    endpoint_text,
    error_text,
    final_error,
    forget_stores,
    is_refused,
    is_unreachable,
    open_store,
    package,
    status_of,
    store_of,
)
from sa1bpack.threads import ThreadPool, start_thread
from sa1bpack.urls import HUB_SCHEME, STORE_SCHEMES, WEB_SCHEMES, Address, Patience, shown

# How long the end of the process waits at most for threads of the library: they need milliseconds,
# but for one that asks for credentials.
END_SECONDS = 30.0

# How long requests to the store of a pack are repeated at least, while no connection to it
# succeeds: a server that is started again must not end every rank of a training run. With the
# repetitions of the library it ends before `flow.DEADLINE` and the Loader's timeout.
SECONDS_UNREACHABLE = 60.0
# The same, while it answers that it is asked too often. For how long it asks to be left alone
# (Retry-After), the library does not tell.
SECONDS_BUSY = 60.0

# Objects that are written at once, most of them small.
AT_ONCE = 8

# Parts of an upload, of which a store takes at most 10,000. One connection to an object store gets
# 50 to 100 MB/s, so that large objects are written, and read, by several.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 8
RANGES_AT_ONCE = 8

Pieces = Generator[Any, None, None]  # bytes of a file, in objects with a buffer


class EventLoop(asyncio.SelectorEventLoop):
    """An event loop that knows which of its futures are held, by the library too.

    A thread of the library hands over the outcome of a future, also of one that was cancelled
    before. If it does so when the interpreter ends, or has ended, it takes the process down with it
    (SIGABRT, SIGSEGV). So the process ends when the library has let go of all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = Living[asyncio.Future[Any]]()
        self.ended = False
        self._thread = 0  # in which it runs

    def run_forever(self) -> None:
        """See asyncio."""
        self._thread = threading.get_ident()
        super().run_forever()

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio. The library asks for one with each request."""
        future = super().create_future()
        self.held.add(future)
        return future

    def call_in_it(self, work: Callable[[], object]) -> None:
        """Call this in the thread of the loop: now if this is it, else soon."""
        if threading.get_ident() == self._thread:
            work()
        else:
            self.call_soon_threadsafe(work)

    async def settle(self) -> None:
        """Cancel all tasks, and wait until the library is done with what they waited for."""
        self.ended = True
        limit = time.monotonic() + END_SECONDS
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del tasks
        while self.held and time.monotonic() < limit:
            package("obstore.store").MemoryStore()  # on entry, the library lets go of what it may
            time.sleep(0.002)  # asyncio's own sleep is a future, too
            await asyncio.sleep(0)


@functools.cache
def _loop(process: int) -> EventLoop:
    """The event loop of this process, in a thread of its own; a fork has another."""
    loop = EventLoop()

    def end() -> None:
        if process == os.getpid():  # before the interpreter ends, nothing is in progress any more
            asyncio.run_coroutine_threadsafe(loop.settle(), loop).result()

    start_thread(loop.run_forever, "sa1bpack-cloud")
    atexit.register(end)
    return loop


def ending() -> StoreError:
    """The error of a request when the process ends."""
    return StoreError("the process is ending")


class _LoopRequest:
    """A request in the event loop, whose answer is handed over there, see `Origin.ask`."""

    def __init__(self, loop: EventLoop, work: Coroutine[Any, Any, Any], answered: Answered):
        self._loop = loop
        self._work = work
        self._answered = answered
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Begin it. In the loop, as all that follows."""
        if self._loop.ended:
            self._work.close()
            self._answered(None, ending())
            return
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._hand_over)

    def cancel(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

    def _hand_over(self, task: "asyncio.Task[Any]") -> None:
        self._task = None  # which has the answer, and so its bytes
        if task.cancelled():
            self._answered(None, StoreError("a request was interrupted"))
            return
        error = task.exception()
        if error is None:
            self._answered(task.result(), None)
        elif isinstance(error, Exception):
            self._answered(None, error)
        else:
            self._answered(None, StoreError(f"a request was ended by {type(error).__name__}"))


def run_in_loop(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine in the event loop; the future's `result` waits, and `cancel` ends it.

    Raises StoreError when the process ends.
    """
    loop = _loop(os.getpid())
    if loop.ended:
        work.close()
        raise ending()
    return asyncio.run_coroutine_threadsafe(work, loop)


def parts_of(url: str) -> tuple[str, str, str]:
    """Scheme, bucket or host, and key of the URL of a folder; a data set of the hub is a bucket.

    The key is that of the library, which quotes it for a web server.
    """
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    count = 3 if scheme == HUB_SCHEME else 1
    key = "/".join(parts[count:])
    if scheme in WEB_SCHEMES:
        key = unquote(key)
    return scheme, "/".join(parts[:count]), key


class Bucket(Origin):
    """A folder of a bucket, or a bucket; or a folder of a web server, which lists nothing.

    Attributes:
        url: URL of the folder, without credentials.
        prefix: prefix of the keys of its objects.
    """

    forks = False

    def __init__(
        self,
        url: str,
        store: Any = None,
        patience: Patience | None = None,
        on_wait: OnWait = None,
    ):
        """Open a folder of a bucket.

        Args:
            url: URL of the folder.
            store: store of the bucket; None: a new one.
            patience: attempts at each request; None: TRIES, each with the retries of the library,
                SECONDS_UNREACHABLE and SECONDS_BUSY.
            on_wait: as for Attempts, at each request.

        Raises:
            Whatever `open_store` raises.
        """
        super().__init__(url)
        scheme, name, key = parts_of(url)
        self.prefix = f"{key}/" if key else ""
        self.lists = scheme in STORE_SCHEMES
        self._library = package("obstore")
        self._scheme = scheme
        self._open_store = partial(open_store, scheme, name)
        self._way_on = ""  # ends the remedy
        if patience is None:
            patience = Patience(
                TRIES, seconds_unreachable=SECONDS_UNREACHABLE, seconds_busy=SECONDS_BUSY
            )
            self._way_on = "; a Loader continues from its saved state (load_state_dict)"
        self._patience = patience
        self._on_wait = on_wait
        if store is None:
            store = self._open_store()
        # Access was refused, and no request has been answered since. A store that was opened
        # meanwhile may have the same credentials: requests begin while others are being refused.
        self._is_refused = False
        self._use(store)
        self._pid = os.getpid()
        self._cancelled = False
        self._pending: set[Future[Any]] = set()

    def _use(self, store: Any) -> None:
        """Ask this store from now on."""
        self._store = store
        self._endpoint = endpoint_text(self._scheme, store)
        self._remedy = NETWORK_REMEDY
        if self._endpoint:
            self._remedy = f"{self._endpoint}: check it and the network, and try again"
        self._remedy += self._way_on

    # ---------------------------------------------------------------------------------- requests

    def _ask(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Any:
        """The result of a request for a path in the folder; raises as `_tried`."""
        return self.result(self._begin(path, request))

    def _begin(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Future[Any]:
        """Begin a request in the event loop. Raises as `_check_access`."""
        self._check_access()
        future = run_in_loop(self._tried(path, request))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._cancelled:
            future.cancel()
        return future

    def _check_access(self) -> None:
        """Open the store again while it refuses access: the credentials may be others by now.

        Raises StoreError in a fork, and what `open_store` raises.
        """
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.url}: its connections do not survive a fork: spawn worker processes "
                "(multiprocessing_context='spawn')"
            )
        if self._is_refused:
            self._use(self._open_store())

    def result(self, future: Future[Any]) -> Any:
        """See Origin. Raises StoreError if it is cancelled."""
        try:
            return result_of(future, float("inf"))
        except CancelledError:
            raise interrupted(self.url) from None
        finally:
            future.cancel()  # after an interrupt

    def cancel(self) -> None:
        """End the requests in progress, and let every later one fail. For any thread."""
        self._cancelled = True
        for future in list(self._pending):
            future.cancel()

    async def _tried(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Any:
        """The result of a request for a path in the folder; it is repeated where that may help.

        Args:
            path: path in the folder.
            request: called with the key.

        Raises:
            FileNotFoundError: the object does not exist.
            EndsEarly, StoreError: the request failed.
        """
        address = shown(f"{self.url}/{path}")
        attempts = Attempts(address, self._patience, self._on_wait, self._remedy)
        while True:
            try:
                answer = await request(self.prefix + path)
                attempts.succeeded()
                self._is_refused = False
                return answer
            except EndsEarly as error:
                wait = attempts.failed(EndsEarly, str(error))
            except (self._library.exceptions.BaseError, FileNotFoundError, ValueError) as error:
                final = final_error(error, address, self._endpoint)
                if is_refused(error):
                    self._is_refused = True
                    forget_stores()
                if final is not None:
                    raise final from None
                wait = attempts.failed(
                    StoreError,
                    error_text(error),
                    is_unreachable=is_unreachable(error),
                    is_busy=status_of(error) in BUSY,
                )
            await asyncio.sleep(wait)

    # ----------------------------------------------------------------------------------- reading

    def begin(
        self, path: str, first: int = 0, stop: int | None = None, version: str | None = None
    ) -> Future[Any]:
        """See Origin. The file must have the `version`, unless that is None."""

        return self._begin(path, self._reading(first, stop, version))

    def _reading(
        self, first: int, stop: int | None, version: str | None = None
    ) -> Callable[[str], Awaitable[Any]]:
        """The request for bytes of a key, see `begin`."""

        async def get(key: str) -> Any:
            if stop is not None and version is None:  # with one copy fewer
                span = {"start": first, "end": stop}
                data = await self._library.get_range_async(self._store, key, **span)
            else:
                data, _, answered = await self._get(key, first, stop, version)
                if version not in (None, answered):  # not every server compares it
                    path = key.removeprefix(self.prefix)
                    raise StoreError(f"{shown(f'{self.url}/{path}')}: {CHANGED}")
            if stop is not None and len(data) != stop - first:
                end = first + len(data)
                raise EndsEarly(f"it ends at byte {end}, but bytes up to {stop} are needed")
            return data

        return get

    def ask(self, path: str, first: int, stop: int, answered: Answered) -> Callable[[], object]:
        """See Origin."""
        self._check_access()
        loop = _loop(os.getpid())
        if loop.ended:
            raise ending()
        request = _LoopRequest(loop, self._tried(path, self._reading(first, stop)), answered)
        loop.call_in_it(request.begin)
        return partial(loop.call_in_it, request.cancel)

    def soon(self, work: Callable[[], object]) -> None:
        """See Origin."""
        if os.getpid() != self._pid:
            work()  # which is refused
        else:
            _loop(self._pid).call_soon_threadsafe(work)

    async def _get(
        self, key: str, first: int, stop: int | None, version: str | None = None
    ) -> tuple[Any, int, str | None]:
        """Bytes of an object, its size and its version: its ETag, or without one a time."""
        options: dict[str, Any] = {}
        if version is not None and version.startswith('"'):  # a weak ETag never matches
            options["if_match"] = version
        if stop is not None:
            options["range"] = (first, stop)
        answer = await self._library.get_async(self._store, key, options=options)
        size = answer.meta["size"]
        if stop is None and size > MAX_METADATA_BYTES:
            raise FormatError(
                f"{self.url}/{key.removeprefix(self.prefix)}: {size} bytes, more than the "
                f"{MAX_METADATA_BYTES} of any file of its kind; upload the pack again"
            )
        answered = answer.meta["e_tag"] or answer.meta["last_modified"].isoformat()
        return await answer.bytes_async(), size, answered

    def begin_size(self, path: str) -> Future[int]:
        """Ask for the bytes that a file has, in a request that web servers answer, too."""

        async def size_of(key: str) -> int:
            _, size, _ = await self._get(key, 0, 1)
            return size

        return self._begin(path, size_of)

    def read(self, path: str) -> bytes:
        """See Origin."""
        return bytes(self.result(self.begin(path)))

    def read_start(self, path: str, stop: int) -> tuple[Any, int, str | None]:
        """The bytes of a file up to `stop`, or to its end; its size, and its version."""
        answer: tuple[Any, int, str | None] = self._ask(path, lambda key: self._get(key, 0, stop))
        return answer

    def ranges(self, path: str, first: int, stop: int, version: str | None = None) -> Pieces:
        """Bytes `first` to `stop` of a file in pieces, some of which are asked for ahead.

        Raises as Origin does.
        """
        pending: deque[Future[Any]] = deque()
        try:
            for start in range(first, stop, RANGE_BYTES):
                end = min(start + RANGE_BYTES, stop)
                pending.append(self.begin(path, start, end, version))
                if len(pending) == RANGES_AT_ONCE:
                    yield self.result(pending.popleft())
            while pending:
                yield self.result(pending.popleft())
        finally:
            for future in pending:
                future.cancel()

    def folders(self, path: str) -> list[str]:
        """See Origin."""
        inside = (key.removeprefix(path) for key in self.files(path))
        return sorted({name.partition("/")[0] for name in inside if "/" in name})

    def files(self, path: str = "") -> dict[str, int]:
        """Every object below a path, by its path in the folder, sorted, and its bytes.

        Raises StoreError.
        """

        async def sizes_by_key(key: str) -> dict[str, int]:
            objects = await self._library.list(self._store, prefix=key or None).collect_async()
            return {item["path"]: item["size"] for item in objects}

        sizes = {}
        for key, nbytes in sorted(self._ask(path, sizes_by_key).items()):
            if not key.endswith("/"):  # an object in place of a folder
                sizes[key.removeprefix(self.prefix)] = nbytes
        return sizes

    # ----------------------------------------------------------------------------------- writing

    def put(self, objects: Mapping[str, tuple[bytes | Path, str]]) -> None:
        """Write objects, several at once, in parts if they are large, and read them back.

        Args:
            objects: path in the folder → its bytes, and their XXH3-128.

        Raises:
            StoreError: writing fails, or other bytes come back, several times; then every later
                request fails, too.
        """
        with ThreadPool(AT_ONCE, "sa1bpack-put") as pool:
            try:
                list(pool.map(lambda path: self._put(path, *objects[path]), objects))
            except BaseException:
                self.cancel()
                raise

    def _put(self, path: str, data: bytes | Path, digest: str) -> None:
        async def write(key: str) -> None:
            parts = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
            await self._library.put_async(self._store, key, data, **parts)

        nbytes = data.stat().st_size if isinstance(data, Path) else len(data)
        for _ in range(TRIES):
            self._ask(path, write)
            written = xxhash.xxh3_128()
            with suppress(EndsEarly):
                for piece in self.ranges(path, 0, nbytes):
                    written.update(piece)
                if written.hexdigest() == digest:
                    return
        raise StoreError(
            f"{self.url}/{path}: came back {TRIES} times with other bytes than those of XXH3-128 "
            f"{digest}, which was written"
        )

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects. Raises StoreError."""
        keys = [self.prefix + path for path in paths]
        if keys:
            with suppress(FileNotFoundError):
                self._ask("", lambda _: self._library.delete_async(self._store, keys))


class StoreFile:
    """The bytes of a tar in an object store, forward only, see `urls.Stream`.

    Nothing is requested before the first `read`. A file of another version than its address has, or
    than the first answer had, is an error.
    """

    def __init__(
        self,
        address: Address,
        *,
        digest: object = None,
        stop: int | None = None,
        patience: Patience | None = None,
        on_wait: OnWait = None,
    ):
        """See `web.WebFile`. `digest` is not needed: any range can be asked for again."""
        self.address = address
        self._stop = stop
        self._patience = patience or Patience()
        self._on_wait = on_wait
        self._bucket: Bucket | None = None
        self._pieces = self._read()
        self._chunk = memoryview(b"")
        self._cancelled = False
        self._ended = False

    @property
    def nbytes(self) -> int | None:
        """Size of the file; None before the first `read`, unless the address has it."""
        return self.address.nbytes

    def _read(self) -> Pieces:
        address = self.address
        root = f"{address.scheme}://{address.bucket}"
        bucket = Bucket(root, store_of(address), self._patience, self._on_wait)
        self._bucket = bucket
        if self._cancelled:
            bucket.cancel()
        nbytes = address.nbytes
        version = address.version
        first = b""
        if nbytes is None:
            first, nbytes, version = bucket.read_start(address.key, self._stop or RANGE_BYTES)
            self.address = replace(address, nbytes=nbytes, version=version)
            yield first
        end = min(self._stop or nbytes, nbytes)
        yield from bucket.ranges(address.key, len(first), end, version)
        self._ended = True

    def read(self, count: int) -> bytes:
        """At most `count` more bytes, b"" at the end.

        Raises SourceError if the file cannot be read, or changes; so does every later call then.
        """
        try:
            if not self._chunk:
                self._chunk = memoryview(next(self._pieces, b""))
        except FileNotFoundError:
            raise SourceError(f"{self.address}: there is no such object; check the URL") from None
        except StoreError as error:
            raise SourceError(str(error)) from None
        if not (self._chunk or self._ended):
            raise SourceError(f"{self.address}: reading was interrupted")
        data = bytes(self._chunk[:count])
        self._chunk = self._chunk[count:]
        return data

    def cancel(self) -> None:
        """End a `read` in another thread; it and all later ones raise SourceError."""
        self._cancelled = True
        if self._bucket is not None:
            self._bucket.cancel()

    def close(self) -> None:
        """Forget what was asked for."""
        self._pieces.close()
