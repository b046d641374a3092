"""The Loader on CUDA devices that are simulated, in interleavings that seeds decide."""

import os
import pickle
import random
import shutil
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batches import tensors_of
from schedules import Schedule
from simulated_cuda import Event, SimulatedCuda, Stream

from sa1bpack.batch.collate import Collate
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import LoaderError, LoaderTimeout, OptionError, ReadError
from sa1bpack.loading import devices, epoch, iteration, loader, reader_threads
from sa1bpack.loading.devices import Cuda
from sa1bpack.loading.epoch import BufferPool
from sa1bpack.loading.loader import Loader

SEEDS = 30  # of each kind
LATE = ("images", "masks")  # of flat bits: the tensors that are part of what was sent


@pytest.fixture
def cuda(monkeypatch) -> SimulatedCuda:
    """Two devices in place of CUDA's; they run when somebody waits."""
    made = SimulatedCuda(devices=2)
    monkeypatch.setattr(devices, "CUDA", made)
    # Whoever polls an event lets the devices run.
    monkeypatch.setattr(devices.time, "sleep", lambda seconds: made.pending() and made.advance())
    return made


@pytest.fixture
def ds(packed):
    return open_pack(packed.root)


def scheduled(monkeypatch, seed: int, device_count: int = 2) -> tuple[Schedule, SimulatedCuda]:
    """Simulated devices, and threads that switch where the seed says."""
    schedule = Schedule(seed)
    made = SimulatedCuda(device_count, seed, schedule.switch)
    schedule.outside = made.pending, made.advance
    schedule.patch(monkeypatch, devices, epoch, iteration, reader_threads)
    monkeypatch.setattr(devices, "CUDA", made)
    return schedule, made


class Consumer:
    """A training loop: kernels that read each batch later, and batches that are kept a while."""

    def __init__(self, ds, cuda: SimulatedCuda, schedule: Schedule, layout: str = "flat_bits"):
        self.ds, self.cuda, self.schedule = ds, cuda, schedule
        self.collate = Collate(layout)
        self.random = random.Random(schedule.random.random())
        self.read: list[tuple[np.ndarray, dict, dict]] = []
        self.kept: list[dict] = []

    def take(self, batch: dict, index: int) -> None:
        late = {key: [] for key in LATE}
        for key, found in late.items():
            self.cuda.later(index, batch[key], found)
        soon = {key: tensor.clone() for key, tensor in tensors_of(batch).items() if key not in LATE}
        self.read.append((batch["indices"].numpy().copy(), late, soon))
        if self.random.random() < 0.3:
            self.kept.append(batch)
        if self.kept and self.random.random() < 0.4:
            del self.kept[0]
        if self.random.random() < 0.2:
            self.schedule.time.sleep(1e-3)

    def check(self) -> int:
        """Compare all that was read with the dataset; returns the number of batches."""
        self.kept.clear()
        self.cuda.synchronize()
        for rows, late, soon in self.read:
            expected = self.collate([self.ds[row] for row in rows.tolist()])
            assert set(late) | set(soon) == set(expected)
            for key, found in soon.items():
                assert torch.equal(found, expected[key]), key
            for key, [found] in late.items():
                assert np.array_equal(found, expected[key].numpy()), key
        return len(self.read)


