"""A trace of an epoch in the Trace Event Format, which chrome://tracing and Perfetto read.

The format is described in "Trace Event Format", a document of the Chromium project: an object whose
`traceEvents` are complete events (`"ph": "X"`) with a beginning and a duration in microseconds, in
tracks that are named by metadata events (`"ph": "M"`), and counters (`"ph": "C"`).
"""

import json
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sa1bpack.arguments import local_path
from sa1bpack.errors import OptionError
from sa1bpack.loading.statistics.activity import Activity

_HEAD, _TAIL = '{"displayTimeUnit": "ms", "traceEvents": [\n', "\n]}\n"
_RANK = "{rank}"


class Trace:
    """A file of events. It is complete after every `write`, and further events extend it.

    One process writes it.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int = 0, world_size: int = 1):
        """Create the file, or replace what is there.

        path  "{rank}" in it stands for the rank of this process

        Raises OptionError if several ranks would write the same file, OSError if it cannot be
        written.
        """
        path = os.fspath(local_path("trace", path))
        if world_size > 1 and _RANK not in path:
            raise OptionError(
                f"trace is {path!r}, but each of {world_size} ranks writes a file of its own: put "
                f"{_RANK} in its name, such as 'trace-{_RANK}.json'"
            )
        self.path = Path(path.replace(_RANK, str(rank)))
        self._tracks: dict[str, int] = {}
        self._empty = True
        self._pending: deque[tuple[int, Sequence[Activity]]] = deque()
        self._writing = threading.Lock()  # nobody waits for it
        self.path.write_text(_HEAD + _TAIL)
        self._process = os.getpid()
        name = "sa1bpack" if world_size == 1 else f"sa1bpack, rank {rank}"
        self._extend([self._metadata("process_name", 0, name)])

    @property
    def here(self) -> bool:
        """Whether this process writes it."""
        return self._process == os.getpid()

    def write(self, epoch: int, records: Sequence[Activity]) -> None:
        """Add the events of an epoch. Raises OSError.

        A call in the middle of another one, by a finalizer or another thread, leaves its events to
        that one, which looks again for what came meanwhile.
        """
        self._pending.append((epoch, records))
        while self._pending and self._writing.acquire(blocking=False):
            try:
                while self._pending:
                    self._write(*self._pending.popleft())
            finally:
                self._writing.release()

    def _write(self, epoch: int, records: Sequence[Activity]) -> None:
        events: list[dict[str, Any]] = []
        for activity in records:
            if activity.thread not in self._tracks:
                track = self._tracks[activity.thread] = len(self._tracks)
                events.append(self._metadata("thread_name", track, activity.thread))
            of = {"epoch": epoch, "batch": activity.batch}
            if activity.kind == "copy":
                events += self._copy_events(activity, of)
                continue
            if activity.kind == "wait":
                of |= {
                    "samples": activity.samples,
                    "bytes": activity.nbytes,
                    "dropped": activity.dropped,
                }
                if activity.ready is not None:
                    events.append(
                        self._event("C", "ready batches", activity, activity.begin)
                        | {"args": {"batches": activity.ready}}
                    )
            events.append(self._complete(activity.kind, activity, activity.begin, activity.end, of))
        self._extend(events)

    def _copy_events(self, activity: Activity, of: dict[str, Any]) -> list[dict[str, Any]]:
        """The reads of an activity, and the copying after each of them."""
        events, last = [], activity.begin
        for read in activity.reads:
            if read.begin > last:
                events.append(self._complete("copy", activity, last, read.begin, of))
            found = of | {
                "bytes in the page cache": read.cached, "bytes past it": read.past,
                "bytes announced": read.through, "requests": read.requests,
            }  # fmt: skip
            events.append(self._complete("read", activity, read.begin, read.end, found))
            last = read.end
        events.append(self._complete("copy", activity, last, activity.end, of))
        return events

    def _complete(
        self, name: str, activity: Activity, begin: float, end: float, args: dict
    ) -> dict:
        found = self._event("X", name, activity, begin)
        return found | {"dur": round((end - begin) * 1e6, 3), "args": args}

    def _event(self, kind: str, name: str, activity: Activity, at: float) -> dict[str, Any]:
        return {
            "ph": kind, "name": name, "cat": "loading", "ts": round(at * 1e6, 3),
            "pid": self._process, "tid": self._tracks[activity.thread],
        }  # fmt: skip

    def _metadata(self, kind: str, track: int, name: str) -> dict[str, Any]:
        return {
            "ph": "M", "name": kind, "pid": self._process, "tid": track, "args": {"name": name}
        }  # fmt: skip

    def _extend(self, events: Sequence[dict[str, Any]]) -> None:
        text = ",\n".join(map(json.dumps, events))
        if not text:
            return
        with self.path.open("r+b") as file:
            file.seek(-len(_TAIL), os.SEEK_END)
            file.write(("" if self._empty else ",\n").encode() + text.encode() + _TAIL.encode())
        self._empty = False
