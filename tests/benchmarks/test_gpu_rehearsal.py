"""The parts of the benchmark for GPUs, as small as can be: a device comes for minutes, and what
fails then is not known until the next one comes."""

import importlib
import json
import re
import sys

import pytest
import torch
from simulated_cuda import SimulatedCuda
from simulated_loading import simulate

OF_LOADING = ("memory", "sweep", "rivals", "quantized")


@pytest.fixture(scope="module")
def rehearse(module, tmp_path_factory, sample_tar):
    """rehearse(part): the figures of a part, run here. Packs are there."""
    gpu = module("gpu")
    parts = module("gpu_parts")
    options = parts.Options(
        **gpu.REHEARSAL, folder=str(tmp_path_factory.mktemp("gpu")), tars=[str(sample_tar)],
        rehearse=True, tests=[], sanitizer=None, peers=None,
    )  # fmt: skip

    def run(name: str, **changed) -> list[dict]:
        figures: list[dict] = []
        part = getattr(importlib.import_module(parts.PLACES[name]), name)
        given = parts.Options(**vars(options) | changed)
        part(given, lambda **figure: figures.append(json.loads(json.dumps(figure))))
        return figures

    run("packs")
    return run


def ways_of(figures: list[dict]) -> dict[str, dict]:
    """Way → all of its figures together."""
    ways: dict[str, dict] = {}
    for figure in figures:
        if "way" in figure:
            ways.setdefault(figure["way"], {}).update(figure)
    return ways


def test_every_part_has_its_place(module):
    gpu = module("gpu")
    places = module("gpu_parts").PLACES
    assert places.keys() == gpu.PARTS.keys()
    for name, place in places.items():
        assert callable(getattr(module(place), name))


def test_the_loader_is_compared_with_the_copy_and_with_what_was_predicted(rehearse):
    ways = ways_of(rehearse("sweep"))
    assert len(ways) == 2 + 4
    for way, figures in ways.items():
        assert figures["speed"] > 0
        assert figures["predicted"] > 0
        if way.startswith("Loader"):
            assert figures["of the copy"] > 0
            assert figures["cpu_ms"] > 0
            assert figures["limit"] in ("Python", "cores", "copying", "link", "order")


def test_it_is_said_how_memory_is_pinned(rehearse):
    figures = rehearse("memory")
    assert {"a buffer of 1 MiB": "not pinned: batches stay on the CPU"} in figures
    assert all(way["speed"] > 0 for way in ways_of(figures).values())


def test_how_memory_is_pinned_is_told_apart(module, monkeypatch):
    cuda = SimulatedCuda()
    simulate(monkeypatch, cuda)
    loading = module("gpu_loading")
    device = loading.device_here(loading.open_device("cuda"))
    nbytes = 4 << 20
    text = loading.buffer_text(device.allocate(nbytes), nbytes)
    assert re.match(r"pinned by cudaHostRegister, in a memory map .*; \d+ of \d+ MiB in huge", text)
    cuda.fail["pin"] = RuntimeError("CUDA error: operation not supported")
    text = loading.buffer_text(device.allocate(nbytes), nbytes)
    assert text.startswith("pinned by torch, because CUDA cannot pin memory of this process")


def test_decoders_on_the_device_are_compared_with_packs_and_what_is_missing_is_said(rehearse):
    ways = ways_of(rehearse("rivals"))
    assert "No module" in ways["nvImageCodec"]["error"]
    whole = {way: figures for way, figures in ways.items() if "error" not in figures}
    assert len(whole) == 7
    assert sum("disk_mb" in figures for figures in whole.values()) == 3
    assert sum("taken_ms" in figures for figures in whole.values()) == 3
    stands_in = whole["rehearsed with simplejpeg and resize, batches of 2"]
    assert stands_in["disk_mb"] > whole["Loader and pipeline, RGB, batches of 2"]["disk_mb"]


