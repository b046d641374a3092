"""Progress bars for work that is counted in bytes, or in images; and lines above them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tqdm import tqdm


class Bar(tqdm):
    """A progress bar that starts no thread, and shows itself on a terminal of unknown width.

    The thread of tqdm, which stays after the last bar, looks for bars that skip too many updates.
    With `miniters=1` none are skipped. A terminal that nobody told its size, as in some containers
    and batch systems, reports 0 columns, and tqdm would print nothing.
    """

    monitor_interval = 0

    def __init__(self, **options):
        unknown = sys.stderr.isatty() and 0 in os.get_terminal_size(sys.stderr.fileno())
        size = {"ncols": 80, "nrows": 24} if unknown else {"dynamic_ncols": True}
        super().__init__(**options, **size)


def report(text: str) -> None:
    """Print a line on stderr, above the bar if there is one."""
    tqdm.write(f"sa1bpack: {text}", file=sys.stderr)


@contextmanager
def _bar(show: bool | None = None, **options) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr: yields the function to call with how much is done, and how much there is.

    Args:
        show: show it. Default: if stderr is a terminal.
        options: options of `tqdm`.
    """
    with _tqdm(show, **options) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield advance


byte_bar = partial(_bar, unit="B", unit_scale=True)
image_bar = partial(_bar, unit=" images")
step_bar = partial(_bar, unit=" tasks")  # on other machines, which report only their end


@contextmanager
def image_steps(images: int, show: bool | None = None) -> Iterator[Callable[[int], object]]:
    """A bar over a known number of images: yields the function to call with how many were added."""
    with _tqdm(show, unit=" images", total=images) as bar:
        yield bar.update


@contextmanager
def step_line(show: bool | None = None) -> Iterator[Callable[[str], None]]:
    """A line on stderr with the latest step: yields the function to call with its name."""
    with _tqdm(show, bar_format="{desc}", total=0) as line:
        yield line.set_description_str


def _tqdm(show: bool | None, **options) -> Bar:
    hidden = not (sys.stderr.isatty() if show is None else show)
    return Bar(**options, miniters=1, disable=hidden, leave=False)
