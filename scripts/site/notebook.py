"""A notebook as a page: its text, its code, and the outputs that it holds."""

import json
from collections.abc import Iterator
from pathlib import Path


def notebook_page(path: Path) -> str:
    """The notebook as Markdown; its pictures are part of the page."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: dict) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = output.get("text", data.get("text/plain"))
        if "image/jpeg" in data:
            yield f"![output](data:image/jpeg;base64,{data['image/jpeg']})"
        elif text:
            yield f"```text\n{''.join(text).rstrip()}\n```"
