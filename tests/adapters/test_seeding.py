"""`Seeded`: random transforms draw by (seed, epoch, image id) alone, whatever library they are of.

The recipes of docs/recipes.md are run as they stand, on images that are all alike: so what differs
between two samples is what was drawn for them.
"""

import random
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_tars import SMALL, members, pack_small, photo, write_tar
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler

import sa1bpack
from sa1bpack import OptionError, Seeded

# Newer Pythons warn of a fork while other threads run: torch has some, and that is the point here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning"),
]
RECIPES = Path(__file__).parents[2] / "docs" / "recipes.md"
IMAGES = 23
# Recipe → the library that it needs.
LIBRARIES = {
    "torchvision's transforms": "torchvision",
    "Albumentations": "albumentations",
    "Kornia": "kornia",
}


@pytest.fixture(autouse=True)
def one_thread():
    """As in a worker process: with several, the sums of torch are rounded in another way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alike(tmp_path_factory) -> SimpleNamespace:
    """A tar and its pack of 23 images with the same pixels and two masks each."""
    folder = tmp_path_factory.mktemp("alike")
    found = members(range(1, IMAGES + 1), masks=lambda number: 2)
    for name in found:
        if name.endswith(".jpg"):
            found[name] = photo(1)
    tar = write_tar(folder / "sa_000000.tar", found, compress=False)
    pack_small(tar, folder / "pack")
    return SimpleNamespace(tar=tar, pack=folder / "pack")


def recipe(heading: str, folder: Path, monkeypatch) -> Seeded:
    """The transform of the dataset that the first block of a recipe opens."""
    text = RECIPES.read_text().partition(f"\n## {heading}\n")[2]
    block = re.search(r"^```python\n(.*?)^```", text, re.S | re.M)[1]
    # The loop at the end is for the pack of three photographs.
    names = {"__name__": "recipe", "sa1bpack": sa1bpack, "torch": torch, "np": np}
    monkeypatch.chdir(folder)
    exec(compile(re.split(r"^for batch|^sample = ", block, flags=re.M)[0], heading, "exec"), names)
    return names["ds"].options.transform


def drawn(loader) -> dict[int, bytes]:
    """Image id → the bytes of the image that was made of it."""
    seen = {}
    for batch in loader:
        for number, image in zip(batch["image_ids"].tolist(), batch["images"], strict=True):
            assert number not in seen
            seen[number] = np.asarray(image).tobytes()
    return seen


@pytest.mark.parametrize("heading", LIBRARIES)
def test_a_recipe_draws_the_same_for_any_number_of_workers_and_a_crop_per_image(
    alike, heading, tmp_path, monkeypatch, sample_tar
):
    if find_spec(LIBRARIES[heading]) is None:
        pytest.skip(f"{LIBRARIES[heading]} is not installed: make frameworks")
    sa1bpack.pack(sample_tar, tmp_path / "packed", workers=1)
    transform = recipe(heading, tmp_path, monkeypatch)
    assert isinstance(transform, Seeded)
    ds = sa1bpack.open(alike.pack, mask_format="bool", mask_size=64, transform=transform)
    expected = None
    for workers, size in ((0, 4), (1, 5), (2, 2), (4, 3)):
        loader = sa1bpack.make_dataloader(ds, size, shuffle=True, num_workers=workers)
        found = [drawn(loader), drawn(loader)]
        loader.end_workers()
        expected = expected or found
        assert found == expected, workers
    for of_epoch in expected:
        assert len(of_epoch) == len(set(of_epoch.values())) == IMAGES
    assert not set(expected[0].values()) & set(expected[1].values())


OWN = np.random.default_rng(7)
OLD = np.random.RandomState(7)
OF_TORCH = torch.Generator().manual_seed(7)


class Holder:
    """An object with generators of its own, in containers too."""

    __slots__ = ("inner", "slot")

    def __init__(self):
        self.slot = random.Random(7)
        self.inner = {"list": [np.random.Generator(np.random.Philox(7))]}


HOLDER = Holder()


def numbers(sample, rng):
    """One number of every kind of generator."""
    return {
        "image_id": sample["image_id"],
        "numbers": np.array(
            [
                random.random(),
                np.random.random(),
                float(torch.rand(())),
                rng.random(),
                *_of_own(),
            ]
        ),
    }


def _of_own():
    yield OWN.random()
    yield OLD.random()
    yield float(torch.rand((), generator=OF_TORCH))
    yield HOLDER.slot.random()
    yield HOLDER.inner["list"][0].random()


def by_id(samples) -> list[tuple]:
    return [(sample["image_id"], tuple(sample["numbers"].tolist())) for sample in samples]


def taken(loader) -> list[tuple]:
    return [pair for batch in loader for pair in batch]


def epochs_of(ds, count=2, workers=0, context=None, size=4, order=None, **options):
    """What a plain DataLoader over OrderedBatches yields, epoch by epoch."""
    order = sa1bpack.ShuffleOrder(ds, seed=3) if order is None else order
    batches = sa1bpack.OrderedBatches(order, size, **options)
    loader = DataLoader(
        ds, batch_sampler=batches, num_workers=workers, collate_fn=by_id,
        multiprocessing_context=context, persistent_workers=workers > 0,
    )  # fmt: skip
    return [taken(loader) for _ in range(count)]


@pytest.fixture(scope="module")
def expected(alike) -> list[dict[int, tuple]]:
    """Epoch by epoch, image id → the numbers, from this process."""
    ds = sa1bpack.open(alike.pack, transform=Seeded(numbers, seed=5))
    return [dict(of_epoch) for of_epoch in epochs_of(ds)]


@pytest.mark.parametrize(
    ("workers", "context", "size"), [(2, "fork", 5), (1, "spawn", 3), (2, "forkserver", 7)]
)
def test_every_generator_draws_the_same_in_workers_of_any_kind(
    alike, expected, workers, context, size
):
    ds = sa1bpack.open(alike.pack, transform=Seeded(numbers, seed=5))
    for found, of_epoch in zip(epochs_of(ds, 2, workers, context, size), expected, strict=True):
        assert dict(found) == of_epoch
        assert len({drawn[k] for drawn in of_epoch.values() for k in range(9)}) == 9 * IMAGES
    assert not set(expected[0].values()) & set(expected[1].values())


def test_they_are_the_same_from_every_loader_rank_and_stream(alike, expected):
    transform = Seeded(numbers, seed=5)
    ds = sa1bpack.open(alike.pack, transform=transform)
    assert dict(by_id(ds[k] for k in range(len(ds)))) == expected[0]  # epoch 0
    ranks = [epochs_of(ds, rank=rank, world_size=3) for rank in range(3)]
    for epoch in range(2):
        joined = [pair for of_rank in ranks for pair in of_rank[epoch]]
        assert dict(joined) == expected[epoch] and len(joined) == IMAGES
    loader = sa1bpack.make_dataloader(ds, 4, num_workers=0)
    for of_epoch in expected:
        found = [pair for batch in loader for pair in _pairs(batch)]
        assert dict(found) == of_epoch
    options = sa1bpack.PackOptions(**SMALL)
    tars = sa1bpack.TarDataset(alike.tar, options=options, transform=transform)
    assert [
        dict(found) for found in epochs_of(tars, order=sa1bpack.SequentialOrder(ds))
    ] == expected
    stream = sa1bpack.IterableTarDataset(alike.tar, options=options, transform=transform)
    for epoch, of_epoch in enumerate(expected):
        stream.set_epoch(epoch)
        assert dict(by_id(stream)) == of_epoch


def _pairs(batch):
    values = (tuple(each.tolist()) for each in batch["numbers"])
    return zip(batch["image_ids"].tolist(), values, strict=True)


def test_a_resumed_run_draws_what_the_one_before_would_have(alike):
    ds = sa1bpack.open(alike.pack, transform=Seeded(numbers, seed=5))

    def loader():
        return sa1bpack.make_dataloader(ds, 4, shuffle=True, num_workers=0)

    whole = loader()
    batches = [list(map(tuple, _pairs(batch))) for _ in range(2) for batch in whole]
    stopped = loader()
    for _ in range(2):  # in mid-epoch of the second epoch
        iterator = iter(stopped)
        for _ in range(3):
            next(iterator)
    resumed = loader()
    resumed.load_state_dict(stopped.state_dict())
    rest = [list(map(tuple, _pairs(batch))) for batch in resumed]
    assert rest == batches[len(whole) + 3 :]


@pytest.mark.parametrize("bucket_by", [None, "mask_count"])
def test_repetitions_of_an_image_in_an_epoch_differ_whatever_the_batches(alike, bucket_by):
    ds = sa1bpack.open(alike.pack, transform=Seeded(numbers))
    few = ds[:3]

    def draws(size, ranks=1):
        order = sa1bpack.WeightedOrder(few, np.ones(3), samples=24, seed=1)
        buckets = sa1bpack.Buckets(few, bucket_by, batches=2) if bucket_by else None
        found = []
        for rank in range(ranks):
            cut = {"rank": rank, "world_size": ranks, "bucket_by": buckets}
            found += epochs_of(few, 1, size=size, order=order, **cut)[0]
        return sorted(found)

    whole = draws(8)
    assert len({values for _, values in whole}) == 24
    assert draws(4, ranks=2) == whole
    if bucket_by is None:
        assert draws(3) == draws(5) == whole


def test_samples_that_fill_up_the_last_batch_draw_other_numbers(alike, expected):
    ds = sa1bpack.open(alike.pack, transform=Seeded(numbers, seed=5))
    found = epochs_of(ds, 1, size=5, pad_last=True)[0]
    assert len(found) == 25 and len(set(found)) == 25
    assert dict(found[:IMAGES]) == expected[0]


def test_with_another_sampler_the_epoch_must_be_set(alike, expected):
    transform = Seeded(numbers, seed=5)
    ds = sa1bpack.open(alike.pack, transform=transform)
    loader = DataLoader(ds, 4, sampler=RandomSampler(ds), collate_fn=by_id)
    with pytest.raises(OptionError, match=r"does not pass on the epoch.*call set_epoch") as caught:
        list(loader)
    assert "for sample sa_" in caught.value.__notes__[0]
    assert transform.epoch is None
    workers = DataLoader(
        ds, 4, sampler=RandomSampler(ds), collate_fn=by_id, num_workers=1, persistent_workers=True
    )
    for epoch, of_epoch in enumerate(expected):
        transform.set_epoch(epoch)
        assert transform.epoch == epoch
        assert dict(taken(loader)) == dict(taken(workers)) == of_epoch
    transform.set_epoch(2**64 - 1)
    assert transform.epoch == 2**64 - 1 and ds[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_takes_single_samples_needs_the_epoch_in_a_dataloader_too(
    alike, expected, workers
):
    transform = Seeded(numbers, seed=5)
    ds = sa1bpack.open(alike.pack, transform=transform)
    joined = ConcatDataset([ds])
    loader = DataLoader(
        joined,
        4,
        shuffle=True,
        collate_fn=by_id,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    with pytest.raises(OptionError, match="call set_epoch"):
        list(loader)
    assert joined[0]  # by hand, it is of epoch 0
    transform.set_epoch(1)
    assert dict(taken(loader)) == expected[1]


def states():
    """The states of all generators of this process that `numbers` draws from."""
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
        OWN.bit_generator.state,
        OLD.get_state()[1].tolist(),
        OF_TORCH.get_state().tolist(),
        HOLDER.slot.getstate(),
        str(HOLDER.inner["list"][0].bit_generator.state),
    )


def test_nothing_else_in_the_program_draws_other_numbers(alike):
    """An exception puts the states back, too."""
    before = states()
    assert sa1bpack.open(alike.pack, transform=Seeded(numbers))[0]
    with pytest.raises(sa1bpack.errors.UserCodeError):
        sa1bpack.open(alike.pack, transform=Seeded(lambda sample: _of_own() and 1 / 0))[0]
    assert states() == before


def test_seeds_differ_and_an_object_is_seeded_like_a_function(alike):
    class Crop:
        def __init__(self):
            self.rng = np.random.default_rng()

        def __call__(self, sample):
            return self.rng.random()

    ds = sa1bpack.open(alike.pack)
    one, same, other = (ds.with_options(transform=Seeded(Crop(), seed=k))[0] for k in (1, 1, 2))
    assert one == same != other


def test_a_function_of_batches_draws_by_the_ids_of_the_batch_and_its_epoch(alike):
    ds = sa1bpack.open(alike.pack)
    draw = Seeded(lambda batch: torch.rand(2).tolist())
    loader = sa1bpack.Loader(ds, 8, shuffle=True)
    first = [[draw(batch) for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    again = [draw(batch) for batch in loader]
    assert again == first[0]
    assert len({tuple(each) for of_epoch in first for each in of_epoch}) == 6


def test_a_function_of_batches_that_do_not_say_their_epoch_needs_it(alike):
    """Those of a Collate, in an order without shuffling, are the same in every epoch."""
    ds = sa1bpack.open(alike.pack)
    draw = Seeded(lambda batch: torch.rand(2).tolist())
    loader = DataLoader(ds, 8, collate_fn=sa1bpack.Collate(sample_spec=ds.spec))
    with pytest.raises(OptionError, match=r"does not say of which epoch.*call set_epoch"):
        draw(next(iter(loader)))
    drawn = set()
    for epoch in range(2):
        draw.set_epoch(epoch)
        drawn.add(str([draw(batch) for batch in loader]))
    assert len(drawn) == 2


def noise(batch):
    return torch.rand(len(batch["image_ids"]))


def test_a_derived_feature_is_the_same_when_its_call_is_repeated(alike, tmp_path):
    ds = sa1bpack.open(alike.pack)
    rows = []
    for name in ("one", "other"):
        made = sa1bpack.derive(ds, "noise", Seeded(noise, seed=3), output=tmp_path / name)
        rows.append(sa1bpack.open(alike.pack, features=str(made.folder)).column("noise"))
    assert (rows[0] == rows[1]).all() and len(set(rows[0].tolist())) == IMAGES
    with pytest.raises(sa1bpack.errors.OutputRefused, match="seed"):
        sa1bpack.derive(ds, "noise", Seeded(noise, seed=4), output=tmp_path / "one")


def test_a_transform_whose_workers_would_repeat_one_another_is_warned_of(alike, caplog):
    ds = sa1bpack.open(alike.pack)
    unseeded = ds.with_options(transform=lambda sample: sample | {"n": OWN.random()})
    sa1bpack.make_dataloader(unseeded, 4, num_workers=2)
    assert "workers repeat one another's numbers" in caplog.text
    assert "numpy.random" in caplog.text and "Seeded(transform)" in caplog.text
    caplog.clear()
    sa1bpack.make_dataloader(unseeded, 4, num_workers=0)
    wrapped = Seeded(lambda sample: sample | {"n": OWN.random()})
    of_torch = global_numbers
    for transform in (Seeded(numbers), lambda sample: wrapped(sample), of_torch):
        sa1bpack.make_dataloader(ds.with_options(transform=transform), 4, num_workers=2)
    assert "repeat" not in caplog.text


def global_numbers(sample):
    draws = [random.random(), np.random.random(), float(torch.rand(()))]
    return {"image_id": sample["image_id"], "numbers": np.array(draws)}


def begin(number):
    global STARTED
    STARTED = number


def started(sample):
    return {"image_id": sample["image_id"], "numbers": np.array([STARTED])}


def test_without_it_torch_seeds_the_global_generators_of_each_worker(alike):
    ds = sa1bpack.open(alike.pack, transform=global_numbers)
    loader = sa1bpack.make_dataloader(ds, 2, num_workers=2)
    found = [pair for _ in range(2) for batch in loader for pair in _pairs(batch)]
    loader.end_workers()
    for k in range(3):
        assert len({values[k] for _, values in found}) == 2 * IMAGES


def test_worker_init_fn_is_called_in_each_worker(alike):
    ds = sa1bpack.open(alike.pack, transform=started)
    loader = sa1bpack.make_dataloader(ds, 2, num_workers=2, worker_init_fn=begin)
    found = [values for batch in loader for _, values in _pairs(batch)]
    loader.end_workers()
    assert set(found) == {(0,), (1,)}


def failing(number):
    raise StopIteration


def test_an_error_of_worker_init_fn_is_named(alike):
    ds = sa1bpack.open(alike.pack)
    loader = sa1bpack.make_dataloader(ds, 2, num_workers=1, worker_init_fn=failing)
    with pytest.raises(sa1bpack.errors.UserCodeError, match="worker_init_fn raised StopIteration"):
        list(loader)
    with pytest.raises(OptionError, match="worker_init_fn is 3"):
        sa1bpack.make_dataloader(ds, 2, worker_init_fn=3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Seeded(3), "function is 3"),
        (lambda: Seeded(numbers, seed=-1), "seed is -1"),
        (lambda: Seeded(numbers, sed=1), "has no option 'sed'"),
        (lambda: Seeded(numbers).set_epoch(-1), "epoch is -1"),
        (lambda: Seeded(numbers)([1, 2]), "called with list: it takes a sample"),
    ],
)
def test_what_cannot_be_used_is_refused(make, text):
    with pytest.raises(OptionError, match=text):
        make()
