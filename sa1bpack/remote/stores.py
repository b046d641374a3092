"""Object stores, and folders of web servers, by obstore, with the cloud's own credentials.

Credentials of S3 come from botocore, in the order of the AWS command line: environment, profile
(`~/.aws`), single sign-on, container, instance; region and endpoint likewise. Those of Google Cloud
come from obstore: GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth application-default
login` writes, the instance; those of Azure from the variables AZURE_STORAGE_ACCOUNT_NAME and
AZURE_STORAGE_ACCOUNT_KEY, or the others that obstore knows. The token of Hugging Face's hub is
HF_TOKEN, or the one that its own login keeps. None of them is kept, shown or written.
"""

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.client import responses
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from sa1bpack.errors import MissingPackage, OptionError, StoreError
from sa1bpack.remote.attempts import MAY_PASS
from sa1bpack.remote.origin import EndsEarly
from sa1bpack.urls import HUB_SCHEME, WEB_SCHEMES, Address

# A body that yields no byte for this long is broken. (The library's limit on a complete request, 30
# s by default, would end every longer one.)
READ_SECONDS = 60
CONNECT_SECONDS = 20
_NO_LIMIT = timedelta(days=365)
# Times that the library repeats a request by itself, and for how long: a host that answers nothing
# would be waited for without a word, 60 s each time.
RETRIES = 10
RETRY_SECONDS = 45
_STATUS = re.compile(r"status code: (\d{3})")
_PATH = re.compile(r'Path "([^"]+)"')
_CODE = re.compile(r"<Code>([A-Z][A-Za-z]{1,63})</Code>")
_NO_CREDENTIALS = "AWS credentials could not be obtained; `aws sts get-caller-identity` shows why"
# What obstore says itself of requests that get no answer.
_ITS_WORDS = re.compile(
    "error sending request|error decoding response body|request or response body error|"
    r"operation timed out|connection closed|connection refused|Requested \d+\.\.\d+, got \d+\.\.\d+"
)
# Those of them without an answer: the host is not there, or is being started again.
_UNREACHABLE = ("error sending request", "connection closed", "connection refused")
# Names of variables of the environment that decide how a store is reached begin so.
_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "HF_")
# Credentials are asked for again after this long; botocore renews those that expire.
_CREDENTIALS_FOR = timedelta(minutes=5)


def open_store(scheme: str, bucket: str, *, retries: int | None = None) -> Any:
    """The obstore store of a bucket.

    Args:
        scheme: "s3", "gs" or "az"; or of a web server: "https", "http" or "hf".
        bucket: name of the bucket, or the container; host of a web server, and of the hub the
            path of a data set, "datasets/USER/NAME".
        retries: number of times that the library repeats a request by itself: after 5xx, a refused
            connection, or a body that breaks off. 0: never; None: RETRIES.

    Raises:
        MissingPackage: the packages of the extra `cloud` are not installed.
        OptionError: no credentials are found.
    """
    stores = package("obstore.store")
    options: dict[str, Any] = {
        "timeout": _NO_LIMIT,
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
    }
    retry = {
        "max_retries": RETRIES if retries is None else retries,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
    }
    if scheme in (*WEB_SCHEMES, HUB_SCHEME):
        return _web_store(stores, scheme, bucket, options, retry)
    if scheme == "az":
        if os.environ.get("AZURE_STORAGE_ENDPOINT", "").startswith("http://"):  # an emulator
            options["allow_http"] = True
        return stores.AzureStore(bucket, client_options=options, retry_config=retry)
    if scheme == "gs":
        with_http = options | {"allow_http": True}  # for an emulator, which only a key file names
        return stores.GCSStore(bucket, client_options=with_http, retry_config=retry)
    config = _s3_config(bucket)
    if config.get("endpoint", "").startswith("http://"):
        options["allow_http"] = True
    return stores.S3Store(bucket, **config, client_options=options, retry_config=retry)


def _web_store(
    stores: ModuleType, scheme: str, host: str, options: dict[str, Any], retry: dict[str, Any]
) -> Any:
    """A store that reads files of a web server. Raises OptionError for no data set of the hub."""
    url = f"{scheme}://{host}"
    if scheme == HUB_SCHEME:
        kind, _, name = host.partition("/")
        name, _, revision = name.partition("@")
        if kind != "datasets" or name.count("/") != 1:
            raise OptionError(
                f"hf://{host}: not a data set of the hub: name it as hf://datasets/USER/NAME, or "
                "hf://datasets/USER/NAME@REVISION, and the folder of the pack in it"
            )
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        url = f"{endpoint}/datasets/{name}/resolve/{revision or 'main'}"
        token = _hub_token()
        if token:
            options = options | {"default_headers": {"Authorization": f"Bearer {token}"}}
    if url.startswith("http://"):
        options = options | {"allow_http": True}
    return stores.HTTPStore(url, client_options=options, retry_config=retry)


