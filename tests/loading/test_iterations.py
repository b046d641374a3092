"""What both Loader and make_dataloader guarantee of iterations, states and seeds."""

import copy
import pickle
import threading

import pytest
import torch
from batches import BOTH, readers, rows_of
from loader_seams import refuse_memory
from torch._dynamo.utils import counters

import sa1bpack
from sa1bpack import Loader, LoaderError, OrderedBatches, ReadError, SequentialOrder, ShuffleOrder


@BOTH
def test_threads_that_share_an_iteration_get_every_batch_once_and_all_end(ds, make):
    # Each thread holds a batch while it asks for the next one.
    loader = make(ds, 1, shuffle=True, seed=1, **({"prefetch": 5} if make is Loader else {}))
    for epoch in range(2):
        batches, found, ended = iter(loader), [], []
        start = threading.Barrier(4)

        def draw(batches=batches, found=found, ended=ended, start=start):
            start.wait(30)
            try:
                for batch in batches:
                    found.append(batch["indices"].item())
                ended.append("done")
            except BaseException as error:
                ended.append(error)

        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert ended == ["done"] * 4, epoch
        assert sorted(found) == list(range(len(ds))), epoch
        assert loader.state_dict()["epoch"] == epoch + 1


@BOTH
@pytest.mark.parametrize("epoch", [0, 5])
def test_set_epoch_ends_an_iteration_so_that_the_state_describes_what_comes_next(ds, make, epoch):
    loader = make(ds, 4, shuffle=True, seed=1)
    running = iter(loader)
    next(running)
    loader.set_epoch(epoch)
    with pytest.raises(LoaderError, match=r"ended by .*set_epoch"):
        next(running)
    state = loader.state_dict()
    assert (state["epoch"], state["samples"]) == (epoch, 0)
    expected = make(ds, 4, shuffle=True, seed=1)
    expected.set_epoch(epoch)
    assert rows_of(loader) == rows_of(expected)


@BOTH
def test_an_error_after_the_first_batch_uses_up_the_epoch(damaged, make):
    loader = make(damaged, 4)
    with pytest.raises(ReadError):
        rows_of(loader)
    assert loader.state_dict()["samples"] == 4
    next(iter(loader))
    assert loader.state_dict()["epoch"] == 1


@BOTH
def test_a_loop_that_skips_errors_gets_an_error_once_its_epoch_is_over(damaged, make):
    batches, errors = iter(make(damaged, 4)), []
    for _ in range(4):
        try:
            next(batches)
        except (ReadError, LoaderError) as error:
            errors.append(error)
    assert [type(error) for error in errors] == [ReadError, LoaderError, LoaderError]
    assert "ended by ReadError" in str(errors[-1]) and "on_error='drop'" in str(errors[-1])


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_a_loader_keeps_its_position_in_the_order(ds, duplicate):
    with Loader(ds, 4, shuffle=True, seed=1) as loader:
        running = iter(loader)
        next(running)
        other = duplicate(loader)
        assert other.state_dict() == loader.state_dict()
        with other:
            second = rows_of(other)
        assert len(list(running)) == 2  # the copy has threads and buffers of its own
        assert rows_of(loader) == second


@BOTH
def test_the_random_choice_has_the_seed_of_the_order(ds, make):
    def areas(**options):
        loader = make(ds, 12, max_masks=2, mask_select="random", **options)
        return next(iter(loader))["areas"].tolist()

    assert areas(order=ShuffleOrder(ds, seed=1)) == areas(shuffle=True, seed=1)
    assert areas(seed=5) == areas(order=SequentialOrder(ds), seed=5)
    assert areas(seed=5) != areas()


def test_missing_memory_is_an_error_that_names_what_to_lower(ds):
    with Loader(ds, 2**31, pad_last=True, prefetch=100) as loader:
        for _ in range(2):
            with pytest.raises(LoaderError, match=r"no memory for 102 batches .*lower batch_size"):
                next(iter(loader))
        assert loader.state_dict()["samples"] == 0


def test_missing_memory_for_more_runs_than_planned_is_the_same_error(
    sample_tar, tmp_path, monkeypatch
):
    sa1bpack.pack(sample_tar, tmp_path / "packed", workers=1)
    ds = sa1bpack.open(tmp_path / "packed", mask_format="runs")
    with Loader(ds, 1, max_masks=1) as loader:  # the largest, which has more runs than most
        refuse_memory(monkeypatch, loader.plan().batch_bytes)
        with pytest.raises(LoaderError, match=r"no memory for 6 batches .*lower batch_size"):
            list(loader)


@BOTH
def test_an_iteration_that_is_ended_as_it_begins_leaves_no_threads(ds, make, monkeypatch):
    loader = make(ds, 1)
    check = OrderedBatches.check

    def checked(self, generation):  # the first time: before there are threads
        monkeypatch.undo()
        loader.set_epoch(5)
        check(self, generation)

    monkeypatch.setattr(OrderedBatches, "check", checked)
    with pytest.raises(LoaderError, match="ended by"):
        next(iter(loader))
    assert not readers()
    assert next(iter(loader))["epoch"] == 5


@BOTH
def test_a_batch_larger_than_an_epoch_is_planned_as_large_as_the_epoch(ds, make):
    many = make(ds, 1000).plan()
    assert many == make(ds, len(ds)).plan()
    assert make(ds, 1000, pad_last=True).plan().host_bytes > 50 * many.host_bytes


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")  # of torch
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")
@BOTH
def test_a_step_is_compiled_for_the_first_of_the_batches_of_one_shape_and_never_again(ds, make):
    """Their numbers, their epochs and the buffers change."""
    torch.compiler.reset()
    counters.clear()
    weight, graphs = torch.zeros(3, 4, requires_grad=True), []

    @torch.compile(backend="aot_eager", dynamic=False)
    def loss_of(batch):
        means, covered = batch["images"].float().mean((1, 2)), batch["masks"].float().mean((2, 3))
        valid = torch.arange(4) < batch["mask_counts"][:, None]
        return ((means @ weight - covered).square() * valid).sum()

    loader = make(ds, 3, max_masks=4, pad_to_max=True, drop_last=True)
    for _ in range(2):
        for batch in loader:
            loss_of(batch).backward()
            graphs.append(counters["stats"]["unique_graphs"])
    torch.compiler.reset()
    assert len(graphs) == 8 and set(graphs) == {graphs[0]} and graphs[0] > 0
