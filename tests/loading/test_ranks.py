"""Rank and world size that were not passed: those of torch.distributed at the first batch."""

import json
import subprocess
import sys

from sa1bpack.loading.loader import Loader

# Two processes; everything is made before there is a process group, as under Lightning.
SCRIPT = """
import json, os, sys
import torch.distributed as dist
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.loading.loader import Loader

root, meeting = sys.argv[1:]
ds = open_pack(root)
options = {"global_batch_size": 4, "shuffle": True, "seed": 1}
made = [Loader(ds, **options), make_dataloader(ds, **options)]
uneven = Loader(ds, global_batch_size=3)
child = os.fork()
rank = 1 if child == 0 else 0
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
found = {
    "rows": [[batch["indices"].tolist() for batch in loader] for loader in made],
    "states": [loader.state_dict() for loader in made],
    "samples": made[0].plan().samples,
}
try:
    next(iter(uneven))
except ValueError as error:
    found["uneven"] = str(error)
every = [None, None]
dist.all_gather_object(every, found)
dist.destroy_process_group()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print(json.dumps(every))
"""


def test_loaders_made_before_the_process_group_give_each_rank_its_part(ds, packed, tmp_path):
    arguments = [sys.executable, "-c", SCRIPT, str(packed.root), str(tmp_path / "meeting")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)
    with Loader(ds, global_batch_size=4, shuffle=True, seed=1, rank=0, world_size=1) as loader:
        complete = [batch["indices"].tolist() for batch in loader]
        state = loader.state_dict()
    for kind in range(2):
        parts = zip(*(rank["rows"][kind] for rank in ranks), strict=True)
        assert [first + second for first, second in parts] == complete
        assert [rank["states"][kind] for rank in ranks] == [state, state]
    assert [rank["samples"] for rank in ranks] == [2, 2]
    for rank in ranks:
        assert "batch_size 3" in rank["uneven"] and "multiple of world_size 2" in rank["uneven"]
