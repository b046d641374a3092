"""Imports go down only.

errors, arguments, environment, interrupts, progress, schedules, wording → source, pixels, masks,
format (which do not know each other) → packing | export | the reading side (nor do these) → raw →
report → cli. The reading side is dataset, order, disk, transforms → batch → loading → deriving,
adapters, measuring. torch is imported by transforms, batch, loading, deriving, adapters and
raw/streaming.py alone, numba through kernels; imports stand at the top of a module.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sa1bpack"
MODULES = sorted(PACKAGE.rglob("*.py"))
BASE = {"arguments", "errors", "environment", "interrupts", "progress", "schedules", "wording"}
CODECS = {"source", "pixels", "masks", "format"}
# What each layer may import of ours, besides itself.
ALLOWED = {
    **{layer: set() for layer in BASE},
    "kernels": set(),
    "arguments": {"errors"},
    "environment": {"errors"},
    "schedules": {"arguments", "errors"},
    "ray_cluster": {"errors"},
    "cloud": {"arguments", "environment", "errors", "interrupts", "wording"},
    **dict.fromkeys(CODECS, BASE),
    **dict.fromkeys(("masks", "pixels"), BASE | {"kernels"}),
    "format": BASE | {"disk", "ray_cluster"},
    "source": BASE | {"cloud"},
    "packing": BASE | CODECS | {"cache", "cloud", "disk", "ray_cluster", "__init__"},
    "export": BASE | {"format", "masks"},
    "transforms": BASE | {"pixels", "masks"},
    "cache": BASE | {"format", "disk", "cloud"},
    "dataset": BASE | CODECS | {"cache"},
    "order": BASE,
    "disk": {"arguments", "environment", "errors", "wording", "kernels"},
    "batch": BASE | CODECS | {"kernels", "disk", "dataset", "transforms"},
    "loading": BASE | CODECS | {"cache", "disk", "dataset", "order", "batch", "transforms"},
    "deriving": BASE | {"format", "dataset", "order", "loading", "ray_cluster"},
    "adapters": BASE | {"masks", "dataset", "loading"},
    "raw": BASE | CODECS | {"packing", "dataset", "order"},
    "report": BASE | CODECS | {"packing", "dataset", "raw"},
    "measuring": BASE | {"format", "disk", "dataset", "batch", "loading", "report"},
    "cli": BASE
    | CODECS
    | {
        "cache",
        "cloud",
        "disk",
        "packing",
        "export",
        "dataset",
        "deriving",
        "measuring",
        "report",
        "__init__",
    },
    "__main__": {"cli", "interrupts"},
    # Everything lazily, by name: its own table holds it as text.
    "__init__": set(),
}


def layer_of(path: Path) -> str:
    """The folder below sa1bpack, or the stem of a module right in it."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports_of(tree: ast.AST) -> list[tuple[str, int]]:
    """Full names of all modules and members imported anywhere, with their lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_module_is_of_a_known_layer():
    assert {layer_of(path) for path in MODULES} <= ALLOWED.keys()
    assert {"packing", "cli", "report"} | CODECS <= {layer_of(path) for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_from_below_only(path):
    layer = layer_of(path)
    layers = {p.name if p.is_dir() else p.stem for p in PACKAGE.iterdir()}
    for name, line in imports_of(parse(path)):
        parts = name.split(".")
        if parts[0] != "sa1bpack":
            continue
        target = parts[1] if parts[1] in layers else "__init__"
        assert target == layer or target in ALLOWED[layer], f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_torch_is_imported_by_what_makes_or_moves_tensors_alone(path):
    names = {name.split(".")[0] for name, _ in imports_of(parse(path))}
    layers = {"transforms", "batch", "loading", "deriving", "adapters"}
    allowed = layer_of(path) in layers or name_of(path) == "raw/streaming.py"
    assert allowed or "torch" not in names


# Framework → the module that adapts to it, if one does.
FRAMEWORKS = {
    "torchvision": "torchvision", "lightning": "lightning", "pytorch_lightning": "lightning",
    "training": None, "sam2": None, "transformers": None, "accelerate": None, "kornia": None,
    "albumentations": None,
}  # fmt: skip


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_framework_is_imported_by_its_adapter_alone_and_an_adapter_by_nobody(path):
    names = {name for name, _ in imports_of(parse(path))}
    for framework in {name.split(".")[0] for name in names} & FRAMEWORKS.keys():
        assert path == PACKAGE / f"adapters/{FRAMEWORKS[framework]}.py"
    inside = path.parent == PACKAGE / "adapters"
    assert inside or not any(name.startswith("sa1bpack.adapters") for name in names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_ray_is_imported_by_one_module_alone(path):
    names = {name.split(".")[0] for name, _ in imports_of(parse(path))}
    assert name_of(path) == "ray_cluster.py" or "ray" not in names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_numba_is_imported_by_kernels_alone(path):
    """It first chooses where compiled kernels are kept."""
    names = {name.split(".")[0] for name, _ in imports_of(parse(path))}
    assert layer_of(path) == "kernels" or "numba" not in names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_library_for_object_stores_is_imported_by_nobody(path):
    """`cloud.stores` loads them by name, once a URL of an object store is opened."""
    names = {name.split(".")[0] for name, _ in imports_of(parse(path))}
    assert not names & {"obstore", "botocore", "boto3", "s3fs", "fsspec"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_triton_is_imported_by_its_kernels_alone_and_they_by_nobody_else(path):
    """`transforms.ways` imports them by name, once a batch is on a device that they run on."""
    names = {name for name, _ in imports_of(parse(path))}
    inside = path.parent == PACKAGE / "transforms/triton"
    assert inside or not any(name.split(".")[0] == "triton" for name in names)
    assert inside or not any(name.startswith("sa1bpack.transforms.triton") for name in names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_stand_at_the_top(path):
    """In the command they may wait, to answer quickly; and where what is missing is the answer."""
    tree = parse(path)
    inner = [
        f"{path}:{line} imports {name}"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name, line in imports_of(function)
    ]
    if layer_of(path) in ("cli", "__main__"):
        return
    if layer_of(path) == "environment":  # it reports a PIL that cannot be imported
        inner = [found for found in inner if not found.endswith(" PIL.features")]
    assert inner == []


def test_reading_a_pack_loads_neither_the_packer_nor_pil_nor_torch():
    program = (
        "import sys, sa1bpack; sa1bpack.verify, sa1bpack.info\n"
        "bad = {'torch', 'PIL', 'simplejpeg', 'sa1bpack.packing', 'sa1bpack.pixels'}\n"
        "sys.exit(str(bad & set(sys.modules)) if bad & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
