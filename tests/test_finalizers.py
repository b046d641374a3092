"""What an object holds is released when it is gone, and no interrupt is lost or in the way."""

import ast
import gc
import sys
from pathlib import Path

import pytest
from reading_packs import write_pack

import sa1bpack
from sa1bpack import finalizers
from sa1bpack import transforms as T

PACKAGE = Path(sa1bpack.__file__).parent
# What makes Python call code of ours, or of a library in Python, where the last reference goes.
CALLING_BACK = {
    "WeakIdKeyDictionary",
    "WeakKeyDictionary",
    "WeakMethod",
    "WeakSet",
    "WeakTensorKeyDictionary",
    "WeakValueDictionary",
    "finalize",
}


def finalizers_in(tree: ast.AST) -> list[str]:
    """What a module has of `__del__`, callbacks of weak references, and collections of them."""
    found = []
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "weak" in (node.module or ""):
            imported |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            found.append(f"line {node.lineno}: __del__")
        if isinstance(node, ast.Assign):
            found += ["__del__" for target in node.targets if ast.unparse(target) == "__del__"]
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            of_weakref = isinstance(node, ast.Attribute) and "weak" in ast.unparse(node.value)
            if name in CALLING_BACK and (of_weakref or name in imported):
                found.append(f"line {node.lineno}: {name}")
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("ref", "proxy", "KeyedRef") and len(node.args) + len(node.keywords) > 1:
                found.append(f"line {node.lineno}: a callback of {name}")
    return found


def test_no_object_of_the_package_has_a_finalizer_in_python():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path.name != "finalizers.py":
            found = finalizers_in(ast.parse(path.read_text()))
            wrong += [f"{path.relative_to(PACKAGE)}, {text}" for text in found]
    assert not wrong, "use sa1bpack.finalizers: " + "; ".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __del__(self): pass",
        "import weakref\nweakref.finalize(x, f)",
        "from weakref import finalize\nfinalize(x, f)",
        "import weakref\nweakref.ref(x, lambda _: None)",
        "import weakref\na = weakref.WeakSet()",
        "from torch.utils.weak import WeakIdKeyDictionary\na = WeakIdKeyDictionary()",
    ],
)
def test_the_search_finds_every_kind_of_finalizer(code):
    assert finalizers_in(ast.parse(code))


def kinds(root: Path) -> dict:
    """What holds more than memory, by name: a function that makes it."""

    def batch(**options):
        return next(iter(sa1bpack.Loader(sa1bpack.open(root), 2, threads=1, **options)))

    def iteration():
        found = iter(sa1bpack.Loader(sa1bpack.open(root), 2, threads=1))
        next(found)
        return found

    def transformed():
        ds = sa1bpack.open(root)
        pipeline = T.Pipeline(ds, [T.RandomResizedCrop()], size=512)
        return pipeline(next(iter(sa1bpack.Loader(ds, 2, threads=1))))["images"]

    def opened():
        ds = sa1bpack.open(root)
        ds[0]
        return ds

    return {
        "a batch": batch,
        "a batch read past the page cache": lambda: batch(io="direct"),
        "an iteration that was left": iteration,
        "a dataset with open shards": opened,
        "a sample of a dataset that is gone": lambda: sa1bpack.open(root)[0],
        "a cached pack": lambda: sa1bpack.open(root.as_uri(), cache_dir=root.parent / "cache")[0],
        "what a pipeline has made": transformed,
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    root = tmp_path_factory.mktemp("finalizers") / "pack"
    write_pack(root)
    return root


@pytest.mark.parametrize("kind", kinds(Path("pack")))
def test_no_python_is_executed_where_the_last_reference_goes(packed, kind):
    """So there is nothing that the exception of a signal could end, or that could swallow it."""
    make = kinds(packed)[kind]
    make()
    held = [make()]
    gc.collect()
    called = []

    def note(frame, event, argument):
        if event == "call":
            called.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else "")

    sys.setprofile(note)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert called == []
    finalizers.settle()
