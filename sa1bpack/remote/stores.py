"""Object stores, s3:// and gs://, by obstore, with the credentials of the cloud's own tools.

Credentials of S3 come from botocore, in the order of the AWS command line: environment, profile
(`~/.aws`), single sign-on, container, instance; region and endpoint likewise. Those of Google Cloud
come from obstore: GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth application-default
login` writes, the instance. None of them is kept, shown or written.
"""

import asyncio
import atexit
import functools
import html
import os
import re
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from http.client import responses
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from sa1bpack.errors import MissingPackage, OptionError, SourceError, StoreError
from sa1bpack.urls import Address

# A body that yields no byte for so long is broken. (The library's limit on a complete request, 30 s
# by default, would end every longer one.)
READ_SECONDS = 60
CONNECT_SECONDS = 20
# The library repeats requests by itself after 5xx, refused connections and bodies that break off.
# What fails even so, such as a time-out, is tried so often in all.
TRIES = 3
PAUSE = 0.5  # seconds, doubled each time
# How long the end of the process waits at most for threads of the library: they need milliseconds,
# but for one that asks for credentials.
END_SECONDS = 30.0
_NO_LIMIT = timedelta(days=365)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
# How the tokens begin that the library gets by itself, from Google Cloud.
_TOKEN = re.compile(r"ya29\.|eyJ[\w-]{8}|\bbearer\s+\S", re.IGNORECASE)
# Credentials that were handed out. Shorter ones are those of tests, and parts of any word.
SHORTEST_SECRET = 8
_secrets: set[str] = set()
# Credentials are asked for again after so long; botocore renews those that expire.
_CREDENTIALS_FOR = timedelta(minutes=5)


class Differs(StoreError):
    """An object came back otherwise than it should."""


class EndsEarly(Differs):
    """A file ends before the bytes that were asked for."""


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
            "pip install 'sa1bpack[cloud]'"
        ) from error


def _s3_config(bucket: str) -> dict[str, Any]:
    """Region, endpoint and credentials of S3, as the AWS command line finds them."""
    session = package("botocore.session").Session()
    try:
        region = session.get_config_variable("region")
        endpoint = _s3_endpoint(session)
        _check_endpoint(bucket, endpoint)
        credentials = session.get_credentials()
    except package("botocore.exceptions").BotoCoreError as error:
        raise OptionError(
            f"s3://{bucket}: the configuration of AWS cannot be used: {cleared(str(error))}"
        ) from None
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
        frozen = credentials.get_frozen_credentials()
        handed = (frozen.access_key, frozen.secret_key, frozen.token)
        _secrets.update(each for each in handed if each and len(each) >= SHORTEST_SECRET)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_FOR,
        }

    current.refresh_threshold = timedelta(0)  # else the library asks ten times a second
    return config | {"credential_provider": current}


def s3_client() -> Any:
    """botocore's client, for what obstore does not offer. Raises as `open_store` does."""
    session = package("botocore.session").Session()
    return session.create_client(
        "s3",
        region_name=session.get_config_variable("region") or "us-east-1",
        endpoint_url=_s3_endpoint(session),
    )


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
    given: dict[str, str | None] = {}
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        given[name] = os.environ.get(name)
    given["the endpoint"] = endpoint
    for name, url in given.items():
        if url == "":
            raise OptionError(f"s3://{bucket}: {name} is set, but empty: unset it")
        if url and re.search("[@?#]", url):
            raise OptionError(
                f"s3://{bucket}: {name} has a user name, a password or a query: leave it out "
                "(credentials are found where the AWS command line looks for them)"
            )
    if endpoint and not re.match("https?://[^/]", endpoint):
        raise OptionError(
            f"s3://{bucket}: the endpoint is {endpoint!r}: choose a URL, such as "
            f"https://{endpoint.strip('/') or 'host'}"
        )


# What a store says about credentials, in the body of its answer.
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")


def final_error(error: Exception, address: str) -> StoreError | None:
    """The error for what does not pass by itself: credentials, a bucket that does not exist.

    None for what may be tried again, and for a missing object.

    error    of the library
    address  URL of the object
    """
    text, said = error_text(error), library_text(error)
    if any(word in said for word in _EXPIRED):
        return StoreError(f"{address}: the credentials have expired; log in again ({text})")
    if "computeMetadata" in said:  # asked last of all, of the instance that this would be
        return StoreError(
            f"{address}: no credentials of Google Cloud were found; set "
            "GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`"
        )
    if "NoSuchBucket" in said:
        return StoreError(
            f"{address}: there is no such bucket; check the URL and the endpoint, or create the "
            "bucket"
        )
    if type(error).__name__ in _REFUSED:
        return StoreError(
            f"{address}: access was refused; check what the credentials allow ({text})"
        )
    return None


