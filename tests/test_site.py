"""The documentation site: what `make docs` needs, without building it."""

import importlib
import inspect
import re
import sys
import typing
from pathlib import Path

import pytest
import repository
from commands import COMMAND, python

import sa1bpack
from sa1bpack import errors

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site():
    """Imports a module of scripts/site."""
    sys.path.insert(0, str(ROOT / "scripts/site"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "scripts/site"))


def test_every_page_is_in_the_navigation():
    nav = re.search(r"^nav:\n(.*?)^\S", (ROOT / "mkdocs.yml").read_text(), re.S | re.M)[1]
    named = set(re.findall(r"[\w/-]+\.md", nav))
    pages = {path.name for path in DOCS.glob("*.md")}
    generated = {"first_steps.md", "reference/cli.md", "repository/CHANGELOG.md"}
    assert pages - named == set(), "name them under nav in mkdocs.yml"
    assert named - pages == generated


def test_a_notebook_becomes_a_page_with_its_code_and_outputs(site):
    text = site("notebook").notebook_page(DOCS / "first_steps.ipynb")
    assert text.startswith("# First steps\n") and "\n```python\nimport torch\n" in text
    assert "```text\n3 images, 270 masks; sound: True\n```" in text
    assert text.count("](data:image/jpeg;base64,") == 1


def test_every_page_that_code_names_is_there():
    named = {
        name
        for path in (ROOT / "sa1bpack").rglob("*.py")
        for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())
    }
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_error_has_its_cause_and_remedy():
    text = (DOCS / "errors.md").read_text()
    classes = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    assert len(classes) > 15
    assert [name for name in classes if not re.search(rf"\b{name}`", text)] == []


def test_every_environment_variable_is_documented():
    """Of those that are read or set by a text, or by a constant of the module."""
    text = (DOCS / "environment.md").read_text()
    found = set()
    for path in (ROOT / "sa1bpack").rglob("*.py"):
        code = path.read_text()
        for quoted, name in re.findall(r"\benviron(?:\.get\(|\[)\s*(?:\"(\w+)\"|(\w+))", code):
            constant = re.search(rf'^{name} = "(\w+)"', code, re.M)
            found.add(quoted or (constant[1] if constant else ""))
    assert {"RANK", "SA1BPACK_TRITON", "NUMBA_CACHE_DIR"} <= found
    assert [name for name in sorted(found) if f"`{name}`" not in text and name] == []


def test_every_public_name_is_on_one_page_of_the_reference(site):
    pages = dict(site("api_reference").pages())
    named = [name for text in pages.values() for name in re.findall(r"^::: (\S+)", text, re.M)]
    assert len(named) == len(set(named)) > 80
    expected = {
        f"{module.__name__}.{name}"
        for module in (sa1bpack, sa1bpack.masks, sa1bpack.transforms)
        for name in module.__all__
        if callable(value := getattr(module, name))
        and not (module is sa1bpack and inspect.isclass(value) and issubclass(value, Exception))
    }
    assert expected - set(named) == set()
    assert "reference/api/others.md" not in pages, "give them a page in api_reference.TOP"
    returned = {
        typing.get_type_hints(value).get("return")
        for name in sa1bpack.__all__
        if inspect.isfunction(value := getattr(sa1bpack, name))
    }
    results = {
        result.__name__
        for result in returned
        if inspect.isclass(result) and result.__module__.startswith("sa1bpack.")
    }
    assert len(results) > 10
    missing = results - {name.rpartition(".")[2] for name in named}
    assert missing == set(), "add them to api_reference.RESULTS"


def test_the_page_of_commands_has_every_command_and_option(site):
    text = site("cli_reference").page()
    commands = re.findall(r"^    (\w+) ", python(*COMMAND[1:], "--help"), re.M)
    assert re.findall(r"^## sa1bpack (\w+)$", text, re.M) == commands
    assert "--output OUTPUT`\n:   folder of the pack" in text
    assert "(16 to 8192, default: 1024)" in text and "%(default)s" not in text
    assert "\n## Exit codes\n" in text


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("One line.", "One line.\n"),
        ("See docs/order.md.", "See [docs/order.md](../../order.md).\n"),
        ("Args:\n    a, b: text\n        more\n", "`a`, `b`\n:   text\n    more\n"),
        ("== ==\na  b\n== ==", "```text\n== ==\na  b\n== ==\n```\n"),
        ("Use::\n\n::\n\n    f(x)", "```python\nf(x)\n```\n"),
        ("Examples:\n    >>> 1 + 1\n    2", "```pycon\n>>> 1 + 1\n2\n```\n"),
        ("Raises:\n    OptionError: no.\n\nAfter.", "`OptionError`\n:   no.\n"),
    ],
)
def test_docstrings_become_markdown(site, docstring, markdown):
    assert markdown in site("docstrings").markdown(docstring)


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ('<script src="https://cdn/x.js"></script>', 1), ("<script src='a/x.js'></script>", 0),
        ('<link rel="stylesheet" href="//fonts/x.css">', 1), ('<img src="http://x/y.png">', 1),
        ('<link rel="canonical" href="https://here/">', 0), ('<a href="https://x/">x</a>', 0),
        ('<iframe src="https://x/">', 1),
    ],
)  # fmt: skip
def test_what_a_page_loads_from_another_host_is_found(site, html, count):
    assert len(site("loads").loaded_from_elsewhere(html)) == count


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://forge.org/owner/name", "https://forge.org/owner/name"),
        ("https://user:token@forge.org/owner/name.git", "https://forge.org/owner/name"),
        ("git@forge.org:owner/name.git", "https://forge.org/owner/name"),
        ("ssh://git@forge.org:2222/group/owner/name.git", "https://forge.org/group/owner/name"),
        ("", None),
        ("file:///srv/git/name", None),
    ],
)
def test_the_repository_has_the_address_of_the_remote_without_its_password(
    monkeypatch, remote, address
):
    monkeypatch.delenv("REPOSITORY_URL", raising=False)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "remote.origin.url")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", remote)
    assert repository.repository_url() == address
