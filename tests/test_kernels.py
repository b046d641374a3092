"""Compiled kernels are kept even if neither the package nor the home folder is writable, and no
longer than they are right."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from pathlib import Path

import numba
import numpy as np
import pytest
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack import kernels


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """Neither the package nor the home folder is writable; returns the temporary folder."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "file" / "kernels.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def chosen() -> Path | None:
    """What a new process chooses."""
    return kernels.kernel_folder.__wrapped__()


def test_kernels_are_kept_where_the_user_says_or_can_write(read_only, monkeypatch, tmp_path):
    """Beside the package, in the user's cache, or at last in a private temporary folder."""
    private = read_only / f"sa1bpack-kernels-{os.getuid()}"
    umask = os.umask(0o002)  # as many systems have it: others of the group may write
    try:
        assert chosen() == private and private.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)
    assert chosen() == private, "the next run finds the kernels of this one"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert chosen() == tmp_path / "cache" / "sa1bpack"
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "package" / "kernels.py"))
    assert chosen() == tmp_path / "package" / "__pycache__"
    monkeypatch.setenv(kernels.VARIABLE, str(tmp_path / "elsewhere"))
    assert chosen() == tmp_path / "elsewhere"
    assert list(read_only.iterdir()) == [private]


@pytest.mark.parametrize(
    "plant",
    [
        lambda path: (path.mkdir(), path.chmod(0o777)),
        lambda path: path.symlink_to(tempfile.mkdtemp()),
        Path.touch,
    ],
    ids=["writable", "link", "file"],
)
def test_a_folder_that_others_could_have_written_is_not_used(read_only, plant):
    """With a warning that names the remedy."""
    plant(read_only / f"sa1bpack-kernels-{os.getuid()}")
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR to a writable folder"):
        assert chosen() is None


def run_without_variables(code: str, *arguments: Path, **variables: str) -> tuple[str, str]:
    """What a program prints that finds no folder for kernels by its environment."""
    environment = {name: value for name, value in os.environ.items() if "NUMBA" not in name}
    environment.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-B", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment | variables)
    return done.stdout, done.stderr


NOTHING_IS_WRITABLE = """
import os, tempfile, warnings
from pathlib import Path

def refuse(*arguments, **options):
    raise PermissionError("nothing is writable")

def no_place():
    raise FileNotFoundError(2, "No usable temporary directory found")

Path.mkdir = os.mkdir = tempfile.TemporaryFile = refuse
os.access = lambda path, mode: False
tempfile.gettempdir = no_place
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import sa1bpack
    assert not seen, seen
    import sa1bpack.kernels
    assert sa1bpack.kernels.kernel_folder() is None
sa1bpack.kernels.PATIENCE = 1000.0  # nothing is said of compiling
assert "set NUMBA_CACHE_DIR" in str(seen[0].message), seen
sa1bpack.kernels.PATIENCE = 600
import numpy as np
from sa1bpack.pixels.decode import pack_rgb
pack_rgb(np.full((1, 64), 7, np.uint32), np.zeros((1, 64, 3), np.uint8))
print("alive")
"""


def test_kernels_compile_even_if_nothing_is_writable():
    """A training run that only reads must not fail because of that."""
    assert run_without_variables(NOTHING_IS_WRITABLE) == ("alive\n", "")


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
    pack_small(tar, tmp_path / "pack", progress=False)
    home = tmp_path / "home"
    home.mkdir()
    found = run_without_variables(READING_WRITES_NOTHING, tmp_path / "pack", HOME=str(home))
    assert found == ("[] False\n", "")
    assert list(home.iterdir()) == []


COMPILE = """
import numpy as np
from sa1bpack.pixels.decode import pack_rgb
print("imported", flush=True)
input()
out = np.zeros((1, 64, 3), np.uint8)
pack_rgb(np.full((1, 64), 7, np.uint32), out)
print(np.count_nonzero(out))
"""


@pytest.fixture
def copied(tmp_path):
    """A copy of the package without compiled code: the copy, and a function that runs it."""
    package = tmp_path / "sa1bpack"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sa1bpack.__file__).parent, package, ignore=ignored)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), kernels.VARIABLE: ""}

    def start(**variables: str) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", COMPILE]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment | variables, **pipes)
        assert process.stdout.readline() == "imported\n"
        return process

    return package, start


def end(process: subprocess.Popen) -> str:
    found, _ = process.communicate("\n")
    assert process.returncode == 0
    return found.strip()


def kept(folder: Path) -> dict[Path, tuple[int, int]]:
    """File → what changes when it is written again; the number of a removed file may return."""
    found = {path: path.stat() for path in folder.rglob("*.decode.*.nbc")}
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in found.items()}


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_kernels_that_contain_old_code_of_another_module_are_compiled_again(copied):
    """As after `git pull`: pack_rgb calls a kernel of yuv420.py, and its own file is the same.

    Also if a process that was started before writes its own after the change. A comment or another
    module that changes compiles nothing again.
    """
    package, start = copied
    assert end(start()) == "64", "one of three channels"
    first = kept(package)
    # A comment, and another module.
    edit(package / "pixels" / "yuv420.py", "@njit", "# A comment,\n# of two lines.\n@njit")
    edit(package / "masks" / "rle.py", "@njit", "def another():\n    return 1\n\n\n@njit")
    assert first and end(start()) == "64" and kept(package) == first, "nothing changed"
    earlier = start()
    line = "return min(k + PIXELS, count - PIXELS)"
    edit(package / "pixels" / "yuv420.py", line, "return count")
    assert end(start()) == "32", "the first vector alone"
    assert end(earlier) == "64"
    assert end(start()) == "32", "not what the earlier process keeps"


