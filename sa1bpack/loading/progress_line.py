"""How far an epoch is: a line on standard error, or a call of a function of the user's."""

import os
import time

from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.stats import EpochCounts, percent_text
from sa1bpack.progress import ProgressBar, ProgressOption, telling

# The line changes at most this often.
_SECONDS = 0.2

_FORMAT = (
    "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} batches [{elapsed}<{remaining}{postfix}]"
)


class ProgressLine:
    """The progress of one epoch, as the option `progress` asks for. It belongs to an iteration."""

    def __init__(self, progress: ProgressOption, batches: EpochBatches, counts: EpochCounts):
        """
        Args:
            progress: the option.
            batches: those of the epoch; an epoch that is resumed begins in the middle.
            counts: statistics of the epoch.
        """
        self._counts = counts
        self._pid = os.getpid()
        self._total = batches.first + len(batches)
        self._shown = 0.0  # when the line was changed
        self._tell = None
        self._bar: ProgressBar | None = None
        if callable(progress):
            self._tell = telling(progress, "batch")
        elif progress is not False:
            self._bar = ProgressBar(
                progress,
                desc=f"epoch {batches.epoch}",
                total=self._total,
                initial=batches.first,
                bar_format=_FORMAT,
                leave=False,
            )

    def took(self, number: int) -> None:
        """Note that the consumer gets batch `number`. Raises UserCodeError of a function."""
        finished = number + 1
        if self._tell is not None:
            self._tell(finished, self._total)
        bar = self._bar
        if bar is None or bar.disable:
            return
        now = time.monotonic()
        if now - self._shown < _SECONDS and finished < self._total:
            return
        self._shown = now
        stats = self._counts.stats()
        waited = percent_text(stats.waited_share)
        bar.set_postfix_str(
            f"{stats.samples_per_second:.3g} images/s, {waited} waited", refresh=False
        )
        bar.n = finished
        bar.refresh()

    def close(self) -> None:
        """Remove the line. Whoever ends the epoch calls this, in any thread, once or more."""
        if self._bar is not None and self._pid == os.getpid():
            self._bar.close()
