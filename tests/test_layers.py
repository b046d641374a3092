"""Imports go down only.

errors, arguments, display, urls, environment, progress and the like → source, pixels, masks,
format (which do not know each other) → packing | the reading side (nor do these) → raw → export →
cli. The reading side is dataset, disk, transforms → loading, with its rooms order and batch →
deriving, adapters, measuring. torch is imported by transforms, loading, deriving, adapters
and raw/streaming.py alone, numba through kernels; imports stand at the top of a module.
"""

import ast
from functools import cache
from pathlib import Path

from commands import python

PACKAGE = Path(__file__).parent.parent / "sa1bpack"
MODULES = sorted(PACKAGE.rglob("*.py"))
BASE = {"arguments", "display", "environment", "errors", "finalizers", "interrupts", "lazy"}
BASE |= {"indices", "progress", "schedules", "screen", "signatures", "threads", "urls"}
BASE |= {"keywords", "mask_numbers", "option_keywords", "options"}
BASE |= {"parquet_files", "paths", "random_words", "user_code", "wording"}
CODECS = {"source", "pixels", "masks", "format"}
# What each layer may import of ours, besides itself.
ALLOWED = {
    **{layer: set() for layer in BASE},
    "kernels": {"errors", "interrupts", "paths"},
    "progress": {"errors", "screen", "user_code", "wording"},
    "arguments": {"errors", "wording"},
    "parquet_files": {"errors", "paths"},
    "paths": {"errors", "wording"},
    "random_words": {"arguments"},
    "options": {"arguments", "errors", "paths"},
    "keywords": {"errors", "options", "wording"},
    "display": {"wording", "__init__"},
    "environment": {"errors"},
    "schedules": {"arguments", "errors", "keywords", "user_code", "wording"},
    "user_code": {"errors"},
    "indices": {"errors", "wording"},
    "signatures": {"urls"},
    "finalizers": {"errors", "interrupts", "threads"},
    "threads": {"errors"},
    "urls": {"errors", "wording", "__init__"},
    **dict.fromkeys(CODECS, BASE),
    **dict.fromkeys(("masks", "pixels", "source"), BASE | {"kernels"}),
    "format": BASE | {"disk"},
    "packing": BASE | CODECS | {"disk", "__init__"},
    "transforms": BASE | {"pixels", "masks"},
    "dataset": BASE | CODECS,
    "disk": {"arguments", "environment", "errors", "paths", "threads", "wording", "kernels"},
    "loading": BASE | CODECS | {"kernels", "disk", "dataset", "transforms"},
    "remote": BASE | {"disk", "format", "dataset", "packing"},
    "deriving": BASE | {"format", "dataset", "loading", "transforms"},
    "cluster": BASE | {"disk", "format", "source", "packing", "dataset", "deriving",
                       "transforms"},
    "adapters": BASE | {"format", "masks", "dataset", "loading", "transforms"},
    "raw": BASE | CODECS | {"packing", "dataset", "loading"},
    "export": BASE | CODECS | {"packing", "dataset", "raw"},
    "exploring": BASE | CODECS | {"dataset", "export"},
    "measuring": BASE | {"format", "disk", "dataset", "loading", "adapters"},
    "cli": BASE | CODECS | {"disk", "packing", "export", "exploring", "dataset", "deriving",
                            "measuring", "cluster", "__init__"},
    "__main__": {"cli", "interrupts"},
    # Everything lazily, by name: its own table holds it as text.
    "__init__": {"lazy"},
}  # fmt: skip


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


@cache
def trees() -> dict[Path, ast.Module]:
    """The syntax of all modules."""
    return {path: ast.parse(path.read_text(), str(path)) for path in MODULES}


@cache
def all_imports() -> dict[Path, list[tuple[str, int]]]:
    """`imports_of` all modules."""
    return {path: imports_of(tree) for path, tree in trees().items()}


def importers(*prefixes: str) -> set[str]:
    """The modules that import one of these modules or packages, as paths in the package."""
    return {
        str(path.relative_to(PACKAGE))
        for path, imports in all_imports().items()
        for name, _ in imports
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    }


def test_every_module_is_of_a_known_layer():
    assert {layer_of(path) for path in MODULES} <= ALLOWED.keys()
    assert {"packing", "cli", "export"} | CODECS <= {layer_of(path) for path in MODULES}


