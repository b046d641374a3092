"""Frameworks that may be missing here, or may have been built for another torch."""

import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path

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


def share_torchvision(monkeypatch, folder: Path) -> None:
    """Have Python processes that are started from now on import torchvision as this one does.

    They find the file that says so in an empty folder.
    """
    (folder / "sitecustomize.py").write_text("import frameworks\nframeworks.has_torchvision()\n")
    search = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, search)))


def need_torchvision() -> None:
    """Skip the test if torchvision is not installed."""
    if not has_torchvision():
        pytest.skip("torchvision is not installed: make frameworks")
