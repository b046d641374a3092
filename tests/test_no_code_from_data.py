"""Code is never loaded from data: no pickles, no names to import, no text to evaluate."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted([*(ROOT / "sa1bpack").rglob("*.py"), *(ROOT / "scripts").glob("*.py")])
# Modules that create objects or code from bytes; connections of multiprocessing unpickle.
LOADERS = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "code",
    "runpy", "yaml", "ruamel", "jsonpickle", "copyreg", "codeop", "imp", "zipimport",
    "multiprocessing",
}  # fmt: skip
# Functions that do so, by the last part of their names.
CALLS = {"eval", "exec", "compile", "__import__", "execfile", "import_module", "load_module",
         "exec_module", "resolve_name", "unsafe_load", "full_load"}  # fmt: skip
# Exceptions, and their reasons.
ALLOWED = {
    ("sa1bpack/lazy.py", "import_module"): "names from the tables of packages",
    ("sa1bpack/__init__.py", "import_module"): "public modules of its own table",
    ("sa1bpack/cli/arguments.py", "import_module"): "the commands of its own table",
    ("sa1bpack/display.py", "import_module"): "the module that PICTURES names",
    ("sa1bpack/deriving/run.py", "resolve_name"): "the function that the user names",
    ("scripts/distill_example.py", "import_module"): "the teacher that the user names",
    ("sa1bpack/transforms/backends.py", "import_module"): "kernels that its own callers name",
    (
        "sa1bpack/remote/stores.py",
        "import_module",
    ): "modules of the extra `cloud`, named by callers",
    ("sa1bpack/urls.py", "import_module"): "the modules of the table SCHEMES",
    ("sa1bpack/kernels.py", "pickle"): "compiled code, kept where only this user writes",
    ("sa1bpack/measuring/bench.py", "multiprocessing"): "a process that it spawns itself",
    ("sa1bpack/packing/execution/worker.py", "multiprocessing"): "its own processes' socket pair",
}
# File loaders of numpy and torch, which unpickle if allowed to.
LOADING = {
    ("np", "load"),
    ("numpy", "load"),
    ("torch", "load"),
    ("np", "loads"),
    ("pd", "read_pickle"),
}


def used(tree: ast.AST) -> set[str]:
    """Modules and functions from the lists above that a module uses."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & LOADERS
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module.split(".")[0]} & LOADERS
        elif isinstance(node, ast.Call):
            found |= _called(node)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found |= set() if _is(node, "allow_pickle", False) else {"allow_pickle"}
    return found


def _is(keyword: ast.keyword, name: str, value: bool) -> bool:
    """Whether an argument is this literal."""
    return keyword.arg == name and getattr(keyword.value, "value", None) is value


def _called(node: ast.Call) -> set[str]:
    function = node.func
    if len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
        return set()  # such as import_module("importlib.metadata")
    if any(_is(k, "weights_only", True) or _is(k, "allow_pickle", False) for k in node.keywords):
        return set()  # torch.load restricted to tensors, np.load to arrays of numbers
    if isinstance(function, ast.Name):
        return {function.id} & CALLS
    if not isinstance(function, ast.Attribute):
        return set()
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if (owner, function.attr) in LOADING:
        return {f"{owner}.{function.attr}"}
    return {function.attr} & (CALLS - {"compile", "eval", "exec"})  # re.compile, model.eval


def test_nothing_that_could_execute_its_input_is_used():
    found = {
        (str(path.relative_to(ROOT)), what)
        for path in MODULES
        for what in used(ast.parse(path.read_text()))
    }
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "np.load(x)", "np.load(x, allow_pickle=True)",
     "np.load(x, allow_pickle=y)",
     "eval(x)", "importlib.import_module(x)", "torch.load(x)", "__import__(x)", "exec(x)"],
)  # fmt: skip
def test_the_search_finds_what_it_is_for(text):
    assert used(ast.parse(text))
