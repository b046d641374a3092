"""make_dataloader: the Loader's batches from a torch DataLoader, with a state and a plan."""

import copy
import logging
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from batches import rows_of, same, same_batches, tensors_of
from commands import python
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from sa1bpack import Loader, OptionError, PiecewiseSchedule, make_dataloader
from sa1bpack import open as open_pack

OPTIONS = {"mask_layout": "concat", "max_masks": 3, "mask_select": "random"}
OPTIONS |= {"shuffle": True, "seed": 4, "relations": "ious"}
BY_STEP = {
    "max_masks": PiecewiseSchedule(1, {1: 2, 2: 3, 4: 5}, by="step"),
    "mask_select": "random",
}
BY_STEP |= {"shuffle": True}


def halve(sample):
    return sample | {"masks": sample["masks"][:, ::2]}


@pytest.mark.parametrize("options", [OPTIONS, BY_STEP])
def test_batches_of_workers_are_those_of_the_loader_in_every_epoch(ds, options):
    """Every batch of an epoch is requested before the first is used."""
    made = make_dataloader(ds, 4, num_workers=2, prefetch_factor=4, **options)
    assert isinstance(made, DataLoader) and len(made) == 3
    with Loader(ds, 4, **options) as loader:
        for _ in range(3):
            same_batches(made, loader)
    made.end_workers()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_counts_batches_that_were_taken_not_those_fetched_ahead(ds, workers):
    made = make_dataloader(ds, 2, num_workers=workers, shuffle=True, seed=1)
    complete = rows_of(made)
    made.set_epoch(0)
    for number, _ in enumerate(made):
        if number == 1:
            break
    state = made.state_dict()
    assert state["samples"] == 4
    other = make_dataloader(ds, 2, num_workers=workers, shuffle=True, seed=1)
    other.load_state_dict(state)
    assert rows_of(other) == complete[2:]
    assert other.state_dict()["epoch"] == 1
    with Loader(ds, 2, shuffle=True, seed=1) as loader:  # and the Loader can continue from it
        loader.load_state_dict(state)
        assert rows_of(loader) == complete[2:]
    made.end_workers(), other.end_workers()


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_keeps_the_place_and_has_workers_of_its_own(ds, duplicate):
    made = make_dataloader(ds, 4, num_workers=1, shuffle=True, seed=1)
    running = iter(made)
    next(running)
    other = duplicate(made)
    assert other.state_dict() == made.state_dict()
    second = rows_of(other)
    assert len(list(running)) == 2
    assert rows_of(made) == second
    made.end_workers(), other.end_workers()


def test_workers_are_started_by_default_only_for_transforms(packed, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    plain, hooked = open_pack(packed.root), open_pack(packed.root, transform=halve)
    assert make_dataloader(plain, 4).num_workers == 0
    made = make_dataloader(hooked, 4)
    assert made.num_workers == 1 and made.persistent_workers and made.prefetch_factor == 2


def test_making_one_does_not_begin_to_use_cuda(ds, monkeypatch):
    """`is_available` may initialise the driver, which forked workers cannot use any more."""

    def asked():
        raise AssertionError("the driver is initialised")

    monkeypatch.setattr("torch.cuda.is_available", asked)
    assert len(make_dataloader(ds, 4, num_workers=0)) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_the_plan_states_the_memory_of_the_batches(ds, workers):
    made = make_dataloader(ds, 4, num_workers=workers, mask_layout="padded_bits", pin_memory=False)
    plan = made.plan()
    assert plan.batches == (1 if workers == 0 else 2 * 3 + 1)
    assert plan.host_bytes == plan.batches * plan.batch_bytes
    assert plan.shared_bytes == (plan.host_bytes if workers else 0)
    for batch in made:
        assert sum(tensor.nbytes for tensor in tensors_of(batch).values()) <= plan.batch_bytes
    made.end_workers()


def test_too_little_shared_memory_is_reported_before_a_worker_dies(ds, monkeypatch, caplog):
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        make_dataloader(ds, 4, num_workers=2)
    assert "--shm-size" in caplog.text


def test_workers_are_refused_where_there_is_no_shared_memory_to_write_to(ds, monkeypatch):
    """On a read-only root file system; torch's own error names a file of its own."""
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) != "/dev/shm" and access(path, mode)
    )
    with pytest.raises(OptionError, match=r"num_workers is 2, .* cannot write to /dev/shm, .*=0"):
        make_dataloader(ds, 2, num_workers=2)
    assert len(make_dataloader(ds, 2, num_workers=0)) > 0


