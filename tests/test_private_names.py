"""Tests use what modules offer: no private name of the package.

A name with a leading underscore may change with no test to notice, unless a test is why it cannot.
ruff finds private members that are used (pyproject.toml), and this what it does not look for.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PRIVATE = r"_(?!_|exit\b|repr_html_)\w+"
IMPORTED = re.compile(
    rf"^ *(from sa1bpack\S* import .*\b{PRIVATE}|(from|import) sa1bpack\S*\.{PRIVATE})", re.M
)
BY_TEXT = re.compile(
    rf"\b(setattr|delattr|getattr|hasattr|patch|object)\([^()]*\"([\w.]+\.)?{PRIVATE}\""
)


def reached(source: str) -> bool:
    return bool(IMPORTED.search(source) or BY_TEXT.search(source))


def test_no_test_reaches_into_private_names():
    sources = {
        path.name: path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)
    }
    assert [name for name, source in sources.items() if reached(source)] == []
    for found in (
        'monkeypatch.setattr("sa1bpack.loading.loader._device", None)',
        "from sa1bpack.loading.loader import _device", "import sa1bpack.loading._device",
    ):  # fmt: skip
        assert reached(found), "the search does not find what it is for"
