"""What is in memory may change at any moment: each answer of the system is asked for once."""

import shutil

from forked_programs import run_forked
from page_cache import why_not_direct

# The system's answers come from here: of `preadv2` that it would have to wait, and of `mincore`
# that a page is not in memory, to the first questions about a byte, and the opposite to the others.
# So what a process is told changes between two questions, where it asks twice.
PROGRAM = """
import collections, ctypes, sys
import llvmlite.binding

RWF_NOWAIT = 8
packs = [argument.split("=", 1) for argument in sys.argv[1:]]
asked = collections.Counter()


def refused(question):
    asked[question] += 1
    return asked[question] <= later


@ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int
)
def preadv2(file, vectors, count, position, flags):
    assert flags == RWF_NOWAIT
    return -1 if refused((file, position)) else 1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
def mincore(address, count, pages):
    ctypes.memset(pages, 0 if refused(address) else 1, 1)
    return 0


for name, function in (("preadv2", preadv2), ("mincore", mincore)):
    llvmlite.binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)

import torch
import sa1bpack

cases = [(*pack, given) for pack in packs for given in ({}, {"mask_format": "bool"})]
for later in (0, 1):
    for io, root, given in cases:
        print(later, io, root, given, file=sys.stderr, flush=True)
        ds = sa1bpack.open(root, **given)
        expected = sa1bpack.make_dataloader(ds, 3, num_workers=0)
        asked.clear()
        with sa1bpack.Loader(ds, 3, threads=1, io=io) as loader:
            for found, wanted in zip(loader, expected, strict=True):
                for key in ("images", "masks", "bboxes", "image_ids"):
                    if key in wanted:
                        assert torch.equal(found[key], wanted[key]), key
        assert asked
        if io == "cached":  # `mincore` tells of pages, which neighbours share
            assert set(asked.values()) == {1}, asked
"""

LAYOUTS = [("native", "yuv420", "runs"), ("pad", "rgb", "bits")]


def test_samples_whose_bytes_arrive_while_they_are_read_are_read_whole(layout_packs, tmp_path):
    packs = [f"cached={layout_packs(*layout)}" for layout in LAYOUTS]
    if not why_not_direct(tmp_path):
        root = shutil.copytree(layout_packs("native", "yuv420", "bits+runs"), tmp_path / "pack")
        packs.append(f"direct={root}")
    status, _, errors = run_forked(PROGRAM, *packs)
    assert status == 0, errors
