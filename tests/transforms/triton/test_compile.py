"""The kernels compile for a generation of GPUs, in torture for three, which needs no GPU."""

import importlib.util
import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from commands import python
from packaging.version import Version

HELPERS = Path(__file__).parents[2] / "helpers"


ALL = {"_convert", "_fill_taps", "_sample", "_draw", "_take", "_sum_gray", "_adjust"}
ALL |= {"_sample_affine", "_draw_affine", "_take_affine", "_measure_columns", "_find_farthest"}
ALL |= {"_filter"}
# Of those that write images and masks: RGB is written byte by byte, as its bytes lie.
WRITING = ALL - {"_convert", "_fill_taps", "_sum_gray", "_measure_columns", "_find_farthest"}


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_every_kernel_compiles_rounds_as_on_a_cpu_and_suits_the_device(tmp_path, request):
    """No product is fused with a sum, which would round once instead of twice. What a thread
    computes with fits into its registers, and leaves room for as many threads as hide the waits
    for memory. Of arrays as torch allocates them, a thread writes 8 bytes at a time or more."""
    generations = ["80", "90", "100"] if request.config.getoption("torture") else ["90"]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    printed = python(HELPERS / "compile_kernels.py", *generations, env=environment, timeout=300)
    kernels = [json.loads(line) for line in printed.splitlines()]
    made = {(kernel["kernel"], kernel["variant"], kernel["generation"]) for kernel in kernels}
    last = int(generations[-1])
    expected = {(name, "aligned", int(generation)) for name in ALL for generation in generations}
    if len(generations) > 2:
        expected |= {(name, "any", last) for name in ALL}
        expected |= {(name, "ones", last) for name in WRITING | {"_sum_gray"}}
    assert made == expected
    assert all(kernel["code"] > 1000 for kernel in kernels)
    assert [kernel["name"] for kernel in kernels if kernel["fused"]] == []
    assert [kernel for kernel in kernels if kernel["spilled"] > 16] == []
    if Version(version("triton")) < Version("3.7"):  # an earlier compiler's choices are not ours
        return
    usual = [kernel for kernel in kernels if kernel["variant"] == "aligned"]
    # 65,536 registers of a multiprocessor hold twelve warps of 32 threads.
    assert [kernel for kernel in usual if kernel["registers"] > 168] == []
    writing = [kernel for kernel in usual if kernel["kernel"] in WRITING]
    assert [kernel for kernel in writing if min(kernel["stores"]) < 8] == []


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_no_number_of_masks_makes_a_kernel_be_compiled_again(request):
    """The launcher compiles for what it knows of addresses and numbers, also in mid-training."""
    if Version(version("triton")) < Version("3.7"):
        pytest.skip("another launcher")
    long = request.config.getoption("torture")
    seed = request.config.getoption("torture_seed")
    batches = 40 if long else 4
    printed = python(HELPERS / "kernel_variants.py", seed, batches, timeout=300)
    variants = json.loads(printed)
    launched = {name.partition(" ")[0] for name in variants}
    assert launched == WRITING | {"_fill_taps", "_sum_gray"}
    assert [name for name, number in variants.items() if number > 1] == []
