"""The whole work in this process, one pair after the other: `--workers 1`.

Only md5 and the writing of what is made have threads of their own.
"""

from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue

from sa1bpack.errors import SourceError
from sa1bpack.packing.engines.descriptors import enough_descriptors, needed_inline
from sa1bpack.packing.engines.work import attempt
from sa1bpack.packing.lane import Lane, pair_digest, stopped_on_error
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Buffers
from sa1bpack.packing.watch import Watch

# Samples in memory: one that is made, one that is written, one that waits for its turn to be.
SAMPLES_IN_HAND = 3


def pack_inline(lanes: Sequence[Lane], options: PackOptions, watch: Watch) -> None:
    """Pack every lane. What a source does wrong stays in its lane; other errors are raised."""
    free: SimpleQueue[Buffers] = SimpleQueue()
    for _ in range(SAMPLES_IN_HAND):
        free.put(Buffers(options))
    with enough_descriptors(needed_inline(options), workers=1), stopped_on_error(lanes):
        for number, lane in enumerate(lanes):
            _pack_lane(lane, options, free, watch)
            for earlier in lanes[: number + 1]:
                earlier.poll()
        for lane in lanes:
            lane.wait()


def _pack_lane(lane: Lane, options: PackOptions, free: SimpleQueue[Buffers], watch: Watch) -> None:
    pairs = 0
    try:
        with lane.open_reader() as reader:
            for pair in reader:
                pairs += 1
                if lane.is_published(pair.index):
                    lane.pass_over(pair.index, pair_digest(pair))
                    watch.passed_over(lane.source, reader.bytes_read)
                    continue
                lane.begin(pair.index, pair_digest(pair))
                buffers = free.get()
                outcome = attempt(pair.file_name, pair.jpeg, pair.json, options, buffers)
                lane.resolve(pair.index, outcome, partial(free.put, buffers))
                watch.done(lane.source, outcome, reader.bytes_read)
                lane.poll()
            for reject in lane.end(reader, pairs):
                watch.reject(lane.source, reject)
    except SourceError as error:
        lane.fail(error)
    watch.source_done(lane.source)
