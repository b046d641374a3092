"""numba, for the modules that define kernels: they import it from here alone.

Compiled kernels are kept in files of our own, not by numba, whose cache takes a kernel for current
as long as the file that defines it has not changed, although its code contains the kernels that it
calls (docs/decisions/0023-kept-kernels.md). Here the name of a file is a digest of everything that
its code is compiled from: the bytecode of the kernel and of all that it calls, their constants, the
types of the arguments, the processor, and the versions of Python, numpy, numba and LLVM. So a file
is right or it is not found, no matter which process wrote it, and a changed comment compiles
nothing again.

What needs no kernel imports neither this module nor numba, and leaves the file system untouched.
"""

import dis
import gc
import hashlib
import os
import pickle
import stat
import sys
import threading
import types as python_types
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, overload

from sa1bpack.errors import OptionError

# isort: split
try:
    import numba
except ValueError as error:  # numba reads its variables when it is imported
    raise OptionError(
        f"NUMBA_NUM_THREADS is {os.environ.get('NUMBA_NUM_THREADS')!r}, with which numba cannot be "
        f"imported ({error}): unset it, or set it to 1 or more"
    ) from None

import llvmlite
import llvmlite.ir
import numpy as np
from numba import types
from numba.core.caching import CompileResultCacheImpl
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.serialize import dumps
from numba.extending import intrinsic as numba_intrinsic

from sa1bpack.interrupts import interrupts_held
from sa1bpack.paths import is_folder, temporary_folder

__all__ = ["external", "intrinsic", "memcpy", "memset", "njit", "types"]

VARIABLE = "NUMBA_CACHE_DIR"
# No kernel is passed to C by its address: the entry for that would take a fifth of compiling.
DEFAULTS = {"nogil": True, "no_cfunc_wrapper": True}

_word = types.uintp

_config: Any = numba.config  # whose variables are made when it is imported
if _config.DISABLE_JIT:
    warnings.warn(
        "NUMBA_DISABLE_JIT is set, so that kernels are not compiled: most cannot run as Python "
        "and fail with errors of other kinds; unset it to pack and to read",
        RuntimeWarning,
        stacklevel=2,
    )


def external(name: str, signature: Any) -> Callable[..., int]:
    """A function of the C library, for kernels: a symbol, so that compiled code can be kept."""
    function: Any = types.ExternalFunction(name, signature)
    return function  # type: ignore[no-any-return]  # numba's types do not say that it is called


# Of the C library, on addresses.
memcpy = external("memcpy", _word(_word, _word, _word))
memset = external("memset", _word(_word, types.intc, _word))


_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def njit(function: _Function, /) -> _Function: ...
@overload
def njit(
    *, borrows: bool = ..., error_model: str = ..., inline: str = ...
) -> Callable[[_Function], _Function]: ...
def njit(function: Any = None, /, *, borrows: bool = False, **options: Any) -> Any:
    """`numba.njit` that releases the GIL, and keeps compiled code by its content.

    Used as `@njit` or with options, `@njit(error_model="numpy")`. Type checkers see the function
    that is compiled.

    Args:
        function: what is compiled.
        borrows: the kernel only uses arrays that it is passed: it makes none, gets none from a
            kernel that it calls, and returns none. So it counts no references to them, which takes
            an atomic step each time that one is passed on or goes: most of the time of a kernel
            that is called for each row. It is an error when it is compiled if that is not so.
        **options: numba's.
    """
    options["_nrt"] = not borrows  # a kernel would inherit it from the first one that calls it
    if function is None:
        return lambda function: _kernel(function, options)
    return _kernel(function, options)


