"""Long runs do not grow: memory, descriptors, threads and memory maps stay constant.

Each run is a separate process, this file as a script, which prints its measurements: they are then
those of the packer or of the loader alone.
"""

import json
import os
import re
import statistics
import sys
import threading
from pathlib import Path

import psutil
import pytest
from commands import python
from small_tars import members, photo, record, write_tar

PHOTOS = 32  # different photos; the tar repeats them under other ids
MASKS = 2
# Allocators round up and keep freed memory. A leak of one Python object per sample would be a
# hundred times as much over the full run, and ten times as much over the short one.
MOST_GROWTH = 4  # MiB
PARTS = 10  # of a run; caches fill in the first one


def many_pairs(images: int) -> dict[str, bytes]:
    """Members of a tar of `images` small images with different ids."""
    records = [json.dumps(record(number, MASKS)) for number in range(PHOTOS)]
    found = members(range(PHOTOS), MASKS)
    for number in range(PHOTOS, images):
        like = number % PHOTOS
        text = records[like].replace(f'"image_id": {like},', f'"image_id": {number},')
        found[f"./sa_{number}.jpg"] = photo(like)
        found[f"./sa_{number}.json"] = text.replace(f"sa_{like}.jpg", f"sa_{number}.jpg").encode()
    return found


def usage(process: psutil.Process) -> dict[str, float]:
    """Anonymous memory, descriptors, threads, memory maps.

    Pages of mapped files are not counted: they belong to the page cache.
    """
    status = Path(f"/proc/{process.pid}/status").read_text()
    pages = dict(re.findall(r"^(RssAnon|VmSwap):\s+(\d+) kB", status, re.M))
    return {
        "MiB of memory": sum(map(int, pages.values())) / 1024,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "maps": len(process.memory_maps(grouped=False)),
    }


def pack_and_watch(tar: str, out: str, options: str) -> None:
    """Pack with one worker and print the usage of the process ten times per second."""
    import sa1bpack

    me, over = psutil.Process(), threading.Event()

    def watch():
        while not over.wait(0.1):
            print(json.dumps(usage(me)), flush=True)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        sa1bpack.pack(tar, out, workers=1, **json.loads(options))
    finally:
        over.set()
        watcher.join()


def load_and_watch(pack: str, epochs: str) -> None:
    """Iterate over a pack and print the usage of the process in the middle of every epoch."""
    import sa1bpack

    me = psutil.Process()
    with sa1bpack.Loader(sa1bpack.open(pack), 64, device="cpu", order="local", threads=2) as loader:
        for _ in range(int(epochs)):
            samples = 0
            for number, batch in enumerate(loader):
                samples += len(batch["image_ids"])
                if number == 2:
                    found = usage(me)
            print(json.dumps(found | {"samples": samples}), flush=True)


def watched(work, *arguments) -> list[dict[str, int]]:
    """The output of `work`, run in its own process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = python(__file__, work.__name__, *arguments, quiet=False, env=environment)
    return [json.loads(line) for line in output.splitlines()]


def check_flat(found: list[dict[str, float]], first: int, threads: int = 0) -> str:
    """Assert that nothing grew between part `first` and the last one; returns the measurements.

    Args:
        threads: the number of threads by which it may have grown.
    """
    assert len(found) >= 2 * PARTS
    edges = [len(found) * part // PARTS for part in (first, first + 1, PARTS - 1)]
    early, late = found[slice(*edges[:2])], found[edges[2] :]
    grown = {"MiB of memory": MOST_GROWTH, "descriptors": 4, "threads": threads}
    said = []
    for key, most in (grown | {"maps": 8 + 4 * threads}).items():
        before, after = (
            statistics.median_low(each[key] for each in part) for part in (early, late)
        )
        assert after - before <= most, f"{key}: {before} in part {first}, {after} at the end"
        said.append(f"{before:.0f} → {after:.0f} {key}")
    return ", ".join(said)


@pytest.fixture(scope="module")
def images(request) -> int:
    return 20_000 if request.config.getoption("torture") else 1_500


@pytest.fixture(scope="module")
def big_tar(tmp_path_factory, images) -> Path:
    return write_tar(tmp_path_factory.mktemp("long") / "sa_000000.tar", many_pairs(images))


OPTIONS = {"image_size": 32, "mask_size": 8, "samples_per_shard": 500}


def test_packing_holds_few_descriptors_and_does_not_grow(big_tar, tmp_path, images, torture):
    found = watched(pack_and_watch, big_tar, tmp_path / "packed", json.dumps(OPTIONS))
    # 18 each for the shard being filled, the next one, and the four being published.
    peak = max(usage["descriptors"] for usage in found)
    assert peak < 256
    if torture.full:
        # Those that write are made as they are needed, one for each open shard.
        said = check_flat(found, first=3, threads=3)
        torture.record("one pack, long", images, f"{said}; at most {peak} descriptors")


def test_the_loader_does_not_grow(big_tar, tmp_path, images, torture):
    import sa1bpack

    sa1bpack.pack(big_tar, tmp_path / "packed", workers=1, **OPTIONS)
    epochs = torture.rounds(20, 200)
    found = watched(load_and_watch, tmp_path / "packed", epochs)
    assert [usage["samples"] for usage in found] == [images] * epochs
    said = check_flat(found, first=1)
    torture.record("epochs of the Loader", epochs, f"{said}; {images * epochs:,} samples")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
