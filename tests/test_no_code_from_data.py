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
    "sa1bpack/adapters/lightning_places.py": "Lightning, by the name of the one that asks",
    "sa1bpack/lazy.py": "names from the stubs of packages",
    "sa1bpack/cli/arguments.py": "the commands of its own table",
    "sa1bpack/dataset/sample.py": "kernels of masks that its own callers name",
    "sa1bpack/display.py": "the module that PICTURES names",
    "sa1bpack/deriving/functions.py": "the function that the user names",
    "sa1bpack/export/info.py": "the options of the packer, which reading does without",
    "sa1bpack/transforms/backends.py": "kernels that its own callers name",
    "sa1bpack/pixels/other_formats.py": "classes of PIL, of its own table",
    "sa1bpack/remote/stores.py": "modules of the extra `cloud`, named by callers",
    "sa1bpack/urls.py": "the modules of the table SCHEMES",
}


def used(text: str) -> bool:
    return any(not HARMLESS.match(given) for _, given in FOUND.findall(text))


def test_nothing_that_could_execute_its_input_is_used():
    found = {
        str(path.relative_to(ROOT))
        for path in [*(ROOT / "sa1bpack").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
        if used(path.read_text())
    }
    assert found == ALLOWED.keys()
    for text in ("np.load(x)", "np.load(x, allow_pickle=True)", "torch.load(x)", "__import__(x)"):
        assert used(text), "the search does not find what it is for"
    assert not used('importlib.import_module("json")')
