"""Open shards of all packs of the process, within one budget of memory maps.

A map or a file that the system refuses for lack of resources says nothing about the data: it is
never a reason to drop a sample.
"""

import gc
import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np

from sa1bpack.errors import FormatError, ResourceShortage
from sa1bpack.finalizers import Living, settle
from sa1bpack.format.arrays import group_bytes
from sa1bpack.format.files import is_shortage
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.side.spec import FeatureShard, ShardIdentity, SideSpec
from sa1bpack.urls import FOLDER_BYTES, Lease, SideSource

_T = TypeVar("_T")

# The kernel's default limit of memory maps per process, and the part of it that open shards may
# take; the rest is left to libraries, large allocations and thread stacks.
DEFAULT_MAPPINGS = 65_530
SHARE_OF_MAPPINGS = 0.75

_MAPPINGS_LIMIT = Path("/proc/sys/vm/max_map_count")

# Arrays that columns need and samples do not: mapped when they are first asked for.
_MAPPED_LATER = ("image_id", "annotation_count", "checksum", "number_types")

# What compiled code finds in `OpenShard.table`: rows of axes, bytes, and addresses of arrays. After
# these come the addresses of all arrays, in the order of the layout.
MASKS, RUNS, IMAGE_BYTES, SIZE, IMAGE_OFFSET, RUN_OFFSET = range(6)
FIRST_ADDRESS = 6


@dataclass(frozen=True)
class Feature:
    """A feature of one or several packs.

    Attributes:
        spec: the spec of its rows.
        shards: the shards of the packs.
        folders: for each shard the folder that has its feature shard; None: there is none.
        sources: where the feature shards come from that are not in these folders.
    """

    spec: SideSpec
    shards: Sequence[ShardIdentity]
    folders: Sequence[Path | None]
    sources: Mapping[Path, SideSource]

    def open(self, number: int, leases: list[Lease]) -> FeatureShard:
        """The rows of a shard, by its number; what keeps them in place is added to the leases.

        Raises FormatError if they are missing or damaged, OSError, and what fetching them raises,
        see `urls.SideSource`.
        """
        shard = self.shards[number]
        folder = self.folders[number]
        if folder is None:
            if shard.lengths.samples:
                raise FormatError(
                    f"feature {self.spec.name} has no rows for shard {shard.name}; run "
                    "`sa1bpack derive` again"
                )
            empty = np.empty((0, *self.spec.stored_shape), self.spec.stored)
            return FeatureShard(Path(), self.spec, empty, 0)
        if folder in self.sources:
            leases.append(self.sources[folder].fetch(self.spec, shard))
        return FeatureShard.open(folder, self.spec, shard)

    def fetched_bytes(self, number: int) -> int:
        """Bytes that the rows of a shard take in a cache; 0 if they are not fetched."""
        if self.folders[number] not in self.sources:
            return 0
        return FOLDER_BYTES + group_bytes(self.spec.arrays(self.shards[number].lengths))


class OpenShard:
    """A shard that has been checked, and its maps, which live as long as this or a view of them.

    Attributes:
        shard: the format's Shard.
        arrays: name → read-only memory map, all rows.
        table: int64 (c,): numbers of the shard for compiled code, see MASKS; an address is that of
            the first byte of an array in this process, 0 if it is not mapped.
        mappings: memory maps that the shard has once all its arrays are in use.
        features: feature shards of the dataset's features for this shard.
        leases: what keeps the fetched files in place, see `urls.ShardSource`.
        used: the number of its latest use; the cache counts the uses of all shards together.
    """

    used = 0

    def __init__(
        self, shard: Shard, features: Sequence[FeatureShard] = (), leases: Sequence[Lease] = ()
    ):
        """Map the arrays of a shard. Raises FormatError or OSError if one cannot be mapped."""
        self.shard = shard
        self.features = features
        self.leases = leases
        rows = shard.layout.array_rows(shard.lengths)
        lengths = shard.lengths
        names = [spec.name for spec in rows]
        self.arrays = arrays = {name: shard[name] for name in names if name not in _MAPPED_LATER}
        at = {name: array.__array_interface__["data"][0] for name, array in arrays.items()}
        addresses = [at.get(name, 0) for name in ("size", "image_offset", "run_offset", *names)]
        self.table = np.array(
            [lengths.masks, lengths.runs, lengths.image_bytes, *addresses], np.int64
        )
        self.mappings = sum(map(bool, rows.values())) + sum(len(p.values) > 0 for p in features)

    def path(self, name: str) -> str:
        """The chunk file of an array."""
        return str(self.shard.folder / self.shard.layout.array(name).chunk_path)


class OpenShards:
    """The open shards of one pack, by number; they are dropped with this object."""

    def __init__(self):
        self.by_number: dict[int, OpenShard] = {}
        CACHE.owners.add(self)

    def __reduce__(self):
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

    def __init__(self):
        self.owners = Living[OpenShards]()
        self._uses = count()
        self.after_fork()

    def after_fork(self) -> None:
        """Forget, in a child, what threads were opening: they are gone, with their locks."""
        self._opening: dict[_Key, threading.Lock] = {}

    @cached_property
    def limit(self) -> int:
        return int(mapping_limit() * SHARE_OF_MAPPINGS)

    def _all(self) -> list[tuple[OpenShards, int, OpenShard]]:
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

    def get(self, owner: OpenShards, number: int) -> OpenShard | None:
        """The shard, if it is open, noted as used. Takes no lock."""
        opened = owner.by_number.get(number)
        if opened is not None:
            opened.used = next(self._uses)
            for lease in opened.leases:
                lease.touch()
        return opened

    def open(self, owner: OpenShards, number: int, work: Callable[[], OpenShard]) -> OpenShard:
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

    def drop(self, chosen: Callable[[OpenShard], bool]) -> None:
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
