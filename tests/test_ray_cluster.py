"""Tasks on a Ray cluster: results, errors, processes that die, and what is refused."""

import pytest
from dying_tasks import killed, killed_once

from sa1bpack.errors import ClusterError, OptionError

ray = pytest.importorskip("ray", reason="ray is not installed: make ray")

from sa1bpack.cluster.tasks import Died, Needs, connected  # noqa: E402 - it needs ray

NEEDS = Needs(1, 10**8)


def test_every_task_returns_once_and_one_whose_process_dies_is_run_again(ray_address, tmp_path):
    tasks = {f"task {n}": {"marker": str(tmp_path / "marker"), "value": n} for n in range(3)}
    checks = []
    with connected(ray_address) as cluster:
        found = list(cluster.run(killed_once, tasks, NEEDS, lambda: checks.append(1), pytest.fail))
    assert dict(found) == {"task 0": 0, "task 1": 1, "task 2": 2} and len(found) == 3
    assert (tmp_path / "marker").exists() and checks


def test_a_task_that_always_dies_is_given_up_and_an_error_is_raised(ray_address, capsys):
    with connected(ray_address) as cluster:
        found = dict(cluster.run(killed, {"dies": {"value": 1}, "works": {"value": 0}}, NEEDS))
        assert isinstance(found["dies"], Died) and found["works"] == 0
        assert capsys.readouterr().out == ""  # ray reports it
        assert str(found["dies"]).startswith("its task died 6 times, the last time with ")
        with pytest.raises(TypeError, match="missing a required argument"):
            list(cluster.run(killed, {"wrong": {}}, NEEDS))


def test_what_no_node_has_is_named(ray_address):
    def leave(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    said: list[str] = []
    with connected(ray_address) as cluster, pytest.raises(KeyboardInterrupt):
        list(cluster.run(killed, {"waits": {"value": 0}}, Needs(99, 10**8, gpus=1), say=leave))
    assert said[0].startswith("no node has 99 cores, 1 GPU and 0.1 GB for a task now (the largest")


def test_a_cluster_that_cannot_be_reached_is_named():
    with (
        pytest.raises(ClusterError, match=r"no Ray cluster at 127\.0\.0\.1:1"),
        connected("127.0.0.1:1"),
    ):
        pass


def test_a_connection_of_the_caller_is_refused_and_stays(ray_address):
    ray.init(ray_address, logging_level="ERROR")
    try:
        with (
            pytest.raises(OptionError, match="ray is initialized in this process"),
            connected(ray_address),
        ):
            pass
        assert ray.is_initialized()
    finally:
        ray.shutdown()
