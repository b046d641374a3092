"""Where the files of a pack are that is checked: on this machine, or elsewhere."""

from pathlib import Path

from sa1bpack.disk.reading_mode import choose_mode, direct_obstacle
from sa1bpack.format.array_stream import Reader
from sa1bpack.format.manifest import MANIFEST_NAME


class PackFiles:
    """The files of a pack, or of a side array, that is checked: here, those of a folder.

    root   the folder; it has every file with its length, and those that are not read by `reader`,
           nor below a shard that has not been brought, with their bytes
    tries  how often a shard is checked at most, as long as something is wrong with it
    """

    tries = 1

    def __init__(self, root: Path, io: str = "auto"):
        self.root, self._io = root, io

    def reader(self, nbytes: int) -> Reader:
        """How large files are read; nbytes: of all. Raises OptionError if `io` is impossible."""
        # A small file stands for the others: those may be damaged.
        small = self.root / MANIFEST_NAME
        return Reader(
            choose_mode(self._io, nbytes, "the pack's", lambda: direct_obstacle(small)).direct
        )

    def bring(self, shard: str) -> None:
        """Called before the files of a shard are looked at, again for each try."""

    def leave(self, shard: str) -> None:
        """Called when of the shard only `image_id`, `mask_offset` and metadata are needed still."""
