"""What `web` and `objects` have in common: one answer with a file's bytes, from a place on."""

from typing import Protocol

REPEATED = frozenset({408, 425, 429})  # statuses, besides those of 500 and more, that may pass


class Broken(Exception):
    """A request or its body failed in a way that may pass.

    wait
        Seconds after which the server asks to be asked again, if it does.
    """

    def __init__(self, why: str, wait: float | None = None):
        super().__init__(why)
        self.wait = wait


class Body(Protocol):
    """One request and the body of its answer. Nothing is sent before `open`.

    After `open`: `nbytes` is the size of the file, `version` what distinguishes it from another
    file in its place (its ETag, or the time of its last change; None if the server tells neither),
    and `start` the byte at which the body begins: the one asked for, or 0 from a server without
    ranges.

    `open` and `read` raise Broken, and SourceError for what no repetition changes. `cancel` may be
    called by another thread, and makes them raise Broken.
    """

    nbytes: int
    version: str | None
    start: int

    def open(self) -> None:
        """Send the request and read the head of the answer."""

    def read(self, count: int) -> bytes:
        """At most `count` more bytes, b"" at the end of the file or of the part asked for."""

    def cancel(self) -> None:
        """End what is waited for."""

    def close(self) -> None:
        """Close the connection, or return it to the library."""
