"""The Loader on CUDA devices that are simulated, in interleavings that seeds decide."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace

import pytest
from batches import collect, same
from loader_seams import before_fills, noted_pools
from simulated_cuda import SimulatedCuda, Stream
from simulated_loading import Consumer, scheduled, settle, simulate

from sa1bpack import Collate, Loader, LoaderError, Mix
from sa1bpack.errors import LoaderTimeout
from sa1bpack.loading.devices import CudaDevice

SEEDS = 12  # of each kind
CACHED = {"io": "cached", "mask_layout": "concat_bits", "prefetch": 1}


def run_epochs(ds, monkeypatch, seed: int, **options) -> SimpleNamespace:
    """Epochs on device 1, the first of them left early; returns what there was to see."""
    schedule, cuda = scheduled(monkeypatch, seed)
    consumer, pools = Consumer(ds, cuda, schedule), noted_pools(monkeypatch)
    if seed % 4 == 3:  # then torch pins memory
        cuda.fail["pin"] = RuntimeError("CUDA error: operation not supported")
    cuda.sync_is_an_error = seed % 3 == 1

    made = {"threads": 1 + seed % 4, "prefetch": 1 + seed % 2, "seed": seed, "io": "cached"}
    rows = []

    def train() -> None:
        with Loader(ds, 2, device="cuda:1", mask_layout="concat_bits", **made | options) as batches:
            for number, batch in enumerate(batches):
                consumer.take(batch, 1)
                if number == seed % 3:
                    break
            del batch
            for batch in batches:
                rows.extend(consumer.rows_of(batch, 1))
                consumer.take(batch, 1)
            free = len(pools[0].free)
            assert free == made["prefetch"] + 2, "a buffer is lost"

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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("call", ["enter_thread", "empty", "send", "record", "synchronize"])
def test_an_error_of_a_call_reaches_the_consumer_and_nothing_is_lost(ds, monkeypatch, call, seed):
    """And nothing is wrong afterwards: whatever was sent before the error may still be running."""
    schedule, cuda = scheduled(monkeypatch, seed)
    consumer = Consumer(ds, cuda, schedule)
    failure = RuntimeError(f"CUDA error: {call} failed")

    def train() -> None:
        options = {"threads": 2, "shuffle": True, "seed": seed}
        with Loader(ds, 2, device="cuda:1", **CACHED | options) as batches:
            if call == "enter_thread":
                cuda.fail[call] = failure
            found = iter(batches)
            with pytest.raises(RuntimeError, match=f"{call} failed"):
                for batch in found:
                    consumer.take(batch, 1)
                    cuda.fail.setdefault(call, failure)
                for batch in batches:  # a wait may be the first of the next epoch
                    consumer.take(batch, 1)
            batch = None
            cuda.fail.clear()
            with suppress(LoaderError):
                next(found)
                pytest.fail("the iteration continues after its error")
            rows = []
            for batch in batches:
                rows += consumer.rows_of(batch, 1)
                consumer.take(batch, 1)
            assert sorted(rows) == list(range(len(ds)))

    schedule.run(train)
    assert consumer.check() >= 6
    assert cuda.contexts == {1}


def test_a_copy_that_never_ends_is_a_timeout_that_names_the_device(ds, monkeypatch):
    schedule, cuda = scheduled(monkeypatch, seed=1)
    hangs = [True]
    cuda.wait_until = lambda ready: schedule.block(lambda: ready() and not hangs)

    def train() -> None:
        options = {"threads": 1, "timeout": 5}
        with Loader(ds, 2, device="cuda:1", **CACHED | options) as batches:
            with pytest.raises(LoaderTimeout, match="waiting for the end of a copy to cuda:1"):
                for batch in batches:
                    del batch
            hangs.clear()

    schedule.run(train)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_buffers_of_a_cpu_are_lent_until_their_batch_is_gone_and_none_is_lost(
    ds, monkeypatch, seed
):
    """Whenever batches are dropped, also by nobody's epoch; no thread is left waiting for one."""
    schedule, _ = scheduled(monkeypatch, seed)
    pools = noted_pools(monkeypatch)
    collate = Collate("padded")
    random = Random(seed)
    prefetch = 1 + seed % 3
    held = []
    rows = []

    def check(batch) -> None:
        same(batch, collate(ds.__getitems__(batch["indices"].tolist())))

    def train() -> None:
        options = {"threads": 1 + seed % 4, "prefetch": prefetch, "seed": seed, "io": "cached"}
        with Loader(ds, 2, shuffle=True, **options) as batches:
            for epoch in range(3):
                for number, batch in enumerate(batches):
                    rows.append((epoch, batch["indices"].tolist()))
                    held.append(batch)
                    while len(held) > random.randrange(seed % 4 + 2):
                        check(held.pop(random.randrange(len(held))))
                    del batch
                    if random.random() < 0.3:
                        schedule.time.sleep(1e-3)
                    if epoch == 1 and number == seed % 3:
                        break
            while held:
                check(held.pop())
            for batch in batches:
                check(batch)
                del batch
            settle(schedule)
            [pool] = pools
            pool.refill()
            assert len(pool.free) == prefetch + 2, "a buffer is lost"

    schedule.run(train)
    for epoch in (0, 2):
        drawn = [row for of_epoch, batch in rows if of_epoch == epoch for row in batch]
        assert sorted(drawn) == list(range(len(ds)))
    assert schedule.expired == 0