def run_epochs(ds, monkeypatch, seed: int, **options) -> SimpleNamespace:
    """Epochs on device 1, the first of them left early; returns what there was to see."""
    schedule, cuda = scheduled(monkeypatch, seed)
    consumer, pools = Consumer(ds, cuda, schedule), []

    def noted(*arguments):
        pools.append(BufferPool(*arguments))
        return pools[-1]

    monkeypatch.setattr(loader, "BufferPool", noted)
    made = {"threads": 1 + seed % 4, "ahead": 1 + seed % 2, "seed": seed, "io": "cached"}
    rows = []

    def train() -> None:
        with Loader(ds, 2, device="cuda:1", masks="flat_bits", **made | options) as batches:
            for number, batch in enumerate(batches):
                consumer.take(batch, 1)
                if number == seed % 3:
                    break
            del batch
            for batch in batches:
                rows.extend(batch["indices"].tolist())
                consumer.take(batch, 1)
            free = pools[0].free
            assert free == made["ahead"] + 2, "a buffer is lost"

    schedule.run(train)
    assert sorted(rows) == list(range(len(ds)))
    assert consumer.check() == 6 + 1 + seed % 3
    return SimpleNamespace(schedule=schedule, cuda=cuda)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_batches_are_right_in_every_interleaving_of_threads_and_devices(ds, monkeypatch, seed):
    """Buffers are filled again only after their copies, memory of the device is used again only
    after its kernels, no wait is left to its timeout, and only the right device is touched."""
    found = run_epochs(ds, monkeypatch, seed)
    assert found.cuda.contexts == {1}
    assert found.schedule.expired == 0


def test_a_seed_makes_the_same_interleaving_again(ds, monkeypatch):
    runs = []
    for _ in range(2):
        steps: list[str] = []
        with monkeypatch.context() as patch:
            chosen = Schedule.chosen

            def noted(self, chosen=chosen, steps=steps):
                task = chosen(self)
                steps.append(task.name if task else "")
                return task

            patch.setattr(Schedule, "chosen", noted)
            run_epochs(ds, patch, seed=3)
        runs.append(steps)
    assert runs[0] == runs[1] and len(set(runs[0])) == 6 and len(runs[0]) > 100


def nothing(*arguments) -> None:
    """In place of a step that is left out."""


