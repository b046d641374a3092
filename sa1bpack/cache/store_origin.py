"""Packs in object stores: s3:// and gs://."""

import os
import time
from typing import Any

from sa1bpack.cloud.addresses import folder_url
from sa1bpack.cloud.failures import final_error
from sa1bpack.cloud.stores import error_text, open_store, package
from sa1bpack.errors import StoreError

# The library repeats requests by itself after 5xx, refused connections and bodies that break off.
# What fails even so, such as a time-out, is tried so often in all.
TRIES = 3
PAUSE = 0.5  # seconds, doubled each time


class EndsEarly(StoreError):
    """A file ends before the bytes that were asked for."""


class _CutShort(Exception):
    """An answer has fewer bytes than were asked for."""


class StoreOrigin:
    """A folder of a bucket, see `origin.Origin`."""

    forks = False

    def __init__(self, url: str):
        """Raises OptionError as `folder_url` does, or without credentials; MissingPackage."""
        self.url = folder_url("path", url)
        scheme, _, rest = self.url.partition("://")
        bucket, _, key = rest.partition("/")
        self._prefix = f"{key}/" if key else ""
        self._library, self._store = package("obstore"), open_store(scheme, bucket)
        self._pid = os.getpid()

    def read(self, path: str) -> bytes:
        """See Origin."""
        return self._tried(path, lambda key: bytes(self._library.get(self._store, key).bytes()))

    def read_range(self, path: str, first: int, stop: int) -> Any:
        """See Origin."""

        def get(key: str) -> Any:
            found = self._library.get_range(self._store, key, start=first, end=stop)
            if len(found) != stop - first:
                raise _CutShort(
                    f"it ends at byte {first + len(found)}, but bytes up to {stop} are needed"
                )
            return found

        return self._tried(path, get)

    def folders(self, path: str) -> list[str]:
        """See Origin."""

        def listed(key: str) -> list[str]:
            found = self._library.list_with_delimiter(self._store, prefix=key)
            return sorted(name.rpartition("/")[2] for name in found["common_prefixes"])

        return self._tried(path, listed)

    def files(self) -> dict[str, int]:
        """Every file below the folder, by its path in it, and its bytes. Raises as Origin does."""

        def listed(key: str) -> dict[str, int]:
            pages = self._library.list(self._store, prefix=key or None)
            return {item["path"]: item["size"] for page in pages for item in page}

        found = self._tried("", listed)
        names = (path for path in sorted(found) if not path.endswith("/"))  # in place of folders
        return {path.removeprefix(self._prefix): found[path] for path in names}

    def _tried(self, path: str, request) -> Any:
        """What a request returns; it is repeated where that may help. Raises as Origin does."""
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self.url}: the connections to an object store do not survive a fork: let worker "
                "processes be spawned (multiprocessing_context='spawn')"
            )
        pause = PAUSE
        for left in reversed(range(TRIES)):
            try:
                return request(f"{self._prefix}{path}")
            except FileNotFoundError as error:
                if (found := final_error(error, f"{self.url}/{path}")) is not None:
                    raise found from None
                raise FileNotFoundError(
                    2, "not in the object store", f"{self.url}/{path}"
                ) from None
            except (self._library.exceptions.BaseError, _CutShort) as error:
                if (found := final_error(error, f"{self.url}/{path}")) is not None:
                    raise found from None
                if not left:
                    text = error_text(error)
                    early = isinstance(error, _CutShort) or "InvalidRange" in text
                    raise (EndsEarly if early else StoreError)(
                        f"{self.url}/{path}: {TRIES} requests failed: {text}"
                    ) from None
            time.sleep(pause)
            pause *= 2
        raise AssertionError
