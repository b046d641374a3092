"""Object stores, s3:// and gs://, by obstore, with the credentials of the cloud's own tools.

Credentials of S3 come from botocore, in the order of the AWS command line: environment, profile
(`~/.aws`), single sign-on, container, instance; region and endpoint likewise. Those of Google Cloud
come from obstore: GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth application-default
login` writes, the instance. None of them is kept, shown or written.
"""

import asyncio
import atexit
import functools
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.client import responses
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import xxhash

from sa1bpack.errors import FormatError, MissingPackage, OptionError, SourceError, StoreError
from sa1bpack.format.files import MAX_METADATA_BYTES
from sa1bpack.remote.origin import TRIES, Differs, EndsEarly, Origin

# A body that yields no byte for so long is broken. (The library's limit on a complete request, 30 s
# by default, would end every longer one.)
READ_SECONDS = 60
CONNECT_SECONDS = 20
_NO_LIMIT = timedelta(days=365)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Z][A-Za-z]{1,63})</Code>")
_NO_CREDENTIALS = "AWS credentials could not be obtained; `aws sts get-caller-identity` shows why"
# What obstore says itself of requests that get no answer.
_ITS_WORDS = (
    "error sending request",
    "error decoding response body",
    "request or response body error",
    "operation timed out",
    "connection closed",
    "connection refused",
)
# Credentials are asked for again after so long; botocore renews those that expire.
_CREDENTIALS_FOR = timedelta(minutes=5)
# The library repeats requests by itself after 5xx, refused connections and bodies that break off.
# What fails even so, such as a time-out, is tried again after this time (s), then twice as long.
PAUSE = 0.5
# How long the end of the process waits at most for threads of the library: they need milliseconds,
# but for one that asks for credentials.
END_SECONDS = 30.0

# Objects that are written at once, most of them small.
AT_ONCE = 8

# Parts of an upload, of which a store takes at most 10,000. One connection to an object store gets
# 50 to 100 MB/s, so that large objects are written, and read back, by several.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 8
RANGE_BYTES = 8 << 20
RANGES_AT_ONCE = 8

_log = logging.getLogger("sa1bpack")


def open_store(scheme: str, bucket: str, *, retries: int = 10) -> Any:
    """The obstore store of a bucket, "s3" or "gs".

    retries
        How often the library repeats a request by itself: after 5xx, a refused connection, or a
        body that breaks off. 0: never.

    Raises MissingPackage without the packages of the extra `cloud`, and OptionError if no
    credentials are found.
    """
    stores = package("obstore.store")
    options = {
        "timeout": _NO_LIMIT,
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
    }
    retry = {"max_retries": retries}
    if scheme == "gs":
        with_http = options | {"allow_http": True}  # for an emulator, which only a key file names
        return stores.GCSStore(bucket, client_options=with_http, retry_config=retry)
    config = _s3_config(bucket)
    if config.get("endpoint", "").startswith("http://"):
        options["allow_http"] = True
    return stores.S3Store(bucket, **config, client_options=options, retry_config=retry)


def package(name: str) -> ModuleType:
    """A module of the extra `cloud`; raises MissingPackage if it cannot be imported."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackage(
            f"object stores need {name.partition('.')[0]}, which cannot be imported ({error}): "
            "pip install 'obstore>=0.8' 'botocore>=1.34'"
        ) from error


def _s3_config(bucket: str) -> dict[str, Any]:
    """Region, endpoint and credentials of S3, as the AWS command line finds them."""
    with _aws(f"s3://{bucket}"):
        session = package("botocore.session").Session()
        region = session.get_config_variable("region")
        endpoint = _s3_endpoint(session)
        _check_endpoint(bucket, endpoint)
        credentials = session.get_credentials()
    config: dict[str, Any] = {"region": region or "us-east-1"}
    if endpoint:
        config["endpoint"] = endpoint
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return config | {"skip_signature": True}
    if credentials is None:
        raise OptionError(
            f"s3://{bucket}: no credentials were found where the AWS command line looks for them; "
            "log in (aws configure, aws sso login), or set AWS_SKIP_SIGNATURE=true for a public "
            "bucket"
        )

    def current() -> dict[str, Any]:
        with _aws(f"s3://{bucket}"):
            frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_FOR,
        }

    current.refresh_threshold = timedelta(0)  # else the library asks ten times a second
    return config | {"credential_provider": current}


# Errors of botocore whose text is of files on this machine, not of a server's answer.
_OF_FILES = (
    "ConfigNotFound",
    "ConfigParseError",
    "InvalidConfigError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SSOError",
)


@contextmanager
def _aws(bucket: str) -> Iterator[None]:
    """Raise OptionError for whatever botocore raises here.

    It asks servers of credentials, and an answer that is malformed ends it with any exception. What
    such a server says is not shown: it may echo the token that was sent to it.
    """
    exceptions = package("botocore.exceptions")
    try:
        yield
    except OptionError:
        raise
    except tuple(getattr(exceptions, name) for name in _OF_FILES) as error:
        raise OptionError(f"{bucket}: the configuration of AWS cannot be used: {error}") from None
    except Exception as error:
        raise OptionError(f"{bucket}: {_NO_CREDENTIALS} ({type(error).__name__})") from None


def s3_client() -> Any:
    """botocore's client, for what obstore does not offer. Raises what botocore raises."""
    session = package("botocore.session").Session()
    region = session.get_config_variable("region") or "us-east-1"
    return session.create_client("s3", region_name=region)


