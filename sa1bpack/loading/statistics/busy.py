"""The time that work of several threads covers."""

from collections.abc import Iterable

# The latest spans that are kept one by one; those before them are a sum.
_KEPT = 256

Span = tuple[float, float]


class BusyTime:
    """The seconds that at least one of many spans of time covers.

    Spans may come in any order. Memory is bounded: the oldest spans become a sum, and one that
    reaches back to their time counts from their end only.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []  # ascending, without overlap
        self._before, self._horizon = 0.0, float("-inf")

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans (begin, end), in seconds of one clock."""
        later = ((max(begin, self._horizon), end) for begin, end in spans if end > self._horizon)
        merged: list[Span] = []
        for begin, end in sorted([*self._spans, *later]):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((begin, end))
        if len(merged) > 2 * _KEPT:
            oldest, merged = merged[:-_KEPT], merged[-_KEPT:]
            self._before += sum(end - begin for begin, end in oldest)
            self._horizon = oldest[-1][1]
        self._spans = merged

    @property
    def seconds(self) -> float:
        """The seconds that the spans cover."""
        return self._before + sum(end - begin for begin, end in self._spans)
