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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sa1bpack.errors import MissingPackage

# Control groups: those of this process, and where all are; see cgroups(7).
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of memory: version 2, version 1

# What belongs to the processes alone: not files that are mapped, which the page cache holds.
_OWN = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", re.M)


@dataclass(frozen=True)
class Pil:
    """A PIL: the one that `import PIL` imports, or that set-up (scripts/setup_pillow.py) installed.

    Attributes:
        package: "pillow-simd" or "pillow".
        version: `PIL.__version__`.
        core_sha256: SHA-256 of the compiled core, in hexadecimal.
        simd: known to set-up alone: instruction set that pillow-simd was compiled for ("AVX2",
            "SSE4"), empty for Pillow.
        reason: known to set-up alone: why Pillow is used in place of pillow-simd, empty if it is
            not.
    """

    package: str
    version: str
    core_sha256: str
    simd: str = ""
    reason: str = ""


def available_cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Bytes of memory that this process may use: of the machine, or of its control group.

    The limits of all groups that a group is in hold, too: a job of SLURM is one within others. A
    container may see its own group alone, whatever its path is outside.
    """
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not OWN_GROUPS.exists():
        return least
    for line in OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        group = GROUPS / controllers / path.lstrip("/")
        for folder in (group, *group.parents):
            for name in _LIMITS:
                with suppress(OSError, ValueError):  # no such limit: "max", for one
                    least = min(least, int((folder / name).read_text()))
    return least


def own_bytes() -> int:
    """Bytes of anonymous and shared memory of this process and its children, each page once."""
    total = 0
    for process in (os.getpid(), *_children(os.getpid())):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            sizes = _OWN.findall(Path(f"/proc/{process}/smaps_rollup").read_text())
            total += 1024 * sum(map(int, sizes))
    return total


def _children(process: int) -> list[int]:
    """The numbers of the processes that one has started, and of theirs."""
    children = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for child in map(int, path.read_text().split()):
                children += [child, *_children(child)]
    return children


def pil_in_force() -> Pil | None:
    """Find out which PIL is active; None if there is none or its core is missing."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("PIL")
    for folder in (spec and spec.submodule_search_locations) or ():
        for core in Path(folder).glob("_imaging.*so"):
            # Read, not imported: set-up asks again after replacing the package.
            source = core.with_name("_version.py").read_text()
            release = source.partition('__version__ = "')[2].partition('"')[0]
            package = "pillow-simd" if ".post" in release else "pillow"  # only simd has those
            return Pil(package, release, hashlib.sha256(core.read_bytes()).hexdigest())
    return None


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


def read_pil_record() -> Pil | None:
    """Read the record of set-up; None if it cannot be read."""
    try:
        return Pil(**json.loads(pil_record_path().read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_pil_record(record: Pil) -> None:
    """Record which PIL set-up installed."""
    pil_record_path().write_text(json.dumps(asdict(record), indent=1) + "\n")


def cpu_flags() -> set[str]:
    """Instruction-set flags of the CPU as named in /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text()
    match = re.search(r"^(?:flags|Features)\s*:(.*)", text, re.MULTILINE)
    return set(match[1].split()) if match else set()
