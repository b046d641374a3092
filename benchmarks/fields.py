"""Batches of features alone: rows of 2 and 16 kB, and T5's of about 1 MB, from memory and disk.

    python benchmarks/fields.py TAR... [--small N] [--long N] [--rounds N] [--folder DIR]

A photograph of the tars, shrunk to 32 pixels, is packed `--small` times, and `--long` times. The
first pack gets `short`, float16 (1024,), and `latent`, float16 (4, 32, 64) per image, the second
one `t5`, float16 (n, 4096) with 64 to 192 tokens, and `caption`, a text. Nobody reads an image:
`Loader(ds, ..., fields=[...])`.

From memory, every way takes all batches in turn, `--rounds` times: the Loader with its defaults but
2 threads, and the ceiling, the same rows copied past the processor's caches by 2 threads in
compiled code, into as many buffers as the Loader has. From the disk, the pages of the features are
dropped before each way; the ceiling reads the same rows with O_DIRECT and Linux AIO, in the fastest
of several settings, and does nothing else. Figures are medians over the rounds, and a ratio is the
median of the ratios to the ceiling of the same round.
"""

import argparse
import io
import json
import statistics
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from synthetic import make_tar

import sa1bpack
from sa1bpack import Dataset, Loader
from sa1bpack.disk.page_cache import drop_pages, resident_bytes
from sa1bpack.kernels import njit
from sa1bpack.loading.batch.put import stream_copy
from sa1bpack.measuring.ceilings import read_spans

THREADS = 2
BUFFERS = 4
BLOCK = 4096
SHORT = (1024,)
LATENT = (4, 32, 64)
TOKENS = (64, 193)
WIDTH = 4096
# The part of the rows that may be in memory before they are read from the disk.
LEFT = 0.01
# Threads, and samples that each requests together: the settings of the ceiling of the disk.
DIRECT = ((2, 8), (4, 8), (8, 4))


class Task(NamedTuple):
    """What is read: fields of a dataset, all samples in random order.

    Attributes:
        name: what the rows are.
        ds: the dataset.
        fields: of the batches.
        batch: samples per batch.
        spans: of each sample, the file of its rows, first byte and number of bytes.
        maps: address of each file in memory.
    """

    name: str
    ds: Dataset
    fields: list[str]
    batch: int
    spans: list[tuple[str, int, int]]
    maps: dict[str, int]

    @property
    def bytes(self) -> int:
        """Bytes of an epoch."""
        return sum(count for _, _, count in self.spans)


