"""Work that is done when an object is gone, where no interrupt can spoil it.

A finalizer in Python (`__del__`, the callback of a weak reference, of `weakref.finalize` or of a
WeakSet) runs wherever the last reference is dropped, mostly in the main thread. The exception of a
signal may arise in the middle of it; Python prints and forgets it, the work is done in part, and
the program never learns that it was asked to end. So no object of this package has one:

- `when_gone` registers work. The end of the object is noted without executing any Python, and a
  thread, in which no signal arrives, does the work.
- A `Notice` is put into a queue instead, for threads that look there anyway.
- `settle` does at once what is left of such work, for those who need what it frees.
- `Living` is a set that does not keep its members alive, and of which no callback removes them.
"""

import atexit
import functools
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from sa1bpack.errors import ThreadRefused
from sa1bpack.interrupts import interrupts_held
from sa1bpack.threads import join_awaited, start_thread

_T = TypeVar("_T")

_log = logging.getLogger("sa1bpack")


class _Reference(weakref.ref[Any]):
    """A weak reference to the object whose end is waited for."""

    __slots__ = ("ending",)

    ending: "Ending"


class Notice(weakref.ref[Any]):
    """A weak reference that is passed to a function when its object is gone.

    As everywhere in this package, that function is compiled: the `put` of a `SimpleQueue`, whose
    readers learn of it. Nothing is passed once the notice itself is gone, so somebody has to keep
    it.

    Attributes:
        about: what a thread that gets it needs to know.
    """

    __slots__ = ("about",)

    about: Any


class Ending:
    """Work that is to be done once, when an object is gone, or before.

    Attributes:
        work: the function to call.
        arguments: its arguments.
        at_exit: it is also called when the interpreter exits first.
        in_thread: the thread does the work; otherwise it is done where the object goes.
    """

    __slots__ = ("arguments", "at_exit", "in_thread", "reference", "work")

    def __init__(
        self,
        owner: object,
        work: Callable[..., object],
        arguments: tuple[Any, ...] = (),
        *,
        at_exit: bool = False,
        in_thread: bool = True,
    ):
        self.work = work
        self.arguments = arguments
        self.at_exit = at_exit
        self.in_thread = in_thread
        self.watch(owner, _gone.put)
        _pending[id(self)] = self

    def watch(self, owner: object, call: Callable[[_Reference], object]) -> None:
        """Have `call` called with the reference when `owner` is gone."""
        reference = _Reference(owner, call)
        reference.ending = self
        self.reference: _Reference | None = reference

    def run(self) -> None:
        """Do the work now, unless it was done. It stays to be done if it raises."""
        if _pending.pop(id(self), None) is None:
            return
        try:
            self.work(*self.arguments)
        except BaseException:
            _pending[id(self)] = self
            raise
        self._forget()

    def cancel(self) -> None:
        """Never do the work."""
        if _pending.pop(id(self), None) is not None:
            self._forget()

    def owner(self) -> Any:
        """The object; None if it is gone, or the work was done or cancelled."""
        reference = self.reference
        return reference() if reference is not None else None

    def _forget(self) -> None:
        """Keep nothing alive. Without its reference nothing is called."""
        self.reference = None
        del self.work, self.arguments


# Endings of objects that are gone. `SimpleQueue.put` is compiled, and may be called at any moment.
_gone: SimpleQueue[_Reference] = SimpleQueue()
# All endings whose work is not done, by their id: a weak reference must outlive its object.
_pending: dict[int, Ending] = {}
# Held by the thread while it works.
_working = threading.RLock()
# The process that has the thread which does the work; a fork has none.
_processes: set[int] = set()


def when_gone(
    owner: object,
    work: Callable[..., object],
    *arguments: Any,
    at_exit: bool = False,
) -> Ending:
    """Call `work(*arguments)` soon after `owner` is gone, in a thread that belongs to the process.

    The work should not wait, since the work of other objects comes after it, and must not refer to
    `owner`. In a forked child, where it is done as well, it may have to do nothing.

    Args:
        owner: any object that can be referenced weakly.
        work: function to call.
        arguments: its arguments, which live until then.
        at_exit: call it also when the interpreter exits while `owner` lives.

    Returns:
        The ending, whose `run` does the work earlier.
    """
    ending = Ending(owner, work, arguments, at_exit=at_exit)
    if os.getpid() not in _processes:
        _start_thread()
    if at_exit:
        _finish_at_exit_too()
    return ending


