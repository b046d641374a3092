"""The progress bar of work that is counted in bytes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def byte_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal: gives what is to be called with (done, total)."""
    with tqdm(
        unit="B", unit_scale=True, disable=not sys.stderr.isatty(), dynamic_ncols=True, leave=False
    ) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield advance
