"""Where numba keeps compiled kernels, if neither the package nor the home folder can be written.

A container often has both read-only, and numba then refuses to define a kernel at all. It reads
NUMBA_CACHE_DIR when it is imported, so `import sa1bpack` sets that before, and is itself cheap.
"""

import atexit
import os
import shutil
import stat
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def ensure_kernel_cache() -> None:
    """Set NUMBA_CACHE_DIR to a folder of this user's own if numba finds no place by itself.

    Warns when there is no such place at all; then each process compiles its kernels anew.
    """
    package = Path(__file__).absolute().parent
    if os.environ.get(VARIABLE) or _writable(package / "__pycache__") or _writable(_user_cache()):
        return
    try:
        folder = _private_folder(Path(tempfile.gettempdir()) / f"sa1bpack-numba-{os.getuid()}")
    except OSError as error:
        warnings.warn(
            f"compiled kernels can be kept neither in {package} nor in {_user_cache()} nor in a "
            f"temporary folder ({error}), so each process takes half a minute to compile them; set "
            f"{VARIABLE} to a folder that can be written",
            RuntimeWarning,
            stacklevel=2,
        )
        _keep_no_kernels()
        return
    os.environ[VARIABLE] = str(folder)
    if (numba := sys.modules.get("numba")) is not None:  # it has read its settings already
        numba.config.CACHE_DIR = str(folder)


def _keep_no_kernels() -> None:
    """Let kernels be compiled though they cannot be kept.

    numba has no setting for it: a kernel that asks to be kept (`cache=True`), as all of ours do, is
    a RuntimeError where there is no place.
    """
    import_module("numba.core.dispatcher").Dispatcher.enable_caching = lambda kernel: None


def _user_cache() -> Path:
    """The folder that numba takes when it cannot write beside the code."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - "~" for a user without a home folder
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "numba"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "numba"


def _writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, which is made as well, as numba would."""
    if not folder.is_absolute():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _private_folder(folder: Path) -> Path:
    """Make `folder`, or another if that one is not this user's alone.

    numba unpickles what it finds there, so nobody else may have written it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077
    if private and stat.S_ISDIR(found.st_mode):
        return folder
    other = tempfile.mkdtemp(prefix="sa1bpack-numba-")
    atexit.register(shutil.rmtree, other, ignore_errors=True)
    return Path(other)