def before_release(owner: object, work: Callable[[], object]) -> Ending:
    """Call `work()` where the last reference to `owner` goes, before what follows is released.

    Only for what cannot wait for the thread. An interrupt that arrives in it is sent again by the
    thread, so that it is raised where the program sees it.
    """

    def call(reference: _Reference) -> None:
        _pending.pop(id(reference.ending), None)
        try:
            work()
        except KeyboardInterrupt:
            nobody = Living[object]()  # which is gone at once
            when_gone(nobody, signal.raise_signal, signal.SIGINT)
        except Exception:
            _log.exception("what an object has held could not be kept")

    ending = Ending(owner, work, in_thread=False)
    ending.watch(owner, call)
    return ending


def settle() -> None:
    """Do the work of all objects that are gone; or wait for it, where the thread is doing it.

    Ctrl-C and SIGTERM take effect afterwards. Not to be called by such work.
    """
    with interrupts_held(), _working:
        # What is released may have held other objects, which are gone then.
        while ended := [ending for ending in list(_pending.values()) if ending.owner() is None]:
            while ended:
                _finish(ended.pop())


def _start_thread() -> None:
    _processes.clear()
    try:
        with interrupts_held():
            start_thread(_finish_all, "sa1bpack-finalizers")
            _processes.add(os.getpid())
    except ThreadRefused:  # the next call asks again
        settle()


def _finish_all() -> None:
    while True:
        reference = _gone.get()
        with _working:
            _finish(reference.ending)
        del reference


def _after_fork() -> None:
    """Have a lock and a queue in a child, where nobody releases those of the parent's thread.

    That may have held the lock within the queue at the fork: then no `get` would ever return.
    """
    global _gone, _working
    _working = threading.RLock()
    _gone = SimpleQueue()
    for ending in list(_pending.values()):
        if not ending.in_thread:
            continue
        owner = ending.owner()
        if owner is not None:
            ending.watch(owner, _gone.put)
        elif ending.reference is not None:
            _gone.put(ending.reference)


os.register_at_fork(after_in_child=_after_fork)


def _finish(ending: Ending) -> None:
    """Do the work of an object that is gone; what it raises is logged, for nobody can handle it."""
    try:
        ending.run()
    except Exception:
        _pending.pop(id(ending), None)
        _log.exception("what an object has held could not be released")


@functools.cache
def _finish_at_exit_too() -> None:
    """Register what is done at exit: when it is first needed, so that it comes early."""
    atexit.register(_finish_at_exit)


def _finish_at_exit() -> None:
    settle()  # the thread would still be at work when the interpreter ends
    for ending in list(_pending.values()):
        if ending.at_exit:
            ending.run()
    join_awaited()


class Living(Generic[_T]):
    """A set of objects that are alive, compared by identity. It keeps none of them alive.

    Safe between threads for `add`, `discard` and iteration.
    """

    def __init__(self, members: Iterable[_T] = ()):
        self._references: dict[int, weakref.ref[Any]] = {}
        self._tidy_from = 8  # references; then those of objects that are gone are removed
        for member in members:
            self.add(member)

    def add(self, member: _T) -> None:
        """Add an object."""
        self._references[id(member)] = weakref.ref(member)
        if len(self._references) >= self._tidy_from:
            for key, reference in list(self._references.items()):
                # Another object of the same id may have come meanwhile.
                if reference() is None and self._references.get(key) is reference:
                    self._references.pop(key, None)
            self._tidy_from = max(8, 2 * len(self._references))

    def discard(self, member: _T) -> None:
        """Remove an object, if it is there."""
        self._references.pop(id(member), None)

    def __iter__(self) -> Iterator[_T]:
        for reference in list(self._references.values()):
            member = reference()
            if member is not None:
                yield member

    def __len__(self) -> int:
        return sum(1 for _ in self)