SABOTAGE: dict[str, Callable] = {
    "buffers are not waited for": lambda patch: patch.setattr(Cuda, "wait", nothing),
    "the consumer does not wait": lambda patch: patch.setattr(Stream, "wait_event", nothing),
    "memory is not kept": lambda patch: patch.setattr(SimulatedCuda, "keep", nothing),
    "threads have no device": lambda patch: patch.setattr(Cuda, "enter_thread", nothing),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_the_simulation_notices_when_a_step_is_left_out(ds, monkeypatch, what):
    noticed = 0
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            SABOTAGE[what](patch)
            try:
                noticed += run_epochs(ds, patch, seed).cuda.contexts != {1}
            except (AssertionError, IndexError):  # rows of garbage
                noticed += 1
    assert noticed >= 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("call", ["enter_thread", "empty", "send", "record", "query"])
def test_an_error_of_a_call_reaches_the_consumer_and_nothing_is_lost(ds, monkeypatch, call, seed):
    """And nothing is wrong afterwards: whatever was sent before the error may still be running."""
    schedule, cuda = scheduled(monkeypatch, seed)
    consumer = Consumer(ds, cuda, schedule)
    failure = RuntimeError(f"CUDA error: {call} failed")

    def train() -> None:
        options = {"threads": 2, "ahead": 1, "seed": seed, "io": "cached", "masks": "flat_bits"}
        with Loader(ds, 2, device="cuda:1", **options) as batches:
            if call == "enter_thread":
                cuda.fail[call] = failure
            found = iter(batches)
            with pytest.raises(RuntimeError, match=f"{call} failed"):
                for batch in found:
                    consumer.take(batch, 1)
                    cuda.fail.setdefault(call, failure)
                for batch in batches:  # a query may be the first of the next epoch
                    consumer.take(batch, 1)
            batch = None
            cuda.fail.clear()
            with suppress(LoaderError):
                next(found)
                pytest.fail("the iteration continues after its error")
            rows = []
            for batch in batches:
                rows += batch["indices"].tolist()
                consumer.take(batch, 1)
            assert sorted(rows) == list(range(len(ds)))

    schedule.run(train)
    assert consumer.check() >= 6
    assert cuda.contexts == {1}


def test_a_copy_that_never_ends_is_a_timeout_that_names_the_device(ds, monkeypatch):
    schedule, _ = scheduled(monkeypatch, seed=1)
    monkeypatch.setattr(Event, "query", lambda self: False)  # the device hangs

    def train() -> None:
        options = {"threads": 1, "ahead": 1, "timeout": 5, "masks": "flat_bits", "io": "cached"}
        with Loader(ds, 2, device="cuda:1", **options) as batches:
            for batch in batches:
                del batch

    with pytest.raises(LoaderTimeout, match="a copy to cuda:1"):
        schedule.run(train)


@pytest.mark.parametrize("seed", range(10))
def test_the_same_code_lends_the_buffers_of_a_cpu(ds, monkeypatch, seed):
    schedule, _ = scheduled(monkeypatch, seed)
    collate, held, rows = Collate("padded"), [], []

    def check(batch) -> None:
        expected = collate([ds[row] for row in batch["indices"].tolist()])
        for key, tensor in expected.items():
            assert torch.equal(batch[key], tensor), key

    def train() -> None:
        with Loader(ds, 2, threads=1 + seed % 4, ahead=1, seed=seed, io="cached") as batches:
            for _ in range(2):
                for batch in batches:
                    rows.extend(batch["indices"].tolist())
                    held.append(batch)
                    if len(held) > seed % 3:
                        check(held.pop(0))
                    del batch
            while held:
                check(held.pop())

    schedule.run(train)
    assert sorted(rows) == sorted(2 * list(range(len(ds)))) and schedule.expired == 0


# ------------------------------------------------------------------------------------ which device


def first_device(batches: Loader, cuda: SimulatedCuda) -> int:
    """The device that the first batch of an iteration was sent to."""
    before = dict(cuda.most)
    cuda.most.clear()
    next(iter(batches))
    [index] = cuda.most
    cuda.most.update(before)
    return index


def test_cuda_is_the_device_that_is_current_when_an_iteration_begins(ds, cuda):
    with Loader(ds, 2, device="cuda") as batches:
        assert cuda.contexts == set()  # made before the process has chosen its device
        assert "cuda, " in repr(batches)
        cuda.thread.index = 1
        assert first_device(batches, cuda) == 1 and cuda.contexts == {1}
        sent = pickle.loads(pickle.dumps(batches))  # to a process with another device
        cuda.thread.index = 0
        with sent:
            assert first_device(sent, cuda) == 0
        assert first_device(batches, cuda) == 0


def test_an_index_is_the_device_whatever_is_current(ds, cuda):
    with pickle.loads(pickle.dumps(Loader(ds, 2, device="cuda:1"))) as batches:
        assert first_device(batches, cuda) == 1
    assert cuda.contexts == {1} and cuda.thread.index == 0


def test_a_device_that_is_not_there_is_refused_before_cuda_is_used(ds, cuda):
    with pytest.raises(OptionError, match=r"device is 'cuda:2', but there are 2 CUDA devices"):
        Loader(ds, 2, device="cuda:2")
    cuda.devices = 0
    with pytest.raises(OptionError, match="finds no CUDA device; use device='cpu'"):
        Loader(ds, 2, device="cuda")
    assert cuda.contexts == set()


def test_epochs_share_one_stream_because_memory_is_used_again_by_its_own(ds, cuda):
    with Loader(ds, 2, device="cuda") as batches:
        for _ in range(5):
            for batch in batches:
                del batch
    assert len(cuda.streams) == 3  # the default ones, and one


# ------------------------------------------------------------------------- memory that is not there


def test_missing_pinned_memory_is_an_error_with_the_plan_and_the_remedy(ds, cuda):
    with Loader(ds, 4, device="cuda") as batches:
        cuda.pins = 2 * batches.plan().batch_bytes
        with pytest.raises(LoaderError, match=r"no memory for 4 batches at once.*lower batch_size"):
            next(iter(batches))
        cuda.pins = None
        assert sum(len(batch["images"]) for batch in batches) == len(ds)


def test_any_other_error_of_pinning_is_not_called_missing_memory(ds, cuda):
    with Loader(ds, 4, device="cuda") as batches:
        cuda.fail["pinned"] = RuntimeError("CUDA error: unspecified launch failure")
        with pytest.raises(RuntimeError, match=r"^CUDA error: unspecified launch failure$"):
            next(iter(batches))


def test_missing_memory_of_the_device_is_an_error_with_the_remedy(ds, cuda):
    with Loader(ds, 4, device="cuda:1") as batches:
        cuda.memory = 1000
        with pytest.raises(
            LoaderError, match=r"cuda:1 has no memory for a batch of .*lower batch_size.*Tried to"
        ):
            next(iter(batches))
        cuda.memory = None
        assert sum(len(batch["images"]) for batch in batches) == len(ds)


@pytest.mark.parametrize("layout", ["padded", "flat", "padded_bits", "flat_bits"])
@pytest.mark.parametrize("seed", range(5))
def test_no_more_memory_is_sent_to_than_planned_while_the_device_keeps_up(
    ds, monkeypatch, layout, seed
):
    schedule, cuda = scheduled(monkeypatch, seed)
    plans = []

    def train() -> None:
        with Loader(ds, 4, device="cuda", threads=3, ahead=1 + seed % 2, masks=layout,
                    io="cached") as batches:  # fmt: skip
            plans.append(batches.plan())
            for _ in range(2):
                for batch in batches:  # which holds one while the next is taken
                    assert len(batch["images"])
                    schedule.time.sleep(1e-3)
                    cuda.synchronize()

    schedule.run(train)
    assert 0 < cuda.most[0] <= plans[0].device_bytes


@pytest.mark.parametrize("stored", [(0, 16), (-2, 16), (16, 129), (2**31 - 1, 16)])
def test_sizes_of_planes_are_checked_before_the_device_uses_them(
    layout_packs, tmp_path, cuda, stored
):
    """There, an index outside the planes is an assertion that loses the context."""
    root = tmp_path / "pack"
    shutil.copytree(layout_packs("pad", "yuv420"), root)
    path = next(next(root.glob("shards/*-000/size")).glob("c.*"))
    sizes = np.memmap(path, np.int32, mode="r+")
    sizes[6:8] = stored
    sizes.flush()
    with (
        Loader(open_pack(root), 6, device="cuda", order="sequential") as batches,
        pytest.raises(ReadError, match=r"/size: sides must be .*at most 128"),
    ):
        next(iter(batches))
    assert cuda.most == {}  # nothing was sent


# ------------------------------------------------------------------------------ what a batch shares


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_small_tensors_do_not_hold_the_pixels(ds, cuda, device):
    with Loader(ds, 4, device=device, masks="flat_bits") as batches:
        batch = next(iter(batches))
        pixels = batch["images"].untyped_storage()
        small = [tensor for key, tensor in tensors_of(batch).items() if key not in LATE]
        assert len(small) > 5
        for tensor in small:
            storage = tensor.untyped_storage()
            assert storage.data_ptr() != pixels.data_ptr()
            assert storage.nbytes() < 4096 < pixels.nbytes()
        if device == "cuda":
            batches.close()
            cuda.synchronize()
            del tensor, storage, pixels, batch
            cuda.synchronize()
            cuda.collect()
            assert cuda.live[0] == 0 and len(small[0])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("changed", ["images", "sizes"])
def test_a_change_of_one_tensor_is_none_of_another(ds, cuda, device, changed):
    """Autograd refuses a tensor that it saved if the tensor, or what it is a view of, changed."""
    with Loader(ds, 4, device=device, masks="flat_bits") as batches:
        batch = next(iter(batches))
    for key, tensor in tensors_of(batch).items():
        if key == changed or not tensor.dtype.is_floating_point:
            continue
        weight = torch.ones_like(tensor, requires_grad=True)
        loss = (weight * tensor).sum()
        batch[changed].add_(1)
        loss.backward()
        assert torch.equal(weight.grad, tensor), key


def test_a_default_device_does_not_move_the_memory_of_the_host(ds, cuda):
    collate = Collate("padded")
    for device in ("cpu", "cuda"):
        with Loader(ds, 4, device=device) as batches:
            torch.set_default_device("meta")
            try:
                found = [tensors_of(batch) for batch in batches]
            finally:
                torch.set_default_device(None)
            for batch in found:
                expected = collate([ds[row] for row in batch["indices"].tolist()])
                for key, tensor in expected.items():
                    assert torch.equal(batch[key], tensor), (device, key)


# --------------------------------------------------------------------------------- graphs and forks


def test_threads_read_on_while_another_thread_captures_a_graph(ds, monkeypatch):
    schedule, cuda = scheduled(monkeypatch, seed=2)
    consumer = Consumer(ds, cuda, schedule)

    def train() -> None:
        options = {"threads": 2, "ahead": 2, "io": "cached", "masks": "flat_bits"}
        with Loader(ds, 2, device="cuda:1", **options) as batches:
            for number, batch in enumerate(batches):
                consumer.take(batch, 1)
                if number == 1:
                    with cuda.capture():
                        schedule.time.sleep(1e-3)  # the threads copy and send meanwhile

    schedule.run(train)
    assert consumer.check() == 6 and not cuda.capture_is_lost


def test_without_their_own_mode_the_threads_would_lose_the_capture(ds, cuda):
    with cuda.capture():
        errors = []

        def other() -> None:
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                cuda.event().query()
            cuda.enter_thread(0)
            errors.append(cuda.event().query())

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert errors == [True] and cuda.capture_is_lost


def test_a_batch_taken_while_its_stream_is_captured_is_refused_by_name(ds, cuda):
    with Loader(ds, 2, device="cuda") as batches:
        found = iter(batches)
        next(found)
        with cuda.capture(), pytest.raises(LoaderError, match="while a CUDA graph is captured"):
            next(found)
        assert batches.state_dict()["samples"] == 2  # that batch is still to come


@contextmanager
def forked_child():
    """The number 0 in a child, whose exit code must be 0; in the parent the child's id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        child = os.fork()
    if child:
        yield child
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        return
    code = 1
    try:
        yield 0
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def test_a_forked_child_frees_no_memory_of_cuda(ds, cuda):
    """torch would record events to free it, and that failure ends the process."""
    batches = Loader(ds, 2, device="cuda", threads=1)
    found = iter(batches)
    held = next(found)
    with forked_child() as child:
        if child == 0:
            batches.close()
            held.clear()
            del found, held, batches
    held = None
    assert sum(len(batch["images"]) for batch in batches) == len(ds)
    batches.close()


def test_a_forked_child_is_told_that_it_cannot_use_cuda(ds, cuda):
    with Loader(ds, 2, device="cuda", threads=1) as batches:
        next(iter(batches))
        with forked_child() as child:
            if child == 0:
                with pytest.raises(LoaderError, match=r"forked from one that had used CUDA.*spawn"):
                    next(iter(batches))


def test_a_loader_that_was_not_used_before_the_fork_works_in_the_child(ds, monkeypatch):
    made = SimulatedCuda(devices=1)
    monkeypatch.setattr(devices, "CUDA", made)
    monkeypatch.setattr(devices.time, "sleep", lambda seconds: made.pending() and made.advance())
    batches = Loader(ds, 2, device="cuda")
    with forked_child() as child:
        if child == 0:
            made.process = os.getpid()
            assert sum(len(batch["images"]) for batch in batches) == len(ds)
            batches.close()
    assert made.contexts == set()
