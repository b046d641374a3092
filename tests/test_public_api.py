"""The public surface changes deliberately only, and every public name is documented and shown."""

import collections.abc
import dataclasses
import difflib
import doctest
import importlib
import importlib.util
import inspect
import os
import pydoc
import re
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from public_surface import HELD, INTERNAL, members_of, public_objects, surface

import sa1bpack
from sa1bpack import OptionError

CALLABLES = {name: value for name, value in public_objects() if callable(value)}
SHOWN = {
    name: value
    for name, value in CALLABLES.items()
    if not (inspect.isclass(value) and issubclass(value, BaseException))
}
# What calls return: nobody but sa1bpack makes it.
MADE_HERE = re.compile("LoadingStats|MixStats|Relations|.*Result")
# Their examples take seconds; tests/measuring runs them with tiny packs.
NOT_EXECUTED = {"sa1bpack.bench"}


def test_the_public_surface_is_the_one_on_file():
    changed = difflib.unified_diff(HELD.read_text().splitlines(), surface().splitlines(), n=0)
    changes = [line for line in changed if line[:2] not in ("--", "++", "@@")]
    assert not changes, (
        "the public surface has changed. If that is meant, run `python "
        "tests/helpers/public_surface.py`, commit tests/public_api.txt, and tell users in "
        "CHANGELOG.md:\n" + "\n".join(changes)
    )


@pytest.mark.parametrize("module", [sa1bpack, sa1bpack.masks, sa1bpack.transforms])
def test_the_names_that_a_stub_imports_are_imported_on_first_use(module):
    """Type checkers read the .pyi beside a package, and the package itself."""
    stub = Path(module.__file__).with_suffix(".pyi").read_text()
    imports = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.M)
    for where, name in imports:
        assert getattr(module, name) is getattr(importlib.import_module(where), name)
    assert {*module.__all__} - {"__version__"} == {name for _, name in imports}


def test_every_public_name_member_and_argument_is_documented():
    missing = [name for name, value in CALLABLES.items() if not inspect.getdoc(value)]
    for name, value in SHOWN.items():
        if inspect.isclass(value):
            found = members_of(value)
            missing += [f"{name}.{member}" for member, it in found if not inspect.getdoc(it)]
            if (value.__init__.__doc__ or "").startswith("Made by"):
                continue  # by a function: nobody else calls it
        own = inspect.isclass(value) and value.__init__.__doc__
        text = f"{value.__doc__} {own or ''}"
        if "ields of PackOptions" in " ".join(text.split()):
            text += sa1bpack.PackOptions.__doc__
        missing += [
            f"{name}({argument})"
            for argument in inspect.signature(value).parameters
            if not re.search(rf"\b{argument}\b", text)
        ]
    assert missing == []


def test_every_argument_and_result_has_a_type():
    untyped = []
    for name, value in SHOWN.items():
        functions = dict(members_of(value)) if inspect.isclass(value) else {"": value}
        for member, found in functions.items():
            function = getattr(found, "fget", None) or getattr(found, "func", None) or found
            signature = inspect.signature(getattr(function, "__func__", function))
            arguments = list(signature.parameters.values())[inspect.isclass(value) :]
            if signature.return_annotation is signature.empty or any(
                argument.annotation is argument.empty for argument in arguments
            ):
                untyped.append(f"{name}.{member}")
    assert untyped == []


def called_with_options() -> dict[str, tuple]:
    """Name of everything that users call → (owner in messages, function, its first argument)."""
    found = {}
    for name, value in SHOWN.items():
        last = name.rpartition(".")[2]
        if not inspect.isclass(value):
            found[name] = last, value, ()
            continue
        if inspect.signature(value).parameters and not MADE_HERE.fullmatch(last):
            found[name] = last, value, ()
        for member, method in members_of(value):
            method = getattr(method, "__func__", method)
            if inspect.isfunction(method) and len(inspect.signature(method).parameters) > 1:
                found[f"{name}.{member}"] = f"{last}.{member}", method, (object.__new__(value),)
    return found


CALLED = called_with_options()


@pytest.mark.parametrize(("owner", "call", "first"), CALLED.values(), ids=CALLED)
def test_an_option_that_a_call_does_not_have_is_refused_with_those_that_it_has(owner, call, first):
    parameters = [*inspect.signature(call).parameters.values()][len(first) :]
    known = {each.name for each in parameters}
    listed = re.escape(", ".join(sorted(known)))
    with pytest.raises(OptionError, match=rf"^{owner} has no option 'zz'; valid .*: {listed}$"):
        call(*first, zz=1)
    if len(meant := max(known, key=len)) > 4:
        with pytest.raises(OptionError, match=rf"^{owner} has no .*: is {meant} meant\? valid "):
            call(*first, **{meant + "_": 1})


