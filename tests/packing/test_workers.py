"""Workers that die, cannot start or cannot write, and runs that leave nothing behind."""

import concurrent.futures.thread
import errno
import gc
import itertools
import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import indent
from types import FrameType
from zlib import crc32

import psutil
import pytest
from commands import finish, pack_command, run, start, temporaries, wait_until
from forked import Forked, forked_child
from preloads import after_import
from small_tars import SMALL, contents, members, pack_small, photo, rejects_of, write_tar
from system import failing, open_files

import sa1bpack
from sa1bpack.errors import PackError

# What the decoder in a worker does differently with each picture or with one, or at its import.
WITH_ANY = """
import os, signal, zlib

decode_jpeg = module.decode_jpeg
def changed(jpeg, *arguments, **options):
    {action}
    return decode_jpeg(jpeg, *arguments, **options)
module.decode_jpeg = changed
"""
WITH_SA_6 = WITH_ANY.format(action=f"if zlib.crc32(jpeg) == {crc32(photo(6))}: {{action}}")
DIES = "os.kill(os.getpid(), signal.{name})"
DIES_ONCE = "os.path.exists({flag!r}) or os.mkdir({flag!r}) or os.kill(os.getpid(), signal.SIGKILL)"
NEVER_STARTS = """
print("no such library", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def workers_that(tmp_path, monkeypatch):
    """workers_that(change) runs `change` in every worker, with its simplejpeg as `module`."""

    def workers_that(change: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        preload = after_import("simplejpeg", change)
        preload = "import sys\nif sys.argv[:1] == ['-m']:\n" + indent(preload, "    ")
        (folder / "sitecustomize.py").write_text(preload)
        monkeypatch.syspath_prepend(folder)

    return workers_that


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    return write_tar(tmp_path_factory.mktemp("workers") / "sa_000000.tar", members(range(12)))


@pytest.fixture(scope="module")
def expected(tar, tmp_path_factory):
    root = tmp_path_factory.mktemp("workers") / "pack"
    pack_small(tar, root)
    return contents(root)


@pytest.fixture
def leaves_nothing():
    """Whatever the test does, no process, thread, descriptor or shared memory of it may be left.

    What earlier tests have left may end meanwhile.
    """
    before = _held()
    yield
    now = _held()
    assert {kind: now[kind] - before[kind] for kind in now} == {kind: set() for kind in now}


def _held() -> dict[str, set]:
    gc.collect()  # an error that was caught, and the rows that its traceback holds
    me = psutil.Process()
    maps = me.memory_maps(grouped=False)
    return {
        "descriptors": set(open_files()),
        "threads": set(threading.enumerate()),
        "children": set(me.children(recursive=True)),
        "slots": {(held.addr, held.path) for held in maps if "memfd:sa1bpack" in held.path},
        # Other programs of the machine come and go here.
        "shared memory": set(Path("/dev/shm").glob("*sa1bpack*")),
    }


@pytest.mark.parametrize(("owner", "name"), [(os, "rename"), (subprocess.Popen, "wait")])
def test_ctrl_c_leaves_nothing(tar, expected, tmp_path, monkeypatch, leaves_nothing, owner, name):
    """Neither as the first shard gets its name, nor as the processes are ended, nor does the next
    run, which is not interrupted: no process, thread or descriptor."""

    call = getattr(owner, name)

    def interrupt(*arguments, **options):
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGINT)  # to a thread that does not block it
        return call(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        pack_small(tar, tmp_path / "pack", workers=2)
    assert temporaries(tmp_path / "pack") == []
    pack_small(tar, tmp_path / "pack", workers=2)
    assert contents(tmp_path / "pack") == expected


def test_a_dead_worker_costs_no_byte(tar, expected, tmp_path, workers_that, leaves_nothing, capfd):
    """One that dies once."""
    action = DIES_ONCE.format(flag=str(tmp_path / "flag"))
    workers_that(WITH_SA_6.format(action=action))
    result = pack_small(tar, tmp_path / "pack", workers=2)
    assert (tmp_path / "flag").exists()
    assert contents(tmp_path / "pack") == expected
    (note,) = result.notes
    assert "was killed by SIGKILL (out of memory?) while it decoded one of 4 images" in note
    assert note in capfd.readouterr().err


def test_a_sample_that_kills_its_workers_is_rejected(tar, tmp_path, workers_that, leaves_nothing):
    """The rest is packed."""
    workers_that(WITH_SA_6.format(action=DIES.format(name="SIGSEGV")))
    result = pack_small(tar, tmp_path / "pack", workers=2)
    assert (result.complete, result.images, result.rejects) == (True, 11, 1)
    (line,) = rejects_of(tmp_path / "pack")
    assert (line["member"], line["reason"]) == ("sa_6.jpg", "worker-died")
    assert "3 workers" in line["detail"] and "SIGSEGV" in line["detail"]
    assert sa1bpack.verify(tmp_path / "pack").ok


def test_workers_out_of_memory_end_the_run_and_cost_nothing(tar, expected, tmp_path, workers_that):
    workers_that(WITH_SA_6.format(action=DIES.format(name="SIGKILL")))
    root = tmp_path / "pack"
    code, _, error = run(*pack_command(tar, root, workers=2), path=tmp_path / "site")
    assert code == 4, error
    assert f"sa1bpack: {tar}: sa_6.jpg: 3 workers ended" in error
    assert "was killed by SIGKILL (out of memory?)" in error
    assert error.endswith("repeat the same command to continue from here\n")
    assert temporaries(root) == [] and sa1bpack.verify(root).ok
    assert pack_small(tar, root).complete
    assert contents(root) == expected


def test_a_worker_that_cannot_start_ends_a_run(tar, tmp_path, workers_that, leaves_nothing, capfd):
    workers_that(NEVER_STARTS)
    with pytest.raises(PackError, match="ended with exit code 7 before it took work"):
        pack_small(tar, tmp_path / "pack", workers=2)
    assert "no such library" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_writing_ends_the_run_before_its_shard(
    root, tmp_path, monkeypatch, leaves_nothing, workers
):
    tar = write_tar(tmp_path / "a.tar", members(range(60)))
    pwrite, left = os.pwrite, iter(range(9))

    def written(*arguments):
        return failing(errno.EIO)() if next(left, None) is None else pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", written)
    with pytest.raises(OSError, match="Input/output error"):
        sa1bpack.pack(tar, root, workers=workers)
    (line,) = (root / ".runs.jsonl").read_text().splitlines()
    assert 0 < json.loads(line)["images"] < 60
    assert temporaries(root) == []


def test_samples_are_in_the_order_of_the_tar_whoever_was_faster(
    sources, undisturbed, root, workers_that
):
    at_random = "import time, random; time.sleep(random.random() / 50)"
    workers_that(WITH_ANY.format(action=at_random))
    pack_small(sources, root, workers=3)
    assert contents(root) == undisturbed


def test_a_lack_of_memory_is_not_the_samples_fault(tar, tmp_path, workers_that, leaves_nothing):
    """In a worker it ends the run."""
    workers_that(WITH_SA_6.format(action='raise MemoryError("no memory for sa_6.jpg")'))
    with pytest.raises(MemoryError, match="sa_6"):
        pack_small(tar, tmp_path / "pack", workers=2)
    assert temporaries(tmp_path / "pack") == []


def test_workers_end_when_their_parent_is_killed(tar, tmp_path):
    process = start(*pack_command(tar, tmp_path / "pack", workers=2))
    children = wait_until(lambda: psutil.Process(process.pid).children(), process)
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert psutil.wait_procs(children, timeout=120)[1] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_low_limit_on_open_files_is_raised_for_the_run(long_tars, long_pack, tmp_path, workers):
    def limit():
        most = len(open_files()) + 60  # it is forked from a process that may have many open
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, 1024))

    root = tmp_path / "pack"
    command = pack_command(long_tars, root, workers=workers)
    code, said = Forked(*command, log=tmp_path / "log", prepare=limit).wait()
    assert code == 0, said
    assert contents(root) == long_pack


@pytest.mark.parametrize("number", range(3))
def test_a_thread_that_has_no_memory_to_report_its_work_is_not_waited_for(tmp_path, number):
    """Its work is done, so the pack is whole. The work: two shards, and the reading of a source."""
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(1, 5)))
    options = {**SMALL, "samples_per_shard": 2, "progress": False}
    sa1bpack.pack(tar, tmp_path / "whole", workers=1, **options)
    reports = itertools.count()
    with forked_child() as child:
        if child == 0:
            threading.settrace(partial(_refuse_memory, reports, number))
            sa1bpack.pack(tar, tmp_path / "pack", workers=1, **options)
            assert next(reports) > number, "no report was disturbed"
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")


def _refuse_memory(reports: Iterator[int], number: int, frame: FrameType, *_: object) -> None:
    """Raise MemoryError as one thread of a pool begins to tell that its work is done."""
    if frame.f_code.co_name != "_invoke_callbacks":
        return
    setter = frame.f_back
    if setter.f_back.f_code.co_filename != concurrent.futures.thread.__file__:
        return
    if next(reports) == number:
        raise MemoryError
