"""Whatever a function of the user's raises is an error with the name of what it was called for.

From every place where one is called, through every loader, in this process and in worker processes.
"""

import functools
import queue
import re
import sys

import pytest
from reading_packs import ds, packed  # noqa: F401 - fixtures
from small_tars import SMALL, members, pack_small, write_tar
from torch.utils.data import DataLoader, Subset

import sa1bpack
from sa1bpack import transforms as T
from sa1bpack.errors import OptionError, ReadError, UserCodeError

# Newer Pythons warn of a fork while other threads run: torch has some, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
OPTIONS = sa1bpack.PackOptions(**SMALL)


class Picky(Exception):
    """Cannot be made of a text alone, as torch makes what a worker process raised."""

    def __init__(self, one, other):
        super().__init__(one, other)


class Silent(Exception):
    """Has no text."""

    def __str__(self):
        raise ValueError("no text")


class Base(BaseException):
    """Not even an Exception."""


def unpicklable() -> Exception:
    class Local(Exception):
        pass

    error = Local("local")
    error.function = lambda: None
    return error


# What a function raises: by name, because workers make it themselves.
RAISED = {
    "ValueError": lambda: ValueError("bad"),
    "KeyError": lambda: KeyError(("odd", None), b"\0"),
    "IndexError": lambda: IndexError("index 9"),
    "StopIteration": lambda: StopIteration(),
    "StopAsyncIteration": lambda: StopAsyncIteration(),
    "GeneratorExit": lambda: GeneratorExit(),
    "Empty": lambda: queue.Empty(),
    "TimeoutError": lambda: TimeoutError("late"),
    "OSError": lambda: OSError(24, "too many", "file"),
    "ReadError": lambda: ReadError("of another dataset"),
    "Picky": lambda: Picky(1, 2),
    "Silent": lambda: Silent(),
    "Local": unpicklable,
}
# What ends the program where it is raised in its main thread, but must not end a worker silently.
ENDING = {"SystemExit": lambda: SystemExit(0), "Base": lambda: Base()}


class Raising:
    """Raises for the second image that it is called for, whatever it is called with."""

    def __init__(self, name: str):
        self.name, self.calls = name, 0

    def __call__(self, value, *others):
        self.calls += 1
        if self.calls == 2:
            raise (RAISED | ENDING)[self.name]()
        return value


class RaisingInTurn:
    """Raises the next of some exceptions whenever it is called for the first image of an epoch."""

    def __init__(self, names: list[str]):
        self.names = names
        self.first = None
        self.epochs = 0

    def __call__(self, sample):
        image_id = int(sample["image_id"])
        if self.first is None:
            self.first = image_id
        if image_id != self.first:
            return sample
        name = self.names[self.epochs]
        self.epochs += 1
        raise (RAISED | ENDING)[name]()


def samples_of(dataset):
    return [dataset[k] for k in range(len(dataset))]


def of_torch(dataset, workers):
    return DataLoader(dataset, 2, num_workers=workers, collate_fn=list, timeout=60 * (workers > 0))


# Ways to go through a dataset.
IN_PROCESS = {
    "by index": samples_of,
    "iterated": list,
    "batched": lambda dataset: dataset.__getitems__([0, 1, 2]),
    "Subset": lambda dataset: list(Subset(dataset, range(3))),
    "DataLoader": lambda dataset: list(of_torch(dataset, 0)),
}


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    return write_tar(folder / "sa_000000.tar", members(range(1, 6)), compress=False)


@pytest.fixture
def datasets(packed, tar):  # noqa: F811
    """Kind → the dataset of that kind whose samples are given to a function."""
    return {
        "Dataset": lambda function: sa1bpack.open(packed.root, transform=function),
        "dropping": lambda function: sa1bpack.open(
            packed.root, transform=function, on_error="return"
        ),
        "TarDataset": lambda function: sa1bpack.TarDataset(
            tar, options=OPTIONS, transform=function
        ),
    }


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("kind", ["Dataset", "dropping", "TarDataset"])
def test_in_this_process_it_names_the_sample_and_has_the_exception_as_its_cause(
    datasets, kind, raised
):
    for way, take in IN_PROCESS.items():
        with pytest.raises(
            UserCodeError, match=r"transform raised .*image_id \d+, row 1"
        ) as caught:
            take(datasets[kind](Raising(raised)))
        assert type(caught.value.__cause__).__name__ == raised, way


