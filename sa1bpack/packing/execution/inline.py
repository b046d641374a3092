"""All work in this process, one pair after the other: `--workers 1`; and the limit on open files.

Only writing, and md5 if it is asked for, have threads of their own.
"""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

from sa1bpack import interrupts
from sa1bpack.errors import PackError, SourceError
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.sample import Buffers, attempt
from sa1bpack.packing.source_packer import (
    MAX_IN_PUBLICATION,
    SourcePacker,
    pair_digest,
    stopped_on_error,
)

# Samples in memory: one being decoded, one being written, one waiting to be written.
SAMPLES_IN_MEMORY = 3

# Descriptors: the interpreter, its streams and libraries, the lock, sockets, files that are open
# for a moment, a few sources that are smaller than the slots; those of a source, with the file that
# it spills into and its folder; and those that a program which calls `pack` may have open besides.
_BASE, SOURCE_FILES, OTHERS = 48, 3, 1024


def pack_inline(packers: Sequence[SourcePacker], options: PackOptions, progress: Progress) -> None:
    """Run every packer. Errors of a source stay in its packer; others are raised."""
    free: SimpleQueue[Buffers] = SimpleQueue()
    for _ in range(SAMPLES_IN_MEMORY):
        free.put(Buffers(options))
    # The shard being filled, and the next one beside those in publication.
    needed = files_needed(options, filling=2, others=SOURCE_FILES)
    with enough_descriptors(needed, workers=1), stopped_on_error(packers):
        for number, packer in enumerate(packers):
            _pack_source(packer, options, free, progress)
            for earlier in packers[: number + 1]:
                earlier.poll()
        for packer in packers:
            packer.wait()


def _pack_source(
    packer: SourcePacker, options: PackOptions, free: SimpleQueue[Buffers], progress: Progress
) -> None:
    pairs = 0
    try:
        with packer.open_reader() as reader:
            for pair in reader:
                interrupts.check()
                pairs += 1
                if packer.is_published(pair.index):
                    packer.skip(pair.index, pair_digest(pair))
                    progress.advance(packer.source, reader.bytes_read)
                    continue
                packer.begin(pair.index, pair_digest(pair))
                buffers = free.get()
                outcome = attempt(pair.file_name, pair.jpeg, pair.json, options, buffers)
                packer.resolve(pair.index, outcome, partial(free.put, buffers))
                progress.done(packer.source, outcome, reader.bytes_read)
                packer.poll()
            for reject in packer.end(reader, pairs):
                progress.reject(packer.source, reject)
    except SourceError as error:
        packer.fail(error)
    progress.source_done(packer.source)


@contextmanager
def enough_descriptors(needed: int, workers: int) -> Iterator[None]:
    """Raise the soft limit on open files, within the block, to what a run needs.

    It is usually 1024, and the hard limit, up to which a process may raise it, far higher. The
    program that calls may have OTHERS open. Raises PackError if the hard limit is too low;
    `workers` is named there.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    if hard != endless and needed > hard:
        raise PackError(
            f"a run with --workers {workers} holds up to {needed} files open, and the limit here "
            f"is {hard}; use fewer workers, or raise the limit (ulimit -Hn)"
        )
    if soft == endless or needed + OTHERS <= soft:
        yield
        return
    more = needed + OTHERS if hard == endless else min(needed + OTHERS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def files_needed(options: PackOptions, filling: int, others: int) -> int:
    """Descriptors of a process that fills so many shards at once, and has so many other files."""
    # Of unpublished shards: all files of each, and one that is open briefly.
    return _BASE + others + (filling + MAX_IN_PUBLICATION) * (len(options.layout.arrays) + 1)
