"""The devices that there are."""

import pytest
import torch

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    ],
)


@pytest.fixture(params=["cpu", CUDA])
def device(request) -> torch.device:
    """Every device that there is: the same code has to do on all."""
    return torch.device(request.param)
