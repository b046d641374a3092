"""The end of the process, in place of one of its system calls, without ending the test."""

import os
from collections.abc import Callable


class Killed(Exception):
    """Stands for the end of the process."""


def killed_after(
    step: str, survivors: int, counts: Callable[..., bool] = lambda *arguments: True
) -> Callable:
    """In place of `os.step`: every call raises Killed, but the first `survivors`, and any that
    does not count by its arguments."""
    real, left = getattr(os, step), iter(range(survivors))

    def call(*arguments, **options):
        if counts(*arguments) and next(left, None) is None:
            raise Killed
        return real(*arguments, **options)

    return call
