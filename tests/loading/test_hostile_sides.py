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
import numpy as np
import sa1bpack
from batches import clone
from guard_pages import guard_maps
from hostile_packs import Found, Hostile, chunk_path
from packs_with_features import SPECS
from sa1bpack.errors import FormatError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.side.spec import shard_identities
from packs_with_features import write_side
from test_hostile_metadata import READ, not_asked, ways_to_read

folder, side = Path(sys.argv[3]), sys.argv[4]
hostile, ios = Hostile(folder), ways_to_read(folder)
sound = hostile.pack("pad", None)
for spec in SPECS.values():
    write_side(sound, spec)


def rows_of(root, spec):
    '''The rows of all parts, read with numpy alone, by shard.'''
    found = {}
    for shard in shard_identities(root, read_manifest(root)):
        count = shard.extent.samples if spec.axis == "sample" else shard.extent.masks
        data = np.empty(0, spec.stored)
        if count:  # else there is no file
            path = chunk_path(root / "side" / spec.name / shard.part / "values")
            data = np.fromfile(path, spec.stored, count * spec.row_bytes // spec.stored.itemsize)
        found[shard.name] = spec.read(data.reshape(count, *spec.stored_shape))
    return found


def expected(root, found, stored, row):
    '''Name -> rows of a sample, by the offsets of its own shard.'''
    name = found.shard_name(row)
    number, local = found._place(row)
    span = found._shards[number]["mask_offset"][local : local + 2].tolist()
    return {key: rows[name][local : local + 1] if SPECS[key].axis == "sample"
            else rows[name][slice(*span)] for key, rows in stored.items()}


def load(root, verified, masks, io):
    found, loaded = Found(root), 0
    stored = {name: rows_of(root, spec) for name, spec in SPECS.items()}
    try:
        ds = sa1bpack.open(root, features=list(SPECS), verify_checksums=verified)
    except FormatError as error:
        assert "index-" in str(error), error
        return 0
    for row in READ:
        try:
            sample = ds[row]
            with not_asked(io), sa1bpack.Loader(
                ds[row : row + 1], 1, mask_layout=masks, io=io, threads=1
            ) as batches:
                [batch] = map(clone, batches)
        except FormatError as error:
            assert found.shard_name(row) in str(error) or "index-" in str(error), error
            continue
        for name, rows in expected(root, found, stored, row).items():
            one = rows[0] if SPECS[name].axis == "sample" else rows
            np.testing.assert_array_equal(sample[name], one)
            tensor = batch[name].view(*rows.shape)
            if SPECS[name].dtype == "bfloat16":
                import torch
                tensor = tensor.view(torch.int16)
            np.testing.assert_array_equal(tensor.numpy().view(rows.dtype), rows)
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
