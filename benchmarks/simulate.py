"""Which of disk, Python, copying, the copy to the device, and the device limits a training loop.

    python benchmarks/simulate.py [--batches N] [--sample-bytes N] [--measure TAR...]

A model by discrete events of what docs/architecture.md describes: reader threads that begin batches
and copy samples, a ring of pinned buffers, a copy engine, and a consumer that queues steps of
training on a device. Nothing is read or computed: every duration is a parameter (`Machine`,
`Task`), whose reason is in `PARAMETERS`. `--measure` times those of the host on this machine.

What waits for what:

    a batch            for a buffer whose copy has ended, and until no more than `prefetch` of them
                       are in progress or ready; then for Python, which locates it
    a reader thread    for a batch with samples to copy, for the disk, for a core, and for the
                       memory's bandwidth
    the copy engine    one copy at a time, in the order in which batches are complete
    the consumer       for its batch, for Python, and for the device where it would be more than
                       AHEAD steps ahead of it
    the device         a step begins when its batch is there, when the step before has ended, and
                       with several devices when all of them have theirs (gradients are averaged)

Devices of a server share its disks and its memory's bandwidth; each has a process, and so an
interpreter, and cores of its own. What Python does in one process happens one after the other.

The limit is the resource that was busy for the largest share of the time: "copying" if that is
threads or memory, "cores" if it is copying and Python together, "link" if it is the copy engine. If
none was busy for BUSY of the time, it is "order": batches wait for one another.
"""

import argparse
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from events import Clock, Counter, Process, Resource

AHEAD = 2  # steps that the consumer queues beyond the one that runs, as the loop of gpu.py
WARM_UP = 0.3  # share of the batches that are not counted
CUDA_SECONDS = 0.1e-3  # for the calls of CUDA per batch, in a reader thread and in the consumer
BUSY = 0.9  # share of the time from which on a resource is the limit


