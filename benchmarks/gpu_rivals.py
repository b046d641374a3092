"""The part of gpu.py that decodes JPEGs on the device instead: nvJPEG, and nvImageCodec.

Photographs of the tars are decoded, resized to the pack's size, padded and normalised; a Loader and
a Pipeline make the same images of the packs. No masks on either side, which a pack has as well.
"""

import importlib
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from gpu_parts import DEVICE, LEAST, Options, Report, opened, synchronize, time_ways
from gpu_training import AHEAD, vit_step
from torch.nn.functional import interpolate

from sa1bpack import Loader, transforms
from sa1bpack.transforms import SAM_MEAN, SAM_STD

BATCHES = (8, 32)
DEPTH = 2  # batches that a rival decodes ahead, in a thread and on a stream of its own

Decoder = Callable[[list[bytes]], list[torch.Tensor]]  # uint8 (3, H, W) each, on the device


def rivals(options: Options, report: Report) -> None:
    """Images from packs and from JPEGs; speeds in samples per second. "disk_mb" is what a sample
    takes on the disk. Then, with steps of a ViT-B: "taken_ms" is what a step takes longer than on a
    batch that stays, with batches made ahead."""
    photos = photographs(options)
    sizes = (2,) if options.rehearse else BATCHES
    decoders = found_decoders(report)
    mean_mb = statistics.mean(map(len, photos)) / 1e6
    for batch in sizes:
        ways = {}
        for name, pack, options_of in (
            ("Loader and pipeline, RGB", "default", {}),
            ("Loader and pipeline, planes", "compact", {"pixels": "stored"}),
        ):
            ds = opened(options, pack, **options_of).ds
            label = f"{name}, batches of {batch}"
            ways[label] = ours(ds, batch, options.side)
            report(way=label, disk_mb=image_mb(ds))
        for name, decode in decoders.items():
            label = f"{name} and resize, batches of {batch}"
            ways[label] = theirs(decode, photos, batch, options.side)
            report(way=label, disk_mb=mean_mb)
        time_ways(ways, options.rounds, report)
        if batch == options.batch or options.rehearse:
            taken_from_training(ways, batch, options, report)


def image_mb(ds) -> float:
    """MB of an image in a pack, by the average of the pack."""
    nbytes = 0
    for shard in ds.manifest.shards:
        for array, rows in ds.layout.array_rows(shard.lengths).items():
            if array.name == "image":
                nbytes += rows * array.row_bytes
    return nbytes / ds.manifest.samples / 1e6


def photographs(options: Options) -> list[bytes]:
    """The JPEGs of the tars."""
    from pipeline import read_photos

    return [jpeg for jpeg, _ in read_photos(options.tars, 64, 0).values()]


def found_decoders(report: Report) -> dict[str, Decoder]:
    """Decoders that are here; what is not, or fails, is reported."""
    decoders: dict[str, Decoder] = {}
    makers = {"nvJPEG by torchvision": by_torchvision, "nvImageCodec": by_nvimgcodec}
    if DEVICE.type == "cpu":
        makers["rehearsed with simplejpeg"] = by_simplejpeg
    for name, make in makers.items():
        try:
            decoders[name] = make()
        except Exception as error:
            report(way=name, error=f"{type(error).__name__}: {error}"[:300])
    return decoders


def by_torchvision() -> Decoder:
    """torchvision's decode_jpeg of a list, which uses nvJPEG on a CUDA device."""
    from torchvision.io import ImageReadMode, decode_jpeg

    known: dict[bytes, torch.Tensor] = {}  # which takes no time of the decoder

    def decode(jpegs: list[bytes]) -> list[torch.Tensor]:
        for jpeg in jpegs:
            if jpeg not in known:
                known[jpeg] = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
        data = [known[jpeg] for jpeg in jpegs]
        return decode_jpeg(data, mode=ImageReadMode.RGB, device=DEVICE)

    return decode


def by_nvimgcodec() -> Decoder:
    """nvImageCodec's decoder, which chooses the hardware's or nvJPEG's."""
    extend_package("nvidia", "nvimgcodec")
    from nvidia import nvimgcodec

    decoder = nvimgcodec.Decoder()

    def decode(jpegs: list[bytes]) -> list[torch.Tensor]:
        stream = torch.cuda.current_stream().cuda_stream
        images = decoder.decode(jpegs, cuda_stream=stream)
        if any(image is None for image in images):
            raise RuntimeError("nvImageCodec returns None for a photograph: its log says why")
        return [torch.from_dlpack(image).permute(2, 0, 1) for image in images]

    return decode


def extend_package(name: str, part: str) -> None:
    """Let a package have a part that is installed in another folder than the package itself.

    Where one of the wheels that share a package brings an `__init__.py`, Python looks for all parts
    in that wheel's folder alone.
    """
    package = importlib.import_module(name)
    for entry in sys.path:
        folder = str(Path(entry) / name)
        if (Path(folder) / part).is_dir() and folder not in list(package.__path__):
            package.__path__.append(folder)


def by_simplejpeg() -> Decoder:
    """In place of these, where there is no device."""
    import simplejpeg

    def decode(jpegs: list[bytes]) -> list[torch.Tensor]:
        return [torch.from_numpy(simplejpeg.decode_jpeg(jpeg)).permute(2, 0, 1) for jpeg in jpegs]

    return decode


