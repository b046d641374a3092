"""How far a call is, on stderr or told to a function of the user's; and lines above the bar.

Every call of the package that takes a while has the option `progress`, a ProgressOption: True shows
a bar, False shows nothing, a function is called as function(done, total). None, the default, is
True if stderr is a terminal.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from tqdm import tqdm

from sa1bpack.errors import OptionError
from sa1bpack.screen import SCREEN, is_terminal
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief

ProgressOption = bool | Callable[[int, int], object] | None


class Advance(Protocol):
    """A function to call with how much is done, and how much there is to do."""

    def __call__(self, finished: int, total: int, label: str = "") -> None:
        """`label` names what is done next, on a bar that has room for it."""


class ProgressBar(tqdm):
    """A progress bar that starts no thread, and shows itself on a terminal of unknown width.

    The thread of tqdm, which stays after the last bar, looks for bars that skip too many updates.
    With `miniters=1` none are skipped. A terminal that nobody told its size, as in some containers
    and batch systems, reports 0 columns, and tqdm would print nothing.
    """

    monitor_interval = 0

    def __init__(self, show: bool | None, **options: Any):
        """
        Args:
            show: show the bar; None: if stderr is a terminal.
            options: options of tqdm.
        """
        on_terminal = is_terminal(sys.stderr)
        if on_terminal and 0 in os.get_terminal_size(sys.stderr.fileno()):
            options |= {"ncols": 80, "nrows": 24}
        else:
            options["dynamic_ncols"] = True
        if show is None:
            show = on_terminal
        stream = SCREEN.stream_of_bars()
        super().__init__(**options, miniters=1, disable=not show, file=stream)
        if show and on_terminal:
            SCREEN.show(self)

    def close(self) -> None:
        """Remove the bar, or leave it where it is, as its options say."""
        super().close()
        SCREEN.hide(self)


def report(text: str) -> None:
    """Print a line on stderr, above the bar if there is one.

    No work ends for a line that cannot be printed, as to a log on a full disk.
    """
    if sys.stderr is None:  # the caller has closed it
        return
    with suppress(OSError):
        tqdm.write(f"sa1bpack: {text}", file=sys.stderr)


def check_progress(progress: ProgressOption) -> None:
    """Raise OptionError unless this is a value that `progress` can have."""
    if progress is None or isinstance(progress, bool) or callable(progress):
        return
    raise OptionError(
        f"progress is {brief(progress)}: choose True, False, or a function that is called as "
        "function(done, total)"
    )


@contextmanager
def reporting(progress: ProgressOption, unit: str) -> Iterator[Advance]:
    """Report the progress of a `with` block, as the user asked for.

    Args:
        progress: the option of that name.
        unit: what is counted, such as "byte" or "image".

    Yields:
        Advance: the function to call whenever something is done.

    Raises:
        OptionError: `progress` cannot be used.
        UserCodeError: the user's function failed.
    """
    check_progress(progress)
    if callable(progress):
        yield telling(progress, unit)
        return
    scaled = unit == "byte"
    with ProgressBar(
        progress, unit="B" if scaled else f" {unit}s", unit_scale=scaled, leave=False
    ) as bar:

        def advance(finished: int, total: int, label: str = "") -> None:
            bar.total = total
            bar.set_description_str(label, refresh=False)
            bar.update(finished - bar.n)

        yield advance


def telling(function: Callable[[int, int], object], unit: str) -> Advance:
    """What calls a function of the user's, and names what is done if that fails."""

    def advance(finished: int, total: int, label: str = "") -> None:
        call_user(
            function, finished, total, role="progress", subject=f"{unit} {finished} of {total}"
        )

    return advance


@contextmanager
def reporting_steps(
    progress: ProgressOption, unit: str, total: int
) -> Iterator[Callable[[int], None]]:
    """As `reporting`, of a known total: yields the function to call with how many more are done."""
    finished = 0
    with reporting(progress, unit) as advance:

        def step(count: int) -> None:
            nonlocal finished
            finished += count
            advance(finished, total)

        yield step
