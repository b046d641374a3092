"""Calls of os.fsync that do nothing: few tests need the disk itself, and flushing takes longest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def unflushed() -> Iterator[None]:
    """Within the block, os.fsync does nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
