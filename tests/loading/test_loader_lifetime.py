"""Nothing hangs and nothing leaks: leaving early, ending, forking, collecting, many epochs."""

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from batches import join_readers, readers
from open_files import open_files

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.loading import batch_queue
from sa1bpack.loading.batch_copy import BatchCopy
from sa1bpack.loading.batch_queue import BatchQueue, BufferPool
from sa1bpack.loading.devices import Lease
from sa1bpack.loading.loader import Loader
from sa1bpack.wording import size_text


@pytest.fixture
def ds(packed):
    return open_pack(packed.root)


def run(script: str, root: Path) -> str:
    """Run a script in a process of its own; a hang prints all stacks and fails."""
    # Not dump_traceback_later, whose lock a forked child would wait for forever at exit.
    guard = "import faulthandler, os, signal, sys, threading\nsignal.alarm(60)\n"
    guard += "faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)\n"
    head = "from sa1bpack.dataset.open_pack import open as open_pack\n"
    head += f"from sa1bpack.loading.loader import Loader\nds = open_pack({str(root)!r})\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", guard + head + script],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_leaving_a_loop_early_ends_the_threads(ds):
    loader = Loader(ds, 1)
    for _ in loader:
        break
    assert not readers()
    assert len([None for _ in loader]) == len(ds)


def test_the_next_iteration_is_the_next_epoch_even_after_a_loop_that_was_left(ds):
    with Loader(ds, 4) as loader:
        for _ in loader:
            break
        next(iter(loader))
        assert loader.state_dict()["epoch"] == 1


def test_an_iteration_that_nothing_was_taken_from_uses_no_epoch_and_ends_no_other(ds):
    with Loader(ds, 4) as loader:
        running = iter(loader)
        next(running)
        never, state = iter(loader), loader.state_dict()
        assert len(list(running)) == 2 and state["samples"] == 4
        iter(loader)
        assert not readers() and loader.state_dict()["epoch"] == 1
        loader.load_state_dict(state)
        assert len(list(never)) == 2  # it begins now, at the position of the state
        never = iter(loader)
    with pytest.raises(LoaderError, match="closed"):
        next(never)


def test_a_loader_and_its_iteration_are_collected_with_their_threads(ds):
    loader = Loader(ds, 1, threads=2)
    iterator = iter(loader)
    next(iterator)
    assert len(readers()) == 2
    del loader
    next(iterator)
    del iterator
    gc.collect()
    assert not readers()


def test_a_reference_cycle_does_not_keep_threads(ds):
    loader = Loader(ds, 1)
    loader.myself = loader
    loader.iterator = iter(loader)
    next(loader.iterator)
    del loader
    gc.collect()
    assert not readers()


def test_threads_that_had_started_when_another_was_refused_leave_the_loader_as_it_was(
    ds, monkeypatch
):
    started, start = [], threading.Thread.start

    def refuse_the_second(thread):
        if thread.name.startswith("sa1bpack-reader"):
            started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    with Loader(ds, 1, threads=2, timeout=30) as loader:
        for _ in range(2):
            started.clear()
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse_the_second)
                with pytest.raises(RuntimeError, match="can't start"):
                    next(iter(loader))
            assert not readers()
        assert sum(1 for _ in loader) == len(ds) and loader.state_dict()["epoch"] == 1


def test_an_interrupt_while_a_batch_changes_hands_costs_the_next_epochs_no_buffer(
    ds, monkeypatch, pools
):
    """A pool that lost one at each Ctrl-C would soon have none."""
    take = BatchQueue.take

    def interrupted(self, *arguments):
        take(self, *arguments)
        raise KeyboardInterrupt

    with Loader(ds, 1, threads=1, timeout=30) as loader:
        for _ in range(8):
            with monkeypatch.context() as patch:
                patch.setattr(BatchQueue, "take", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(iter(loader))
        assert sum(1 for _ in loader) == len(ds)
        assert pools[0].free == loader.plan().batches


def test_an_interrupt_anywhere_while_a_buffer_is_lent_or_given_back_leaves_no_lease(
    ds, monkeypatch, pools
):
    """At each call within the functions that do so, one after the other: signals arrive there."""
    lost, left, step = [], [0], 0  # calls until the interrupt; 0 or less once it has come
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_type))
    steps = {
        function.__code__
        for function in (Lease.__init__, Lease.__del__, BufferPool.lend, BufferPool.release)
    }

    def profile(frame, event, _):
        if frame.f_code in steps and event in ("call", "c_return"):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    with Loader(ds, 1, threads=1, timeout=30) as loader:
        while left[0] <= 0:
            left[0], step = step + 1, step + 1
            batches = iter(loader)
            sys.setprofile(profile)
            try:
                next(batches)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            del batches
            assert pools[0].lent == 0
        assert step > 6 and lost
        assert set(lost) <= {KeyboardInterrupt}
        join_readers()
        assert sum(1 for _ in loader) == len(ds)
        assert pools[0].free == loader.plan().batches