@pytest.mark.parametrize("raised", RAISED)
def test_a_stream_of_a_tar_names_the_sample(tar, raised):
    stream = sa1bpack.IterableTarDataset(tar, options=OPTIONS, transform=Raising(raised))
    with pytest.raises(UserCodeError, match=r"transform raised .*image_id"):
        list(stream)
    with pytest.raises(UserCodeError, match=r"transform raised .*image_id"):
        list(DataLoader(sa1bpack.IterableTarDataset(
            tar, options=OPTIONS, transform=Raising(raised)), 2, collate_fn=list))  # fmt: skip


@pytest.mark.parametrize("raised", RAISED)
def test_a_loader_ends_no_epoch_for_it(packed, raised):  # noqa: F811
    for on_error in ("raise", "drop"):
        dataset = sa1bpack.open(packed.root, transform=Raising(raised))
        loader = sa1bpack.make_dataloader(dataset, 2, num_workers=0, on_error=on_error)
        with pytest.raises(UserCodeError, match=r"transform raised .*image_id"):
            list(loader)


@pytest.mark.parametrize("kind", ["DataLoader", "IterableTarDataset"])
def test_from_a_worker_process_it_names_the_sample(packed, tar, kind):  # noqa: F811
    """One worker raises everything, an epoch each: starting it takes most of the time."""
    function = RaisingInTurn([*RAISED, *ENDING])
    if kind == "IterableTarDataset":
        dataset = sa1bpack.IterableTarDataset(tar, options=OPTIONS, transform=function)
    else:
        dataset = sa1bpack.open(packed.root, transform=function)
    loader = DataLoader(
        dataset, 2, num_workers=1, persistent_workers=True, collate_fn=list, timeout=60
    )
    for raised in [*RAISED, *ENDING]:
        with pytest.raises(UserCodeError, match=r"transform raised .*image_id") as caught:
            list(loader)
        assert re.search(rf"transform raised (\S+\.)?{raised}\b", str(caught.value))


@pytest.mark.parametrize("raised", ["StopIteration", "Picky", "Silent", "Local", *ENDING])
def test_from_a_worker_of_make_dataloader_it_names_the_sample(packed, raised):  # noqa: F811
    """Which begins with a new worker after an error; these are those that pickle badly."""
    dataset = sa1bpack.open(packed.root, transform=Raising(raised))
    loader = sa1bpack.make_dataloader(dataset, 2, num_workers=1)
    with pytest.raises(UserCodeError, match=rf"transform raised (\S+\.)?{raised}\b.*image_id"):
        list(loader)


@pytest.mark.parametrize("raised", ENDING)
def test_what_ends_the_program_ends_it_from_the_main_thread_with_a_note(packed, raised):  # noqa: F811
    """A handler of SIGTERM may raise it anywhere, and so in a transform."""
    dataset = sa1bpack.open(packed.root, transform=Raising(raised))
    with pytest.raises((SystemExit, Base)) as caught:
        list(dataset)
    assert "raised by transform for sample sa_" in caught.value.__notes__[0]


def test_ctrl_c_stays_what_it_is(packed):  # noqa: F811
    def interrupted(sample):
        raise KeyboardInterrupt

    dataset = sa1bpack.open(packed.root, transform=interrupted)
    for take in IN_PROCESS.values():
        with pytest.raises(KeyboardInterrupt):
            take(dataset)
    with pytest.raises(KeyboardInterrupt):
        list(sa1bpack.make_dataloader(dataset, 2, num_workers=0))


class Step(T.GeometricStep):
    """A step of the user's."""

    def __init__(self, raised):
        self.raising = Raising(raised)
        self.raising(None)

    def __call__(self, frame, draw):
        return self.raising(frame)


class TornOrder(sa1bpack.SequentialOrder):
    """An order of the user's."""

    kind = "torn"
    raised = ""

    def _take(self, epoch, start, stop):
        raise RAISED[self.raised]()


def function_of_batches(batch, raised):
    raise RAISED[raised]()


def _mask_select(ds, tmp_path, raised):  # noqa: F811
    weights = Raising(raised)
    for loader in (
        sa1bpack.Loader(ds, 4, max_masks=1, mask_select=weights, timeout=60),
        sa1bpack.make_dataloader(ds, 4, num_workers=0, max_masks=1, mask_select=weights),
    ):
        weights.calls = 1
        with pytest.raises(UserCodeError, match=r"mask_select raised .*image_id \d+"):
            list(loader)


def _where(ds, tmp_path, raised):  # noqa: F811
    raising = Raising(raised)
    raising.calls = 1
    ds.where(raising)