def test_a_part_of_a_package_is_found_in_another_folder(module, tmp_path, monkeypatch):
    """As nvidia.nvimgcodec beside the libraries of torch."""
    for folder, file in (("a", "shared_name/__init__.py"), ("b", "shared_name/part/__init__.py")):
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True)
        path.write_text("")
        monkeypatch.syspath_prepend(tmp_path / folder)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("shared_name.part")
    module("gpu_rivals").extend_package("shared_name", "part")
    assert importlib.import_module("shared_name.part")
    for name in ("shared_name", "shared_name.part"):
        monkeypatch.delitem(sys.modules, name)


def test_quantized_features_are_read(rehearse):
    ways = ways_of(rehearse("quantized"))
    assert {"Loader, float16", "Loader, int8", "Loader, float8"} < ways.keys()
    assert all(figures["speed"] > 0 for figures in ways.values())


def test_large_results_are_those_of_their_ends(rehearse, module, monkeypatch):
    ways = ways_of(rehearse("large"))
    assert len(ways) == 5
    assert all(figures["same"] for figures in ways.values())
    large = module("gpu_large")
    monkeypatch.setattr(large, "unpacked", lambda beyond: (beyond, False))
    with pytest.raises(SystemExit, match="bits to bool"):
        rehearse("large")


def test_a_sanitizer_that_finds_something_fails_the_part(rehearse, tmp_path):
    assert "not here" in rehearse("sanitizer", sanitizer=str(tmp_path / "none"))[0]["note"]
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'tests/x.py::test_a PASSED'\n"
        "echo '========= Invalid __global__ write of size 4 bytes'\n"
        "echo '========= ERROR SUMMARY: 2 errors'\n"
    )
    program.chmod(0o755)
    with pytest.raises(SystemExit):
        rehearse("sanitizer", sanitizer=str(program))


class Device:
    """In place of torch.cuda: a device whose calls take `seconds`, of which it queues `room`."""

    def __init__(self, clock: list[float], seconds: float, room: int = 1000):
        self.clock = clock
        self.seconds = seconds
        self.room = room
        self.until = 0.0  # when it has done all that was queued
        self.queued: list[float] = []

    def work(self) -> None:
        self.clock[0] += 1e-4  # of the host
        self.queued = [end for end in self.queued if end > self.clock[0]]
        if len(self.queued) >= self.room:
            self.clock[0] = self.queued[0]
        self.until = max(self.until, self.clock[0]) + self.seconds
        self.queued.append(self.until)

    def wait(self) -> None:
        self.work()
        self.synchronize()

    def _sleep(self, cycles: int) -> None:
        self.until = max(self.until, self.clock[0]) + cycles / 2e9

    def synchronize(self) -> None:
        self.clock[0] = max(self.clock[0], self.until)

    def Event(self, enable_timing: bool) -> "Event":
        return Event(self)


class Event:
    def __init__(self, device: Device):
        self.device = device

    def record(self) -> None:
        self.time = max(self.device.until, self.device.clock[0])

    def query(self) -> bool:
        return self.device.clock[0] >= self.time

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.time - self.time)


@pytest.fixture
def clock(module, monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(module("gpu_clock").time, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize("room", [1000, 20, 1])
def test_time_of_the_device_is_told_from_that_of_the_host(module, clock, room):
    """However many calls its queue has room for."""
    device = Device(clock, 3e-5, room)
    taken = module("gpu_clock").call_time(device.work, cuda=device)
    assert taken.device_ms == pytest.approx(0.03)
    assert taken.host_ms == pytest.approx(0.1)
    assert not taken.waits


def test_a_call_that_waits_for_the_device_is_said_to(module, clock):
    device = Device(clock, 3e-5)
    taken = module("gpu_clock").call_time(device.wait, cuda=device)
    assert taken.waits
    assert taken.calls == 1


def test_no_device_has_one_time(module):
    assert module("gpu_clock").call_figures(lambda: None, torch.device("cpu")) == {}
