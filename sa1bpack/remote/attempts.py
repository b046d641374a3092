"""The repetition of requests that failed: how often, and after how long."""

import random
import time
from collections.abc import Callable

from sa1bpack.urls import Patience

# Bytes read since the last failure, from which on attempts are counted from 1 again.
PROGRESS_BYTES = 1 << 20
# Seconds of the first wait, which doubles, up to the longest; a random half of it is taken off, so
# that many readers do not return at the same moment.
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
LONGEST_ASKED = 120.0  # that a server may ask for
MAY_PASS = frozenset({408, 425, 429})  # statuses of HTTP besides those of 500 and more
BUSY = frozenset({429, 503})  # of a host that is asked too often
NETWORK_REMEDY = "check the network, and try again"
_JITTER = random.Random()  # the program's own generator stays as it is

OnWait = Callable[[str], object] | None


class Attempts:
    """The attempts at one file, of which those that failed are counted."""

    def __init__(
        self,
        address: object,
        patience: Patience,
        on_wait: OnWait = None,
        remedy: str = NETWORK_REMEDY,
    ):
        """
        Args:
            address: address of the file, for messages.
            patience: number of attempts in a row, without progress.
            on_wait: called with a line for the user when attempts fail for longer than a moment.
            remedy: ends the message of the error after the last attempt.
        """
        self._address = address
        self._patience = patience
        self._on_wait = on_wait
        self._remedy = remedy
        self._failures = 0
        self._failed_at = 0
        self._most = patience.attempts
        self._until = 0.0  # attempts are made, if no connection succeeds, or the host is busy
        self._answers = 0  # of the host, when attempts began to fail

    def failed(
        self,
        kind: type[Exception],
        why: str,
        position: int = 0,
        asked: float = 0.0,
        is_unreachable: bool = False,
        is_busy: bool = False,
    ) -> float:
        """Count a failure, and raise an error after the last attempt.

        Args:
            kind: class of the error.
            why: what failed, for the message.
            position: bytes that were read before the failure.
            asked: seconds that the server asks to wait.
            is_unreachable: no connection succeeded, or it was closed without an answer.
            is_busy: the host answers that it is asked too often.

        Returns:
            Seconds to wait before the next attempt.
        """
        if position >= self._failed_at + PROGRESS_BYTES:
            self._failures = 0
        self._failed_at = position
        self._failures += 1
        patience = self._patience
        if self._failures == 1:  # not of one that began to wait before another was given up
            self._most = patience.most_attempts()
            self._answers = patience.answers
            self._until = 0.0
        now = time.monotonic()
        if is_unreachable and not self._until:
            self._until = now + patience.unreachable_seconds()
        if is_busy and not patience.is_down:
            self._until = self._until or now + patience.seconds_busy
        if self._failures >= self._most and now >= self._until:
            patience.is_down = patience.answers == self._answers
            raise kind(
                f"{self._address}: given up at byte {position} after {self._failures} attempts "
                f"without progress, the last one: {why}; {self._remedy}"
            )
        is_news = self._failures % 5 == 3 and self._failures > patience.reported
        if self._on_wait is not None and is_news:
            patience.reported = self._failures
            self._on_wait(
                f"{self._address}: {why}; asking again from byte {position} "
                f"(attempt {self._failures + 1} of {self._most})"
            )
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._failures - 1))
        wait = _JITTER.uniform(longest / 2, longest)
        if self._failures >= self._most:  # the last attempt is made when the time is over
            wait = min(wait, self._until - now)
        return min(max(wait, asked), LONGEST_ASKED)

    def succeeded(self) -> None:
        """Note that the host has answered."""
        self._patience.answered()
