"""Tests use what modules offer: no private name of the package, nor of another file of tests.

A name with a leading underscore may change with no test to notice, unless a test is why it cannot.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
# Of Python and other libraries, which offer nothing else for it.
OF_OTHERS = {
    "_exit": "os: a forked child ends without what pytest does at exit",
    "_cdata": "torch: the address of a storage, which shares it with other Python objects",
    "_repr_html_": "IPython: what a notebook shows of an object",
    "_iterator": "torch: the workers of a DataLoader that persist",
    "_shutdown_workers": "torch: ends them before the next test looks for processes",
    "_sleep": "torch.cuda: keeps a device busy",
    "_train_batch_size": "transformers: what a Trainer's own loader of training batches takes",
}
# Functions whose string arguments name attributes.
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "object", "patch", "attrgetter"}


def is_private(name: str) -> bool:
    return bool(re.match(r"_(?!_)\w", name))


def own_names(tree: ast.AST) -> set[str]:
    """Private names that a file defines: functions, classes, variables, parameters, attributes."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store())
            ):
                found.add(name)
    return {name for name in found if is_private(name)}


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of every private name that is imported, or used as an attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "sa1bpack":
                for name in (*module.split("."), *(alias.name for alias in node.names)):
                    yield node.lineno, name
            case ast.Import():
                for alias in node.names:
                    if alias.name.startswith("sa1bpack."):
                        yield from ((node.lineno, name) for name in alias.name.split("."))
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(attr=function) | ast.Name(id=function)):
                if function in BY_NAME:
                    for argument in node.args:
                        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                            yield node.lineno, argument.value.rpartition(".")[2]


def reached(source: str) -> list[tuple[int, str]]:
    """(line, name) of the private names in a source that belong to something else."""
    tree = ast.parse(source)
    known = own_names(tree) | OF_OTHERS.keys()
    found = {(line, name) for line, name in private_uses(tree) if is_private(name)}
    return sorted((line, name) for line, name in found if name not in known)


def test_no_test_reaches_into_private_names():
    sources = {str(path.relative_to(TESTS)): path.read_text() for path in FILES}
    found = {path: names for path, text in sources.items() if (names := reached(text))}
    assert found == {}
    used = {name for text in sources.values() for name in OF_OTHERS if name in text}
    assert used == OF_OTHERS.keys(), "every exception is needed"


@pytest.mark.parametrize(
    "line",
    [
        "loader._device = None",
        "monkeypatch.setattr(loader, '_device', None)",
        "monkeypatch.setattr('sa1bpack.loading.loader._device', None)",
        "from sa1bpack.loading.loader import _device",
        "from sa1bpack.loading._device import of",
        "import sa1bpack.loading._device",
        "vars(loader)['_device']",
        "variant(_device=None)",
    ],
)
def test_private_names_are_found_however_they_are_reached(line):
    assert reached(line) == [(1, "_device")]
    assert reached(f"{line}\nclass Own:\n    def _device(self): ...") == []
