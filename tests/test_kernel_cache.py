"""Compiled kernels are kept even if neither the package nor the home folder is writable, and no
longer than they are right."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack import kernel_cache


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """Neither the package nor the home folder is writable; returns the temporary folder."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(kernel_cache, "__file__", str(tmp_path / "file" / "kernel_cache.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    # So that monkeypatch removes what is set meanwhile.
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


def test_a_folder_chosen_by_the_user_is_kept(read_only, monkeypatch):
    monkeypatch.setenv(kernel_cache.VARIABLE, "/elsewhere")
    assert chosen() == "/elsewhere"
    assert list(read_only.iterdir()) == []


def test_numba_chooses_if_it_can(read_only, monkeypatch, tmp_path):
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


def test_a_warning_names_the_remedy_if_there_is_no_writable_folder(
    read_only, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    from numba.core.dispatcher import Dispatcher

    monkeypatch.setattr(Dispatcher, "enable_caching", Dispatcher.enable_caching)  # restores it
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR to a writable folder"):
        assert chosen() == ""


NOTHING_IS_WRITABLE = """
import os, tempfile, warnings
from pathlib import Path

def refuse(*arguments, **options):
    raise PermissionError("nothing is writable")

Path.mkdir = os.mkdir = tempfile.TemporaryFile = refuse
os.access = lambda path, mode: False
tempfile.tempdir = "/"
import numba
numba.config.CACHE_DIR = ""
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import sa1bpack
    assert not seen, seen
    import sa1bpack.kernels
assert "set NUMBA_CACHE_DIR" in str(seen[0].message), seen
from sa1bpack.masks import rasterize  # without the cache, numba refuses to define its kernels
print("alive")
"""


def test_kernels_compile_even_if_nothing_is_writable():
    """A training run that only reads must not fail because of that."""
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    done = subprocess.run(
        [sys.executable, "-B", "-c", NOTHING_IS_WRITABLE], capture_output=True, text=True,
        env=environment,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("alive\n", "")


READING_WRITES_NOTHING = """
import os, sys

changes = []
WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

def watch(event, arguments):
    if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink"):
        changes.append((event, arguments))
    elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITE:
        changes.append((event, arguments))

sys.addaudithook(watch)
open("/dev/null", "w").close()
assert changes.pop()[0] == "open", "the hook does not see changes"
import sa1bpack
dataset = sa1bpack.open(sys.argv[1])
assert dataset[0]["masks"].any() and len(dataset.column("area", "sum")) == 2
assert sa1bpack.verify(sys.argv[1]).ok and sa1bpack.info(sys.argv[1]).files
print(changes, "numba" in sys.modules)
"""


def test_reading_without_kernels_imports_no_numba_and_leaves_the_file_system_untouched(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1, 2], masks=lambda n: n))
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, progress=False, **SMALL)
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run(
        [sys.executable, "-B", "-c", READING_WRITES_NOTHING, tmp_path / "pack"],
        capture_output=True, text=True, env={**environment, "HOME": str(home)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[] False\n", "")
    assert list(home.iterdir()) == []


def test_the_place_is_chosen_before_numba_is_imported():
    program = (
        "import sys\n"
        "import sa1bpack.kernel_cache as cache\n"
        "assert not {'numba', 'numpy'} & set(sys.modules)\n"
        "cache.ensure_kernel_cache = lambda: print('numba' in sys.modules)\n"
        "import sa1bpack.kernels\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")


COMPILE = """
import numpy as np
from sa1bpack.pixels.rgbx import pack_rgb
print("imported", flush=True)
input()
out = np.zeros((1, 64, 3), np.uint8)
pack_rgb(np.full((1, 64), 7, np.uint32), out)
print(np.count_nonzero(out))
"""


@pytest.mark.parametrize("place", ["", "kept"])
def test_kernels_that_contain_old_code_of_another_module_are_compiled_again(tmp_path, place):
    """As after `git pull`: pack_rgb calls a kernel of vectors.py, and its own file is the same.

    Also where numba keeps them in another folder, and a process that was started before writes its
    own after the change.
    """
    package = tmp_path / "sa1bpack"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sa1bpack.__file__).parent, package, ignore=ignored)
    kept = str(tmp_path / place) if place else ""
    environment = os.environ | {"PYTHONPATH": str(tmp_path), kernel_cache.VARIABLE: kept}

    def start() -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", COMPILE], cwd=tmp_path, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout.readline() == "imported\n"
        return process

    def end(process: subprocess.Popen) -> str:
        found, _ = process.communicate("\n")
        assert process.returncode == 0
        return found.strip()

    def compiled() -> dict[Path, int]:
        return {path: path.stat().st_ino for path in tmp_path.rglob("rgbx*.nb[ic]")}

    assert end(start()) == "64", "one of three channels"
    first = compiled()
    assert first and end(start()) == "64" and compiled() == first, "kept while nothing changes"
    (package / "pixels" / ".#vectors.py").symlink_to("nowhere")  # as an editor locks a file
    earlier = start()
    vectors = package / "pixels" / "vectors.py"
    text = vectors.read_text()
    line = "return count if k + PIXELS >= count else min(k + PIXELS, count - PIXELS)"
    assert line in text
    vectors.write_text(text.replace(line, "return count"))
    assert end(start()) == "32", "the first vector alone"
    assert end(earlier) == "64"
    assert end(start()) == "32", "not what the earlier process keeps"


def test_kernels_can_be_imported_without_compilation():
    """As coverage-guided fuzzing does, which follows Python's lines."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", "import sa1bpack.masks.rle"], env=environment, check=True)