@pytest.mark.parametrize(("options", "named"), [
    ({"num_workers": -1}, "num_workers is -1"),
    ({"prefetch_factor": 0}, "prefetch_factor is 0"),
    ({"timeout": None, "num_workers": 2}, "timeout is None"),
    ({"multiprocessing_context": "thread"}, "multiprocessing_context is 'thread': .*spawn"),
    ({"multiprocessing_context": 3, "num_workers": 2}, "multiprocessing_context is 3: .*spawn"),
])  # fmt: skip
def test_a_value_that_cannot_be_used_by_a_dataloader_is_named(ds, options, named):
    with pytest.raises(OptionError, match=named):
        make_dataloader(ds, 4, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("layout", ["padded", "concat_bits"])
def test_dropped_samples_are_those_that_the_loader_drops_even_in_workers(damaged, workers, layout):
    """No sample of batch 2 remains, so it is skipped."""
    options = {"mask_layout": layout, "on_error": "drop", "max_dropped": 0.3}
    made = make_dataloader(damaged, 2, num_workers=workers, **options)
    with Loader(damaged, 2, **options) as loader:
        for epoch in (1, 2):
            for batch, expected in zip(made, loader, strict=True):
                assert type(batch) is type(expected)
                same(batch, expected)
            assert [error.row for error in made.dropped] == [4, 5, 6] * epoch
        assert [str(error) for error in made.dropped] == [str(error) for error in loader.dropped]
        assert {error.image_id for error in made.dropped} == {4982, 4985, 4988}
    made.end_workers()


def test_samples_of_batches_not_taken_do_not_count_as_dropped(damaged):
    made = make_dataloader(damaged, 2, num_workers=2, on_error="drop", max_dropped=1)
    batches = iter(made)
    next(batches), next(batches)
    assert made.dropped == []
    next(batches)  # batch 3: no sample of batch 2 remains
    assert [error.row for error in made.dropped] == [4, 5, 6]
    made.end_workers()


@pytest.mark.parametrize(("step", "taken"), [("_get_data", 0), ("_process_data", 1)])
def test_an_interrupt_within_torchs_iterator_does_not_reach_the_next_epoch(
    ds, step, taken, monkeypatch
):
    """Ctrl-C in a notebook, which goes on to use the loader: its workers persist."""
    made = make_dataloader(ds, 4, num_workers=2, shuffle=True, seed=1, timeout=30)
    expected = [rows_of(made) for _ in range(2)]

    def interrupt(*_):
        raise KeyboardInterrupt

    batches = iter(made)
    for _ in range(taken):
        next(batches)
    with monkeypatch.context() as patch:
        patch.setattr(_MultiProcessingDataLoaderIter, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    made.set_epoch(0)
    assert [rows_of(made) for _ in range(2)] == expected
    made.end_workers()


def test_workers_finish_their_batches_before_the_program_ends(packed):
    """A file in shared memory has a name for a moment while it is made; this one for longer."""
    script = f"""
import os, time
import multiprocessing
from pathlib import Path
from sa1bpack import make_dataloader
from sa1bpack import open as open_pack

def slow(sample):
    file = Path(f"/dev/shm/torch_{{os.getpid()}}_{{sample['image_id']}}")
    file.touch()
    time.sleep(0.1)
    file.unlink()
    return sample

made = make_dataloader(open_pack({str(packed.root)!r}, transform=slow), 2, num_workers=2)
batches = iter(made)
next(batches)
print(os.getpid(), *[child.pid for child in multiprocessing.active_children()])
"""
    pids = python("-c", script, timeout=90).split()
    left = [file for pid in pids for file in Path("/dev/shm").glob(f"torch_{pid}_*")]
    for file in left:
        file.unlink()
    assert len(pids) == 3 and left == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_script_without_a_guard_is_told_of_it_first(root, tmp_path):
    script = tmp_path / "script.py"
    options = "num_workers=1, multiprocessing_context='spawn'"
    script.write_text(
        f"import sa1bpack\nds = sa1bpack.open({str(root)!r})\n"
        f"loader = sa1bpack.make_dataloader(ds, 2, {options})\n"
        "try:\n    next(iter(loader))\nexcept sa1bpack.errors.LoaderError as error:\n"
        "    print(error)\n"
    )
    said = python(script, quiet=False)
    assert said.startswith("a worker process that is not forked imports the script again: ")
    assert 'below `if __name__ == "__main__":`' in said and "with exit code 1" in said
