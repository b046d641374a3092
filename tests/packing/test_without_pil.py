"""Without PIL, which no requirement can name, packing ends with the message of the remedy."""

import pytest
from commands import run
from small_tars import SMALL, members, write_tar

import sa1bpack

REMEDY = "run `make setup` in a clone"
# Hides PIL from a child process, as if it had never been installed.
HIDDEN = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'", name="PIL")


sys.meta_path.insert(0, Hidden())
"""


@pytest.fixture
def hiding(tmp_path):
    """A folder for PYTHONPATH that hides PIL."""
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "sitecustomize.py").write_text(HIDDEN)
    return tmp_path / "hiding"


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "sa_000000.tar", members([1, 2]))


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["pack", "dry run"])
def test_the_command_names_the_remedy_and_creates_nothing(tar, tmp_path, hiding, more):
    out = tmp_path / "pack"
    code, said, error = run("pack", tar, "--output", out, "--workers", 1, *more, path=hiding)
    assert (code, said) == (4, "")
    assert error.startswith("sa1bpack: neither pillow-simd nor Pillow can be imported (No module")
    assert REMEDY in error and "Traceback" not in error and error.count("\n") == 1
    assert not out.exists()


def test_a_pil_that_leaks_the_pixels_it_shares_is_refused_with_the_version_needed(tar, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sitecustomize.py").write_text(
        "import PIL\nfrom PIL import Image\nPIL.__version__ = '11.2.1'\n"
    )
    out = tmp_path / "pack"
    code, said, error = run("pack", tar, "--output", out, "--workers", 1, path=tmp_path / "old")
    assert (code, said) == (4, "")
    assert error.startswith("sa1bpack: the PIL in force is 11.2.1, and sa1bpack needs Pillow 11.3")
    assert "Traceback" not in error and not out.exists()


def test_a_repair_that_decodes_nothing_needs_no_pil_others_name_the_remedy(tar, tmp_path, hiding):
    root = tmp_path / "pack"
    sa1bpack.pack(tar, root, workers=1, **SMALL)
    (root / "rejects.jsonl").write_text("x")
    assert run("repair", root, tar, "--workers", 1, path=hiding)[0] == 0
    shard = next(root.glob("shards/sa_*"))
    (shard / "bbox" / "c.0.0").write_bytes(b"")
    code, _, error = run("repair", root, tar, "--workers", 1, path=hiding)
    assert code == 4 and REMEDY in error and "Traceback" not in error
    assert sa1bpack.repair(root, tar, workers=1).ok
