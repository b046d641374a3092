"""Options that are declared once: what is made of the declarations."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from commands import python

from sa1bpack import OptionError, PackOptions
from sa1bpack.arguments import Declaration, Options, bounds, declarations, option
from sa1bpack.cli.arguments import command_parser
from sa1bpack.masks.select import Thresholds
from sa1bpack.packing.options import RunOptions

REPOSITORY = Path(__file__).parent.parent


def table(cls: type[Options]) -> str:
    """Options as a table in Markdown: flag, values, default, help."""
    lines = ["| option | values | default | |", "|---|---|---|---|"]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, (declared, kind, optional) in declarations(cls).items():
        default = fields[name].default
        shown = declared.none if default is None else default
        word = f", or `{declared.none}`" if optional and declared.none == shown else ""
        values = values_of(declared, kind) + (word if len(word) < 12 else "")
        flag = f"--{name.replace('_', '-')}"
        lines.append(f"| `{flag}` | {values} | {shown} | {declared.help} |")
    return "\n".join(lines)


def values_of(declared: Declaration, kind: type) -> str:
    if declared.choices:
        return ", ".join(f"`{each}`" for each in declared.choices)
    values = "a whole number" if kind is int else "a number"
    return ", ".join(filter(None, (values, bounds(declared))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made(Options):
    """Options of a test."""

    count: int | None = option(None, "how many", low=1, high=9, none="all", metavar="N")
    side: int = option(16, "how wide", low=8, high=32, multiple=8, why="bytes have bits")
    share: float = option(0.5, "how much", low=0, high=1)
    kind: str = option("a", "which", choices=("a", "b"))
    loud: bool = option(False, "whether it is loud")


def test_values_are_stored_as_pythons_own():
    made = Made(count=np.int64(3), share=1, loud=np.bool_(True))
    assert (made.count, made.side, made.share, made.kind, made.loud) == (3, 16, 1.0, "a", True)
    assert [type(value) for value in dataclasses.astuple(made)] == [int, int, float, str, bool]
    assert Made().count is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 10}, "count is 10: choose a whole number from 1 to 9"),
        ({"side": None}, "side is None: choose a whole number from 8 to 32"),
        ({"side": 12}, "side is 12: choose a multiple of 8; bytes have bits"),
        ({"share": 1.5}, "share is 1.5: choose a number from 0 to 1"),
        ({"share": True}, "share is True: choose a number from 0 to 1"),
        ({"share": float("nan")}, "share is nan: choose a number from 0 to 1"),
        ({"kind": "c"}, "kind is 'c': choose one of a, b"),
        ({"loud": 1}, "loud is 1: choose True or False"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_be_used_is_named_with_what_can(given, said):
    with pytest.raises(OptionError, match=f"^{re.escape(said)}$"):
        Made(**given)


def test_help_and_table_have_bounds_and_defaults():
    assert "    count: how many (1 to 9, default: all)\n" in inspect.getdoc(Made) + "\n"
    assert "side: how wide (a multiple of 8, 8 to 32, default: 16)" in inspect.getdoc(Made)
    assert table(Made).splitlines()[2:4] == [
        "| `--count` | a whole number, 1 to 9, or `all` | all | how many |",
        "| `--side` | a whole number, a multiple of 8, 8 to 32 | 16 | how wide |",
    ]


def test_the_table_in_the_documents_is_that_of_the_declarations():
    """`print(table(PackOptions))` makes it again."""
    assert table(PackOptions) in (REPOSITORY / "docs" / "packing.md").read_text()


def test_every_declared_option_is_a_flag_with_its_default():
    for command, options in (("pack", PackOptions), ("pack", RunOptions), ("show", Thresholds)):
        parser = command_parser(command)
        defaults = {field.name: field.default for field in dataclasses.fields(options)}
        assert {name: parser.get_default(name) for name in declarations(options)} == defaults


def test_the_main_help_loads_neither_numpy_nor_a_command():
    code = (
        "import sys; from sa1bpack.cli.main import main\n"
        "try: main(['--help'])\nfinally: print(); print(*sys.modules)"
    )
    loaded = python("-c", code).splitlines()[-1].split()
    assert "sa1bpack.cli.arguments" in loaded
    assert not {"numpy", "sa1bpack.cli.packs", "sa1bpack.arguments", "torch"} & {*loaded}
