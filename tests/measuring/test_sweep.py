"""Settings compared in turn, with made-up speeds."""

import pytest

from sa1bpack.measuring.speeds import Setting, Speed
from sa1bpack.measuring.sweep import sweep, thread_counts

SETTINGS = [Setting.of("Loader", 8, threads=count) for count in (1, 2, 4)]


class Machine:
    """Speeds and memory by setting, speeds by round."""

    def __init__(self, speeds: dict[int, list[float]], memory: dict[int, int] | None = None):
        self.asked = []
        self._speeds, self._memory = speeds, memory or {}

    def measure(self, setting: Setting, number: int) -> Speed:
        [(_, threads)] = setting.options
        self.asked.append((number, threads))
        speeds = self._speeds[threads]
        if not speeds:
            raise MemoryError("none left")
        return Speed(speeds[number % len(speeds)], 0.1, self._memory.get(threads, 100 << 20), 0)

    def sweep(self):
        return sweep("threads", SETTINGS, self.measure)


def test_rounds_are_interleaved_every_other_one_in_reverse():
    machine = Machine({1: [10.0], 2: [20.0], 4: [15.0]})
    found = machine.sweep()
    assert [threads for _, threads in machine.asked] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert [number for number, _ in machine.asked] == [0] * 3 + [1] * 3 + [2] * 3
    assert [line.speed for line in found.lines] == [10, 20, 15]
    assert found.chosen is found.lines[1] and found.verdict == "the fastest"
    assert [line.noise for line in found.lines] == [False, True, False]


def test_figures_are_medians():
    found = Machine({1: [10.0, 12.0, 90.0], 2: [20.0, 19.0, 21.0], 4: [1.0]}).sweep()
    assert [line.speed for line in found.lines] == [12, 20, 1]


@pytest.mark.parametrize(
    ("speeds", "noise", "chosen", "verdict"),
    [
        ({1: [19.9], 2: [20.0], 4: [5.0]}, [True, True, False], 1, "within the noise of the fast"),
        ({1: [19, 25, 19], 2: [20, 20, 21], 4: [5.0]}, [True, True, False], 1, "and takes less"),
        ({1: [5, 25, 6], 2: [20, 20, 21], 4: [5.0]}, [False, True, False], 2, "the fastest"),
        ({1: [20, 21, 20], 2: [21, 20, 21], 4: [20, 20, 21]}, [True] * 3, 1, "all differences are"),
        ({1: [19.0], 2: [20.0], 4: [5.0]}, [False, True, False], 2, "the fastest"),
    ],
)  # fmt: skip
def test_of_those_within_the_noise_the_one_that_takes_least_is_chosen(
    speeds, noise, chosen, verdict
):
    found = Machine(speeds).sweep()
    assert [line.noise for line in found.lines] == noise
    assert found.chosen.setting.options == (("threads", chosen),)
    assert verdict in found.verdict


def test_memory_counts_before_threads():
    speeds = {1: [20.0], 2: [20.0], 4: [20.0]}
    found = Machine(speeds, {1: 900 << 20, 2: 100 << 20, 4: 100 << 20}).sweep()
    assert found.chosen.setting.options == (("threads", 2),)


def test_a_setting_that_fails_is_named_and_left_out():
    machine = Machine({1: [10.0], 2: [], 4: [15.0]})
    found = machine.sweep()
    assert found.lines[1].error == "MemoryError: none left" and not found.lines[1].speeds
    assert [threads for _, threads in machine.asked] == [1, 2, 4, *[4, 1], *[1, 4]]
    assert found.chosen is found.lines[2]
    with pytest.raises(MemoryError):
        Machine({1: [], 2: [], 4: []}).sweep()


def test_lines_of_python_have_what_is_not_the_default():
    setting = SETTINGS[1].changed(ahead=4, batch=16)
    assert setting.call({}, "cpu") == "sa1bpack.Loader(ds, 16, threads=2, ahead=4)"
    assert setting.call({"masks": "flat"}, "cuda:1") == (
        "sa1bpack.Loader(ds, 16, threads=2, ahead=4, masks='flat', device='cuda:1')"
    )
    other = Setting.of("DataLoader", 4, num_workers=0)
    assert other.call({}, "cuda") == "sa1bpack.make_dataloader(ds, 4, num_workers=0)"
    names = [one.short() for one in (setting, other)]
    assert names == ["batch 16, threads=2, ahead=4", "batch 4, num_workers=0"]


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(2, (1, 2, 4, 8)), (6, (1, 2, 4, 6, 8)), (64, (1, 2, 4, 8, 12, 16, 32))],
)
def test_threads_are_powers_of_two_and_the_cores(cores, counts):
    assert thread_counts(cores) == counts