def test_two_loaders_run_at_once_without_disturbing_each_other(ds):
    first, second = Loader(ds, 2, seed=1), Loader(ds, 2, seed=2)
    alone = [batch["indices"].tolist() for batch in Loader(ds, 2, seed=2)]
    together = [
        (a["indices"].tolist(), b["indices"].tolist()) for a, b in zip(first, second, strict=True)
    ]
    assert [b for _, b in together] == alone
    assert sorted(row for rows, _ in together for row in rows) == list(range(len(ds)))


def test_a_new_iteration_ends_the_one_before_with_a_message(ds):
    with Loader(ds, 2) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        next(new)
        with pytest.raises(LoaderError, match="ended by a new one"):
            next(old)
        assert next(new) is not None


def test_close_wakes_a_consumer_that_waits(ds, monkeypatch):
    found, waiting, ended = [], threading.Event(), threading.Event()

    class Condition(threading.Condition):
        def wait(self, timeout=None):
            if threading.current_thread().name == "consumer":
                waiting.set()  # under the lock: close() wakes only threads that already wait
            return super().wait(timeout)

    monkeypatch.setattr(batch_queue, "threading", SimpleNamespace(Condition=Condition))
    monkeypatch.setattr(BatchCopy, "copy", lambda *arguments: ended.wait(60))
    monkeypatch.setattr("sa1bpack.loading.loader.CLOSE_SECONDS", 0.0)
    loader = Loader(ds, 2)

    def wait():
        try:
            next(iter(loader))
        except LoaderError as error:
            found.append(str(error))

    thread = threading.Thread(target=wait, name="consumer")
    thread.start()
    assert waiting.wait(30)
    loader.close()
    thread.join(30)
    ended.set()
    assert not thread.is_alive() and "close()" in found[0]


def test_a_closed_loader_reports_it(ds):
    loader = Loader(ds, 2)
    loader.close()
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        iter(loader)


def test_batches_that_are_kept_never_change_however_many_they_are(ds, caplog):
    """`list(loader)` is ordinary in PyTorch; the memory that it takes is logged once."""
    with Loader(ds, 1, ahead=2, order="sequential") as loader:
        kept = list(loader)
        again = list(loader)
        plan = loader.plan()
    for batches in (kept, again):
        for row, batch in enumerate(batches):
            assert np.array_equal(batch["images"][0].numpy(), ds[row]["image"])
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "hold all 4 buffers" in record.message and "clone()" in record.message
    size = size_text(plan.batch_bytes)
    assert size in record.message and f"{size} for each further batch that you keep" in str(plan)


def test_batches_are_in_the_buffers_and_nowhere_else(ds):
    with Loader(ds, 1, ahead=1, masks="padded_bits") as loader:
        addresses = {batch["images"].data_ptr() for _ in range(4) for batch in loader}
    assert len(addresses) <= 3


def open_files_of(root: Path) -> list[str]:
    """The files under a folder that this process has open."""
    return [path for _, path in open_files() if path.startswith(str(root))]


@pytest.fixture
def pools(monkeypatch) -> list[BufferPool]:
    """The pools of buffers that loaders make."""
    made = []

    def noted(*arguments):
        made.append(BufferPool(*arguments))
        return made[-1]

    monkeypatch.setattr("sa1bpack.loading.loader.BufferPool", noted)
    return made


