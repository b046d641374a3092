"""The environment: processors, memory, and which PIL is active.

Pillow and pillow-simd install into the same folder, `PIL`, and the one installed last wins,
whatever the package manager lists. The files tell which one it is: post-releases are pillow-simd's.
"""

import hashlib
import importlib.util
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from sa1bpack.errors import MissingPackage

PIL_PACKAGES = ("pillow-simd", "pillow")
# Of control groups, as containers see their own: version 2, version 1.
MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class PilInForce:
    """The PIL that `import PIL` imports.

    package
        "pillow-simd" or "pillow".
    version
        `PIL.__version__`.
    core_sha256
        SHA-256 of its compiled core, in hexadecimal.
    """

    package: str
    version: str
    core_sha256: str


@dataclass(frozen=True)
class PilRecord(PilInForce):
    """The PIL that set-up (scripts/setup_pillow.py) installed, and why.

    package, version, core_sha256
        As in PilInForce.
    simd
        Instruction set that pillow-simd was compiled for ("AVX2", "SSE4"), empty for Pillow.
    reason
        Why Pillow is used in place of pillow-simd, empty if it is not.
    """

    simd: str
    reason: str


def available_cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Bytes of memory that this process may use: of the machine, or of its control group."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in MEMORY_LIMITS:
        try:
            found = min(found, int(path.read_text()))
        except (OSError, ValueError):  # no such limit: "max", for one
            continue
    return found


def pil_in_force() -> PilInForce | None:
    """Find out which PIL is active; None if there is none or its core is missing."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("PIL")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    cores = [core for folder in folders for core in Path(folder).glob("_imaging.*so")]
    if not cores:
        return None
    # Read, not imported: set-up asks again after replacing the package.
    written = (cores[0].parent / "_version.py").read_text()
    release = re.search(r'__version__ = "([^"]+)"', written)[1]
    package = "pillow-simd" if ".post" in release else "pillow"  # only releases of simd have it
    return PilInForce(package, release, hashlib.sha256(cores[0].read_bytes()).hexdigest())


def missing_pil(error: ImportError) -> MissingPackage:
    """The error to raise when PIL cannot be imported, which names the remedy."""
    return MissingPackage(
        f"neither pillow-simd nor Pillow can be imported ({error}); run `make setup` in a clone, "
        "which installs the faster one that works here, or `pip install 'pillow-simd>=12'`, which "
        "needs a compiler, or `pip install 'pillow>=11.3'`"
    )


def pil_record_path() -> Path:
    """The file in which set-up records the PIL that it installed: in the environment itself."""
    return Path(sys.prefix) / "sa1bpack-pil.json"


def read_pil_record() -> PilRecord | None:
    """Read the record of set-up; None if it cannot be read."""
    try:
        return PilRecord(**json.loads(pil_record_path().read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_pil_record(record: PilRecord) -> None:
    """Record which PIL set-up installed."""
    pil_record_path().write_text(json.dumps(asdict(record), indent=1) + "\n")


def cpu_flags() -> set[str]:
    """Instruction-set flags of the CPU as named in /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^(?:flags|Features)\s*:(.*)", text, re.MULTILINE)
    return set(found[1].split()) if found else set()
