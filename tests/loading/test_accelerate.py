"""Hugging Face Accelerate drives both loaders: the right images in every epoch, even when resumed.

What it needs from `make_dataloader`, whose loader `prepare` replaces with its own around the same
dataset, batch sampler and collate_fn:

- `loader.batch_sampler` is a DealtBatches for anyone but the loader itself: the batches of all
  ranks in turn, because Accelerate assigns batch i to process i % n;
- `set_epoch` on the batch sampler and on `loader.dataset`, the one object that Accelerate finds
  under any number of wrappers;
- `loader.state_dict()` is an error while Accelerate takes the batches: it counts them, by fetching
  one ahead;
- `loader.collate_fn` returns a batch as a dict, with its epoch, whoever calls it;
- `loader.drop_last` makes `gather_for_metrics` assume that no sample of a full batch is padding.

A `Loader` is not a DataLoader: `prepare` leaves it alone, and it cuts batches by rank itself.
`register_for_checkpointing` saves its place; `skip_first_batches` cannot work.
"""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import DataLoaderConfiguration
from batches import BOTH
from forked_ranks import outputs_of_ranks

from sa1bpack import (
    Buckets,
    Loader,
    LoaderError,
    OrderedBatches,
    PiecewiseSchedule,
    ShuffleOrder,
    WeightedOrder,
    make_dataloader,
)
from sa1bpack import open as open_pack

EPOCHS, BATCH = 3, 4
OPTIONS = {"shuffle": True, "seed": 3, "max_masks": 2, "mask_select": "random"}


def content(batch) -> list:
    """The images of a batch, its random choice of masks, which depends on the epoch; the epoch."""
    epoch = batch["epoch"]
    if isinstance(epoch, torch.Tensor):  # of a batch that Accelerate took: a number per sample
        assert len(epoch) == len(batch["image_ids"])
        epoch = int(epoch.unique())
    return [batch["image_ids"].tolist(), batch["areas"].tolist(), epoch]


def train(prepared, epochs, first=0, batch_count=0) -> list:
    """Accelerate's own loop; from epoch `first` on, of which `done` batches were trained before."""
    seen = []
    for epoch in range(first, epochs):
        prepared.set_epoch(epoch)
        rest = (
            skip_first_batches(prepared, batch_count)
            if epoch == first and batch_count
            else prepared
        )
        seen.append([content(batch) for batch in rest])
    return seen


def train_as_trainer(prepared, epochs, first=0, batch_count=0) -> list:
    """The loop of transformers.Trainer (5.23, `_run_epoch`): it skips first, then sets the epoch,
    of a loader that it has wrapped once more."""
    seen = []
    for epoch in range(first, epochs):
        rest = (
            skip_first_batches(prepared, batch_count)
            if epoch == first and batch_count
            else prepared
        )
        if hasattr(rest, "set_epoch"):
            rest.set_epoch(epoch)
        underlying = getattr(getattr(rest, "batch_sampler", None), "batch_sampler", None)
        if hasattr(underlying, "set_epoch"):
            underlying.set_epoch(epoch)
        seen.append([content(batch) for batch in rest])
    return seen


LOOPS = {"accelerate": train, "trainer": train_as_trainer}
DONE = {"accelerate": 1, "trainer": 2}  # batches of the epoch in which two processes resume

SCRIPT = """
import json, sys
import torch
import test_accelerate as test
from forked_ranks import fork_ranks
root, meeting = sys.argv[1:]
rank = fork_ranks(2)
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank,
                                     world_size=2)
print(json.dumps(test.one_of_two(root, rank)))
torch.distributed.destroy_process_group()
"""


