"""A run raises the limit on open files to what it needs, or reports that it cannot."""

import os
import resource

import pytest
from commands import SMALL_FLAGS
from forked import Forked
from small_tars import contents

from sa1bpack.errors import PackError
from sa1bpack.packing.execution.inline import enough_descriptors, open_already


@pytest.mark.parametrize(("workers", "files", "code"), [(1, 256, 0), (2, 256, 0), (2, 100, 1)])
def test_256_descriptors_are_enough_and_too_low_a_limit_is_said_before_any_work(
    long_tars, long_pack, tmp_path, workers, files, code
):
    def limit():
        most = files + open_already()  # it is forked from a process that may have many open
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    root = tmp_path / "pack"
    command = ("pack", *long_tars, "--out", root, "--workers", workers, *SMALL_FLAGS)
    found, said = Forked(*command, log=tmp_path / "log", prepare=limit).wait()
    assert found == code, said
    if code == 0:
        assert contents(root) == long_pack
    else:
        assert "--workers 2 holds up to" in said
        assert "; use fewer workers, or raise the limit" in said
        assert list(root.glob("shards/[!z]*")) == []


def test_the_soft_limit_is_raised_for_a_run_and_lowered_again(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    others, hard = open_already(), before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200 + others, hard))
        for needed, limit in ((150, 200), (300, 300)):
            with enough_descriptors(needed, workers=2):
                assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit + others
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200 + others
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] == resource.RLIM_INFINITY, reason="no hard limit"
)
def test_what_a_program_has_open_already_is_counted(tmp_path):
    """A run called from a notebook or a training script, which holds hundreds of files."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    before, folder = open_already(), os.open(tmp_path, os.O_RDONLY)
    held = [os.dup(folder) for _ in range(100)]
    try:
        assert open_already() - before >= 100 - 16
        with pytest.raises(PackError, match=r"with \d+ that this process has open already"):
            enough_descriptors(hard, workers=2).__enter__()
    finally:
        for descriptor in (folder, *held):
            os.close(descriptor)
