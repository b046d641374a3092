"""All work in this process, one pair after the other: `--workers 1`.

Only writing, and md5 if it is asked for, have threads of their own.
"""

from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue

from sa1bpack import interrupts
from sa1bpack.errors import SourceError
from sa1bpack.packing.execution.descriptors import enough_descriptors, needed_inline
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.sample import Buffers, attempt
from sa1bpack.packing.source_packer import SourcePacker, pair_digest, stopped_on_error

# Samples in memory: one being decoded, one being written, one waiting to be written.
SAMPLES_IN_MEMORY = 3


def pack_inline(packers: Sequence[SourcePacker], options: PackOptions, progress: Progress) -> None:
    """Run every packer. Errors of a source stay in its packer; others are raised."""
    free: SimpleQueue[Buffers] = SimpleQueue()
    for _ in range(SAMPLES_IN_MEMORY):
        free.put(Buffers(options))
    with enough_descriptors(needed_inline(options), workers=1), stopped_on_error(packers):
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
                    progress.skipped(packer.source, reader.bytes_read)
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
