#!/usr/bin/env python3
"""Install the fastest PIL that works here: pillow-simd if it compiles, otherwise Pillow.

Run by `make setup`, with the Python of the environment; prints nothing if there is nothing to do.
Both install into the same folder, so this script, not a requirement, decides which one is active.
docs/decisions/0001-pillow-simd.md states the reasons.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.environment import (
    Pil,
    cpu_flags,
    pil_in_force,
    read_pil_record,
    write_pil_record,
)

PIL_PACKAGES = ("pillow-simd", "pillow")
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
COST = (
    "packing works with Pillow as well, but decoding and resizing an image takes about twice as "
    "long (18.4 against 9.3 ms as measured in docs/decisions/0001-pillow-simd.md)"
)

# Output of a failed build → its meaning. The first match counts.
_CAUSES = (
    (
        r"The headers or library files could not be found for (\w+)",
        r"the headers of \1 are missing (Debian: apt install libjpeg-dev zlib1g-dev)",
    ),
    (
        r"Python\.h: No such file",
        "the headers of Python are missing (Debian: apt install python3-dev)",
    ),
    (
        r"\[Errno 2\] No such file or directory: '([^'/]*(?:cc|gcc|clang|c\+\+))'",
        r"there is no C compiler \1 (Debian: apt install gcc)",
    ),
    (
        r"error: [Cc]ommand .* (?:failed with exit code|returned non-zero exit status) \d+",
        "the C compiler failed",
    ),
    (
        r"No matching distribution found|Failed to establish a new connection|Max retries exceeded"
        r"|Temporary failure in name resolution|Could not find a version",
        "the package index cannot be reached",
    ),
)

# Encodes and decodes a JPEG with the active PIL.
_HEALTH = """
import io
from PIL import Image
file = io.BytesIO()
Image.new("RGB", (64, 48), (10, 200, 30)).save(file, "JPEG")
image = Image.open(io.BytesIO(file.getvalue())).convert("RGB").resize((32, 24), Image.BICUBIC)
assert all(abs(a - b) < 8 for a, b in zip(image.getpixel((9, 9)), (10, 200, 30))), "wrong pixels"
"""


@dataclass(frozen=True)
class Choice:
    """The package to install, its compiler flag and SIMD level, and the reason for it."""

    package: str
    compiler_flag: str = ""
    simd: str = ""
    reason: str = ""


def choose(machine: str, flags: set[str]) -> Choice:
    """Choose for a machine (as `platform.machine()` names it) and its CPU flags."""
    if machine.lower() not in ("x86_64", "amd64"):
        return Choice("pillow", reason=f"pillow-simd needs x86-64, this is {machine}")
    if "avx2" in flags:
        # Not -march=native: it was measured slower, and an environment shared by a cluster would
        # not work on machines without the newest instructions.
        return Choice("pillow-simd", "-mavx2", "AVX2")
    if flags and "sse4_1" not in flags:
        return Choice("pillow", reason="pillow-simd needs SSE4, which this CPU lacks")
    return Choice("pillow-simd", simd="SSE4")


def settled(now: Pil | None, record: Pil | None, wanted: Choice, pin: str) -> bool:
    """True if set-up installed `wanted` at version `pin`, and it is still active."""
    return (
        now is not None
        and record is not None
        and now.core_sha256 == record.core_sha256
        and (record.package, record.version, record.simd) == (wanted.package, pin, wanted.simd)
    )


def build_environment(environ: dict[str, str], compiler_flag: str) -> dict[str, str]:
    """Return the environment variables to compile with.

    The flag goes into CC, because CFLAGS would replace Python's own -O3 (measured three times
    slower). If CFLAGS is set already, -O3 is added to it.
    """
    environ = dict(environ)
    if compiler_flag:
        environ["CC"] = f"{environ.get('CC', 'cc')} {compiler_flag}"
    if "CFLAGS" in environ and not re.search(r"(^|\s)-O", environ["CFLAGS"]):
        environ["CFLAGS"] += " -O3"
    return environ


def explain(log: str) -> str:
    """Return one line on why a build failed, from the output of pip."""
    for pattern, meaning in _CAUSES:
        found = re.search(pattern, log)
        if found:
            return found.expand(meaning)
    errors = [line.strip() for line in log.splitlines() if "error:" in line.lower()]
    return errors[0] if errors else "pip failed"


def pinned(package: str, constraints: str) -> str:
    """Return the version of `package` that the text of constraints.txt pins."""
    found = re.search(rf"^{re.escape(package)}==(\S+)", constraints, re.MULTILINE)
    if not found:
        raise SystemExit(f"{CONSTRAINTS} does not pin {package}; add a line {package}==VERSION")
    return found[1]


def pip(*arguments: str, environ: dict[str, str] | None = None) -> str | None:
    """Run pip; return None on success, otherwise its output."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else done.stdout


