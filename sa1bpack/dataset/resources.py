"""What the system allows a process: memory maps and open files.

A map or a file refused for lack of these says nothing about the data: it is never a reason
to drop a sample.
"""

import errno
import resource
from pathlib import Path

from sa1bpack.errors import ResourceShortage

# The kernel's default limit of memory maps per process, and the part of it that open shards may
# take; the rest is left to libraries, large allocations and thread stacks.
DEFAULT_MAPPINGS = 65_530
SHARE_OF_MAPPINGS = 0.75

_MAPPINGS_LIMIT = Path("/proc/sys/vm/max_map_count")
_FILES_LIMIT = Path("/proc/sys/fs/file-max")


def mapping_limit() -> int:
    """How many memory maps this process may have: vm.max_map_count."""
    try:
        return int(_MAPPINGS_LIMIT.read_text())
    except (OSError, ValueError):  # not Linux, or no descriptor is left to read it
        return DEFAULT_MAPPINGS


def mapping_budget() -> int:
    """How many memory maps all shards that are open in this process may have together."""
    return int(mapping_limit() * SHARE_OF_MAPPINGS)


def is_shortage(error: OSError) -> bool:
    """Whether the system refused a memory map or an open file for lack of resources."""
    return error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def shortage(error: OSError) -> ResourceShortage:
    """The error for what `is_shortage` recognised, naming the limit, the count and the remedy."""
    path = error.filename or "a file of the pack"
    if error.errno == errno.ENOMEM:
        return ResourceShortage(
            f"{path}: the system refuses another memory map: this process has {_mappings()}, the "
            f"limit is vm.max_map_count = {mapping_limit()}{_address_space()}. Keep fewer samples, "
            "or raise the limit: `sysctl -w vm.max_map_count=262144`"
        )
    if error.errno == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ResourceShortage(
            f"{path}: the system refuses another open file: this process has {_files(most)}, the "
            f"limit is `ulimit -n` = {most}. Close files, or raise the limit: `ulimit -n 65536`"
        )
    return ResourceShortage(
        f"{path}: the system refuses another open file: all processes together have reached "
        f"fs.file-max{_machine_files()}. End some, or raise the limit with sysctl"
    )


def _mappings() -> int | str:
    try:
        with Path("/proc/self/maps").open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return "an unknown number"


def _address_space() -> str:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if most == resource.RLIM_INFINITY else f", and `ulimit -v` = {most >> 10} KiB"


def _files(most: int) -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # one is that of the listing
    except OSError:  # also when no descriptor is left for the listing: then it is the limit
        return most


def _machine_files() -> str:
    try:
        return f" ({_FILES_LIMIT.read_text().strip()})"
    except OSError:
        return ""