def _s3_endpoint(session: Any) -> str | None:
    """AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or the profile's `endpoint_url`."""
    provider = package("botocore.configprovider").ConfiguredEndpointProvider(
        full_config=session.full_config,
        scoped_config=session.get_scoped_config(),
        client_name="s3",
        environ=os.environ,
    )
    return provider.provide()


def _check_endpoint(bucket: str, endpoint: str | None) -> None:
    """Raise OptionError for what makes the library panic, or show a password."""
    names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
    given = {name: os.environ.get(name) for name in names} | {"endpoint_url": endpoint}
    for name, url in given.items():
        if url is not None and re.search("[@?#]", url):
            raise OptionError(
                f"s3://{bucket}: {name} has a user name, a password or a query: leave it out "
                "(credentials are found where the AWS command line looks for them)"
            )
        if url is not None and not re.match("https?://[^/]", url):
            raise OptionError(
                f"s3://{bucket}: {name} is {url!r}: choose a URL, such as https://host, or unset it"
            )


# What a store says about credentials, in the body of its answer.
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")


def final_error(
    error: Exception, address: object, kind: type[StoreError] | type[SourceError] = StoreError
) -> Exception | None:
    """The error for what does not pass by itself: credentials, a bucket that does not exist.

    None for what may be tried again, and for a missing object.

    error    of the library
    address  URL of the object
    kind     of the error that is returned
    """
    text, said = error_text(error), library_text(error)
    if any(word in said for word in _EXPIRED):
        why = f"the credentials have expired; log in again ({text})"
    elif "computeMetadata" in said:  # asked last of all, of the instance that this would be
        why = (
            "no credentials of Google Cloud were found; set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "`gcloud auth application-default login`"
        )
    elif _NO_CREDENTIALS in said:  # botocore was asked by the library
        why = _NO_CREDENTIALS
    elif "NoSuchBucket" in said:
        why = "there is no such bucket; check the URL and the endpoint, or create the bucket"
    elif "configured region" in said:  # a redirect without a target
        why = "the bucket lies in another region; set AWS_REGION to that one"
    elif type(error).__name__ in _REFUSED:
        why = f"access was refused; check what the credentials allow ({text})"
    else:
        return None
    return kind(f"{address}: {why}")


def library_text(error: BaseException) -> str:
    """What an exception of obstore says, in one line: its texts are followed by pages of detail.

    It may have what the server says, and so is looked at, and never shown.
    """
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())


def status_of(error: BaseException) -> int:
    """The HTTP status that an exception of obstore tells, or 0."""
    found = _STATUS.search(library_text(error))
    return int(found[1]) if found else 0


def error_text(error: BaseException) -> str:
    """What an exception of obstore says, as it may be shown.

    A server may echo what was sent to it, in any spelling. So this has the status, the code of an
    error if it is a word, and otherwise what is known to be the library's own words.
    """
    text = library_text(error)
    if status := status_of(error):
        found, code = f"status code: {status} {responses.get(status, '')}", _CODE.search(text)
        return found.rstrip() + (f" ({code[1]})" if code else "")
    return next((words for words in _ITS_WORDS if words in text), type(error).__name__)


# Waiting for obstore: in one event loop, by its asynchronous calls alone. The blocking ones do not
# notice signals, and cannot be ended from another thread.


