"""The available devices, and the ways in which they make batches."""

import os

import pytest
import torch

from sa1bpack.transforms import backends

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)
# tests/conftest.py has Triton's interpreter run the kernels, unless there is a CUDA device.
INTERPRETED = pytest.param(
    "Triton kernels, interpreted",
    marks=pytest.mark.skipif(
        os.environ["TRITON_INTERPRET"] != "1" or not backends.find_spec("triton"),
        reason="Triton is not installed, or compiles for the CUDA device",
    ),
)


@pytest.fixture(autouse=True)
def full_products():
    """Products in full float32: vendors' images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which has the
    effect of `torch.set_float32_matmul_precision("high")`."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(params=["cpu", CUDA])
def device(request) -> torch.device:
    """Every available device: the same code must work on all of them."""
    return torch.device(request.param)


@pytest.fixture(params=["cpu", "torch operations on a cpu", CUDA])
def any_way(request, monkeypatch) -> torch.device:
    """Every available device, and a CPU that runs what other devices run."""
    return _take_way(request.param, monkeypatch)


@pytest.fixture(params=["torch operations on a cpu", CUDA])
def operations(request, monkeypatch) -> torch.device:
    """A device that runs torch operations; with none, a CPU that does."""
    if request.param == "cuda":
        monkeypatch.setenv(backends.VARIABLE, "0")
    return _take_way(request.param, monkeypatch)


@pytest.fixture(params=["torch operations on a cpu", INTERPRETED, CUDA])
def anywhere(request, monkeypatch) -> torch.device:
    """Torch operations, and Triton kernels."""
    return _take_way(request.param, monkeypatch)


@pytest.fixture(params=[INTERPRETED, CUDA])
def triton_device(request, monkeypatch) -> torch.device:
    """A device that runs Triton kernels; with none, a CPU on which they are interpreted."""
    return _take_way(request.param, monkeypatch)


def _take_way(name: str, monkeypatch) -> torch.device:
    if name in ("cpu", "cuda"):
        return torch.device(name)
    monkeypatch.setattr(backends, "COMPILED_ON", ())
    if name.startswith("Triton"):
        monkeypatch.setattr(backends, "TRITON_ON", ("cpu",))
    return torch.device("cpu")
