"""Commands that draw nothing work without PIL; those that draw name the remedy."""

import subprocess
import sys

WITHOUT_PIL = """
import sys
sys.modules["PIL"] = None  # import PIL then raises ModuleNotFoundError
from sa1bpack.cli.main import main
sys.exit(main())
"""


def without_pil(*arguments) -> tuple[int, str, str]:
    """Run a command where PIL cannot be imported: (exit code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PIL, *map(str, arguments)], capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def test_commands_that_draw_nothing_work_without_pil(packed, tmp_path):
    for arguments in (
        ("info", packed), ("verify", packed), ("export", packed, "-o", tmp_path / "json"),
    ):  # fmt: skip
        code, out, error = without_pil(*arguments)
        assert (code, error) == (0, "") and out, arguments
    assert len(list((tmp_path / "json").rglob("*.json"))) == 6
    assert "neither pillow-simd nor Pillow is installed" in without_pil("info")[1]


def test_commands_that_draw_name_the_remedy_without_pil(packed, tmp_path):
    out = tmp_path / "a.png"
    code, text, error = without_pil("show", packed, "-o", out)
    assert (code, text) == (4, "") and not out.exists()
    assert error.startswith("sa1bpack: neither pillow-simd nor Pillow can be imported (")
    assert (
        "`make setup`" in error
        and "`pip install 'pillow>=11.3'`" in error
        and "Traceback" not in error
    )
