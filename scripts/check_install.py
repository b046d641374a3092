"""Check that sa1bpack installs from its wheel and its sdist into empty environments.

Outside the checkout, each installation packs the sample tar, verifies it, loads a batch, writes a
report, and shows what `sa1bpack info` says. `make test-install` runs it. With --build, the two are
built into a folder, and no more (`make dist`). With --lowest, every direct dependency has the
lowest version that pyproject.toml allows, which uv finds (`pip install uv`), and the tests named on
the command line run as well.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from repository import project_urls, repository_url

ROOT = Path(__file__).parents[1]
WORK = """
import sys
from pathlib import Path
import sa1bpack

assert Path(sys.argv[2]).resolve() not in Path(sa1bpack.__file__).resolve().parents, "the checkout"
assert sa1bpack.pack(sys.argv[1], "packed", workers=1, progress=False).images == 3
assert sa1bpack.verify("packed").ok
with sa1bpack.Loader(sa1bpack.open("packed"), 2, max_masks=8) as loader:
    assert next(iter(loader))["images"].shape == (2, 1024, 1024, 3)
assert sa1bpack.report("packed", "report.html", samples=1).ok
with sa1bpack.explore("packed", port=0) as page:  # which reads the files of the page
    assert "token=" in page.url
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, metavar="FOLDER")
    parser.add_argument("--pil", choices=("pillow", "simd"), default="pillow")
    parser.add_argument(
        "--lowest", action="store_true", help="lowest versions, from the wheel only"
    )
    parser.add_argument("--uv", default="uv", help="the uv to use for --lowest")
    given, given.tests = parser.parse_known_args()  # with --lowest, all else is for pytest
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, sdist = built(folder)
        if given.build:
            given.build.mkdir(exist_ok=True)
            for archive in (wheel, sdist):
                print(shutil.copy(archive, given.build))
            return 0
        for archive in (wheel,) if given.lowest else (wheel, sdist):
            check(archive, folder / archive.suffix[1:], given)
    return 0


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of the files that git tracks, with links to the repository."""
    source = folder / "source"
    names = run("git", "ls-files", "-z", cwd=ROOT, output=True).split("\0")
    for name in filter(None, names):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    if address := repository_url():
        with (source / "pyproject.toml").open("a") as project:
            project.write(project_urls(address))
    python = environment(folder / "build")
    run(python, "-m", "pip", "install", "--quiet", "build", "-c", ROOT / "constraints.txt")
    run(python, "-m", "build", "--outdir", folder / "dist", source, output=True)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def check(archive: Path, folder: Path, given: argparse.Namespace) -> None:
    """Install an archive into an empty environment, and use it in an empty folder."""
    python = environment(folder)
    wanted = f"sa1bpack[{given.pil}] @ {archive.as_uri()}"
    if given.lowest:
        install = (given.uv, "pip", "install", "--quiet", "--python", python)
        lowest = folder / "lowest.txt"
        run(given.uv, "pip", "compile", "--quiet", "--python", python, "--extra", given.pil,
            "--resolution", "lowest-direct", "--output-file", lowest, ROOT / "pyproject.toml",
            output=True)  # fmt: skip
        run(*install, "--requirement", lowest)
        run(*install, "--no-deps", archive)
        tools = ("pytest", "hypothesis", "psutil", "tensorstore", "xarray")
        run(*install, *tools, "--constraint", lowest)
    else:
        run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wanted)
    empty = folder / "empty"
    empty.mkdir()
    tar = ROOT / "tests/samples/sa_000000.tar"
    run(python, "-I", "-c", WORK, tar, ROOT, cwd=empty)
    run(python.with_name("sa1bpack"), "info", cwd=empty)
    if given.tests and given.lowest:
        checkout = folder.parent / "source"
        shutil.rmtree(checkout / "sa1bpack")  # what is installed is tested
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *given.tests, cwd=checkout)
    print(f"{archive.name} installs and works with Python {sys.version.split()[0]}", flush=True)


def environment(folder: Path) -> Path:
    """The Python of a new, empty environment."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin/python"


def run(*command, cwd: Path | None = None, output: bool = False) -> str:
    """Run a command, which must succeed; returns its output if it is not to be shown."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True,
        stdout=subprocess.PIPE if output else None,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"failed: {' '.join(str(word)[:200] for word in command)}\n{done.stdout or ''}")
    return done.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
