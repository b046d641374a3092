"""Signals do not vanish in callbacks from C, where an exception is printed and lost."""

import ctypes
import signal
from concurrent.futures import Future

import pytest
from small_tars import SMALL

from sa1bpack import PackOptions, interrupts
from sa1bpack.packing import sample


class Terminated(BaseException):
    """What a handler raises."""


def interrupt_in_a_callback(number: int = signal.SIGINT) -> None:
    """As a signal that arrives while llvmlite asks for an object of its cache."""
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)],
    ids=["ctrl-c", "sigterm"],
)
def test_a_signal_while_kernels_load_ends_the_run_when_they_are_loaded(monkeypatch, number, error):
    def terminate(*_):
        raise Terminated

    def load(*_):
        interrupt_in_a_callback(number)
        done.append("loaded")

    done = []
    signal.signal(signal.SIGTERM, terminate)
    monkeypatch.setattr(sample, "make_samples", load)
    with pytest.raises(error):
        sample.warm_up(PackOptions(**SMALL))
    assert done == ["loaded"] and signal.getsignal(signal.SIGTERM) is terminate


def test_handlers_are_as_they_were_also_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught, interrupts.interrupts_held():
        signal.raise_signal(signal.SIGINT)
        raise ValueError
    assert isinstance(caught.value.__context__, ValueError)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_was_lost_ends_a_wait():
    def handle(number, frame):
        interrupts.record(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    interrupt_in_a_callback()
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupts.result_of(Future(), 600)
    finally:
        interrupts.forget()


def test_a_wait_ends_with_the_result_the_error_or_the_time():
    done, failed = Future(), Future()
    done.set_result(3)
    failed.set_exception(TimeoutError("of the work"))
    assert interrupts.result_of(done, 600) == 3
    with pytest.raises(TimeoutError, match="of the work"):
        interrupts.result_of(failed, 600)
    with pytest.raises(TimeoutError):
        interrupts.result_of(Future(), 0.01)
