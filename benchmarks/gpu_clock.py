"""The time that a call takes of a device, and that it takes of the host, apart; for gpu.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

CYCLES = 2.0e9  # of a device per second, about: how long it sleeps is no figure
FIRST_SLEEP, LONGEST_SLEEP = 0.02, 0.64  # seconds


@dataclass(frozen=True)
class CallTime:
    """What a call takes.

    Attributes:
        device_ms: time of the device; with `waits`, including what it stood idle.
        host_ms: time until the call returned; with `waits`, including that of the device.
        waits: the call waits for the device.
        calls: calls that were queued at once.
    """

    device_ms: float
    host_ms: float
    waits: bool
    calls: int


def call_time(work: Callable[[], object], calls: int = 16, cuda=torch.cuda) -> CallTime:
    """Time a call that queues work on a device.

    Calls are queued while the device sleeps, so that it has all of them when it begins, and is not
    kept waiting by the host; events before the first and after the last say how long it took. If it
    woke up meanwhile, because its queue was full or the host was slow, there are fewer calls, then
    a longer sleep. A call for which that is never enough waits for the device itself.
    """
    sleep = FIRST_SLEEP
    while True:
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        cuda.synchronize()
        cuda._sleep(int(sleep * CYCLES))
        begin.record()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        host = time.perf_counter() - start
        is_awake = begin.query()
        end.record()
        cuda.synchronize()
        if not is_awake or (calls == 1 and sleep >= LONGEST_SLEEP):
            return CallTime(begin.elapsed_time(end) / calls, 1e3 * host / calls, is_awake, calls)
        if calls > 1:
            calls = max(1, calls // 4)
        else:
            sleep *= 2


def call_figures(work: Callable[[], object], device: torch.device) -> dict[str, float | bool]:
    """`device_ms`, `host_ms` and, if so, `waits` of a call; on a CPU nothing: there is one time."""
    if device.type != "cuda":
        work()
        return {}
    taken = call_time(work)
    figures: dict[str, float | bool] = {"device_ms": taken.device_ms, "host_ms": taken.host_ms}
    if taken.waits:
        figures["waits"] = True
    return figures
