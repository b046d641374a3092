"""What a wheel and an sdist hold; `make test-install` installs them (scripts/check_install.py)."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import sa1bpack

ROOT = Path(__file__).parent.parent
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # setuptools replaces the arguments
build_meta.build_wheel(folder)
build_meta.build_sdist(folder)
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """(wheel, sdist), built from links to the clone, in which nothing is written."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    for path in (ROOT / "sa1bpack").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, folder],
        cwd=source, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_all_modules_stubs_and_types_and_no_tests(archives):
    with zipfile.ZipFile(archives[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        text = wheel.read(metadata).decode()
    package = ROOT / "sa1bpack"
    kinds = (".py", ".pyi", ".typed", ".html", ".css", ".js", ".txt")
    expected = {
        path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.suffix in kinds
    } | {"sa1bpack/py.typed"}
    assert names == expected
    assert f"Version: {sa1bpack.__version__}\n" in text and "Requires-Python: >=3.11" in text
    assert "License-File: LICENSE" in text


def test_a_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {sa1bpack.__version__}\n" in citation
    released = re.search(r"^date-released: (\S+)$", citation, re.M)[1]
    assert f"\n## {sa1bpack.__version__} ({released})\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_sdist_builds_the_same(archives):
    with tarfile.open(archives[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "sa1bpack/py.typed"} <= names
    stubs = {f"sa1bpack/{room}__init__.pyi" for room in ("", "masks/", "transforms/")}
    assert stubs <= names


def test_what_messages_tell_to_install_is_what_the_extras_require():
    """By the packages' own names: sa1bpack is on no index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = {each for name in ("simd", "pillow", "cloud", "ray") for each in extras[name]}
    text = "".join(path.read_text() for path in (ROOT / "sa1bpack").rglob("*.py"))
    told = {each for line in re.findall(r"pip install ((?:'[^']+' ?)+)", text)
            for each in re.findall(r"'([^']+)'", line)}  # fmt: skip
    assert told == known


def test_a_wheel_that_is_imported_without_installing_it_says_what_to_do(archives):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import sa1bpack",
         archives[0]],
        capture_output=True, text=True,
    )  # fmt: skip
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: ") and "from a zip file" in said and "with pip" in said
