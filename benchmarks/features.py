"""What a feature of 2 MB per image costs: embeddings of a teacher, float16 256 x 64 x 64.

    python benchmarks/features.py TAR... [--rounds N] [--images N] [--masks N] [--batch N]

Packs copies of the photographs of the tars, attaches an array of random embeddings, writes the same
embeddings as a folder of .npy files, one per image, and reads everything once. Then every way of
reading random batches is timed in turn, as in load.py. There is a ceiling for the samples alone and
one for the samples with their embeddings: a copy of the same bytes past the processor's caches, by
2 threads. Before a way is timed, the embeddings of a complete epoch are compared with the array.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from load import THREADS, Task, build, copying, count_samples, measure, warm

import sa1bpack
from sa1bpack import Collate, Dataset
from sa1bpack.loading.batch.put import stream_copy

NAME, ROW = "teacher", (256, 64, 64)
MASKS = "padded_bits"


class WithFiles(torch.utils.data.Dataset):
    """Samples of a dataset, each with the array of its .npy file."""

    def __init__(self, ds: Dataset, folder: Path):
        self._ds, self._folder = ds, folder

    def __len__(self) -> int:
        return len(self._ds)

    def __getitem__(self, index: int) -> tuple[dict, np.ndarray]:
        sample = self._ds[index]
        return sample, np.load(self._folder / f"{sample['image_id']}.npy")


class CollateBoth:
    """Batches of the samples and arrays of WithFiles."""

    def __init__(self) -> None:
        self._collate = Collate(mask_layout=MASKS)

    def __call__(self, pairs: list[tuple[dict, np.ndarray]]) -> dict:
        batch = self._collate([sample for sample, _ in pairs])
        batch[NAME] = torch.from_numpy(np.stack([rows for _, rows in pairs]))
        return batch


@contextmanager
def loader(task: Task):
    """A Loader, with the features of the dataset."""
    with sa1bpack.Loader(
        task.ds, task.batch, shuffle=True, mask_layout=MASKS, threads=THREADS
    ) as batches:
        yield batches


def dataloader(workers: int):
    """make_dataloader, with the features of the dataset."""

    @contextmanager
    def way(task: Task):
        batches = sa1bpack.make_dataloader(
            task.ds,
            task.batch,
            shuffle=True,
            mask_layout=MASKS,
            num_workers=workers,
            pin_memory=False,
        )
        yield batches
        if batches._iterator is not None:
            batches._iterator._shutdown_workers()

    return way


def loader_and_files(files: Path):
    """A Loader of the samples alone; the consumer reads the files of each batch."""

    def with_files(batches) -> Iterator[dict]:
        for batch in batches:
            rows = [np.load(files / f"{number}.npy") for number in batch["image_ids"].tolist()]
            yield {**batch, NAME: torch.from_numpy(np.stack(rows))}

    @contextmanager
    def way(task: Task):
        with loader(task) as batches:
            yield Again(lambda: with_files(batches))

    return way


def dataloader_of_files(files: Path, workers: int):
    """torch's DataLoader over samples and files."""

    @contextmanager
    def way(task: Task):
        yield torch.utils.data.DataLoader(
            WithFiles(task.ds, files), task.batch, shuffle=True, num_workers=workers,
            collate_fn=CollateBoth(),
        )  # fmt: skip

    return way


class Again:
    """Something to iterate over more than once."""

    def __init__(self, start: Callable[[], Iterator]):
        self._start = start

    def __iter__(self) -> Iterator:
        return self._start()


def check(batches, ids: np.ndarray, embeddings: np.ndarray) -> None:
    """Raise SystemExit unless every image of an epoch has its own embedding."""
    seen = 0
    for batch in batches:
        rows = np.searchsorted(ids, batch["image_ids"].numpy())
        if not np.array_equal(batch[NAME].numpy(), embeddings[rows]):
            raise SystemExit("a batch has other embeddings than its images")
        seen += len(rows)
    if seen != len(ids):
        raise SystemExit(f"an epoch has {seen} samples, not {len(ids)}")


def timed(task: Task, way) -> Callable:
    """A way of load.py that takes all batches of this task."""

    @contextmanager
    def found(_):
        with way(task) as batches:
            yield lambda: count_samples(batches)

    return found


def main() -> None:
    """Build pack, array and files, check every way, time them in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tars", nargs="+", type=Path, help="tars to take photographs from")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (5)")
    parser.add_argument("--images", type=int, default=256, help="images in the pack (256)")
    parser.add_argument("--masks", type=int, default=64, help="masks per image (64)")
    parser.add_argument("--batch", type=int, default=8, help="samples per batch (8)")
    parser.add_argument("--folder", type=Path, help="folder for the pack (a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        pack = build(options.tars, folder, options.images, options.masks)
        ds = sa1bpack.open(pack)
        ids = np.sort(ds.column("image_id"))
        random = np.random.default_rng(0)
        embeddings = random.standard_normal((len(ids), *ROW), np.float32).astype(np.float16)
        sa1bpack.attach(ds, NAME, embeddings, ids, spatial=True, covers="canvas")
        (files := folder / "npy").mkdir()
        for number, rows in zip(ids.tolist(), embeddings, strict=True):
            np.save(files / f"{number}.npy", rows)
        warm(folder)
        alone = Task(ds, options.batch, folder)
        both = Task(sa1bpack.open(pack, features=[NAME]), options.batch, folder)
        ways = {
            "Loader": (both, loader),
            "make_dataloader, 0 workers": (both, dataloader(0)),
            "make_dataloader, 2 workers": (both, dataloader(2)),
            "Loader, and .npy files in the loop": (alone, loader_and_files(files)),
            "DataLoader with .npy files, 0 workers": (alone, dataloader_of_files(files, 0)),
            "DataLoader with .npy files, 2 workers": (alone, dataloader_of_files(files, 2)),
        }
        for task, way in ways.values():
            with way(task) as batches:
                check(batches, ids, embeddings)
        ceiling = copying(stream_copy)
        lines = {
            "the ceiling without embeddings": (alone, lambda _: ceiling(alone)),
            "Loader without embeddings": (alone, timed(alone, loader)),
            "the ceiling": (both, lambda _: ceiling(both)),
            **{name: (both, timed(task, way)) for name, (task, way) in ways.items()},
        }
        found = measure(alone, {name: way for name, (_, way) in lines.items()}, options.rounds, {})
        print(f"{len(ds)} samples of {alone.bytes / len(ds) / 1e6:.2f} MB, embeddings of "
              f"{2 * np.prod(ROW) / 1e6:.2f} MB, batches of {options.batch}, page cache warm, "
              f"medians of {options.rounds} rounds\n")  # fmt: skip
        print("| way | samples/s | MB/s | of the ceiling |\n|---|---:|---:|---:|")
        ceilings = {alone: "the ceiling without embeddings", both: "the ceiling"}
        for name, (task, _) in lines.items():
            speed = statistics.median(found[name])
            limits = found[ceilings[task]]
            ratio = statistics.median(a / b for a, b in zip(found[name], limits, strict=True))
            print(f"| {name} | {speed:.0f} | {speed * task.bytes / len(ds) / 1e6:.0f} "
                  f"| {ratio:.2f} |")  # fmt: skip


if __name__ == "__main__":
    main()
