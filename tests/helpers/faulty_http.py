"""A proxy on loopback that passes requests on to a server, and spoils some of the answers."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from s3_server import use_s3

from sa1bpack.remote import attempts, stores

SLOW_DOWN = (
    503,
    b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>",
)
EXPIRED = (400, b"<Error><Code>ExpiredToken</Code><Message>The token has expired</Message></Error>")

# What becomes of a request, by its method, its path with the query, and its number among those of
# this method and path, from 0: None, or the name of a fault.
Rule = Callable[[str, str, int], str | None]


class FaultyProxy:
    """url: of the proxy; requests: (method, path) of all that came; faults: names of those made;
    passing: how many are with the server now."""

    def __init__(self, target: str):
        self.target = urlsplit(target)
        self.rule: Rule = lambda method, path, number: None
        self.requests: list[tuple[str, str]] = []
        self.faults: list[str] = []
        self.passing = 0
        self.stall_seconds = 1.5
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def _any(self) -> None:
                with suppress(ConnectionError):
                    proxy.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Pass one request on, and its answer back, unless the rule says otherwise."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            key = (handler.command, handler.path)
            number = self.requests.count(key)
            self.requests.append(key)
            fault = self.rule(*key, number)
            if fault is not None:
                self.faults.append(fault)
            self.passing += fault not in ("slow down", "expired", "refuse")
        if fault in ("slow down", "expired"):
            status, text = SLOW_DOWN if fault == "slow down" else EXPIRED
            self._send(handler, status, [("Content-Type", "application/xml")], text)
            return
        if fault == "refuse":
            handler.close_connection = True
            handler.connection.shutdown(2)
            return
        link = http.client.HTTPConnection(self.target.hostname, self.target.port, timeout=30)
        link.request(handler.command, handler.path, body, dict(handler.headers))
        found = link.getresponse()
        data = found.read()
        link.close()
        with self._lock:
            self.passing -= 1
        headers = [
            (name, value) for name, value in found.getheaders()
            if name.lower() not in ("transfer-encoding", "connection", "content-length")
        ]  # fmt: skip
        length = found.headers.get("Content-Length") if handler.command == "HEAD" else None
        self._send(handler, found.status, headers, data, fault, length)

    def _send(self, handler, status, headers, data, fault=None, length=None) -> None:
        if fault == "flip" and data:
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "truncate":  # and say so: a shorter object
            data = data[: len(data) // 2]
        if fault == "stall" and not data:  # headers alone would be a complete answer
            time.sleep(self.stall_seconds)
            handler.close_connection = True
            return
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", length or str(len(data)))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if fault in ("cut", "stall"):
            handler.wfile.write(data[: len(data) // 2])
            handler.wfile.flush()
            time.sleep(self.stall_seconds * (fault == "stall"))
            handler.connection.shutdown(2)
            return
        handler.wfile.write(data)


@pytest.fixture(scope="session")
def proxy_process(s3_process) -> Iterator[FaultyProxy]:
    """A proxy before the server of S3, which has the buckets `packs` and `verified`."""
    for name in ("packs", "verified"):
        s3_process.make_bucket(name)
    proxy = FaultyProxy(s3_process.url)
    yield proxy
    proxy.server.shutdown()
    proxy.server.server_close()


@pytest.fixture
def proxy(proxy_process, monkeypatch) -> FaultyProxy:
    """The proxy as what the environment names, without faults; nothing is waited for for long."""
    use_s3(proxy_process.url, monkeypatch)
    monkeypatch.setattr(stores, "READ_SECONDS", 1)
    monkeypatch.setattr(attempts, "FIRST_WAIT", 0.01)
    proxy_process.rule = lambda method, path, number: None
    proxy_process.stall_seconds = 1.5
    proxy_process.requests.clear()
    proxy_process.faults.clear()
    return proxy_process
