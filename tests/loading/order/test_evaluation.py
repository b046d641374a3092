"""An exact evaluation: every sample counts once, with any number of samples, ranks and batches."""

import numpy as np
import pytest
from forked_ranks import outputs_of_ranks

import sa1bpack
from sa1bpack import Extent, OrderedBatches, SequentialOrder, ShuffleOrder

# As one of four processes, which are four ranks, then three, then two. The length of a loader was
# asked for before there was a process group.
SCRIPT = """
import json, os, sys
import torch
import sa1bpack
from forked_ranks import fork_ranks
root, folder = sys.argv[1:]
number = fork_ranks(4)
ds = sa1bpack.open(root)[:9]
del os.environ["WORLD_SIZE"]  # so that nothing announces the ranks
early = sa1bpack.Loader(ds, 2, pad_last="ranks")
seen = {"rank": number, "early": len(early)}
for ranks in (4, 3, 2):
    if number >= ranks:
        continue
    meeting = f"file://{folder}/{ranks}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=ranks)
    try:
        len(early)
    except sa1bpack.LoaderError as error:
        seen["late"] = str(error)
    total = torch.zeros(3, dtype=torch.float64)  # what is measured, images, batches
    for batch in sa1bpack.Loader(ds, 2, max_masks=1, pad_last="ranks", threads=1):
        counted = ~batch["repeated"]
        part = [batch["image_ids"][counted].sum(), counted.sum(), torch.tensor(1)]
        part = torch.stack(part).double()
        torch.distributed.all_reduce(part)  # in every batch: no rank may have fewer
        total += part
    seen[ranks] = total.tolist()
    torch.distributed.destroy_process_group()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("order", [SequentialOrder, ShuffleOrder])
def test_each_sample_is_unmarked_once_and_all_ranks_have_as_many_batches_none_of_them_empty(order):
    for samples in range(1, 14):
        made = order(Extent(samples, "0123456789abcdef"))
        for ranks in range(1, 6):
            for size in range(1, 5):
                of_ranks = [
                    OrderedBatches(made, size, rank=rank, world_size=ranks, pad_last="ranks")
                    for rank in range(ranks)
                ]
                assert len({len(batches) for batches in of_ranks}) == 1
                counted = []
                marked = 0
                for batches in of_ranks:
                    current = batches.current
                    for number, indices in enumerate(batches):
                        repeated = current[number].repeated
                        assert 0 < len(indices) == len(repeated) <= size
                        counted += np.asarray(indices)[~repeated].tolist()
                        marked += int(repeated.sum())
                assert sorted(counted) == [*range(samples)], (samples, ranks, size)
                assert marked == max(0, ranks - (samples % (ranks * size) or ranks))


def test_it_is_exact_on_two_three_and_four_real_ranks_and_late_ranks_are_an_error(packed, tmp_path):
    """Nine samples in batches of two: with two ranks one is left over, with four as well."""
    ids = int(sa1bpack.open(packed.root).column("image_id")[:9].sum())
    of_ranks = outputs_of_ranks("-c", SCRIPT, packed.root, tmp_path)
    assert sorted(seen["rank"] for seen in of_ranks) == [0, 1, 2, 3]
    for seen in of_ranks:
        rank = seen["rank"]
        assert seen["early"] == 5
        last = max(2, rank + 1)  # the last group that this process was in
        assert f"is rank {rank} of {last}, but it was rank 0 of 1" in seen["late"]
        for ranks, batches in ((2, 3), (3, 2), (4, 2)):
            if rank < ranks:
                assert seen[str(ranks)] == [ids, 9, ranks * batches]


def test_the_default_names_this_way_where_a_rank_would_have_no_sample():
    order = SequentialOrder(Extent(25, "0123456789abcdef"))
    with pytest.raises(ValueError, match=r'1 sample for 2 ranks; choose pad_last="ranks"'):
        OrderedBatches(order, 2, rank=0, world_size=2)
