"""The processors near a device, on a machine whose memory is in several NUMA nodes.

What threads write and a device copies crosses the link between the nodes if the threads, the memory
and the device are not in the same one. So the threads that read for a device run on the processors
of its node, and its buffers are in that node's memory: see docs/gpu.md, and decision 26.

Threads are moved only where the process may use all processors of the machine. Where the user,
SLURM or a container chose some of them, that holds for these threads as well.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa1bpack.threads import start_thread

# Linux' description of the machine. Tests put another one in its place.
SYSFS = Path("/sys")

# SA1BPACK_NUMA=0 in the environment: threads and memory stay where the system puts them.
VARIABLE = "SA1BPACK_NUMA"

# On a node of fewer processors the threads of a Loader, up to 12 by default, would share them.
FEWEST_PROCESSORS = 12

_PAGE = 4096

_log = logging.getLogger("sa1bpack")


@dataclass(frozen=True)
class NearProcessors:
    """Where the threads and buffers for a device are.

    Attributes:
        processors: numbers of the processors that threads are to run on; empty: on any.
        text: where that is or why it is anywhere, for a plan; "" on a machine with one node.
    """

    processors: frozenset[int] = frozenset()
    text: str = ""

    def enter(self) -> None:
        """Have the calling thread run on these processors, unless it was given some itself."""
        if not self.processors or os.sched_getaffinity(0) != _of_machine():
            return
        try:
            os.sched_setaffinity(0, self.processors)
        except OSError as error:  # as in a sandbox
            _log.debug("a thread cannot be moved near its device: %s", error.strerror)

    def touch(self, memory: np.ndarray) -> None:
        """Have the system put new memory, uint8 (n,), in the node.

        It puts each page where the thread runs that writes it first: here another thread than the
        calling one, which may be the user's.

        Raises ThreadRefused.
        """
        if not self.processors:
            return

        def write() -> None:
            self.enter()
            memory[::_PAGE] = 0

        start_thread(write, "sa1bpack-near").join()


def near_processors(name: str, address: Callable[[], str]) -> NearProcessors:
    """The processors near a device.

    Args:
        name: the name of the device, for texts.
        address: returns its address on the PCI bus, as "0000:1b:00.0", or "" if it is not known. It
            is called only where there are several nodes.
    """
    nodes = _nodes()
    if len(nodes) < 2:
        return NearProcessors()
    if os.environ.get(VARIABLE) == "0":
        return _anywhere(f"{VARIABLE}=0")
    bus_address = address()
    node = _node_of(bus_address) if bus_address else -1
    if node not in nodes:
        return _anywhere(f"the node of {name} is not known")
    allowed = os.sched_getaffinity(0)
    every = _of_machine()
    if allowed != every:
        return _anywhere(
            f"this process was given {len(allowed)} of {len(every)} processors, and {name} is near "
            f"{_ranges(nodes[node])}"
        )
    near = nodes[node] & allowed
    if len(near) < FEWEST_PROCESSORS:
        return _anywhere(f"the node of {name} has only {len(near)} processors")
    text = f"reader threads and buffers on NUMA node {node}, near {name}: processors "
    return NearProcessors(frozenset(near), text + _ranges(near))


def has_several_nodes() -> bool:
    """True if the machine has memory in several nodes with processors."""
    return len(_nodes()) > 1


def _anywhere(reason: str) -> NearProcessors:
    return NearProcessors(text=f"reader threads on any NUMA node: {reason}")


def _nodes() -> dict[int, set[int]]:
    """Number of each node → its processors; nodes without any, of memory alone, are left out."""
    nodes = {}
    for folder in (SYSFS / "devices/system/node").glob("node[0-9]*"):
        processors = _listed(folder / "cpulist")
        if processors:
            nodes[int(folder.name.removeprefix("node"))] = processors
    return nodes


def _node_of(address: str) -> int:
    """The node of a PCI device; -1 if it is not known, as on many virtual machines."""
    try:
        return int((SYSFS / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def _of_machine() -> set[int]:
    """The processors of the machine that are in use."""
    return _listed(SYSFS / "devices/system/cpu/online")


def _listed(path: Path) -> set[int]:
    """The numbers in a list such as "0-3,8"; none if the file cannot be read."""
    numbers: set[int] = set()
    try:
        text = path.read_text().strip()
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return set()
    return numbers


def _ranges(numbers: set[int]) -> str:
    """Numbers as a list such as "0-3,8"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
