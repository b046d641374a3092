"""The available devices, and the ways in which they make batches."""

import importlib.util
import os

import pytest
import torch
from made_batches import made_by

CUDA = pytest.param("cuda", marks=pytest.mark.cuda)
# tests/conftest.py has Triton's interpreter run the kernels, unless there is a CUDA device.
INTERPRETED = pytest.param(
    "Triton kernels, interpreted",
    marks=pytest.mark.skipif(
        os.environ["TRITON_INTERPRET"] != "1" or not importlib.util.find_spec("triton"),
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


@pytest.fixture
def threads_restored():
    """The number of threads of torch, which a test may change."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _ways(*names):
    """A fixture of devices, and of ways in which one makes batches."""

    @pytest.fixture(params=names)
    def way(request):
        if request.param in ("cpu", "cuda"):
            yield torch.device(request.param)
            return
        with made_by(triton_on=("cpu",) if request.param.startswith("Triton") else ()):
            yield torch.device("cpu")

    return way


TORCH = "torch operations on a cpu"
device = _ways("cpu", CUDA)  # the same code must work on all of them
any_way = _ways("cpu", TORCH, CUDA)
anywhere = _ways(TORCH, INTERPRETED, CUDA)
everywhere = _ways("cpu", TORCH, INTERPRETED, CUDA)
triton_device = _ways(INTERPRETED, CUDA)