@pytest.mark.parametrize("seed", range(4))
def test_the_threads_of_a_mix_get_the_buffers_of_all_its_loaders_back(ds, monkeypatch, seed):
    schedule, _ = scheduled(monkeypatch, seed)
    pools = noted_pools(monkeypatch)
    random = Random(seed)
    held = []

    def train() -> None:
        loaders = {name: Loader(ds, 2, shuffle=True, prefetch=1, io="cached") for name in "ab"}
        with Mix(loaders, {"a": 1, "b": 2}, seed=seed, steps=20, threads=1 + seed % 3) as mix:
            for batch in mix:
                held.append(batch)
                del batch
                while len(held) > random.randrange(4):
                    held.pop(random.randrange(len(held)))
                if random.random() < 0.3:
                    schedule.time.sleep(1e-3)
            held.clear()
            settle(schedule)
            for pool in pools:
                pool.refill()
                assert len(pool.free) == 3, "a buffer is lost"

    schedule.run(train)
    assert len(pools) == 2 and schedule.expired == 0


@pytest.mark.parametrize("layout", ["padded", "concat", "padded_bits", "concat_bits"])
@pytest.mark.parametrize("seed", range(2))
def test_no_more_memory_is_sent_to_than_planned_while_the_device_keeps_up(
    ds, monkeypatch, layout, seed
):
    schedule, cuda = scheduled(monkeypatch, seed)
    plans = []

    def train() -> None:
        with Loader(ds, 4, device="cuda", threads=3, prefetch=1 + seed % 2, mask_layout=layout,
                    io="cached") as batches:  # fmt: skip
            plans.append(batches.plan())
            for _ in range(2):
                for batch in batches:  # which holds one while the next is taken
                    assert len(batch["images"])
                    schedule.time.sleep(1e-3)
                    cuda.synchronize()

    schedule.run(train)
    assert 0 < cuda.most[0] <= plans[0].device_bytes


def test_threads_read_on_while_another_thread_captures_a_graph(ds, monkeypatch):
    schedule, cuda = scheduled(monkeypatch, seed=2)
    consumer = Consumer(ds, cuda, schedule)

    def train() -> None:
        options = {"threads": 2, "prefetch": 2}
        with Loader(ds, 2, device="cuda:1", **CACHED | options) as batches:
            for number, batch in enumerate(batches):
                consumer.take(batch, 1)
                if number == 1:
                    with cuda.capture():
                        schedule.time.sleep(1e-3)  # the threads copy and send meanwhile

    schedule.run(train)
    assert consumer.check() == 6 and not cuda.capture_is_lost


@pytest.mark.parametrize("ends", ["closed", "dropped"])
@pytest.mark.parametrize("seed", range(8))
def test_a_loader_that_ends_before_a_capture_does_not_disturb_it(ds, monkeypatch, ends, seed):
    """Its buffers are unpinned when it is closed; of one that is dropped, soon, by a thread."""
    schedule, cuda = scheduled(monkeypatch, seed)
    consumer = Consumer(ds, cuda, schedule)

    def train() -> None:
        batches = Loader(ds, 2, device="cuda:1", threads=2, **CACHED)
        iterated = iter(batches)
        for _ in range(1 + seed % 3):
            consumer.take(next(iterated), 1)
        if ends == "closed":
            batches.close()
            assert cuda.pinned == {}
        del batches, iterated
        with cuda.capture():
            schedule.time.sleep(1e-3)

    schedule.run(train)
    assert consumer.check() == 1 + seed % 3 and not cuda.capture_is_lost
    assert cuda.pinned == {} and cuda.contexts == {1}


