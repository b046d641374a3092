"""Frameworks that may be missing here, or may have been built for another torch."""

import functools
import importlib
import importlib.util
import sys

import pytest
import torch

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def forget(package: str) -> None:
    """Remove a package and all its modules from those that are imported."""
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        del sys.modules[name]


@functools.cache
def has_torchvision() -> bool:
    """Whether torchvision is installed; it is imported then.

    Its compiled operators load only into the build of torch that they were compiled for (CUDA or
    CPU), and its import fails where they do not. transforms.v2 and tv_tensors do not use them: two
    declared signatures are all that the import needs.
    """
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        forget("torchvision")
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", _NMS)
        importlib.import_module("torchvision")
    return True


def need_torchvision() -> None:
    """Skip the test if torchvision is not installed."""
    if not has_torchvision():
        pytest.skip("torchvision is not installed: make frameworks")
