"""Errors of the operating system that lack the name of the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sa1bpack.errors import Sa1bpackError


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Name `path` in an OSError of the calls within: calls on descriptors do not know it."""
    try:
        yield
    except OSError as error:
        if isinstance(error, Sa1bpackError):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
