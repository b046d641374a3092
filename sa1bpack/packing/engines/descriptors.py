"""Room for the files that a run holds open at once."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from sa1bpack.errors import PackError
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.writers import MOST_IN_PUBLICATION

# The interpreter, its streams and libraries, the lock, sockets, files that are open for a moment.
_BASE = 48
# A source, the file it spills into, and the folder that it is read from.
_SOURCE = 3


@contextmanager
def enough_descriptors(needed: int, workers: int) -> Iterator[None]:
    """Raise the soft limit of open files, within, to what a run with so many workers needs.

    It is usually 1024, and the hard limit, up to which a process may raise it, far higher. Raises
    PackError when even that is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        yield
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise PackError(
            f"a run with --workers {workers} holds up to {needed} files open, and the limit here "
            f"is {hard}; take fewer workers, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def needed_inline(options: PackOptions) -> int:
    """Descriptors of a process that does all the work."""
    # The shard being filled, and the next one beside those in publication.
    return _BASE + _SOURCE + _of_shards(options, 2)


def needed_with_processes(options: PackOptions, workers: int, feeders: int, slots: int) -> int:
    """Descriptors of the parent; a worker has far fewer.

    feeders, slots
        Sources that are read at once, and pairs between their source and their shard.
    """
    # Of each source: the shard being filled, and the one whose last samples are in work. There are
    # more only where shards are smaller than what is in work together. (Or sources; those of SA-1B
    # are not, and a few more find room in _BASE.)
    filling = 2 * feeders + slots // options.samples_per_shard
    return _BASE + 2 * workers + feeders * _SOURCE + _of_shards(options, filling)


def _of_shards(options: PackOptions, filling: int) -> int:
    """Of unpublished shards: every file of them, and one that is open for a moment in each."""
    return (filling + MOST_IN_PUBLICATION) * (len(options.layout.arrays) + 1)
