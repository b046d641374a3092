"""Rebuilds damaged shards from their sources, in a working folder beside the pack."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sa1bpack.format.identity import DIGEST_NAMES
from sa1bpack.packing.execution.inline import pack_inline
from sa1bpack.packing.execution.processes import pack_with_processes
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.shard_builder import PublishedShard
from sa1bpack.packing.source_packer import SourcePacker
from sa1bpack.packing.writer_threads import WriterThreads
from sa1bpack.source.find import Source


class RebuiltShards:
    """Takes the place of PackState for a SourcePacker: shards go to a working folder.

    shards
        (source, part) → the shard in the working folder.
    records
        Name of a source that was read to its end → what its record in the manifest would be.
    """

    def __init__(
        self,
        root: Path,
        options: PackOptions,
        parts_of: Callable[[str], dict[int, PublishedShard]],
        folder: Path,
    ):
        """
        root, options
            Of the pack.
        parts_of
            Name of a source → its sound shards, by part.
        folder
            The working folder, which exists.
        """
        self.root = root
        self.options = options
        self.parts_of = parts_of
        self.shards: dict[tuple[str, int], PublishedShard] = {}
        self.records: dict[str, dict] = {}
        self.shards_dir = folder

    def add_shard(self, shard: PublishedShard) -> None:
        """A shard is complete."""
        self.shards[shard.entry.source, shard.entry.part] = shard

    def finish_source(self, record: dict, at_once: bool = False) -> None:
        """A source was read to its end."""
        self.records[record["name"]] = record

    def withdraw(self, source: str) -> int:
        """A source is not usable: drop what was rebuilt from it. The pack stays as it is."""
        for key in [key for key in self.shards if key[0] == source]:
            del self.shards[key]
        return 0


class PartRebuilder(SourcePacker):
    """Rebuilds some parts of a source and skips all others."""

    def __init__(
        self,
        source: Source,
        rebuilt: RebuiltShards,
        writers: WriterThreads,
        packed_by: dict,
        parts: set[int],
        record: dict | None,
    ):
        super().__init__(
            source, rebuilt, writers, packed_by, md5=_identity_of(record) == "md5"
        )  # fmt: skip
        self._wanted = parts

    def is_published(self, index: int) -> bool:
        """Whether the pair lies in a part that is not wanted."""
        return index // self._options.samples_per_shard not in self._wanted

    def skip(self, index: int, digest: bytes) -> None:
        """Compare a pair of a sound shard. A part without a shard has nothing to compare.

        Raises SourceError if the source is not the one that the shard was packed from.
        """
        part = index // self._options.samples_per_shard
        if part in self._published:
            super().skip(index, digest)
        else:
            self.finish_earlier_part(part, index)


def rebuild_parts(
    sources: Sequence[Source],
    wanted: dict[str, set[int]],
    records: dict[str, dict],
    rebuilt: RebuiltShards,
    *,
    packed_by: dict[str, str],
    workers: int,
    show_progress: bool | None,
) -> tuple[dict[str, str], list[str]]:
    """Rebuild parts of these sources into `rebuilt`.

    wanted
        Name of each source → the parts to rebuild.
    records
        Name of a source → its record in the manifest, as far as known; the source must match it.
    packed_by
        As in `versions_in_force`.

    Returns (name of each source that cannot be used → why, notes for the user).
    """
    options = rebuilt.options
    warm_up(options)
    progress = Progress(sum(source.nbytes for source in sources), show=show_progress)
    with WriterThreads() as writers:
        packers = [
            PartRebuilder(
                source, rebuilt, writers, packed_by, wanted[source.name], records.get(source.name)
            )
            for source in sources
        ]
        try:
            if workers == 1:
                pack_inline(packers, options, progress)
            else:
                pack_with_processes(packers, options, workers, progress)
        finally:
            progress.close()
    faults = {}
    for packer in packers:
        name = packer.source.name
        if fault := _fault(packer, records.get(name), rebuilt.records.get(name)):
            rebuilt.withdraw(name)
            faults[name] = fault
    return faults, progress.notes


def _fault(packer: PartRebuilder, expected: dict | None, found: dict | None) -> str | None:
    """Why nothing rebuilt from a source can be used, if so."""
    if packer.error is not None:
        return str(packer.error)
    for key in (_identity_of(expected), "pairs") if expected is not None else ():
        if found[key] != expected[key]:
            return (
                f"{packer.source.path}: {DIGEST_NAMES.get(key, key)} is {found[key]}, but the pack "
                f"was made from a source with {expected[key]}; restore the original file"
            )
    return None


def _identity_of(record: dict | None) -> str:
    """The key of a record that identifies its source: packs of earlier releases have md5 only."""
    return "md5" if record is not None and record.get("xxh128") is None else "xxh128"
