"""The progress that a run shows, and the limit on rejects that ends it."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Annotated

import msgspec

from sa1bpack import __version__
from sa1bpack.errors import TooManyRejects
from sa1bpack.format.manifest import REJECTS_NAME
from sa1bpack.format.run_log import RUNS_NAME, append_to_log, records_in_log
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.packing.empty_masks import NONE_EMPTY, EmptyMasks
from sa1bpack.packing.groups import GroupOutcome
from sa1bpack.progress import Advance, ProgressBar, ProgressOption, report, telling
from sa1bpack.screen import is_terminal
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import Reject
from sa1bpack.source.schemas import MORE_KEYS
from sa1bpack.wording import counted

# The bar is drawn at most this often.
_REFRESH_SECONDS = 0.5

# Without a terminal a line is written this often, so that the log of a long job shows its pace.
LINE_SECONDS = 60

# Keys that a message about those which are not stored names.
_KEYS_NAMED = 20

# Rejects that TooManyRejects quotes.
_REJECTS_NAMED = 10


class Progress:
    """The counts of a run, its progress bar on a terminal, and the limit on its rejects.

    Attributes:
        images: number of samples that were decoded.
        rejected: number of members that were rejected, with those of earlier runs.
        read: bytes of each source so far, with those of skipped pairs.
        notes: messages that were shown to the user.
        unknown_keys: key of the JSON records that is not stored → number of images decoded whose
            records have it.
        empty_masks: those of the masks of these images that have no pixel.
    """

    def __init__(
        self,
        total_bytes: int,
        max_rejects: int | None = None,
        rejects: Iterable[Mapping[str, str]] = (),
        progress: ProgressOption = None,
    ):
        """
        Args:
            total_bytes: size of all sources; the bar runs over it, because the number of images is
                known only at the end of a tar.
            max_rejects: more rejected members raise TooManyRejects, which names the first; None: no
                limit.
            rejects: rejected members of earlier runs, as `Ledger.rejects` has them.
            progress: the user's option, told the bytes of sources that were read.
        """
        self.total_bytes = total_bytes
        self.images = self.rejected = 0
        self.read: dict[str, int] = {}
        self.notes: list[str] = []
        self.unknown_keys: Counter[str] = Counter()
        self.empty_masks = NONE_EMPTY
        self._max_rejects = max_rejects
        self._first: list[str] = []  # rejects, to be named
        self._lock = Lock()
        self.add_rejects(rejects)
        self._started = self._shown = time.perf_counter()
        self._lines = progress is None and not is_terminal(sys.stderr)
        self._tell: Advance | None = None
        if callable(progress):
            self._tell = telling(progress, "byte")
            progress = False
        self._bar = ProgressBar(
            progress,
            total=total_bytes,
            unit="B",
            unit_scale=True,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {rate_fmt} "
            "{remaining} left{postfix}",
        )

    def add_rejects(self, lines: Iterable[Mapping[str, str]]) -> None:
        """Count rejected members. Raises TooManyRejects if there are more than allowed."""
        with self._lock:
            for line in lines:
                self.rejected += 1
                if len(self._first) < _REJECTS_NAMED:
                    self._first.append("  {source}: {member}: {detail}".format_map(line))
        if self._max_rejects is None or self.rejected <= self._max_rejects:
            return
        verb = "were"
        if self.rejected == 1:
            verb = "was"
        message = [
            f"max_rejects is {self._max_rejects}, but {counted(self.rejected, 'member')} "
            f"{verb} rejected; the run ends, and published shards stay:",
            *self._first,
        ]
        more = self.rejected - len(self._first)
        if more:
            message.append(f"  and {more:,} more")
        message.append(
            f"Look into these ({REJECTS_NAME} lists those of published shards); to pack the "
            "others, repeat with a higher limit"
        )
        raise TooManyRejects("\n".join(message))

    def done(self, source: Source, outcome: GroupOutcome, bytes_read: int) -> None:
        """Count the pairs of a group. Raises TooManyRejects as `reject` does."""
        for reject in outcome.rejects:
            self.reject(source, reject)
        if outcome.packed is not None and outcome.packed.unknown_keys:
            self.add_unknown_keys(outcome.packed.unknown_keys)
        if outcome.packed is not None and outcome.packed.empty_masks != NONE_EMPTY:
            self._add_empty_masks(outcome.packed.empty_masks)
        self.advance(source, bytes_read, images=outcome.samples)

    def add_unknown_keys(self, images_by_key: Mapping[str, int]) -> None:
        """Count images by the keys of their records that are not stored."""
        with self._lock:
            self.unknown_keys.update(images_by_key)

    def _add_empty_masks(self, empty_masks: EmptyMasks) -> None:
        """Count masks without a pixel."""
        with self._lock:
            self.empty_masks += empty_masks

    def reject(self, source: Source, reject: Reject) -> None:
        """Count a reject. Raises TooManyRejects if there are more than allowed."""
        self.add_rejects([{"source": str(source.path), **reject.as_json()}])

    def note(self, text: str) -> None:
        """Report something to the user now, without breaking the bar."""
        self.notes.append(text)
        report(text)

    def close(self) -> None:
        """Leave the last state of the bar on the terminal."""
        self._bar.close()

    @property
    def seconds(self) -> float:
        """Wall time since the run started."""
        return time.perf_counter() - self._started

    def advance(self, source: Source, bytes_read: int, images: int = 0) -> None:
        """Note the bytes of a source that were read so far, and images decoded since."""
        with self._lock:
            self.images += images
            before = self.read.get(source.name, 0)
            if bytes_read > before:
                self.read[source.name] = bytes_read
                self._bar.update(bytes_read - before)
            since = time.perf_counter() - self._shown
            total_read = sum(self.read.values())
            if self._tell is not None and bytes_read > before:
                self._tell(total_read, self.total_bytes)
            if self._lines and since > LINE_SECONDS:  # for the log of a job without a terminal
                self._print_line(total_read)
            elif self._bar.disable or (since < _REFRESH_SECONDS and total_read < self.total_bytes):
                return
            self._shown += since
            text = f"{self.images / self.seconds:.0f} img/s"
            if self.rejected:
                text += f", {self.rejected} rejected"
            self._bar.set_postfix_str(text)

    def _print_line(self, total_read: int) -> None:
        """Print how far the run is, in a line."""
        seconds_left = (self.total_bytes - total_read) * self.seconds / max(total_read, 1)
        report(
            f"{total_read / max(self.total_bytes, 1):.1%}, {self.images:,} images, "
            f"{self.images / self.seconds:.0f} images/s, "
            f"{total_read / self.seconds / 1e6:.0f} MB/s, {seconds_left / 60:.0f} min left, "
            f"{self.rejected} rejected"
        )


def unknown_keys_text(images_by_key: Mapping[str, int], images: str) -> str | None:
    """The message about keys of records that are not stored; None if there are none.

    Args:
        images_by_key: key → number of images whose records have it.
        images: which images were looked at, in words.
    """
    if not images_by_key:
        return None
    counts = dict(images_by_key)
    more_of_record = counts.pop(MORE_KEYS, 0) > 0
    keys = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    names = [f"{key} (in {counted(count, 'image')})" for key, count in keys[:_KEYS_NAMED]]
    if len(keys) > _KEYS_NAMED or more_of_record:
        more = max(1, len(keys) - _KEYS_NAMED + more_of_record)
        names.append(f"at least {more} more" if more_of_record else f"{more} more")
    numbers = ""
    for number in MASK_NUMBERS:
        if number.optional and f"annotations.{number.json}" in images_by_key:
            flag = number.array.replace("_", "-")
            numbers += f", annotations.{number.json} as a number of each mask with --{flag}"
    return (
        f"{images}: keys of the JSON that are not stored, because SA-1B does not have them: "
        f"{', '.join(names)}; a new pack keeps what they hold with --keep KEY{numbers} "
        "(docs/packing.md)"
    )


def nothing_to_do(sources: int) -> str:
    """The message if all sources that are given, this number of them, are in the pack already."""
    if sources == 1:
        return "the source is in the pack already; nothing to do"
    return f"all {sources:,} sources are in the pack already; nothing to do"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run that decoded images.

    Attributes:
        finished: time when the run ended, in UTC, to the second.
        outcome: "finished" or "stopped by <name of the error>".
        images: number of samples that the run decoded.
        source_bytes: bytes of tars and folders that the run read or skipped.
        workers: number of processes that were requested.
        seconds: wall time.
        sa1bpack: version of sa1bpack.
    """

    finished: datetime
    outcome: str
    images: int
    source_bytes: int
    workers: int
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    sa1bpack: str


def log_run(root: Path, progress: Progress, workers: int, outcome: str) -> None:
    """Add a run to the log of a pack, unless it decoded nothing.

    A log that cannot be written does not fail the run, but is reported.
    """
    if not progress.images:
        return
    run = RunRecord(
        finished=datetime.now(UTC).replace(microsecond=0),
        outcome=outcome,
        images=progress.images,
        source_bytes=sum(progress.read.values()),
        workers=workers,
        seconds=progress.seconds,
        sa1bpack=__version__,
    )
    try:
        append_to_log(root, run)
    except OSError as error:
        progress.note(f"{root / RUNS_NAME}: this run is not logged ({error.strerror})")


def read_runs(root: Path) -> list[RunRecord]:
    """The logged runs, in order. Raises OSError if the log cannot be read."""
    return records_in_log(root, RunRecord)
