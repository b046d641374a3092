"""The first request for a tar at a URL has the patience of all later ones, whoever is asked."""

import random
import socket
import threading
from urllib.parse import urlsplit

import pytest
from fault_server import cut, dropped, send, stalled, status
from s3_server import use_s3
from small_tars import contents, members, pack_small, write_tar

from sa1bpack.errors import SourceError
from sa1bpack.remote import web as web_files

PASSING = [status(code) for code in (408, 425, 429, 500, 502, 503, 504)] + [dropped, cut(0)]
NAME = "sa_000000.tar"
LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated><Contents>
<Key>{key}</Key><LastModified>2026-11-22T00:00:00.000Z</LastModified><ETag>"0"</ETag>
<Size>{size}</Size></Contents></ListBucketResult>"""


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    return write_tar(tmp_path_factory.mktemp("tar") / NAME, members(range(1, 4)))


@pytest.fixture(scope="module")
def packed(tar, tmp_path_factory):
    """What a pack of the file holds."""
    root = tmp_path_factory.mktemp("packed") / "pack"
    pack_small(tar, root)
    return contents(root)


@pytest.fixture
def asked(web, tar, tmp_path, monkeypatch):
    """asked(kind of URL): the arguments of `pack` for it, and the path of its first request."""
    use_s3(web.url, monkeypatch)
    bucket = f"first-{web.url[-5:]}"
    web.files |= {f"/t/{NAME}": tar.read_bytes(), f"/{bucket}/{NAME}": tar.read_bytes()}
    listing = LISTING.format(bucket=bucket, key=NAME, size=tar.stat().st_size)
    web.files[f"/{bucket}"] = listing.encode()
    links = tmp_path / "links.txt"

    def arguments(kind: str) -> tuple[dict, str]:
        if kind == "web":
            return {"sources": f"{web.url}/t/{NAME}"}, f"/t/{NAME}"
        if kind == "object":
            return {"sources": f"s3://{bucket}/{NAME}"}, f"/{bucket}/{NAME}"
        if kind == "pattern":
            return {"sources": f"s3://{bucket}/sa_*.tar"}, f"/{bucket}"
        links.write_text(f"{NAME}\t{web.url}/t/{NAME}?sig=1\n")
        return {"sources": (), "links": links}, f"/t/{NAME}"

    return arguments


@pytest.mark.parametrize("kind", ["web", "links", "object", "pattern"])
def test_nineteen_failures_of_the_first_request_are_waited_out_and_reported(
    web, asked, packed, tmp_path, monkeypatch, capsys, kind
):
    monkeypatch.setattr(web_files, "TIMEOUT", 0.1)
    arguments, path = asked(kind)
    rng = random.Random(kind)
    faults = rng.choices(PASSING, k=18)
    faults.append(stalled(0) if kind in ("web", "links") else dropped)
    web.faults[path] = rng.sample(faults, len(faults))
    made = pack_small(**arguments, output=tmp_path / "pack")
    assert made.complete and contents(tmp_path / "pack") == packed
    assert not web.faults[path]
    said = capsys.readouterr().err
    for number in (4, 9, 14, 19):
        assert said.count(f"(attempt {number} of 20)") == 1


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "Connection refused"), socket.gaierror(-3, "no answer now")],
    ids=["a refused connection", "a name that cannot be resolved"],
)
def test_a_host_that_cannot_be_reached_at_first_is_waited_for(
    web, asked, packed, tmp_path, monkeypatch, error
):
    connect, failures = socket.create_connection, []

    def create_connection(address, *options, **more):
        if address[1] == urlsplit(web.url).port and len(failures) < 19:
            failures.append(address)
            raise error
        return connect(address, *options, **more)

    monkeypatch.setattr(socket, "create_connection", create_connection)
    arguments, _ = asked("web")
    assert pack_small(**arguments, output=tmp_path / "pack").complete
    assert contents(tmp_path / "pack") == packed and len(failures) == 19


@pytest.mark.parametrize("code", [403, 404, 410])
@pytest.mark.parametrize("kind", ["web", "links", "object", "pattern"])
def test_an_answer_that_no_repetition_changes_is_asked_for_once(web, asked, tmp_path, kind, code):
    arguments, path = asked(kind)
    web.faults[path] = [status(code)] * 9
    try:
        made = pack_small(**arguments, output=tmp_path / "pack")
    except SourceError:
        assert kind == "pattern"  # before anything is begun
    else:
        assert list(made.failed) == ["sa_000000"]
    assert len(web.requests_of(path)) == 1


def test_a_proxy_that_refuses_is_named_at_once(web, tmp_path, monkeypatch):
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("https_proxy", web.url)
    asked = []

    def refuse(handler):
        asked.append(handler.path)
        handler.send_head(407, {})

    monkeypatch.setattr("fault_server.Handler.do_CONNECT", refuse, raising=False)
    made = pack_small(f"https://far.example.org/{NAME}", tmp_path / "pack")
    assert "the proxy answered 407; check the proxy" in str(made.failed["sa_000000"])
    assert asked == ["far.example.org:443"]


def test_many_tars_of_a_host_that_is_down_are_not_waited_for_one_after_the_other(
    web, tmp_path, capsys
):
    """The first ones have all attempts, the others a few; and all again once it answers."""
    web.always = status(503)
    urls = [f"{web.url}/sa_{number:06}.tar" for number in range(40)]
    made = pack_small(urls, tmp_path / "pack")
    assert len(made.failed) == 40
    counts = [len(web.requests_of(f"/sa_{number:06}.tar")) for number in range(40)]
    assert set(counts) == {20, 4} and 1 <= counts.count(20) <= 16
    assert capsys.readouterr().err.count("asking again") < 10


def test_a_tar_that_fails_for_good_takes_no_patience_from_the_others(web, tar, tmp_path):
    web.files |= {f"/sa_{number:06}.tar": tar.read_bytes() for number in range(20)}
    web.faults["/sa_000000.tar"] = [status(404)]
    others_answered = threading.Event()

    def refused_last(handler, data):
        assert others_answered.wait(60)
        status(500)(handler, data)

    def asked_last(handler, data):  # the first sixteen are settled by then, but for one
        others_answered.set()
        send(handler, data)

    web.faults["/sa_000001.tar"] = [*[status(500)] * 19, refused_last]
    web.faults["/sa_000018.tar"] = [asked_last]
    web.faults["/sa_000019.tar"] = [status(503)] * 19
    urls = [f"{web.url}/sa_{number:06}.tar" for number in range(20)]
    made = pack_small(urls, tmp_path / "pack")
    assert sorted(made.failed) == ["sa_000000", "sa_000001"]
