"""A Ray cluster of several nodes: processes, nodes and the driver are killed in the middle.

The bytes of an undisturbed run: tests/packing/test_engines.py, tests/test_engines.py.
"""

import os
import signal
from pathlib import Path

import psutil
import pytest
from commands import finish, pack_command, start, temporaries, wait_until
from on_ray import on_ray
from small_tars import SMALL, contents, pack_small

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import OptionsDiffer

pytest.importorskip("ray", reason="ray is not installed: make ray")

# Preloaded into every process of the cluster: the first that has named a complete shard after the
# file `pause` appeared stops there, and leaves its number.
_PAUSE = """
import os, time
from pathlib import Path

folder, rename = Path(__file__).parent, os.rename


def renamed(source, target):
    rename(source, target)
    if not Path(target).name.startswith("sa_"):
        return
    try:
        (folder / "pause").unlink()
    except FileNotFoundError:
        return
    (folder / "writing").write_text(str(os.getpid()))
    rename(folder / "writing", folder / "paused")
    while True:
        time.sleep(0.01)


os.rename = renamed
"""


class Nodes:
    """A cluster of a head and two nodes, in which a task can be stopped in the middle."""

    def __init__(self, folder: Path):
        from ray.cluster_utils import Cluster

        (folder / "sitecustomize.py").write_text(_PAUSE)
        self._folder = folder
        with pytest.MonkeyPatch.context() as patch:
            path = [str(folder), str(Path(sa1bpack.__file__).parents[1])]
            patch.setenv("PYTHONPATH", os.pathsep.join(path))
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            self._cluster = Cluster(
                initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
            )
            self.address = self._cluster.address
            for _ in range(2):
                self._cluster.add_node(num_cpus=1, memory=10**9)

    def stop_the_next_task(self) -> None:
        """The next task that completes a shard stops there."""
        (self._folder / "paused").unlink(missing_ok=True)
        (self._folder / "pause").touch()

    def stopped(self) -> int | None:
        """The process that has stopped, if one has."""
        path = self._folder / "paused"
        return int(path.read_text()) if path.exists() else None

    def shutdown(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.shutdown()


@pytest.mark.parametrize(
    ("command", "whom"),
    [
        *(("pack", whom) for whom in ("task", "driver, by Ctrl-C", "driver", "node")),
        *(("repair", whom) for whom in ("task", "driver, by Ctrl-C")),
    ],
)
def test_what_is_killed_midway_is_completed(nodes, long_tars, long_pack, root, command, whom):
    """A task or a node by the same run, which repeats the task; the driver by the next run."""
    call = pack_command(long_tars, root)
    if command == "repair":
        call = ("repair", root, *long_tars)
        pack_small(long_tars, root)
        for name in ("sa_000010-001", "sa_000011-004"):
            (root / "shards" / name / "image" / "c.0.0.0.0").write_bytes(b"")
    call += ("--engine", "ray", "--address", nodes.address)
    nodes.stop_the_next_task()
    process = start(*call)
    task = wait_until(nodes.stopped, process)
    assert task is not None, finish(process)
    match whom:
        case "task":
            os.kill(task, signal.SIGKILL)
        case "node":  # its own process, and all that it has started
            node = psutil.Process(task).parent()
            for lost in (node, *node.children(recursive=True)):
                lost.kill()
        case "driver":
            process.kill()
        case "driver, by Ctrl-C":
            process.send_signal(signal.SIGINT)
    code, _, error = finish(process)
    if whom.startswith("driver"):
        assert code == (130 if "Ctrl-C" in whom else -signal.SIGKILL), error
        if "Ctrl-C" in whom:
            assert "repeat the same command" in error and "Traceback" not in error
        wait_until(lambda: not psutil.pid_exists(task))
        code, _, error = finish(start(*call))
    assert code == 0, error
    assert sa1bpack.repair(root, quick=True).ok
    assert contents(root) == long_pack
    assert temporaries(root) == []


def test_what_is_refused_is_refused_before_a_cluster_is_asked(long_tars, tmp_path):
    pack_on_ray, root = on_ray("pack"), tmp_path / "pack"
    nowhere = {"address": "127.0.0.1:1"}
    with pytest.raises(OptionError, match="workers is 0"):
        pack_on_ray(long_tars, root, workers=0, **nowhere, **SMALL)
    pack_small(long_tars[:1], root)
    with pytest.raises(OptionsDiffer):
        pack_on_ray(long_tars, root, **nowhere, **{**SMALL, "image_size": 32})
