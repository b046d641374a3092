"""docs/architecture.md lists the modules that a sample passes as they are."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/architecture.md").read_text()


def table(title: str) -> tuple[int, dict[str, set[str]], set[str]]:
    """The number of modules in the sentence, the modules of each row, and those in parentheses."""
    part = TEXT[TEXT.index(f"**{title}**: ") :]
    total = int(re.search(r"runs code of (\d+) modules", part)[1])
    rows, once = {}, set()
    for room, count, cell in re.findall(
        r"^\| (\S+) \| (\d+) \| (.+) \|$", part.split("\n\n")[1], re.M
    ):
        folder, names, inner = room.strip("`").replace("shared", ""), set(), ""
        for piece in re.findall(r"in `(\S+/)`:|`(\w+)`", cell):
            inner = piece[0] or inner
            if piece[1]:
                names.add(folder + inner + piece[1])
        assert len(names) == int(count), room
        rows[room] = names
        once |= {folder + name for name in re.findall(r"`(\w+)`", cell.partition("(")[2])}
    return total, rows, once


@pytest.fixture(scope="module")
def passed(sample_tar, tmp_path_factory) -> dict[str, set[str]]:
    command = [sys.executable, ROOT / "tests/helpers/passes.py", sample_tar]
    command.append(tmp_path_factory.mktemp("passes") / "pack")
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


def seen(modules: set[str]) -> set[str]:
    """Those whose functions every version of Python shows: not those with compiled ones."""
    texts = {name: (ROOT / "sa1bpack" / f"{name}.py").read_text() for name in modules}
    return {name for name, text in texts.items() if "@njit" not in text}


@pytest.mark.parametrize("title", ["Pack", "Read"])
def test_the_table_has_exactly_the_modules_that_run(passed, title):
    total, rows, _ = table(title)
    listed = set().union(*rows.values())
    assert len(listed) == total
    assert seen(listed) == seen(passed[title.lower()])


def test_modules_in_parentheses_do_not_run_in_a_later_epoch(passed):
    _, rows, once = table("Read")
    assert seen(set().union(*rows.values()) - once) == seen(passed["later"])