def test_a_signature_names_every_option_with_its_default():
    """In `help()` and in a notebook: none is hidden in `**options`."""
    hidden = [
        name
        for name, (_, call, _) in CALLED.items()
        for each in inspect.signature(call).parameters.values()
        if each.kind is each.VAR_KEYWORD
    ]
    assert hidden == []
    options = inspect.signature(sa1bpack.Loader).parameters
    assert options["max_masks"].default is None and options["timeout"].default == 120.0
    assert options["mask_layout"].annotation is str and options["device"].default == "cpu"
    assert inspect.signature(sa1bpack.pack).parameters["image_size"].default == 1024
    assert inspect.signature(sa1bpack.derive).parameters["batch_size"].default == 32
    kept = inspect.signature(sa1bpack.Dataset.with_options).parameters["mask_format"].default
    assert repr(kept) == "<unchanged>"
    text = pydoc.render_doc(sa1bpack.open, renderer=pydoc.plaintext)
    assert "mask_size: int | None = None" in text and "Unpack" not in text


def annotations_of(value):
    """(where, annotation) of every argument, result and field of a function or a class."""
    found = [("", value)] if not inspect.isclass(value) else [
        (f".{name}", member) for base in value.__mro__ if base.__module__.startswith("sa1bpack")
        for name, member in vars(base).items()
        if name not in INTERNAL.get(base.__name__, ()) and not re.match("_[^_]", name)
    ]  # fmt: skip
    for name, member in found:
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        function = inspect.unwrap(getattr(function, "__func__", function))
        if inspect.isfunction(function):
            hints = typing.get_type_hints(function, localns={"Dataset": sa1bpack.Dataset})
            for argument, annotation in hints.items():
                yield f"{name} {argument}", annotation
    if dataclasses.is_dataclass(value):
        yield from ((f".{field}", hint) for field, hint in typing.get_type_hints(value).items())


def is_complete(annotation) -> bool:
    """Whether every container in a type says of what: `list[int]`, not `list`."""
    if annotation in (dict, list, tuple, set, frozenset, type, os.PathLike) or (
        annotation in vars(collections.abc).values() and hasattr(annotation, "__class_getitem__")
    ):
        return False
    return all(is_complete(inner) for inner in typing.get_args(annotation) if inner != [])


def test_no_type_of_the_public_surface_is_partly_unknown():
    """What pyright reports as partially unknown, and mypy with disallow_any_generics."""
    incomplete = [
        f"{name}{where}"
        for name, value in SHOWN.items()
        for where, found in annotations_of(value)
        if not is_complete(found)
    ]
    assert incomplete == []


def test_internal_members_are_those_of_public_classes():
    for name, members in INTERNAL.items():
        classes = [cls for value in SHOWN.values() if inspect.isclass(value)
                   for cls in value.__mro__ if cls.__name__ == name]  # fmt: skip
        assert classes, f"{name} is no public class: see scripts/site/internal_members.py"
        assert {*members} <= {*dir(classes[0])}, name


def test_calls_of_every_public_function_and_class_are_type_checked():
    """By `make lint`, see [tool.mypy] in pyproject.toml."""
    text = (Path(__file__).parent / "typing/calls.py").read_text()
    names = [name for name in SHOWN if name.count(".") == 1]
    assert [name for name in names if not re.search(rf"{name}\b", text)] == []


@pytest.fixture(scope="module")
def packed(tmp_path_factory, sample_tar):
    folder = tmp_path_factory.mktemp("examples") / "packed"
    sa1bpack.pack(sample_tar, folder, workers=1)
    return folder


@pytest.mark.parametrize("name", SHOWN)
def test_the_example_of_a_public_name_runs(name, tmp_path, packed, sample_tar, monkeypatch):
    """In a folder with `packed`, a pack of the sample tar."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/samples").symlink_to(sample_tar.parent)
    (tmp_path / "packed").symlink_to(packed)
    monkeypatch.chdir(tmp_path)
    names = {"sa1bpack": sa1bpack, "np": np, "torch": torch, "T": sa1bpack.transforms}
    example = doctest.DocTestParser().get_doctest(SHOWN[name].__doc__, names, name, None, None)
    assert example.examples, f"{name} has no example"
    skipped = [doctest.SKIP in one.options for one in example.examples]
    assert any(skipped) == all(skipped) == (name in NOT_EXECUTED)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    result = runner.run(example, out=output.append)
    assert result.failed == 0, "".join(output)
