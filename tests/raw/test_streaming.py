"""`IterableTarDataset` gives every sample once, whoever asks, and resumes after a tar."""

import logging
import pickle

import pytest
import torch
from batches import all_same
from small_tars import SMALL, members, photo, write_tar
from torch.utils.data import DataLoader

import sa1bpack
from sa1bpack import IterableTarDataset, LoaderError, OptionError, ReadError
from sa1bpack.errors import SourceTruncated

OPTIONS = sa1bpack.PackOptions(**SMALL)
# Newer Pythons warn of a fork while other threads run: torch has some, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> str:
    """A pattern of three tars with 5 images each."""
    folder = tmp_path_factory.mktemp("tars")
    for number in range(3):
        found = members(range(10 * number, 10 * number + 5))
        write_tar(folder / f"sa_00000{number}.tar", found, compress=number > 0)
    return f"{folder}/*.tar"


ALL = [10 * number + k for number in range(3) for k in range(5)]


def ids(samples) -> list[int]:
    return [sample["image_id"] for sample in samples]


def test_samples_are_those_of_the_map_style_dataset_in_its_order(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(6)), compress=False)
    more = {"options": OPTIONS, "mask_format": "bool", "max_masks": 2}
    streamed = list(IterableTarDataset(tar, **more))
    expected = list(sa1bpack.TarDataset(tar, **more))
    assert len(streamed) == 6 and all_same(streamed, expected)
    assert [sample["row"] for sample in streamed] == list(range(6))


@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 0), (2, 2), (5, 0)])
def test_ranks_and_workers_share_them_without_overlap(tars, world_size, workers):
    seen = []
    for rank in range(world_size):
        ds = IterableTarDataset(tars, options=OPTIONS, rank=rank, world_size=world_size)
        loader = DataLoader(ds, batch_size=2, num_workers=workers, collate_fn=ids)
        seen += [number for batch in loader for number in batch]
    assert sorted(seen) == ALL


def test_a_spawned_worker_works_and_the_epoch_reaches_it(tars):
    ds = IterableTarDataset(tars, options=OPTIONS, shuffle_buffer=15)
    loader = DataLoader(
        ds, 5, num_workers=1, collate_fn=ids, multiprocessing_context="spawn",
        persistent_workers=True,
    )  # fmt: skip
    orders = []
    for epoch in (0, 1, 0):
        ds.set_epoch(epoch)
        orders.append([number for batch in loader for number in batch])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == ALL


def test_a_shuffle_buffer_mixes_and_is_a_function_of_seed_and_epoch(tars):
    def order(epoch=0, **options):
        ds = IterableTarDataset(tars, options=OPTIONS, **options)
        ds.set_epoch(epoch)
        return ids(ds)

    first = order(shuffle_buffer=8, seed=1)
    assert sorted(first) == ALL and first != order()
    assert first == order(shuffle_buffer=8, seed=1)
    assert first != order(shuffle_buffer=8, seed=2) != order(1, shuffle_buffer=8, seed=1)
    # No sample comes earlier than the buffer allows.
    plain = order()
    assert all(plain.index(number) <= place + 8 for place, number in enumerate(first))


def test_pairs_that_cannot_be_used_are_left_out_and_counted(tmp_path, caplog):
    found = members(range(6))
    found["./sa_2.jpg"] = b"not a JPEG"
    found["./sa_3.json"] = b"{}"
    found["./sa_9.jpg"] = photo(9)
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    ds = IterableTarDataset(tar, options=OPTIONS)
    caplog.set_level(logging.WARNING, "sa1bpack")
    assert sorted(ids(ds)) == [0, 1, 4, 5] and ds.rejected == 3
    for name in ("sa_2.jpg", "sa_3.json", "sa_9.jpg"):
        assert f"{tar}: {'./' if '9' in name else ''}{name}: " in caplog.text
    # Counted in workers as well; the half without another by one of the tar's consumers alone.
    ds = IterableTarDataset(tar, options=OPTIONS)
    loader = DataLoader(ds, 2, num_workers=2, collate_fn=ids)
    loaded = [number for batch in loader for number in batch]
    assert sorted(loaded) == [0, 1, 4, 5] and ds.rejected == 3
    with pytest.raises(ReadError, match=r"sa_[23]\.js?\w+: "):
        list(IterableTarDataset(tar, options=OPTIONS, on_error="raise"))


def test_a_tar_that_is_cut_short_gives_what_is_before_that_and_raises(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(6)), compress=False, shuffle=None)
    tar.write_bytes(tar.read_bytes()[:-25_000])
    samples = iter(IterableTarDataset(tar, options=OPTIONS))
    assert next(samples)["image_id"] == 0
    with pytest.raises(SourceTruncated, match=r"sa_000000\.tar"):
        list(samples)


