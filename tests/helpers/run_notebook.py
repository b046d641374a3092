"""Run a notebook and keep its outputs: text, and the picture that a cell ends with, made small.

`python tests/helpers/run_notebook.py docs/first_steps.ipynb` runs it in an empty folder with the
sample tar, and writes the outputs into it. The tests run it too, and compare.
"""

import ast
import base64
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PICTURE = 640  # pixels: the width at which pictures are kept


def run(notebook: dict[str, Any], folder: Path) -> None:
    """Execute the cells of a notebook in a folder, and replace their outputs."""
    (folder / "tests").mkdir()
    (folder / "tests/samples").symlink_to(ROOT / "tests/samples")
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with contextlib.chdir(folder):
        for number, cell in enumerate(code, 1):
            cell["execution_count"] = number
            cell["outputs"] = outputs_of("".join(cell["source"]), number, names)


def outputs_of(source: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, and the value of the expression that it ends with."""
    tree = ast.parse(source, f"<cell {number}>")
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        outputs.append(
            {"data": shown(value), "execution_count": number, "metadata": {},
             "output_type": "execute_result"}
        )  # fmt: skip
    return outputs


def shown(value: Any) -> dict[str, Any]:
    """A picture as a small JPEG, anything else as Python shows it."""
    if not hasattr(value, "thumbnail"):
        return {"text/plain": [repr(value)]}
    picture, data = value.copy(), io.BytesIO()
    picture.thumbnail((PICTURE, PICTURE))
    picture.save(data, "JPEG", quality=75)
    return {"image/jpeg": base64.b64encode(data.getvalue()).decode()}


if __name__ == "__main__":
    path = Path(sys.argv[1])
    notebook = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        run(notebook, Path(temporary))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
