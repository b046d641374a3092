"""Servers on loopback whose answers go wrong as a test says: of files, and a proxy before S3's."""

import hashlib
import http.client
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from s3_server import use_s3

from sa1bpack.remote import attempts, bucket, stores


class Handler(BaseHTTPRequestHandler):
    """Leaves requests to `of`, which answers them."""

    protocol_version = "HTTP/1.1"
    # Else a body that follows its head waits for the acknowledgement of the head, 40 ms.
    disable_nagle_algorithm = True
    of: Any

    def answer(self) -> None:
        try:
            self.of.answer(self)
        except OSError:  # the client has seen enough
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

    def log_message(self, *_) -> None:
        """Nothing."""

    def send_head(self, code: int, headers: dict[str, str], length: int | str = 0) -> None:
        """Send a status and headers."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def serving(of: Any, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server that answers within the block, over https with `tls`."""
    handler = type("Handler", (Handler,), {"of": of})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # connections that a client ends
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


Answer = Callable[[Handler, bytes], None]


@dataclass
class FaultServer:
    """Files by path, and what goes wrong with requests for them.

    Attributes:
        files: path with its slash → bytes.
        blocks: path → the parts of what is being written there, by their names.
        faults: path → faults, one for each request, in order; when there are none left, it is
            answered as it should be.
        requests: (path, value of Range or "", value of If-Match or "") of each, in order.
        ranges, etags: whether ranges are served, and ETags sent.
        most: bytes that are sent at most for a range, however long it is; None: all.
        proxy_users: values of Proxy-Authorization, in the order of the requests that have one.
        always: the answer to every request, whatever its path.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    blocks: dict[str, dict[str, bytes]] = field(default_factory=dict)
    faults: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    ranges: bool = True
    etags: bool = True
    most: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    proxy_users: list[str] = field(default_factory=list)
    always: Answer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def requests_of(self, path: str) -> list[str]:
        """The ranges asked for of a path, "" for all of it."""
        return [found for asked, found, _ in self.requests if asked == path]

    def answer(self, handler: Handler) -> None:
        """Answer a request."""
        path = unquote(handler.path.partition("?")[0])
        with self.lock:
            asked = (handler.headers.get(name, "") for name in ("Range", "If-Match"))
            self.requests.append((path, *asked))
            self.proxy_users += handler.headers.get_all("Proxy-Authorization", [])
            faults = self.faults.get(path, [])
            fault = faults.pop(0) if faults else send
            data = self.files.get(path)
        if self.always is not None:
            fault = self.always
        elif data is None:
            fault, data = status(404), b""
        fault(handler, data)


def send(
    handler: Handler, data: bytes, *, body: Callable[[bytes], bytes] = bytes, etag: str = ""
) -> None:
    """Answer as a server should; `body` may make another of the bytes that are sent."""
    tag = etag or f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
    if (wanted := handler.headers.get("If-Match")) and handler.of.etags and wanted != tag:
        status(412)(handler, data)
        return
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
    first, last, code = 0, len(data) - 1, 200
    headers = {"Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"}
    if found and handler.of.ranges:
        first, last = int(found[1]), min(int(found[2] or last), last)
        last = last if handler.of.most is None else min(last, first + handler.of.most - 1)
        code = 206 if first <= last else 416
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    if handler.of.etags:
        headers["ETag"] = tag
    part = data[first : last + 1]
    handler.send_head(code, headers, len(part))
    sent = body(part)
    handler.close_connection |= len(sent) < len(part)
    handler.wfile.write(sent)


def status(code: int, headers: dict[str, str] | None = None) -> Answer:
    """Answer with a status alone."""
    return lambda handler, data: handler.send_head(code, headers or {})


def cut(count: int) -> Answer:
    """End the connection after so many bytes of the body."""
    return lambda handler, data: send(handler, data, body=lambda part: part[:count])


def flipped(place: int) -> Answer:
    """Invert one byte of the file, wherever the body begins."""

    def answer(handler: Handler, data: bytes) -> None:
        wrong = data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]
        send(handler, wrong, etag=f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')

    return answer


def stalled(count: int) -> Answer:
    """Send so many bytes of the body, and no more until the test ends."""

    def answer(handler: Handler, data: bytes) -> None:
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


def dropped(handler: Handler, data: bytes) -> None:
    """End the connection without an answer."""
    handler.close_connection = True


def together(barrier: threading.Barrier) -> Answer:
    """Answer once as many requests have arrived as the barrier has parties."""

    def answer(handler: Handler, data: bytes) -> None:
        barrier.wait(60)
        send(handler, data)

    return answer


@contextmanager
def fault_server(tls: ssl.SSLContext | None = None) -> Iterator[FaultServer]:
    """A server of files that answers within the block, over https with `tls`."""
    state = FaultServer()
    with serving(state, tls) as state.url:
        try:
            yield state
        finally:
            state.held.set()


def serve_files(server: FaultServer, root: Path, prefix: str) -> None:
    """Let a server have the files of a folder, below a path."""
    for path in root.rglob("*"):
        if path.is_file():
            server.files[f"{prefix}/{path.relative_to(root)}"] = path.read_bytes()


@pytest.fixture
def web(monkeypatch):
    """A server with faults; a reader waits only for a moment before it asks again."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    for name, value in (("FIRST_WAIT", 0.001), ("LONGEST_WAIT", 0.002), ("LONGEST_ASKED", 0.002)):
        monkeypatch.setattr(attempts, name, value)
    with fault_server() as server:
        yield server


