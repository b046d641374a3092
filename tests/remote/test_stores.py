"""Buckets are opened as the tools of the cloud would open them."""

import traceback
from collections import Counter
from urllib.parse import quote

import pytest
from batches import all_same, same_samples
from commands import python
from fault_server import fault_server, send, serve_files, status
from s3_server import use_s3

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import NotAPack, SourceError, StoreError
from sa1bpack.remote import bucket, stores
from sa1bpack.remote.stores import error_text, final_error


@pytest.fixture
def no_credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


def pack_tar(url: str, out) -> None:
    """Pack a tar that cannot be read; raises its error."""
    [error] = sa1bpack.pack(url, out, workers=1).failed.values()
    raise error


def test_a_profile_of_the_aws_command_line_has_credentials_and_endpoint(
    s3, no_credentials, monkeypatch, tmp_path
):
    s3.make_bucket("of-a-profile")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text(f"[profile lab]\nregion = eu-west-1\nendpoint_url = {s3.url}\n")
    credentials.write_text("[lab]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    with pytest.raises(NotAPack, match="s3://of-a-profile/pack: not a pack"):
        sa1bpack.verify("s3://of-a-profile/pack")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(OptionError, match=r"^s3://b: .*ProfileNotFound"):
        sa1bpack.verify("s3://b/pack")


def test_a_public_bucket_is_read_without_signature(web, no_credentials, monkeypatch, tmp_path):
    use_s3(web.url, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    signed = []

    def answer(handler, data):
        signed.append(handler.headers.get("Authorization"))
        object_head(handler, 2)
        handler.wfile.write(b"[]")

    web.always = answer
    with pytest.raises(FormatError, match=r"/pack/manifest\.json"):
        sa1bpack.open(f"s3://public-{web.url[-5:]}/pack", cache_dir=tmp_path)
    assert signed and not any(signed)


def test_neither_library_is_loaded_before_a_bucket_is_opened():
    loaded = "{'obstore', 'botocore'} & set(sys.modules)"
    python("-c", f"import sys, sa1bpack.remote.stores\nassert not {loaded}")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
@pytest.mark.parametrize(
    "endpoint",
    ["", "minio.example.org:9000", "https://me:SECRET@host", "me:SECRET@host", "http://h/?SECRET"],
)
def test_an_endpoint_that_cannot_be_used_is_named_by_its_variable_without_secrets(
    s3, monkeypatch, name, endpoint
):
    monkeypatch.setenv(name, endpoint)
    with pytest.raises(OptionError, match=f"^s3://b: {name} is not a URL such as") as caught:
        sa1bpack.verify("s3://b/pack")
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


class PermissionDeniedError(Exception):
    """Named as the library's."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Exception("<Error><Code>ExpiredToken</Code></Error>"), "credentials have expired; log in"),
        (Exception("<Error><Code>NoSuchBucket</Code></Error>"), "there is no such bucket"),
        (Exception("the configured region"), "set AWS_REGION"),
        (PermissionDeniedError("403 Forbidden"), "access was refused"),
        (Exception("GET http://169.254.169.254/computeMetadata/v1"), "`gcloud auth application-"),
    ],
)
def test_what_does_not_pass_by_itself_has_a_remedy(error, text):
    found = str(final_error(error, "gs://bucket/pack/manifest.json"))
    assert found.startswith("gs://bucket/pack/manifest.json: ") and text in found
    # What may pass is tried again.
    assert final_error(Exception("503 SlowDown"), "s3://bucket/key") is None


TOKEN = "THE+SESSION/TOKEN=="
SPELT = {
    "as it is": TOKEN, "twice": quote(quote(TOKEN, safe=""), safe=""),
    "a web token": "eyJhbGciOiJub25lIn0.e30.", "a header": "Authorization: Bearer abcdef",
}  # fmt: skip


@pytest.mark.parametrize(
    "spelt", ["InvalidToken", "test_secret_key", TOKEN, SPELT["twice"], SPELT["a header"]]
)
def test_a_token_that_the_server_echoes_is_not_shown(web, monkeypatch, tmp_path, spelt):
    """As S3 does in the body of its answers, and another server may do anywhere."""

    def echo(handler, data):
        assert handler.headers["x-amz-security-token"] == TOKEN
        text = f"<Error><Code>{spelt}</Code><Token-0>{spelt}</Token-0></Error>"
        handler.responses = {400: (spelt, "")}  # the phrase, too
        handler.send_head(400, {}, len(text))
        handler.wfile.write(text.encode())

    web.always = echo
    use_s3(web.url, monkeypatch)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    bucket = f"s3://echo-{web.url[-5:]}"  # stores are kept by their names
    for call in (
        lambda: sa1bpack.open(f"{bucket}/pack", cache_dir=tmp_path),
        lambda: sa1bpack.estimate(f"{bucket}/sa_*.tar", tmp_path / "out"),
        lambda: pack_tar(f"{bucket}/sa_0.tar", tmp_path / "out"),
    ):
        with pytest.raises((StoreError, SourceError), match="400 Bad Request") as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value))
        assert (spelt in shown) == (spelt == "InvalidToken")


@pytest.mark.parametrize("spelt", SPELT.values(), ids=SPELT)
def test_no_text_of_the_library_shows_a_credential_in_any_spelling(spelt):
    for text in (f"no answer: {spelt}", f"{spelt} - status code: 400 {spelt}", f"<Code>{spelt}"):
        assert spelt not in error_text(Exception(text))
    assert error_text(Exception("status code: 503 <Code>SlowDown</Code>")) == (
        "status code: 503 Service Unavailable (SlowDown)"
    )


@pytest.fixture
def aws(web, monkeypatch, no_credentials):
    """A server that hands out credentials, in `aws.url`: it answers with `aws.answer`.

    aws.answer  status, and the body, in which SENT is the token that came with the request
    """

    def answer(handler, data):
        sent = handler.rfile.read(int(handler.headers.get("Content-Length", 0))).decode()
        status, body = web.answer
        sent += str(handler.headers.get("Authorization"))
        body = body.replace("SENT", sent).encode()
        handler.send_head(status, {}, len(body))
        handler.wfile.write(body)

    web.always = answer
    monkeypatch.setattr("time.sleep", lambda _: None)  # between botocore's attempts
    return web


KEYS = '"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c"'
ANSWERS = {
    "an echo": (403, "no access with SENT"),
    "a number for a date": (200, f'{{{KEYS}, "Expiration": 5}}'),
    "a list": (200, '["SENT"]'),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_nothing_that_a_server_of_credentials_says_is_shown_and_it_is_an_option_error(
    aws, monkeypatch, answer
):
    """That of a container. botocore lets KeyError, TypeError and others through."""
    aws.answer = answer
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{aws.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", TOKEN)
    with pytest.raises(OptionError, match=r"^s3://b: .*get-caller-identity") as caught:
        sa1bpack.verify("s3://b/pack")
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_the_token_of_a_web_identity_is_not_shown_when_the_server_echoes_it(
    aws, monkeypatch, tmp_path
):
    """Which is asked with the first request."""
    error = "<Error><Code>Bad</Code><Message>SENT</Message></Error>"
    aws.answer = 400, f"<ErrorResponse>{error}</ErrorResponse>"
    (tmp_path / "token").write_text(token := "a_web_token")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(StoreError, match="get-caller-identity") as caught:
        sa1bpack.open("s3://b/pack", cache_dir=tmp_path)
    assert token not in "".join(traceback.format_exception(caught.value))


def object_head(handler, nbytes: int, date: str = "Sun, 22 Nov 2026 00:00:00 GMT") -> None:
    """The head of the answer for an object."""
    handler.send_head(200, {"ETag": '"a"', "Last-Modified": date}, nbytes)


def test_a_manifest_in_a_bucket_has_a_limit_and_is_not_read_before(web, monkeypatch, tmp_path):
    def answer(handler, data):
        object_head(handler, 3 << 30)
        web.held.wait(60)  # who reads it waits
        handler.close_connection = True

    use_s3(web.url, monkeypatch)
    web.always, url = answer, f"s3://large-{web.url[-5:]}/pack"
    with pytest.raises(FormatError, match=rf"{url}/manifest.json: {3 << 30} bytes, more than"):
        sa1bpack.open(url, cache_dir=tmp_path)


# ------------------------------------------------------------------------------- other credentials


def pack_for(web, root, key: str) -> None:
    """Let a server have a pack at /bucket/pack, for who signs with the id of a key."""
    serve_files(web, root, "/bucket/pack")

    def answer(handler, data):
        if f"Credential={key}/" not in handler.headers.get("Authorization", ""):
            status(403)(handler, b"")
        elif data is None:
            status(404)(handler, b"")
        else:
            send(handler, data)

    web.always = answer


def write_credentials(path, key: str) -> None:
    """Write the file of credentials of the AWS command line."""
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = b\n")


@pytest.mark.parametrize("change", ["endpoint", "key", "file"])
def test_a_pack_that_was_refused_is_opened_once_the_remedy_is_done(
    web, layout_packs, tmp_path, monkeypatch, change
):
    """In one process, as in a notebook: the first store of a bucket was kept for good."""
    root = layout_packs()
    use_s3(web.url, monkeypatch)
    credentials = tmp_path / "credentials"
    write_credentials(credentials, "wrong")
    pack_for(web, root, "right")
    with fault_server() as refusing:
        refusing.always = status(403)
        if change == "file":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
            monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        elif change == "key":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
        else:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "right")
            monkeypatch.setenv("AWS_ENDPOINT_URL", refusing.url)
        with pytest.raises(StoreError, match="access was refused"):
            sa1bpack.open("s3://bucket/pack", cache_dir=tmp_path / "cache")
        write_credentials(credentials, "right")
        if change == "key":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "right")
        elif change == "endpoint":
            monkeypatch.setenv("AWS_ENDPOINT_URL", web.url)
        ds = sa1bpack.open("s3://bucket/pack", cache_dir=tmp_path / "cache")
        assert all_same(ds, sa1bpack.open(root))


def test_an_open_pack_is_read_on_with_credentials_that_were_renewed(
    web, layout_packs, tmp_path, monkeypatch
):
    root = layout_packs()
    own = sa1bpack.open(root)
    use_s3(web.url, monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    credentials = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    write_credentials(credentials, "first")
    pack_for(web, root, "first")
    ds = sa1bpack.open("s3://bucket/pack", cache_dir=tmp_path / "cache", fetch="rows")
    assert same_samples(ds[0], own[0])
    pack_for(web, root, "second")
    with pytest.raises(StoreError, match="access was refused"):
        ds[len(own) - 1]
    write_credentials(credentials, "second")
    assert all_same(ds, own)


def test_a_tar_that_was_refused_is_packed_once_the_remedy_is_done(
    web, sample_tar, tmp_path, monkeypatch
):
    use_s3(web.url, monkeypatch)
    web.files["/tars/sa_0.tar"] = sample_tar.read_bytes()
    web.always = status(403)
    with pytest.raises(SourceError, match="access was refused"):
        pack_tar("s3://tars/sa_0.tar", tmp_path / "pack")
    with fault_server() as other:
        monkeypatch.setenv("AWS_ENDPOINT_URL", other.url)
        other.files = web.files
        result = sa1bpack.pack("s3://tars/sa_0.tar", tmp_path / "pack", workers=1)
        assert result.images == 3 and not result.failed


# --------------------------------------------------------------------------- servers of other kinds


def whole(handler, data):
    """Answer a request for a part with all of the file, as python -m http.server does."""
    handler.send_head(200, {}, len(data))
    handler.wfile.write(data)


def without_place(handler, data):
    """Answer with a part, and do not say which."""
    if "Range" not in handler.headers:
        send(handler, data)
        return
    handler.send_head(206, {}, 4)
    handler.wfile.write(data[:4])


def without_length(handler, data):
    """Answer without the number of bytes."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True


def in_a_circle(handler, data):
    """Redirect a request to itself."""
    handler.send_head(302, {"Location": f"{handler.of.url}{handler.path}"})


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (whole, "sends whole files where a part is asked for"),
        (without_place, "the server does not say which one it sends"),
        (without_length, "the server does not say how many bytes it sends"),
        (in_a_circle, "the server redirects in a circle"),
    ],
)
def test_a_server_that_is_none_of_files_is_named_at_once_with_the_remedy(
    web, layout_packs, tmp_path, monkeypatch, scheme, answer, fault
):
    """It was an error of the network, GenericError, after three attempts."""
    use_s3(web.url, monkeypatch)
    serve_files(web, layout_packs(), "/bucket/pack")
    web.always = answer
    url = "s3://bucket/pack" if scheme == "s3" else f"{web.url}/bucket/pack"
    with pytest.raises(StoreError, match=rf"^{url}/.*{fault}.*; name a server that .*copy"):
        sa1bpack.open(url, cache_dir=tmp_path)
    redirects = 40 if answer is in_a_circle else 1
    assert max(Counter(web.requests).values()) <= redirects


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("RequestTimeTooSkewed", "clock of this machine"), ("InvalidObjectState", "restore it first")],
)
def test_what_is_refused_for_another_reason_than_the_credentials_says_so(
    web, tmp_path, monkeypatch, code, remedy
):
    use_s3(web.url, monkeypatch)
    text = f"<Error><Code>{code}</Code></Error>".encode()

    def answer(handler, data):
        handler.send_head(403, {"Content-Type": "application/xml"}, len(text))
        handler.wfile.write(text)

    web.always = answer
    with pytest.raises(StoreError, match=remedy):
        sa1bpack.open("s3://bucket/pack", cache_dir=tmp_path)


