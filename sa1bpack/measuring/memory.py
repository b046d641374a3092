"""The memory that this process and its children take by themselves (Linux)."""

import os
import re
from pathlib import Path

# What belongs to the processes alone: not files that are mapped, which the page cache holds.
_OWN = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", re.M)


def own_bytes() -> int | None:
    """Bytes of anonymous and shared memory of this process and its children, each page once.

    None where the system does not say.
    """
    total = 0
    for process in (os.getpid(), *_children(os.getpid())):
        try:
            found = _OWN.findall(Path(f"/proc/{process}/smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):  # a child that has ended, or no Linux
            if process == os.getpid():
                return None
            continue
        if not found:
            return None
        total += 1024 * sum(map(int, found))
    return total


def _children(process: int) -> list[int]:
    found = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_children(child)]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
