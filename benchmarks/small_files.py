"""What a file per image costs beside features: inodes, bytes, and seconds per 1000 samples.

    python benchmarks/small_files.py TAR [--images N] [--batch N] [--rounds N] [--drop-caches]

Writes, for N images, what text-to-image code writes: a latent of a VAE (`.npy`, float32 8 x 32 x
32), text features (`.npz`, float16 120 x 4096) and a caption (`.txt`); the same as features of a
pack of these images. Then random batches of all three are read in turn from the files, by torch's
DataLoader with 2 workers, and from the pack, by a Loader with `fields`; the batches are compared.
With --drop-caches (as root), everything is dropped from memory before each turn.

The time to open and read the pack's index is in its turns; so is the start of the workers in those
of the files. A ceiling, reading the same bytes from one file in one go, is measured in each round.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from page_cache import drop_all
from synthetic import make_tar

import sa1bpack

LATENT = (8, 32, 32)
TEXT_FEATURES = (120, 4096)
NAMES = ["latent", "t5", "caption"]


class Files(torch.utils.data.Dataset):
    """The three files of each image."""

    def __init__(self, folder: Path, ids: list[int]):
        self._folder = folder
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict:
        name = f"sa_{self._ids[index]}"
        return {
            "image_ids": self._ids[index],
            "latent": torch.from_numpy(np.load(self._folder / "vae" / f"{name}.npy")),
            "t5": torch.from_numpy(np.load(self._folder / "t5" / f"{name}.npz")["features"]),
            "caption": (self._folder / "captions" / f"{name}.txt").read_text(),
        }


def rows_of(image_id: int) -> tuple[np.ndarray, np.ndarray, str]:
    """The latent, the text features and the caption of an image, by its id alone."""
    rng = np.random.default_rng(image_id)
    latent = rng.standard_normal(LATENT, np.float32)
    features = rng.standard_normal(TEXT_FEATURES, np.float32).astype(np.float16)
    return latent, features, f"image {image_id}: " + "a street with trees and people " * 12


def write_files(folder: Path, ids: list[int]) -> None:
    """Write the three files of each image."""
    for name in ("vae", "t5", "captions"):
        (folder / name).mkdir(parents=True)
    for image_id in ids:
        latent, features, caption = rows_of(image_id)
        np.save(folder / "vae" / f"sa_{image_id}.npy", latent)
        np.savez(folder / "t5" / f"sa_{image_id}.npz", features=features)
        (folder / "captions" / f"sa_{image_id}.txt").write_text(caption)


def attach_all(ds: sa1bpack.Dataset, ids: list[int]) -> None:
    """Attach the same as features of the pack."""
    for number, name in enumerate(NAMES):
        rows = ((image_id, rows_of(image_id)[number]) for image_id in ids)
        sa1bpack.attach(ds, name, rows, progress=False)


def usage(folder: Path) -> tuple[int, int]:
    """Inodes, and bytes on the disk, of a folder and all that is in it."""
    paths = [folder, *folder.rglob("*")]
    return len(paths), sum(path.lstat().st_blocks * 512 for path in paths)


def from_files(folder: Path, ids: list[int], batch: int) -> Iterator[dict]:
    """Random batches of the files."""
    loader = torch.utils.data.DataLoader(Files(folder, ids), batch, shuffle=True, num_workers=2)
    yield from loader


def from_pack(pack: Path, batch: int) -> Iterator[dict]:
    """Random batches of the features."""
    ds = sa1bpack.open(pack, features=NAMES)
    with sa1bpack.Loader(ds, batch, shuffle=True, fields=NAMES) as loader:
        yield from loader


def checked(batches: Iterator[dict]) -> None:
    """Compare the rows of all batches with those that were written."""
    seen = 0
    for batch in batches:
        for place, image_id in enumerate(batch["image_ids"].tolist()):
            latent, features, caption = rows_of(image_id)
            assert np.array_equal(batch["latent"][place].numpy(), latent), image_id
            assert np.array_equal(batch["t5"][place].numpy(), features), image_id
            assert batch["caption"][place] == caption, image_id
            seen += 1
    assert seen, "no batches"


def timed(batches: Callable[[], Iterator[dict]]) -> float:
    """Seconds of an epoch, from the call on."""
    begin = time.perf_counter()
    for batch in batches():
        batch["t5"].shape  # noqa: B018 - a batch is at hand
    return time.perf_counter() - begin


def read_in_one_go(path: Path) -> float:
    """Seconds to read a file in pieces of 16 MB."""
    buffer = bytearray(1 << 24)
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tar", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drop-caches", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        make_tar([options.tar], folder / "sa_000000.tar", options.images, masks=1)
        pack = folder / "packed"
        sa1bpack.pack(folder / "sa_000000.tar", pack, image_size=64, mask_size=64, progress=False)
        ids = sa1bpack.open(pack).column("image_id").tolist()
        write_files(folder / "files", ids)
        attach_all(sa1bpack.open(pack), ids)
        one_file = folder / "all"
        with one_file.open("wb") as out:
            for image_id in ids:
                latent, features, caption = rows_of(image_id)
                out.write(latent.tobytes() + features.tobytes() + caption.encode())
        report(folder, ids, options)


def report(folder: Path, ids: list[int], options: argparse.Namespace) -> None:
    """Measure, and print the table."""
    ways = {
        "files": lambda: from_files(folder / "files", ids, options.batch),
        "pack": lambda: from_pack(folder / "packed", options.batch),
    }
    for way in ways.values():
        checked(way())
    seconds: dict[str, list[float]] = {name: [] for name in ("ceiling", *ways)}
    for _ in range(options.rounds):
        for name in seconds:
            if options.drop_caches:
                drop_all()
            if name == "ceiling":
                seconds[name].append(read_in_one_go(folder / "all"))
            else:
                seconds[name].append(timed(ways[name]))
    print(f"{len(ids)} images, batches of {options.batch}, medians of {options.rounds} rounds")
    sizes = {"files": usage(folder / "files"), "pack": usage(folder / "packed" / "side")}
    ceiling = statistics.median(seconds["ceiling"])
    for name, (inodes, nbytes) in sizes.items():
        per_thousand = 1000 * statistics.median(seconds[name]) / len(ids)
        share = ceiling / statistics.median(seconds[name])
        print(
            f"{name:6} {inodes:8,} inodes {nbytes / 1e6:9,.1f} MB "
            f"{per_thousand:8.3f} s per 1000 samples, {share:.2f} of reading one file"
        )


if __name__ == "__main__":
    main()
