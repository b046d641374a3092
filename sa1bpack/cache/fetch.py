"""One block on its way from the origin: requested, compared with its checksums, written."""

import threading
from pathlib import Path
from typing import Protocol

import numpy as np

from sa1bpack.cache.block_bytes import BlockBytes
from sa1bpack.cache.requests import Requests, submit
from sa1bpack.cache.store_origin import EndsEarly
from sa1bpack.cache.uses import Damage, Uses
from sa1bpack.errors import FormatError, StoreError

# Fetches of a block before its samples count as damaged in the origin.
TRIES = 3


class Fetched(Protocol):
    """What a block belongs to: see `group.Group`, which has these."""

    folder: Path
    requests: Requests
    bytes: BlockBytes
    uses: Uses

    def finished(self, block: int, damaged: bool) -> None: ...
    def given_up(self, block: int) -> None: ...
    def replaced(self) -> StoreError | None: ...


class Fetch:
    """One block on its way: a request per large file, and what follows when the last is done."""

    def __init__(self, group: Fetched, block: int):
        self._group, self._block, self._tries = group, block, 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Submit the requests; the last one to end settles the block."""
        self._tries += 1
        spans = self._group.bytes.spans(self._block)
        self._parts: list = [b""] * len(spans)
        self._error: BaseException | None = None
        todo = [(n, *span) for n, span in enumerate(spans) if span[2] > span[1]]
        self._left = len(todo)
        if not todo:
            submit(self._end)
        for each in todo:
            submit(self._get, *each)

    def _get(self, number: int, path: str, low: int, high: int) -> None:
        try:
            if self._error is None:
                self._parts[number] = self._group.requests.read_range(path, low, high)
        except BaseException as error:
            self._error = error
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._end()

    def _end(self) -> None:
        group, block = self._group, self._block
        try:
            if self._error is not None:
                raise self._named(self._error)
            parts = [np.frombuffer(part, np.uint8) for part in self._parts]
            damaged = group.bytes.check(block, parts)
            if damaged and self._tries < TRIES:
                self.begin()
                return
            if damaged and (error := group.replaced()) is not None:
                raise error
            group.bytes.write(block, parts)
            group.finished(block, bool(damaged))
            found: Damage | BaseException = {
                row: FormatError(
                    f"{group.requests.origin.url}: sample {row} of {group.folder.name} came "
                    f"{TRIES} times with other bytes than were written: {text}; run `sa1bpack "
                    "verify` on the pack where it was made, and upload the shard again"
                )
                for row, text in damaged.items()
            }
        except BaseException as error:
            found = error
            try:
                group.given_up(block)
            except BaseException as another:  # it stays PARTIAL, which the next one overwrites
                found.add_note(f"and then: {another}")
        group.uses.settle(block, found)

    def _named(self, error: BaseException) -> BaseException:
        """A StoreError for what an origin raised."""
        group = self._group
        if isinstance(error, EndsEarly | FileNotFoundError):
            error = group.replaced() or error
        if isinstance(error, OSError):
            return StoreError(f"{group.requests.origin.url}: {error}")
        return error