@pytest.fixture
def no_collection():
    """Nothing in a reference cycle is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("closed", [True, False])
def test_leaving_early_releases_buffers_and_files_without_a_garbage_collection(
    packed, no_collection, pools, closed
):
    ds = open_pack(packed.root)
    for _ in range(20):
        loader = Loader(ds, 1, threads=3)
        for batch in loader:  # noqa: B007
            break
        pool = weakref.ref(pools.pop())
        if closed:
            loader.close()
        del loader, batch
        assert pool() is None
    assert 0 < len(open_files_of(packed.root)) <= 2 * len(ds.shards)  # they stay with the shards
    del ds
    assert open_files_of(packed.root) == []


def test_an_iterator_that_is_kept_keeps_no_buffers_of_a_closed_loader(ds, no_collection, pools):
    loader = Loader(ds, 1)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert (pools[0].free, pools[0].lent) == (0, 0)
    with pytest.raises(LoaderError, match="ended by"):
        next(iterator)


@pytest.mark.parametrize("kind", ["cut", "unopened"])
def test_a_read_error_that_is_kept_keeps_no_buffers(
    pack_writer, tmp_path, no_collection, pools, monkeypatch, kind
):
    pack_writer(tmp_path / "pack")
    loader = Loader(open_pack(tmp_path / "pack"), 1, order="sequential", threads=1)
    copy = BatchCopy.copy

    def cut_and_copy(batch, *arguments):
        """Cut the files by the only thread that reads them: within a copy it would be a SIGBUS."""
        if batch.indices[0] == 1:
            for image in (tmp_path / "pack").rglob("image/c.*"):
                os.truncate(image, 0)
        copy(batch, *arguments)

    if kind == "unopened":
        os.truncate(tmp_path / "pack/shards/sa_000001-000/image/c.0.0.0.0", 100)
    else:
        monkeypatch.setattr(BatchCopy, "copy", cut_and_copy)
    iterator = iter(loader)
    next(iterator)
    pool = weakref.ref(pools.pop())
    with pytest.raises(ReadError) as found:
        list(iterator)
    loader.close()
    assert found.value.row >= 1 and pool() is None


def test_tensors_of_a_batch_other_than_images_and_masks_hold_no_buffer(ds):
    with Loader(ds, 1, ahead=1, order="sequential") as loader:
        kept = [
            {key: value for key, value in batch.items() if key not in ("images", "masks")}
            for batch in loader
        ]
    assert [batch["indices"].item() for batch in kept] == list(range(len(ds)))
    ids = [ds[row]["annotation_ids"].tolist() for row in range(len(ds))]
    assert [batch["annotation_ids"][0].tolist() for batch in kept] == ids


def test_fifty_epochs_leave_threads_files_and_shared_memory_as_they_were(ds, packed):
    def state() -> tuple[list, list[str], list[str]]:
        gc.collect()
        files = sorted(open_files_of(packed.root))
        own = f"_{os.getpid()}_"  # torch names its files so; other processes have theirs
        shared = sorted(path.name for path in Path("/dev/shm").iterdir() if own in path.name)
        return readers(), files, shared

    def epochs(count: int) -> None:
        with Loader(ds, 3, threads=3, masks="padded") as loader:
            for epoch in range(count):
                for number, _ in enumerate(loader):
                    if epoch % 3 == 1 and number == 1:
                        break

    epochs(2)
    before = state()
    assert before[0] == [] and before[1]
    epochs(50)
    assert state() == before


def test_the_interpreter_ends_with_iterations_that_were_begun(packed):
    script = """
held = [iter(Loader(ds, 1, threads=2)) for _ in range(3)]   # never taken from, half used, closed
batch = next(held[1])
cycle = Loader(ds, 1); cycle.iterator = iter(cycle); cycle.batch = next(cycle.iterator)
class Late:
    def __del__(self, threads=threading): print("late", flush=True)
late = Late()
print("end", flush=True)
"""
    assert run(script, packed.root).startswith("end\n")


def test_the_interpreter_ends_with_files_that_are_open(packed):
    """Of a pack that a module still has when Python tears everything down."""
    script = """
import sa1bpack.loading.shard_files as files
loader = Loader(ds, 1)
assert sum(1 for _ in loader) == len(ds)
files.dataset = ds
print(sum("image/c" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
          if os.path.exists(f"/proc/self/fd/{fd}")))
"""
    assert int(run(script, packed.root)) > 0


def test_an_exception_that_ends_the_program_is_shown(packed):
    script = """
try:
    for batch in Loader(ds, 1):
        raise KeyError("mine")
except KeyError as error:
    print(error)
for batch in Loader(ds, 1):
    sys.exit(0)
"""
    assert run(script, packed.root) == "'mine'\n"


def test_a_forked_child_gets_an_error_or_threads_of_its_own(packed):
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: fork with threads, on purpose
loader = Loader(ds, 1, order="sequential")
iterator = iter(loader)
batch = next(iterator)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        next(iterator)
    except Exception as error:
        assert "forked" in str(error), error
    else:
        os._exit(3)
    del batch  # its buffer belongs to the parent
    rows = [batch["indices"].item() for batch in loader]
    assert rows == list(range(len(ds))), rows
    del iterator
    assert threading.active_count() == 1
    loader.close()
    print("child", flush=True)
    sys.exit(0)  # with all that Python does at its end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
rows = [batch["indices"].item() for batch in iterator]
assert rows == list(range(1, len(ds))), rows
print("parent")
"""
    assert run(script, packed.root) == "child\nparent\n"
