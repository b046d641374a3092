"""The choice of reading through the page cache or past it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.arguments import choice
from sa1bpack.disk.direct import BLOCK, aligned, open_direct
from sa1bpack.environment import memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.wording import size_text

IO = ("auto", "cached", "direct")

# What takes no more than this part of the machine's memory is read into the page cache, where the
# next reader finds it; the rest is left to the training.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class ReadingMode:
    """The mode of reading what is not in the page cache.

    Attributes:
        direct: read past the page cache, which stays as it is; otherwise into it.
        reason: why this mode was chosen, for users.
    """

    direct: bool
    reason: str

    def __str__(self) -> str:
        how = "past the page cache" if self.direct else "through the page cache"
        return f"read {how}: {self.reason}"


def choose_mode(
    io: str, nbytes: int, subject: str, obstacle: Callable[[], str | None]
) -> ReadingMode:
    """The mode for an option `io`.

    Args:
        io: "auto", "direct" or "cached".
        nbytes: bytes that will be read.
        subject: what is read, in the genitive: "the dataset's".
        obstacle: returns why it cannot be read past the page cache; None if it can.

    Raises:
        OptionError: an unknown option, or "direct" where that is not possible.
    """
    choice("io", io, IO)
    if io == "cached":
        return ReadingMode(False, "io='cached'")
    memory = memory_bytes()
    fits = nbytes <= SHARE_OF_MEMORY * memory
    reason = "io='direct'"
    if io == "auto":
        reason = (
            f"{subject} {size_text(nbytes)} {'fit in' if fits else 'exceed'} "
            f"{SHARE_OF_MEMORY:.0%} of {size_text(memory)} of memory"
        )
        if fits:
            return ReadingMode(False, reason)
    if (why_not := obstacle()) is None:
        return ReadingMode(True, reason)
    if io == "direct":
        raise OptionError(f"io='direct' is not possible: {why_not}; use io='cached'")
    return ReadingMode(False, why_not)


def direct_obstacle(path: Path) -> str | None:
    """The obstacle to reading a file past the page cache; None if there is none.

    Reads one block of it.
    """
    try:
        with os.fdopen(open_direct(str(path)), "rb", buffering=0) as file:
            file.readinto(aligned(BLOCK).data)
    except OSError as error:
        return f"{path} cannot be read with O_DIRECT ({error.strerror})"
    return None