class EventLoop(asyncio.SelectorEventLoop):
    """An event loop that knows which of its futures are held, by the library too.

    A thread of the library hands over the outcome of a future, also of one that was cancelled
    before. If it does so when the interpreter ends, or has ended, it takes the process down with it
    (SIGABRT, SIGSEGV). So the process ends when the library has let go of all of them.
    """

    def __init__(self):
        super().__init__()
        self.held: weakref.WeakSet[asyncio.Future] = weakref.WeakSet()
        self.ended = False

    def create_future(self) -> asyncio.Future:
        """See asyncio. The library asks for one with each request."""
        future = super().create_future()
        self.held.add(future)
        return future

    async def settle(self) -> None:
        """Cancel all tasks, and wait until the library is done with what they waited for."""
        self.ended, limit = True, time.monotonic() + END_SECONDS
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
    threading.Thread(target=loop.run_forever, name="sa1bpack-cloud", daemon=True).start()
    atexit.register(_end, process, loop)
    return loop


def _end(process: int, loop: EventLoop) -> None:
    """Before the interpreter ends: nothing is on its way any more, and nothing can be begun."""
    if process == os.getpid():
        asyncio.run_coroutine_threadsafe(loop.settle(), loop).result()


def begin(work: Coroutine) -> Future:
    """Run a coroutine in the event loop; the future's `result` waits, and `cancel` ends it.

    Raises StoreError when the process ends.
    """
    loop = _loop(os.getpid())
    if loop.ended:
        work.close()
        raise StoreError("the process is ending")
    return asyncio.run_coroutine_threadsafe(work, loop)