@dataclass(frozen=True)
class Machine:
    """A server, and how its loaders are set.

    Attributes:
        devices: number of devices, each with a process.
        cores: processor cores of each process.
        disk: bytes per second of the server's disks together; None: all is in memory.
        thread_bytes: bytes per second that one thread copies into pinned memory.
        memory_bytes: bytes per second that all threads of the server copy at most.
        link_bytes: bytes per second of the copy from pinned memory to one device.
        link_seconds: seconds of a copy besides its bytes.
        begin_seconds: Python in reader threads for a batch: locating it, its queue, its copy.
        take_seconds: Python of the consumer for a batch: `next`, and queuing the step.
        sample_seconds: compiled work for a sample besides its bytes, in a reader thread.
        threads: reader threads; None: as many as cores, at most 12, and at least 4 with a disk.
        prefetch: batches that are read ahead.
    """

    devices: int = 1
    cores: int = 16
    disk: float | None = None
    thread_bytes: float = 12e9
    memory_bytes: float = 245e9
    link_bytes: float = 55e9
    link_seconds: float = 20e-6
    begin_seconds: float = 0.48e-3
    take_seconds: float = 0.34e-3
    sample_seconds: float = 5e-6
    threads: int | None = None
    prefetch: int = 4

    @property
    def thread_count(self) -> int:
        """Reader threads of each process."""
        if self.threads is not None:
            return self.threads
        threads = min(self.cores, 12)
        if self.disk is None:
            return threads
        return max(threads, 4)


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        batch: samples per batch, of each device.
        sample_bytes: bytes of a sample, in the pack and in the batch.
        step_seconds: seconds of the device for a batch besides its samples.
        device_seconds: seconds of the device for a sample.
    """

    batch: int = 8
    sample_bytes: float = 3.67e6
    step_seconds: float = 0.0
    device_seconds: float = 0.0


# Why parameters are what they are. "Assumed" is what the first run on a GPU replaces.
PARAMETERS = {
    "sample_bytes": "1024 x 1024 RGB and 64 masks of 256 x 256 bits",
    "thread_bytes": "measured by --measure",
    "begin_seconds": "measured by --measure, and 0.1 ms assumed for the calls of CUDA",
    "take_seconds": "measured by --measure, and 0.1 ms assumed for the launches of a step",
    "sample_seconds": "measured by --measure",
    "memory_bytes": "assumed: 24 channels of DDR5-4800 move 0.8 of 922 GB/s, each byte three times",
    "link_bytes": "assumed: PCIe 5.0 x16, of whose 63 GB/s copies reach 55",
    "link_seconds": "assumed: two copies and an event",
    "disk": "assumed: two NVMe disks of PCIe 4.0 in one server",
    "steps": "assumed: arithmetic at 316 TFLOP/s, 0.4 of an H200's largest products in bfloat16",
}

# Name → seconds of the device per batch, and per sample: forward and backward pass at 1024 pixels.
STEPS = {
    "no step": (0.0, 0.0),
    "a small model, 0.15 TFLOP": (2e-3, 0.15 / 316),
    "ViT-B, 2.2 TFLOP": (2e-3, 2.2 / 316),
}
DISK = 12e9

# Those of the table: devices, cores of each.
SERVERS = ((1, 2), (1, 16), (8, 2), (8, 16))
BATCHES = (8, 32, 128)


@dataclass(frozen=True)
class Result:
    """What a simulation says.

    Attributes:
        rate: samples per second of each device.
        limit: "disk", "Python", "copying", "cores", "link", "device" or "order".
        busy: name of each resource → the share of the time in which it was busy.
        waited: share of the time in which consumers waited for batches.
    """

    rate: float
    limit: str
    busy: dict[str, float]
    waited: float


# -------------------------------------------------------------------------------------- the model


class Server:
    """A server: its devices, and the resources that they share."""

    def __init__(self, machine: Machine, task: Task, batches: int):
        self.machine = machine
        self.task = task
        self.batches = batches
        self.clock = Clock()
        self.disk = Resource()
        self.memory = Resource()
        self.disk_seconds = 0.0
        self.memory_seconds = 0.0
        self.arrived = [Counter() for _ in range(batches)]  # of each batch: devices that have it
        self.ranks = [Rank(self) for _ in range(machine.devices)]

    def run(self) -> Result:
        """Run all devices."""
        for rank in self.ranks:
            for process in rank.processes():
                self.clock.start(process)
        self.clock.run()
        ended = self.ranks[0].ended
        first = int(WARM_UP * self.batches)
        last = self.batches - self.machine.prefetch - AHEAD - 2  # before the work becomes less
        rate = self.task.batch * (last - first) / (ended[last] - ended[first])
        total = self.clock.now
        threads = min(self.machine.cores, self.machine.thread_count)
        busy = {
            "disk": self.disk_seconds / total,
            "Python": max(rank.python_seconds for rank in self.ranks) / total,
            "copying": max(rank.copy_seconds for rank in self.ranks) / total / threads,
            "cores": max(rank.copy_seconds + rank.python_seconds for rank in self.ranks)
            / total
            / self.machine.cores,
            "link": max(rank.link_seconds for rank in self.ranks) / total,
            "device": max(rank.device_seconds for rank in self.ranks) / total,
        }
        busy["copying"] = max(busy["copying"], self.memory_seconds / total)
        limit = max(busy, key=lambda name: busy[name])
        if busy[limit] < BUSY:
            limit = "order"
        waited = sum(rank.waited for rank in self.ranks) / len(self.ranks)
        return Result(rate, limit, busy, waited / total)


class Rank:
    """A process: its threads, buffers, copies and steps."""

    def __init__(self, server: Server):
        self.server = server
        machine = server.machine
        self.lock = Resource()
        self.cores = Resource(machine.cores)
        # Parts of a batch that threads copy at the same time, if there are more than batches.
        self.parts = min(-(-machine.thread_count // (machine.prefetch + 1)), server.task.batch)
        self.work: deque[tuple[int, int]] = deque()  # batch, and how many of its samples
        self.shared_out = Counter()  # parts that there were so far
        self.begun = 0  # of those, parts that a thread has begun
        self.missing = [server.task.batch] * server.batches  # samples of a batch
        self.complete = [Counter() for _ in range(server.batches)]
        self.sent = Counter()  # batches that the device has
        self.taken = Counter()  # batches that the consumer has taken
        self.steps = Counter()  # steps that have ended
        self.ended: list[float] = []  # when each has
        self.waited = 0.0
        self.python_seconds = 0.0
        self.copy_seconds = 0.0
        self.link_seconds = 0.0
        self.device_seconds = 0.0

    def processes(self) -> Iterator[Process]:
        """All that happens at the same time."""
        yield self._beginning()
        for _ in range(self.server.machine.thread_count):
            yield self._reading()
        yield self._sending()
        yield self._consuming()

    def _python(self, seconds: float) -> Process:
        """Python of any thread, for which it needs a core as well."""
        clock = self.server.clock
        yield "take", self.lock, 0
        yield "take", self.cores, 0
        yield "pass", None, seconds
        clock.give(self.cores)
        clock.give(self.lock)
        self.python_seconds += seconds

    def _beginning(self) -> Process:
        """Batches are begun one after the other, by whichever thread is free."""
        server = self.server
        machine = server.machine
        samples = server.task.batch
        for number in range(server.batches):
            yield "reach", self.sent, number - (machine.prefetch + 2) + 1
            yield "reach", self.taken, number - machine.prefetch
            yield from self._python(machine.begin_seconds)
            for part in range(self.parts):
                end = samples * (part + 1) // self.parts
                self.work.append((number, end - samples * part // self.parts))
            server.clock.raise_to(self.shared_out, self.shared_out.value + self.parts)

    def _reading(self) -> Process:
        """A thread that copies samples."""
        server = self.server
        machine = server.machine
        clock = server.clock
        nbytes = server.task.sample_bytes
        shared = nbytes / machine.memory_bytes
        alone = max(nbytes / machine.thread_bytes + machine.sample_seconds, shared)
        while self.begun < server.batches * self.parts:
            self.begun += 1
            yield "reach", self.shared_out, self.begun
            number, samples = self.work.popleft()
            if machine.disk is not None:
                seconds = samples * nbytes / machine.disk
                yield "take", server.disk, 0
                yield "pass", None, seconds
                clock.give(server.disk)
                server.disk_seconds += seconds
            for _ in range(samples):
                yield "take", self.cores, 0
                yield "take", server.memory, 0
                yield "pass", None, shared
                clock.give(server.memory)
                yield "pass", None, alone - shared
                clock.give(self.cores)
                server.memory_seconds += shared
                self.copy_seconds += alone
            self.missing[number] -= samples
            if self.missing[number] == 0:
                clock.raise_to(self.complete[number], 1)

    def _sending(self) -> Process:
        """The copy engine."""
        server = self.server
        machine = server.machine
        nbytes = server.task.batch * server.task.sample_bytes
        seconds = nbytes / machine.link_bytes + machine.link_seconds
        for number in range(server.batches):
            yield "reach", self.complete[number], 1
            yield "pass", None, seconds
            self.link_seconds += seconds
            server.clock.raise_to(self.sent, number + 1)

    def _consuming(self) -> Process:
        """The training loop."""
        server = self.server
        clock = server.clock
        has_steps = server.task.step_seconds + server.task.device_seconds > 0
        for number in range(server.batches):
            if has_steps:
                yield "reach", self.steps, number - AHEAD
            begin = clock.now
            yield "reach", self.complete[number], 1
            self.waited += clock.now - begin
            yield from self._python(server.machine.take_seconds)
            clock.raise_to(self.taken, number + 1)
            clock.start(self._step(number))

    def _step(self, number: int) -> Process:
        """A step on the device."""
        server = self.server
        task = server.task
        arrived = server.arrived[number]
        seconds = task.step_seconds + task.batch * task.device_seconds
        yield "reach", self.sent, number + 1
        yield "reach", self.steps, number
        server.clock.raise_to(arrived, arrived.value + 1)
        yield "reach", arrived, server.machine.devices
        yield "pass", None, seconds
        self.device_seconds += seconds
        self.ended.append(server.clock.now)
        server.clock.raise_to(self.steps, number + 1)


def simulate(machine: Machine, task: Task, batches: int = 100) -> Result:
    """Simulate a loop over so many batches of each device."""
    return Server(machine, task, batches).run()


def ceilings(machine: Machine, task: Task) -> dict[str, float]:
    """Name of each resource → samples per second of each device that it allows by itself."""
    nbytes = task.sample_bytes
    alone = nbytes / machine.thread_bytes + machine.sample_seconds
    threads = min(machine.cores, machine.thread_count)
    of_memory = machine.memory_bytes / nbytes / machine.devices
    rates = {
        "Python": task.batch / (machine.begin_seconds + machine.take_seconds),
        "copying": min(threads / alone, of_memory),
        "link": task.batch / (task.batch * nbytes / machine.link_bytes + machine.link_seconds),
    }
    if machine.disk is not None:
        rates["disk"] = machine.disk / nbytes / machine.devices
    seconds = task.step_seconds + task.batch * task.device_seconds
    if seconds > 0:
        rates["device"] = task.batch / seconds
    return rates


# --------------------------------------------------------------------------- tables, and parameters


def table(machine: Machine, sample_bytes: float, batches: int) -> str:
    """For each server and batch: how fast loops are, from memory and from the disk; the limit."""
    columns = [f"{source}: {name}" for source in ("memory", "disk") for name in STEPS]
    lines = [f"| devices | cores of each | batch | {' | '.join(columns)} |"]
    lines.append("|---:|---:|---:|" + "---|" * len(columns))
    for devices, cores in SERVERS:
        for batch in BATCHES:
            cells = []
            for disk in (None, DISK):
                server = replace(machine, devices=devices, cores=cores, disk=disk)
                for step_seconds, device_seconds in STEPS.values():
                    task = Task(batch, sample_bytes, step_seconds, device_seconds)
                    result = simulate(server, task, batches)
                    cells.append(f"{result.rate:,.0f} {result.limit}")
            lines.append(f"| {devices} | {cores} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def without_device(machine: Machine) -> Machine:
    """The machine for a loop on its CPU: nothing is copied to a device, or launched there."""
    return replace(
        machine,
        link_bytes=math.inf,
        link_seconds=0.0,
        begin_seconds=machine.begin_seconds - CUDA_SECONDS,
        take_seconds=machine.take_seconds - CUDA_SECONDS,
    )


def host_text(machine: Machine, batches: int) -> str:
    """What two threads on two cores reach of the copy of the same bytes, without a device."""
    host = without_device(replace(machine, cores=2, threads=2))
    texts = []
    for batch in BATCHES:
        task = Task(batch)
        share = simulate(host, task, batches).rate / (2 * host.thread_bytes / task.sample_bytes)
        texts.append(f"{share:.2f} in batches of {batch}")
    return f"without a device, 2 cores, of the copy by 2 threads: {', '.join(texts)}"


def main() -> None:
    """Print parameters and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=100, help="batches of a simulation (100)")
    parser.add_argument(
        "--sample-bytes", type=float, default=Task.sample_bytes, help="of a sample (3.67e6)"
    )
    parser.add_argument("--measure", nargs="+", type=Path, metavar="TAR")
    options = parser.parse_args()
    if options.measure:
        from simulate_host import measured

        for name, value in measured(options.measure).items():
            print(f"{name} measured here: {value:.4g}")
    print(f"parameters: {Machine(disk=DISK)}")
    for name, reason in PARAMETERS.items():
        print(f"- {name}: {reason}")
    print(f"\n{host_text(Machine(), options.batches)}")
    print("\nsamples/s of each device, and the limit\n")
    print(table(Machine(), options.sample_bytes, options.batches))


if __name__ == "__main__":
    main()
