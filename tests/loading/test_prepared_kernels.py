"""Kernels are compiled, or loaded, by the consumer before an epoch's threads start.

A thread that compiles would seem to wait for the disk, and a fork meanwhile would leave numba's
lock held in the child for ever.
"""

from forked_programs import forked_python
from layout_packs import LAYOUTS, layout_packs  # noqa: F401 - a fixture
from narrow_packs import pack_of
from ragged_features import RAGGED_KINDS, write_ragged

# In a new process, so that no other test has compiled a kernel before.
PROGRAM = """
import sys
import threading
from numba.core.dispatcher import Dispatcher
import sa1bpack

by_thread, real = [], Dispatcher.compile

def compile(self, signature):
    by_thread.append((threading.current_thread().name, self.py_func.__name__, signature))
    return real(self, signature)

Dispatcher.compile = compile
features = [name for name in sys.argv[1].split(",") if name]
for pack in sys.argv[2:]:
    for verified in (False, True):
        given = {"mask_size": 64} if pack.endswith("-runs") else {}
        for rule in ({}, {"min_area": 10}):
            ds = sa1bpack.open(
                pack, verify_checksums=verified, features=features, **given, **rule
            )
            for options in ({}, {"max_masks": 2}, {"max_masks": 2, "mask_select": "balanced"}):
                with sa1bpack.Loader(ds, 2, threads=2, **options) as loader:
                    assert sum(len(batch["indices"]) for batch in loader) == len(ds)
assert any(kernel == "load_samples" for _, kernel, _ in by_thread), by_thread
in_readers = [found for found in by_thread if found[0].startswith("sa1bpack-reader")]
assert not in_readers, in_readers
"""


def test_no_thread_of_an_epoch_compiles(layout_packs):  # noqa: F811
    forked_python(PROGRAM, "", *(layout_packs(*layout) for layout in LAYOUTS[::2]))


def test_no_thread_of_an_epoch_compiles_for_rows_of_any_length(tmp_path):
    root = tmp_path / "pack"
    pack_of(root)
    for name in ("caption", "points", "level"):
        write_ragged(root, RAGGED_KINDS[name])
    forked_python(PROGRAM, "caption,points,level", root)
