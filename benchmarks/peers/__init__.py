"""Other loaders on the same samples, each in its own process, as methods of load.py and cold.py.

A module of this package stores the samples in a peer's format and reads them back:

    DISTRIBUTION                          its name in pip
    WAYS                                  row of the table → {name of a setting: its arguments};
                                          the fastest setting is shown
    prepare(samples, folder)              write the peer's format
    open_reader(folder, batch, **setting) → Epoch: order of rows → batches (see samples.py)
    NOTES                                 optional: row of the table → remarks

Peers need other versions of common libraries than sa1bpack, and some install Pillow, which would
overwrite pillow-simd. They therefore have a separate environment (requirements-peers.txt), which
does not need sa1bpack: they read a pack's arrays with numpy.
"""

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# Module → name in the table if it cannot be started.
PEERS = {
    "ffcv_raw": "FFCV, raw fields",
    "loaderx": "loaderx",
    "spdl": "SPDL",
    "grain": "Grain",
    "lance": "Lance",
    "litdata": "LitData",
    "mosaic_streaming": "MosaicML Streaming",
    "webdataset": "WebDataset",
    "hf_datasets": "HF datasets",
    "tensorstore": "tensorstore",
    "zarr_python": "zarr-python",
}
TIMEOUT = 300  # seconds per command
_SEEDS = itertools.count()


class PeerError(Exception):
    """A peer is not installed, failed, or did not read the samples that were written."""


class Peer:
    """The process of one peer. Every method raises PeerError if the peer failed."""

    def __init__(self, module: str, python: str, pack: Path, folder: Path, batch: int):
        folder.mkdir(parents=True)
        self._log = folder / "log.txt"
        self._answers = b""
        command = [python, "-m", "peers.worker", module, str(pack), str(folder), str(batch)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[1],
                env=os.environ | _environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # so that its workers can be ended with it
            )

    def start(self) -> dict:
        """Wait for its imports and make it write its format: {"version", "ways", "notes"}."""
        self._answer()
        return self.ask("prepare")

    def ask(self, *command) -> dict:
        """Send a command and wait for its answer."""
        with suppress(BrokenPipeError):  # it has ended; the reason is in its log
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return self._answer()

    def _answer(self) -> dict:
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._answers:
            if not select.select([pipe], [], [], TIMEOUT)[0]:
                self._kill()
                raise PeerError(f"no answer in {TIMEOUT} s")
            data = os.read(pipe, 1 << 16)
            if not data:
                code = self._process.wait()
                raise PeerError(f"ended with exit code {code}: {self._last_words()}")
            self._answers += data
        line, self._answers = self._answers.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"].splitlines()[0])
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next(
            (line.strip() for line in reversed(lines) if line.strip()), "it printed nothing"
        )

    def cpu_seconds(self) -> float:
        """CPU time so far of the process and of its workers that are running (Linux)."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:  # its session, which it leads
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process and its workers."""
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._kill()
        self._process.wait()
        self._process.stdout.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # its group has no processes left
            os.killpg(self._process.pid, signal.SIGKILL)


def environment_python(python: str) -> str:
    """The path of an interpreter, not resolved: in an environment a link, which identifies it."""
    return str(Path.cwd() / (shutil.which(python) or python))


def _environment(folder: Path) -> dict[str, str]:
    """No network, files only in the folder, and no warnings that hide the error in the log."""
    return {
        "TMPDIR": str(folder),
        "DATA_OPTIMIZER_CACHE_FOLDER": str(folder / "litdata"),
        "HF_HOME": str(folder / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }


@contextmanager
def open_peers(
    pack: Path, folder: Path, batch: int, python: str, only: list[str] | None = None
) -> Iterator[tuple[dict[str, Callable], dict[str, str], list[str]]]:
    """Start all peers, check the samples that they read, and find their best settings.

    Args:
        pack: a pack of one shard with the same number of masks in every sample.
        folder: for the files of the peers.
        batch: samples per batch.
        python: the interpreter of the peers' environment.
        only: keys of PEERS; all by default.

    Yields (ways, failures, notes): ways as in `load.py`; name → reason of those that do not run;
    for the others a line with version and setting.
    """
    python = environment_python(python)
    pack, folder = pack.resolve(), folder.resolve()
    ways, failures, notes = {}, {}, []
    with ExitStack() as stack:
        for module in only or PEERS:
            _say(module)
            peer = Peer(module, python, pack, folder / "peers" / module, batch)
            stack.callback(peer.close)
            try:
                about = peer.start()
            except PeerError as error:
                failures[PEERS[module]] = str(error)
                continue
            for name in about["ways"]:
                try:
                    chosen = peer.ask("choose", name)
                except PeerError as error:
                    failures[name] = str(error)
                    continue
                ways[name] = _way(peer, name)
                notes.append(_note(name, about, chosen))
        yield ways, failures, notes


def _way(peer: Peer, name: str) -> Callable:
    @contextmanager
    def way(task) -> Iterator[Callable[[], int]]:
        def epoch() -> int:
            return peer.ask("epoch", name)["samples"]

        epoch.prepare = lambda: peer.ask("order", next(_SEEDS))
        yield epoch

    return way


def _note(name: str, about: dict, chosen: dict) -> str:
    settings = len(chosen["speeds"])
    best = f", the fastest of {settings} settings" if settings > 1 else ""
    known = f". {about['notes'][name]}" if name in about["notes"] else ""
    return f"{name}: version {about['version']}; {chosen['setting']}{best}{known}"


def _say(module: str) -> None:
    if sys.stderr.isatty():
        print(f"preparing {PEERS[module]}", file=sys.stderr)
