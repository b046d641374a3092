"""Pinned memory: in no forked child, and neither unpinned nor unmapped during a copy."""

import ctypes
import mmap

import numpy as np
import pytest
from batches import collect
from forked import forked_child
from memory_maps import map_flags
from simulated_cuda import SimulatedCuda

from sa1bpack import Loader
from sa1bpack.finalizers import settle

PATTERN = 0x3C


def put_memory_at(address: int, nbytes: int) -> np.ndarray:
    """New memory at an address of this process that has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fixed = 0x100000  # MAP_FIXED_NOREPLACE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    there = libc.mmap(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert there == address, "the child has the memory"
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


@pytest.mark.parametrize("size", [1, 12])
def test_every_pinned_buffer_is_kept_from_forked_children(ds, cuda, size):
    """Else a device that was told its address before a fork reads pages that only the child has."""
    with Loader(ds, size, device="cuda") as batches:
        next(iter(batches))
        assert len(cuda.pinned) == batches.plan().batches
        for address, nbytes in cuda.pinned.items():
            assert address % 4096 == 0
            assert "dc" in map_flags(address)
            assert "dc" in map_flags(address + nbytes - 1)


def test_a_forked_child_has_the_batches_of_a_cpu(ds):
    """Their tensors are views of the buffers, and users fork with them in use."""
    with Loader(ds, 4) as batches:
        batch = next(iter(batches))
        expected = batch["images"].clone()
        assert "dc" not in map_flags(batch["images"].data_ptr())
        with forked_child() as child:
            if child == 0:
                assert batch["images"].equal(expected)


def test_a_forked_child_that_drops_a_loader_keeps_what_it_has_at_those_addresses(ds, cuda):
    batches = Loader(ds, 2, device="cuda", threads=1)
    assert sum(len(batch["images"]) for batch in batches) == len(ds)  # its threads have ended
    buffers = dict(cuda.pinned)
    with forked_child() as child:
        if child == 0:
            mine = []
            for address, nbytes in buffers.items():
                memory = put_memory_at(address, -(-nbytes // 4096) * 4096)
                memory[:] = PATTERN
                mine.append(memory)
            batches.close()
            del batches
            collect()
            assert all((memory == PATTERN).all() for memory in mine)
    assert sum(len(batch["images"]) for batch in batches) == len(ds)
    batches.close()


@pytest.mark.parametrize("taken", range(4))
def test_nothing_is_unpinned_during_its_copy_where_waiting_for_a_stream_is_an_error(
    ds, cuda, taken
):
    """torch.cuda.set_sync_debug_mode("error") makes it one, before it waits; the simulated device
    refuses to unpin memory that is being copied."""
    cuda.sync_is_an_error = True
    batches = Loader(ds, 2, device="cuda", threads=2, prefetch=2)
    found = iter(batches)
    for _ in range(taken):
        next(found)
    batches.close()
    del found, batches
    collect()
    assert cuda.pinned == {} and not any(cuda.copying.values())


@pytest.mark.parametrize("call", ["record", "synchronize"])
def test_memory_whose_copy_may_still_run_stays_and_a_warning_says_so(ds, cuda, caplog, call):
    batches = Loader(ds, 2, device="cuda", threads=1)
    next(iter(batches))
    settle()  # the epoch that was left has ended: the call fails for the memory
    buffers = dict(cuda.pinned)
    cuda.fail[call] = RuntimeError(f"CUDA error: {call} is not possible now")
    batches.close()
    collect()
    [address] = cuda.pinned.keys() & buffers.keys()  # the call fails once
    assert map_flags(address) is not None
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "of pinned memory are kept until the process ends" in warning
    assert f"{call} is not possible now" in warning


def test_the_memory_of_a_device_that_has_failed_stays(ds, cuda: SimulatedCuda):
    batches = Loader(ds, 2, device="cuda", threads=1)
    next(iter(batches))
    buffers = dict(cuda.pinned)
    cuda.broken = True
    batches.close()
    del batches
    collect()
    assert cuda.pinned == buffers
    assert None not in map(map_flags, buffers)