class Bucket(Origin):
    """A folder of a bucket, or a bucket. One thread at a time writes to it.

    url      of the folder, without credentials
    scheme, name   "s3" or "gs", and the name of the bucket
    prefix   of the keys of its objects
    library, store   obstore, and its store
    """

    forks = False

    def __init__(self, url: str):
        """Raises as `open_store` does."""
        super().__init__(url)
        self.scheme, _, rest = url.partition("://")
        self.name, _, key = rest.partition("/")
        self.prefix = f"{key}/" if key else ""
        self.library, self.store = package("obstore"), open_store(self.scheme, self.name)
        self._pid, self._cancelled = os.getpid(), False
        self._pending: set[Future] = set()

    # ---------------------------------------------------------------------------------- requests

    def _ask(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Any:
        """`_tried`, in the event loop; ends when `cancel` is called."""
        return self._wait(self._tried(path, request))

    def _wait(self, work: Coroutine) -> Any:
        """What a coroutine returns. Raises StoreError if it is cancelled, or in a fork."""
        if os.getpid() != self._pid:
            work.close()
            raise StoreError(
                f"{self.url}: the connections to an object store do not survive a fork: let worker "
                "processes be spawned (multiprocessing_context='spawn')"
            )
        future = begin(work)
        self._pending.add(future)
        try:
            if self._cancelled:
                future.cancel()
            return future.result()
        except CancelledError:
            raise StoreError(f"{self.url}: cancelled") from None
        finally:
            future.cancel()  # after an interrupt
            self._pending.discard(future)

    def cancel(self) -> None:
        """End the requests in progress, and let every later one fail. For any thread."""
        self._cancelled = True
        for future in list(self._pending):
            future.cancel()

    async def _tried(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Any:
        """What a request for a path in the folder returns; it is repeated where that may help.

        request  called with the key

        Raises FileNotFoundError for what is not there, EndsEarly, StoreError.
        """
        address, pause = f"{self.url}/{path}", PAUSE
        for left in reversed(range(TRIES)):
            try:
                return await request(self.prefix + path)
            except (
                self.library.exceptions.BaseError,
                FileNotFoundError,
                ValueError,  # of a date that is none of Python's
                Differs,
            ) as error:
                if (found := final_error(error, address)) is not None:
                    raise found from None
                if isinstance(error, FileNotFoundError):
                    raise FileNotFoundError(2, "not in the object store", address) from None
                if not left:
                    early = isinstance(error, EndsEarly) or "InvalidRange" in library_text(error)
                    why = str(error) if isinstance(error, Differs) else error_text(error)
                    raise (EndsEarly if early else StoreError)(
                        f"{address}: {TRIES} requests failed: {why}"
                    ) from None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

    # ----------------------------------------------------------------------------------- reading

    def read(self, path: str) -> bytes:
        """See Origin."""

        async def get(key: str) -> bytes:
            answer = await self.library.get_async(self.store, key)
            if (nbytes := answer.meta["size"]) > MAX_METADATA_BYTES:
                raise FormatError(
                    f"{self.url}/{path}: {nbytes} bytes, but a file of its kind has at most "
                    f"{MAX_METADATA_BYTES}; upload the pack again"
                )
            return bytes(await answer.bytes_async())

        return self._ask(path, get)

    def read_range(self, path: str, first: int, stop: int) -> Any:
        """See Origin."""

        async def get(key: str) -> Any:
            found = await self.library.get_range_async(self.store, key, start=first, end=stop)
            if len(found) != stop - first:
                raise EndsEarly(
                    f"it ends at byte {first + len(found)}, but bytes up to {stop} are needed"
                )
            return found

        return self._ask(path, get)

    def folders(self, path: str) -> list[str]:
        """See Origin."""

        async def listed(key: str) -> list[str]:
            found = await self.library.list_with_delimiter_async(self.store, prefix=key)
            return sorted(name.rpartition("/")[2] for name in found["common_prefixes"])

        return self._ask(path, listed)

    def files(self, path: str = "") -> dict[str, int]:
        """Every object below a path, by its path in the folder, sorted, and its bytes.

        Raises StoreError.
        """

        async def listed(key: str) -> dict[str, int]:
            found = await self.library.list(self.store, prefix=key or None).collect_async()
            return {item["path"]: item["size"] for item in found}

        found = self._ask(path, listed)
        names = (key for key in sorted(found) if not key.endswith("/"))  # in place of folders
        return {key.removeprefix(self.prefix): found[key] for key in names}

    # ----------------------------------------------------------------------------------- writing

    def put(self, objects: Mapping[str, tuple[bytes | Path, str]]) -> None:
        """Write objects, several at once, in parts if they are large, and read them back.

        objects  path in the folder → its bytes, and their XXH3-128

        Raises StoreError if that fails, or other bytes come back, several times.
        """
        self._wait(self._put(objects))

    async def _put(self, objects: Mapping[str, tuple[bytes | Path, str]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def put(path: str, data: bytes | Path, digest: str) -> None:
            async with room:
                await self._tried(path, lambda key: self._written(key, data, digest))

        try:
            async with asyncio.TaskGroup() as tasks:
                for path, each in objects.items():
                    tasks.create_task(put(path, *each))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _written(self, key: str, data: bytes | Path, digest: str) -> None:
        await self.library.put_async(
            self.store, key, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        nbytes = data.stat().st_size if isinstance(data, Path) else len(data)
        if (found := await self._digest(key, nbytes)) != digest:
            raise Differs(f"it came back with the XXH3-128 {found}, but {digest} was written")

    async def _digest(self, key: str, nbytes: int) -> str:
        """XXH3-128 of an object that should have so many bytes, in ranges."""
        found, starts = xxhash.xxh3_128(), range(0, nbytes, RANGE_BYTES)
        for at in range(0, len(starts), RANGES_AT_ONCE):
            ranges = []
            for start in starts[at : at + RANGES_AT_ONCE]:
                stop = start + RANGE_BYTES
                stop = stop if stop < nbytes else nbytes + 1  # which a longer one would have
                ranges.append(self.library.get_range_async(self.store, key, start=start, end=stop))
            for data in await asyncio.gather(*ranges):
                found.update(data)
        return found.hexdigest()

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects. Raises StoreError."""
        keys = [self.prefix + path for path in paths]
        if keys:
            with suppress(FileNotFoundError):
                self._ask("", lambda _: self.library.delete_async(self.store, keys))

    def abort_uploads(self) -> None:
        """Abort uploads under the folder that were begun and not completed.

        Their parts cost money and are seen by nobody. Only of S3: a bucket of Google Cloud removes
        them by a rule of its own. Without permission for it, that is logged: nothing depends on it.
        """
        if self.scheme != "s3":
            return
        try:
            client = s3_client()
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self.name, Prefix=self.prefix):
                for upload in page.get("Uploads", ()):
                    client.abort_multipart_upload(
                        Bucket=self.name, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
        except Exception as error:  # botocore's, or of a malformed answer
            if (why := type(error).__name__) != "NoSuchBucket":  # what follows says so
                _log.warning(
                    "%s: parts of uploads that were not completed could not be looked for (%s); a "
                    "lifecycle rule of the bucket can remove them",
                    self.url,
                    why,
                )
