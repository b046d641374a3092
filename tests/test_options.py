"""Options that are declared once: what is made of the declarations."""

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import write_option_keywords
from commands import command, python  # noqa: F401 - a fixture

import sa1bpack
from sa1bpack import OptionError, PackOptions
from sa1bpack.options import Options, declarations

REPOSITORY = Path(__file__).parent.parent


def test_values_are_stored_as_pythons_own():
    made = PackOptions(max_masks=np.int64(3), max_area_frac=1, mask_size=np.uint8(16))
    found = made.max_masks, made.max_area_frac, made.mask_size, made.empty
    assert found == (3, 1.0, 16, "keep") and PackOptions().max_masks is None
    assert [type(value) for value in found] == [int, float, int, str]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image_size": 10}, "image_size is 10: choose a whole number from 16 to 8192"),
        ({"mask_size": None}, "mask_size is None: choose a whole number from 8 to 4096"),
        ({"mask_size": 12}, "mask_size is 12: choose a multiple of 8; eight cells share a byte"),
        (
            {"max_area_frac": 1.5},
            "max_area_frac is 1.5: choose a number from 0 to 1; it is not a percentage",
        ),
        (
            {"max_area_frac": True},
            "max_area_frac is True: choose a number from 0 to 1; it is not a percentage",
        ),
        (
            {"max_area_frac": float("nan")},
            "max_area_frac is nan: choose a number from 0 to 1; it is not a percentage",
        ),
        ({"empty": "c"}, "empty is 'c': choose one of keep, drop"),
        ({"md5": 1}, "md5 is 1: choose True or False"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_be_used_is_named_with_what_can(given, said, tmp_path):
    with pytest.raises(OptionError, match=f"^{re.escape(said)}$"):
        sa1bpack.pack("none.tar", tmp_path / "pack", **given)


def test_docstring_help_and_the_table_in_the_documents_say_the_same(command, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "1000")
    shown = " ".join(command("pack", "--help")[1].split())
    text = " ".join(inspect.getdoc(PackOptions).split())
    table = (REPOSITORY / "docs" / "packing.md").read_text().partition("| option | values |")[2]
    table = table.partition("\n\n")[0]
    rows = re.findall(r"^\| `--([a-z-]+)` \| (.*) \| (.*) \| (.*) \|$", table, re.M)
    names = [flag.replace("-", "_") for flag, *_ in rows]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(PackOptions))
    for name, (flag, values, default, said) in zip(names, rows, strict=True):
        choices = re.findall("`([^`]+)`", values) if values.startswith("`") else []
        limits = "" if choices else values.partition(", or `")[0]
        limits = re.sub("^a ((whole )?number|key)(, )?", "", limits)
        metavar = re.escape(f"{{{','.join(choices)}}} ") if choices else "[A-Z]+ "
        if values == "yes, no":  # of an option that is a flag alone
            metavar = ""
        else:
            said += f" ({limits}{', ' * bool(limits)}default: {default})"
        assert f" {name}: {said}" in text
        assert re.search(rf" --{flag} {metavar}{re.escape(said)}", shown), flag


def test_type_checkers_read_the_keywords_that_are_declared():
    """In option_keywords.pyi, which scripts/write_option_keywords.py writes."""
    assert write_option_keywords.FILE.read_text() == write_option_keywords.text()


def entries_of(docstring: str) -> list[str]:
    """The names that the sections `Args` and `Options` of a docstring explain."""
    arguments = docstring.partition("\n\nRaises:\n")[0].partition("\n\nExamples:\n")[0]
    listed = re.findall(r"^ {4}(\w+(?:, \w+)*): ", arguments, re.MULTILINE)
    return [name for names in listed for name in names.split(", ")]


@pytest.mark.parametrize(
    "call",
    [
        sa1bpack.pack,
        sa1bpack.pack_part,
        sa1bpack.estimate,
        sa1bpack.open,
        sa1bpack.Loader.__init__,
        sa1bpack.make_dataloader,
        sa1bpack.derive,
        sa1bpack.attach,
        sa1bpack.show,
        sa1bpack.TarDataset.__init__,
        sa1bpack.IterableTarDataset.__init__,
    ],
    ids=lambda call: call.__qualname__,
)
def test_the_documentation_of_a_call_explains_each_option_once(call):
    parameters = {*inspect.signature(call).parameters} - {"self"}
    assert sorted(entries_of(inspect.getdoc(call))) == sorted(parameters)


def test_no_option_is_declared_a_second_time():
    """Neither in keywords for type checkers, nor in the docstring of a call that takes it."""
    again = []
    every_name = {name for group in GROUPS.values() for name in declarations(group)}
    for path in (REPOSITORY / "sa1bpack").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_class = isinstance(node, ast.ClassDef) and node.name != "ProblemFields"  # no options
            if is_class and "TypedDict" in map(ast.unparse, node.bases):
                keys = {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}
                again += [f"{path}: {node.name}: {name}" for name in keys & every_name]
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if ast.unparse(decorator).startswith("takes_options("):
                    groups = [GROUPS[group.id] for group in decorator.args]
                    declared = {name for group in groups for name in declarations(group)}
                    explained = {*entries_of(inspect.cleandoc(ast.get_docstring(node) or ""))}
                    again += [f"{path}: {node.name}: {name}" for name in declared & explained]
    assert again == []


def groups_below(group: type) -> dict[str, type]:
    return {group.__name__: group} | {
        name: inner
        for below in group.__subclasses__()
        for name, inner in groups_below(below).items()
    }


GROUPS = groups_below(Options)


@pytest.mark.parametrize("name", ["pack", "show"])
def test_every_declared_option_is_a_flag(command, name):  # noqa: F811
    options = inspect.signature({"pack": sa1bpack.pack, "show": sa1bpack.open}[name]).parameters
    thresholds = {key for key in options if key.startswith(("min_", "max_area"))}
    declared = {*options} - {"sources", "progress"} if name == "pack" else thresholds
    assert len(thresholds) == 4
    out = command(name, "--help")[1]
    assert declared <= {flag.replace("-", "_") for flag in re.findall(r"--([a-z0-9-]+)", out)}


def test_the_main_help_loads_neither_numpy_nor_a_command():
    code = (
        "import sys; from sa1bpack.cli.main import main\n"
        "try: main(['--help'])\nfinally: print(); print(*sys.modules)"
    )
    loaded = python("-c", code).splitlines()[-1].split()
    assert "sa1bpack.cli.arguments" in loaded
    assert not {
        "numpy",
        "sa1bpack.cli.checking",
        "sa1bpack.cli.packs",
        "sa1bpack.options",
        "torch",
    } & {*loaded}