@pytest.mark.parametrize("buffer", [0, 4])
def test_it_resumes_after_the_tars_that_were_taken(tars, buffer):
    """Every sample that was not taken before comes; of a tar that was begun, all come again."""
    for taken in range(16):
        ds = IterableTarDataset(tars, options=OPTIONS, shuffle_buffer=buffer)
        ds.set_epoch(3)
        samples = iter(ds)
        before = [next(samples)["image_id"] for _ in range(taken)]
        state = pickle.loads(pickle.dumps(ds.state_dict()))
        resumed = IterableTarDataset(tars, options=OPTIONS, shuffle_buffer=buffer)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state and resumed.epoch == 3
        after = ids(resumed)
        done = [number for number in ALL if f"sa_00000{number // 10}" in state["done"]]
        assert sorted(after) == sorted(set(ALL) - set(done)) and set(done) <= set(before)
        assert buffer or len(done) == 5 * (max(0, taken - 1) // 5)
        assert sorted(ids(resumed)) == ALL  # the next epoch is a whole one


def test_a_state_holds_for_its_epoch_and_of_another_one_all_samples_come(tars):
    ds = IterableTarDataset(tars, options=OPTIONS)
    whole = ids(ds)
    assert sorted(whole) == ALL and ids(ds) == whole  # each pass is the epoch that was set last
    finished = ds.state_dict()
    assert (finished["epoch"], len(finished["done"])) == (0, 3)
    ds.set_epoch(1)
    assert ds.state_dict() == finished | {"epoch": 1, "done": []}
    resumed = IterableTarDataset(tars, options=OPTIONS)
    for epoch, expected in ((0, []), (1, whole)):
        resumed.load_state_dict(finished)
        resumed.set_epoch(epoch)
        assert ids(resumed) == expected
    samples = iter(resumed)
    next(samples)
    resumed.set_epoch(2)  # the iteration that was begun stays in epoch 1
    list(samples)
    assert resumed.state_dict() == finished | {"epoch": 2, "done": []}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own
def test_workers_resume_by_the_state_that_torchdata_collects(tars):
    """Every sample comes before or after; of tars that are done when the state is taken, none."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        ds = IterableTarDataset(tars, options=OPTIONS)
        return loaders.StatefulDataLoader(ds, batch_size=2, num_workers=2, collate_fn=ids)

    begun = loader()
    batches = iter(begun)
    before = [number for _ in range(6) for number in next(batches)]
    state = begun.state_dict()
    del batches
    resumed = loader()
    resumed.load_state_dict(state)
    after = [number for batch in resumed for number in batch]
    # Worker 0 has the first and the third tar, and is in the third; worker 1 is in the second.
    assert set(before) | set(after) == set(ALL) and not set(after) & set(ALL[:5])
    assert len(after) == len(set(after)) < len(ALL)
    other = loader()
    other.load_state_dict(state)
    other.dataset.set_epoch(1)  # the workers have the state of epoch 0 only after this
    of_next = [number for batch in other for number in batch]
    assert sorted(set(of_next)) == ALL and other.dataset.epoch == 1


def test_states_that_do_not_fit_are_refused(tars):
    ds = IterableTarDataset(tars, options=OPTIONS, rank=0, world_size=2)
    state = ds.state_dict()
    other = IterableTarDataset(tars, options=OPTIONS)
    other.load_state_dict(state)
    with pytest.raises(OptionError, match="consumer 0 of 2, but this is 0 of 1"):
        next(iter(other))
    with pytest.raises(OptionError, match="not among these tars"):
        ds.load_state_dict(state | {"done": ["sa_000009"]})
    with pytest.raises(OptionError, match="epoch is -1"):
        ds.load_state_dict(state | {"epoch": -1})
    with pytest.raises(OptionError, match="what state_dict returned"):
        ds.load_state_dict({"epoch": 1})


def test_the_state_of_workers_is_not_made_up(tars):
    ds = IterableTarDataset(tars, options=OPTIONS)
    list(DataLoader(ds, 4, num_workers=1, collate_fn=ids))
    with pytest.raises(LoaderError, match="StatefulDataLoader"):
        ds.state_dict()


def test_a_rank_that_is_announced_but_not_known_is_refused(tars, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(LoaderError, match="WORLD_SIZE is 4"):
        next(iter(IterableTarDataset(tars, options=OPTIONS)))


def test_rank_and_world_size_go_with_it_to_a_spawned_worker(tars, monkeypatch):
    ds = IterableTarDataset(tars, options=OPTIONS)
    with monkeypatch.context() as patch:
        for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 3)):
            patch.setattr(torch.distributed, name, lambda value=value: value)
        assert sorted(ids(ds)) == ALL[5:10]
        sent = pickle.dumps(ds)
    assert sorted(ids(pickle.loads(sent))) == ALL[5:10] and sorted(ids(ds)) == ALL


@pytest.mark.parametrize(
    "given",
    [{"rank": 1}, {"rank": 2, "world_size": 2}, {"shuffle_buffer": -1}, {"on_error": "return"}],
)
def test_options_that_cannot_be_used_are_refused(tars, given):
    option, value = next(iter(given.items()))
    with pytest.raises(OptionError, match=f"^{option} is {value!r}"):
        IterableTarDataset(tars, **given)


def test_images_without_masks_are_dropped_if_the_options_say_so(tmp_path):
    found = members(range(4), masks=lambda number: number % 2)
    tar = write_tar(tmp_path / "sa_000000.tar", found)
    options = sa1bpack.PackOptions(**SMALL, empty="drop")
    ds = IterableTarDataset(tar, options=options)
    assert sorted(ids(ds)) == [1, 3] and ds.rejected == 0