def _kernel(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The kernel of a function, with options of numba's."""
    kernel: Any = numba.njit(**{**DEFAULTS, **options, "cache": False})(function)
    if kernel is not function:  # as it is with NUMBA_DISABLE_JIT
        files = _KernelFiles(kernel, borrows=not options["_nrt"])
        kernel._cache = files
        kernel.compile = files.compile
    return kernel


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """`numba.extending.intrinsic`: kernels call the function without its first argument."""
    return numba_intrinsic(function)


class _KernelFiles:
    """The files of one kernel, one for each combination of argument types and processor.

    A file is the SHA-256 of the rest, 32 bytes, then numba's pickle of the compiled code.
    """

    def __init__(self, kernel: Dispatcher, borrows: bool):
        self._kernel = kernel
        self._borrows = borrows
        self._compile = kernel.compile
        self._notice: threading.Timer | None = None

    def compile(self, signature: Any) -> Any:
        """Load or compile a kernel, and say so if that takes a while.

        Ctrl-C takes effect once the kernel is there. Within, it would leave objects of llvmlite
        whose memory LLVM has freed without their knowing: they free it again when they go, and the
        process ends with "double free detected".

        No garbage is collected meanwhile: passing over the objects that numba makes takes a fifth
        of compiling.
        """
        collected_before = gc.isenabled()
        gc.disable()
        try:
            with interrupts_held():
                return self._compile(signature)
        finally:
            if self._notice is not None:
                self._notice.cancel()
            if collected_before:
                gc.enable()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled code for these types, or None if it is not kept or the file is damaged."""
        target_context.refresh()
        path = kernel_file(self._kernel, signature, target_context.codegen())
        if path is not None:
            try:
                return _unpacked(path.read_bytes(), target_context)
            except Exception:  # whatever numba makes of a damaged file: it is compiled again
                pass
        self._notice = threading.Timer(PATIENCE, _say, [path is not None])
        self._notice.daemon = True
        self._notice.start()
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep code that was compiled; a folder that cannot be written is no reason to fail.

        Raises TypeError if the kernel borrows arrays, as it says, and has others.
        """
        if self._borrows:
            _check_borrowing(self._kernel, compiled)
        path = kernel_file(self._kernel, signature, compiled.codegen)
        if path is None:
            return
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with suppress(OSError):
            try:
                temporary.write_bytes(_packed(compiled))
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)


def _check_borrowing(kernel: Dispatcher, compiled: Any) -> None:
    """Raise TypeError if a kernel returns an array, or gets one from another kernel.

    numba itself refuses one that makes an array.
    """
    results = [compiled.signature.return_type]
    annotation = compiled.type_annotation
    for expression, signature in annotation.calltypes.items():
        if getattr(expression, "op", "") != "call":
            continue
        if isinstance(annotation.typemap[expression.func.name], types.Dispatcher):
            results.append(signature.return_type)
    if any(isinstance(result, types.Array) for result in results):
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}"
        raise TypeError(f"{name} with borrows=True returns an array, or gets one from a kernel")


# numba's own two steps, which take no notice of the instance that they are methods of.
_reduce: Any = CompileResultCacheImpl.reduce
_rebuild: Any = CompileResultCacheImpl.rebuild


def _packed(compiled: Any) -> bytes:
    """Compiled code as the content of a file."""
    content: bytes = dumps(_reduce(None, compiled))
    return hashlib.sha256(content).digest() + content


def _unpacked(packed: bytes, target_context: Any) -> Any:
    """Compiled code of the content of a file. Raises ValueError, or numba's, if it is damaged."""
    content = packed[32:]
    if hashlib.sha256(content).digest() != packed[:32]:
        raise ValueError("damaged")
    reduced = pickle.loads(content)  # noqa: S301 - kept where only this user writes
    return _rebuild(None, target_context, reduced)


def kernel_file(kernel: Dispatcher, signature: Any, codegen: Any) -> Path | None:
    """The file of a kernel's code for these types and this processor; None if none is kept."""
    folder = kernel_folder()
    if folder is None:
        return None
    function = kernel.py_func
    variant = _digest(_described_type(signature), *map(repr, codegen.magic_tuple()))
    name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}"
    return folder / f"{name}.{_code_digest(kernel)}.{variant}.nbc"


# ---------------------------------------------------------------------- what code is compiled from


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]


@cache
def _code_digest(kernel: Dispatcher) -> str:
    """A digest of all that the code of a kernel depends on, but its argument types."""
    versions = sys.version, np.__version__, numba.__version__, llvmlite.__version__
    settings = _config.OPT, _config.BOUNDSCHECK, _config.DEBUGINFO_DEFAULT
    return _digest(repr(versions + settings), *_described(kernel, {}))


def _described(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """Texts that are the same for equal values in every process.

    Raises TypeError for a value of which that is not known.
    """
    if id(value) in seen:  # a function that calls itself, or is called twice
        yield f"again {seen[id(value)]}"
    elif isinstance(value, (Dispatcher, _Intrinsic, python_types.FunctionType)):
        seen[id(value)] = len(seen)
        if isinstance(value, Dispatcher):
            yield repr(sorted(value.targetoptions.items()))
            value = value.py_func
        yield from _described_function(getattr(value, "_defn", value), seen)
    elif isinstance(value, (tuple, list)):
        yield f"{type(value).__qualname__} {len(value)}"
        for item in value:
            yield from _described(item, seen)
    elif isinstance(value, dict):
        yield from _described(list(value.items()), seen)
    elif isinstance(value, frozenset):
        yield from _described(sorted(value, key=repr), seen)
    elif isinstance(value, (np.ndarray, np.generic)):
        yield f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    elif isinstance(value, types.ExternalFunction):
        yield f"{value.symbol} {value.sig}"
    elif isinstance(value, types.Type):
        yield _described_type(value)
    elif isinstance(value, (np.dtype, Enum, llvmlite.ir.Type)) or type(value) in _PLAIN:
        yield f"{type(value).__qualname__} {value!r}"
    elif isinstance(value, type) and issubclass(value, tuple):
        yield f"{value.__module__}.{value.__qualname__} {getattr(value, '_fields', ())}"
    elif _is_foreign(value):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}"
    else:
        raise TypeError(f"a kernel cannot use {value!r}: its digest is not defined in {__name__}")