def small_tar(tars: list[Path], out: Path) -> None:
    """A tar of one photograph of 32 pixels, without masks."""
    with tarfile.open(tars[0]) as tar:
        jpegs = (member for member in tar if member.name.endswith(".jpg"))
        photo = Image.open(io.BytesIO(tar.extractfile(next(jpegs)).read())).resize((32, 24))
    jpeg = io.BytesIO()
    photo.save(jpeg, "JPEG")
    image = {"image_id": 1, "width": 32, "height": 24, "file_name": "sa_1.jpg"}
    record = json.dumps({"image": image, "annotations": []}).encode()
    with tarfile.open(out, "w") as tar:
        for name, data in (("./sa_1.jpg", jpeg.getvalue()), ("./sa_1.json", record)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def pack_of(tars: list[Path], folder: Path, name: str, images: int) -> Path:
    """A pack of so many tiny images."""
    small_tar(tars, folder / "sa_small.tar")
    tar = folder / f"sa_{name}.tar"
    make_tar([folder / "sa_small.tar"], tar, images, masks=None, level=0)
    options = {"image_size": 16, "mask_size": 16, "progress": False}
    sa1bpack.pack(tar, folder / name, samples_per_shard=max(images // 4, 1), **options)
    return folder / name


def tasks(tars: list[Path], folder: Path, small: int, long: int) -> list[Task]:
    """The features of two packs."""
    rng = np.random.default_rng(0)
    root = pack_of(tars, folder, "latents", small)
    ds = sa1bpack.open(root)
    latents = rng.standard_normal((small, *LATENT), np.float32).astype(np.float16)
    sa1bpack.attach(ds, "latent", latents, ds.column("image_id"), progress=False)
    short = rng.standard_normal((small, *SHORT), np.float32).astype(np.float16)
    sa1bpack.attach(ds, "short", short, ds.column("image_id"), progress=False)
    of_latents = [
        task("rows of 2 kB", root, ["short"], batch=256),
        task("latents of 16 kB", root, ["latent"], batch=256),
    ]
    root = pack_of(tars, folder, "tokens", long)
    ds = sa1bpack.open(root)
    ids = ds.column("image_id").tolist()
    rows = {}
    for image in ids:
        tokens = int(rng.integers(*TOKENS))
        rows[image] = rng.standard_normal((tokens, WIDTH), np.float32).astype(np.float16)
    sa1bpack.attach(ds, "t5", rows, shape=(None, WIDTH), progress=False)
    captions = {image: f"a photograph of number {image}" for image in ids}
    sa1bpack.attach(ds, "caption", captions, progress=False)
    return [*of_latents, task("T5 of 1 MB, and captions", root, ["t5", "caption"], batch=16)]


def task(name: str, root: Path, fields: list[str], batch: int) -> Task:
    """The task of reading fields of a pack, of which the first one has nearly all bytes."""
    ds = sa1bpack.open(root, features=fields)
    spans = []
    maps = {}
    for number in range(len(ds.shards)):
        feature = ds.shards.open(number).features[0]
        maps[feature.path] = feature.values.ctypes.data
        edges = feature.offset
        if edges is None:
            edges = np.arange(len(feature.values) + 1)
        nbytes = feature.spec.row_bytes
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            spans.append((feature.path, begin * nbytes, (end - begin) * nbytes))
    return Task(name, ds, fields, batch, spans, maps)


# ------------------------------------------------------------------------------------------- ways


@njit
def copy_all(jobs: np.ndarray) -> None:
    """Copy (target, source, bytes) of each row of int64 (n, 3)."""
    for n in range(len(jobs)):
        stream_copy(jobs[n, 0], jobs[n, 1], jobs[n, 2])


def copying(of: Task) -> Callable[[int], float]:
    """2 threads copy rows from maps into reused buffers, in compiled code."""
    most = max(count for _, _, count in of.spans)
    memory = np.zeros((BUFFERS, (of.batch + 1) * most + BLOCK), np.uint8)

    def seconds(seed: int) -> float:
        order = np.random.default_rng(seed).permutation(len(of.spans)).tolist()
        batches = []
        for first in range(0, len(order), of.batch):
            buffer = memory[len(batches) % BUFFERS].ctypes.data
            target = -(-buffer // BLOCK) * BLOCK
            jobs = []
            for index in order[first : first + of.batch]:
                path, begin, count = of.spans[index]
                jobs.append((target, of.maps[path] + begin, count))
                target += count
            batches.append(np.array(jobs, np.int64))

        def copy(number: int) -> None:
            for jobs in batches[number::THREADS]:
                copy_all(jobs)

        threads = [threading.Thread(target=copy, args=(n,)) for n in range(THREADS)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    return seconds


def loading(of: Task, resources: ExitStack, **options) -> Callable[[int], float]:
    """Epochs of a Loader, which keeps its buffers; rows of any length follow one another."""
    loader = Loader(
        of.ds, of.batch, fields=of.fields, shuffle=True, mask_layout="concat", **options
    )
    resources.enter_context(loader)

    def seconds(seed: int) -> float:
        loader.set_epoch(seed)
        begin = time.perf_counter()
        samples = sum(len(batch["image_ids"]) for batch in loader)
        taken = time.perf_counter() - begin
        assert samples == len(of.ds)
        return taken

    return seconds


def reading(of: Task) -> Callable[[int], float]:
    """The same rows with O_DIRECT, by the fastest of several settings."""

    def seconds(seed: int) -> float:
        order = np.random.default_rng(seed).permutation(len(of.spans)).tolist()
        spans = [[of.spans[index]] for index in order]
        return min(
            read_spans(spans, threads, at_once=at_once).seconds for threads, at_once in DIRECT
        )

    return seconds


def check(of: Task) -> None:
    """Raise SystemExit unless batches have the rows of their images."""
    column = of.ds.column(of.fields[0])
    ids = of.ds.column("image_id").tolist()
    places = {image: place for place, image in enumerate(ids)}
    for batch in Loader(of.ds, of.batch, fields=of.fields, shuffle=True):
        lengths = batch.get(f"{of.fields[0]}_lengths")
        for k, image in enumerate(batch["image_ids"].tolist()):
            row = batch[of.fields[0]][k].numpy()
            if lengths is not None:
                row = row[: int(lengths[k])]
            if not np.array_equal(row, column[places[image]]):
                raise SystemExit(f"{of.name}: image {image} has another row in a batch")


def measured(of: Task, ways: dict[str, Callable[[int], float]], rounds: int, cold: bool) -> None:
    """Time the ways in turn, the first of which is the ceiling, and print their lines."""
    files = [Path(path) for path in of.maps]
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, seconds in ways.items():
            if cold:
                drop_pages(files)
                if resident_bytes(files) > LEFT * of.bytes:
                    raise SystemExit(f"{of.name}: pages stay in memory; is DIR on a disk?")
            speed = len(of.spans) / seconds(number + 1)
            if number >= 0:
                found[name].append(speed)
    ceilings = found[next(iter(ways))]
    for name, speeds in found.items():
        speed = statistics.median(speeds)
        ratio = statistics.median(a / b for a, b in zip(speeds, ceilings, strict=True))
        mega = speed * of.bytes / len(of.spans) / 1e6
        print(f"| {of.name} | {name} | {speed:.0f} | {mega:.0f} | {ratio:.2f} |")


def main() -> None:
    """Make the packs, check what is read, time the ways, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take a photograph from")
    parser.add_argument("--small", type=int, default=16384, help="rows of 16 kB (16384)")
    parser.add_argument("--long", type=int, default=512, help="rows of about 1 MB (512)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (5)")
    parser.add_argument("--folder", type=Path, help="folder for the packs (a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        both = tasks(options.tars, Path(name), options.small, options.long)
        print("| rows | way | samples/s | MB/s | of the ceiling |\n|---|---|---:|---:|---:|")
        for of in both:
            with ExitStack() as resources:
                cold = {
                    "disk: O_DIRECT (ceiling)": reading(of),
                    "disk: Loader": loading(of, resources, io="direct"),
                }
                measured(of, cold, options.rounds, cold=True)  # before any page is mapped
                check(of)
                warm = {
                    "memory: copy past the caches, 2 threads (ceiling)": copying(of),
                    "memory: Loader": loading(of, resources, threads=THREADS, io="cached"),
                }
                measured(of, warm, options.rounds, cold=False)


if __name__ == "__main__":
    main()
