"""Folders of buckets that are written to: objects put, compared, listed and removed."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import xxhash

from sa1bpack.errors import OptionError
from sa1bpack.remote.stores import Bucket, Differs, cleared, package, s3_client
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


class BucketFolder(Bucket):
    """A folder of a bucket. One thread at a time writes to it; `cancel` may be called by another.

    url  of the folder
    """

    def __init__(self, url: str):
        """Raises OptionError as `folder_url` does, or without a folder; MissingPackage."""
        super().__init__(folder_url("out", url))
        if not self.prefix:
            raise OptionError(
                f"out is {self.url!r}: name a bucket and a folder in it, {self.scheme}://bucket/pack"
            )

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
        self.wait(self._put_all(objects))

    async def _put_all(self, objects: Mapping[str, tuple[bytes | Path, str]]) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def put(key: str, data: bytes | Path, digest: str) -> None:
            async with room:
                await self.tried(key, lambda path: self._written(path, data, digest))

        tasks = [asyncio.create_task(put(key, *each)) for key, each in objects.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _written(self, path: str, data: bytes | Path, digest: str) -> None:
        await self.library.put_async(
            self.store, path, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        nbytes = data.stat().st_size if isinstance(data, Path) else len(data)
        if (found := await self._digest(path, nbytes)) != digest:
            raise Differs(f"it came back with the XXH3-128 {found}, but {digest} was written")

    async def _digest(self, path: str, nbytes: int) -> str:
        """XXH3-128 of an object that should have so many bytes, in ranges if it is large."""
        found = xxhash.xxh3_128()
        if nbytes <= RANGE_BYTES:
            answer = await self.library.get_async(self.store, path)
            found.update(await answer.bytes_async())
            return found.hexdigest()
        there = (await self.library.head_async(self.store, path))["size"]
        if there != nbytes:
            raise Differs(f"it has {there} bytes, but {nbytes} were written")
        pending: deque[asyncio.Future] = deque()
        try:
            for first in range(0, nbytes, RANGE_BYTES):
                stop = min(first + RANGE_BYTES, nbytes)
                get = self.library.get_range_async(self.store, path, start=first, end=stop)
                pending.append(asyncio.ensure_future(get))
                if len(pending) == RANGES_AT_ONCE:
                    found.update(await pending.popleft())
            while pending:
                found.update(await pending.popleft())
        finally:
            for each in pending:
                each.cancel()
        return found.hexdigest()

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Raises StoreError."""
        paths = [self.prefix + key for key in keys]
        if paths:
            with suppress(FileNotFoundError):
                self.ask("", lambda _: self.library.delete_async(self.store, paths))

    def abort_uploads(self) -> int:
        """Abort uploads under the folder that were begun and not completed; returns their number.

        Their parts cost money and are seen by nobody. Only of S3: a bucket of Google Cloud removes
        them by a rule of its own. Without permission for it, that is logged: nothing depends on it.
        """
        if self.scheme != "s3":
            return 0
        errors, count = package("botocore.exceptions"), 0
        try:
            client = s3_client()
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self.name, Prefix=self.prefix):
                for upload in page.get("Uploads", ()):
                    client.abort_multipart_upload(
                        Bucket=self.name, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    count += 1
        except (errors.ClientError, errors.BotoCoreError) as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code"))
            if code == "NoSuchBucket":  # what follows says so
                return 0
            _log.warning(
                "%s: parts of uploads that were not completed could not be looked for (%s); a "
                "lifecycle rule of the bucket can remove them",
                self.url,
                cleared(code) if re.fullmatch(r"\w{1,64}", code) else type(error).__name__,
            )
        return count
