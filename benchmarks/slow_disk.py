"""A mirror of a folder that answers every read late: slow_disk.c, compiled, mounted and asked."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("slow_disk.c")

# Columns of a log.
CAME, ANSWERED, FILE, OFFSET, COUNT = range(5)


class Unavailable(Exception):
    """This machine lacks something that a slow disk needs; the text says what."""


class SlowDisk:
    """The mirror, mounted while the context lasts; `path` is the folder of its files."""

    def __init__(self, folder: Path):
        """Raises Unavailable if it cannot be compiled or mounted."""
        if not Path("/dev/fuse").exists():
            raise Unavailable("/dev/fuse does not exist: the kernel has no FUSE")
        compiler = os.environ.get("CC", "cc")
        if not shutil.which(compiler):
            raise Unavailable(f"{compiler} was not found: a C compiler is needed")
        self._own = Path(tempfile.mkdtemp(prefix="slow-disk-"))
        self.path = self._own / "mirror"
        self.path.mkdir()
        try:
            program = str(self._own / "slow_disk")
            _compile([compiler, "-O2", "-pthread", str(SOURCE), "-o", program])
            self._server = subprocess.Popen(
                [program, str(folder), str(self.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            if self._line() != "ready":
                raise Unavailable(self._server.communicate()[1].strip())
        except BaseException:
            shutil.rmtree(self._own)
            raise

    def start(self, delay_ms: float) -> None:
        """Drop the mirror's pages; from now on delay every read, and keep a log of them."""
        self._say(f"start {round(delay_ms * 1000)}")
        if self._line() != "started":
            raise RuntimeError(f"the slow disk has ended: {self._server.communicate()[1].strip()}")

    def stop(self) -> np.ndarray:
        """The reads since `start`, int64 (n, 5): times in ns, file number, offset, bytes."""
        self._say("stop")
        count = int(self._line())
        rows = [list(map(int, self._line().split())) for _ in range(count)]
        return np.array(rows, np.int64).reshape(count, 5)

    def names(self, log: np.ndarray) -> list[str]:
        """The file of each read, relative to the mirror."""
        paths = {path.stat().st_ino: path for path in self.path.rglob("*")}
        return [str(paths[number].relative_to(self.path)) for number in log[:, FILE].tolist()]

    def _say(self, command: str) -> None:
        self._server.stdin.write(command + "\n")
        self._server.stdin.flush()

    def _line(self) -> str:
        return self._server.stdout.readline().rstrip("\n")

    def __enter__(self) -> "SlowDisk":
        return self

    def __exit__(self, *error) -> None:
        self._server.communicate()  # the end of its input makes it unmount
        if not os.path.ismount(self.path):
            shutil.rmtree(self._own)


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def most_in_flight(log: np.ndarray) -> int:
    """The largest number of reads that waited at the same time."""
    times = np.concatenate([log[:, CAME], log[:, ANSWERED]])
    steps = np.repeat([1, -1], len(log))[np.argsort(times, kind="stable")]
    return int(np.cumsum(steps).max(initial=0))


def longest_chain(log: np.ndarray) -> np.ndarray:
    """Reads each of which came after the one before it was answered: as many as there are."""
    chain, end = [], -1
    for read in log[np.argsort(log[:, ANSWERED], kind="stable")]:
        if read[CAME] >= end:
            chain.append(read)
            end = read[ANSWERED]
    return np.array(chain, np.int64).reshape(-1, log.shape[1])
