"""The kernels compile for several generations of GPUs, which needs none."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
def test_every_kernel_of_a_pipeline_compiles_and_rounds_as_the_compiled_kernels_do(tmp_path):
    """No product is fused with a sum, which would round once instead of twice; and what a thread
    computes with fits into its registers, but for four of them with Triton 3.2."""
    done = subprocess.run(
        [sys.executable, HELPERS / "compile_kernels.py"],
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    names = {
        "_convert",
        "_fill_taps",
        "_sample",
        "_draw",
        "_take",
        "_sample_affine",
        "_draw_affine",
        "_take_affine",
        "_sum_gray",
        "_adjust",
    }
    made = {(kernel["kernel"], kernel["variant"], kernel["generation"]) for kernel in kernels}
    assert made == {
        *((name, "aligned", generation) for name in names for generation in (80, 90)),
        *((name, "any", 90) for name in names),
        *((name, "ones", 90) for name in ("_draw", "_sample", "_take")),
    }
    assert all(kernel["code"] > 1000 for kernel in kernels)
    assert [kernel["name"] for kernel in kernels if kernel["fused"]] == []
    assert [kernel["name"] for kernel in kernels if kernel["spilled"] > 16] == []
