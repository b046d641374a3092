"""A module in place of ray, whose tasks run in this process, one after the other.

For tests of what tasks do to a pack: a cluster is in tests/packing/test_ray.py.
"""

import sys
from types import ModuleType, SimpleNamespace


class RayError(Exception):
    """As ray.exceptions.RayError."""


class RayTaskError(RayError):
    """As ray.exceptions.RayTaskError: what a task raised is its cause."""

    def __init__(self, cause: Exception):
        super().__init__(str(cause))
        self.cause = cause


class _Task:
    """A function, as `ray.remote` returns it; its calls are made at once."""

    def __init__(self, function):
        self._function = function

    def options(self, **_) -> "_Task":
        return self

    def remote(self, **call) -> SimpleNamespace:
        outcome = _Outcome()
        try:
            outcome.result = self._function(**call)
        except Exception as error:
            outcome.error = error
        return outcome


class _Outcome:
    """The outcome of a call."""

    result = error = None


def _get(outcome: _Outcome):
    if outcome.error is not None:
        raise RayTaskError(outcome.error)
    return outcome.result


def install() -> None:
    """Let `import ray` find it, in this process."""
    ray = ModuleType("ray")
    ray.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    ray.is_initialized = lambda: False
    ray.init = lambda **_: None
    ray.shutdown = lambda: None
    node = {"Alive": True, "Resources": {"CPU": 64, "memory": 1e12, "GPU": 0}}
    ray.nodes = lambda: [node]
    ray.remote = _Task
    ray.wait = lambda running, **_: (running[:1], running[1:])
    ray.get = _get
    sys.modules["ray"] = ray
