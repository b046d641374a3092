"""What is reported of the environment is what is really in use."""

import hashlib
import os
import sys
from pathlib import Path

import PIL
import pytest
import setup_pillow
from commands import command, python  # noqa: F401 - a fixture
from PIL import Image

from sa1bpack import environment


@pytest.fixture
def described(command):  # noqa: F811
    """described() → what `sa1bpack info` says of each thing."""
    return lambda: dict(line.split("  ", 1) for line in command("info")[1].splitlines() if line)


def make_package(site, core, release):
    """Create an installed PIL: it replaces files of the one that was there."""
    folder = site / "PIL"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("from ._version import __version__\n")
    (folder / "_version.py").write_text(f'__version__ = "{release}"\n')
    (folder / "_imaging.cpython-311-x86_64-linux-gnu.so").write_bytes(core)


def ask(site):
    """Return the package and version that are active in a Python whose only folder is `site`."""
    code = (
        "from sa1bpack.environment import pil_in_force as f; p = f(); "
        "print(p and (p.package, p.version))"
    )
    root = Path(environment.__file__).parent.parent
    return python("-S", "-c", code, env={"PYTHONPATH": f"{site}:{root}"}).strip()


def test_the_active_pil_is_the_one_that_is_imported(described):
    """The version is that of PIL itself."""
    assert f" {PIL.__version__}" in described()["resizer"]


@pytest.mark.parametrize("last", ["pillow", "pillow-simd"])
def test_of_two_installed_packages_the_last_one_is_active(tmp_path, last):
    """Both are listed as installed; only the files tell."""
    packages = {"pillow": (b"one", "13.0.0"), "pillow-simd": (b"two", "12.1.1.post0")}
    for package in sorted(packages, key=lambda name: name == last):
        make_package(tmp_path, *packages[package])
    assert ask(tmp_path) == repr((last, packages[last][1]))


def test_a_missing_pil_is_reported_as_none(tmp_path):
    """Neither an empty environment nor a folder without a compiled core counts."""
    assert ask(tmp_path) == "None"
    (tmp_path / "PIL").mkdir()
    assert ask(tmp_path) == "None"


def test_describing_packages_does_not_import_torch():
    """Importing it takes a second."""
    code = (
        "import sys; from sa1bpack.cli.machine import describe_packages; describe_packages();"
        "assert 'torch' not in sys.modules"
    )
    python("-c", code)


def test_a_pil_that_replaced_the_one_of_set_up_is_reported(tmp_path, monkeypatch, described):
    """A package that requires pillow was installed after set-up."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "not by `make setup`" in described()["PIL set-up"]
    core = hashlib.sha256(Path(Image.core.__file__).read_bytes()).hexdigest()
    record = setup_pillow.Pil("pillow-simd", PIL.__version__, core, "AVX2", "")
    setup_pillow.write_pil_record(record)
    assert described()["PIL set-up"].strip() == "unchanged since `make setup`"
    assert "compiled for AVX2" in described()["resizer"]
    other = setup_pillow.Pil("pillow-simd", "12.1.1.post0", "00", "AVX2", "")
    setup_pillow.write_pil_record(other)
    assert "CHANGED: set-up installed pillow-simd 12.1.1.post0" in described()["PIL set-up"]
    assert "compiled for" not in described()["resizer"]
    for text in ("", "{", "[]", '{"package": "pillow"}'):  # half-written or foreign
        (tmp_path / "sa1bpack-pil.json").write_text(text)
        assert "not by `make setup`" in described()["PIL set-up"]


MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("groups", "limits", "expected"), [
    ("", {}, MACHINE),
    ("0::/\n", {"memory.max": "max\n"}, MACHINE),  # version 2, no limit
    ("0::/\n", {"memory.max": "1048576\n"}, 1 << 20),  # of a container
    ("0::/slurm/job_5/step_0\n", {"slurm/job_5/memory.max": "4096\n"}, 4096),
    ("0::/a/b\n", {"memory.max": "5000\n", "a/memory.max": "4096\n"}, 4096),
    ("1:cpu:/\n9:memory:/\n", {"memory/memory.limit_in_bytes": "2097152\n"}, 2 << 20),  # version 1
    ("9:memory:/docker/f00\n", {"memory/memory.limit_in_bytes": "2097152\n"}, 2 << 20),
    ("9:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
    ("0::/\n", {"memory.max": "what?"}, MACHINE),
])  # fmt: skip
def test_memory_is_that_of_the_machine_or_of_the_control_groups(
    tmp_path, monkeypatch, groups, limits, expected
):
    monkeypatch.setattr(environment, "GROUPS", tmp_path)
    monkeypatch.setattr(environment, "OWN_GROUPS", tmp_path / "cgroup")
    for name, text in {"cgroup": groups, **limits}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert environment.memory_bytes() == expected