def _derive(ds, tmp_path, raised):  # noqa: F811
    sa1bpack.derive(
        ds, "name", function_of_batches, options={"raised": raised}, output=tmp_path / "feature"
    )


def _progress(ds, tmp_path, raised):  # noqa: F811
    raising = Raising(raised)
    raising.calls = 1
    sa1bpack.verify(ds.root, progress=raising)


def _pack_progress(ds, tmp_path, raised):  # noqa: F811
    raising = Raising(raised)
    raising.calls = 1
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(2)))
    pack_small(tar, tmp_path / "pack", progress=raising)


def _derive_progress(ds, tmp_path, raised):  # noqa: F811
    raising = Raising(raised)
    raising.calls = 1
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "name", ids, ids, output=tmp_path / "feature", progress=raising)


def _on_epoch_end(ds, tmp_path, raised):  # noqa: F811
    raising = Raising(raised)
    raising.calls = 1
    list(sa1bpack.Loader(ds, 4, on_epoch_end=raising))


def _pipeline_step(ds, tmp_path, raised):  # noqa: F811
    list(map(T.Pipeline(ds, [Step(raised)]), sa1bpack.Loader(ds, 4)))


def _order(ds, tmp_path, raised):  # noqa: F811
    order = TornOrder(ds)
    order.raised = raised
    for loader in (
        sa1bpack.Loader(ds, 4, order=order, timeout=60),
        sa1bpack.make_dataloader(ds, 4, num_workers=0, order=order),
    ):
        with pytest.raises(UserCodeError, match=r"order .* raised .* positions 0 to 4 of epoch 0"):
            list(loader)


# Place → what calls a function of the user's there, and the name that the message has.
PLACES = {
    "mask_select": (_mask_select, None),
    "where": (_where, r"where raised .* shard sa_\d+-000"),
    "derive": (_derive, r"function_of_batches raised .* of shard sa_\d+-000 \(image_ids \d+ to"),
    "progress of verify": (_progress, r"progress raised .* byte \d+ of \d+"),
    "progress of pack": (_pack_progress, r"progress raised .* byte \d+ of \d+"),
    "progress of attach": (_derive_progress, r"progress raised .* image \d+ of \d+"),
    "on_epoch_end": (_on_epoch_end, r"on_epoch_end raised .* epoch 0"),
    "step": (_pipeline_step, r"step .* raised .* 4 images in epoch 0"),
    "order": (_order, None),
}


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("place", PLACES)
def test_every_function_of_the_users_is_named_with_what_it_was_called_for(
    ds, tmp_path, place, raised  # noqa: F811
):  # fmt: skip
    work, named = PLACES[place]
    if named is None:
        work(ds, tmp_path, raised)
        return
    with pytest.raises(UserCodeError, match=named):
        work(ds, tmp_path, raised)


@pytest.mark.parametrize("raised", RAISED)
def test_a_schedule_that_fails_is_an_option_that_cannot_be_used(raised):
    function = Raising(raised)
    with pytest.raises(OptionError, match="function that fails in epoch 1"):
        sa1bpack.FunctionSchedule(function, epochs=3)


def test_an_error_of_the_package_passes_with_a_note(ds):  # noqa: F811
    """A misspelt column is answered with those that there are."""
    with pytest.raises(sa1bpack.errors.UnknownName, match="mask_count") as caught:
        ds.where(lambda columns: columns["masks"] > 3)
    assert "raised by where for the samples of shard sa_000000-000" in caught.value.__notes__


def test_a_hostile_message_is_cut_short(packed):  # noqa: F811
    def noisy(sample):
        raise ValueError("line\n" * 10_000)

    with pytest.raises(UserCodeError, match=r"image_id \d+") as caught:
        sa1bpack.open(packed.root, transform=noisy)[0]
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_an_exit_in_a_thread_of_a_loader_is_an_error_too(ds):  # noqa: F811
    """There it would end the thread, and the loop would wait for its batch."""
    exiting = functools.partial(sys.exit, 0)
    loader = sa1bpack.Loader(ds, 4, max_masks=1, mask_select=lambda c: exiting(), timeout=60)
    with pytest.raises(UserCodeError, match=r"mask_select raised SystemExit: 0 .*image_id \d+"):
        list(loader)


def test_torchs_iterator_cannot_end_an_epoch_early(ds, monkeypatch):  # noqa: F811
    loader = sa1bpack.make_dataloader(ds, 4, num_workers=0)
    monkeypatch.setattr(DataLoader, "__iter__", lambda self: iter(()))
    with pytest.raises(sa1bpack.LoaderError, match="ended before the epoch did"):
        next(iter(loader))
