"""A shard that is written by a thread of its own, beside the decoding."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.format import Layout, ShardEntry, ShardWriter


class WriterThread:
    """A ShardWriter and its thread; calls come back at once, and are done in their order.

    The thread mostly waits for the disk and for the digest, neither of which holds the interpreter.
    """

    def __init__(self, shards_dir: Path, name: str, layout: Layout):
        """Make the working folder; raises as ShardWriter does."""
        self._writer = ShardWriter(shards_dir, name, layout)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sa1bpack-{name}")
        self._error: BaseException | None = None

    def append(self, rows: Mapping[str, np.ndarray], release: Callable[[], object]) -> None:
        """Have the `finished_rows` of the next sample written.

        The arrays must stay as they are until `release` is called, which may be in any thread; it
        is, too, when they were not written after all.
        """
        self._thread.submit(self._append, rows).add_done_callback(lambda _: release())

    def _append(self, rows: Mapping[str, np.ndarray]) -> None:
        if self._error is None:
            try:
                self._writer.append(rows)
            except BaseException as error:  # whatever it is, the run must end with it
                self._error = error

    def check(self) -> None:
        """Raise what writing has raised so far."""
        if self._error is not None:
            raise self._error

    def publish(self, attributes: dict[str, Any]) -> Future[ShardEntry]:
        """Have the shard published once all of it is written; the entry is that of ShardWriter."""
        return self._thread.submit(self._publish, attributes)

    def _publish(self, attributes: dict[str, Any]) -> ShardEntry:
        self.check()
        return self._writer.publish(attributes)

    def end(self) -> None:
        """End the thread; what was not published is discarded."""
        self._thread.shutdown(cancel_futures=True)
        self._writer.discard()
        self._error = None  # its traceback holds this object, and rows