# What becomes of a request, by its method, its path with the query, and its number among those of
# this method and path, from 0: None, or the name of a fault.
Rule = Callable[[str, str, int], str | None]
REFUSALS = {
    "slow down": (503, b"<Code>SlowDown</Code><Message>Reduce your request rate</Message>"),
    "expired": (400, b"<Code>ExpiredToken</Code><Message>The token has expired</Message>"),
}


class FaultyProxy:
    """Passes requests on to a server, and spoils some of the answers.

    Attributes:
        requests: (method, path) of all that came.
        faults: names of those made.
        passing: how many are with the server now.
    """

    def __init__(self, target: str):
        self.target, self.url = urlsplit(target), ""
        self._lock = threading.Lock()
        self.passing = 0
        self.begin()

    def begin(self) -> None:
        """Without faults, and without what was."""
        self.rule: Rule = lambda method, path, number: None
        self.requests: list[tuple[str, str]] = []
        self.faults: list[str] = []
        self.stall_seconds = 1.5

    def answer(self, handler: Handler) -> None:
        """Pass one request on, and its answer back, unless the rule says otherwise."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            key = (handler.command, handler.path)
            number = self.requests.count(key)
            self.requests.append(key)
            fault = self.rule(*key, number)
            self.faults += [fault] if fault else []
            self.passing += fault not in (*REFUSALS, "refuse")
        if fault in REFUSALS:
            code, text = REFUSALS[fault]
            text = b"<Error>" + text + b"</Error>"
            handler.send_head(code, {"Content-Type": "application/xml"}, len(text))
            handler.wfile.write(text)
        elif fault == "refuse":
            handler.close_connection = True
            handler.connection.shutdown(2)
        else:
            self._pass_on(handler, body, fault)

    def _pass_on(self, handler: Handler, body: bytes, fault: str | None) -> None:
        link = http.client.HTTPConnection(self.target.hostname, self.target.port, timeout=30)
        link.request(handler.command, handler.path, body, dict(handler.headers))
        found = link.getresponse()
        data = found.read()
        link.close()
        with self._lock:
            self.passing -= 1
        if fault == "flip" and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "truncate":  # and say so: a shorter object
            data = data[: len(data) // 2]
        if fault == "stall" and not data:  # headers alone would be a complete answer
            time.sleep(self.stall_seconds)
            handler.close_connection = True
            return
        own = ("transfer-encoding", "connection", "content-length")
        headers = {name: text for name, text in found.getheaders() if name.lower() not in own}
        head = handler.command == "HEAD"
        length = found.headers["Content-Length"] if head else None
        handler.send_head(found.status, headers, length or len(data))
        if fault in ("cut", "stall") and not head:
            handler.wfile.write(data[: len(data) // 2])
            handler.wfile.flush()
            time.sleep(self.stall_seconds * (fault == "stall"))
            handler.connection.shutdown(2)
        elif not head:
            handler.wfile.write(data)


@pytest.fixture(scope="session")
def proxy_process(s3_process) -> Iterator[FaultyProxy]:
    """A proxy before the server of S3, which has the buckets `packs` and `verified`."""
    for name in ("packs", "verified"):
        s3_process.make_bucket(name)
    proxy = FaultyProxy(s3_process.url)
    with serving(proxy) as proxy.url:
        yield proxy


@pytest.fixture
def proxy(proxy_process, monkeypatch) -> FaultyProxy:
    """The proxy as what the environment names, without faults; nothing is waited for for long."""
    use_s3(proxy_process.url, monkeypatch)
    monkeypatch.setattr(stores, "READ_SECONDS", 1)
    monkeypatch.setattr(attempts, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(bucket, "SECONDS_UNREACHABLE", 0.0)
    monkeypatch.setattr(bucket, "SECONDS_BUSY", 0.0)
    proxy_process.begin()
    return proxy_process