def one_of_two(root, rank) -> dict:
    ds = open_pack(root)
    early = make_dataloader(ds, global_batch_size=BATCH, **OPTIONS)  # there is no process group yet
    seen_by_rank = {"rank": rank, "early": train(Accelerator(cpu=True).prepare(early), EPOCHS)}
    for name, batch_count in DONE.items():
        loader = prepared(ds)
        assert len(loader) == len(ds) // BATCH and loader.total_batch_size == BATCH
        seen_by_rank[name] = LOOPS[name](loader, EPOCHS, 1, batch_count)
    with Loader(ds, global_batch_size=BATCH, **OPTIONS) as loader:
        assert Accelerator(cpu=True).prepare(loader) is loader
        seen_by_rank["loader"] = [[content(batch) for batch in loader] for _ in range(EPOCHS)]
    config = DataLoaderConfiguration(dispatch_batches=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    whole = make_dataloader(ds, 5, rank=0, world_size=1, max_masks=2, pad_to_max=True)
    gathered = [
        accelerator.gather_for_metrics(batch["image_ids"]) for batch in accelerator.prepare(whole)
    ]
    seen_by_rank["gathered"] = torch.cat(gathered).tolist()
    short = prepared(ds, 8, {"shuffle": True, "seed": 3})
    seen_by_rank["short"] = [batch["image_ids"].tolist() for batch in short]
    batches = OrderedBatches(
        ShuffleOrder(ds, seed=3), global_batch_size=BATCH, rank=rank, world_size=2
    )
    try:
        Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(ds, batch_sampler=batches))
    except LoaderError as error:
        seen_by_rank["cut twice"] = str(error)
    unprepared = make_dataloader(ds, global_batch_size=BATCH, **OPTIONS)
    try:
        list(skip_first_batches(unprepared, 1))
    except LoaderError as error:
        seen_by_rank["unprepared"] = str(error)
    return seen_by_rank


@pytest.fixture
def complete(ds) -> list:
    """What a run without Accelerate sees on one rank."""
    loader = make_dataloader(ds, global_batch_size=BATCH, rank=0, world_size=1, **OPTIONS)
    seen = [[content(batch) for batch in loader] for _ in range(EPOCHS)]
    assert len({str(sorted(ids for ids, *_ in epoch)) for epoch in seen}) == EPOCHS
    return seen


def prepared(ds, size=BATCH, options=OPTIONS, **more):
    loader = make_dataloader(ds, global_batch_size=size, **options, **more)
    return Accelerator(cpu=True).prepare(loader)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_sees_every_epoch_as_without_accelerate_wherever_it_resumes(
    ds, complete, loop, workers
):
    assert loop(prepared(ds, num_workers=workers), EPOCHS) == complete
    for batch_count in range(1, len(complete[1])):
        expected = [complete[1][batch_count:], complete[2]]
        assert loop(prepared(ds, num_workers=workers), EPOCHS, 1, batch_count) == expected
    assert loop(prepared(ds, num_workers=workers), EPOCHS, 2) == complete[2:]


def test_schedules_are_of_the_step_wherever_it_resumes_and_of_the_process(ds):
    options = {
        "max_masks": PiecewiseSchedule(1, {2: 2, 4: 5}, by="step"),
        "shuffle": True,
        "seed": 3,
    }
    sizes = [4, 2]
    whole = [[content(batch) for batch in make_dataloader(ds, global_batch_size=sizes, **options)]]
    later = make_dataloader(ds, global_batch_size=sizes, **options)
    later.set_epoch(1)
    whole.append([content(batch) for batch in later])
    assert [len(epoch) for epoch in whole] == [3, 6]

    assert train(prepared(ds, sizes, options), 2) == whole
    assert train(prepared(ds, sizes, options), 2, 1, 2) == [whole[1][2:]]
    # Two processes, as Accelerate deals out batches that have no size of their own.
    parts = []
    for rank in range(2):
        loader = make_dataloader(ds, global_batch_size=sizes, rank=rank, world_size=2, **options)
        dealt = BatchSamplerShard(loader.batch_sampler, 2, rank)
        loaded = torch.utils.data.DataLoader(
            loader.dataset, batch_sampler=dealt, collate_fn=loader.collate_fn
        )
        parts.append([content(batch)[0] for batch in loaded])
    assert [a + b for a, b in zip(*parts, strict=True)] == [ids for ids, *_ in whole[0]]


