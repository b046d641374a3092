"""The notebook runs from its beginning to its end, and shows what it showed."""

import copy
import json
import re
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
    trained, resumed = (printed(cell) for cell in notebook["cells"] if "epoch 1" in printed(cell))
    assert resumed == "".join(trained.splitlines(keepends=True)[3:])


def texts(cell: dict) -> list:
    """The outputs of a cell, without what depends on the decoder: the bytes of pictures, and the
    order, which is a function of the pixels' fingerprint."""
    return [
        [re.sub(r"image \d$", "image N", line) for line in output["text"]]
        if "text" in output
        else {kind: kind == "image/jpeg" or value for kind, value in output["data"].items()}
        for output in cell.get("outputs", [])
    ]


def printed(cell: dict) -> str:
    """What a cell prints."""
    return "".join("".join(output.get("text", [])) for output in cell.get("outputs", []))
