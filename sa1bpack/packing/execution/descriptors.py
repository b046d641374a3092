"""The limit on open files, raised to what a run holds open at once."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sa1bpack.errors import PackError
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.writer_threads import MAX_IN_PUBLICATION

# The interpreter, its streams and libraries, the lock, sockets, files that are open for a moment.
_BASE = 48
# Of these, what the command has open when a run begins. A program that calls `pack` may have more.
_COMMAND = 16
# A source, the file it spills into, and the folder that it is read from.
_SOURCE = 3


@contextmanager
def enough_descriptors(needed: int, workers: int) -> Iterator[None]:
    """Raise the soft limit on open files, within the block, to what a run needs.

    It is usually 1024, and the hard limit, up to which a process may raise it, far higher. What the
    process has open beyond what the command has is added to `needed`. Raises PackError if the hard
    limit is too low; `workers` is named there.
    """
    needed += (others := open_already())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        yield
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise PackError(
            f"a run with --workers {workers} holds up to {needed} files open"
            f"{f', with {others} that this process has open already' if others else ''}, and the "
            f"limit here is {hard}; use fewer workers, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_already() -> int:
    """Descriptors that this process has open beyond those that the command has."""
    try:
        count = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1  # one is the listing's
    except OSError:  # not Linux, or no descriptor is left for the listing
        return 0
    return max(0, count - _COMMAND)


def needed_inline(options: PackOptions) -> int:
    """Descriptors of a process that does all the work."""
    # The shard being filled, and the next one beside those in publication.
    return _BASE + _SOURCE + _of_shards(options, 2)


def needed_with_processes(
    options: PackOptions, workers: int, reader_threads: int, slots: int
) -> int:
    """Descriptors of the parent; a worker has far fewer.

    reader_threads, slots
        Sources that are read at once, and pairs between their source and their shard.
    """
    # Per source: the shard being filled, and the one whose last samples are being decoded. There
    # are more only if shards (or sources; _BASE covers a few of these) are smaller than the number
    # of slots.
    filling = 2 * reader_threads + slots // options.samples_per_shard
    return _BASE + 2 * workers + reader_threads * _SOURCE + _of_shards(options, filling)


def _of_shards(options: PackOptions, filling: int) -> int:
    """Descriptors of unpublished shards: all files of each, and one that is open briefly."""
    return (filling + MAX_IN_PUBLICATION) * (len(options.layout.arrays) + 1)