def _hub_token() -> str:
    """The token of Hugging Face's hub, as its own tools find it; empty if there is none."""
    token = os.environ.get("HF_TOKEN", "")
    if token:
        return token
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    path = Path(os.environ.get("HF_TOKEN_PATH", f"{home}/token")).expanduser()
    with suppress(OSError):
        return path.read_text().strip()
    return ""


@functools.lru_cache(maxsize=64)
def _kept_store(process: int, settings: int, scheme: str, bucket: str) -> Any:
    return open_store(scheme, bucket, retries=0)


def store_of(address: Address) -> Any:
    """The store that a tar lies in, opened once per process, without retries of the library.

    It is opened again when the settings have changed, or access was refused, see `forget_stores`.
    Raises as `open_store` does.
    """
    return _kept_store(os.getpid(), settings_digest(), address.scheme, address.bucket)


def forget_stores() -> None:
    """Open every store again that `store_of` is asked for: with the credentials that are there."""
    _kept_store.cache_clear()


def settings_digest() -> int:
    """A number that tells apart what the environment says of endpoints, credentials and proxies."""
    settings = []
    for name, value in os.environ.items():
        if name.startswith(_SETTINGS) or name.upper().endswith("_PROXY"):
            settings.append((name, value))
    return hash(tuple(sorted(settings)))


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
        provider = package("botocore.configprovider").ConfiguredEndpointProvider
        endpoint = provider(session.full_config, session.get_scoped_config(), "s3").provide()
        _check_endpoint(bucket, endpoint)
        credentials = session.get_credentials()
    config: dict[str, Any] = {"region": region or "us-east-1"}
    if endpoint:
        config["endpoint"] = endpoint
    if os.environ.get("AWS_REQUEST_PAYER", "").lower() in ("requester", "1", "true"):
        config["request_payer"] = True
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true"):
        return config | {"skip_signature": True}
    if credentials is None:
        raise OptionError(
            f"s3://{bucket}: no credentials were found where the AWS command line looks for them; "
            "log in (aws configure), or set AWS_SKIP_SIGNATURE=true for a public bucket"
        )

    return config | {"credential_provider": _Credentials(bucket, credentials)}


class _Credentials:
    """Called by obstore for credentials of botocore."""

    refresh_threshold = timedelta(0)  # else the library asks ten times a second

    def __init__(self, bucket: str, credentials: Any):
        self._bucket = bucket
        self._credentials = credentials

    def __call__(self) -> dict[str, Any]:
        with _aws(f"s3://{self._bucket}"):
            frozen = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_FOR,
        }


@contextmanager
def _aws(bucket: str) -> Iterator[None]:
    """Raise OptionError for whatever botocore raises here.

    It reads files and asks servers of credentials, and an answer that is malformed ends it with any
    exception. What such a server says is not shown: it may echo the token that was sent to it.
    """
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"{bucket}: {_NO_CREDENTIALS} ({type(error).__name__})") from None


def _check_endpoint(bucket: str, endpoint: str | None) -> None:
    """Raise OptionError for what makes the library panic, or show a password."""
    names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
    urls = [(name, os.environ.get(name)) for name in names]
    for name, url in [*urls, ("endpoint_url", endpoint)]:
        if url is not None and not re.fullmatch("https?://[^/@?#][^@?#]*", url):
            raise OptionError(
                f"s3://{bucket}: {name} is not a URL such as https://host, without a user name, a "
                "password or a query: change or unset it"
            )


CHANGED = "it has changed since it was first asked for; repeat the command"

# What the library says of a server that does not answer as one of files, and what that means.
_NO_SERVER_OF_FILES = {
    "Range request not supported": "the server sends whole files where a part is asked for",
    "non-partial response": "the server sends whole files where a part is asked for",
    "Content-Range": "asked for a part of the file, the server does not say which one it sends",
    "CONTENT_RANGE": "asked for a part of the file, the server does not say which one it sends",
    "Content-Length Header missing": "the server does not say how many bytes it sends",
    "error following redirect": "the server redirects in a circle, or to what cannot be asked",
}
_OTHER_SERVER = (
    "name a server that sends ranges of files with their sizes (python -m http.server does not), "
    "or copy what is there to a disk"
)

