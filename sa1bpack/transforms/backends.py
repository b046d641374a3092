"""What makes the large arrays of a batch on each type of device.

    compiled kernels   on a CPU
    Triton kernels     on CUDA, where Triton can be imported
    torch operations   on any other device, and on CUDA without Triton

All three have the same cells and the same bytes, and images that differ by rounding only. A Triton
kernel that cannot be run is replaced by torch operations for the rest of the process, and a
`KernelWarning` says so once. The environment variable SA1BPACK_TRITON=0 chooses torch operations.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from sa1bpack.keywords import checks_options
from sa1bpack.threads import ThreadPool

COMPILED_ON = ("cpu",)  # types of devices where compiled kernels take the place of torch operations
TRITON_ON = ("cuda",)  # and where Triton kernels do
VARIABLE = "SA1BPACK_TRITON"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)  # what kernels write, besides bytes

# Kernel → why it does not run in this process, see `launch`.
failed: dict[str, str] = {}


class KernelWarning(RuntimeWarning):
    """A Triton kernel does not run on this machine, and torch operations take its place.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", T.KernelWarning)  # rather stop than be slow
    """


def uses_compiled(device: torch.device) -> bool:
    """True if compiled kernels make the arrays of batches on a device."""
    return device.type in COMPILED_ON


def _without_triton(device: torch.device) -> str | None:
    """The reason why no Triton kernel runs on a device, as a supplement; None if they do."""
    if device.type not in TRITON_ON:
        return ""
    if os.environ.get(VARIABLE) == "0":
        return f" ({VARIABLE}=0)"
    if find_spec("triton") is None:
        return " (Triton is not installed)"
    return None


@checks_options
def describe_kernels(device: torch.device | str) -> str:
    """The kernels that make the large arrays of a batch on a device, as text, and why these.

    Examples:
        >>> T.describe_kernels("cpu")
        'compiled kernels'
    """
    device = torch.device(device)
    if device.type == "cpu":
        return "compiled kernels"
    if (reason := _without_triton(device)) is not None:
        return f"torch operations{reason}"
    if not failed:
        return "Triton kernels"
    reasons = ", ".join(f"{kernel}: {reason}" for kernel, reason in failed.items())
    return f"Triton kernels, but torch operations for {reasons}"


def launch(device: torch.device, kernel: str, *arguments: Any) -> Any:
    """Run a Triton kernel on a device.

    The first time that a kernel cannot be run, there is a KernelWarning. An error that earlier work
    on the device caused, and one for lack of memory, is raised as it is.

    Args:
        kernel: "module.function" of `sa1bpack.transforms.triton`.
        arguments: arguments of that function.

    Returns:
        The result of the function; None if the kernel was not run: torch operations must do its
        work.
    """
    if kernel in failed or _without_triton(device) is not None:
        return None
    module_name, _, function = kernel.partition(".")
    on_device: AbstractContextManager[None] = nullcontext()
    if device.type == "cuda":
        on_device = torch.cuda.device(device)
    try:
        with on_device:
            module = import_module(f"sa1bpack.transforms.triton.{module_name}")
            return getattr(module, function)(*arguments)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, its compiler, the C compiler, the file system
        if "out of memory" in str(error):  # as Triton says it, and only of a device
            raise
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # raises if the device itself has failed
        failed[kernel] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        warnings.warn(
            f"the Triton kernel {kernel} does not run here, and slower torch operations take its "
            f"place ({failed[kernel]}); Triton needs a C compiler and a writable TRITON_CACHE_DIR "
            f"(~/.triton); {VARIABLE}=0 chooses torch operations without this warning",
            KernelWarning,
            stacklevel=3,
        )
        return None


Job = Callable[[], None]


# By thread: how many threads run jobs at the same time, see `sharing_cores`.
_sharing = threading.local()


@contextmanager
def sharing_cores(threads: int) -> Iterator[None]:
    """Run jobs in this thread's share of the threads that torch may use.

    Args:
        threads: number of threads that are in such a block at the same time.
    """
    _sharing.threads = threads
    try:
        yield
    finally:
        _sharing.threads = 1


def run_jobs(jobs: Iterable[Job]) -> None:
    """Run jobs in as many threads as torch may use, or in a share of them."""
    jobs = list(jobs)
    share = torch.get_num_threads() // getattr(_sharing, "threads", 1)
    threads = min(share, len(jobs))
    if threads < 2:
        for job in jobs:
            job()
        return
    with ThreadPool(threads) as pool:
        futures = [pool.submit(job) for job in jobs]
        for future in futures:
            future.result()


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """A context without autocast.

    Autocast would round images to a 16-bit type, and counts of cells to one that does not hold
    them.
    """
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
