"""Code is never loaded from data: no names to import, no file that may unpickle.

ruff refuses pickle, marshal, eval and exec (pyproject.toml).
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOUND = re.compile(
    r"\b(import_module|resolve_name|__import__|np\.load|torch\.load|unsafe_load)\((.*)"
)
HARMLESS = re.compile(r'f?"[\w.]+"\)|.*weights_only=True|.*allow_pickle=False')
# Modules that import by a name that is not written there, and whose name it is.
ALLOWED = {
    "sa1bpack/lazy.py": "names from the tables of packages",
    "sa1bpack/__init__.py": "public modules of its own table",
    "sa1bpack/cli/arguments.py": "the commands of its own table",
    "sa1bpack/display.py": "the module that PICTURES names",
    "sa1bpack/deriving/run.py": "the function that the user names",
    "sa1bpack/transforms/backends.py": "kernels that its own callers name",
    "sa1bpack/remote/stores.py": "modules of the extra `cloud`, named by callers",
    "sa1bpack/urls.py": "the modules of the table SCHEMES",
}


def test_nothing_that_could_execute_its_input_is_used():
    found = {
        str(path.relative_to(ROOT))
        for path in [*(ROOT / "sa1bpack").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
        for _, given in FOUND.findall(path.read_text())
        if not HARMLESS.match(given)
    }
    assert found == ALLOWED.keys()
