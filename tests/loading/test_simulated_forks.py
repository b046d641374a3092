"""A Loader on simulated CUDA devices while a graph is captured, and in forked children."""

import os

import pytest
from forked import forked_child
from simulated_cuda import SimulatedCuda
from simulated_loading import simulate

from sa1bpack.errors import LoaderError
from sa1bpack.loading.loader import Loader


def test_a_batch_taken_while_its_stream_is_captured_is_refused_by_name(ds, cuda):
    with Loader(ds, 2, device="cuda") as batches:
        found = iter(batches)
        next(found)
        with cuda.capture(), pytest.raises(LoaderError, match="while a CUDA graph is captured"):
            next(found)
        assert batches.state_dict()["samples"] == 2  # that batch is still to come


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
    simulate(monkeypatch, made)
    batches = Loader(ds, 2, device="cuda")
    with forked_child() as child:
        if child == 0:
            made.process = os.getpid()
            assert sum(len(batch["images"]) for batch in batches) == len(ds)
            batches.close()
    assert made.contexts == set()
