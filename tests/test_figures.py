"""The figures of README.md are those of docs/figures/*.json, which are those of performance.md.

docs/figures.md says of each where it comes from.
"""

import re
from pathlib import Path

import make_figures
import pytest

from sa1bpack.cli.arguments import COMMANDS

ROOT = Path(__file__).parent.parent
PANELS = make_figures.measured()


def test_chart_and_sentences_are_those_of_the_measurements():
    remedy = "run `python scripts/make_figures.py`"
    assert (ROOT / "docs/figures/chart.svg").read_text() == make_figures.chart(PANELS), remedy
    readme = (ROOT / "README.md").read_text()
    text = make_figures.summary(PANELS)
    assert text in readme and make_figures.with_summary(readme, text) == readme, remedy
    page = (ROOT / "docs/figures.md").read_text()
    assert make_figures.with_summary(page, make_figures.origins(PANELS)) == page, remedy


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_measurement_has_machine_date_and_command_and_is_in_performance_md(panel):
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", panel["date"])
    assert panel["machine"] and panel["task"] and panel["unit"]
    text = re.sub(r"[*,]", "", (ROOT / "docs/performance.md").read_text())
    assert panel["command"] in text
    for line in panel["lines"]:
        assert re.search(
            rf"(?<![\d.]){re.escape(make_figures.number(line['value']))}(?![\d.]\d)", text
        )


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the rows of all tables below a heading of docs/figures.md."""
    page = (ROOT / "docs/figures.md").read_text()
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def numbers(text: str) -> list[str]:
    """Numbers and versions, but not those in names such as SA-1B."""
    return re.findall(r"(?<![\w.-])\d+(?:\.\d+)*(?![\w])", text)


def test_every_number_of_the_first_screen_has_a_command():
    """In a row of docs/figures.md, with who can repeat it."""
    screen = (ROOT / "README.md").read_text().partition("\n## ")[0]
    screen = re.sub(r"<!--.*?-->|\]\([^)]*\)", "", screen)
    rows = rows_of("README's first figures")
    claimed = [row for row in rows if "`" in row[1]]
    assert all(len(row) == 4 and all(row) for row in claimed)
    known = {figure for row in claimed for figure in numbers(row[0])}
    assert numbers(screen) and not set(numbers(screen)) - known, "add a row to docs/figures.md"


def test_every_section_of_performance_md_has_a_row():
    """Those with a table of figures, by their anchors."""
    text = (ROOT / "docs/performance.md").read_text()
    parts = re.split(r"^###? (.+)$", text, flags=re.M)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    measured = {
        "performance.md#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title, body in sections
        if "\n|" in body and title != "Measure on your machine"
    }
    rows = rows_of("Performance, by section")[1:]
    listed = {re.search(r"\((.*?)\)", row[0])[1] for row in rows}
    assert measured == listed


def test_every_command_of_figures_md_exists():
    """Targets of the Makefile, programs of the clone, commands of sa1bpack."""
    page = (ROOT / "docs/figures.md").read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [text for text in re.findall(r"`([^`]+)`", page) if " " in text]
    assert commands
    for command in commands:
        for target in re.findall(r"\bmake ([\w-]+)", command):
            assert target in targets, command
        for program in re.findall(r"\bpython (\S+)", command):
            assert (ROOT / program).is_file(), command
        for name in re.findall(r"^sa1bpack ([\w-]+)", command):
            assert name in COMMANDS, command
