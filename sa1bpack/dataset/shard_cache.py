"""The open shards of all packs of the process, within one budget of memory maps.

A map or a file that the system refuses for lack of resources says nothing about the data: it is
never a reason to drop a sample.
"""

import gc
import os
import resource
import threading
from collections.abc import Callable
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sa1bpack.errors import ResourceShortage
from sa1bpack.finalizers import Living, settle
from sa1bpack.format.files import is_shortage

if TYPE_CHECKING:
    from sa1bpack.dataset.shards import OpenShard

_T = TypeVar("_T")

# The kernel's default limit of memory maps per process, and the part of it that open shards may
# take; the rest is left to libraries, large allocations and thread stacks.
DEFAULT_MAPPINGS = 65_530
SHARE_OF_MAPPINGS = 0.75

_MAPPINGS_LIMIT = Path("/proc/sys/vm/max_map_count")


class OpenShards:
    """The open shards of one pack, by number; they are dropped with this object."""

    def __init__(self) -> None:
        self.by_number: dict[int, OpenShard] = {}
        CACHE.owners.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenShards, ()  # a copy begins without any


# What keeps a shard apart from all others: the open shards of its pack, and its number there.
_Key = tuple[OpenShards, int]


class ShardCache:
    """The open shards of all packs of the process, within one budget of memory maps.

    Each is opened once, for all threads that ask for it; those that were used least recently are
    dropped. What is dropped is unmapped once no view of it is in use. The only locks are those of
    the shards that are being opened: every change of a dict is one step of the interpreter.

    Attributes:
        limit: memory maps that all open shards may have together.
        owners: the open shards of each pack that is in use.
    """

    def __init__(self) -> None:
        self.owners = Living[OpenShards]()
        self._uses = count()
        self.after_fork()

    def after_fork(self) -> None:
        """Forget, in a child, what threads were opening: they are gone, with their locks."""
        self._opening: dict[_Key, threading.Lock] = {}

    @cached_property
    def limit(self) -> int:
        return int(mapping_limit() * SHARE_OF_MAPPINGS)

    def _all(self) -> list[tuple[OpenShards, int, "OpenShard"]]:
        """All open shards, each with its owner and its number."""
        shards = []
        for owner in self.owners:
            for number, opened in owner.by_number.copy().items():
                shards.append((owner, number, opened))
        return shards

    @property
    def mappings(self) -> int:
        """Memory maps that all open shards have."""
        return sum(opened.mappings for _, _, opened in self._all())

    def get(self, owner: OpenShards, number: int) -> "OpenShard | None":
        """The shard, if it is open, noted as used. Takes no lock."""
        opened = owner.by_number.get(number)
        if opened is not None:
            opened.used = next(self._uses)
            for lease in opened.leases:
                lease.touch()
        return opened

    def open(self, owner: OpenShards, number: int, work: Callable[[], "OpenShard"]) -> "OpenShard":
        """The shard, opened by `work` if it is not open; threads that ask meanwhile wait for that.

        An error, or Ctrl-C, is that of the thread it happened in: the next one tries.
        """
        key = owner, number
        with self._opening.setdefault(key, threading.Lock()):
            try:
                opened = self.get(owner, number)
                if opened is None:
                    opened = self.with_resources(work)
                    opened.used = next(self._uses)
                    owner.by_number[number] = opened
                    self._shrink(self.limit)
                return opened
            finally:
                self._opening.pop(key, None)

    def drop(self, chosen: Callable[["OpenShard"], bool]) -> None:
        """Drop the shards that are chosen; what reads one keeps it open until it is done."""
        for owner, number, opened in self._all():
            if chosen(opened):
                owner.by_number.pop(number, None)

    def with_resources(self, work: Callable[[], _T]) -> _T:
        """The result of `work`; if the system refuses it a map or a file, free some and try again.

        Raises ResourceShortage if the second try is refused too, MemoryError if ordinary memory ran
        out.
        """
        try:
            return work()
        except (MemoryError, OSError) as error:  # memory is allocated by mapping, too
            if isinstance(error, OSError) and not is_shortage(error):
                raise
        self._shrink(self.mappings // 2)  # here, where the error no longer holds maps
        gc.collect()
        settle()
        try:
            return work()
        except OSError as error:
            if not is_shortage(error):
                raise
            raise shortage(error) from error

    def _shrink(self, limit: int) -> None:
        """Drop the least recently used shards until the others are within a limit; one stays."""
        mappings = self.mappings
        if mappings <= limit:
            return
        by_use = sorted(self._all(), key=lambda shard: shard[2].used)
        while mappings > limit and len(by_use) > 1:
            owner, number, opened = by_use.pop(0)
            owner.by_number.pop(number, None)
            mappings -= opened.mappings


# Shared by all packs of the process.
CACHE = ShardCache()
os.register_at_fork(after_in_child=CACHE.after_fork)


def mapping_limit() -> int:
    """The memory maps that this process may have: vm.max_map_count."""
    try:
        return int(_MAPPINGS_LIMIT.read_text())
    except (OSError, ValueError):  # not Linux, or no descriptor is left to read it
        return DEFAULT_MAPPINGS


def shortage(error: OSError) -> ResourceShortage:
    """The error for what `is_shortage` recognised, naming the limit and the remedy."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ResourceShortage(
        f"{error.filename or 'a file of the pack'}: the system refuses memory or an open file "
        f"({error.strerror}). A process may have vm.max_map_count = {mapping_limit()} maps and "
        f"`ulimit -n` = {files} files: keep fewer samples, close files, or raise a limit with "
        "`sysctl -w vm.max_map_count=262144`, `ulimit -n 65536` or, of all processes, fs.file-max"
    )
