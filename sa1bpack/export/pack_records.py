"""Where summaries read what packs say of themselves, on this machine or at URLs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sa1bpack.errors import FormatError, StoreError
from sa1bpack.urls import ShardSource


@dataclass(frozen=True)
class PackRecords:
    """What a pack says of itself: manifest, index, rejects, log; of shards and features as much.

    Attributes:
        name: the folder of the pack, or its URL, as users write it.
        folder: the folder that has the records: that of the pack, or, for one at a URL, a temporary
            one in which there are no shards and no rows of features.
        source: where the pack comes from; None for one on this machine.
    """

    name: Path | str
    folder: Path
    source: ShardSource | None = None

    @property
    def origin(self) -> Path | ShardSource:
        """The pack, to be opened."""
        return self.folder if self.source is None else self.source

    @property
    def opened_root(self) -> Path:
        """The folder of the pack once it is open, see `PackFolder.root`."""
        root = self.folder if self.source is None else self.source.root
        return root.absolute()

    def named(self, text: str) -> str:
        """A text with the URL of the pack in place of a temporary folder."""
        if self.source is None:
            return text
        return text.replace(str(self.folder), str(self.name))


@contextmanager
def pack_records(
    origins: Sequence[Path | ShardSource], *, of_shards: bool
) -> Iterator[list[PackRecords]]:
    """The records of packs, fetched for those at URLs, until the end of the block.

    An error of a damaged file names the URL.

    Args:
        origins: folders, and sources of packs at URLs.
        of_shards: also what each shard says of itself.

    Raises:
        StoreError, FormatError, OSError: they cannot be fetched.
    """
    records: list[PackRecords] = []
    with ExitStack() as folders:
        try:
            for origin in origins:
                if isinstance(origin, Path):
                    records.append(PackRecords(origin, origin))
                    continue
                folder = Path(folders.enter_context(TemporaryDirectory(prefix="sa1bpack-records-")))
                records.append(PackRecords(origin.url, folder, origin))
                origin.fetch_records(folder)
                if of_shards:
                    origin.fetch_shard_records(folder)
            yield records
        except (FormatError, StoreError) as error:
            text = str(error)
            for record in records:
                text = record.named(text)
            if text == str(error):
                raise
            raise type(error)(text) from None
