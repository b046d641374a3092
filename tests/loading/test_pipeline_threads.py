"""A Loader's pipeline: its batches in order, bit for bit, and how its threads end."""

import gc
import pickle
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from batches import flattened, readers, same_batches
from forked_programs import forked_python, run_forked
from loader_seams import ends_within
from reading_packs import write_pack

from sa1bpack import Loader, LoaderError, OptionError, ReadError
from sa1bpack import open as open_pack
from sa1bpack import transforms as T
from sa1bpack.errors import LoaderTimeout, UserCodeError
from sa1bpack.finalizers import settle

STEPS = [
    T.RandomResizedCrop((0.4, 1.0)),
    T.RandomVerticalFlip(),
    T.ColorJitter(0.4, 0.4, 0.4, 0.1, random_order=True),
    T.GaussianBlur(3),
    T.RandomErasing(masks=True),
    T.Mixup(),
]


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """The folder of a pack of 24 samples."""
    root = tmp_path_factory.mktemp("pipelines") / "pack"
    write_pack(root, {"sa_000000-000": (2,) * 12, "sa_000001-000": (3, 0) * 6})
    return root


@pytest.fixture
def ds(pack):
    return open_pack(pack)


def workers() -> list[threading.Thread]:
    """The threads that call pipelines, once what is gone has ended its own."""
    settle()
    return [t for t in threading.enumerate() if t.name.startswith("sa1bpack-pipeline")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    assert not workers() and not readers()


def numbers_of(batch: dict) -> dict:
    """Copies of what a batch has, runs as their tensors."""
    items = flattened(batch)
    return {k: v.clone() if torch.is_tensor(v) else v for k, v in items.items()}


@pytest.mark.parametrize(
    ("mask_format", "steps", "threads"), [("bits", STEPS, 3), ("runs", STEPS, 1), ("runs", [], 3)]
)
def test_batches_are_those_of_calls_in_the_loop_bit_for_bit_and_in_order(
    pack, mask_format, steps, threads
):
    ds = open_pack(pack, mask_format=mask_format)
    options = {"shuffle": True, "seed": 3, "max_masks": 2, "mask_select": "random"}
    pipeline = T.Pipeline(ds, steps, seed=5)
    with Loader(ds, 5, **options) as plain:
        expected = [[numbers_of(pipeline(batch)) for batch in plain] for _ in range(2)]
    with Loader(ds, 5, pipeline=pipeline, pipeline_threads=threads, **options) as loader:
        found = [[numbers_of(batch) for batch in loader] for _ in range(2)]
        assert loader.state_dict() == plain.state_dict()
    for epoch in range(2):
        same_batches(found[epoch], expected[epoch])


def test_several_batches_are_in_the_pipeline_at_once_and_come_out_in_order(ds):
    """The first waits until the third is there."""
    third_began = threading.Event()

    def pipeline(batch):
        if batch["batch_idx"] == 2:
            third_began.set()
        assert third_began.wait(60)
        return batch["batch_idx"]

    with Loader(ds, 4, pipeline=pipeline, pipeline_threads=3) as loader:
        assert list(loader) == [0, 1, 2, 3, 4, 5]


def test_no_more_batches_exist_than_threads_and_one_besides_that_of_the_loop(ds):
    taken, most = 0, []

    def pipeline(batch):
        most.append(batch["batch_idx"] - taken)
        return batch["batch_idx"]

    with Loader(ds, 1, pipeline=pipeline, pipeline_threads=2) as loader:
        for number in loader:
            taken = number + 1
    assert len(most) == 24 and max(most) <= 3


@pytest.mark.parametrize("seen", [0, 1, 3, 5])
def test_a_state_resumes_with_the_batch_that_the_loop_has_not_seen(ds, seen):
    options = {"shuffle": True, "seed": 1, "pipeline_threads": 3}
    pipeline = T.Pipeline(ds, STEPS)
    with Loader(ds, 4, pipeline=pipeline, **options) as loader:
        expected = [numbers_of(batch) for batch in loader]
        iterator = iter(loader)
        for _ in range(seen):
            next(iterator)
        state = loader.state_dict()
        first = [numbers_of(batch) for batch in loader] if seen == 0 else []
    with Loader(ds, 4, pipeline=pipeline, **options) as loader:
        loader.load_state_dict(state)
        rest = [numbers_of(batch) for batch in loader]
    assert [batch["batch_idx"] for batch in rest] == list(range(seen, 6))
    assert rest[0]["epoch"] == 1
    if first:
        same_batches(rest, first)
    assert expected[0]["epoch"] == 0


def test_an_error_of_the_pipeline_comes_in_place_of_its_batch_and_names_its_images(ds):
    """Batches before it are delivered, and the place is where it was before it."""
    third_failed = threading.Event()

    def pipeline(batch):
        number = batch["batch_idx"]
        if number == 2:
            third_failed.set()
            raise ValueError("no such colour")
        assert number > 2 or third_failed.wait(60)
        return number

    with Loader(ds, 4, pipeline=pipeline, pipeline_threads=3) as loader:
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [0, 1]
        ids = ", ".join(map(str, ds.column("image_id")[8:12].tolist()))
        match = (
            f"pipeline raised ValueError: no such colour for batch 2 of epoch 0, the images {ids}"
        )
        with pytest.raises(UserCodeError, match=match):
            next(iterator)
        with pytest.raises(LoaderError, match="this iteration was ended by UserCodeError"):
            next(iterator)
        assert loader.state_dict()["samples"] == 8


def test_an_error_of_this_package_keeps_its_type_and_says_for_which_batch(pack):
    other = T.Pipeline(open_pack(pack, mask_format="runs"))
    with Loader(open_pack(pack), 4, pipeline=other) as loader, pytest.raises(OptionError) as caught:
        next(iter(loader))
    assert "raised by pipeline for batch 0 of epoch 0, the images" in caught.value.__notes__[0]


def test_a_pipeline_that_returns_nothing_is_an_error(ds):
    with (
        Loader(ds, 4, pipeline=lambda batch: None) as loader,
        pytest.raises(OptionError, match="pipeline returned None for batch 0 of epoch 0"),
    ):
        next(iter(loader))


def test_a_sample_that_cannot_be_read_is_named_and_may_be_dropped(damaged):
    """Samples 4 to 6 of 12 cannot be read."""
    pipeline = T.Pipeline(damaged, [T.RandomHorizontalFlip()])
    with Loader(damaged, 2, pipeline=pipeline) as loader:
        iterator = iter(loader)
        assert [next(iterator)["batch_idx"] for _ in range(2)] == [0, 1]
        with pytest.raises(ReadError, match="sa_000001"):
            next(iterator)
    options = {"on_error": "drop", "max_dropped": 1.0}
    with Loader(damaged, 2, **options) as plain:
        expected = [numbers_of(pipeline(batch)) for batch in plain]
    with Loader(damaged, 2, pipeline=pipeline, **options) as loader:
        same_batches([numbers_of(batch) for batch in loader], expected)
        assert [error.row for error in loader.dropped] == [error.row for error in plain.dropped]


class Gate:
    """A pipeline whose calls wait, all but the first, until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.some_wait = threading.Event()
        self.epochs: list[int] = []

    def __call__(self, batch):
        self.epochs.append(batch["epoch"])
        if batch["batch_idx"] > 0:
            self.some_wait.set()
            assert self.opened.wait(60)
        return batch


@contextmanager
def held_up(monkeypatch):
    """A gate that opens at the end of this block; epochs do not wait for their threads."""
    gate = Gate()
    ends_within(monkeypatch, 0.0)
    try:
        yield gate
    finally:
        gate.opened.set()


def take_one(loader, gate) -> dict:
    """The state after the first batch of a loop that is left while calls are held up."""
    for _ in loader:
        assert gate.some_wait.wait(60)
        return loader.state_dict()
    raise AssertionError("the loader has a batch")


@pytest.mark.parametrize("then", ["next epoch", "set_epoch", "load_state_dict"])
def test_a_call_that_ends_after_its_epoch_reaches_nothing_of_the_next(ds, monkeypatch, then):
    options = {"shuffle": True, "seed": 4}
    with Loader(ds, 4, **options) as plain:
        epochs = [[numbers_of(batch) for batch in plain] for _ in range(2)]
    with held_up(monkeypatch) as gate:
        loader = Loader(ds, 4, pipeline=gate, pipeline_threads=2, **options)
        state = take_one(loader, gate)
        late = [thread for thread in threading.enumerate() if "sa1bpack-pipeline" in thread.name]
        expected = epochs[1]
        if then == "set_epoch":
            loader.set_epoch(0)
            expected = epochs[0]
        if then == "load_state_dict":
            loader.load_state_dict(state)
            expected = epochs[0][1:]
        iterator = iter(loader)
        found = []
        if then != "load_state_dict":
            found.append(numbers_of(next(iterator)))
        gate.opened.set()
        found += [numbers_of(batch) for batch in iterator]
        same_batches(found, expected)
        for thread in late:
            thread.join(60)
        loader.close()


@pytest.mark.parametrize(
    "how", ["break", "close", "collected", "error in the loop", "iterated anew"]
)
def test_however_a_loop_ends_its_threads_do(ds, how):
    loader = Loader(ds, 2, pipeline=T.Pipeline(ds, STEPS), pipeline_threads=2)
    if how == "error in the loop":
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                1 / 0  # noqa: B018
    elif how == "break":
        for _ in loader:
            break
    elif how == "close":
        iterator = iter(loader)
        next(iterator)
        loader.close()
        with pytest.raises(LoaderError):
            next(iterator)
    elif how == "collected":
        iterator = iter(loader)
        next(iterator)
        del loader
        next(iterator)
        del iterator
    else:
        first = iter(loader)
        next(first)
        assert sum(1 for _ in loader) == 12
        with pytest.raises(LoaderError):
            next(first)
    gc.collect()
    assert not workers() and not readers()


def test_a_pipeline_that_hangs_is_a_timeout_that_says_where(ds, monkeypatch):
    with held_up(monkeypatch) as gate:
        loader = Loader(ds, 4, pipeline=gate, pipeline_threads=2, timeout=0.2)
        iterator = iter(loader)
        next(iterator)
        assert gate.some_wait.wait(60)
        with pytest.raises(LoaderTimeout) as caught:
            next(iterator)
        assert "has had batch 1 in the pipeline for" in str(caught.value)
        assert "did not arrive within 0.2 s" in str(caught.value)
    loader.close()
    deadline = time.monotonic() + 60
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_copy_of_a_loader_has_its_pipeline_and_its_place(ds):
    loader = Loader(ds, 4, shuffle=True, pipeline=T.Pipeline(ds, STEPS), pipeline_threads=2)
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    assert copied.state_dict() == loader.state_dict()
    copied.load_state_dict(loader.state_dict())
    found = [numbers_of(batch) for batch in copied]
    loader.load_state_dict(loader.state_dict())
    same_batches(found, [numbers_of(batch) for batch in loader])
    loader.close()
    copied.close()


def test_results_that_share_the_memory_of_a_batch_stay_what_they_are(pack, caplog):
    """Runs do: buffers suffice for all that are on their way."""
    ds = open_pack(pack, mask_format="runs")
    pipeline = T.Pipeline(ds)
    with Loader(ds, 2) as plain:
        expected = [numbers_of(pipeline(batch)) for batch in plain]
    with Loader(ds, 2, pipeline=pipeline, pipeline_threads=4, prefetch=1) as loader:
        same_batches([numbers_of(batch) for batch in loader], expected)
        assert loader.plan().batches == 1 + 2 + 5
        assert "hold all" not in caplog.text
        kept = list(loader)
    for batch, other in zip(kept, expected, strict=True):
        for name, value in vars(batch["runs"]).items():
            assert not torch.is_tensor(value) or torch.equal(value, other[f"runs.{name}"])


ENDS = """
import os, signal, sys
from sa1bpack import Loader, open as open_pack, transforms
signal.alarm(60)
ds = open_pack({root!r})
loader = Loader(ds, 2, pipeline=transforms.Pipeline(ds), pipeline_threads=2)
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        next(iterator)
    except Exception as error:
        assert "belongs to the process that forked" in str(error), error
    assert sum(1 for _ in loader) == 12
    del iterator, loader
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert sum(1 for _ in iterator) == 11
begun = iter(loader)
next(begun)
print("ends with an iteration that was begun")
"""


def test_a_fork_and_the_end_of_the_program_do_not_hang(pack):
    text = forked_python(ENDS.format(root=str(pack)), action="ignore")
    assert text == "ends with an iteration that was begun\n"


def test_on_cuda_the_loop_calls_the_pipeline_itself(ds, cuda):
    threads = []

    def pipeline(batch):
        threads.append(threading.current_thread())
        return batch["batch_idx"]

    with Loader(ds, 4, device="cuda", pipeline=pipeline) as loader:
        assert list(loader) == [0, 1, 2, 3, 4, 5]
        stats = loader.stats()
    assert set(threads) == {threading.current_thread()}
    assert stats.pipeline_threads is None and stats.pipeline_seconds > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pipeline": 3}, "pipeline is 3: choose a transforms.Pipeline"),
        ({"pipeline_threads": 2}, "there is no pipeline for them"),
        ({"pipeline": print, "pipeline_threads": 0}, "pipeline_threads is 0"),
        (
            {"pipeline": print, "pipeline_threads": 2, "device": "cuda"},
            "leave pipeline_threads out",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(ds, options, text):
    with pytest.raises(OptionError, match=text):
        Loader(ds, 4, **options)


def test_the_figures_say_that_threads_were_in_the_pipeline(ds):
    with Loader(ds, 4, pipeline=T.Pipeline(ds, STEPS), pipeline_threads=2) as loader:
        list(loader)
        stats = loader.stats()
    assert stats.pipeline_threads == 2 and stats.pipeline_seconds > 0
    assert stats.pipeline_share is None and stats.samples == 24
    assert "s in 2 threads" in str(stats)


LEAVING = """
import sys, threading, time
import sa1bpack

root, kind, held, end = sys.argv[1:]
begun = threading.Semaphore(0)

def pipeline(batch):
    if batch["batch_idx"] == 1:
        begun.release()
        time.sleep(1.5)  # longer than an iteration waits for its threads when it ends
        print("returned", flush=True)
    return batch

loader = sa1bpack.Loader(sa1bpack.open(root), 2, pipeline=pipeline)
if kind == "mix":
    loader = sa1bpack.Mix({"a": loader}, steps=4)
iterator = iter(loader)
next(iterator)
begun.acquire()
if held == "dropped":
    del iterator
print("end", flush=True)
if end == "error":
    raise ValueError("of the loop")
sys.exit(int(end))
"""


@pytest.mark.parametrize(
    ("kind", "held", "end"),
    [
        ("loader", "held", "0"),
        ("loader", "dropped", "error"),
        ("mix", "held", "3"),
        ("mix", "dropped", "0"),
    ],
)
def test_a_process_ends_once_the_pipeline_has_returned_and_with_its_own_exit_code(
    packed, kind, held, end
):
    """A thread within torch that meets an interpreter which has ended aborts the process."""
    status, output, errors = run_forked(LEAVING, packed.root, kind, held, end)
    assert output == "end\nreturned\n"
    assert status == (1 if end == "error" else int(end))
    assert ("ValueError: of the loop" in errors) == (end == "error")
