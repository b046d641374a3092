"""Rebuilt shards: made in a working folder, and compared with all that is known of the old ones."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.errors import FormatError, PackError
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest
from sa1bpack.format.problems import Check, PackFiles
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.packing.damage import Damage, recorded_attributes
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.publishers import ShardSink
from sa1bpack.packing.records import PublishedShard, SourceRead
from sa1bpack.packing.sample import versions_text


class WorkingFolder(ShardSink):
    """Takes the shards that are made again in a working folder; nothing is published.

    Attributes:
        root: folder of the pack.
        shards_dir: the working folder.
        ledger: the sound shards of the pack, and those that were made again.
        finished: names of the sources of which every shard is in the ledger.
    """

    def __init__(self, root: Path, shards_dir: Path, ledger: Ledger):
        self.root = root
        self.shards_dir = shards_dir
        self.ledger = ledger
        self.finished: set[str] = set()

    def finish_source(self, read: SourceRead, at_once: bool) -> None:
        """Enter the record of a source of which every shard is there."""
        with suppress(PackError):  # only some of its shards are damaged, and were packed again
            self.ledger.finish_source(read)
            self.finished.add(read.name)

    def withdraw(self, source: str) -> int:
        """See `ShardSink`: nothing of a source that cannot be used is in the pack."""
        return 0


@dataclass(frozen=True)
class RebuiltShard:
    """A rebuilt shard that can replace the damaged one of its name.

    Attributes:
        folder: path of the rebuilt shard, in the working folder.
        same: the shard has the bytes that the pack's checksums demand.
        note: message for the user, or "".
    """

    shard: PublishedShard
    folder: Path
    same: bool
    note: str

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.shard.entry.name


def compare_rebuilt(shard: PublishedShard, folder: Path, damage: Damage) -> RebuiltShard:
    """Read a rebuilt shard back, and compare it with all that is known of the damaged one.

    Raises FormatError if it cannot replace that.
    """
    name = shard.entry.name
    check = Check(PackFiles(folder.parent))
    check_shard(check, folder, shard.entry, damage.manifest.layout, quick=False)
    if check.problems:
        raise FormatError(f"the rebuilt shard is damaged, too: {check.problems[0].what}")
    after = shard.attributes
    before = recorded_attributes(damage.folder(name))
    if before.get("source") != after["source"] or before.get("part") != after["part"]:
        before = {}  # damaged, or another shard has its name
    if before and before["pairs_digest"] != after["pairs_digest"]:
        raise FormatError("the source holds other images than those it was packed from")
    digest = file_digest(folder / CHECKSUMS_NAME)
    expected = damage.digests.get(name)
    note = ""
    if expected not in (None, digest):
        note = f"{name}: rebuilt with other bytes than before"
        if before and before["packed_by"] != after["packed_by"]:
            now = versions_text(after["packed_by"])
            note += f", by {now}; it was packed by {versions_text(before['packed_by'])}"
    return RebuiltShard(shard, folder, digest == expected, note)