def test_two_processes_see_what_one_sees_wherever_they_resume(packed, complete, tmp_path):
    folder = Path(__file__).parent
    of_ranks = outputs_of_ranks("-c", SCRIPT, packed.root, tmp_path / "meeting", folder=folder)
    first, second = sorted(of_ranks, key=lambda seen_by_rank: seen_by_rank["rank"])
    images = [[ids for ids, *_ in epoch] for epoch in complete]

    def together(name):
        """The images of both ranks, by epoch and step."""
        epochs = zip(first[name], second[name], strict=True)
        return [[a[0] + b[0] for a, b in zip(*epoch, strict=True)] for epoch in epochs]

    assert together("early") == together("loader") == images
    for name, batch_count in DONE.items():
        assert together(name) == [images[1][batch_count:], images[2]], name
    # 12 = 8 + 4: the end is one batch of a rank, to which Accelerate adds another from the start.
    ends = first["short"] + second["short"]
    assert [len(ids) for ids in ends] == [4] * 4
    assert {*chain(*ends)} == {*chain(*images[0])}
    for seen_by_rank in (first, second):
        assert sorted(seen_by_rank["gathered"]) == sorted(chain(*images[0]))
        assert "a share of its share" in seen_by_rank["cut twice"]
    # The first rank cannot know; the job ends with the second.
    assert "of rank 0 of a batch" in second["unprepared"]
    assert "accelerator.prepare()" in second["unprepared"]


@pytest.mark.parametrize(
    ("last", "seen"), [({}, 12), ({"pad_last": True}, 12), ({"drop_last": True}, 10)]
)
def test_metrics_are_gathered_of_every_sample_once_and_of_no_padding(ds, last, seen):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(make_dataloader(ds, global_batch_size=5, **last))
    gathered = [accelerator.gather_for_metrics(batch["image_ids"]) for batch in loader]
    ids = torch.cat(gathered).tolist()
    assert len(ids) == len({*ids}) == seen


@pytest.mark.parametrize("samples", [8, 14])
def test_metrics_are_gathered_of_every_draw_of_an_order(ds, samples):
    """A last batch of 3 or 4 samples, whatever the number of images."""
    order = WeightedOrder(ds, np.ones(12), samples=samples)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(make_dataloader(ds, 5, order=order))
    drawn = [image for batch in loader for image in batch["image_ids"].tolist()]
    assert len(drawn) == samples
    loader.set_epoch(0)
    gathered = [accelerator.gather_for_metrics(batch["image_ids"]) for batch in loader]
    assert torch.cat(gathered).tolist() == drawn


def test_metrics_are_gathered_of_the_whole_last_class(ds):
    classes = Buckets(ds, np.arange(12) % 2, exact=True)
    accelerator = Accelerator(cpu=True)
    for last, count in (({}, 12), ({"pad_last": True}, 20)):
        loader = accelerator.prepare(make_dataloader(ds, 5, bucket_by=classes, **last))
        gathered = [accelerator.gather_for_metrics(batch["image_ids"]) for batch in loader]
        assert len(torch.cat(gathered)) == count and len({*torch.cat(gathered).tolist()}) == 12


@BOTH
def test_accelerate_saves_and_loads_the_place_of_a_loader(ds, make, complete, tmp_path):
    accelerator = Accelerator(cpu=True)
    loader = make(ds, global_batch_size=BATCH, **OPTIONS)
    accelerator.register_for_checkpointing(loader)
    loader.set_epoch(1)
    next(iter(loader))
    accelerator.save_state(tmp_path)
    resumed, other = make(ds, global_batch_size=BATCH, **OPTIONS), Accelerator(cpu=True)
    other.register_for_checkpointing(resumed)
    other.load_state(tmp_path)
    assert [content(batch) for batch in resumed] == complete[1][1:]
    assert [content(batch) for batch in resumed] == complete[2]


def test_a_loader_names_what_resumes_it_where_accelerate_cannot(ds):
    with Loader(ds, global_batch_size=BATCH) as loader:
        assert Accelerator(cpu=True).prepare(loader) is loader
        with pytest.raises(LoaderError, match=r"load_state_dict.*make_dataloader"):
            next(iter(skip_first_batches(loader, 1)))


