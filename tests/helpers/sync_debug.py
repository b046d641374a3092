"""Operations that wait for a CUDA device are errors."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Within it, most operations that wait for the device raise; afterwards, none does.

    Setting the mode warns, the first time in a process, that it does not find all of them. That
    warning comes after the mode is set; as an error, it would leave it so.
    """
    try:
        _set("error")
        yield
    finally:
        _set("default")


def _set(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)