def prepared(images: list[torch.Tensor], side: int) -> torch.Tensor:
    """bfloat16 (B, 3, side, side): resized with antialiasing, normalised and padded."""
    made = torch.zeros((len(images), 3, side, side), dtype=torch.bfloat16, device=DEVICE)
    mean = torch.tensor(SAM_MEAN, device=DEVICE)[:, None, None]
    std = torch.tensor(SAM_STD, device=DEVICE)[:, None, None]
    for canvas, image in zip(made, images, strict=True):
        scale = side / max(image.shape[1:])
        height, width = (int(length * scale + 0.5) for length in image.shape[1:])
        resized = interpolate(
            image[None].float(), (height, width), mode="bilinear", antialias=True
        )[0]
        canvas[:, :height, :width] = (resized - mean) / std
    return made


def theirs(decode: Decoder, photos: list[bytes], batch: int, side: int):
    """A way of `time_ways`: batches of random photographs, decoded and resized."""

    @contextmanager
    def way() -> Iterator[Callable]:
        def batches() -> Iterator[torch.Tensor]:
            random = np.random.default_rng(0)
            while True:
                chosen = random.integers(0, len(photos), batch)
                yield prepared(decode([photos[number] for number in chosen]), side)

        yield lambda: _Batches(batches())

    return way


def ours(ds, batch: int, side: int):
    """A way of `time_ways`: images of a Loader, from a Pipeline."""
    pipeline = transforms.Pipeline(ds, dtype=torch.bfloat16, size=side)
    fields = ["images", "sizes", "image_ids"]

    @contextmanager
    def way() -> Iterator[Callable]:
        with Loader(
            ds, batch, shuffle=True, device=DEVICE, fields=fields, prefetch=4, io="cached"
        ) as loader:
            yield lambda: _Batches(pipeline(made)["images"] for made in loader)

    return way


class _Batches:
    """Batches of images: an iterator of their numbers of samples, whose last batch is `images`."""

    def __init__(self, batches: Iterator[torch.Tensor]):
        self._batches = batches
        self.images: torch.Tensor | None = None

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> int:
        self.images = next(self._batches)
        return len(self.images)


# --------------------------------------------------------------------------------------- training


def taken_from_training(
    ways: dict[str, Callable], batch: int, options: Options, report: Report
) -> None:
    """What steps of a ViT-B take longer where each has a new batch. JPEGs are decoded ahead."""
    step = vit_step(options.side)
    stays = torch.zeros((batch, 3, options.side, options.side), dtype=torch.bfloat16, device=DEVICE)
    _step_ms(step, repeat(stays))  # chooses kernels
    failed = set()
    for number in range(options.rounds):
        base = _step_ms(step, repeat(stays))
        report(way="ViT-B, one batch", round=number, speed=1e3 / base, unit="steps/s", ms=base)
        for name, way in ways.items():
            if name in failed:
                continue
            label = f"ViT-B, {name}"
            try:
                with way() as begin, _ahead(begin(), "Loader" not in name) as images:
                    taken = _step_ms(step, images)
            except Exception as error:
                failed.add(name)
                report(way=label, error=f"{type(error).__name__}: {error}"[:300])
                continue
            report(
                way=label, round=number, speed=1e3 / taken, unit="steps/s", ms=taken,
                taken_ms=taken - base,
            )  # fmt: skip


def _step_ms(step: Callable[[torch.Tensor], None], images: Iterator[torch.Tensor]) -> float:
    """Milliseconds of a step, of as many as take LEAST seconds."""
    done = [torch.cuda.Event() for _ in range(AHEAD)] if DEVICE.type == "cuda" else []
    step(next(images))
    synchronize()
    start = time.perf_counter()
    number = 0
    while number < 2 or time.perf_counter() - start < LEAST:
        if done:
            done[number % AHEAD].synchronize()
        step(next(images))
        if done:
            done[number % AHEAD].record()
        number += 1
    synchronize()
    return 1e3 * (time.perf_counter() - start) / number


@contextmanager
def _ahead(batches: _Batches, in_thread: bool) -> Iterator[Iterator[torch.Tensor]]:
    """The images of batches; made by a thread, on a stream of its own, or by the caller."""
    if not in_thread:
        yield (batches.images for _ in batches)
        return
    made: queue.Queue = queue.Queue(DEPTH)
    over = threading.Event()
    worker = threading.Thread(target=_make_ahead, args=(batches, made, over))
    worker.start()
    try:
        yield _taken(made)
    finally:
        over.set()
        while worker.is_alive():
            with suppress(queue.Empty):
                made.get(timeout=0.05)
        worker.join()


def _make_ahead(batches: _Batches, made: queue.Queue, over: threading.Event) -> None:
    """In the thread: make batches until it is over; the last item may be an error."""
    try:
        if DEVICE.type != "cuda":
            while not over.is_set():
                next(batches)
                made.put((batches.images, None))
            return
        with torch.cuda.stream(torch.cuda.Stream()):
            while not over.is_set():
                next(batches)
                event = torch.cuda.Event()
                event.record()
                made.put((batches.images, event))
    except Exception as error:
        made.put((error, None))


def _taken(made: queue.Queue) -> Iterator[torch.Tensor]:
    """Batches for the current stream."""
    while True:
        images, event = made.get()
        if isinstance(images, Exception):
            raise images
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
            images.record_stream(torch.cuda.current_stream())
        yield images
