"""A run raises the limit on open files to what it needs, or reports that it cannot."""

import os
import resource

import psutil
import pytest
from commands import SMALL_FLAGS
from forked import Forked
from small_tars import SMALL, contents

import sa1bpack
from sa1bpack.errors import PackError
from sa1bpack.packing.execution.descriptors import (
    enough_descriptors,
    needed_inline,
    needed_with_processes,
    open_already,
)
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress


@pytest.fixture
def soft_limit():
    """soft_limit(n) sets the soft limit of open files for the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda n: resource.setrlimit(resource.RLIMIT_NOFILE, (n, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("workers", [1, 2])
def test_256_descriptors_are_enough(long_tars, long_pack, tmp_path, workers):
    def limit():
        most = 256 + open_already()  # it is forked from a process that may have many open
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    root = tmp_path / "pack"
    command = ("pack", *long_tars, "--out", root, "--workers", workers, *SMALL_FLAGS)
    code, said = Forked(*command, log=tmp_path / "log", prepare=limit).wait()
    assert code == 0, said
    assert contents(root) == long_pack


def test_too_low_a_limit_is_said_before_any_work(long_tars, tmp_path):
    def limit():
        most = 100 + open_already()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    root = tmp_path / "pack"
    command = ("pack", *long_tars, "--out", root, "--workers", 2, *SMALL_FLAGS)
    code, said = Forked(*command, log=tmp_path / "log", prepare=limit).wait()
    assert code == 1
    assert "--workers 2 holds up to" in said and "; use fewer workers, or raise the limit" in said
    assert list(root.glob("shards/[!z]*")) == []


def test_the_soft_limit_is_raised_for_a_run_and_lowered_again(soft_limit):
    others = open_already()
    soft_limit(200 + others)
    with enough_descriptors(150, workers=2):
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200 + others
    with enough_descriptors(300, workers=2):
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300 + others
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200 + others
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        with pytest.raises(PackError, match=f"the limit here is {hard}"):
            enough_descriptors(hard + 1, workers=2).__enter__()


def test_what_a_program_has_open_already_is_counted(tmp_path):
    """A run called from a notebook or a training script, which holds hundreds of files."""
    before, folder = open_already(), os.open(tmp_path, os.O_RDONLY)
    held = [os.dup(folder) for _ in range(100)]
    try:
        assert open_already() - before >= 100 - 16
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY:
            with pytest.raises(PackError, match=r"with \d+ that this process has open already"):
                enough_descriptors(hard, workers=2).__enter__()
    finally:
        for descriptor in (folder, *held):
            os.close(descriptor)


@pytest.mark.parametrize("fit", ["pad", "native"])
def test_256_descriptors_are_enough_for_12_workers(fit):
    options = PackOptions(fit=fit)
    assert needed_inline(options) <= 256
    assert needed_with_processes(options, workers=12, reader_threads=2, slots=40) <= 256


def test_a_run_with_hundreds_of_workers_raises_the_usual_limit(soft_limit):
    soft_limit(1024)
    needed = needed_with_processes(PackOptions(), workers=200, reader_threads=34, slots=668)
    assert 1024 < needed < 4096
    assert needed_with_processes(PackOptions(), workers=64, reader_threads=11, slots=214) < 1024


@pytest.mark.parametrize("workers", [1, 2])
def test_no_run_holds_more_than_what_is_asked_for(long_tars, tmp_path, monkeypatch, workers):
    me = psutil.Process()
    before, most = me.num_fds(), 0
    done = Progress.done

    def count(self, *arguments):
        nonlocal most
        most = max(most, me.num_fds() - before)
        done(self, *arguments)

    monkeypatch.setattr(Progress, "done", count)
    sa1bpack.pack(long_tars, tmp_path / "pack", workers=workers, **SMALL)
    options = PackOptions(**SMALL)
    needed = needed_inline(options) if workers == 1 else needed_with_processes(options, 2, 1, 8)
    assert len(options.layout.arrays) < most < needed
