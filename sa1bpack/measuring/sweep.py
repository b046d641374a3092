"""Settings compared in turn: interleaved rounds, medians, and what is within the noise."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sa1bpack.measuring.speeds import Setting, Speed

# So many rounds tell how much the same setting differs from itself.
LEAST_ROUNDS, MOST_ROUNDS = 3, 9
# Less than this is no reason to choose one setting over another.
_LITTLE = 0.02
# Two settings that are equally fast: each is faster in half of the rounds, on average. In less than
# a quarter of 3 to 9 rounds, it is with a probability of 4 to 19 % (binomial distribution).
_LEAST_SHARE = 0.25
# Slower than this is slower, however the rounds scatter.
_MUCH = 0.1

Measure = Callable[[Setting, int], Speed]


@dataclass(frozen=True)
class Line:
    """The figures of a setting.

    speeds  samples per second, one per round that all settings took part in
    host_bytes, device_bytes  the most of all rounds; None if not known
    noise   whether its difference from the fastest is within the noise: it is less than 2 % slower,
            or less than 10 % slower and was faster in at least a quarter of the rounds
    error   why it does not run; then there are no speeds
    """

    setting: Setting
    speeds: tuple[float, ...]
    host_bytes: int | None
    device_bytes: int
    noise: bool
    error: str = ""

    @property
    def speed(self) -> float:
        """The median, 0 if it does not run."""
        return statistics.median(self.speeds) if self.speeds else 0.0


@dataclass(frozen=True)
class Sweep:
    """The lines of some settings, in the order given, and the one to choose.

    chosen  of those that are the fastest within the noise, the one that takes the least memory,
            then the fewest threads or workers: the first of them
    rounds  that were complete; with fewer than 3, the noise is not known
    """

    name: str
    lines: tuple[Line, ...]
    chosen: Line
    rounds: int

    @property
    def verdict(self) -> str:
        """What the comparison says."""
        if self.rounds < LEAST_ROUNDS:
            return "too little time to tell a difference from the noise: raise --minutes"
        running = [line for line in self.lines if line.speeds]
        if len(running) > 1 and all(line.noise for line in running):
            return "all differences are within the noise"
        best = max(running, key=lambda line: line.speed)
        if best is self.chosen:
            return "the fastest"
        return "within the noise of the fastest, and takes less"


def sweep(
    name: str, settings: Sequence[Setting], measure: Measure, until: float,
    clock: Callable[[], float],
) -> Sweep:  # fmt: skip
    """Measure settings in turn, every other round in reverse, until a time of the clock.

    One round is always made, and no more than MOST_ROUNDS. A setting that fails is left out of
    further rounds. Raises the error of the last one if none runs.
    """
    found: dict[Setting, list[Speed]] = {setting: [] for setting in settings}
    errors: dict[Setting, Exception] = {}
    rounds = 0
    while rounds < MOST_ROUNDS:
        begin = clock()
        for setting in list(found)[:: -1 if rounds % 2 else 1]:
            try:
                found[setting].append(measure(setting, rounds))
            except Exception as error:  # of any kind: out of memory, of a device, of a worker
                errors[setting] = error
                del found[setting]
        if not found:
            raise errors[settings[-1]]
        rounds += 1
        if clock() + (clock() - begin) > until:
            break
    return _compared(name, settings, found, errors, rounds)


def _compared(name, settings, found, errors, rounds) -> Sweep:
    speeds = {
        setting: tuple(speed.samples_per_second for speed in own) for setting, own in found.items()
    }
    top = max(speeds, key=lambda setting: statistics.median(speeds[setting]))
    lines = []
    for setting in settings:
        if setting not in speeds:
            error = errors[setting]
            text = f"{type(error).__name__}: {error}"
            lines.append(Line(setting, (), None, 0, False, text))
            continue
        ratios = [a / b for a, b in zip(speeds[setting], speeds[top], strict=True)]
        median, faster = statistics.median(ratios), sum(ratio >= 1 for ratio in ratios)
        often = faster >= math.ceil(_LEAST_SHARE * rounds)
        noise = median >= 1 - (_MUCH if often else _LITTLE)
        host = [own.host_bytes for own in found[setting]]
        lines.append(
            Line(
                setting,
                speeds[setting],
                None if None in host else max(host),
                max(own.device_bytes for own in found[setting]),
                noise,
            )
        )
    chosen = min((line for line in lines if line.noise), key=_cost)
    if rounds < LEAST_ROUNDS:
        chosen = max(lines, key=lambda line: line.speed)
    return Sweep(name, tuple(lines), chosen, rounds)


def _cost(line: Line) -> tuple:
    """What a setting takes: memory in powers of two, less is not worth a choice; then threads."""
    memory = (line.host_bytes or 0) + line.device_bytes
    options = dict(line.setting.options)
    return max(memory, 1 << 20).bit_length(), options.get("threads", options.get("workers", 0))
