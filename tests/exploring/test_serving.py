"""One client holds up no other, a client may go away, and nothing is left when the page closes."""

import re
import signal
import socket
import struct
import threading
import time

import pytest
from commands import finish, start
from page_client import Client

import sa1bpack
from sa1bpack.exploring import answers, filters

PATIENCE = 60  # seconds until a test fails in place of waiting for ever


def connected(client) -> socket.socket:
    """A connection to the server of a client."""
    host, port = client.address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def request(client, path: str) -> bytes:
    """A request as it is sent."""
    lines = (f"GET {path} HTTP/1.1", f"Host: {client.address}", f"Cookie: {client.cookie}", "", "")
    return "\r\n".join(lines).encode()


def test_a_sample_that_takes_long_to_read_holds_up_no_other(client, monkeypatch):
    go_on, has_begun = threading.Event(), threading.Event()
    read = answers.read_subject

    def slowly(dataset, index):
        if index == 3:
            has_begun.set()
            assert go_on.wait(PATIENCE)
        return read(dataset, index)

    monkeypatch.setattr(answers, "read_subject", slowly)
    with connected(client) as slow, slow.makefile("rb") as answer:
        slow.sendall(request(client, "/thumbnail?index=3&side=200&masks=1"))
        assert has_begun.wait(PATIENCE)
        for index in (0, 1, 2):
            assert client.get(f"/image?index={index}").status == 200
        assert client.ask("/api/rows", start=0, stop=1)["count"] == 20
        go_on.set()
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_client_that_says_nothing_or_half_of_it_holds_up_no_other(client):
    with connected(client), connected(client) as half:
        half.sendall(request(client, "/api/pack")[:-4])
        assert client.get("/api/pack").status == 200
        half.sendall(b"\r\n\r\n")
        assert half.recv(15) == b"HTTP/1.1 200 OK"


def test_a_client_that_goes_away_leaves_nothing_and_no_error(client, capfd, caplog):
    for path in ("/image?index=0", "/api/sample?index=1", "/nothing", "/explore.js"):
        gone = connected(client)
        gone.sendall(request(client, path) * 20)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
        gone.close()
    end = time.monotonic() + PATIENCE
    while any(thread.name == "page connection" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert client.get("/image?index=0").status == 200
    assert capfd.readouterr().err == "" and not caplog.records


@pytest.mark.parametrize("sent", [b"\r\n", b"GET\r\n", b"\x16\x03\x01\0", b"G" * 70000])
def test_what_is_not_http_is_refused(client, sent):
    with connected(client) as other:
        other.sendall(sent + b"\r\n\r\n")
        other.shutdown(socket.SHUT_WR)
        while other.recv(4096):
            pass
    assert client.get("/api/pack").status == 200


def test_several_requests_on_one_connection_are_answered(client):
    with connected(client) as kept, kept.makefile("rb") as answers_:
        for _ in range(3):
            kept.sendall(request(client, "/api/rows?start=0&stop=2"))
            assert answers_.readline() == b"HTTP/1.1 200 OK\r\n"
            length = 0
            while line := answers_.readline().strip():
                if line.startswith(b"Content-Length"):
                    length = int(line.split()[1])
            assert b'"count":20' in answers_.read(length)


def test_closing_ends_every_thread_and_connection_whatever_they_do(pack, served):
    before = set(threading.enumerate())
    with sa1bpack.explore(pack, port=0) as page:
        served(pack)
        client = Client(page.url)
        idle, half = connected(client), connected(client)
        half.sendall(b"GET / HTTP/1.1\r\n")
        client.ask("/api/rows", start=0, stop=1, area="1:")
        assert "http://" in repr(page)
    with idle, half:
        assert idle.recv(1) == b"" and half.recv(1) == b""
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert names.count("page server") == 1  # the other page's
    page.close()
    assert "closed" in repr(page)
    with pytest.raises(OSError):
        client.get("/api/pack")


def test_a_view_that_a_page_leaves_ends_unless_another_looks_at_it(served, pack, monkeypatch):
    """As when a slider moves: only the last of many filters is of interest."""
    go_on = threading.Event()
    by_shard = filters.FilterSteps.by_shard

    calls = []

    def slowly(steps, columns):
        calls.append(steps)
        assert go_on.wait(PATIENCE)
        return by_shard(steps, columns)

    client = served(pack)
    monkeypatch.setattr(filters.FilterSteps, "by_shard", slowly)
    query = {"start": 0, "stop": 1}
    assert not client.ask("/api/rows", **query, area="5:", page="other")["is_done"]
    for low in (5, 6, 7, 8, 9):
        assert client.ask("/api/rows", **query, area=f"{low}:", page="one")["count"] == 0
    go_on.set()
    for low in (5, 9):
        assert len(client.view(area=f"{low}:")) > 5
    assert 10 <= len(calls) <= 13  # of 25: all 5 shards for two views, at most one for the others


def test_the_command_prints_the_address_and_ends_on_ctrl_c(pack, tmp_path):
    process = start("explore", pack, "--port", 0, "--folder", tmp_path)
    line = process.stdout.readline()
    url = re.fullmatch(r"(http://127\.0\.0\.1:\d+/\?token=\S+)\n", line)[1]
    assert Client(url).ask("/api/pack")["folder"] == str(tmp_path)
    process.send_signal(signal.SIGINT)
    assert finish(process)[::2] == (0, "")