def install(choice: Choice, pin: str) -> str | None:
    """Install `choice`, replacing any other PIL; return None, or why that failed.

    The wheel is built first, so that the existing PIL stays if that fails. pip's cache is not used:
    it does not know the flags that a wheel was compiled with.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = ["--no-cache-dir", "--no-binary", choice.package]
        failed = pip(
            *("wheel", "--no-deps", "--wheel-dir", folder),
            *("--build-constraint", str(CONSTRAINTS)),
            *(source if choice.package == "pillow-simd" else []),
            f"{choice.package}=={pin}",
            environ=build_environment(dict(os.environ), choice.compiler_flag),
        )
        if failed is not None:
            return explain(failed)
        (wheel,) = Path(folder).glob("*.whl")
        failed = pip("uninstall", "--yes", *PIL_PACKAGES) or pip(
            "install", "--no-deps", "--no-index", str(wheel)
        )
        return explain(failed) if failed is not None else unhealthy()


def unhealthy() -> str | None:
    """Return None if the active PIL decodes a JPEG, otherwise the error."""
    done = subprocess.run(
        [sys.executable, "-c", _HEALTH], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    return f"it does not decode a JPEG: {(done.stderr.strip() or 'it crashed').splitlines()[-1]}"


def install_and_record(wanted: Choice, constraints: str) -> None:
    """Install `wanted`, or Pillow if that fails, and record it. Exits with 1 if neither works."""
    why = None
    if wanted.package == "pillow-simd":
        say(f"compiling pillow-simd for {wanted.simd} (about 20 seconds)")
        why = install(wanted, pinned("pillow-simd", constraints))
        if why is not None:
            wanted = Choice("pillow", reason=f"no pillow-simd: {why}")
    if wanted.package == "pillow":
        why = install(wanted, pinned("pillow", constraints))
    if why is not None and unhealthy() is not None:
        raise SystemExit(f"set-up: {wanted.reason or 'no pillow-simd'}; no Pillow either: {why}")
    now = pil_in_force()  # if `why` is set, an earlier one that works, such as offline
    simd = wanted.simd if now.package == wanted.package else ""
    write_pil_record(Pil(now.package, now.version, now.core_sha256, simd, wanted.reason))
    say(f"{now.package} {now.version} is active{f', compiled for {simd}' if simd else ''}")
    if now.package == "pillow":
        say(f"{wanted.reason}; {COST}")


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"set-up: {line}", flush=True)


def main() -> None:
    """Check which PIL is active, and install the right one if needed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="try pillow-simd again, even if an earlier set-up fell back to Pillow",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="compile pillow-simd again, as for headers of WebP or TIFF that were missing",
    )
    arguments = parser.parse_args()
    constraints = CONSTRAINTS.read_text()
    now, record = pil_in_force(), read_pil_record()
    wanted = choose(platform.machine(), cpu_flags())
    again = arguments.fresh or arguments.rebuild
    if record is not None and record.package == "pillow" and not again:
        wanted = Choice("pillow", reason=record.reason)
    is_settled = settled(now, record, wanted, pinned(wanted.package, constraints))
    if is_settled and not arguments.rebuild and unhealthy() is None:
        return
    if now is not None and record is not None and now.core_sha256 != record.core_sha256:
        say(f"something installed {now.package} {now.version} over {record.package}")
    install_and_record(wanted, constraints)


if __name__ == "__main__":
    main()
