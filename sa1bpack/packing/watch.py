"""What a run shows while it works, and the limit on rejects that ends it."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

from sa1bpack.errors import TooManyRejects
from sa1bpack.packing.sample import Packed
from sa1bpack.packing.unit import Outcome, Rejected
from sa1bpack.source.find import Source

# How often the bar is drawn at most.
_REFRESH_SECONDS = 0.5

# Without a terminal there is a line this often, so that the log of a long job shows its pace.
_LINE_SECONDS = 60

# Rejects that TooManyRejects quotes.
_REJECTS_NAMED = 10


@dataclass
class Watch:
    """Counts what happens in a run and draws its progress bar on a terminal.

    total_bytes
        Size of all sources; the bar runs over it, because the number of images is known only at
        the end of a tar.
    rejects
        Rejects so far, those of earlier runs included.
    max_rejects
        One more than this many raises TooManyRejects (None: no limit).
    """

    total_bytes: int
    rejects: int = 0
    max_rejects: int | None = None
    show: bool | None = None
    images: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.started = time.perf_counter()
        self._read: dict[str, int] = {}
        self._drawn = 0.0
        self._first_rejects: list[str] = []
        terminal = sys.stderr.isatty()
        self._lines = self.show is None and not terminal
        self._lined = self.started
        hidden = not (terminal if self.show is None else self.show)
        self._bar = tqdm(
            total=self.total_bytes,
            unit="B",
            unit_scale=True,
            disable=hidden,
            dynamic_ncols=True,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {rate_fmt} "
            "{remaining} left{postfix}",
        )

    def done(self, source: Source, outcome: Outcome, bytes_read: int) -> None:
        """One pair has its outcome."""
        match outcome:
            case Packed():
                self.images += 1
            case Rejected():
                self.reject(source, outcome)
        self._advance(source, bytes_read)

    def reject(self, source: Source, reject: Rejected) -> None:
        """Count a reject. Raises TooManyRejects, which names the first of this run."""
        self.rejects += 1
        if len(self._first_rejects) < _REJECTS_NAMED:
            self._first_rejects.append(f"{source.path}: {reject.member}: {reject.detail}")
        self.check_rejects()

    def check_rejects(self) -> None:
        """Raise TooManyRejects when there are more than allowed."""
        if self.max_rejects is not None and self.rejects > self.max_rejects:
            raise TooManyRejects(
                f"{self.rejects} members are rejected and --max-rejects is {self.max_rejects}"
                + "".join(f"\n  {line}" for line in self._first_rejects)
            )

    def passed_over(self, source: Source, bytes_read: int) -> None:
        """A pair lies in a shard that is published already."""
        self._advance(source, bytes_read)

    def source_done(self, source: Source) -> None:
        """A source is read to its end, or given up."""
        self._advance(source, source.nbytes, force=True)

    def note(self, text: str) -> None:
        """Tell the user something now, without breaking the bar."""
        self.notes.append(text)
        tell(text)

    def close(self) -> None:
        """Leave the last state of the bar on the terminal."""
        self._bar.close()

    @property
    def bytes_read(self) -> int:
        """Of all sources, so far; what was passed over counts too."""
        return sum(self._read.values())

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.started

    def _write_line(self) -> None:
        """One line for the log of a job that has no terminal."""
        done = self.bytes_read
        left = (self.total_bytes - done) * self.seconds / max(done, 1)
        print(
            f"sa1bpack: {done / max(self.total_bytes, 1):.1%}, {self.images:,} images, "
            f"{self.images / self.seconds:.0f} images/s, {done / self.seconds / 1e6:.0f} MB/s, "
            f"{left / 60:.0f} min left, {self.rejects} rejected",
            file=sys.stderr,
            flush=True,
        )

    def _advance(self, source: Source, bytes_read: int, force: bool = False) -> None:
        before = self._read.get(source.name, 0)
        if bytes_read > before:
            self._read[source.name] = bytes_read
            self._bar.update(bytes_read - before)
        now = time.perf_counter()
        if self._lines and now - self._lined > _LINE_SECONDS:
            self._lined = now
            self._write_line()
        if self._bar.disable or not (force or now - self._drawn > _REFRESH_SECONDS):
            return
        self._drawn = now
        rejected = f", {self.rejects} rejected" if self.rejects else ""
        self._bar.set_postfix_str(f"{self.images / self.seconds:.0f} img/s{rejected}")


@contextmanager
def check_bar(show: bool | None) -> Iterator[Callable[[int, int], None]]:
    """A bar for `sa1bpack.verify`: gives what it takes as `progress`. `show` is that of Watch."""
    hidden = not (sys.stderr.isatty() if show is None else show)
    with tqdm(
        unit="B", unit_scale=True, disable=hidden, dynamic_ncols=True, leave=False, desc="check"
    ) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield advance


def tell(text: str) -> None:
    """Print a line on stderr, above the bar if there is one."""
    tqdm.write(f"sa1bpack: {text}", file=sys.stderr)
