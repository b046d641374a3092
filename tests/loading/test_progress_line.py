"""The line that says how far an epoch is: what it shows, and that the loop is the same with it."""

import gc

import pytest
from batches import BOTH

from sa1bpack import Loader, OptionError, make_dataloader
from sa1bpack.errors import UserCodeError
from sa1bpack.finalizers import settle
from sa1bpack.progress import ProgressBar


def rows(loader) -> list[list[int]]:
    return [batch["indices"].tolist() for batch in loader]


@pytest.fixture(autouse=True)
def no_line_stays():
    yield
    settle()
    gc.collect()
    shown = [bar for bar in gc.get_objects() if type(bar) is ProgressBar and not bar.disable]
    assert not shown


@BOTH
def test_a_function_is_told_of_every_batch_also_of_an_epoch_that_is_resumed(ds, make):
    told = []
    loader = make(ds, 5, shuffle=True, progress=lambda *numbers: told.append(numbers))
    for _ in loader:
        break
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    list(loader)
    assert told == [(1, 3), (1, 3), (2, 3), (3, 3), (2, 3), (3, 3)]


@BOTH
@pytest.mark.parametrize("progress", [True, None, lambda done, total: None])
def test_order_place_and_errors_are_those_of_a_loop_without_it(ds, make, progress, capsys):
    plain, shown = (
        make(ds, 2, shuffle=True, seed=1, **options) for options in ({}, {"progress": progress})
    )
    assert rows(plain) == rows(shown)
    for loader in (plain, shown):
        for number, _ in enumerate(loader):
            if number == 1:
                break
    state = plain.state_dict()
    assert shown.state_dict() == state
    for loader in (plain, shown):
        loader.load_state_dict(state)
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                1 / 0  # noqa: B018
    assert plain.state_dict() == shown.state_dict()
    assert rows(plain) == rows(shown)


def test_a_line_has_images_per_second_and_the_share_waited(ds, capsys):
    with Loader(ds, 5, progress=True) as loader:
        list(loader)
    line = capsys.readouterr().err
    assert "epoch 0:" in line and "/3 batches" in line
    assert "images/s" in line and "% waited" in line


def test_nothing_is_written_where_stderr_is_no_terminal(ds, capsys):
    for loader in (Loader(ds, 5, progress=None), make_dataloader(ds, 5, progress=None)):
        list(loader)
    assert capsys.readouterr() == ("", "")


def test_loops_within_loops_have_a_line_each(ds, capsys):
    outer = Loader(ds, 5, progress=True)
    inner = Loader(ds, 4, progress=True)
    lengths = [len(rows(inner)) for _ in outer]
    assert lengths == [3, 3, 3]
    outer.close()
    inner.close()


def test_an_error_of_the_function_costs_no_batch(ds):
    def fails(finished, total):
        if finished == 2:
            raise KeyError(total)

    loader = Loader(ds, 5, progress=fails)
    with pytest.raises(UserCodeError, match="progress raised KeyError: 3 for batch 2 of 3"):
        list(loader)
    assert loader.state_dict()["samples"] == 5
    loader.close()


def test_a_value_that_says_nothing_is_refused(ds):
    with pytest.raises(OptionError, match="progress is 'bar': choose True, False, or a function"):
        Loader(ds, 5, progress="bar")
