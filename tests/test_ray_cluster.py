"""Tasks on a Ray cluster: results, errors, processes that die, and what is refused."""

import pytest
from dying_tasks import killed, killed_once

from sa1bpack import OptionError
from sa1bpack.errors import ClusterError

ray = pytest.importorskip("ray", reason="ray is not installed: make ray")

from sa1bpack.cluster.tasks import Needs, run_tasks  # noqa: E402 - it needs ray

NEEDS = Needs(1, 10**8)


def test_every_task_returns_once_and_one_whose_process_dies_is_run_again(ray_address, tmp_path):
    tasks = {f"task {n}": {"marker": str(tmp_path / "marker"), "value": n} for n in range(3)}
    found = list(run_tasks(ray_address, killed_once, tasks, NEEDS, pytest.fail))
    assert dict(found) == {"task 0": 0, "task 1": 1, "task 2": 2} and len(found) == 3
    assert (tmp_path / "marker").exists()


def test_a_task_that_always_dies_is_given_up_and_an_error_is_raised(ray_address, capsys):
    tasks = {"dies": {"value": 1}, "works": {"value": 0}}
    found = dict(run_tasks(ray_address, killed, tasks, NEEDS))
    assert found["works"] == 0
    assert capsys.readouterr().out == ""  # ray reports it
    assert str(found["dies"]).startswith("its task died 6 times, the last time with ")
    with pytest.raises(TypeError, match="missing a required argument"):
        list(run_tasks(ray_address, killed, {"wrong": {}}, NEEDS))


def test_what_no_node_has_is_named(ray_address):
    def leave(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    said: list[str] = []
    needs = Needs(99, 10**8, gpus=1)
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks(ray_address, killed, {"waits": {"value": 0}}, needs, say=leave))
    assert said[0].startswith("no node has 99 cores, 1 GPU and 0.1 GB for a task now (the largest")
    assert not ray.is_initialized()


def test_who_leaves_the_loop_is_not_connected_any_more(ray_address):
    tasks = {f"task {n}": {"value": 0} for n in range(3)}
    for _ in run_tasks(ray_address, killed, tasks, NEEDS):
        assert ray.is_initialized()
        break
    assert not ray.is_initialized()


def test_a_cluster_that_cannot_be_reached_is_named():
    with pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        list(run_tasks("127.0.0.1:1", killed, {}, NEEDS))


def test_a_connection_of_the_caller_is_refused_and_stays(ray_address):
    ray.init(ray_address, logging_level="ERROR")
    try:
        with pytest.raises(OptionError, match="ray is initialized in this process"):
            list(run_tasks(ray_address, killed, {}, NEEDS))
        assert ray.is_initialized()
    finally:
        ray.shutdown()
