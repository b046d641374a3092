"""Without PIL, which no requirement can name, what needs it names the remedy; the rest works."""

import pytest
from commands import run, run_each

import sa1bpack

REMEDY = "run `make setup` in a clone"


@pytest.fixture
def hiding(tmp_path):
    """A folder for PYTHONPATH that hides PIL, as if it had never been installed."""
    hidden = "import sys\nsys.modules['PIL'] = None  # import PIL then raises ModuleNotFoundError\n"
    folder = tmp_path / "hiding"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(hidden)
    return folder


def test_what_decodes_or_draws_names_the_remedy_and_creates_nothing(tar, packed, hiding, tmp_path):
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "out.png"
    commands = [
        ("pack", tar, "-o", out),
        ("pack", tar, "-o", out, "--dry-run"),
        ("show", packed, "-o", out),
    ]
    for code, printed, error in run_each(*commands, path=hiding):
        assert (code, printed) == (4, "")
        assert error.startswith("sa1bpack: neither pillow-simd nor Pillow can be imported (")
        assert REMEDY in error
        assert "`pip install 'pillow>=11.3'`" in error
        assert "Traceback" not in error
        assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_what_neither_decodes_nor_draws_works(tar, packed, hiding):
    (packed / "rejects.jsonl").write_text("x")
    out = hiding / "json"
    commands = [
        ("info",),
        ("repair", packed, tar),
        ("info", packed),
        ("verify", packed),
        ("export", packed, "-o", out),
    ]
    results = run_each(*commands, path=hiding)
    for (code, printed, error), command in zip(results, commands, strict=True):
        assert (code, error) == (0, ""), command
        assert printed, command
    assert len(list(out.rglob("*.json"))) == 6
    assert "neither pillow-simd nor Pillow is installed" in results[0][1]
    next(packed.glob("shards/sa_*/bbox/c.0.0")).write_bytes(b"")
    code, _, error = run("repair", packed, tar, "--workers", 1, path=hiding)
    assert code == 4
    assert REMEDY in error
    assert "Traceback" not in error
    assert sa1bpack.repair(packed, tar, workers=1).ok


def test_a_pil_that_leaks_the_pixels_it_shares_is_refused_with_the_version_needed(
    tar, root, tmp_path
):
    old = "import PIL\nfrom PIL import Image\nPIL.__version__ = '11.2.1'\n"
    (tmp_path / "sitecustomize.py").write_text(old)
    code, said, error = run("pack", tar, "--output", root, "--workers", 1, path=tmp_path)
    assert (code, said) == (4, "")
    assert error.startswith("sa1bpack: the PIL in force is 11.2.1, and sa1bpack needs Pillow 11.3")
    assert "Traceback" not in error and not root.exists()
