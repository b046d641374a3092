"""Several Loaders in one loop: the sequence, its states, and threads that all of them share."""

import copy
import gc
import os
import pickle
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import torch
from batches import clone, join_readers, readers, same
from forked import forked_child
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_seams import before_copies, ends_within
from mixing import (
    GLOBAL_SIZES,
    MASKS,
    PACKS,
    datasets,
    joined,
    mix_of,
    seen,
    source_of,
    write_packs,
)
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack import Loader, LoaderError, Mix, OptionError, ReadError
from sa1bpack.errors import LoaderTimeout, ThreadRefused, UserCodeError
from sa1bpack.loading import located_batch, reader_crew
from sa1bpack.threads import start_thread

SIZES = {"a": 3, "b": 2, "c": 4}
STEPS = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    write_packs(folder)
    return folder


@pytest.fixture(scope="module")
def sets(folder):
    return datasets(folder)


@pytest.fixture(scope="module")
def uninterrupted(sets) -> dict[str, list]:
    """By end: what one process sees in some epochs."""
    runs = {}
    for at_end, epochs in (("restart", 3), ("stop", 9), ("skip", 3)):
        mix = mix_of(sets, **options_of(at_end))
        runs[at_end] = [seen(batch) for _ in range(epochs) for batch in mix]
        assert len(runs[at_end]) > 24
    return runs


def options_of(at_end: str) -> dict:
    return {"at_end": at_end, "steps": STEPS} if at_end == "restart" else {"at_end": at_end}


# ----------------------------------------------------------------------------------- the sequence


@pytest.mark.parametrize("at_end", ["restart", "stop", "skip"])
def test_batches_are_those_that_each_loader_has_alone(sets, at_end):
    mix = mix_of(sets, sizes=SIZES, **options_of(at_end))
    found = {name: [] for name in sets}
    for epoch in range(2):
        steps = []
        for batch in mix:
            steps.append(batch["mix_step"])
            assert batch["mix_epoch"] == epoch
            source = batch.pop("source")
            del batch["mix_epoch"], batch["mix_step"]
            found[source].append((clone(batch), [batch[key] for key in ("epoch", "batch_idx")]))
        assert len(steps) == len(mix)
    assert steps[-1] == sum(map(len, found.values())) - 1
    for seed, (name, ds) in enumerate(sets.items()):
        alone = Loader(ds, SIZES[name], shuffle=True, seed=seed, **MASKS)
        epochs = 1 + max(epoch for _, (epoch, _) in found[name])
        expected = [(clone(batch), batch) for _ in range(epochs) for batch in alone]
        if at_end == "stop":  # it leaves some out at the end of each epoch
            numbers = [number for _, number in found[name]]
            expected = [
                pair for pair in expected if [pair[1]["epoch"], pair[1]["batch_idx"]] in numbers
            ]
        for (batch, _), (wanted, _) in zip(found[name], expected, strict=False):
            same(batch, wanted)
        if at_end != "restart":
            assert len(found[name]) == len(expected)