def test_a_host_that_answers_nothing_is_given_up_within_minutes(web, tmp_path, monkeypatch):
    """Each attempt waits a minute for a byte: the library made eleven of them, three times."""
    monkeypatch.setattr(stores, "READ_SECONDS", 0.2)
    monkeypatch.setattr(stores, "RETRY_SECONDS", 0.15, raising=False)
    monkeypatch.setattr(bucket, "SECONDS_UNREACHABLE", 0.0)
    web.always = lambda handler, data: web.held.wait(60)
    with pytest.raises(StoreError, match="given up at byte 0 after 3 attempts"):
        sa1bpack.open(f"{web.url}/bucket/pack", cache_dir=tmp_path)
    assert len([path for path, *_ in web.requests if path.endswith("manifest.json")]) == 3


# Ends while requests are on their way.
ENDS = """
import contextlib, sys, threading, time, sa1bpack

def read():
    while True:
        with contextlib.suppress(sa1bpack.errors.Sa1bpackError):
            sa1bpack.open("s3://bucket/pack", cache_dir=sys.argv[1])

for _ in range(8):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("seconds", [0, 60], ids=["that answers", "that is stalled"])
def test_a_process_ends_in_peace_while_requests_to_a_server_are_on_their_way(
    web, monkeypatch, tmp_path, seconds
):
    """A thread of the library that comes back to an interpreter that ends would abort it."""

    def answer(handler, data):
        web.held.wait(seconds)
        object_head(handler, 4)
        handler.wfile.write(b"abcd")

    use_s3(web.url, monkeypatch)
    web.always = answer
    python("-c", ENDS, tmp_path, timeout=60)


def test_a_date_that_python_does_not_have_is_an_error_of_the_source_or_the_store(
    web, monkeypatch, tmp_path
):
    def answer(handler, data):
        object_head(handler, 2, "Fri, 31 Dec 99999 23:59:59 GMT")
        handler.wfile.write(b"{}")

    use_s3(web.url, monkeypatch)
    web.always, bucket = answer, f"s3://late-{web.url[-5:]}"
    with pytest.raises(StoreError, match=f"{bucket}/pack/manifest.json: "):
        sa1bpack.open(f"{bucket}/pack", cache_dir=tmp_path)
    with pytest.raises(SourceError, match=f"{bucket}/sa_0.tar"):
        pack_tar(f"{bucket}/sa_0.tar", tmp_path / "out")