def test_modules_import_from_below_only():
    layers = {p.name if p.is_dir() else p.stem for p in PACKAGE.iterdir()}
    wrong = []
    for path, imports in all_imports().items():
        layer = layer_of(path)
        for name, line in imports:
            parts = name.split(".")
            if parts[0] == "sa1bpack" and name != "sa1bpack.__version__":  # a constant
                target = parts[1] if parts[1:] and parts[1] in layers else "__init__"
                if target != layer and target not in ALLOWED[layer]:
                    wrong.append(f"{path}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_rooms_of_loading_do_not_import_what_loads():
    """Orders are for `raw` as well, so they import the basics alone."""
    for room, allowed in (("order", BASE), ("batch", ALLOWED["loading"])):
        for path, imports in all_imports().items():
            if path.is_relative_to(PACKAGE / "loading" / room):
                ours = {name for name, _ in imports if name.startswith("sa1bpack.")}
                others = {n for n in ours if not n.startswith(f"sa1bpack.loading.{room}.")}
                assert {name.split(".")[1] for name in others} <= allowed, path


def test_torch_is_imported_by_what_makes_or_moves_tensors_alone():
    layers = {"transforms", "loading", "deriving", "adapters"}
    found = importers("torch")
    assert not [name for name in found if name.startswith("loading/order/")]
    assert {name for name in found if name.split("/")[0] not in layers} <= {"raw/streaming.py"}


# Library → the modules that import it: numba is behind `kernels`, which keeps compiled code by its
# content, a framework in its adapter, and libraries for object stores are loaded by name.
IMPORTED_BY = {
    "numba": {"kernels.py"},
    "ray": {"cluster/tasks.py"},
    "datasets": {"adapters/huggingface.py"},
    "pyarrow": {"adapters/huggingface.py"},  # elsewhere it is loaded by name
    "torchvision": {"adapters/torchvision.py"},
    "lightning": {"adapters/lightning.py"},
    "pytorch_lightning": {"adapters/lightning.py"},
}
BY_NOBODY = ("training", "sam2", "transformers", "accelerate", "kornia", "albumentations")
BY_NOBODY += ("obstore", "botocore", "boto3", "s3fs", "fsspec")
BY_NOBODY += ("pandas", "polars")  # tables of rows, recognized, or loaded by name


def test_a_library_is_imported_by_one_module_alone_and_an_adapter_by_nobody():
    for library, modules in IMPORTED_BY.items():
        assert importers(library) <= modules, library
    assert not importers(*BY_NOBODY)
    # bench compares the Loader with the DataLoader.
    importing = importers("sa1bpack.adapters") - {"measuring/speeds.py"}
    assert all(name.startswith("adapters/") for name in importing)


def test_triton_is_imported_by_its_kernels_alone_and_they_by_nobody_else():
    """`transforms.backends` imports them by name, once a batch is on a device that they run on."""
    found = importers("triton", "sa1bpack.transforms.triton")
    assert found and all(name.startswith("transforms/triton/") for name in found)


def test_imports_stand_at_the_top():
    """In the command they may wait, to answer quickly; and where what is missing is the answer."""
    inner = {
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, tree in trees().items()
        if layer_of(path) not in ("cli", "__main__")
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name, _ in imports_of(function)
    }
    # It reports a PIL that cannot be imported.
    assert inner <= {"environment.py imports PIL.features"}


def test_reading_a_pack_loads_neither_the_packer_nor_pil_nor_torch():
    program = (
        "import sys, sa1bpack; sa1bpack.verify, sa1bpack.info\n"
        "bad = {'torch', 'PIL', 'simplejpeg', 'sa1bpack.packing', 'sa1bpack.pixels'}\n"
        "sys.exit(str(bad & set(sys.modules)) if bad & set(sys.modules) else 0)"
    )
    python("-c", program)


def test_one_module_removes_folders_and_one_locks_files():
    """They know what network file systems answer."""
    calls = {"rmtree", "rmdir", "removedirs", "flock", "lockf"}
    users = set()
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in calls:
                users.add(str(path.relative_to(PACKAGE)))
    assert users == {"format/removal.py", "format/file_locks.py"}


def test_what_belongs_to_the_process_is_in_the_architecture():
    """Module-level objects that change, and caches whose key is the process."""
    kinds = {"Contexts", "Lock", "OrderedDict", "RLock", "ShardCache", "SimpleQueue", "Table",
             "Living", "local", "set"}  # fmt: skip
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    text, found = page.partition("belongs to the process")[2], set()
    for tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                made = getattr(node.value, "func", None)
                name = getattr(made, "attr", getattr(made, "id", ""))
                empty = ast.unparse(node.value or node) in ("{}", "[]")
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                found |= {target.id} if name in kinds or empty else set()
            elif isinstance(node, ast.FunctionDef) and node.decorator_list:
                cached = "cache" in ast.unparse(node.decorator_list[0])
                found |= {node.name} if cached and "process" in ast.unparse(node.args) else set()
    assert len(found) > 12
    assert {name for name in found if name not in text} == set()
