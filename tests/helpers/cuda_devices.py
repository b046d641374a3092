"""Whether there is a CUDA device, without a call to CUDA: after one, no child can be forked."""

from pathlib import Path


def present(root: Path = Path("/")) -> bool:
    """Whether the driver shows a device: on Linux, or on Windows below it (WSL 2)."""
    if list(root.glob("dev/nvidia[0-9]*")):
        return True
    # There, every vendor has this one device, and the driver of NVIDIA brings its library.
    return all((root / path).exists() for path in ("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"))
