"""One record of what a thread of a loader did."""

from collections.abc import Sequence
from typing import NamedTuple

from sa1bpack.loading.sample_reader import Read

CONSUMER = "consumer"


class Activity(NamedTuple):
    """What a thread did from `begin` to `end`, in seconds of `time.perf_counter`.

    kind     "plan", "copy", "stage", "wait" or "deliver", which is a part of a wait
    thread   name of a reader thread, or CONSUMER
    batch    its number in the epoch
    reads    of a copy: parts of its time
    samples, nbytes, dropped, ready  of a wait: what came of it, see EpochCounts.took
    """

    kind: str
    thread: str
    batch: int
    begin: float
    end: float
    reads: Sequence[Read] = ()
    samples: int = 0
    nbytes: int = 0
    dropped: int = 0
    ready: int | None = None
