"""Where numba keeps compiled kernels, and which of them are still of use.

The package and the home folder are often both read-only in a container, and numba then refuses to
define a kernel at all. It reads NUMBA_CACHE_DIR when it is imported, so sa1bpack.kernels sets it
before that.

A compiled kernel contains those that it calls, but numba compiles it again only when the file that
defines it has changed. After an update of a clone it would keep the old code of the others, so
sa1bpack.kernels has it compare the digest of all modules as well.
"""

import atexit
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def ensure_kernel_cache() -> None:
    """Set NUMBA_CACHE_DIR to a private folder of this user if numba would find no writable one.

    Warns if no such folder can be made either: each process then compiles its kernels again.
    """
    package = Path(__file__).absolute().parent
    if os.environ.get(VARIABLE) or _writable(package / "__pycache__") or _writable(_user_cache()):
        return
    try:
        folder = _private_folder(Path(tempfile.gettempdir()) / f"sa1bpack-numba-{os.getuid()}")
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {package}, in {_user_cache()} or in a temporary "
            f"folder ({error}), so each process compiles them again, which takes half a minute; "
            f"set {VARIABLE} to a writable folder",
            RuntimeWarning,
            stacklevel=3,
        )
        _keep_no_kernels()
        return
    os.environ[VARIABLE] = str(folder)
    if (numba := sys.modules.get("numba")) is not None:  # it has read its settings already
        numba.config.CACHE_DIR = str(folder)


def digest_of_sources() -> str:
    """Hex SHA-256 of all modules of the package; those that cannot be read are left out."""
    package, digest = Path(__file__).absolute().parent, hashlib.sha256()
    with suppress(OSError):
        for path in sorted(package.rglob("*.py")):
            with suppress(OSError):  # such as the dangling link with which an editor locks a file
                content = path.read_bytes()
                digest.update(os.fsencode(path.relative_to(package)) + b"\0" + content + b"\0")
    return digest.hexdigest()


def _keep_no_kernels() -> None:
    """Let kernels be compiled although they cannot be kept.

    numba has no setting for this: without a writable folder, defining a kernel with `cache=True`,
    as all of ours do, raises RuntimeError.
    """
    import_module("numba.core.dispatcher").Dispatcher.enable_caching = lambda kernel: None


def _user_cache() -> Path:
    """The folder that numba uses when it cannot write beside the code."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - keeps "~" for a user without a home
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "numba"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "numba"


def _writable(folder: Path) -> bool:
    """Whether files can be created in `folder`; creates the folder itself, as numba would."""
    if not folder.is_absolute():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _private_folder(folder: Path) -> Path:
    """Create `folder`, or another one if others can write to it.

    numba unpickles the files it finds there, so nobody else may have written them.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    private = found.st_uid == os.getuid() and not found.st_mode & 0o077
    if private and stat.S_ISDIR(found.st_mode):
        return folder
    other = tempfile.mkdtemp(prefix="sa1bpack-numba-")
    atexit.register(shutil.rmtree, other, ignore_errors=True)
    return Path(other)