def dealt(ds, size, *, ranks=2, split=False, even=True, **options) -> list[list]:
    """The batches of each process in an epoch, as Accelerate deals them out."""
    of_ranks = []
    for rank in range(ranks):
        of_rank = {"rank": rank, "world_size": ranks}
        if split:
            of_rank = {"rank": 0, "world_size": 1}
        loader = make_dataloader(ds, size * (ranks if split else 1), **of_rank, **options)
        shard = BatchSamplerShard(
            loader.batch_sampler, ranks, rank, split_batches=split, even_batches=even
        )
        taken = torch.utils.data.DataLoader(
            loader.dataset, batch_sampler=shard, collate_fn=loader.collate_fn
        )
        of_ranks.append(list(taken))
    return of_ranks


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("even", [False, True])
def test_an_image_that_comes_again_is_told_apart_however_its_batch_is_cut(ds, split, even):
    """13 draws of 12 images: the last round is completed, or dealt to one process only."""
    options = {"order": WeightedOrder(ds, np.arange(12) + 1, samples=13), "pad_last": "ranks"}
    options |= {"max_masks": 1, "mask_select": "in_turn"}
    alone = make_dataloader(ds, 2, **options | {"pad_last": False})
    expected = sorted(occurrence for batch in alone for occurrence in occurrences(batch))
    assert {number for _, number, _ in expected} > {0}
    of_ranks = dealt(ds, 2, split=split, even=even, **options)
    rounds = [list(chain(*map(occurrences, batches))) for batches in zip(*of_ranks, strict=False)]
    if not even:
        rounds.append(list(chain(*map(occurrences, of_ranks[0][len(rounds) :]))))
    assert sorted(list(chain(*rounds))[:13]) == expected


def occurrences(batch) -> list:
    """The images of a batch, the number that tells an occurrence of each apart, and its mask."""
    columns = (batch[key].tolist() for key in ("image_ids", "repetitions", "annotation_ids"))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("split", [False, True])
def test_with_exact_classes_every_process_has_batches_of_one_class(ds, split):
    """6 images of each of two classes, so that each class ends with a short batch."""
    classes = np.arange(12) % 2
    class_of = dict(zip(ds.column("image_id").tolist(), classes.tolist(), strict=True))
    options = {"shuffle": True, "bucket_by": Buckets(ds, classes, exact=True), "split": split}
    for last in ({}, {"pad_last": "ranks"}):
        with pytest.raises(LoaderError, match=r"end each class.*drop_last=True or pad_last=True"):
            dealt(ds, 2, **options, **last)
    own = OrderedBatches(ShuffleOrder(ds), 2, bucket_by=options["bucket_by"])
    with pytest.raises(LoaderError, match=r"end each class"):
        BatchSamplerShard(own, 2, 0, split_batches=split)
    for last, count in (({"drop_last": True}, 8), ({"pad_last": True}, 12)):
        first, second = dealt(ds, 2, **options, **last)
        assert len(first) == len(second)
        seen = []
        for batch in first + second:
            ids = batch["image_ids"].tolist()
            assert {class_of[image] for image in ids} == {*batch["sample_class"].tolist()}
            seen += ids
        assert len({*seen}) == count
    alone = make_dataloader(ds, 2, shuffle=True, bucket_by=options["bucket_by"])
    seen = [image for batch in Accelerator(cpu=True).prepare(alone) for image in batch["image_ids"]]
    assert len(seen) == 12


@pytest.mark.parametrize("split", [False, True])
def test_without_even_batches_processes_have_equally_many_of_full_batches_alone(ds, split):
    """Otherwise the loop of one ends first, and a step of the others waits for it for ever."""
    options = {"shuffle": True, "split": split, "even": False}
    for last, lengths, seen in (
        ({"drop_last": True}, [2, 2], 8),
        ({"pad_last": True}, [3, 3], 9),
        ({"pad_last": "ranks"}, [3, 2], 9),
    ):
        of_ranks = dealt(ds[:9], 2, **options, **last)
        taken = {image for batch in chain(*of_ranks) for image in batch["image_ids"].tolist()}
        assert [len(batches) for batches in of_ranks] == lengths
        assert len(taken) == seen
