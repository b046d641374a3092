"""Settings compared in turn, with made-up speeds."""

import pytest

from sa1bpack.measuring.bench import sweep
from sa1bpack.measuring.speeds import Setting, Speed

SETTINGS = [Setting("Loader", 8, {"threads": count}) for count in (1, 2, 4)]


class Machine:
    """Speeds and memory by setting, speeds by round."""

    def __init__(self, speeds: dict[int, list[float]], memory: dict[int, int] | None = None):
        self.asked = []
        self._speeds, self._memory = speeds, memory or {}

    def measure(self, setting: Setting, number: int) -> Speed:
        threads = setting.options["threads"]
        self.asked.append((number, threads))
        speeds = self._speeds[threads]
        if not speeds:
            raise MemoryError("none left")
        return Speed(speeds[number % len(speeds)], self._memory.get(threads, 100 << 20))

    def sweep(self):
        return sweep("threads", SETTINGS, self.measure)


def test_rounds_are_interleaved_every_other_one_in_reverse():
    machine = Machine({1: [10.0], 2: [20.0], 4: [15.0]})
    found = machine.sweep()
    assert [threads for _, threads in machine.asked] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert [number for number, _ in machine.asked] == [0] * 3 + [1] * 3 + [2] * 3
    assert [line.speed for line in found.lines] == [10, 20, 15]
    assert found.chosen is found.lines[1]
    assert [line.noise for line in found.lines] == [False, True, False]


@pytest.mark.parametrize(
    ("speeds", "noise", "chosen"),
    [
        ({1: [19.9], 2: [20.0], 4: [5.0]}, [True, True, False], 1),
        ({1: [19, 25, 19], 2: [20, 20, 21], 4: [5.0]}, [True, True, False], 1),
        ({1: [5, 25, 6], 2: [20, 20, 21], 4: [5.0]}, [False, True, False], 2),
        ({1: [20, 21, 20], 2: [21, 20, 21], 4: [20, 20, 21]}, [True] * 3, 1),
        ({1: [19.0], 2: [20.0], 4: [5.0]}, [False, True, False], 2),
    ],
)  # fmt: skip
def test_of_those_within_the_noise_the_one_that_takes_least_is_chosen(speeds, noise, chosen):
    found = Machine(speeds).sweep()
    assert [line.noise for line in found.lines] == noise
    assert found.chosen.setting.options == {"threads": chosen}


def test_a_setting_that_fails_is_named_and_left_out():
    machine = Machine({1: [10.0], 2: [], 4: [15.0]})
    found = machine.sweep()
    assert found.lines[1].error == "MemoryError: none left" and not found.lines[1].speeds
    assert [threads for _, threads in machine.asked] == [1, 2, 4, *[4, 1], *[1, 4]]
    assert found.chosen is found.lines[2]
    with pytest.raises(MemoryError):
        Machine({1: [], 2: [], 4: []}).sweep()
