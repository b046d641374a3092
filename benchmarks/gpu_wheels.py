"""A folder of wheels for a machine without network, for `gpu.py --wheels`.

    python benchmarks/gpu_wheels.py FOLDER PACKAGE... --python 3.12

Downloads the wheels of packages, in the versions of constraints.txt and without what they require,
for a CPython on Linux (x86-64), and compresses them with LZMA, which makes them a third smaller:
pip installs these as well. gpu.py names the packages that it needs.
"""

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
# pip takes each for itself: it does not know that a newer one has the older ones.
PLATFORMS = [*(f"manylinux_2_{n}" for n in (28, 27, 24, 17, 12, 5)), "manylinux2014", "manylinux1"]


def pinned(packages: list[str], python: str) -> list[str]:
    """The packages as constraints.txt pins them for a version of Python."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {}
    for line in lines:
        if "==" not in line:
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            pins[canonicalize_name(pin.name)] = f"{pin.name}{pin.specifier}"
    return [pins.get(package, package) for package in packages]


def recompress(wheel: Path) -> None:
    """Replace a wheel by one with the same files."""
    smaller = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(smaller, "w") as target:
        for info in source.infolist():
            target.writestr(info, source.read(info), zipfile.ZIP_LZMA)
    smaller.replace(wheel)


def main() -> None:
    """Download and compress."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    given = parser.parse_args()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    command += [given.folder, "--only-binary=:all:", "--implementation=cp"]
    command += [f"--python-version={given.python}"]
    command += [f"--platform={platform}_x86_64" for platform in PLATFORMS]
    subprocess.run([*command, *pinned(given.packages, given.python)], check=True)
    for wheel in given.folder.glob("*.whl"):
        recompress(wheel)
    size = sum(wheel.stat().st_size for wheel in given.folder.glob("*.whl"))
    print(f"{len(given.packages)} packages, {size / 1e6:.1f} MB in {given.folder}")


if __name__ == "__main__":
    main()
