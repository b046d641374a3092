"""Libraries for object stores, compared on loopback: throughput, CPU time per GB, faults.

    python benchmarks/cloud.py [--megabytes N] [--repeat N]

A server of its own process answers S3's GET and HEAD with sendfile, from a file in memory, so that
the client is what is measured; it checks no signature. Each way runs in a process of its own.
"stream" reads one object from start to end, as a tar is read; "ranges" takes 256 ranges of 4 MiB in
random order, 16 at once, as a cache of shards does. `MB/s` is by wall time, `CPU` user and system
time of the client per GB, `MB` its peak memory; medians over the repeats. "503" answers every
fourth request with SlowDown, "cut" ends every body after 128 MiB: a way either delivers all bytes,
and their digest is compared, or the error that it raised is printed.

Needs obstore, s3fs and boto3; a way whose library is missing is reported and skipped.
"""

import argparse
import hashlib
import http.client
import http.server
import importlib.util
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIB = 1 << 20
RANGE, RANGES, AT_ONCE = 4 * MIB, 256, 16
CUT = 128 * MIB


class Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of /<fault>/object, for fault in plain, 503, cut."""

    protocol_version = "HTTP/1.1"
    requests, lock = 0, threading.Lock()

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        fault = self.path.split("/")[1]
        with self.lock:
            Handler.requests += 1
            slow_down = fault == "503" and Handler.requests % 4 == 0
        if slow_down:
            body = b"<Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>"
            self.send_response(503)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        size = self.server.file.stat().st_size
        first, last = 0, size - 1
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2] or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT")
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.flush()
        length = min(last + 1 - first, CUT) if fault == "cut" else last + 1 - first
        with self.server.file.open("rb") as file:
            try:
                self.connection.sendfile(file, first, length)
            except OSError:
                self.close_connection = True
        if length < last + 1 - first:
            self.close_connection = True

    def log_message(self, *_):
        pass


def serve(path: str) -> None:
    """Serve a file until killed; prints the port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.file = Path(path)
    print(server.server_port, flush=True)
    server.serve_forever()


# The ways: each yields the bytes of the object, or of one range.


def plain_http(url: str, bucket: str):
    """urllib of the standard library."""

    def stream():
        with urllib.request.urlopen(f"{url}/{bucket}/object", timeout=30) as answer:
            while data := answer.read(256 << 10):
                yield data

    local = threading.local()
    host = url.removeprefix("http://")

    def part(start: int, stop: int) -> bytes:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection(host, timeout=30)
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        local.connection.request("GET", f"/{bucket}/object", headers=headers)
        return local.connection.getresponse().read()

    return stream, part


def obstore_s3(url: str, bucket: str):
    """obstore.S3Store."""
    from obstore.store import S3Store

    store = S3Store(
        bucket,
        endpoint=url,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True, "timeout": "10 days", "read_timeout": "30s"},
    )
    return _obstore(store)


def obstore_http(url: str, bucket: str):
    """obstore.HTTPStore."""
    from obstore.store import HTTPStore

    return _obstore(HTTPStore.from_url(f"{url}/{bucket}", client_options={"allow_http": True}))


def _obstore(store):
    import obstore

    def stream():
        yield from obstore.get(store, "object").stream(min_chunk_size=256 << 10)

    def part(start: int, stop: int):
        return obstore.get_range(store, "object", start=start, end=stop)

    return stream, part


def s3fs_file(url: str, bucket: str):
    """s3fs, its file object with the cache "readahead" and blocks of 5 MiB (its default)."""
    import s3fs

    system = s3fs.S3FileSystem(key="key", secret="secret", endpoint_url=url)

    def stream():
        with system.open(f"{bucket}/object", "rb", cache_type="readahead") as file:
            while data := file.read(256 << 10):
                yield data

    def part(start: int, stop: int) -> bytes:
        return system.cat_file(f"{bucket}/object", start=start, end=stop)

    return stream, part


