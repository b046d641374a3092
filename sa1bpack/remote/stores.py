"""Object stores, s3:// and gs://, by obstore, with the credentials of the cloud's own tools.

Credentials of S3 come from botocore, in the order of the AWS command line: environment, profile
(`~/.aws`), single sign-on, container, instance; region and endpoint likewise. Those of Google Cloud
come from obstore: GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth application-default
login` writes, the instance. None of them is kept, shown or written.
"""

import asyncio
import atexit
import functools
import os
import re
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from http.client import responses
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import quote

from sa1bpack.errors import MissingPackage, OptionError, SourceError, StoreError
from sa1bpack.urls import Address

# A body that yields no byte for so long is broken. (The library's limit on a complete request, 30 s
# by default, would end every longer one.)
READ_SECONDS = 60
CONNECT_SECONDS = 20
# How long the end of the process waits for what is on its way.
END_SECONDS = 5.0
_NO_LIMIT = timedelta(days=365)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
# Credentials that were handed out. Shorter ones are those of tests, and parts of any word.
SHORTEST_SECRET = 8
_secrets: set[str] = set()
# Credentials are asked for again after so long; botocore renews those that expire.
_CREDENTIALS_FOR = timedelta(minutes=5)


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
            f"s3://{bucket}: the configuration of AWS cannot be used: {error}"
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
    """Raise OptionError for what makes the library panic: it reads the variables, too."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        if os.environ.get(name) == "":
            raise OptionError(f"s3://{bucket}: {name} is set, but empty: unset it")
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
    error alone; and nothing of the credentials that were handed out.
    """
    text = library_text(error)
    if status := _STATUS.search(text):
        phrase = responses.get(int(status[1]), "")
        code = _CODE.search(text)
        text = f"{text[: status.start()]}status code: {status[1]} {phrase}".rstrip()
        text += f" ({code[1]})" if code else ""
    else:
        text = text.partition("<")[0]
    for secret in _secrets:
        for each in (secret, quote(secret, safe="")):
            text = text.replace(each, "***")
    return text[:400]


# Waiting for obstore. Its own blocking calls do not notice signals, and cannot be ended from
# another thread; a future can.


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """The event loop of this process, in a thread of its own; a fork has another."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sa1bpack-cloud", daemon=True).start()
    atexit.register(_end, process, loop)
    return loop


def _end(process: int, loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is on its way when the process ends.

    Threads of obstore hand its outcome to the event loop; one that does so while the interpreter
    ends, or has ended, takes the process down with it (SIGSEGV, or SIGABRT).
    """
    if process != os.getpid():
        return

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(END_SECONDS)
    loop.call_soon_threadsafe(loop.stop)


def begin(work: Coroutine) -> Future:
    """Run a coroutine in the event loop; the future's `result` waits, and `cancel` ends it."""
    return asyncio.run_coroutine_threadsafe(work, _loop(os.getpid()))


def list_keys(address: Address) -> list[str]:
    """Keys of the objects of a bucket that match a pattern of `*`, `?` and `[...]`, sorted.

    Raises SourceError if that fails, and what `open_store` raises.
    """
    pattern = address.key
    prefix = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    obstore, store = package("obstore"), open_store(address.scheme, address.bucket)

    async def listed() -> list[str]:
        found = []
        async for batch in obstore.list(store, prefix=prefix or None):
            found += [item["path"] for item in batch]
        return found

    try:
        found = begin(listed()).result()
    except (FileNotFoundError, package("obstore.exceptions").BaseError) as error:
        raise SourceError(f"{address}: cannot be listed: {error_text(error)}") from None
    return sorted(key for key in found if fnmatchcase(key, pattern))
