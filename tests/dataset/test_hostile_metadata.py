"""Random bytes in any array of metadata: an error with a name, or the data of that sample.

Structure and lengths are right, so nothing of this is found before an array's own content is used.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import python
from hostile_packs import LAYOUTS, Hostile
from hostile_reading import SPECS, read_everything

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return Hostile(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sound_pack_is_read_whole_in_every_way(hostile, name):
    """Else the tests below would hold of a pack that nobody can read."""
    assert read_everything(hostile.pack(name, None), name, None) == 2 * 7 * len(SPECS[name])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guard pages need mprotect")
@pytest.mark.parametrize(
    "name, side, first", [("pad", "start", 0), ("native", "end", 1), ("squash", "start", 2)]
)
def test_nothing_outside_an_array_is_read(tmp_path, request, name, side, first):
    """In a process that a read past that side of any array would end.

    Each layout has every third of its arrays random, and with --torture all of them. The tests of
    loading take the other sides.
    """
    program = HELPERS / "hostile_reading.py"
    chosen = (0, 1) if request.config.getoption("torture") else (first, 3)
    printed = python("-W", "error", program, tmp_path, name, side, *chosen)
    assert printed.startswith("alive")


def test_a_read_outside_of_a_guarded_array_ends_the_process(tmp_path):
    """So the guards are able to tell."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ctypes, numpy as np\n"
        "from guard_pages import guarded\n"
        "data = guarded(np.arange(100, dtype=np.uint8), sys.argv[2])\n"
        "at = data.__array_interface__['data'][0]\n"
        "assert data.tolist() == list(range(100)) and ctypes.string_at(at, 100) == bytes(data)\n"
        "ctypes.string_at(at + 1, 100) if sys.argv[2] == 'end' else ctypes.string_at(at - 1, 100)\n"
    )
    for side in ("end", "start"):
        command = [sys.executable, "-c", program, str(HELPERS), side]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode < 0, (side, done.stderr)
