"""A file of the web arrives complete and unmixed, or there is an error that says why."""

import random
import re
import ssl
import threading
from contextlib import closing
from pathlib import Path

import pytest
import xxhash
from fault_server import changed, cut, dropped, fault_server, stalled, status
from s3_server import use_s3

from sa1bpack.errors import SourceError
from sa1bpack.remote import attempts
from sa1bpack.remote import web as web_files
from sa1bpack.remote.packs import open_stream
from sa1bpack.urls import Patience, parse_address

DATA = random.Random(0).randbytes(3_000_000)
PIECE = 1 << 16
# A key and a self-signed certificate of 127.0.0.1, valid until 2126.
CERTIFICATE = Path(__file__).with_name("localhost.pem")


@pytest.fixture
def served(web):
    """The server, with DATA at /t/sa_0.tar, and the address of that, with a signature."""
    web.files["/t/sa_0.tar"] = DATA
    return web, parse_address("source", f"{web.url}/t/sa_0.tar?sig=SECRET")


@pytest.fixture
def stored(web, monkeypatch):
    """The server as an object store, with DATA, and its address there."""
    use_s3(web.url, monkeypatch)
    bucket = f"cancelled-{web.url[-5:]}"
    web.files[f"/{bucket}/sa_0.tar"] = DATA
    return web, parse_address("source", f"s3://{bucket}/sa_0.tar")


def read_all(address, **options) -> bytes:
    """All bytes of a file, read in pieces, as a tar is."""
    digest = xxhash.xxh3_128()
    file = open_stream(address, digest=digest.hexdigest, **options)
    found = b""
    try:
        while data := file.read(PIECE):
            digest.update(data)
            found += data
    finally:
        file.close()
    return found


@pytest.mark.parametrize(
    ("faults", "most", "continued"),
    [
        # What goes wrong, how much a server sends of a range, where it is continued.
        ([cut(1_000_001), cut(500_000), dropped, cut(0)], None, [1000001, *3 * [1500001]]),
        ([cut(1_000_000)], 700_000, [1000000, 1700000, 2400000]),
    ],
)
def test_a_body_that_is_cut_is_continued_at_its_byte_of_the_same_version(
    served, faults, most, continued
):
    server, address = served
    server.faults["/t/sa_0.tar"], server.most = list(faults), most
    assert read_all(address) == DATA
    ranges = [f"bytes={first}-" for first in continued]
    assert server.requests_of("/t/sa_0.tar") == ["", *ranges]
    tags = {tag for _, _, tag in server.requests[1:]}
    assert len(tags) == 1 and tags.pop().startswith('"')


@pytest.mark.parametrize(
    "faults",
    [[stalled(100_000), stalled(0)]]
    + [[status(code), cut(9), status(code, {"Retry-After": "1"})] for code in (408, 429, 500, 503)],
)
def test_a_status_or_time_out_that_may_pass_is_asked_again(served, monkeypatch, faults):
    monkeypatch.setattr(web_files, "TIMEOUT", 0.2)
    server, address = served
    server.faults["/t/sa_0.tar"] = list(faults)
    assert read_all(address) == DATA
    assert len(server.requests) == len(faults) + 1


def test_a_server_that_asks_to_wait_is_obeyed_up_to_a_limit():
    for asked, waited in ((7, 7), (1e6, attempts.LONGEST_ASKED)):
        assert attempts.Attempts("", Patience(2)).failed(SourceError, "busy", asked=asked) == waited


def test_a_file_that_makes_no_progress_is_given_up_with_the_place_and_the_last_fault(served):
    server, address = served
    lines = []
    server.faults["/t/sa_0.tar"] = [cut(1_000_000), *[status(503)] * 30]
    with pytest.raises(SourceError, match=r"at byte 1000000 after 20 attempts .*answers 503") as e:
        read_all(address, on_wait=lines.append)
    assert [line.partition(": the server answers 503")[2] for line in lines] == [
        f" Service Unavailable; asking again from byte 1000000 (attempt {number} of 20)"
        for number in (4, 9, 14, 19)
    ]
    assert not any("?" in line for line in lines)
    assert len(server.requests) == 20
    assert "SECRET" not in str(e.value) and "?" not in str(e.value)


def test_faults_are_counted_anew_after_progress(served):
    server, address = served
    server.faults["/t/sa_0.tar"] = [cut(1_200_000)] * 2
    assert read_all(address, patience=Patience(2)) == DATA


def test_a_server_without_ranges_sends_it_again_and_what_was_read_is_compared(served):
    server, address = served
    server.ranges = False
    server.faults["/t/sa_0.tar"] = [cut(2_000_000)]
    assert read_all(address) == DATA
    server.etags = False
    server.faults["/t/sa_0.tar"] = [cut(2_000_000)]
    server.requests.clear()
    file = open_stream(address, digest=lambda: "the digest of other bytes")
    with pytest.raises(SourceError, match="has changed since"):
        while file.read(PIECE):
            pass
    file.close()
    assert len(server.requests) == 2


