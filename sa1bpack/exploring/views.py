"""The samples that meet a filter, found shard by shard beside the answers.

To know which of 11 million images have a mask of some area, all shards are read, which takes
seconds to minutes. So a view can be used while it grows, and is kept for the next question. When a
page changes to another filter, as it does with every step of a slider, the view that it leaves
ends, unless another page looks at it.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from functools import partial

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import FormatError, Sa1bpackError
from sa1bpack.exploring.filters import Filter, FilterSteps
from sa1bpack.exploring.shard_parts import ShardParts
from sa1bpack.format.problems import reason_of
from sa1bpack.threads import start_thread

_MOST_VIEWS = 8  # views; of all of SA-1B, one takes at most 90 MB
_MOST_PAGES = 100  # of which is known what they look at
_AHEAD = 500  # samples that are found beyond what was asked for, where each shard is fetched
_MOST_NOTES = 5


class View:
    """The samples that meet a filter, as far as they are found.

    Attributes:
        scanned, parts: shards that were read or passed over, and those that there are.
        is_done: nothing more will be found.
        notes: what could not be read.
        error: what ended its search and is not told by a note; None if nothing did.
    """

    def __init__(self, size: int, parts: int, reads_all: bool):
        """size, parts: samples and shards of the dataset. reads_all: waits for nobody."""
        self.parts = parts
        self.scanned = 0
        self.is_done = False
        self.notes: list[str] = []
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self._chunks: list[np.ndarray | range] = []
        self._starts = [0]  # of each chunk, and the number of all samples found
        self._wanted = size + 1 if reads_all else 0
        self._is_cancelled = False

    @property
    def count(self) -> int:
        """The number of samples found so far."""
        return self._starts[-1]

    def positions(self, start: int, stop: int) -> np.ndarray:
        """int64 (k,): positions in the dataset of the samples found from `start` to `stop`."""
        with self._changed:
            starts = self._starts.copy()
            chunks = self._chunks.copy()
        pieces: list[np.ndarray | range] = []
        chunk = max(0, bisect_right(starts, start) - 1)
        while chunk < len(chunks) and starts[chunk] < stop:
            first = max(0, start - starts[chunk])
            pieces.append(chunks[chunk][first : stop - starts[chunk]])
            chunk += 1
        return np.concatenate([*pieces, np.empty(0, np.int64)])

    def check(self) -> None:
        """Raise the error that ended its search, if one did."""
        if self.error is not None:
            raise self.error

    def all_positions(self) -> np.ndarray:
        """int64 (n,): all of them, in the order of the dataset."""
        return np.sort(self.positions(0, self.count))

    def want(self, stop: int) -> None:
        """Let the view grow until it has this many samples, and some more."""
        with self._changed:
            self._wanted = max(self._wanted, stop + _AHEAD)
            self._changed.notify_all()

    def wait(self, stop: int, seconds: float) -> None:
        """Wait until this many samples are found, or all, but no longer than some seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_done or self._is_cancelled or self.count >= stop, seconds
            )

    # ----------------------------------------------------------------- for the thread that fills it

    def add(self, positions: np.ndarray | range, parts: int) -> None:
        """Add samples that were found in some more shards."""
        with self._changed:
            if len(positions):
                self._chunks.append(positions)
                self._starts.append(self.count + len(positions))
            self.scanned += parts
            self._changed.notify_all()

    def note(self, text: str) -> None:
        """Add what could not be read; the first few are kept."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    def finish(self) -> None:
        """Say that nothing more will be found; of a view that was cancelled, that is not known."""
        with self._changed:
            self.is_done = not self._is_cancelled
            self._changed.notify_all()

    def cancel(self) -> None:
        """Let the thread that fills it end."""
        with self._changed:
            self._is_cancelled = True
            self._changed.notify_all()

    def is_wanted(self) -> bool:
        """Wait until more samples are wanted; False if the view is cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_cancelled or self.count < self._wanted)
            return not self._is_cancelled


