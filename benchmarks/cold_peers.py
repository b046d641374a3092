"""Other loaders as lines of cold.py: their files are dropped from the page cache as well.

They store the samples of a pack of one shard in their own formats, in a temporary folder, in a
process each (see peers). What they read is compared with the pack first. Then each of a method's
settings reads all samples once from the disk, and the fastest is kept.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from page_cache import drop_all
from peers import PEERS, Peer, PeerError, environment_python

from sa1bpack.disk.page_cache import drop_pages, resident_bytes

# Module → settings of it that make no sense here, by a part of their names.
COLD_PEERS = {
    "ffcv_raw": "OS cache",  # os_cache=True is for data that fits in memory
    "loaderx": None,
    "spdl": None,
    "grain": None,
    "lance": None,
    "litdata": None,
    "mosaic_streaming": None,
    "hf_datasets": None,
    "tensorstore": None,
}
# Methods that are not measured.
_EXCLUDED = {
    "tensorstore, pack held in its cache",  # reads from memory
    "LitData, 2 workers",  # they keep files mapped, and starting new ones takes seconds
}


class ColdPeer:
    """One method of a peer, with one setting."""

    def __init__(self, peer: Peer, peers: list[Peer], folder: Path, way: str, everything: bool):
        self._peer, self._folder, self._way, self._everything = peer, folder, way, everything
        self._peers = peers

    def files(self) -> list[Path]:
        """What it reads: its own files, or the pack that it has a link to."""
        folders = [self._folder, (self._folder / "pack").resolve()]
        return [path for folder in folders for path in folder.rglob("*") if path.is_file()]

    def drop(self) -> None:
        """Drop the pages of its files. Raises PeerError if more than 1 % remain.

        Pages that a process has mapped remain: the others unmap theirs of the pack, and it opens
        its files again if it has to.
        """
        for peer in self._peers:
            if peer is not self._peer:
                peer.ask("unmap")
        if self._everything:
            drop_all()
        self._peer.ask("only", self._way)
        files = self.files()
        size = sum(path.stat().st_size for path in files)
        for again in (True, False):
            drop_pages(files)
            left = resident_bytes(files)
            if left <= size / 100:
                return
            if again:
                self._peer.ask("reopen", self._way)
        raise PeerError(f"{left / 1e6:.0f} of {size / 1e6:.0f} MB remain in the page cache")

    def read(self, seed: int) -> tuple[float, float, int]:
        """Seconds, CPU seconds of its processes and samples of an epoch, without opening."""
        self._peer.ask("order", seed)
        cpu, start = self._peer.cpu_seconds(), time.perf_counter()
        samples = self._peer.ask("epoch", self._way)["samples"]
        seconds = time.perf_counter() - start
        return seconds, self._peer.cpu_seconds() - cpu, samples

    def choose(self, without: str | None) -> str:
        """Check every setting, keep the fastest one; its name."""
        speeds = {}
        for name in self._peer.ask("settings", self._way)["settings"]:
            if without is None or without not in name:
                self._peer.ask("use", self._way, name)
                self.drop()
                seconds, _, samples = self.read(0)
                speeds[name] = samples / seconds
        best = max(speeds, key=speeds.__getitem__)
        if best != name:
            self._peer.ask("use", self._way, best)
        return best


@contextmanager
def open_cold_peers(
    pack: Path, parent: Path, batch: int, python: str, everything: bool, only: list[str]
) -> Iterator[tuple[dict[str, ColdPeer], dict[str, str], list[str]]]:
    """Start the peers, `only` some of them, make them write and check their files, and choose
    settings.

    Yields (ways, failures, notes): row of the table → method; → reason of one that does not run;
    and versions and settings, a line each.
    """
    ways, failures, notes = {}, {}, []
    peers: list[Peer] = []
    with ExitStack() as stack:
        root = Path(tempfile.mkdtemp(prefix="peers-", dir=parent.resolve()))
        stack.callback(shutil.rmtree, root)
        for module in only:
            without = COLD_PEERS[module]
            print(f"preparing {PEERS[module]}", file=sys.stderr, flush=True)
            folder = root / module
            peer = Peer(module, environment_python(python), pack.resolve(), folder, batch)
            stack.callback(peer.close)
            try:
                about = peer.start()
            except PeerError as error:
                failures[PEERS[module]] = str(error)
                continue
            peers.append(peer)
            for name in about["ways"]:
                if name in _EXCLUDED:
                    continue
                way = ColdPeer(peer, peers, folder, name, everything)
                try:
                    setting = way.choose(without)
                except PeerError as error:
                    failures[name] = str(error)
                    continue
                ways[name] = way
                notes.append(f"{name}: version {about['version']}; {setting}")
        yield ways, failures, notes
