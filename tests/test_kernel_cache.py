"""Kernels are kept somewhere even if neither the package nor the home folder can be written."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sa1bpack import kernel_cache


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """No cache can be kept beside the package or at home; returns the folder for the rest."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(kernel_cache, "__file__", str(tmp_path / "file" / "kernel_cache.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    # So that monkeypatch takes away what is set in between.
    monkeypatch.setenv(kernel_cache.VARIABLE, "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    return tmp_path / "tmp"


def chosen() -> str:
    kernel_cache.ensure_kernel_cache()
    return os.environ[kernel_cache.VARIABLE]


def test_a_private_temporary_folder_is_the_last_resort(read_only):
    import numba

    folder = Path(chosen())
    assert folder == read_only / f"sa1bpack-numba-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert str(folder) == numba.config.CACHE_DIR
    os.environ[kernel_cache.VARIABLE] = ""
    assert chosen() == str(folder), "the next run finds the kernels of this one"


def test_what_the_user_chose_stays(read_only, monkeypatch):
    monkeypatch.setenv(kernel_cache.VARIABLE, "/elsewhere")
    assert chosen() == "/elsewhere"
    assert list(read_only.iterdir()) == []


def test_numba_chooses_where_it_can(read_only, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert chosen() == ""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(kernel_cache, "__file__", str(tmp_path / "package" / "kernel_cache.py"))
    assert chosen() == ""
    assert list(read_only.iterdir()) == []


def test_a_user_without_a_home_folder_gets_no_folder_called_tilde(read_only, monkeypatch, tmp_path):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert chosen().startswith(str(read_only))
    assert not Path("~").exists()


@pytest.mark.parametrize("planted", ["readable", "link"])
def test_a_folder_that_others_could_have_written_is_not_used(read_only, tmp_path, planted):
    folder = read_only / f"sa1bpack-numba-{os.getuid()}"
    if planted == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    found = Path(chosen())
    assert found != folder and found.parent == read_only
    assert found.stat().st_mode & 0o777 == 0o700


def test_without_any_place_a_warning_names_the_remedy(read_only, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    from numba.core.dispatcher import Dispatcher

    monkeypatch.setattr(Dispatcher, "enable_caching", Dispatcher.enable_caching)  # put back later
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR to a folder"):
        assert chosen() == ""


NOTHING_CAN_BE_WRITTEN = """
import os, tempfile, warnings
from pathlib import Path

def refuse(*arguments, **options):
    raise PermissionError("nothing can be written")

Path.mkdir = os.mkdir = tempfile.TemporaryFile = refuse
os.access = lambda path, mode: False
tempfile.tempdir = "/"
import numba
numba.config.CACHE_DIR = ""
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import sa1bpack
assert "set NUMBA_CACHE_DIR" in str(seen[0].message), seen
from sa1bpack.batch.unpack import unpack_words  # of which numba said that it cannot cache it
print("alive")
"""


def test_where_nothing_can_be_written_kernels_are_compiled_all_the_same():
    """A training that only reads must not fail for that."""
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    done = subprocess.run(
        [sys.executable, "-B", "-c", NOTHING_CAN_BE_WRITTEN], capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("alive\n", "")


def test_importing_sa1bpack_decides_before_numba_is_imported():
    program = (
        "import sys, sa1bpack.kernel_cache as cache\n"
        "assert 'numba' not in sys.modules and 'numpy' not in sys.modules\n"
        "print(cache.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("sa1bpack.kernel_cache\n", "")