def test_a_damaged_file_is_compiled_again(copied):
    package, start = copied
    assert end(start()) == "64"
    for damage in (
        lambda content: content[: len(content) // 2],
        lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    ):
        damaged = kept(package)
        for path in damaged:
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(damage(content))
        assert end(start()) == "64"
        assert kept(package).keys() == damaged.keys() and kept(package) != damaged


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # writing more is an OSError
"""


def test_a_full_disk_means_compiling_in_each_process(copied, monkeypatch):
    package, start = copied
    monkeypatch.setattr(sys.modules[__name__], "COMPILE", FULL + COMPILE)
    assert end(start()) == "64"
    assert not kept(package) and not list(package.rglob("*.tmp"))


Point = namedtuple("Point", "x y")
Swapped = namedtuple("Point", "y x")


@pytest.mark.parametrize("values", [(1, 2), (1, 2.0)])
def test_code_for_a_record_is_kept_apart_from_that_for_one_with_other_fields(tmp_path, values):
    """numba gives both the same name."""
    kinds = [numba.typeof(record(*values)) for record in (Point, Swapped)]
    assert str(kinds[0]) == str(kinds[1])
    first, second = (numba.types.int64(kind) for kind in kinds)
    kernel = kernels.njit(lambda record: 0)
    codegen = kernel.targetctx.codegen()
    paths = [kernels.kernel_file(kernel, kind, codegen) for kind in (first, first, second)]
    assert paths[0] == paths[1] != paths[2]


def test_a_kernel_whose_value_has_no_digest_is_refused():
    place = object()
    kernel = kernels.njit(lambda: place)
    with pytest.raises(TypeError, match="a kernel cannot use <object object"):
        kernel()


@kernels.njit
def copied_array(array):
    return array.copy()


@pytest.mark.parametrize(
    "wrong",
    [lambda array: array, lambda array: array[1:], lambda array: copied_array(array)[0]],
    ids=["returns what it is passed", "returns a part of it", "gets one from a kernel"],
)
def test_a_kernel_that_borrows_arrays_returns_none_and_gets_none(wrong):
    """Nobody would count who uses them: memory would be freed early, or never."""
    copied_array(np.ones(2))  # compiled before, so that it may make arrays
    kernel = kernels.njit(borrows=True)(wrong)
    with pytest.raises((TypeError, numba.TypingError), match=r"borrows=True|Only accept returning"):
        kernel(np.ones(2))


def test_a_kernel_that_borrows_arrays_makes_none():
    with pytest.raises(numba.TypingError):
        kernels.njit(borrows=True)(lambda count: np.zeros(count)[0])(3)


def test_a_kernel_that_is_first_called_by_one_that_borrows_arrays_may_make_some():
    """numba would hand on the option to what is compiled while a kernel is."""

    @kernels.njit
    def total(array):
        return array.copy().sum()

    borrower = kernels.njit(borrows=True)(lambda array: total(array[1:]))
    assert borrower(np.arange(4)) == 6
    assert total(np.arange(4)) == 6


FIRST_USE = """
import numpy as np
from sa1bpack import kernels
kernels.PATIENCE = 0.05
from sa1bpack.pixels.decode import pack_rgb
pack_rgb(np.full((1, 64), 7, np.uint32), np.zeros((1, 64, 3), np.uint8))
"""


def test_the_first_use_says_once_that_it_compiles(tmp_path):
    variables = {kernels.VARIABLE: str(tmp_path)}
    said = [run_without_variables(FIRST_USE, **variables)[1] for _ in range(2)]
    once = "sa1bpack: compiling kernels for this processor, once; takes up to half a minute\n"
    assert said == [once, ""]


def test_a_kernel_that_cannot_be_compiled_leaves_no_notice_and_garbage_is_collected_again():
    def wrong(value):
        return value.missing

    with pytest.raises(numba.TypingError):
        kernels.njit(wrong)(1)
    assert gc.isenabled()
    waiting = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(each.finished.is_set() for each in waiting)
    assert kernels.njit(lambda value: value + gc_word)(1) == 3
    assert gc.isenabled()


def test_a_user_without_a_home_folder_gets_no_folder_called_tilde(read_only, monkeypatch, tmp_path):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert chosen().is_relative_to(read_only)
    assert not Path("~").exists()


gc_word = 2


def test_that_kernels_are_not_compiled_at_all_is_said():
    """A setting for debugging, with which packing fails: "<intrinsic> is not usable in Python"."""
    out, error = run_without_variables("import sa1bpack.kernels", NUMBA_DISABLE_JIT="1")
    assert out == "" and "NUMBA_DISABLE_JIT is set" in error and "unset it" in error


def test_a_number_of_threads_that_numba_refuses_is_named_with_its_variable():
    program = """
from sa1bpack.errors import OptionError
try:
    import sa1bpack.kernels
except OptionError as error:
    print(error)
"""
    out, error = run_without_variables(program, NUMBA_NUM_THREADS="0")
    assert error == "" and out.startswith("NUMBA_NUM_THREADS is '0'") and "unset it" in out