# What a store says about credentials, in the body of its answer.
_EXPIRED = ("ExpiredToken", "RequestExpired", "TokenRefreshRequired")
_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")


def endpoint_text(scheme: str, store: Any) -> str:
    """Which endpoint of S3 a store asks, for messages; empty for others, whose URLs say it."""
    if scheme != "s3":
        return ""
    # `_check_endpoint` has refused those with a password or a signature.
    endpoint = store.config.get("endpoint") or os.environ.get("AWS_ENDPOINT")
    if endpoint:
        return f"the endpoint in force is {endpoint}"
    return "the endpoint in force is Amazon's, as AWS_ENDPOINT_URL is not set"


def final_error(error: Exception, address: str, endpoint: str = "") -> Exception | None:
    """The error for what does not pass by itself; None for what may be tried again.

    Args:
        error: error of the library; a ValueError is one of a key or a date that it does not take.
        address: URL of the object, for the message.
        endpoint: see `endpoint_text`.
    """
    of_endpoint = endpoint and f"; {endpoint}"
    text = error_text(error)
    said = library_text(error)
    status = status_of(error)
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
        why = (
            "there is no such bucket; check the URL and the endpoint, or create the bucket"
            f"{of_endpoint}"
        )
    elif "configured region" in said:  # a redirect without a target
        why = "the bucket lies in another region; set AWS_REGION to that one"
    elif type(error).__name__ == "InvalidPathError":  # the library lists no such object
        why = f"{_listed_object(said)} has a name that cannot name a file; move or remove it"
    elif "Could not parse path" in said:
        why = (
            "no part of a key may be empty, . or .., nor have a control character, to be asked "
            "for; check the URL, or copy the object to another key"
        )
    elif "RequestTimeTooSkewed" in said:
        why = f"the clock of this machine is wrong; set it ({text})"
    elif "InvalidObjectState" in said:
        why = f"it is archived, as in S3's Glacier; restore it first ({text})"
    elif type(error).__name__ in _REFUSED:
        why = f"access was refused; check what the credentials allow ({text}){of_endpoint}"
    elif isinstance(error, FileNotFoundError):
        return FileNotFoundError(2, "not in the object store", address)
    elif type(error).__name__ == "PreconditionError":
        why = CHANGED
    elif status == 416 or "InvalidRange" in said:
        return EndsEarly(f"{address}: it ends before the bytes that are needed")
    elif isinstance(error, ValueError) or (400 <= status < 500 and status not in MAY_PASS):
        why = f"{text}; check the URL"
    elif not status and (fault := _no_server_of_files(said)) is not None:
        why = f"{fault}; {_OTHER_SERVER}"
    else:
        return None
    return StoreError(f"{address}: {why}")


def _listed_object(said: str) -> str:
    """The object that the library does not list, by what it says."""
    key = _PATH.search(said)
    if key is None:
        return "an object there"
    return f"the object {key[1][:200]!r}"


def _no_server_of_files(said: str) -> str | None:
    """How a server differs from one of files, by what the library says of it; None: it does not."""
    for words, fault in _NO_SERVER_OF_FILES.items():
        if words in said:
            return fault
    return None


def is_refused(error: BaseException) -> bool:
    """True if the credentials did not suffice: others may be there for the next request."""
    said = library_text(error)
    words = (*_EXPIRED, _NO_CREDENTIALS, "computeMetadata")
    return type(error).__name__ in _REFUSED or any(word in said for word in words)


def library_text(error: BaseException) -> str:
    """The text of an exception of obstore, in one line, without the pages of detail after it.

    It may have what the server says, and so is looked at, and never shown.
    """
    return " ".join(str(error).partition("\n\nDebug source:")[0].split())


def status_of(error: BaseException) -> int:
    """The HTTP status that an exception of obstore tells, or 0."""
    match = _STATUS.search(library_text(error))
    return int(match[1]) if match else 0


def is_unreachable(error: BaseException) -> bool:
    """True if an exception of obstore is of a connection that failed, or had no answer."""
    return error_text(error) in _UNREACHABLE


def error_text(error: BaseException) -> str:
    """The text of an exception of obstore, in a form that may be shown.

    A server may echo what was sent to it, in any spelling. So this has the status, the code of an
    error if it is a word, and otherwise what is known to be the library's own words.
    """
    text = library_text(error)
    status = status_of(error)
    if not status:
        words = _ITS_WORDS.search(text)
        return words[0] if words else type(error).__name__
    answer = f"status code: {status} {responses.get(status, '')}".rstrip()
    code = _CODE.search(text)
    if code is not None:
        answer += f" ({code[1]})"
    return answer
