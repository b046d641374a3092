"""Which samples of a folder are present: one number per block, in memory that all processes share.

A block is a run of neighbouring samples, with their bytes in all large arrays. Its stamp says when
it was last used, so that recency and presence are one number, and one store of 8 bytes changes it.
The lock of a block says who may change it, see `group`:

    ABSENT       no byte of it is here: holes
    PARTIAL      it is being fetched or removed; or was, by a process that was killed
    1 < stamp    present, checked, and used last at this time
    stamp < -1   present, but to be compared with its checksums before it counts: it was written
                 before the machine was last started, and what of it reached the disk is not known;
                 or it has samples that the origin has only damaged
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.files import map_bytes

ABSENT, PARTIAL = 0, 1

# A name that readers of a pack ignore.
FOLDER = ".blocks"

# The bytes that a block aims at: below it, a request costs more than what it brings; see
# docs/cloud.md. A sample of SA-1B at 1024 pixels has more, and is a block of its own.
BLOCK_BYTES = 1 << 20

# Identifies the start of the machine; the same in all of its containers.
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder of a cache holds; written once.

    slot       number of the folder in the cache, which no other has
    files      paths of the large files
    blocks     n
    per_block  samples of a block; the last one may have fewer
    whole      bytes of the files that are always here
    """

    slot: _Count
    files: tuple[str, ...]
    blocks: _Count
    per_block: _Count
    whole: _Count


class Blocks:
    """The blocks of one folder.

    about   About
    inode   of the file of the stamps, which no other file has as long as it is mapped
    stamps  int64 (n,), memory that all processes share
    edges   int64 (k, n + 1), read-only: where each block begins in each of the large files
    """

    def __init__(self, folder: Path):
        """Open what `create` wrote. Raises FormatError or OSError if it is damaged."""
        place = folder / FOLDER
        try:
            self.about = msgspec.json.decode((place / "about.json").read_bytes(), type=About)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FormatError(f"{place / 'about.json'}: {error}; remove {folder}") from None
        count, files = self.about.blocks, len(self.about.files)
        self.folder, self.inode = folder, inode_of(place / "stamps")
        self.stamps = map_bytes(place / "stamps", 8 * count, writable=True).view(np.int64)
        edges = map_bytes(place / "edges", 8 * files * (count + 1))
        self.edges = edges.view(np.int64).reshape(files, count + 1)

    def nbytes(self, block: int) -> int:
        """Bytes of a block in all files."""
        return int((self.edges[:, block + 1] - self.edges[:, block]).sum())

    def sizes(self) -> np.ndarray:
        """int64 (n,): bytes of each block."""
        return (self.edges[:, 1:] - self.edges[:, :-1]).sum(0)

    def touch(self, blocks: Sequence[int]) -> None:
        """Note that blocks, which the caller holds, are used now."""
        found = self.stamps[blocks]
        self.stamps[blocks] = np.where(found > PARTIAL, now(), found)

    def paths(self) -> list[Path]:
        """The large files."""
        return [self.folder / name for name in self.about.files]

    @property
    def is_of_this_boot(self) -> bool:
        """Whether what is here was written since the machine was started."""
        try:
            return (self.folder / FOLDER / "boot").read_bytes() == boot_id()
        except FileNotFoundError:
            return False

    def distrust(self) -> None:
        """Let every present block be checked before it counts. Call it with the folder locked."""
        present = self.stamps > PARTIAL
        self.stamps[present] = -self.stamps[present]
        (self.folder / FOLDER / "boot").write_bytes(boot_id())


def create(folder: Path, about: About, edges: np.ndarray) -> None:
    """Write the blocks of a folder that is being made: all of them absent."""
    place = folder / FOLDER
    place.mkdir()
    (place / "about.json").write_bytes(msgspec.json.encode(about))
    (place / "edges").write_bytes(np.ascontiguousarray(edges, np.int64).tobytes())
    (place / "stamps").write_bytes(bytes(8 * about.blocks))
    (place / "boot").write_bytes(boot_id())


def inode_of(path: Path) -> int | None:
    """What identifies a file; None if there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def samples_per_block(nbytes: int, samples: int) -> int:
    """How many samples make a block.

    nbytes  of all large files together
    """
    return max(1, BLOCK_BYTES * samples // max(nbytes, 1)) if samples else 1


def now() -> int:
    """A stamp of this moment."""
    return time.time_ns()


def boot_id() -> bytes:
    """What identifies the latest start of the machine; unknown, it is never the same twice."""
    try:
        return _BOOT.read_bytes()
    except OSError:
        return str(now()).encode()