def shortened(handler, data):
    """Cut an answer without ETag; the file has another size afterwards."""
    handler.of.etags, handler.of.files["/t/sa_0.tar"] = False, data[:2_000_000]
    cut(1_000_000)(handler, data)


@pytest.mark.parametrize(
    "faults",
    [[cut(1_000_000), changed(tag)] for tag in ('"another"', 'W/"another"')] + [[shortened]],
)
def test_a_file_that_changed_is_an_error_and_never_continued(served, faults):
    server, address = served
    server.faults["/t/sa_0.tar"] = list(faults)
    with pytest.raises(SourceError, match="has changed since it was first asked for"):
        read_all(address)
    assert len(server.requests) == 2


def test_an_object_that_changed_is_never_continued(stored, small_requests):
    server, address = stored
    with closing(open_stream(address)) as file:
        assert file.read(10) == DATA[:10]
        server.files[f"/{address.bucket}/sa_0.tar"] = DATA[::-1]
        with pytest.raises(SourceError, match="has changed since it was first asked for"):
            while file.read(PIECE):
                pass


@pytest.mark.parametrize("etag", ['"another"', 'W/"another"', None])
def test_an_object_that_changed_is_never_continued_where_the_server_compares_no_version(
    stored, small_requests, etag
):
    """It was read on, in silence: half of one file, and half of another."""
    server, address = stored
    path = f"/{address.bucket}/sa_0.tar"
    modified = "Sun, 22 Nov 2026 00:00:00 GMT"

    def answer(handler, data):
        first, last = map(int, re.findall(r"\d+", handler.headers["Range"]))
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "Last-Modified": modified}
        if etag is not None:
            headers["ETag"] = etag if data != DATA else etag.replace("another", "first")
        handler.send_head(206, headers, last + 1 - first)
        handler.wfile.write(data[first : last + 1])

    server.always = answer
    with closing(open_stream(address)) as file:
        assert file.read(10) == DATA[:10]
        server.files[path] = DATA[::-1]
        modified = "Sun, 22 Nov 2026 00:00:01 GMT"
        with pytest.raises(SourceError, match="has changed since it was first asked for"):
            while file.read(PIECE):
                pass


def test_an_object_with_a_weak_etag_is_read(stored, small_requests):
    """A condition that it matches fails on every server, and the object was said to change."""
    server, address = stored
    tag = 'W/"weak"'

    def answer(handler, data):
        if "If-Match" in handler.headers:
            status(412)(handler, data)
        else:
            changed(tag)(handler, data)

    server.always = answer
    assert read_all(address) == DATA


def test_what_no_repetition_changes_is_not_repeated(served):
    server, _ = served
    no_host = parse_address("source", f"http://{'a' * 64}.example/sa_0.tar?SECRET")
    with pytest.raises(SourceError, match=r"/sa_0\.tar: the URL cannot be used; check it$"):
        read_all(no_host)
    missing = parse_address("source", f"{server.url}/none.tar?SECRET")
    with pytest.raises(SourceError, match=r"/none\.tar: the server answers 404 .*check the URL"):
        read_all(missing)
    assert len(server.requests) == 1


def test_redirects_are_followed_with_the_range_and_no_further_than_five(served):
    server, _ = served
    server.files |= {"/a": b"", "/loop": b""}
    there = status(302, {"Location": "/t/sa_0.tar?sig=SECRET2"})
    server.faults["/a"] = [there, there]
    server.faults["/t/sa_0.tar"] = [cut(1_000_000)]
    assert read_all(parse_address("source", f"{server.url}/a")) == DATA
    assert server.requests_of("/a") == ["", "bytes=1000000-"]
    assert server.requests_of("/t/sa_0.tar") == ["", "bytes=1000000-"]
    server.faults["/loop"] = [status(307, {"Location": "/loop?SECRET"})] * 20
    with pytest.raises(SourceError, match=r"redirects more than 5 times"):
        read_all(parse_address("source", f"{server.url}/loop"))
    server.faults["/loop"] = [status(301, {"Location": "ftp://host/SECRET?SECRET"})]
    with pytest.raises(SourceError, match="or to what is no address of the web"):
        read_all(parse_address("source", f"{server.url}/loop"))


@pytest.mark.parametrize(
    ("place", "count"), [("served", 100_000), ("served", 0), ("secure", 100_000), ("stored", 0)]
)
def test_cancelling_ends_a_wait_for_the_server_in_another_thread(
    request, monkeypatch, place, count
):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    server, address = request.getfixturevalue(place)
    path = next(path for path in server.files if path.endswith("/sa_0.tar"))
    server.faults[path] = [stalled(count)]
    file, ended = open_stream(address), []

    def read():
        with pytest.raises(SourceError, match="was interrupted"):
            while file.read(PIECE):
                pass
        ended.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    while not server.requests:
        thread.join(0.001)
    file.cancel()
    thread.join(20)  # far less than the 30 s after which a server that sends nothing is given up
    assert ended
    file.close()


