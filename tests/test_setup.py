"""The decisions of set-up; nothing is installed here."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import setup_pillow
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setup_pillow import Pil

ROOT = Path(__file__).parent.parent
NOW = Pil("pillow-simd", "12.1.1.post0", "ab")
RECORD = Pil("pillow-simd", "12.1.1.post0", "ab", "AVX2", "")
WANTED = setup_pillow.Choice("pillow-simd", "-mavx2", "AVX2")


@pytest.mark.parametrize(
    ("machine", "flags", "package", "simd"),
    [
        ("x86_64", {"sse4_1", "avx2"}, "pillow-simd", "AVX2"),
        ("x86_64", {"sse4_1"}, "pillow-simd", "SSE4"),
        ("x86_64", set(), "pillow-simd", "SSE4"),  # no /proc/cpuinfo
        ("x86_64", {"sse2"}, "pillow", ""),
        ("aarch64", {"asimd"}, "pillow", ""),
    ],
)
def test_pillow_simd_is_chosen_if_it_can_run(machine, flags, package, simd):
    """On x86-64 with SSE4 or better, and built for AVX2 exactly if the CPU has it."""
    choice = setup_pillow.choose(machine, flags)
    assert (choice.package, choice.simd) == (package, simd)
    assert bool(choice.reason) == (package == "pillow")
    assert ("-mavx2" in choice.compiler_flag) == (simd == "AVX2")


@pytest.mark.parametrize(
    ("log", "meaning"),
    [
        ("The headers or library files could not be found for jpeg,\na required dependency",
         "headers of jpeg are missing"),
        ("src/_imaging.c:76:10: fatal error: Python.h: No such file or directory\nerror: command",
         "headers of Python are missing"),
        ("", "pip failed"),
    ],
)  # fmt: skip
def test_a_failed_build_is_explained(log, meaning):
    """In one line, naming what to install if that would help."""
    explained = setup_pillow.explain(log)
    assert meaning in explained
    assert "\n" not in explained


def test_nothing_is_done_if_the_chosen_one_is_active():
    """And something is done in each case with one difference."""
    settled, pin = setup_pillow.settled, "12.1.1.post0"
    assert settled(NOW, RECORD, WANTED, pin)
    assert not settled(None, RECORD, WANTED, pin)
    assert not settled(NOW, None, WANTED, pin)
    assert not settled(Pil("pillow", "13.0.0", "cd"), RECORD, WANTED, pin)
    assert not settled(NOW, RECORD, WANTED, "12.2.0")
    assert not settled(NOW, RECORD, setup_pillow.Choice("pillow-simd", "", "SSE4"), pin)
    assert not settled(NOW, RECORD, setup_pillow.Choice("pillow"), pin)


class Steps:
    """Replaces the installing functions: says which PIL is active and whether installing works."""

    def __init__(self, monkeypatch, works, before=None):
        self.works, self.now, self.installed, self.record = works, before, [], None
        monkeypatch.setattr(setup_pillow, "install", self.install)
        monkeypatch.setattr(setup_pillow, "pil_in_force", lambda: self.now)
        monkeypatch.setattr(setup_pillow, "unhealthy", lambda: None if self.now else "nothing")
        monkeypatch.setattr(
            setup_pillow, "write_pil_record", lambda record: setattr(self, "record", record)
        )

    def install(self, choice, pin):
        self.installed.append((choice.package, pin))
        if choice.package not in self.works:
            return "it cannot"
        self.now = Pil(choice.package, pin, "ab")
        return None


PINS = "pillow-simd==12.1.1.post0\npillow==13.0.0\n"


SIMD, PILLOW = ("pillow-simd", "12.1.1.post0"), ("pillow", "13.0.0")
OLD = Pil("pillow", "12.0.0", "ef")


@pytest.mark.parametrize(
    ("works", "before", "tried", "active", "said"),
    [
        ({"pillow-simd", "pillow"}, None, [SIMD], SIMD, "is active, compiled for AVX2"),
        ({"pillow"}, None, [SIMD, PILLOW], PILLOW, "twice as long"),  # no compiler, for example
        (set(), OLD, [SIMD, PILLOW], ("pillow", "12.0.0"), ""),  # offline
    ],
)
def test_the_best_that_can_be_installed_is_active_and_recorded(
    monkeypatch, capsys, works, before, tried, active, said
):
    steps = Steps(monkeypatch, works, before)
    setup_pillow.install_and_record(WANTED, PINS)
    assert steps.installed == tried
    assert (steps.record.package, steps.record.version) == active
    assert (steps.record == RECORD) == (active == SIMD)
    assert bool(steps.record.reason) == (active != SIMD)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "tried"), [([], []), (["--fresh"], []), (["--rebuild"], [SIMD])], ids=str
)
def test_what_is_settled_is_compiled_again_only_if_that_is_asked_for(monkeypatch, flag, tried):
    steps = Steps(monkeypatch, {"pillow-simd"}, before=NOW)
    monkeypatch.setattr(setup_pillow, "read_pil_record", lambda: RECORD)
    monkeypatch.setattr(setup_pillow, "choose", lambda machine, flags: WANTED)
    monkeypatch.setattr(sys, "argv", ["setup_pillow.py", *flag])
    setup_pillow.main()
    assert steps.installed == tried


def test_set_up_fails_if_no_pil_works(monkeypatch):
    """With both reasons."""
    Steps(monkeypatch, works=set())
    with pytest.raises(SystemExit, match=r"no pillow-simd: it cannot; no Pillow either: it cannot"):
        setup_pillow.install_and_record(WANTED, PINS)


def constraints(python: str = "{}.{}".format(*sys.version_info)) -> dict[str, str]:
    """Name to version, as constraints.txt pins them for a version of Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = [
        pin for pin in pins if not pin.marker or pin.marker.evaluate({"python_version": python})
    ]
    names = [canonicalize_name(pin.name) for pin in pins]
    assert len(names) == len(set(names)), "a name is pinned twice"
    versions = [re.fullmatch(r"==([\w.]+)", str(pin.specifier))[1] for pin in pins]
    return dict(zip(names, versions, strict=True))