_PLAIN = (bool, int, float, complex, str, bytes, range, slice, type(None), type(...))


def _is_foreign(value: Any) -> bool:
    """True for a module, class or builtin function that only a new version can change."""
    if isinstance(value, python_types.ModuleType):
        origin = value.__name__
    elif isinstance(value, (python_types.BuiltinFunctionType, type, np.ufunc)):
        origin = getattr(value, "__module__", None) or type(value).__module__
    else:
        return False
    return origin.partition(".")[0] != __name__.partition(".")[0]


def _described_function(function: Any, seen: dict[int, int]) -> Iterator[str]:
    yield from _described_code(function.__code__, function.__doc__)
    yield from _described((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        yield from _described(cell.cell_contents, seen)
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:  # otherwise it is a builtin
            yield name
            yield from _described(function.__globals__[name], seen)


def _described_code(code: python_types.CodeType, documentation: str | None) -> Iterator[str]:
    """Texts of what code does, without the lines it stands on."""
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    yield f"{code.co_code.hex()} {names} {code.co_argcount} {code.co_exceptiontable.hex()}"
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            yield from _described_code(constant, None)
        elif documentation is None or constant != documentation:
            yield from _described(constant, {})


def _global_names(code: python_types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, python_types.CodeType))
    loaded = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return loaded.union(*map(_global_names, inner))


def _described_type(kind: Any) -> str:
    """A type of numba's or a signature, with the fields of named tuples, which numba leaves out."""
    if isinstance(kind, tuple):
        return ", ".join(map(_described_type, kind))
    if hasattr(kind, "return_type"):
        return f"{_described_type(kind.args)} -> {_described_type(kind.return_type)}"
    if isinstance(kind, types.BaseTuple):
        record = getattr(kind, "instance_class", tuple)
        members: Any = kind
        inner = _described_type(tuple(members))
        return f"{record.__module__}.{record.__qualname__}{getattr(kind, 'fields', ())}({inner})"
    return str(kind)


# --------------------------------------------------------------------------------- where it is kept


@cache
def kernel_folder() -> Path | None:
    """The folder of compiled kernels; None if there is no place for one.

    It is NUMBA_CACHE_DIR if that is set, or beside the code, in the user's cache, or a private
    temporary folder: package and home folder are often both read-only in a container.

    Warns if no folder can be written: each process then compiles its kernels again.
    """
    if os.environ.get(VARIABLE):
        chosen = Path(os.environ[VARIABLE])
        return chosen if _writable(chosen) else None
    package = Path(__file__).absolute().parent / "__pycache__"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - keeps "~" for a user without a home
    user = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "sa1bpack"
    for folder in (package, user):
        if _writable(folder):
            return folder
    temporary = temporary_folder() / f"sa1bpack-kernels-{os.getuid()}"
    if _writable(temporary, 0o700) and _is_private(temporary):
        return temporary
    warnings.warn(
        f"compiled kernels cannot be kept in {package}, in {user} or in {temporary}, so each "
        f"process compiles them again; set {VARIABLE} to a writable folder",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _writable(folder: Path, mode: int = 0o777) -> bool:
    """True if files can be created in `folder`; creates the folder itself, with this mode."""
    if not folder.is_absolute():
        return False
    try:
        if not is_folder(folder):
            folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _is_private(folder: Path) -> bool:
    """True if nobody else can write to it: files found there are unpickled."""
    status = folder.lstat()
    is_ours = status.st_uid == os.getuid()
    return is_ours and not status.st_mode & 0o022 and stat.S_ISDIR(status.st_mode)


# ------------------------------------------------------------------------------------ the first use

PATIENCE = 1.0  # seconds of compiling a kernel, and those that it calls, before a word is said


@cache
def _say(is_kept: bool) -> None:
    """Print on standard error, once per process, that kernels are compiled."""
    how = "once" if is_kept else "in every process, since no folder can keep them"
    print(
        f"sa1bpack: compiling kernels for this processor, {how}; takes up to half a minute",
        file=sys.stderr,
        flush=True,
    )
