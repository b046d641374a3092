"""Threads in an order that a seed decides: one at a time, switched where they meet.

A `Schedule` takes the place of `threading`, `time` and `SimpleQueue` in the modules under test.
Their threads are real, but only the one whose turn it is runs; at each lock, wait, notification and
sleep (and wherever else `switch` is called) the next one is drawn. Time is a number, which moves on
only when nothing else can happen: so a wait whose timeout passes was not woken, and a test cannot
be slow or fast by chance. The same seed makes the same interleaving.
"""

import gc
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

_PATIENCE = 60  # seconds of real time for a schedule


class Stuck(AssertionError):
    """Every thread waits, without a timeout, for something that will not happen."""


class _Task:
    """A thread of a schedule."""

    def __init__(self, name: str):
        self.name = name
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None  # None: it can run
        self.limit: float | None = None  # when it can run in any case
        self.done = False


class Schedule:
    """Runs a function, and the threads that it starts.

    Attributes:
        now: seconds since the beginning.
        expired: waits for a condition that ended by their timeout.
        outside: (pending, advance): whether something else can happen, such as a step of a device,
            and the function that makes it happen.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.now, self.expired = 0.0, 0
        self._outside_rate = self.random.choice((0.5, 0.1, 0.01))  # a fast or a slow device
        self.outside: tuple[Callable[[], bool], Callable[[], None]] = (lambda: False, lambda: None)
        self._tasks: list[_Task] = []
        self._own = threading.local()
        self._failed: list[BaseException] = []
        self._ended = threading.Event()
        self.threading = SimpleNamespace(
            Thread=lambda **options: _Thread(self, **options),
            Lock=lambda: _Lock(self),
            RLock=lambda: _Lock(self),
            Condition=lambda lock=None: _Condition(self, lock),
            current_thread=lambda: getattr(self._own, "thread", None) or threading.current_thread(),
            get_ident=threading.get_ident,
        )
        self.time = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        self.SimpleQueue = partial(_Queue, self)

    def patch(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        """Put this in the place of `threading`, `time` and `SimpleQueue` in modules."""
        for module in modules:
            for name in ("threading", "time", "SimpleQueue"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, getattr(self, name))

    def run(self, main: Callable[[], None]) -> None:
        """Run it until all threads have ended. Raises what it or a thread raised, or Stuck."""
        gc_was_enabled = gc.isenabled()
        gc.disable()  # a collection would run finalizers at a point that the seed does not decide
        try:
            self.start("main", main, None)
            self._tasks[0].turn.release()
            assert self._ended.wait(_PATIENCE), "a thread waits for what is no part of the schedule"
        finally:
            if gc_was_enabled:
                gc.enable()
        if self._failed:
            raise self._failed[0]

    def start(self, name: str, function: Callable[[], None], thread: "_Thread | None") -> _Task:
        task = _Task(name)
        self._tasks.append(task)

        def run() -> None:
            nonlocal function, thread
            task.turn.acquire()
            self._own.task, self._own.thread = task, thread
            try:
                if not self._failed:
                    function()
            except BaseException as error:
                self._failed.append(error)
            # What only this thread had is gone while it has its turn.
            function = thread = self._own.thread = None
            task.done = True
            self._next(task)

        threading.Thread(target=run, name=name, daemon=True).start()
        return task

    def ended(self, name: str) -> bool:
        """Whether all threads of a name have ended."""
        return all(task.done for task in self._tasks if task.name == name)

    # ------------------------------------------------------------------------- of the running task

    @property
    def task(self) -> _Task | None:
        """The thread that calls, if it is one of the schedule."""
        return getattr(self._own, "task", None)

    def switch(self) -> None:
        """Let any thread run next, perhaps this one."""
        if self.task is not None:
            self._next(self.task)

    def block(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        """Let others run until `ready`, or for `timeout` seconds."""
        task = self.task
        task.ready, task.limit = ready, None if timeout is None else self.now + timeout
        self._next(task)
        task.ready = task.limit = None

    def sleep(self, seconds: float) -> None:
        self.block(lambda: False, seconds)

    def _next(self, task: _Task) -> None:
        """Pass the turn on; returns when this task has it again, at once if it has ended."""
        chosen = self.chosen()
        if chosen is None:
            self._ended.set()
            return
        if chosen is not task:
            chosen.turn.release()
            if not task.done:
                task.turn.acquire()
        if self._failed and not task.done:
            raise SystemExit  # another thread has failed; this one ends, too

    def chosen(self) -> _Task | None:
        while True:
            alive = [task for task in self._tasks if not task.done]
            if not alive:
                return None
            if self._failed:
                return alive[0]
            able = [task for task in alive if self._can_run(task)]
            pending, advance = self.outside
            if pending() and (not able or self.random.random() < self._outside_rate):
                advance()
            elif able:
                return self.random.choice(able)
            else:
                limits = [task.limit for task in alive if task.limit is not None]
                if not limits:
                    names = ", ".join(task.name for task in alive)
                    self._failed.append(Stuck(f"these wait for one another: {names}"))
                    return alive[0]
                self.now = max(self.now, min(limits))

    def _can_run(self, task: _Task) -> bool:
        return task.ready is None or task.ready() or (task.limit or 1e300) <= self.now


class _Thread:
    """threading.Thread, as far as it is used."""

    def __init__(self, schedule: Schedule, *, target, name: str, daemon: bool):
        assert daemon
        self.name, self._schedule, self._target = name, schedule, target
        self._task: _Task | None = None

    def start(self) -> None:
        self._task = self._schedule.start(self.name, self._run, self)
        self._schedule.switch()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            del self._target  # as threading.Thread: what it belongs to may have a reference to this

    def join(self, timeout: float | None = None) -> None:
        self._schedule.block(lambda: self._task.done, timeout)

    def is_alive(self) -> bool:
        return not self._task.done


class _Lock:
    """A reentrant lock; used as a plain one as well, where reentering is an error of the test."""

    def __init__(self, schedule: Schedule):
        self._schedule, self.owner, self.depth = schedule, None, 0

    def __enter__(self):
        task = self._schedule.task
        if self.owner is not task:
            self._schedule.switch()
            while self.owner is not None:
                self._schedule.block(lambda: self.owner is None)
            self.owner = task
        self.depth += 1
        return self

    def __exit__(self, *error) -> None:
        self.depth -= 1
        if not self.depth:
            self.owner = None


class _Condition:
    """threading.Condition, whose lock is reentrant, and may be that of others."""

    def __init__(self, schedule: Schedule, lock: _Lock | None):
        self._schedule = schedule
        self._lock = lock or _Lock(schedule)
        self._waiting: list[object] = []

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *error) -> None:
        self._lock.__exit__(*error)

    def notify(self, n: int = 1) -> None:
        assert self._lock.owner is self._schedule.task, "notify without the lock"
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        lock = self._lock
        assert lock.owner is self._schedule.task, "wait_for without the lock"
        limit = None if timeout is None else self._schedule.now + timeout
        while not predicate():
            if limit is not None and self._schedule.now >= limit:
                self._schedule.expired += timeout > 0
                return False
            token, depth = object(), lock.depth
            self._waiting.append(token)
            lock.owner, lock.depth = None, 0
            left = None if limit is None else limit - self._schedule.now
            self._schedule.block(lambda token=token: token not in self._waiting, left)
            if token in self._waiting:
                self._waiting.remove(token)
            self._schedule.switch()
            while lock.owner is not None:
                self._schedule.block(lambda: lock.owner is None)
            lock.owner, lock.depth = self._schedule.task, depth
        return True


class _Queue:
    """queue.SimpleQueue. What is put in does not let another thread run: any moment can do that."""

    def __init__(self, schedule: Schedule):
        self._schedule = schedule
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def qsize(self) -> int:
        return len(self._items)

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()

    def get(self, timeout: float) -> Any:
        limit = self._schedule.now + timeout
        while not self._items:
            if self._schedule.now >= limit:
                self._schedule.expired += 1
                raise Empty
            self._schedule.block(lambda: len(self._items) > 0, limit - self._schedule.now)
        return self._items.popleft()
