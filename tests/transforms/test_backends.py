"""What makes batches on a device, and what happens where a Triton kernel does not run."""

import sys
import types
import warnings

import pytest
import torch
from made_batches import Layout, dataset, noisy_batch

from sa1bpack import transforms as T
from sa1bpack.transforms import backends

CUDA = torch.device("cuda")
LAYOUT = Layout(image_size=48, mask_size=48)


@pytest.fixture
def triton_on_cpu(monkeypatch):
    """As if Triton were installed and a CPU were its device; nothing has failed yet."""
    monkeypatch.setattr(backends, "TRITON_ON", ("cpu",))
    monkeypatch.setattr(backends, "failed", {})
    monkeypatch.setattr(backends, "find_spec", lambda name: types.SimpleNamespace(name=name))
    monkeypatch.setattr(backends, "COMPILED_ON", ())
    monkeypatch.delenv(backends.VARIABLE, raising=False)


def fails(monkeypatch, error: Exception) -> list:
    """Every launcher of Triton kernels raises this error; returns the list of their calls."""
    calls = []

    class Launcher(types.ModuleType):
        def __getattr__(self, name):
            def launch(*arguments):
                calls.append(name)
                raise error

            return launch

    for name in ("images", "masks"):
        full = f"sa1bpack.transforms.triton.{name}"
        monkeypatch.setitem(sys.modules, full, Launcher(full))
    return calls


def test_a_kernel_that_does_not_run_is_named_once_and_replaced(triton_on_cpu, monkeypatch):
    calls = fails(monkeypatch, RuntimeError("Failed to find C compiler.\nSet CC."))
    made = T.Pipeline(dataset(LAYOUT), [T.RandomHorizontalFlip()])
    batch = noisy_batch(LAYOUT, "bits")
    with pytest.warns(T.KernelWarning) as warned:
        found = made(batch, 0)
    kernels = ("images.sample_images", "masks.take_upright")
    for warning, kernel in zip(warned, kernels, strict=True):
        message = str(warning.message)
        assert kernel in message and "RuntimeError: Failed to find C compiler." in message
        assert "TRITON_CACHE_DIR" in message and "SA1BPACK_TRITON=0" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = made(batch, 0)
    assert len(calls) == 2
    monkeypatch.setattr(backends, "TRITON_ON", ())
    expected = made(batch, 0)
    for key in ("images", "masks", "valid"):
        assert torch.equal(found[key], expected[key]) and torch.equal(again[key], expected[key])


def test_what_a_device_uses_is_described(triton_on_cpu, monkeypatch):
    assert T.describe_kernels("cpu") == "compiled kernels"
    assert T.describe_kernels("meta") == "torch operations"
    monkeypatch.setattr(backends, "TRITON_ON", ("cuda",))
    assert T.describe_kernels("cuda:1") == "Triton kernels"
    backends.failed["masks.draw_upright"] = "OSError: disk full"
    assert T.describe_kernels("cuda") == (
        "Triton kernels, but torch operations for masks.draw_upright: OSError: disk full"
    )
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    options = {"max_cover": 0.8, "max_valid": 3}
    shown = repr(T.Pipeline(dataset(LAYOUT), [T.RandomHorizontalFlip()], **options))
    assert shown == (
        "Pipeline([RandomHorizontalFlip(p=0.5)], size=(48, 48), mask_size=(48, 48), "
        "dtype=float32, mean=[123.675, 116.28, 103.53], "
        "std=[58.395, 57.12, 57.375], min_area=1, max_cover=0.8, max_valid=3, seed=0), "
        "on a CPU: compiled kernels, on CUDA: torch operations (Triton is not installed)"
    )


def test_the_environment_and_a_missing_triton_choose_torch_operations(triton_on_cpu, monkeypatch):
    calls = fails(monkeypatch, AssertionError("not to be called"))
    cpu = torch.device("cpu")
    monkeypatch.setenv("SA1BPACK_TRITON", "0")
    assert backends.launch(cpu, "masks.draw_upright") is None
    monkeypatch.delenv("SA1BPACK_TRITON")
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert backends.launch(cpu, "masks.draw_upright") is None
    assert calls == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
    ],
    ids=["torch", "Triton"],
)
def test_missing_memory_is_raised_as_it_is(triton_on_cpu, monkeypatch, error):
    fails(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        backends.launch(torch.device("cpu"), "masks.draw_upright")
    assert raised.value is error and backends.failed == {}
