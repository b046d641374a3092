"""The process of one peer: `python -m peers.worker MODULE PACK FOLDER BATCH`, run by peers.Peer.

It reads commands from standard input, one JSON list per line, and answers each with one line, a
JSON object. The output of the peer goes to standard error.

    prepare                write the samples in the peer's format
    choose WAY             check every setting of the method and keep the fastest
    settings WAY           names of the settings of the method
    use WAY SETTING        check this setting, and keep it
    only WAY               close the readers of other methods, open this one's unless it is
    reopen WAY             open its files again; no page of a file stays mapped
    unmap                  no page of a file stays mapped
    order SEED             draw the order of the next epoch, collect garbage
    epoch WAY              read all samples once; answers when it is done
    remote WAY SETTING URL FOLDER CHECK   open the files at a URL, with an empty cache in a folder,
                           read all samples once, or compare them; then close
    remote_settings        names of the settings of each method that reads URLs
"""

import argparse
import ctypes
import gc
import importlib
import json
import os
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from peers.samples import Epoch, Samples

TIMED_EPOCHS = 3
_DONT_NEED = 4  # MADV_DONTNEED


class Worker:
    """Runs a peer's module. Commands are its methods; their results are the answers."""

    def __init__(self, module: str, pack: Path, folder: Path, batch_size: int):
        self.module = importlib.import_module(f"peers.{module}")
        self.samples = Samples(pack)
        self.folder = folder
        self.batch_size = batch_size
        self.pack = pack
        self.readers: dict[str, Epoch] = {}
        self.used: dict[str, dict] = {}  # arguments by method
        self.next_order = np.arange(len(self.samples))

    def prepare(self) -> dict:
        """Write the peer's format."""
        self.module.prepare(self.samples, self.folder)
        return {
            "version": version(self.module.DISTRIBUTION),
            "ways": list(self.module.WAYS),
            "notes": getattr(self.module, "NOTES", {}),
        }

    def choose(self, way: str) -> dict:
        """Check every setting and keep the one with the best median speed."""
        speeds = {}
        for name, setting in self.module.WAYS[way].items():
            self.readers.pop(way, None)
            reader = self.readers[way] = self._open(setting)
            check(reader, self.samples, self.batch_size)
            speeds[name] = statistics.median(self._speed(way) for _ in range(TIMED_EPOCHS))
        best = max(speeds, key=speeds.__getitem__)
        if best != name:  # the last one tested is still open
            del reader
            self.readers[way] = self._open(self.module.WAYS[way][best])
        return {"setting": best, "speeds": speeds}

    def settings(self, way: str) -> dict:
        """Names of the settings of the method."""
        return {"settings": list(self.module.WAYS[way])}

    def use(self, way: str, name: str) -> dict:
        """Check a setting and keep it."""
        self.readers.pop(way, None)
        self.used[way] = self.module.WAYS[way][name]
        reader = self.readers[way] = self._open(self.used[way])
        check(reader, self.samples, self.batch_size)
        self.samples = Samples(self.pack)  # the maps of the old one would keep pages in memory
        return {}

    def only(self, way: str) -> dict:
        """Close the readers of other methods: their workers have files mapped."""
        for other in self.readers.keys() - {way}:
            del self.readers[other]
        gc.collect()
        if way not in self.readers:
            self.readers[way] = self._open(self.used[way])
        return {}

    def reopen(self, way: str) -> dict:
        """Open the files of the method again, and unmap the pages of all files in the folder."""
        del self.readers[way]
        self.readers[way] = self._open(self.used[way])
        return self.unmap()

    def unmap(self) -> dict:
        """Unmap the pages of all files that peers read: their own, and the pack's."""
        unmap_pages(self.folder)
        unmap_pages(self.pack)
        return {}

    def remote_settings(self) -> dict:
        """Names of the settings of each method that reads URLs."""
        return {way: list(settings) for way, settings in self.module.REMOTE_WAYS.items()}

    def remote(self, way: str, setting: str, url: str, folder: str, compare: bool) -> dict:
        """Seconds to the first batch and to the end of an epoch, opening included."""
        arguments = self.module.REMOTE_WAYS[way][setting]
        gc.collect()
        start = time.perf_counter()
        reader = self.module.open_remote(url, Path(folder), self.batch_size, **arguments)
        if compare:
            check(reader, self.samples, self.batch_size)
            return {}
        samples = 0
        first = None
        for batch in reader(self.next_order):
            if first is None:
                first = time.perf_counter() - start
            samples += len(batch[0])
        return {"first": first, "seconds": time.perf_counter() - start, "samples": samples}

    def _open(self, setting: dict) -> Epoch:
        gc.collect()
        return self.module.open_reader(self.folder, self.batch_size, **setting)

    def _speed(self, way: str) -> float:
        self.order(int(time.monotonic_ns()))
        start = time.perf_counter()
        return self.epoch(way)["samples"] / (time.perf_counter() - start)

    def order(self, seed: int) -> dict:
        """Draw the order of the next epoch."""
        self.next_order = np.random.default_rng(int(seed)).permutation(len(self.samples))
        gc.collect()
        return {}

    def epoch(self, way: str) -> dict:
        """Take all batches and do nothing with them."""
        return {"samples": sum(len(batch[0]) for batch in self.readers[way](self.next_order))}


def unmap_pages(folder: Path) -> None:
    """Unmap the pages of files in a folder that this process only reads; maps stay valid."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *path = line.split(maxsplit=5)
        path = "".join(path)
        if path.startswith(f"{folder}/") and "w" not in access:
            start, stop = (int(number, 16) for number in addresses.split("-"))
            if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _DONT_NEED):
                raise OSError(ctypes.get_errno(), "madvise failed", path)


def check(reader: Epoch, samples: Samples, batch_size: int) -> None:
    """Compare one epoch with the source byte for byte. Raises ValueError if they differ."""
    order = np.random.default_rng(1).permutation(len(samples))
    seen = []
    for rows, images, masks in reader(order):
        rows, images, masks = (np.asarray(array) for array in (rows, images, masks))
        if images.dtype != np.uint8 or masks.dtype != np.uint8:
            raise ValueError(f"a batch has {images.dtype} and {masks.dtype}, not uint8")
        for row, image, mask in zip(rows, images, masks, strict=True):
            same = np.array_equal(image, samples.images[row])
            if not same or not np.array_equal(mask, samples.masks[row]):
                raise ValueError(f"sample {row} differs from the sample written")
        seen += rows.tolist()
    if sorted(seen) != list(range(len(samples))):
        raise ValueError(f"an epoch had {len(seen)} samples, not each of {len(samples)} once")


def serve(worker: Worker, commands, answers) -> None:
    """Run commands until the input ends; an exception is an answer as well."""
    for line in commands:
        name, *arguments = json.loads(line)
        try:
            answer = getattr(worker, name)(*arguments)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Reserve standard output for answers, whatever the peer prints; then serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module")
    parser.add_argument("pack", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("batch", type=int)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        worker = Worker(options.module, options.pack, options.folder, options.batch)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print("{}", file=answers, flush=True)
    serve(worker, sys.stdin, answers)


if __name__ == "__main__":
    main()