@pytest.mark.parametrize("ends", ["complete", "closed", "dropped", "chosen"])
@pytest.mark.parametrize("seed", range(3))
def test_the_threads_of_a_mix_read_for_two_devices(ds, monkeypatch, ends, seed):
    """Whichever switches; no thread waits for ever, and all memory is given back."""
    schedule, cuda = scheduled(monkeypatch, seed)
    consumer = Consumer(ds, cuda, schedule)
    steps = 12 if ends == "complete" else 2 + seed % 9

    def train() -> None:
        loaders = {
            name: Loader(ds, 2, device=f"cuda:{name}", shuffle=True, **CACHED) for name in "01"
        }
        mix = Mix(loaders, {"0": 1, "1": 2}, seed=seed, steps=12, threads=1 + seed % 3)
        iterated = iter(mix)
        for _ in range(steps):
            batch = next(iterated)
            index = int(batch.pop("source"))
            del batch["mix_epoch"], batch["mix_step"]
            consumer.take(batch, index)
            del batch
        if ends == "complete":
            assert next(iterated, None) is None
            assert mix.stats().ended
        elif ends == "chosen":
            mix.set_epoch(3)
            with pytest.raises(LoaderError, match="ended by a new one of the same Mix"):
                next(iterated)
        if ends != "dropped":
            mix.close()
            assert cuda.pinned == {}
        del mix, iterated, loaders

    schedule.run(train)
    assert consumer.check() == steps and schedule.expired == 0
    assert cuda.pinned == {} and cuda.contexts == {0, 1}


class Lagging(SimulatedCuda):
    """A device that runs only when a thread of the host waits for it."""

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        yield


@pytest.mark.parametrize("prefetch", [1, 4])
def test_buffers_are_filled_in_the_order_of_their_copies_and_never_during_one(
    ds, monkeypatch, prefetch
):
    """Newest first, a thread would wait for the copy that was queued last, while buffers whose
    copies have ended lie idle."""
    cuda, filled = Lagging(), []
    simulate(monkeypatch, cuda)

    def noted(batch, data):
        address = data.ctypes.data
        assert not cuda.copying[address]
        if len(batch):  # else only the kernels are compiled
            filled.append(address)

    before_fills(monkeypatch, noted)
    options = {"threads": 1, "prefetch": prefetch}
    with Loader(ds, 1, device="cuda", **CACHED | options) as batches:
        for _ in range(2):
            for batch in batches:
                del batch
    assert len(set(filled)) == prefetch + 2 and len(filled) == 2 * len(ds)
    assert filled[prefetch + 2 :] == filled[: -prefetch - 2]


@pytest.mark.parametrize("taken", [False, True])
def test_memory_of_a_device_that_has_failed_is_kept_and_the_error_is_raised(ds, cuda, taken):
    """To free it, torch would record events, in a place where an error ends the process."""
    with Loader(ds, 2, device="cuda", threads=1) as batches:
        found = iter(batches)
        held = [next(found)]
        cuda.broken = True  # a kernel of the consumer's
        if taken:
            with pytest.raises(RuntimeError, match="device-side assert"):
                held.extend(found)
        del found  # which ends the epoch
        held.clear()
        collect()
    del batches
    collect()


def test_pinned_memory_is_given_back_when_a_loader_is_closed(ds, cuda):
    for size in (4, 2):
        with Loader(ds, size, device="cuda") as batches:
            plan = batches.plan()
            for batch in batches:
                del batch
            assert sum(cuda.pinned.values()) == plan.pinned_bytes
        assert cuda.pinned == {}


def test_a_batch_that_does_not_fit_beside_the_one_before_is_sent_when_that_is_gone(ds, cuda):
    with Loader(ds, 4, device="cuda", threads=1, prefetch=1) as batches:
        rows = []
        cuda.memory = 2 * batches.plan().batch_bytes
        for batch in batches:
            cuda.synchronize()
            rows += batch["indices"].tolist()
            del batch
    assert sorted(rows) == list(range(len(ds)))


def nothing(*arguments) -> None:
    """In place of a step that is left out."""


def forgetting(patch) -> None:
    """Copies that buffers do not know of: they are not waited for, and taken newest first."""
    sent = CudaDevice.send

    def forgotten(self, buffer, located):
        batch = sent(self, buffer, located)
        buffer.event = None
        return batch

    patch.setattr(CudaDevice, "send", forgotten)


SABOTAGE: dict[str, Callable] = {
    "buffers do not know of copies": forgetting,
    "the consumer does not wait": lambda patch: patch.setattr(Stream, "wait_event", nothing),
    "memory is not kept": lambda patch: patch.setattr(SimulatedCuda, "keep", nothing),
    "threads have no device": lambda patch: patch.setattr(CudaDevice, "enter_thread", nothing),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of finalizers
@pytest.mark.parametrize("what", SABOTAGE)
def test_the_simulation_notices_when_a_step_is_left_out(ds, monkeypatch, what):
    noticed, seed = 0, 0
    while noticed < 2 and seed < 60:
        seed += 1
        with monkeypatch.context() as patch:
            SABOTAGE[what](patch)
            try:
                noticed += run_epochs(ds, patch, seed).cuda.contexts != {1}
            except (AssertionError, IndexError):  # rows of garbage
                noticed += 1
    assert noticed == 2
