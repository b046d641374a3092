"""Reader threads and buffers near their device, on a machine that is made up."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from simulated_cuda import SimulatedCuda
from simulated_loading import simulate

from sa1bpack import Loader
from sa1bpack.loading import numa

ADDRESS = "0000:1b:00.0"
HERE = sorted(os.sched_getaffinity(0))
SEVERAL = pytest.mark.skipif(len(HERE) < 2, reason="this process may use one processor alone")


def machine(folder: Path, nodes: dict[int, str], online: str, device_node: int | str = 1) -> Path:
    """What Linux says of a machine with a device in one of its nodes."""
    for number, processors in nodes.items():
        node = folder / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{processors}\n")
    every = folder / "devices/system/cpu"
    every.mkdir(parents=True)
    (every / "online").write_text(f"{online}\n")
    device = folder / "bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{device_node}\n")
    return folder


def listed(processors: list[int]) -> str:
    return ",".join(map(str, processors))


@pytest.fixture
def two_nodes(tmp_path, monkeypatch) -> set[int]:
    """A machine of the processors that there are, half of them near the device: those."""
    half = len(HERE) // 2
    nodes = {0: listed(HERE[:half]), 1: listed(HERE[half:])}
    monkeypatch.setattr(numa, "SYSFS", machine(tmp_path / "sys", nodes, listed(HERE)))
    monkeypatch.setattr(numa, "FEWEST_PROCESSORS", 1)
    return set(HERE[half:])


@pytest.fixture
def affinities(monkeypatch) -> dict[str, set[int]]:
    """Name of each reader thread, and of this one → the processors that it may use, in the end."""
    used: dict[str, set[int]] = {}
    mine = threading.current_thread().name

    def note() -> None:
        name = threading.current_thread().name
        if name == mine or name.startswith("sa1bpack-reader"):
            used[name] = os.sched_getaffinity(0)

    cuda = SimulatedCuda(switch=note)
    cuda.addresses[0] = ADDRESS
    simulate(monkeypatch, cuda)
    return used


def read(ds) -> str:
    """Read an epoch for a device; returns what the plan says of threads then."""
    with Loader(ds, 2, device="cuda", threads=2) as loader:
        assert sum(1 for _ in loader) == len(loader)
        return loader.plan().near


@SEVERAL
def test_reader_threads_run_near_their_device_and_the_users_thread_where_it_was(
    ds, two_nodes, affinities
):
    text = read(ds)
    assert affinities.pop(threading.current_thread().name) == set(HERE)
    assert affinities
    assert all(processors == two_nodes for processors in affinities.values())
    near = f"reader threads and buffers on NUMA node 1, near cuda:0: processors {HERE[-1]}"
    if len(two_nodes) == 1:
        assert text == near


@SEVERAL
def test_new_memory_is_written_first_by_a_thread_near_the_device(two_nodes):
    written = []

    class Memory:
        def __setitem__(self, places, value):
            written.append((threading.get_ident(), os.sched_getaffinity(0), places.step))

    near = numa.near_processors("cuda:0", lambda: ADDRESS)
    near.touch(Memory())
    [(thread, processors, step)] = written
    assert thread != threading.get_ident()
    assert (processors, step) == (two_nodes, 4096)
    assert os.sched_getaffinity(0) == set(HERE)


@SEVERAL
def test_a_process_that_was_given_some_processors_keeps_them(ds, two_nodes, affinities):
    os.sched_setaffinity(0, HERE[:1])  # of this thread, from which the readers have it
    try:
        text = read(ds)
    finally:
        os.sched_setaffinity(0, HERE)
    assert all(processors == {HERE[0]} for processors in affinities.values())
    assert text.startswith("reader threads on any NUMA node: this process was given 1 of ")


@SEVERAL
def test_a_thread_that_was_given_some_processors_later_keeps_them(two_nodes):
    near = numa.near_processors("cuda:0", lambda: ADDRESS)
    os.sched_setaffinity(0, HERE[:1])
    try:
        near.enter()
        assert os.sched_getaffinity(0) == {HERE[0]}
    finally:
        os.sched_setaffinity(0, HERE)


@pytest.mark.parametrize("nodes", [{}, {0: listed(HERE)}, {0: listed(HERE), 1: ""}])
def test_with_one_node_nothing_is_asked_or_said(ds, tmp_path, monkeypatch, affinities, nodes):
    """A second node may have memory alone."""
    monkeypatch.setattr(numa, "SYSFS", machine(tmp_path, nodes, listed(HERE)))
    monkeypatch.setattr(SimulatedCuda, "pci_address", lambda cuda, index: 1 / 0)
    assert read(ds) == ""
    assert all(processors == set(HERE) for processors in affinities.values())


def test_a_machine_without_these_files_has_one_node(tmp_path, monkeypatch):
    monkeypatch.setattr(numa, "SYSFS", tmp_path)
    assert not numa.has_several_nodes()
    assert numa.near_processors("cuda:0", lambda: ADDRESS) == numa.NearProcessors()
    numa.NearProcessors().touch(np.empty(0, np.uint8))


@pytest.mark.parametrize(
    ("nodes", "device_node", "processors", "text"),
    [
        ({0: "0-15", 1: "16-31"}, 1, range(16, 32), "near cuda:0: processors 16-31"),
        ({0: "0-15,32-47", 2: "16-31,48-63"}, 2, [*range(16, 32), *range(48, 64)],
         "on NUMA node 2, near cuda:0: processors 16-31,48-63"),
        ({0: "0-15", 1: "16-31"}, -1, (), "the node of cuda:0 is not known"),
        ({0: "0-15", 1: "16-31"}, 7, (), "the node of cuda:0 is not known"),
        ({0: "0-15", 1: "16-31"}, "", (), "the node of cuda:0 is not known"),
        ({0: "0-20", 1: "21-31"}, 1, (), "the node of cuda:0 has only 11 processors"),
    ],
)  # fmt: skip
def test_the_node_is_that_of_the_device_on_the_bus(
    tmp_path, monkeypatch, nodes, device_node, processors, text
):
    every = set()
    for node in nodes.values():
        for part in node.split(","):
            first, last = map(int, part.split("-"))
            every |= {*range(first, last + 1)}
    monkeypatch.setattr(numa, "SYSFS", machine(tmp_path, nodes, listed(sorted(every)), device_node))
    monkeypatch.setattr(numa.os, "sched_getaffinity", lambda thread: every)
    near = numa.near_processors("cuda:0", lambda: ADDRESS)
    assert near.processors == set(processors)
    assert near.text.endswith(text)
    assert numa.near_processors("cuda:0", lambda: "").processors == frozenset()
    monkeypatch.setenv("SA1BPACK_NUMA", "0")
    assert numa.near_processors("cuda:0", lambda: ADDRESS).text.endswith("SA1BPACK_NUMA=0")


def test_before_cuda_is_used_a_plan_promises_no_node(ds, two_nodes, affinities):
    with Loader(ds, 2, device="cuda") as loader:
        assert "if its NUMA node is known" in loader.plan().near
        assert "if its NUMA node is known" in str(loader.plan())
    with Loader(ds, 2, device="cpu") as loader:
        assert loader.plan().near == ""
