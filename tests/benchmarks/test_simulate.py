"""The model of a training loop, against what can be said of it without one."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Of which nothing is a limit: each case makes one resource slow.
NBYTES = 1e6
FAST = {
    "cores": 64, "threads": 16, "thread_bytes": 50e9, "memory_bytes": 500e9, "link_bytes": 500e9,
    "link_seconds": 0.0, "begin_seconds": 1e-6, "take_seconds": 1e-6, "sample_seconds": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(module):
    return module("simulate")


@pytest.mark.parametrize("batch", [8, 32])
@pytest.mark.parametrize(
    ("limit", "machine", "task", "rate"),
    [
        ("disk", {"disk": 2e9}, {}, 2000.0),
        ("disk", {"disk": 2e9, "devices": 4}, {}, 500.0),
        ("link", {"link_bytes": 3e9}, {}, 3000.0),
        ("copying", {"thread_bytes": 1e9, "threads": 4}, {}, 4000.0),
        ("cores", {"thread_bytes": 1e9, "threads": 8, "cores": 2}, {}, 2000.0),
        ("copying", {"memory_bytes": 4e9}, {}, 4000.0),
        ("copying", {"memory_bytes": 4e9, "devices": 2}, {}, 2000.0),
        ("device", {}, {"device_seconds": 1e-3}, 1000.0),
        ("device", {"devices": 3}, {"device_seconds": 1e-3}, 1000.0),
    ],
)
def test_one_slow_resource_is_the_limit_at_its_rate(model, batch, limit, machine, task, rate):
    machine = model.Machine(**FAST | machine)
    result = model.simulate(machine, model.Task(batch, NBYTES, **task), 400)
    assert result.limit == limit
    assert math.isclose(result.rate, rate, rel_tol=0.02)


@pytest.mark.parametrize("part", ["begin_seconds", "take_seconds"])
def test_python_takes_its_time_per_batch_whatever_the_samples(model, part):
    machine = model.Machine(**FAST | {part: 1e-3})
    for batch in (8, 32):
        result = model.simulate(machine, model.Task(batch, 1000.0))
        assert result.limit == "Python"
        assert math.isclose(result.rate, batch / 1e-3, rel_tol=0.02)


def test_on_one_core_with_one_thread_all_times_of_the_host_add_up(model):
    machine = model.Machine(**FAST | {
        "cores": 1, "threads": 1, "thread_bytes": 1e9, "begin_seconds": 2e-3, "take_seconds": 1e-3
    })  # fmt: skip
    result = model.simulate(machine, model.Task(4, NBYTES), 400)
    assert result.limit == "cores"
    assert math.isclose(result.rate, 4 / (4 * 1e-3 + 3e-3), rel_tol=0.02)


def test_a_batch_at_a_time_takes_all_steps_of_its_way(model):
    """With nothing read ahead and one buffer's work at a time, the slowest two cannot overlap."""
    machine = model.Machine(**FAST | {"disk": 1e9, "threads": 1, "thread_bytes": 1e9})
    result = model.simulate(machine, model.Task(8, NBYTES))
    assert result.limit == "order"
    assert math.isclose(result.rate, 500.0, rel_tol=0.02)  # 8 ms of reading, and 8 of copying


def test_a_loop_that_is_fed_waits_for_nothing_and_a_starved_one_for_its_batches(model):
    fed = model.simulate(model.Machine(**FAST), model.Task(8, NBYTES, device_seconds=1e-3))
    assert fed.waited < 0.02
    starved = model.simulate(
        model.Machine(**FAST | {"disk": 1e9}), model.Task(8, NBYTES, device_seconds=1e-4)
    )
    assert starved.waited > 0.8


@settings(max_examples=40, deadline=None)
@given(
    batch=st.sampled_from([1, 8, 32]),
    devices=st.integers(1, 3),
    cores=st.integers(1, 8),
    threads=st.integers(1, 12),
    prefetch=st.integers(1, 4),
    disk=st.none() | st.floats(1e8, 1e10),
    thread_bytes=st.floats(1e8, 1e10),
    memory_bytes=st.floats(1e8, 1e11),
    link_bytes=st.floats(1e8, 1e11),
    python=st.floats(1e-5, 1e-2),
    device_seconds=st.floats(0, 1e-2),
)
def test_no_loop_is_faster_than_any_of_its_resources(
    model, batch, devices, cores, threads, prefetch, disk, thread_bytes, memory_bytes, link_bytes,
    python, device_seconds,
):  # fmt: skip
    machine = model.Machine(
        devices=devices, cores=cores, threads=threads, prefetch=prefetch, disk=disk,
        thread_bytes=thread_bytes, memory_bytes=memory_bytes, link_bytes=link_bytes,
        begin_seconds=python, take_seconds=python / 2,
    )  # fmt: skip
    task = model.Task(batch, NBYTES, device_seconds=device_seconds)
    result = model.simulate(machine, task, 60)
    ceilings = model.ceilings(machine, task)
    assert result.rate > 0
    # Batches that were ready before the first one that counts come on top.
    ready = (prefetch + model.AHEAD + 3) / (60 - 18 - prefetch - model.AHEAD - 2)
    assert result.rate <= min(ceilings.values()) * (1 + ready)
    assert all(share <= 1.0 + 1e-9 for share in result.busy.values())
    assert 0 <= result.waited <= 1
    if result.limit != "order":
        assert result.busy[result.limit] == max(result.busy.values()) >= model.BUSY


def test_the_table_has_every_server_and_batch(model, monkeypatch):
    monkeypatch.setattr(model, "BATCHES", (2, 4))
    lines = model.table(replace(model.Machine(), prefetch=1), NBYTES, 12).splitlines()
    assert len(lines) == 2 + len(model.SERVERS) * len(model.BATCHES)
    assert {len(line.split("|")) for line in lines} == {2 * len(model.STEPS) + 5}


def test_without_a_device_a_loop_is_what_was_measured_here(model):
    """Of the copy by two threads, with samples of 3.67 MB: 0.77 to 0.92 in batches of 8, 0.86 to
    0.97 in batches of 32."""
    host = model.without_device(model.Machine(cores=2, threads=2))
    copy = 2 * host.thread_bytes / model.Task.sample_bytes
    assert 0.77 < model.simulate(host, model.Task(8)).rate / copy < 0.92
    assert 0.86 < model.simulate(host, model.Task(32)).rate / copy < 0.97


def test_every_assumption_is_named(model):
    known = {*model.Machine.__dataclass_fields__, *model.Task.__dataclass_fields__, "steps"}
    assert model.PARAMETERS.keys() <= known
    durations = {name for name in known if name.endswith(("_bytes", "_seconds")) or name == "disk"}
    assert durations - {"step_seconds", "device_seconds"} <= model.PARAMETERS.keys()
