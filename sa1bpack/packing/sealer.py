"""The thread that publishes shards, beside the reading and decoding of the next ones."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore

from sa1bpack.format import ShardDraft
from sa1bpack.packing.unit import Unit

# Units that may wait for publication. Each holds open all files of its shard, and its unwritten
# bytes fill the page cache: where shards are complete faster than the disk takes them, work waits.
MOST_WAITING = 4


class Sealer:
    """Publishes shards one after the other: a context manager that ends with the last of them."""

    def __init__(self):
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sa1bpack-sealer")
        self._room = BoundedSemaphore(MOST_WAITING)

    def wait_for_room(self) -> None:
        """Wait while MOST_WAITING units do; this takes the place for the next `publish`."""
        self._room.acquire()

    def publish(self, unit: Unit, packed_by: dict) -> Future:
        """Have a unit published, after `wait_for_room`. The result is that of Unit.publish.

        packed_by
            Package → version, recorded in the shard.
        """
        future = self._thread.submit(unit.publish, packed_by)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def flush(self, draft: ShardDraft) -> None:
        """Have what is settled of a draft brought to disk in its turn."""
        self._thread.submit(draft.flush)

    def __enter__(self) -> "Sealer":
        return self

    def __exit__(self, *_) -> None:
        self._thread.shutdown()
