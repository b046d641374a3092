"""The notebook runs from its beginning to its end, and shows what it showed."""

import copy
import json
from pathlib import Path

from run_notebook import run

NOTEBOOK = Path(__file__).parent.parent / "docs/first_steps.ipynb"


def test_the_notebook_runs_and_its_outputs_are_those_on_file(tmp_path):
    held = json.loads(NOTEBOOK.read_text())
    assert NOTEBOOK.stat().st_size < 64_000, "keep outputs small"
    notebook = copy.deepcopy(held)
    run(notebook, tmp_path)
    for cell, before in zip(notebook["cells"], held["cells"], strict=True):
        found, expected = texts(cell), texts(before)
        assert found == expected, (
            f"{''.join(cell['source'])[:60]}... shows something else; if that is right, run "
            "`python tests/helpers/run_notebook.py docs/first_steps.ipynb`"
        )


def texts(cell: dict) -> list:
    """The outputs of a cell, without the bytes of pictures: those depend on the decoder."""
    return [
        output.get("text") or {kind: kind == "image/jpeg" or value
                               for kind, value in output["data"].items()}
        for output in cell.get("outputs", [])
    ]  # fmt: skip
