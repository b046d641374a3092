"""Processes that wait for places, counters and time, one event after the other; for simulate.py."""

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

Process = Generator["tuple[str, object, float]", None, None]


@dataclass
class Resource:
    """Something that so many processes use at a time; others wait in their order.

    Attributes:
        places: how many.
        taken: how many use it now.
        waiting: those that wait.
    """

    places: int = 1
    taken: int = 0
    waiting: deque = field(default_factory=deque)


@dataclass
class Counter:
    """A number that rises; processes wait until it has reached a value."""

    value: int = 0
    waiting: list = field(default_factory=list)


class Clock:
    """Runs processes: generators that yield what they wait for.

    ("take", resource, 0)         a place of the resource, which they give back by `give`
    ("reach", counter, value)     the counter
    ("pass", None, seconds)       time
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Process]] = []
        self._number = 0

    def start(self, process: Process, after: float = 0.0) -> None:
        """Let a process begin, or continue."""
        self._number += 1
        heapq.heappush(self._events, (self.now + after, self._number, process))

    def raise_to(self, counter: Counter, value: int) -> None:
        """Raise a counter, and let processes continue that waited for it."""
        counter.value = max(counter.value, value)
        waiting = counter.waiting
        counter.waiting = []
        for least, process in waiting:
            self._wait(counter, least, process)

    def give(self, resource: Resource) -> None:
        """Give back a place of a resource."""
        if resource.waiting:
            self.start(resource.waiting.popleft())  # which has it now
        else:
            resource.taken -= 1

    def run(self) -> None:
        """Run until nothing can continue."""
        while self._events:
            self.now, _, process = heapq.heappop(self._events)
            request = next(process, None)
            if request is None:
                continue
            kind, wanted, amount = request
            if kind == "pass":
                self.start(process, amount)
            elif kind == "reach":
                self._wait(wanted, amount, process)
            elif wanted.taken < wanted.places:
                wanted.taken += 1
                self.start(process)
            else:
                wanted.waiting.append(process)

    def _wait(self, counter: Counter, least: float, process: Process) -> None:
        if counter.value >= least:
            self.start(process)
        else:
            counter.waiting.append((least, process))