def test_an_epoch_ends_where_its_option_says(sets, uninterrupted):
    lengths = {name: -(-PACKS[name][0] // GLOBAL_SIZES[name]) for name in sets}
    for epoch in range(3):
        skipped = [step for step in uninterrupted["skip"] if step[1] == epoch]
        counts = {name: [step[0] for step in skipped].count(name) for name in sets}
        assert counts == lengths
        assert {step[3] for step in skipped} == {epoch}  # each source's own
        stopped = [step for step in uninterrupted["stop"] if step[1] == epoch]
        names = [step[0] for step in stopped]
        full = [name for name in sets if names.count(name) == lengths[name]]
        assert full == [names[-1]]
    assert len(uninterrupted["restart"]) == 3 * STEPS
    assert len(mix_of(sets, at_end="restart")) == sum(lengths.values())  # without steps


def test_the_usual_weights_make_every_batch_equally_likely_on_any_number_of_ranks(sets):
    for ranks in (1, 2):
        of_rank = {"rank": 0, "world_size": ranks}
        mix = mix_of(sets, sizes=SIZES, ranks=of_rank, weights=None)
        weights = {name: schedule(0) for name, schedule in mix.weights.items()}
        assert weights == {name: PACKS[name][0] / SIZES[name] for name in sets}


def test_weights_may_follow_a_schedule_and_0_leaves_a_source_out(sets):
    weights = {"a": [1, 0], "b": [0, 1], "c": sa1bpack.PiecewiseSchedule(0, {20: 100}, by="step")}
    mix = mix_of(sets, weights=weights, steps=10)
    assert mix.plan().batches == {"a": 10, "b": 0, "c": 0}
    assert [batch["source"] for batch in mix] == 10 * ["a"]
    assert [batch["source"] for batch in mix] == 10 * ["b"]
    assert [batch["source"] for batch in mix].count("c") > 5
    assert mix.stats().sources["a"].batches == 0


# ------------------------------------------------------------------------------------ ranks, states


def run_of_ranks(sets, world_size: int, state, stop: int, **options):
    """The joined steps of some ranks from a state to a stop, and the state there."""
    by_rank = []
    states = []
    for rank in range(world_size):
        mix = mix_of(sets, ranks={"rank": rank, "world_size": world_size}, **options)
        if state is not None:
            mix.load_state_dict(state)
        steps = []
        while len(steps) < stop:
            for batch in mix:
                steps.append(seen(batch))
                if len(steps) == stop:
                    break
        by_rank.append(steps)
        states.append(mix.state_dict())
    assert all(state == states[0] for state in states)
    return [joined(list(parts)) for parts in zip(*by_rank, strict=True)], states[0]


@given(
    names=st.sampled_from(["abc", "ab", "c"]),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    sizes=st.lists(st.sampled_from([6, 12, 18, 24]), min_size=3, max_size=3),
    worlds=st.lists(st.sampled_from([1, 2, 3]), min_size=2, max_size=3),
    stops=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    at_end=st.sampled_from(["restart", "stop", "skip"]),
    seed=st.integers(0, 3),
)
@settings(max_examples=10)
def test_a_run_continues_on_another_number_of_ranks(
    sets, names, weights, sizes, worlds, stops, at_end, seed
):
    some = {name: sets[name] for name in names}
    options = {
        **options_of(at_end),
        "seed": seed,
        "weights": dict(zip(names, weights, strict=False)),
        "global_sizes": dict(zip(names, sizes, strict=False)),
    }
    stops = stops[: len(worlds)]
    mix = mix_of(some, **options)
    expected = []
    while len(expected) < sum(stops):
        expected += [seen(batch) for batch in mix]
    check_continued(some, expected, worlds, stops, **options)


@pytest.mark.parametrize("at_end", ["restart", "stop", "skip"])
def test_three_sources_over_4_2_and_3_ranks_are_one_run(sets, uninterrupted, at_end):
    check_continued(sets, uninterrupted[at_end], [4, 2, 3], [7, 5, 6], **options_of(at_end))


def check_continued(sets, expected, worlds, stops, **options) -> None:
    found = []
    state = None
    for world_size, stop in zip(worlds, stops, strict=True):
        steps, state = run_of_ranks(sets, world_size, state, stop, **options)
        found += steps
        state = pickle.loads(pickle.dumps(state))
    assert found == expected[: sum(stops)]


def test_an_epoch_that_is_chosen_or_left_early_is_what_it_would_have_been(sets, uninterrupted):
    for at_end in ("restart", "stop", "skip"):
        expected = {
            epoch: [step for step in uninterrupted[at_end] if step[1] == epoch]
            for epoch in range(3)
        }
        mix = mix_of(sets, **options_of(at_end))
        for _ in range(2):
            mix.set_epoch(0)
            next(iter(mix))
        assert [seen(batch) for batch in mix] == expected[1]
        mix.set_epoch(2)
        assert [seen(batch) for batch in mix] == expected[2]
        mix.sampler.set_epoch(1)  # as a library does
        assert len(mix) == len(expected[1])
        assert [seen(batch) for batch in mix] == expected[1]


def test_set_epoch_keeps_the_place_of_a_state_and_never_goes_back_behind_it(sets, uninterrupted):
    mix = mix_of(sets, steps=STEPS)
    running = iter(mix)
    for _ in range(STEPS + 3):
        batch = next(running, None)
        if batch is None:
            running = iter(mix)
    state = mix.state_dict()
    place = state["epoch"] * STEPS + state["batches"]
    assert state["batches"] > 0
    other = mix_of(sets, steps=STEPS)
    other.load_state_dict(state)
    assert other.batches.loaded == (state["epoch"], state["batches"])
    other.set_epoch(0)
    assert other.state_dict() == state
    with pytest.raises(
        LoaderError,
        match=r"a state of epoch 1 was loaded, but then set_epoch\(0\).*: leave set_epoch out",
    ):
        next(iter(other))
    other.set_epoch(1)
    assert [seen(batch) for batch in other] == uninterrupted["restart"][place : 2 * STEPS]
    other.set_epoch(2)
    assert [seen(batch) for batch in other] == uninterrupted["restart"][2 * STEPS :]
    other.set_epoch(0)
    with pytest.raises(LoaderError, match="epoch 0 of the mix begins before the state"):
        next(iter(other))


def test_a_copy_keeps_the_place_and_no_iteration(sets, uninterrupted):
    mix = mix_of(sets, steps=STEPS)
    running = iter(mix)
    next(running)
    for other in (copy.copy(mix), copy.deepcopy(mix), pickle.loads(pickle.dumps(mix))):
        assert other.state_dict() == mix.state_dict()
        assert [seen(batch) for batch in other] == uninterrupted["restart"][STEPS : 2 * STEPS]
    assert len([*running]) == STEPS - 1


def test_a_source_that_is_new_begins_and_the_others_keep_their_places(sets, caplog):
    two = {name: sets[name] for name in ("a", "c")}
    mix = mix_of(two, steps=STEPS)
    running = iter(mix)
    taken = [seen(next(running)) for _ in range(6)]
    state = mix.state_dict()
    for at_end in ("restart", "skip"):
        other = mix_of(sets, **options_of(at_end))
        other.load_state_dict(state | {"at_end": at_end})
        steps = [seen(batch) for batch in other]
        firsts = {name: next(step for step in steps if step[0] == name) for name in sets}
        for name in two:
            latest = [step for step in taken if step[0] == name][-1]
            assert firsts[name][5] == latest[5] + 1  # its global step
        assert firsts["b"][5] == 0
        assert "source 'b' of the mix is not in the state that was loaded" in caplog.text
        caplog.clear()
    with pytest.raises(OptionError, match="the state has the source 'b', which this Mix lacks"):
        mix.load_state_dict(other.state_dict() | {"at_end": "restart"})


@pytest.mark.parametrize("at_end", ["restart", "skip"])
def test_a_source_that_has_grown_begins_again_and_the_others_keep_their_places(
    sets, tmp_path, at_end, caplog
):
    for first, name in ((100, "sa_000100.tar"), (300, "sa_000300.tar")):
        tar = write_tar(tmp_path / name, members(range(first, first + 31), lambda n: n % 4))
        pack_small(tar, tmp_path / "grows")
        if first == 100:
            before = sa1bpack.open(tmp_path / "grows")
            mix = mix_of(sets | {"b": before}, **options_of(at_end))
            running = iter(mix)
            taken = []
            while not taken or taken[-1][0] != "b":
                taken.append(seen(next(running)))
            del running
            state = mix.state_dict()
    assert state["sources"]["b"]["samples"] > 0
    grown = sa1bpack.open(tmp_path / "grows")
    assert len(grown) == 62
    other = mix_of(sets | {"b": grown}, **options_of(at_end))
    other.load_state_dict(state)
    assert "source 'b' of the mix has more samples than in the state" in caplog.text
    steps = [seen(batch) for batch in other]
    for name in sets:
        first = next((step for step in steps if step[0] == name), None)
        before = [step for step in taken if step[0] == name]
        if name == "b" and first is not None:
            assert first[3:5] == [int(at_end == "restart"), 0]
        elif first is not None:
            assert first[5] == len(before)
    changed = mix_of(sets | {"b": grown[1:]}, **options_of(at_end))
    with pytest.raises(OptionError, match=r"source 'b': .*another order.*del state\['sources'\]"):
        changed.load_state_dict(state)
    del state["sources"]["b"]
    changed.load_state_dict(state)
    assert next(iter(changed))["mix_step"] == len(taken)


def test_a_state_of_something_else_is_refused(sets):
    mix = mix_of(sets, steps=STEPS)
    next(iter(mix))
    state = mix.state_dict()
    for name in state:
        with pytest.raises(OptionError):
            mix.load_state_dict({key: value for key, value in state.items() if key != name})
    with pytest.raises(
        OptionError, match=r"another mix: seed was 0, is 1\. Make the Mix with seed=0"
    ):
        mix_of(sets, seed=1).load_state_dict(state)
    with pytest.raises(OptionError, match="another mix: at_end was 'restart', is 'skip'"):
        mix_of(sets, at_end="skip").load_state_dict(state)
    loader = Loader(sets["a"], 2)
    with pytest.raises(OptionError, match="a Mix reads states with the keys"):
        mix.load_state_dict(loader.state_dict())
    damaged = {"a": {**state["sources"]["a"], "samples": 99}}
    with pytest.raises(OptionError, match="source 'a': the state's samples is 99"):
        mix.load_state_dict(state | {"sources": state["sources"] | damaged})
    assert mix.state_dict() == state  # nothing has changed


def test_ranks_that_differ_are_an_error(sets):
    loaders = {
        "a": Loader(sets["a"], 2, rank=0, world_size=2, drop_last=True),
        "b": Loader(sets["b"], 2),
    }
    with pytest.raises(OptionError, match="different ranks, a: rank 0 of 2, b: rank 0 of 1"):
        next(iter(Mix(loaders)))


# ------------------------------------------------------------------------- threads, errors, the end


def mix_threads() -> list[threading.Thread]:
    names = ("sa1bpack-reader", "sa1bpack-pipeline")
    readers()  # what is gone has been ended
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def test_all_sources_share_the_threads_and_the_places_for_pipelines(sets):
    running = []
    most = [0]
    lock = threading.Lock()

    def pipeline(batch):
        with lock:
            running.append(1)
            most[0] = max(most[0], len(running))
        time.sleep(0.002)
        running.pop()
        return batch

    loaders = {
        name: Loader(ds, 2, threads=3, pipeline=pipeline, pipeline_threads=2)
        for name, ds in sets.items()
    }
    mix = Mix(loaders, steps=30)
    assert mix.threads == 3  # as the Loader with the most
    for batch in mix:
        names = [thread.name for thread in mix_threads()]
        reading = [name for name in names if name.startswith("sa1bpack-reader")]
        assert len(reading) == 3 + 2  # one more for each source after the first
        assert batch["source"] in sets
    assert 1 <= most[0] <= 2
    assert mix_threads() == []
    assert Mix(loaders, threads=1).plan().sources["a"].threads == 1


def test_a_slow_source_does_not_hold_up_the_others(sets, monkeypatch):
    """A read of one source lasts until ten batches of the other have come out, with one thread."""
    taken = threading.Event()

    def wait(located):
        if source_of(located) == "b":
            assert taken.wait(60)

    before_copies(monkeypatch, wait)
    two = {name: sets[name] for name in ("a", "b")}
    weights = {"a": 1, "b": sa1bpack.PiecewiseSchedule(0, {12: 1000}, by="step")}
    mix = mix_of(two, sizes=SIZES, weights=weights, steps=16, threads=1)
    names = []
    for batch in mix:
        names.append(batch["source"])
        if len(names) == 10:
            taken.set()
    assert names[:12] == 12 * ["a"] and "b" in names


def test_the_time_that_a_source_takes_is_an_error_that_names_it(sets, monkeypatch):
    release = threading.Event()

    def wait(located):
        if source_of(located) == "b":
            assert release.wait(60)

    before_copies(monkeypatch, wait)
    ends_within(monkeypatch, 0.0)
    mix = mix_of(sets, loader_options={"timeout": 0.3}, steps=STEPS)
    with pytest.raises(LoaderTimeout, match="has been copying") as caught:
        list(mix)
    release.set()
    assert caught.value.__notes__ == ["This is of the source 'b' of a Mix."]
    join_readers()
    assert mix_threads() == []


def test_the_error_of_a_source_ends_the_iteration_and_the_state_is_before_it(
    sets, folder, tmp_path, uninterrupted
):
    shutil.copytree(folder / "b", tmp_path / "b")
    (images,) = (tmp_path / "b/shards/sa_000100-003/image").glob("c.*")
    os.truncate(images, 100)
    mix = mix_of(sets | {"b": sa1bpack.open(tmp_path / "b")}, steps=STEPS)
    running = iter(mix)
    steps = []
    with pytest.raises((ReadError, sa1bpack.FormatError)) as caught:
        for batch in running:
            steps.append(seen(batch))
    assert "'b'" in caught.value.__notes__[-1]
    assert mix_threads() == []
    with pytest.raises(LoaderError, match="this iteration was ended by"):
        next(running)
    assert steps == uninterrupted["restart"][: len(steps)]
    state = mix.state_dict()
    assert state["batches"] == len(steps)
    sound = mix_of(sets, steps=STEPS)
    sound.load_state_dict(state)
    assert [seen(batch) for batch in sound] == uninterrupted["restart"][len(steps) : STEPS]


def test_samples_that_are_dropped_move_no_other_batch(sets, monkeypatch, uninterrupted):
    """A batch of which nothing remains is left out; all others come where they would have come."""
    errors = located_batch.LocatedBatch.errors

    def failing(batch):
        if len(batch) == 0 or source_of(batch) != "c" or batch.ordered.number != 1:
            return errors(batch)
        return [(row, ReadError("no", row=row)) for row in range(len(batch))]

    monkeypatch.setattr(located_batch.LocatedBatch, "errors", failing)
    drops = {"on_error": "drop", "max_dropped": 1.0, "pad_last": False}
    whole = {"on_error": "raise", "pad_last": False}
    mix = mix_of(sets, loader_options=drops, steps=STEPS)
    steps = [seen(batch) for batch in mix]
    monkeypatch.undo()
    expected = [seen(batch) for batch in mix_of(sets, loader_options=whole, steps=STEPS)]
    assert steps == [step for step in expected if (step[0], step[4]) != ("c", 1)]
    assert len(steps) < len(expected)


@pytest.mark.parametrize("how", ["break", "error in the loop", "closed", "garbage", "new", "one"])
def test_threads_end_with_the_iteration(sets, how):
    mix = mix_of(sets, steps=STEPS)
    running = iter(mix)
    next(running)
    assert len(mix_threads()) == 4
    if how == "break":
        for _ in running:
            break
        del running
    elif how == "error in the loop":
        with pytest.raises(KeyboardInterrupt):
            raise_in(running)
        del running
    elif how == "closed":
        mix.close()
        with pytest.raises(LoaderError, match="ended by a new one of the same Mix"):
            next(running)
        with pytest.raises(LoaderError, match="this Mix is closed"):
            next(iter(mix))
    elif how == "garbage":
        del mix, running
    elif how == "new":
        assert len([*mix]) == STEPS
        with pytest.raises(LoaderError, match="ended by a new one of the same Mix"):
            next(running)
    else:
        for _ in mix.loaders["a"]:  # alone, with threads of its own
            pass
        with pytest.raises(LoaderError, match="ended by a new one of the same loader"):
            for _ in running:
                pass
    assert mix_threads() == []


def test_the_threads_of_a_mix_that_still_lives_do_not_hold_up_a_loop_over_one_loader(sets):
    # What should have woken a thread of the loop woke one of the mix, and the loop waited for 10 s.
    often = sets["a"][[*range(len(sets["a"]))] * 10]
    loaders = {name: Loader(often, 1, threads=2, prefetch=1, timeout=8) for name in "abc"}
    mix = Mix(loaders, steps=STEPS)
    running = iter(mix)
    next(running)
    assert sum(1 for _ in loaders["a"]) == len(often)
    with pytest.raises(LoaderError, match="ended by a new one of the same loader"):
        for _ in running:
            pass


def test_ctrl_c_while_a_source_is_waited_for_ends_all_threads(sets, monkeypatch, uninterrupted):
    begun = threading.Event()
    release = threading.Event()

    def wait(located):
        if source_of(located) == "b":
            begun.set()
            assert release.wait(60)

    def interrupt():
        assert begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    # Threads of other tests that are garbage: Python's own callback at the end of one swallows an
    # interrupt that arrives while they are collected.
    gc.collect()
    with monkeypatch.context() as patch:
        before_copies(patch, wait)
        ends_within(patch, 0.0)
        mix = mix_of(sets, steps=STEPS)
        interrupting = threading.Thread(target=interrupt)
        steps = []
        try:
            with pytest.raises(KeyboardInterrupt):
                interrupting.start()
                for batch in mix:
                    steps.append(seen(batch))
                interrupting.join(60)
            interrupting.join(60)
        finally:  # a failure leaves no thread to other tests
            release.set()
            join_readers()
    assert mix_threads() == []
    state = mix.state_dict()
    taken = state["batches"]
    assert taken - len(steps) in (0, 1)  # the interrupt may come before the last one is noted
    again = mix_of(sets, steps=STEPS)
    again.load_state_dict(state)
    assert [seen(batch) for batch in again] == uninterrupted["restart"][taken:STEPS]


@pytest.mark.parametrize("refused", range(4))
def test_a_thread_that_the_system_refuses_leaves_none_behind(
    sets, monkeypatch, uninterrupted, refused
):
    mix = mix_of(sets, steps=STEPS)
    started = []

    def start(work, name):
        if len(started) == refused:
            raise ThreadRefused("no more")
        started.append(name)
        return start_thread(work, name)

    with monkeypatch.context() as patch:
        patch.setattr(reader_crew, "start_thread", start)
        with pytest.raises(ThreadRefused):
            next(iter(mix))
    assert mix_threads() == []
    assert [seen(batch) for batch in mix] == uninterrupted["restart"][:STEPS]


def raise_in(running) -> None:
    for _ in running:
        raise KeyboardInterrupt


def test_a_fork_has_its_own_threads_and_none_of_the_parents(sets, uninterrupted):
    mix = mix_of(sets, steps=STEPS)
    running = iter(mix)
    next(running)
    with forked_child() as child:
        if child == 0:
            with pytest.raises(LoaderError, match="belongs to the process that forked"):
                next(running)
            mix.set_epoch(0)
            assert [seen(batch) for batch in mix] == uninterrupted["restart"][:STEPS]
    assert [seen(batch) for batch in running] == uninterrupted["restart"][1:STEPS]


def test_functions_of_the_user_that_fail_are_named_and_end_it(sets):
    def failing(_):
        raise ValueError("no")

    loaders = {"a": Loader(sets["a"], 4), "b": Loader(sets["b"], 4, pipeline=failing)}
    with pytest.raises(
        UserCodeError, match="pipeline raised ValueError: no for batch 0 of epoch 0"
    ) as caught:
        list(Mix(loaders))
    assert "'b'" in caught.value.__notes__[-1]
    loaders = {"a": Loader(sets["a"], 4), "b": Loader(sets["b"], 4, on_epoch_end=failing)}
    mix = Mix(loaders, {"a": 0, "b": 1}, steps=20)
    taken = []
    with pytest.raises(UserCodeError, match="on_epoch_end"):
        for batch in mix:
            taken.append(batch["batch_idx"])
    assert taken == [*range(11)]  # the last one was not lost
    assert mix.state_dict()["batches"] == 11
    assert mix_threads() == []


def test_each_epoch_of_a_source_is_reported_and_the_figures_are_by_source(sets):
    reported = []
    loaders = {
        name: Loader(ds, 4, on_epoch_end=lambda stats, name=name: reported.append((name, stats)))
        for name, ds in sets.items()
    }
    mix = Mix(loaders, {"a": 1, "b": 2, "c": 2}, steps=30)
    with pytest.raises(LoaderError, match="no epoch of the mix has begun here"):
        mix.stats()
    names = [batch["source"] for batch in mix]
    stats = mix.stats()
    assert stats.ended and stats.batches == 30
    for name in sets:
        of_source = stats.sources[name]
        assert of_source.batches == names.count(name)
        assert of_source.epochs == [one for one, _ in reported].count(name)
        assert of_source.loading is not None
    assert stats.slowest in sets
    assert 0 <= stats.waited_share <= 1 and "epoch 0 of the mix: 30 batches (a " in str(stats)
    assert stats.scalars()["b/batches"] == names.count("b")
    plan = mix.plan()
    assert plan.host_bytes == sum(of_source.host_bytes for of_source in plan.sources.values())
    assert "30 batches to the end of the epoch" in str(plan)


# ------------------------------------------------------------------------------------------ options


def test_what_a_pipeline_returns_gets_the_keys_of_the_mix(sets):
    made = {"a": lambda batch: {"x": batch["images"]}, "b": lambda batch: (batch["images"],)}
    loaders = {name: Loader(sets[name], 4, pipeline=made[name]) for name in made}
    batch = next(iter(Mix(loaders, {"a": 1, "b": 0})))
    assert batch.keys() == {"x", "source", "mix_epoch", "mix_step"}
    with pytest.raises(OptionError, match=r"the pipeline of source 'b' returned .* a dict"):
        list(Mix(loaders, {"a": 0, "b": 1}))
    taken = Loader(sets["a"], 4, pipeline=lambda batch: {"source": 1})
    with pytest.raises(OptionError, match="batches of source 'a' have the key 'source' already"):
        list(Mix({"a": taken}))


def test_batches_of_a_mix_are_moved_and_cut_as_others(sets):
    batch = next(iter(mix_of(sets, steps=1)))
    assert batch.spec == sets[batch["source"]].spec_text
    moved = batch.to("meta")
    assert moved["source"] == batch["source"]
    assert moved["images"].device == torch.device("meta")


def test_options_that_cannot_be_used(sets):
    a = Loader(sets["a"], 2)
    b = Loader(sets["b"], 2)
    two = {"a": a, "b": b}
    for loaders, message in (
        ([a, b], "pass a dict of 1 to 1000 Loaders"),
        ({}, "pass a dict of 1 to 1000 Loaders"),
        ({"": a}, "a source is called ''"),
        ({"a": sets["a"]}, r"source 'a' is .*a Mix takes Loaders"),
        ({"a": sa1bpack.make_dataloader(sets["a"], 2, num_workers=0)}, "worker processes"),
        ({"a": a, "b": a}, "sources 'a' and 'b' are the same Loader"),
    ):
        with pytest.raises(OptionError, match=message):
            Mix(loaders)
    for weights, message in (
        ({"a": 1}, "weights lacks 'b': give one number for each of a, b; 0 leaves"),
        ({"a": 1, "b": 1, "c": 1}, "weights has 'c', which is no source"),
        ([1, 2], "pass a dict of names and numbers"),
    ):
        with pytest.raises(OptionError, match=message):
            Mix(two, weights)
    with pytest.raises(OptionError, match="steps is 5, but with at_end='skip'"):
        Mix(two, at_end="skip", steps=5)
    with pytest.raises(OptionError, match=r"steps is 1000000000000: .* to 100000000"):
        Mix(two, steps=10**12)
    order = sa1bpack.WeightedOrder(sets["a"], np.ones(len(sets["a"])), samples=10**8)
    endless = {"a": sa1bpack.Loader(sets["a"], 1, order=order), "b": b}
    with pytest.raises(OptionError, match=r"100,000,\d+ batches .* 100,000,000: choose st"):
        next(iter(Mix(endless)))
    assert next(iter(Mix(endless, steps=5)))["source"] in ("a", "b")
    with pytest.raises(OptionError, match="threads is 0"):
        Mix(two, threads=0)
    with pytest.raises(OptionError, match=r"dataset_prob.*weights"):
        Mix(two, dataset_prob=[1, 2])
    mix = Mix(two, {"a": 1, "b": 2})
    assert repr(mix) == f"<Mix of a 1, b 2: at_end restart, epoch 0, {threads_text(mix)}>"
    assert not hasattr(mix, "dataset")


def threads_text(mix: Mix) -> str:
    return f"{mix.threads} thread{'s' * (mix.threads > 1)}"
