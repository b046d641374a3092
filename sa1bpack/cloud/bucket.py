"""Folders of buckets that are written to: objects put, compared, listed and removed."""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import xxhash

from sa1bpack.cloud.addresses import folder_url
from sa1bpack.cloud.failures import final_error
from sa1bpack.cloud.stores import begin, error_text, open_store, package, s3_client
from sa1bpack.errors import OptionError, StoreError

# Parts of an upload: a store takes at most 10,000 of them.
PART_BYTES = 16 << 20
_READ_BYTES = 4 << 20

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

        async def put() -> None:
            await self._library.put_async(
                self._store, self._prefix + key, data, chunk_size=PART_BYTES
            )

        def written() -> None:
            self._wait(put())
            if (found := self.digest(key)) != digest:
                raise _Differs(f"it came back with the XXH3-128 {found}, but {digest} was written")

        self._tried(key, written)

    def digest(self, key: str) -> str:
        """XXH3-128 of an object, which is read for it. Raises what the library raises."""

        async def read() -> str:
            found = xxhash.xxh3_128()
            answer = await self._library.get_async(self._store, self._prefix + key)
            async for chunk in answer.stream(min_chunk_size=_READ_BYTES):
                found.update(chunk)
            return found.hexdigest()

        return self._wait(read())

    def keys(self, prefix: str) -> list[str]:
        """All objects under a prefix, by their keys in the folder, sorted. Raises StoreError."""

        async def listed() -> list[str]:
            found = []
            async for batch in self._library.list(self._store, prefix=self._prefix + prefix):
                found += [item["path"] for item in batch]
            return found

        whole = self._tried(prefix, lambda: self._wait(listed()))
        return sorted(key.removeprefix(self._prefix) for key in whole)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Raises StoreError."""
        paths = [self._prefix + key for key in keys]

        async def delete() -> None:
            await self._library.delete_async(self._store, paths)

        if paths:
            self._tried(paths[0], lambda: self._wait(delete()))

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
                error,
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

    def _tried(self, key: str, work: Callable[[], Any]) -> Any:
        """What a piece of work returns; it is repeated where that may help."""
        pause = PAUSE
        for left in reversed(range(TRIES)):
            try:
                return work()
            except (self._library.exceptions.BaseError, FileNotFoundError, _Differs) as error:
                address = f"{self.url}/{key}"
                if (found := final_error(error, address)) is not None:
                    raise found from None
                if not left:
                    raise StoreError(
                        f"{address}: {TRIES} attempts failed: {error_text(error)}"
                    ) from None
            time.sleep(pause)
            pause *= 2
        raise AssertionError


class _Differs(Exception):
    """Other bytes came back than were written."""
