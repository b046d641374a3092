"""The parts of gpu.py that run other people's steps and loaders, on the CPU."""

import random
import time
from pathlib import Path

import torch
from gpu_parts import Options, Report


def sam2(options: Options, report: Report) -> None:
    """SAM 2's steps for its own training on SA-1B; speeds in samples per second of one core."""
    from pipeline import read_photos, sam2_sample

    torch.set_num_threads(1)
    photos = list(read_photos(options.tars, 2, 3).values())
    draw = random.Random(0)
    for number in range(options.rounds):
        start = time.perf_counter()
        for photo in photos:
            sam2_sample(photo, 3, draw)
        taken = (time.perf_counter() - start) / len(photos)
        report(way="SAM 2's steps, 3 masks", round=number, speed=1 / taken, unit="samples/s")


def peers(options: Options, report: Report) -> None:
    """FFCV on the samples of the default pack, into memory of the host; samples per second."""
    from peers import PeerError, open_peers

    if not options.peers:
        report(peers="not run: `make peers` installs them, --peers names their Python")
        return
    pack, folder = Path(options.folder) / "default", Path(options.folder)
    with open_peers(pack, folder, options.batch, options.peers, ["ffcv_raw"]) as found:
        ways, failures, notes = found
        for name, reason in failures.items():
            report(way=name, error=reason)
        for note in notes:
            report(note=note)
        for number in range(options.rounds):
            for name, way in ways.items():
                with way(None) as epoch:
                    epoch.prepare()
                    start = time.perf_counter()
                    try:
                        samples = epoch()
                    except PeerError as error:
                        report(way=name, error=str(error))
                        continue
                    taken = time.perf_counter() - start
                    report(way=name, round=number, speed=samples / taken, unit="samples/s")
