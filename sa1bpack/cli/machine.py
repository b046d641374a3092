"""Facts on a machine that decide how fast packing and loading are, for `sa1bpack info`."""

import platform
import resource
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sa1bpack import __version__
from sa1bpack.dataset.shard_cache import mapping_limit
from sa1bpack.environment import (
    available_cpus,
    cpu_flags,
    memory_bytes,
    pil_in_force,
    read_pil_record,
)
from sa1bpack.wording import counted, size_text

_AIO = (Path("/proc/sys/fs/aio-nr"), Path("/proc/sys/fs/aio-max-nr"))
_NAMES = {"pillow-simd": "pillow-simd", "pillow": "Pillow"}
_SIMD = {"sse4_1", "avx2", "avx512f", "asimd"}  # names of /proc/cpuinfo


def describe_packages() -> dict[str, str]:
    """Versions, the image decoder and the PIL in force: label → text, in the order to print."""
    now = pil_in_force()
    record = read_pil_record()
    resizer = "none: neither pillow-simd nor Pillow is installed; run `make setup`"
    if now is not None:
        resizer = f"{_NAMES[now.package]} {now.version}"
    state = "not by `make setup`, which installs the faster one that works here"
    if record is not None and now is not None and now.core_sha256 == record.core_sha256:
        state = "unchanged since `make setup`"
        if record.simd:
            resizer += f", compiled for {record.simd}"
        if record.reason:
            state += f" ({record.reason})"
    elif record is not None:
        was = f"{_NAMES[record.package]} {record.version}"
        state = f"CHANGED: set-up installed {was}; `make setup` restores it"
    return {
        "sa1bpack": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "machine": f"{platform.system()} {platform.machine()}, {available_cpus()} CPUs, "
        f"SIMD {', '.join(sorted(_SIMD & cpu_flags())) or 'unknown'}",
        "decoder": f"simplejpeg {_version('simplejpeg')} (libjpeg-turbo)",
        "resizer": resizer,
        "PIL set-up": state,
        **{name: _version(name) for name in ("numpy", "numba", "zarr", "zlib-ng", "torch")},
    }


def describe_machine(folder: Path) -> dict[str, str]:
    """Memory, CUDA, the file system of a folder, and limits: label → text, in order."""
    kinds = _said("df", "--output=fstype", str(folder))  # such as ext4
    return {
        "memory": f"{size_text(memory_bytes())} for this process",
        "CUDA": cuda_devices(),
        "file system": f"{(kinds or ['unknown'])[-1]}, of {folder}",
        "limits": _limits(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _said(*command: str) -> list[str]:
    """The lines that a command of the system prints; none if it is missing or fails."""
    try:
        output = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return output.splitlines()


def cuda_devices() -> str:
    """The devices that the NVIDIA driver names, with their memory; torch is not loaded."""
    devices = _said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return "; ".join(devices) or "none: nvidia-smi is missing, or names no device"


def _limits() -> str:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    opened = counted(files, "open file")
    if files < 0:
        opened = "no limit on open files"
    try:
        used, most = (int(path.read_text()) for path in _AIO)
        requests = f"{used:,} of {most:,} AIO requests in use"
    except OSError:  # of a sandbox without them
        requests = "no Linux AIO"
    return f"{opened}, {mapping_limit():,} memory maps, {requests}"