def library_text(error: BaseException) -> str:
    """What an exception of obstore says, in one line: its texts are followed by pages of detail.

    It may have what the server says, and so is looked at, and never shown.
    """
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())


def error_text(error: BaseException) -> str:
    """What an exception of obstore says, as it may be shown.

    Of the answer of a server, which may echo what was sent, it has the status and the code of an
    error alone; and nothing of credentials.
    """
    text = library_text(error)
    if not (status := _STATUS.search(text)):
        return cleared(text.partition("<")[0])[:400]
    found, code = cleared(text[: status.start()])[:300], _CODE.search(text)
    found += f"status code: {status[1]} {responses.get(int(status[1]), '')}".rstrip()
    return found + (f" ({cleared(code[1])})" if code else "")


def cleared(text: str) -> str:
    """A text, or *** if it holds a credential that was sent, however it is spelt there."""
    passwords = {urlsplit(proxy).password or "" for proxy in getproxies().values()}
    secrets = (_spelt(each) for each in _secrets | passwords if len(each) >= SHORTEST_SECRET)
    spelt = _spelt(text)
    return "***" if _TOKEN.search(text) or any(each in spelt for each in secrets) else text


def _spelt(text: str) -> str:
    """The letters and digits of a text, which may be quoted as in URLs, HTML or JSON."""
    text = re.sub(r"\\u00([0-9a-fA-F]{2})", r"%\1", text)
    return re.sub(r"[\W_]", "", html.unescape(unquote(unquote(text)))).casefold()


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


class Bucket:
    """A folder of a bucket, or a bucket.

    url      of the folder, without credentials
    scheme, name   "s3" or "gs", and the name of the bucket
    prefix   of the keys of its objects
    library, store   obstore, and its store
    """

    def __init__(self, url: str):
        """Raises as `open_store` does."""
        self.url = url
        self.scheme, _, rest = url.partition("://")
        self.name, _, key = rest.partition("/")
        self.prefix = f"{key}/" if key else ""
        self.library, self.store = package("obstore"), open_store(self.scheme, self.name)
        self._pid, self._cancelled = os.getpid(), False
        self._pending: set[Future] = set()

    def ask(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Any:
        """`tried`, in the event loop; ends when `cancel` is called."""
        return self.wait(self.tried(path, request))

    def wait(self, work: Coroutine) -> Any:
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
        """End the requests in progress, and let every later one fail."""
        self._cancelled = True
        for future in list(self._pending):
            future.cancel()

    async def tried(self, path: str, request: Callable[[str], Awaitable[Any]]) -> Any:
        """What a request for a path in the folder returns; it is repeated where that may help.

        request  called with the key

        Raises FileNotFoundError for what is not there, EndsEarly, StoreError.
        """
        address, pause = f"{self.url}/{path}", PAUSE
        for left in reversed(range(TRIES)):
            try:
                return await request(self.prefix + path)
            except (self.library.exceptions.BaseError, FileNotFoundError, Differs) as error:
                if (found := final_error(error, address)) is not None:
                    raise found from None
                if isinstance(error, FileNotFoundError):
                    raise FileNotFoundError(2, "not in the object store", address) from None
                if not left:
                    early = isinstance(error, EndsEarly) or "InvalidRange" in library_text(error)
                    raise (EndsEarly if early else StoreError)(
                        f"{address}: {TRIES} requests failed: {error_text(error)}"
                    ) from None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

    def files(self, path: str = "") -> dict[str, int]:
        """Every object below a path, by its path in the folder, sorted, and its bytes.

        Raises StoreError.
        """

        async def listed(key: str) -> dict[str, int]:
            found = {}
            async for page in self.library.list(self.store, prefix=key or None):
                found |= {item["path"]: item["size"] for item in page}
            return found

        found = self.ask(path, listed)
        names = (key for key in sorted(found) if not key.endswith("/"))  # in place of folders
        return {key.removeprefix(self.prefix): found[key] for key in names}


def list_keys(address: Address) -> list[str]:
    """Keys of the objects of a bucket that match a pattern of `*`, `?` and `[...]`, sorted.

    Raises SourceError if that fails, and what `open_store` raises.
    """
    prefix = re.split(r"[*?[]", address.key)[0].rpartition("/")[0]
    bucket = Bucket(f"{address.scheme}://{address.bucket}")
    try:
        found = bucket.files(prefix)
    except (FileNotFoundError, StoreError) as error:
        raise SourceError(f"{address}: cannot be listed: {error}") from None
    return [key for key in found if fnmatchcase(key, address.key)]
