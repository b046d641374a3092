"""Features of packs whose metadata is random: an error with a name, or the rows of the sample.

In a process that any read after an array would kill.
"""

import sys
from pathlib import Path

import pytest
from commands import python

HELPERS = Path(__file__).parents[1] / "helpers"

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
import sa1bpack
from batches import same
from guard_pages import guard_maps
from hostile_packs import Found, Hostile
from packs_with_features import SPECS
from sa1bpack.errors import FormatError
from packs_with_features import write_side
from test_hostile_metadata import READ, not_asked, ways_to_read

folder, side = Path(sys.argv[3]), sys.argv[4]
hostile, ios = Hostile(folder), ways_to_read(folder)
sound = hostile.pack("pad", None)
for spec in SPECS.values():
    write_side(sound, spec)


def load(root, verified, masks, io):
    found, loaded = Found(root), 0
    try:
        ds = sa1bpack.open(root, features=list(SPECS), verify_checksums=verified)
    except FormatError as error:
        assert "index-" in str(error), error
        return 0
    collate = sa1bpack.Collate(masks, sample_spec=ds.spec)
    for row in READ:
        try:
            expected = collate([ds[row]])
            with not_asked(io), sa1bpack.Loader(
                ds[row : row + 1], 1, mask_layout=masks, io=io, threads=1
            ) as batches:
                [batch] = batches
                same(*({name: each[name] for name in SPECS} for each in (batch, expected)))
        except FormatError as error:
            assert found.shard_name(row) in str(error) or "index-" in str(error), error
            continue
        loaded += 1
    return loaded


maps, loaded = guard_maps(side), 0
assert load(sound, False, "concat", ios[-1]) == len(READ)
for number, target in enumerate(("mask_offset", "index/mask_offset", "all of the shard", "all")):
    for seed in range(0, 6, 2):
        root = hostile.pack("pad", target, seed)
        verified, masks = bool(seed // 3), ("concat", "padded")[(seed + number) % 2]
        loaded += load(root, verified, masks, ios[(seed + number) % len(ios)])
assert maps[0] > 100 and loaded > 12, (maps, loaded)
print("alive")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guard pages need mprotect")
def test_nothing_outside_a_feature_is_read(tmp_path):
    folders = HELPERS, Path(__file__).parent, tmp_path
    assert python("-W", "error", "-c", PROGRAM, *folders, "end") == "alive\n"
