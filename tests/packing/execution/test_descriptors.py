"""A run raises the limit on open files to what it needs, or reports that it cannot."""

import resource

import pytest
from commands import SMALL_FLAGS
from forked import Forked
from open_files import open_files
from small_tars import contents

from sa1bpack.packing.execution.inline import OTHERS, enough_descriptors


@pytest.mark.parametrize(("workers", "files", "code"), [(1, 256, 0), (2, 256, 0), (2, 100, 1)])
def test_256_descriptors_are_enough_and_too_low_a_limit_is_said_before_any_work(
    long_tars, long_pack, tmp_path, workers, files, code
):
    def limit():
        # It is forked from a process that may have many open.
        most = files + (len(open_files()) if code == 0 else 0)
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


def test_the_soft_limit_is_raised_for_a_run_and_lowered_again():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = 200 + OTHERS
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
        for needed, limit in ((150, soft), (300, 300 + OTHERS)):
            with enough_descriptors(needed, workers=2):
                assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
