"""An object store on loopback with a latency and a bandwidth: what S3 answers, from a folder.

    python benchmarks/object_server.py FOLDER MB/S MILLISECONDS   # prints its port, then serves

GET and HEAD of /bucket/key, whole or a range, and lists of a bucket (ListObjectsV2), which is what
clients that read ask for. It waits before each answer, as object stores do, and sends the bodies of
all answers together at one rate: a link. Bodies go by sendfile. No signature is checked.
/_counts is a JSON object of the requests that were answered and the bytes of their bodies.
"""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

STEP = 1 << 18  # bytes that are sent between two looks at the clock
MODIFIED = "2026-11-22T00:00:00.000Z"


class Link:
    """Bytes per second that all answers share."""

    def __init__(self, rate: float):
        self._rate = rate
        self._free = 0.0
        self._lock = threading.Lock()
        self.bytes = 0
        self.requests = 0

    def begin(self) -> None:
        """Count a request."""
        with self._lock:
            self.requests += 1

    def pass_on(self, nbytes: int) -> None:
        """Wait until the link has carried so many bytes more."""
        with self._lock:
            begin = max(self._free, time.monotonic())
            self._free = begin + nbytes / self._rate
            self.bytes += nbytes
            until = self._free
        pause = until - time.monotonic()
        if pause > 0:
            time.sleep(pause)


class Handler(http.server.BaseHTTPRequestHandler):
    """What S3 answers of objects that are files of a folder."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a short answer waits 40 ms for the ACK of its own head
    link: Link
    latency: float
    root: Path

    def do_HEAD(self) -> None:
        """The headers of GET."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """An object, a range of it, a list of objects, or the counts."""
        if self.path == "/_counts":
            counts = {"requests": self.link.requests, "bytes": self.link.bytes}
            self._send(200, json.dumps(counts).encode())
            return
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.link.begin()
        time.sleep(self.latency)
        path, _, query = self.path.partition("?")
        options = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        file = self.root / urllib.parse.unquote(path).lstrip("/")
        if body and ("list-type" in options or file == self.root):
            self._send(200, listing(file, options), kind="application/xml")
        elif file.is_file():
            self._send_file(file, body)
        else:
            missing = b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"
            self._send(404, missing if body else b"", kind="application/xml")

    def _send(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_file(self, path: Path, body: bool) -> None:
        size = path.stat().st_size
        first = 0
        last = size - 1
        wanted = re.match(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted and wanted[1]:
            first = int(wanted[1])
            last = min(int(wanted[2] or last), last)
        elif wanted:
            first = max(size - int(wanted[2]), 0)
        if wanted:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.flush()
        if not body:
            return
        with path.open("rb") as file:
            for start in range(first, last + 1, STEP):
                count = min(STEP, last + 1 - start)
                self.link.pass_on(count)
                self.connection.sendfile(file, start, count)

    def log_message(self, *_):
        """Print nothing."""


class Server(http.server.ThreadingHTTPServer):
    """A thread per connection."""

    request_queue_size = 256  # else connections wait for seconds

    def handle_error(self, *_):
        """Say nothing of clients that leave before they have read an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            raise


def listing(bucket: Path, options: dict[str, str]) -> bytes:
    """The XML of ListObjectsV2, all of it in one page."""
    prefix = options.get("prefix", "")
    delimiter = options.get("delimiter", "")
    prefixes = set()
    lines = []
    for path in sorted(bucket.rglob("*")):
        key = path.relative_to(bucket).as_posix()
        if not path.is_file() or not key.startswith(prefix):
            continue
        rest = key.removeprefix(prefix)
        if delimiter and delimiter in rest:
            prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            continue
        lines.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{MODIFIED}</LastModified>"
            f"<ETag>one</ETag><Size>{path.stat().st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    lines += [
        f"<CommonPrefixes><Prefix>{escape(common)}</Prefix></CommonPrefixes>"
        for common in sorted(prefixes)
    ]
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f"<ListBucketResult><Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(lines)}</KeyCount><MaxKeys>1000000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{''.join(lines)}</ListBucketResult>"
    ).encode()


class ObjectServer:
    """A server in a process of its own; `url` is its address."""

    def __init__(self, process: subprocess.Popen, port: str):
        self.pid = process.pid
        self.url = f"http://127.0.0.1:{port}"

    def counts(self) -> dict[str, int]:
        """Requests answered and bytes sent so far."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/_counts") as answer:
            return json.load(answer)

    def cpu_seconds(self) -> float:
        """Seconds of the processor that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def object_server(folder: Path, link: float, latency: float) -> Iterator[ObjectServer]:
    """Serve the buckets in a folder, and name the server where clients of S3 look for it.

    Args:
        folder: of the buckets, a folder each.
        link: MB/s of all answers together.
        latency: milliseconds before each answer.
    """
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder), str(link), str(latency)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        server = ObjectServer(process, process.stdout.readline().strip())
        os.environ |= {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
        }
        yield server
    finally:
        process.kill()
        process.wait()


def serve(folder: str, link: str, latency: str) -> None:
    """Serve a folder until killed; prints the port."""
    Handler.root = Path(folder)
    Handler.link = Link(float(link) * 1e6)
    Handler.latency = float(latency) / 1e3
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(*sys.argv[1:])
