"""What this process has open."""

import os
from contextlib import suppress
from pathlib import Path


def open_files() -> list[tuple[int, str]]:
    """(descriptor, path) of all that is open; sockets and pipes have names of the system."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found.append((int(link.name), os.readlink(link)))  # noqa: PTH115 - some are not paths
    return found
