"""The available devices."""

import pytest
import torch

from sa1bpack.transforms import pipeline

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
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
    if request.param.startswith("torch"):
        monkeypatch.setattr(pipeline, "COMPILED_ON", ())
        return torch.device("cpu")
    return torch.device(request.param)


@pytest.fixture(params=["torch operations on a cpu", CUDA])
def operations(request, monkeypatch) -> torch.device:
    """A device that runs torch operations; with none, a CPU that does."""
    if request.param.startswith("torch"):
        monkeypatch.setattr(pipeline, "COMPILED_ON", ())
        return torch.device("cpu")
    return torch.device(request.param)