class Views:
    """The views of one dataset, by filter, and the threads that fill them."""

    def __init__(self, dataset: Dataset, parts: ShardParts):
        self._dataset = dataset
        self._parts = parts
        self._lock = threading.Lock()
        self._views: OrderedDict[Filter, View] = OrderedDict()
        self._looked_at: OrderedDict[str, Filter] = OrderedDict()  # by each page
        self._filling: dict[Filter, threading.Thread] = {}
        self._cancelled: list[threading.Thread] = []  # which are about to end
        self._is_closed = False

    def get(self, chosen: Filter, page: str = "") -> View:
        """The view of a filter, which may still grow.

        Args:
            chosen: the filter.
            page: name of the page that changes to it from another filter; "": none does.

        Raises:
            ThreadRefused: the system refuses a thread.
        """
        with self._lock:
            if page:
                self._go_on(page, chosen)
            view = self._views.get(chosen)
            if view is None:
                view = self._begin(chosen)
            self._views.move_to_end(chosen)
            return view

    def _go_on(self, page: str, chosen: Filter) -> None:
        """Note what a page looks at, and end the view that nobody looks at any more."""
        left = self._looked_at.pop(page, None)
        self._looked_at[page] = chosen
        while len(self._looked_at) > _MOST_PAGES:
            self._looked_at.popitem(last=False)
        thread = self._filling.get(left) if left is not None else None
        if thread is None or not thread.is_alive() or left in self._looked_at.values():
            return
        assert left is not None
        self._forget(left)

    def _begin(self, chosen: Filter) -> View:
        """A new view, which a thread fills; with the lock held."""
        steps = FilterSteps(chosen, self._dataset)
        fetches = bool(self._dataset.pack.sources) and steps.reads_shards
        view = View(len(self._dataset), len(self._parts), reads_all=not fetches)
        self._filling = {key: thread for key, thread in self._filling.items() if thread.is_alive()}
        self._cancelled = [thread for thread in self._cancelled if thread.is_alive()]
        while len(self._views) >= _MOST_VIEWS:
            self._forget(next(iter(self._views)))
        if self._is_closed:
            view.cancel()
        else:
            fill = partial(self._fill, view, steps)
            self._filling[chosen] = start_thread(fill, "view of a pack")
        self._views[chosen] = view
        return view

    def _forget(self, chosen: Filter) -> None:
        """Drop a view, and let its thread end; with the lock held."""
        self._views.pop(chosen).cancel()
        thread = self._filling.pop(chosen, None)
        if thread is not None:
            self._cancelled.append(thread)

    def _fill(self, view: View, steps: FilterSteps) -> None:
        """Find the samples of a view, until it is cancelled; in a thread of its own."""
        try:
            possible = steps.by_index(self._dataset)
            if not steps.reads_shards:
                everything = range(len(self._dataset))
                meeting = everything if possible is None else np.flatnonzero(possible)
                view.add(meeting, len(self._parts))
                return
            for part in range(len(self._parts)):
                if not view.is_wanted():
                    return
                view.add(self._meeting_in(part, view, steps, possible), 1)
        except (Sa1bpackError, OSError) as error:
            view.note(f"{error}; nothing after it was looked at")
        except Exception as error:  # for those who wait for the view
            view.error = error
        finally:
            view.finish()

    def _meeting_in(
        self, part: int, view: View, steps: FilterSteps, possible: np.ndarray | None
    ) -> np.ndarray:
        """int64 (k,): positions of those samples of a part that meet the filter."""
        positions = self._parts.positions(part)
        if possible is not None and not possible[positions].any():
            return positions[:0]
        try:
            met = steps.by_shard(self._parts.columns(part, steps.chosen.conditions))
        except (FormatError, OSError) as error:
            view.note(reason_of(error))
            return positions[:0]
        if possible is not None:
            met &= possible[positions]
        meeting: np.ndarray = positions[met]
        return meeting

    def close(self) -> None:
        """End the threads; views that are asked for later are empty."""
        with self._lock:
            self._is_closed = True
            threads = [*self._filling.values(), *self._cancelled]
            for view in self._views.values():
                view.cancel()
        for thread in threads:
            thread.join()
