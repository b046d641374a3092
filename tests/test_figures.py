"""The figures of README.md are those of docs/figures/*.json, which are those of performance.md."""

import re
from pathlib import Path

import make_figures
import pytest

ROOT = Path(__file__).parent.parent
PANELS = make_figures.measured()


def test_chart_and_sentences_are_those_of_the_measurements():
    remedy = "run `python scripts/make_figures.py`"
    assert (ROOT / "docs/figures/chart.svg").read_text() == make_figures.chart(PANELS), remedy
    readme = (ROOT / "README.md").read_text()
    text = make_figures.summary(PANELS)
    assert text in readme and make_figures.with_summary(readme, text) == readme, remedy


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
