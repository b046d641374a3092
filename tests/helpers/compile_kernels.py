"""Compiles the Triton kernels that pipelines launch, without a device: python compile_kernels.py.

Triton's interpreter is more lenient than its compiler. Launches of real batches are recorded on the
CPU, and each kernel is compiled for the types of its arguments, for several generations of GPUs, by
the compiler and the assembler that Triton brings. Prints a JSON object per kernel and generation:
its name, the bytes of its code, and how many instructions multiply and add at once or use the
memory of a thread's stack.
"""

import json
import os
import re

os.environ["TRITON_INTERPRET"] = "0"

import torch
from made_batches import dataset, noisy_batch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sa1bpack.format import Layout
from sa1bpack.transforms import ColorJitter, Pipeline, RandomAffine, RandomFlip, ScaleJitter, ways

GENERATIONS = (80, 90)  # compute capability: A100, H100
POINTERS = {
    torch.uint8: "*u8", torch.int32: "*i32", torch.int64: "*i64", torch.float16: "*fp16",
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
}  # fmt: skip


def recorded_launches() -> dict[str, tuple]:
    """Name and types → kernel, signature, constants, and options of what pipelines launch."""
    found = {}

    def record(kernel, *arguments, grid, warmup, **options):
        names = [parameter.name for parameter in kernel.params]
        constants = {name: options.pop(name) for name in list(options) if name in names}
        values = dict(zip(names, arguments, strict=False))
        signature = {name: _type(value) for name, value in values.items()}
        signature |= dict.fromkeys(constants, "constexpr")
        name = f"{kernel.__name__}({', '.join(map(str, (signature | constants).values()))})"
        found[name] = kernel, signature, constants, options

    JITFunction.run = record
    ways.COMPILED_ON, ways.TRITON_ON = (), ("cpu",)
    for masks, sampling, pixels in (
        ("bits", "area", "rgb"), ("bool", "area", "rgb"), ("runs", "area", "yuv420"),
        ("runs", "center", "yuv420"),
    ):  # fmt: skip
        layout = Layout(image_size=48, mask_size=48, pixels=pixels)
        batch, ds = noisy_batch(layout, masks), dataset(layout)
        ds.mask_sampling = sampling
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            mask_dtype = torch.bool if dtype == torch.float32 else dtype
            for turn in ([], [RandomAffine(20), ColorJitter(0.4, 0.4, 0.4, 0.1)]):
                steps = [RandomFlip(), ScaleJitter(), *turn]
                Pipeline(ds, steps, dtype=dtype, mask_dtype=mask_dtype)(batch, 0)
    return found


def _type(value) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def main() -> None:
    """Compile all; an error ends the program."""
    for name, (kernel, signature, constants, options) in sorted(recorded_launches().items()):
        for generation in GENERATIONS:
            made = compile(
                ASTSource(kernel, signature, constants),
                target=GPUTarget("cuda", generation, 32),
                options=options,
            )
            code = made.asm["ptx"]
            print(json.dumps({
                "kernel": name.partition("(")[0], "name": name, "generation": generation,
                "code": len(made.asm["cubin"]),
                "fused": len(re.findall(r"\bfma\.rn\.f(?:32|64)", code)),
                "stack": len(re.findall(r"\.local", code)),
            }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