def test_a_proxy_of_the_environment_is_used(served, monkeypatch):
    """The server plays the proxy: it gets the complete URL in the request."""
    server, _ = served
    monkeypatch.delenv("NO_PROXY")
    server.files["http://far.example.org/sa_0.tar"] = b"by proxy"
    monkeypatch.setenv("http_proxy", server.url.replace("://", "://me:p%40ss@"))
    monkeypatch.setenv("no_proxy", "other.example.org")
    address = parse_address("source", "http://far.example.org/sa_0.tar?sig=SECRET")
    assert read_all(address) == b"by proxy"
    assert server.proxy_users == ["Basic bWU6cEBzcw=="]  # me:p@ss


@pytest.fixture
def secure(web):
    """A server over https, and an address of DATA there. `web` shortens the waits."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    with fault_server(tls) as server:
        server.files["/sa_0.tar"] = DATA
        yield server, parse_address("source", f"{server.url}/sa_0.tar?sig=SECRET")


def test_https_is_continued_as_http_is(secure, monkeypatch):
    server, address = secure
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    server.faults["/sa_0.tar"] = [cut(1_000_000), dropped, cut(5)]
    assert read_all(address) == DATA
    assert server.requests_of("/sa_0.tar")[-1] == "bytes=1000005-"
    server.files["/away.tar"] = b""
    server.faults["/away.tar"] = [status(302, {"Location": "http://127.0.0.1/a.tar?SECRET"})]
    with pytest.raises(SourceError, match=r"redirects .*from https to http") as e:
        read_all(parse_address("source", f"{server.url}/away.tar"))
    assert "SECRET" not in str(e.value)


def test_a_certificate_that_nobody_vouches_for_is_an_error_at_once(secure):
    server, address = secure
    with pytest.raises(SourceError, match=r"certificate cannot be trusted \(self-signed"):
        read_all(address)
    assert server.requests == []


DIGITS = "9" * 5000
AWAY = {"Location": "ftp://host/SECRET", "Content-Length": "0"}
# What a server sends, and what its answer becomes: an error, or another attempt.
ANSWERS = {
    "a length of 5,000 digits": ("200 OK", {"Content-Length": DIGITS}, "does not send the size"),
    "no length": ("200 OK", {"Transfer-Encoding": "chunked"}, "does not send the size"),
    "a negative length": ("200 OK", {"Content-Length": "-5"}, "does not send the size"),
    "a range of 5,000 digits": (
        "206 Partial Content",
        {"Content-Range": f"bytes 0-{DIGITS}/{DIGITS}", "Content-Length": "4"},
        "the server sends others",
    ),
    "a wait of 5,000 digits": ("503 Busy", {"Retry-After": DIGITS}, None),
    "a wait that is no number": ("503 Busy", {"Retry-After": "soon"}, None),
    "a negative chunk": (
        "200 OK", {"Transfer-Encoding": "chunked", "Content-Length": "10"}, "has changed since"
    ),
    "a secret phrase": ("403 SECRET", AWAY, "answers 403 .*download the list of links again"),
    "a refused link": ("401 Unauthorized", AWAY, "answers 401 .*download the list of links again"),
    "an expired link": ("410 Gone", AWAY, "answers 410 .*download the list of links again"),
    "a secret query": ("418 ?sig=SECRET", AWAY, "the server answers 418"),
    "a secret redirect": ("302 Found", AWAY, "the server redirects"),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_a_strange_answer_is_an_error_or_another_attempt_and_its_text_is_not_shown(served, what):
    server, address = served
    line, headers, error = ANSWERS[what]

    def answer(handler, data):
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        body = "-5\r\nabc\r\n" if "Transfer-Encoding" in headers else "abcd"
        handler.wfile.write(f"HTTP/1.1 {line}\r\n{head}\r\n{body}".encode())
        handler.close_connection = True

    server.faults["/t/sa_0.tar"] = [answer]
    file = open_stream(address)
    if error is None:
        assert file.read(10) == server.files["/t/sa_0.tar"][:10]
        assert len(server.requests) == 2
    else:
        with pytest.raises(SourceError, match=error) as caught:
            file.read(10)
        assert "99999" not in str(caught.value) and "SECRET" not in str(caught.value)
        assert len(server.requests) == 1 + (what == "a negative chunk")
    file.close()


def test_no_text_of_a_proxy_is_shown():
    """It was sent the credentials of the proxy, and may echo them; http.client passes it on."""
    refused = OSError("Tunnel connection failed: 407 U0VDUkVU")
    assert web_files.failure_text(refused) == "the proxy answered 407"
    assert web_files.failure_text(OSError("U0VDUkVU")) == "OSError"
