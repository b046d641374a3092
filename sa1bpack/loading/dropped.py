"""Samples that could not be read and were dropped: counted, limited, and logged once per shard."""

import logging
from math import ceil

from sa1bpack.errors import LoaderError, ReadError

_log = logging.getLogger("sa1bpack")


class DroppedSamples:
    """What a loader with on_error="drop" has dropped, over all of its epochs.

    errors  why, in the order of the batches
    share   of the samples of an epoch that may be dropped
    """

    def __init__(self, share: float):
        self.errors: list[ReadError] = []
        self.share = share
        self._shards: set[str] = set()

    def add(self, errors: list[ReadError], before: int, samples: int) -> int:
        """Note the errors of a batch; returns how many the epoch has now.

        before   errors of the epoch's earlier batches
        samples  that the epoch has on this rank

        Raises LoaderError past the limit.
        """
        for error in errors:
            if error.shard not in self._shards:
                self._shards.add(error.shard)
                _log.warning(
                    "dropped: %s (further samples of shard %s are dropped without a message)",
                    error,
                    error.shard,
                )
        self.errors += errors
        count, limit = before + len(errors), ceil(self.share * samples)
        if count > limit:
            raise LoaderError(
                f"{count} of the {samples} samples of this epoch could not be read, and "
                f"max_dropped={self.share:g} allows {limit}; the last one: {errors[-1]}. Run "
                "`sa1bpack verify` on the pack, repair it, or raise max_dropped"
            )
        return count
