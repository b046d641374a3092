"""Folders of buckets that are written to: objects put, compared, listed and removed."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import xxhash

from sa1bpack.errors import OptionError, StoreError
from sa1bpack.remote.stores import begin, error_text, final_error, open_store, package, s3_client
from sa1bpack.urls import folder_url

# Objects that are written at once, most of them small.
AT_ONCE = 8

# Parts of an upload, of which a store takes at most 10,000. One connection to an object store gets
# 50 to 100 MB/s, so that large objects are written, and read back, by several.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 8
RANGE_BYTES = 8 << 20
RANGES_AT_ONCE = 8

_log = logging.getLogger("sa1bpack")

TRIES = 3
PAUSE = 1.0  # seconds, doubled each time


class BucketFolder:
    """A folder of a bucket. One thread at a time writes to it; `cancel` may be called by another.

    url  of the folder
    """

    def __init__(self, url: str):
        """Raises OptionError as `folder_url` does, or without a folder; MissingPackage."""
        self.url = folder_url("out", url)
        self._scheme, _, rest = self.url.partition("://")
        self._bucket, _, key = rest.partition("/")
        if not key:
            raise OptionError(
                f"out is {self.url!r}: name a bucket and a folder in it, {self._scheme}://bucket/pack"
            )
        self._prefix = f"{key}/"
        self._library = package("obstore")
        self._store = open_store(self._scheme, self._bucket)
        self._pending: Future | None = None
        self._cancelled = False

    def put(self, key: str, data: bytes | Path, digest: str) -> None:
        """Write an object, in parts if it is large, and read it back.

        digest  XXH3-128 of the bytes

        Raises StoreError if that fails, or other bytes come back, several times.
        """
        self.put_all({key: (data, digest)})

    def put_all(self, objects: Mapping[str, tuple[bytes | Path, str]]) -> None:
        """Write objects, several at once, as `put` writes one.

        objects  key → its bytes, and their XXH3-128
        """
        self._wait(self._put_all(objects))

    async def _put_all(self, objects: Mapping[str, tuple[bytes | Path, str]]) -> None:
        turn = asyncio.Semaphore(AT_ONCE)

        async def put(key: str, data: bytes | Path, digest: str) -> None:
            async with turn:
                await self._tried(key, lambda: self._written(key, data, digest))

        tasks = [asyncio.create_task(put(key, *each)) for key, each in objects.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _written(self, key: str, data: bytes | Path, digest: str) -> None:
        path = self._prefix + key
        await self._library.put_async(
            self._store, path, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        nbytes = data.stat().st_size if isinstance(data, Path) else len(data)
        if (found := await self._digest(path, nbytes)) != digest:
            raise _Differs(f"it came back with the XXH3-128 {found}, but {digest} was written")

    async def _digest(self, path: str, nbytes: int) -> str:
        """XXH3-128 of an object that should have so many bytes, in ranges if it is large."""
        found = xxhash.xxh3_128()
        if nbytes <= RANGE_BYTES:
            answer = await self._library.get_async(self._store, path)
            found.update(await answer.bytes_async())
            return found.hexdigest()
        there = (await self._library.head_async(self._store, path))["size"]
        if there != nbytes:
            raise _Differs(f"it has {there} bytes, but {nbytes} were written")
        pending: deque[asyncio.Future] = deque()
        try:
            for first in range(0, nbytes, RANGE_BYTES):
                stop = min(first + RANGE_BYTES, nbytes)
                get = self._library.get_range_async(self._store, path, start=first, end=stop)
                pending.append(asyncio.ensure_future(get))
                if len(pending) == RANGES_AT_ONCE:
                    found.update(await pending.popleft())
            while pending:
                found.update(await pending.popleft())
        finally:
            for each in pending:
                each.cancel()
        return found.hexdigest()

    def keys(self, prefix: str) -> list[str]:
        """All objects under a prefix, by their keys in the folder, sorted. Raises StoreError."""

        async def listed() -> list[str]:
            found = []
            async for batch in self._library.list(self._store, prefix=self._prefix + prefix):
                found += [item["path"] for item in batch]
            return found

        whole = self._wait(self._tried(prefix, listed))
        return sorted(key.removeprefix(self._prefix) for key in whole)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Raises StoreError."""
        keys = list(keys)
        paths = [self._prefix + key for key in keys]

        async def delete() -> None:
            await self._library.delete_async(self._store, paths)

        if paths:
            self._wait(self._tried(keys[0], delete))

    def abort_uploads(self) -> int:
        """Abort uploads under the folder that were begun and not completed; returns their number.

        Their parts cost money and are seen by nobody. Only of S3: a bucket of Google Cloud removes
        them by a rule of its own. Without permission for it, that is logged: nothing depends on it.
        """
        if self._scheme != "s3":
            return 0
        errors, count = package("botocore.exceptions"), 0
        try:
            client = s3_client()
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", ()):
                    client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    count += 1
        except (errors.ClientError, errors.BotoCoreError) as error:
            if "NoSuchBucket" in str(error):  # what follows says so
                return 0
            _log.warning(
                "%s: parts of uploads that were not completed could not be looked for (%s); a "
                "lifecycle rule of the bucket can remove them",
                self.url,
                getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__),
            )
        return count

    def cancel(self) -> None:
        """End the request in progress, and let every later one fail."""
        self._cancelled = True
        if (pending := self._pending) is not None:
            pending.cancel()

    def _wait(self, work) -> Any:
        self._pending = begin(work)
        if self._cancelled:
            self._pending.cancel()
        try:
            return self._pending.result()
        except CancelledError:
            raise StoreError(f"{self.url}: the upload was cancelled") from None

    async def _tried(self, key: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """What a piece of work returns; it is repeated where that may help."""
        pause = PAUSE
        for left in reversed(range(TRIES)):
            try:
                return await work()
            except (self._library.exceptions.BaseError, FileNotFoundError, _Differs) as error:
                address = f"{self.url}/{key}"
                if (found := final_error(error, address)) is not None:
                    raise found from None
                if not left:
                    raise StoreError(
                        f"{address}: {TRIES} attempts failed: {error_text(error)}"
                    ) from None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError


class _Differs(Exception):
    """Other bytes came back than were written."""
