"""Compiles the Triton kernels that pipelines launch, without a device.

    python compile_kernels.py GENERATION...    compute capability: 80 (A100), 90 (H100), 100 (B200)

Triton's interpreter is more lenient than its compiler. Launches of real batches are recorded on the
CPU, and each kernel is compiled for the types of its arguments, for several generations of GPUs, by
the compiler and the assembler that Triton brings. A launcher compiles for what it knows of the
arguments as well, so there are variants: "aligned", whose addresses and numbers are multiples of
16, as those of torch's tensors are; and, for the last of three generations or more, once per kernel
"any", of which nothing is known, and "ones", whose numbers are 1. For fewer generations, a kernel
is compiled for the first types of its arguments alone.

Prints a JSON object per kernel, variant and generation: its name, the bytes of its code, how many
instructions multiply and add at once, how many bytes each of its stores to memory writes, registers
of a thread, and the bytes that it stores elsewhere for lack of registers.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from made_batches import Layout, dataset, noisy_batch
from triton.backends import compiler as backend
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sa1bpack import transforms as T
from sa1bpack.transforms import backends

ASSEMBLERS = Path(triton.__file__).parent / "backends/nvidia/bin"
POINTERS = {
    torch.bool: "*i1",
    torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
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
        assert all(count <= 2 for count in grid[1:]), "these axes have at most 65,535 programs"
        found[name] = kernel, signature, constants, options

    JITFunction.run = record
    backends.COMPILED_ON, backends.TRITON_ON = (), ("cpu",)
    for masks, sampling, pixels in (
        ("bits", "area", "rgb"), ("bool", "area", "rgb"), ("runs", "area", "yuv420"),
        ("runs", "center", "yuv420"),
    ):  # fmt: skip
        layout = Layout(image_size=48, mask_size=48, pixels=pixels)
        batch, ds = noisy_batch(layout, masks), dataset(layout)
        ds.mask_sampling = sampling
        for dtype in (torch.float32, torch.bfloat16):
            colors = [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.GaussianBlur(5)]
            for turn in ([], [T.RandomAffine(20), *colors]):
                steps = [T.RandomHorizontalFlip(), T.ScaleJitter(), *turn]
                T.Pipeline(ds, steps, dtype=dtype)(batch, 0)
    cells = torch.ones((3, 48, 48), dtype=torch.bool)
    key = {"seed": 0, "epoch": 0, "where": "interior"}
    T.correction_clicks(~cells, cells, torch.arange(3), **key)
    return found


def _type(value) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def variants(kernel, signature: dict, constants: dict) -> dict[str, tuple[dict, dict, dict]]:
    """Name → signature, constants and attributes, as a launcher would choose them."""
    free = {p.name for p in kernel.params if not p.do_not_specialize}
    numbers = {name for name in free if signature[name] == "i32"}
    known = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(signature)
        if signature[name].startswith("*") or name in numbers
    }
    found = {"aligned": (signature, constants, known), "any": (signature, constants, {})}
    if numbers:
        ones = signature | dict.fromkeys(numbers, "constexpr")
        found["ones"] = ones, constants | dict.fromkeys(numbers, 1), {}
    return found


def source(kernel, signature: dict, constants: dict, known: dict) -> ASTSource:
    """What a variant is compiled from."""
    if not hasattr(backend, "AttrsDescriptor"):
        return ASTSource(kernel, signature, constants, known)
    # Triton 3.2
    given = {name: kind for name, kind in signature.items() if kind != "constexpr"}
    multiples = [place for (place,) in known]
    attributes = {"tt.divisibility": multiples, "tt.equal_to": []}
    described = {"arg_properties": attributes, "cls": "AttrsDescriptor"}
    return ASTSource(kernel, given, constants, backend.AttrsDescriptor.from_dict(described))


def assembled(code: str, options: dict) -> dict[str, int]:
    """What the assembler says of a kernel: registers, and bytes of its stack."""
    fused = [] if options.get("enable_fp_fusion", True) else ["--fmad=false"]
    machine = re.search(r"^\.target (\w+)", code, re.MULTILINE)[1]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(code)
        file.flush()
        blackwell = int(machine[3:].rstrip("a")) >= 100
        assembler = ASSEMBLERS / ("ptxas-blackwell" if blackwell else "ptxas")
        command = [assembler, "-v", f"--gpu-name={machine}", *fused, file.name, "-o", os.devnull]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    wanted = {"registers": r"Used (\d+) registers", "spilled": r"(\d+) bytes spill stores"}
    return {key: int(re.search(pattern, said)[1]) for key, pattern in wanted.items()}


def store_widths(code: str) -> list[int]:
    """Bytes of each store to the device's memory, in ascending order."""
    found = re.findall(r"\bst\.global(?:\.v(\d))?\.b(\d+)", code)
    return sorted(int(many or 1) * int(bits) // 8 for many, bits in found)


def main(generations: list[int]) -> None:
    """Compile all; an error ends the program."""
    seen = set()
    for name, (kernel, signature, constants, options) in sorted(recorded_launches().items()):
        compiled_names = {kernel_name for kernel_name, _ in seen}
        if len(generations) < 3 and kernel.__name__ in compiled_names:
            continue
        found = variants(kernel, signature, constants)
        chosen = [("aligned", generation) for generation in generations]
        chosen += [
            (variant, generations[-1])
            for variant in found.keys() - {"aligned"}
            if len(generations) > 2 and (kernel.__name__, variant) not in seen
        ]
        seen |= {(kernel.__name__, variant) for variant, _ in chosen}
        for variant, generation in chosen:
            made = compile(
                source(kernel, *found[variant]),
                target=GPUTarget("cuda", generation, 32),
                options=options,
            )
            code = made.asm["ptx"]
            print(json.dumps({
                "kernel": kernel.__name__, "name": name, "variant": variant,
                "generation": generation, "code": len(made.asm["cubin"]),
                "stores": store_widths(code),
                "fused": len(re.findall(r"\bfma\.rn\.f(?:32|64)", code)),
                **assembled(code, options),
            }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]])
