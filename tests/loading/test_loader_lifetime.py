"""Nothing hangs and nothing leaks: leaving early, ending, forking, collecting, many epochs."""

import gc
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from batches import readers
from failing_training import failing_training
from forked_programs import forked_python
from loader_seams import around_takes, before_copies
from reading_packs import write_pack
from system import open_files

from sa1bpack import Loader, LoaderError, ReadError
from sa1bpack import open as open_pack
from sa1bpack.finalizers import settle


def run(script: str, root: Path) -> str:
    """Run a script in a process of its own; a hang prints all stacks and fails."""
    # Not dump_traceback_later, whose lock a forked child would wait for forever at exit.
    guard = "import faulthandler, os, signal, sys, threading\nsignal.alarm(60)\n"
    guard += "faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)\n"
    head = "from sa1bpack.finalizers import settle\n"
    head += f"from sa1bpack import Loader, open as open_pack\nds = open_pack({str(root)!r})\n"
    return forked_python(guard + head + script, action="error")


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
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(iter(loader))


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


def test_an_interrupt_while_a_batch_changes_hands_costs_the_next_epochs_no_buffer(
    ds, monkeypatch, pools
):
    """A pool that lost one at each Ctrl-C would soon have none."""

    def interrupted(take, *arguments):
        take(*arguments)
        raise KeyboardInterrupt

    with Loader(ds, 1, threads=1, timeout=30) as loader:
        for _ in range(8):
            with monkeypatch.context() as patch:
                around_takes(patch, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    next(iter(loader))
        assert sum(1 for _ in loader) == len(ds)
        [pool] = pools
        pool.refill()  # as the next epoch does
        assert len(pool.free) == loader.plan().batches


def test_batches_that_are_kept_never_change_however_many_they_are(ds, caplog):
    """`list(loader)` is ordinary in PyTorch; the memory that it takes is logged once."""
    with Loader(ds, 1, prefetch=2) as loader:
        kept = list(loader)
        again = list(loader)
        plan = loader.plan()
    for batches in (kept, again):
        for row, batch in enumerate(batches):
            assert np.array_equal(batch["images"][0].numpy(), ds[row]["image"])
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "hold all 4 buffers" in record.message and "clone()" in record.message
    size = f"{plan.batch_bytes / 1e3:.3g} kB"
    assert size in record.message and f"{size} for each further batch that you keep" in str(plan)


def open_files_of(root: Path) -> list[str]:
    """The files under a folder that this process has open."""
    return [path for _, path in open_files() if path.startswith(str(root))]


@pytest.fixture
def no_collection():
    """Nothing in a reference cycle is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("closed", [True, False])
def test_leaving_early_releases_buffers_and_files_without_a_garbage_collection(
    packed, no_collection, memory, closed
):
    before = len(open_files_of(packed.root))  # of datasets that other tests have left
    ds = open_pack(packed.root)
    for _ in range(5):
        loader = Loader(ds, 1, threads=3)
        for batch in loader:  # noqa: B007
            break
        if closed:
            loader.close()
        del loader, batch
        settle()
        assert memory and not any(one() is not None for one in memory)
    opened = len(open_files_of(packed.root)) - before
    assert 0 < opened <= 2 * len(ds.shards)  # they stay with the shards
    del ds
    assert len(open_files_of(packed.root)) == before


@pytest.mark.parametrize("kind", ["cut", "unopened"])
def test_a_read_error_that_is_kept_keeps_no_buffers(
    tmp_path, no_collection, memory, monkeypatch, kind
):
    write_pack(tmp_path / "pack")
    loader = Loader(open_pack(tmp_path / "pack"), 1, threads=1)

    def cut(batch):
        """Cut the files by the only thread that reads them: within a copy it would be a SIGBUS."""
        if batch.ordered.indices[0] == 1:
            for image in (tmp_path / "pack").rglob("image/c.*"):
                os.truncate(image, 0)

    if kind == "unopened":
        os.truncate(tmp_path / "pack/shards/sa_000001-000/image/c.0.0.0.0", 100)
    else:
        before_copies(monkeypatch, cut)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(ReadError) as found:
        list(iterator)
    loader.close()
    settle()
    assert found.value.row >= 1 and memory and not any(one() is not None for one in memory)


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


def test_the_garbage_collector_may_free_batches_and_iterations_at_any_point(packed):
    """Also while a thread has the lock of the buffers: it collects at almost every allocation."""
    script = """
import gc
gc.set_threshold(1)
loader = Loader(ds, 1, threads=2, prefetch=1, timeout=30)
for _ in range(60):
    iterator = iter(loader)
    cycle = [iterator, next(iterator), next(iterator)]
    cycle.append(cycle)
    del iterator, cycle
gc.set_threshold(700)
print(sum(len(batch["images"]) for batch in loader))
"""
    assert run(script, packed.root) == "12\n"


def test_a_forked_child_gets_an_error_or_threads_of_its_own(packed):
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: fork with threads, on purpose
loader = Loader(ds, 1)
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
    settle()
    others = {thread.name for thread in threading.enumerate()} - {"sa1bpack-finalizers"}
    assert others == {threading.current_thread().name}, others
    loader.close()
    print("child", flush=True)
    sys.exit(0)  # with all that Python does at its end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
rows = [batch["indices"].item() for batch in iterator]
assert rows == list(range(1, len(ds))), rows
print("parent")
"""
    assert run(script, packed.root) == "child\nparent\n"


@pytest.mark.parametrize("closes", [True, False])
def test_an_error_within_a_loop_ends_a_program_with_its_traceback(packed, closes):
    assert "Expected Tensor" in failing_training(packed.root, "cpu", closes)