def boto(url: str, bucket: str):
    """boto3: the body of get_object."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(max_pool_connections=AT_ONCE, s3={"addressing_style": "path"}),
    )

    def stream():
        yield from client.get_object(Bucket=bucket, Key="object")["Body"].iter_chunks(256 << 10)

    def part(start: int, stop: int) -> bytes:
        wanted = f"bytes={start}-{stop - 1}"
        return client.get_object(Bucket=bucket, Key="object", Range=wanted)["Body"].read()

    return stream, part


WAYS = {
    "obstore-s3": (obstore_s3, "obstore"),
    "s3fs": (s3fs_file, "s3fs"),
    "boto3": (boto, "boto3"),
    "obstore-http": (obstore_http, "obstore"),
    "urllib": (plain_http, "urllib"),
}


def measure(way: str, url: str, bucket: str, task: str, size: int) -> dict:
    """Seconds, CPU seconds and peak memory of one task, in this process, and the bytes' digest."""
    stream, part = WAYS[way][0](url, bucket)
    digest, count = hashlib.md5(usedforsecurity=False), 0
    faulty = bucket != "plain"
    began, used = time.perf_counter(), time.process_time()
    if task == "stream":
        for data in stream():
            count += len(data)
            if faulty:
                digest.update(data)
    else:
        places = random.Random(0).choices(range(0, size - RANGE, 4096), k=RANGES)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for data in pool.map(lambda place: part(place, place + RANGE), places):
                count += len(data)
                if faulty:
                    digest.update(data)
    return {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - used,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes": count,
        "digest": digest.hexdigest(),
    }


def expected(path: Path, task: str) -> str:
    """The md5 of what a task reads."""
    digest = hashlib.md5(usedforsecurity=False)
    data = path.read_bytes()
    if task == "stream":
        digest.update(data)
    else:
        for place in random.Random(0).choices(range(0, len(data) - RANGE, 4096), k=RANGES):
            digest.update(data[place : place + RANGE])
    return digest.hexdigest()


def run(way: str, url: str, bucket: str, task: str, size: int) -> dict:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--child", way, url, bucket, task, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        said = done.stderr.rpartition("Traceback")[2].rpartition("  File ")[2].split()
        return {"error": " ".join(said)[-400:] or f"exit code {done.returncode}"}
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    if options.child:
        way, url, bucket, task, size = options.child
        return print(json.dumps(measure(way, url, bucket, task, int(size))))
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        path = Path(folder) / "object"
        with path.open("wb") as file:
            for _ in range(options.megabytes):
                file.write(os.urandom(MIB))
        command = [sys.executable, __file__, "--serve", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                _compare(f"http://127.0.0.1:{int(server.stdout.readline())}", path, options.repeat)
            finally:
                server.kill()


def _compare(url: str, path: Path, repeat: int) -> None:
    size = path.stat().st_size
    ways = [way for way, (_, module) in WAYS.items() if importlib.util.find_spec(module)]
    print(f"{size / 1e6:.0f} MB; left out: {', '.join(WAYS.keys() - set(ways)) or 'none'}")
    print(f"{'way':<14}{'task':<8}{'MB/s':>7}{'CPU s/GB':>10}{'MB':>6}")
    for way in ways:
        for task in ("stream", "ranges"):
            runs = [run(way, url, "plain", task, size) for _ in range(repeat)]
            if failed := [each["error"] for each in runs if "error" in each]:
                print(f"{way:<14}{task:<8} {failed[0]}")
                continue
            speed = statistics.median(each["bytes"] / each["seconds"] for each in runs)
            cpu = statistics.median(each["cpu"] / each["bytes"] for each in runs)
            peak = statistics.median(each["peak"] for each in runs)
            print(f"{way:<14}{task:<8}{speed / 1e6:>7.0f}{cpu * 1e9:>10.2f}{peak / 1e6:>6.0f}")
    for fault in ("503", "cut"):
        for way in ways:
            task = "ranges" if fault == "503" else "stream"
            found = run(way, url, fault, task, size)
            if "error" in found:
                verdict = found["error"]
            else:
                right = found["digest"] == expected(path, task)
                verdict = f"{'all bytes' if right else 'WRONG BYTES'}, {found['seconds']:.1f} s"
            print(f"{way:<14}{fault:<8} {verdict}")


if __name__ == "__main__":
    main()
