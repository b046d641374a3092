"""A web server on loopback, whose answers go wrong as a test says."""

import hashlib
import http.server
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import pytest

from sa1bpack.remote import attempts

Answer = Callable[["_Handler", bytes], None]


@dataclass
class FaultServer:
    """Files by path, and what goes wrong with requests for them.

    files
        Path with its slash → bytes.
    faults
        Path → faults, one for each request, in order; when there are none left, it is answered as
        it should be.
    requests
        (path, value of Range or "", value of If-Match or "") of each, in order.
    ranges, etags
        Whether ranges are served, and ETags sent.
    most
        Bytes that are sent at most for a range, however long it is; None: all.
    proxy_users
        Values of Proxy-Authorization, in the order of the requests that have one.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    ranges: bool = True
    etags: bool = True
    most: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    proxy_users: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def requests_of(self, path: str) -> list[str]:
        """The ranges asked for of a path, "" for all of it."""
        return [found for asked, found, _ in self.requests if asked == path]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: FaultServer

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        with self.of.lock:
            asked = (path, self.headers.get("Range", ""), self.headers.get("If-Match", ""))
            self.of.requests.append(asked)
            self.of.proxy_users += self.headers.get_all("Proxy-Authorization", [])
            faults = self.of.faults.get(path, [])
            fault = faults.pop(0) if faults else send
            data = self.of.files.get(path)
        if data is None:
            status(404)(self, b"")
        else:
            fault(self, data)

    def log_message(self, *_):
        """Nothing."""


def send(
    handler: _Handler, data: bytes, *, body: Callable[[bytes], bytes] = bytes, etag: str = ""
) -> None:
    """Answer as a server should; `body` may make another of the bytes that are sent."""
    tag = etag or f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
    if (wanted := handler.headers.get("If-Match")) and handler.of.etags and wanted != tag:
        status(412)(handler, data)
        return
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
    first, last = 0, len(data) - 1
    if found and handler.of.ranges:
        first, last = int(found[1]), min(int(found[2] or last), last)
        last = last if handler.of.most is None else min(last, first + handler.of.most - 1)
        handler.send_response(206 if first <= last else 416)
        handler.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
    else:
        handler.send_response(200)
    part = data[first : last + 1]
    handler.send_header("Content-Length", str(len(part)))
    handler.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
    if handler.of.etags:
        handler.send_header("ETag", tag)
    handler.end_headers()
    sent = body(part)
    try:
        handler.wfile.write(sent)
        handler.wfile.flush()
    except OSError:  # the client has seen enough
        handler.close_connection = True
    if len(sent) < len(part):
        handler.close_connection = True


def status(code: int, headers: dict[str, str] | None = None) -> Answer:
    """Answer with a status alone."""

    def answer(handler: _Handler, data: bytes) -> None:
        handler.send_response(code)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def cut(count: int) -> Answer:
    """End the connection after so many bytes of the body."""
    return lambda handler, data: send(handler, data, body=lambda part: part[:count])


def flipped(place: int) -> Answer:
    """Invert one byte of the file, wherever the body begins."""

    def answer(handler: _Handler, data: bytes) -> None:
        wrong = data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]
        send(handler, wrong, etag=f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')

    return answer


def stalled(count: int) -> Answer:
    """Send so many bytes of the body, and no more until the test ends."""

    def answer(handler: _Handler, data: bytes) -> None:
        def body(part: bytes) -> bytes:
            handler.wfile.write(part[:count])
            handler.wfile.flush()
            handler.of.held.wait(60)
            return b""

        send(handler, data, body=body)

    return answer


def changed(etag: str) -> Answer:
    """Answer as if the file were another one of the same size."""
    return lambda handler, data: send(handler, data, etag=etag)


def dropped(handler: _Handler, data: bytes) -> None:
    """End the connection without an answer."""
    handler.close_connection = True


@contextmanager
def fault_server(tls: ssl.SSLContext | None = None) -> Iterator[FaultServer]:
    """A server that answers within the block, over https with `tls`."""
    state = FaultServer()
    handler = type("Handler", (_Handler,), {"of": state})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # connections that a client ends
        state.url = f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield state
        finally:
            state.held.set()
            server.shutdown()
            thread.join()


def together(barrier: threading.Barrier) -> Answer:
    """Answer once as many requests have arrived as the barrier has parties."""

    def answer(handler: _Handler, data: bytes) -> None:
        barrier.wait(60)
        send(handler, data)

    return answer


@pytest.fixture
def web(monkeypatch):
    """A server with faults; a reader waits only for a moment before it asks again."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    for name, value in (("FIRST_WAIT", 0.001), ("LONGEST_WAIT", 0.002), ("LONGEST_ASKED", 0.002)):
        monkeypatch.setattr(attempts, name, value)
    with fault_server() as server:
        yield server
