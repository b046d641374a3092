"""The Loader with a CUDA device; `benchmarks/gpu.py` runs these where there is one."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from batches import LAYOUTS, same, tensors_of
from commands import python
from failing_training import failing_training
from made_batches import RELATIONS
from memory_maps import map_flags
from sync_debug import waiting_is_an_error

from sa1bpack import Collate, Loader, LoaderError
from sa1bpack import open as open_pack
from sa1bpack.loading.devices import device_here, open_device

WITH_RELATIONS = pytest.mark.parametrize("relations", [(), tuple(RELATIONS)], ids=["", "relations"])

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_masks", [None, 3])
def test_batches_on_cuda_are_those_of_collate(packed, layout, max_masks):
    ds = open_pack(packed.root)
    collate = Collate(layout, max_masks=max_masks)
    with Loader(ds, 5, device="cuda", mask_layout=layout, max_masks=max_masks) as loader:
        for _ in range(3):
            for batch in loader:
                expected = collate(ds.__getitems__(batch["indices"].tolist()))
                same(batch, expected)
                assert all(tensor.is_cuda for tensor in tensors_of(batch).values())


def test_the_consumers_own_stream_may_be_any(packed):
    ds = open_pack(packed.root)
    stream = torch.cuda.Stream()
    sums = []
    with Loader(ds, 2, device="cuda") as loader, torch.cuda.stream(stream):
        for batch in loader:
            torch.cuda._sleep(2_000_000)  # the device lags the host
            sums.append(batch["images"].long().sum())
            del batch
    stream.synchronize()
    expected = [sum(int(ds[row]["image"].astype(np.int64).sum()) for row in rows)
           for rows in np.arange(len(ds)).reshape(-1, 2)]  # fmt: skip
    assert [int(value) for value in sums] == expected


def test_a_buffer_is_not_reused_before_its_copy_is_done(packed):
    device = device_here(open_device("cuda"))
    buffer = device.allocate(1 << 20)
    assert buffer.pinned.is_pinned()
    buffer.event = event = torch.cuda.Event(blocking=True)
    torch.cuda._sleep(1_000_000_000)
    buffer.event.record()
    assert not event.query()
    device.wait(buffer)
    assert event.query() and buffer.event is None


def test_pinned_memory_is_in_no_forked_child():
    buffer = device_here(open_device("cuda")).allocate(5 << 20)
    if not buffer.streams and buffer.pinned.untyped_storage().nbytes() > 6 << 20:
        pytest.skip("CUDA cannot pin memory of this process")
    for address in (buffer.pinned.data_ptr(), buffer.pinned.data_ptr() + len(buffer.bytes) - 1):
        assert "dc" in map_flags(address)


def test_a_loader_is_closed_where_waiting_for_a_stream_is_an_error(packed, caplog):
    """Its copies have ended, and its memory is given back."""
    loader = Loader(open_pack(packed.root), 2, device="cuda")
    batches = iter(loader)
    next(batches)
    with waiting_is_an_error():
        loader.close()
        del batches, loader
        gc.collect()
    assert [record for record in caplog.records if "are kept" in record.message] == []


@WITH_RELATIONS  # which take a workspace of cuBLAS
def test_the_plan_states_pinned_and_device_memory(packed, relations):
    ds = open_pack(packed.root)
    loader = Loader(ds, 4, device="cuda", mask_layout="padded", relations=relations)
    plan = loader.plan()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        for _ in loader:
            torch.cuda.synchronize()  # the device keeps up
    loader.close()
    assert plan.pinned_bytes == plan.host_bytes >= plan.batches * plan.batch_bytes
    assert torch.cuda.max_memory_allocated() - before <= plan.device_bytes


@pytest.mark.parametrize("layout", LAYOUTS)
@WITH_RELATIONS
def test_taking_a_batch_does_not_wait_for_the_device(packed, layout, relations):
    """Nor the last one, which is filled up."""
    options = {"mask_layout": layout, "relations": relations, "pad_last": True}
    with Loader(open_pack(packed.root), 5, device="cuda", **options) as loader:
        batches = iter(loader)
        next(batches)
        with waiting_is_an_error():
            assert sum(1 for _ in batches) == 2


def test_threads_read_on_while_a_graph_is_captured_in_the_default_mode(packed):
    """They wait for events and allocate memory, which that mode forbids to other threads."""
    ds, side = open_pack(packed.root), torch.ones(1000, device="cuda")
    with Loader(ds, 1, device="cuda", threads=2, prefetch=1) as loader:
        for batch in loader:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                doubled = side * 2
                threading.Event().wait(0.05)  # the threads go as far as they can
            graph.replay()
            assert torch.equal(batch["images"][0].cpu(), torch.from_numpy(
                ds[int(batch["indices"][0])]["image"].copy()))  # fmt: skip
    assert doubled.sum().item() == 2000


def test_no_memory_for_what_is_made_of_a_batch_is_a_named_error_and_loses_no_sample(packed):
    ds = open_pack(packed.root)
    rows = []
    with Loader(ds, 4, device="cuda", mask_layout="padded") as loader:
        batches = iter(loader)
        rows += next(batches)["indices"].tolist()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1e-9)
        try:
            held = []
            with pytest.raises(LoaderError, match="cuda:0 has no memory for a batch of"):
                for batch in batches:
                    rows += batch["indices"].tolist()
                    held.append(batch)  # what torch has taken already is used up
                    held += [torch.empty_like(batch["masks"]) for _ in range(1000)]
        except torch.OutOfMemoryError:
            pytest.skip("the test itself took the last memory")
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            del held
        loader.load_state_dict(loader.state_dict())
        for batch in loader:
            rows += batch["indices"].tolist()
    assert sorted(rows) == list(range(len(ds)))


def test_a_loader_sends_to_the_device_of_the_thread_that_made_it(packed):
    """In a new thread, cuda:0 is current."""
    last = torch.cuda.device_count() - 1
    with (
        torch.cuda.device(last),
        Loader(open_pack(packed.root), 2, device="cuda") as loader,
        ThreadPoolExecutor(1) as pool,
    ):
        batch = pool.submit(lambda: next(iter(loader))).result()
        assert batch["images"].device == torch.device("cuda", last)


@pytest.mark.parametrize("closes", [True, False])
def test_an_assertion_of_a_kernel_ends_a_program_with_its_traceback(packed, closes):
    """And not by a signal, from memory that torch frees on a device that has failed."""
    assert "device-side assert" in failing_training(packed.root, "cuda", closes)


def test_a_forked_child_ends_well_and_is_refused_by_name_and_the_parent_reads_on(packed):
    """The child has the parent's buffers while that fills and copies them: a page that only one of
    the two had then would leave the device with the other's."""
    script = """
import logging, os, sys, warnings
import sa1bpack
warnings.simplefilter("ignore", DeprecationWarning)
logging.disable()  # memory that cannot be pinned is a warning
ds = sa1bpack.open(sys.argv[1])
loader = sa1bpack.Loader(ds, 1, device="cuda", threads=1)
batches = iter(loader)
batch = next(batches)
wait, done = os.pipe()
child = os.fork()
if child == 0:
    os.close(done)
    os.read(wait, 1)
    try:
        next(iter(loader))
    except sa1bpack.errors.LoaderError as error:
        assert "forked from one that had used CUDA" in str(error), error
    loader.close()
    del batch, batches, loader
    sys.exit(0)
found = [(batch["images"][0].cpu().numpy() == ds[int(batch["indices"][0])]["image"]).all()
         for _ in range(3) for batch in loader]
os.write(done, b"1")
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), sum(found))
"""
    assert python("-c", script, packed.root, timeout=120).split() == ["0", "36"]
