"""Options that are declared once: what is made of the declarations."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from commands import command, python  # noqa: F401 - a fixture

import sa1bpack
from sa1bpack import OptionError, PackOptions

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
        limits = re.sub("^a (whole )?number(, )?", "", limits)
        said += f" ({limits}{', ' * bool(limits)}default: {default})"
        assert f" {name}: {said}" in text
        metavar = re.escape(f"{{{','.join(choices)}}}") if choices else "[A-Z]+"
        assert re.search(rf" --{flag} {metavar} {re.escape(said)}", shown), flag


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
    assert not {"numpy", "sa1bpack.cli.packs", "sa1bpack.options", "torch"} & {*loaded}
