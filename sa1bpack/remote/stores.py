"""Object stores, s3:// and gs://, by obstore, with the credentials of the cloud's own tools.

Credentials of S3 come from botocore, in the order of the AWS command line: environment, profile
(`~/.aws`), single sign-on, container, instance; region and endpoint likewise. Those of Google Cloud
come from obstore: GOOGLE_APPLICATION_CREDENTIALS, the file that `gcloud auth application-default
login` writes, the instance. None of them is kept, shown or written.
"""

import html
import os
import re
from datetime import UTC, datetime, timedelta
from http.client import responses
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from sa1bpack.errors import MissingPackage, OptionError, SourceError, StoreError

# A body that yields no byte for so long is broken. (The library's limit on a complete request, 30 s
# by default, would end every longer one.)
READ_SECONDS = 60
CONNECT_SECONDS = 20
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