def supported() -> list[str]:
    """Versions of Python that the package says that it supports."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def test_all_supported_versions_have_the_same_names_pinned():
    first, *others = [constraints(python).keys() for python in supported()]
    assert all(names == first for names in others)


def test_what_is_said_of_python_is_the_same_everywhere():
    """Classifiers, the lower bound, the tested matrix, README and the page for beginners."""
    versions = supported()
    oldest, newest = versions[0], versions[-1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == f">={oldest}"
    assert project["tool"]["mypy"]["python_version"] == oldest
    assert project["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == versions
    for name in ("README.md", "docs/start.md"):
        assert f"Python {oldest} to {newest}" in (ROOT / name).read_text(), name


def test_every_requirement_is_pinned_exactly():
    """Including those of the extras and of the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(line for extra in project["project"]["optional-dependencies"].values() for line in extra),
    ]
    names = {re.match(r"[\w.-]+", line)[0].lower() for line in wanted}
    assert names <= constraints().keys()
    for package in ("pillow", "pillow-simd"):
        assert setup_pillow.pinned(package, (ROOT / "constraints.txt").read_text())


def test_nothing_that_set_up_installs_requires_pillow():
    """It would be installed over pillow-simd."""
    for package in constraints().keys() - {"pillow", "pillow-simd"}:
        try:
            lines = requires(package) or ()
        except PackageNotFoundError:  # those for building and linting are not always installed
            continue
        for line in lines:
            if re.match(r"pillow(-simd)?\b", line, re.IGNORECASE):
                assert "extra ==" in line, f"{package} requires {line}"


def test_set_up_compiles_kernels_also_after_an_update_of_a_module_with_some():
    command = ["make", "--what-if=sa1bpack/masks/rle.py", "--dry-run", "setup"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "python scripts/compile_kernels.py" in shown.stdout


def test_set_up_compiles_what_packing_and_training_use(capsys):
    """As the set-up of `make test` has done."""
    runpy.run_path(str(ROOT / "scripts/compile_kernels.py"), run_name="__main__")
    assert re.fullmatch(r"set-up: kernels are compiled \(\d+ s\)\n", capsys.readouterr().out)


def test_a_mistyped_variable_is_named_and_nothing_is_packed():
    """The sample tar would be packed in place of the one that was meant."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    # As from a shell, not from the make that runs the tests.
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    for name in ("OUTPUT", "TARS"):
        environment.pop(name, None)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [make, "-n", "pack", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    found = run("TAR=/data/sa_000001.tar")
    assert found.returncode == 2 and found.stdout == ""
    assert "TAR: no such variable; there are TARS" in found.stderr
    found = run("OUT=packed")
    assert found.returncode == 2 and "OUT: no such variable; " in found.stderr
    assert "OUTPUT, " in found.stderr
    environment["TAR"] = "/data/sa_000001.tar"
    assert "TAR=/data/sa_000001.tar is not read: give TARS" in run().stderr
    environment["TAR"] = "/bin/tar"  # of a toolchain
    alone = run("TARS=b.tar")  # which would go into the pack of the sample tar
    assert alone.returncode == 2 and "give OUTPUT, the folder of the pack" in alone.stderr
    assert "verify" not in run("PACK_FLAGS=--dry-run").stdout
    meant = run("TARS='/my data/*.tar' b.tar", "OUTPUT=a b", "PACK_FLAGS=--md5 x=y")
    assert meant.returncode == 0
