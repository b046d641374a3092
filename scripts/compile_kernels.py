"""Compile the kernels that packing and training use, so that nobody waits for them later.

The sample tar is packed in the common layouts, and batches of each are read and transformed. What
is compiled is kept (sa1bpack/kernels.py says where), so a second call takes seconds.
"""

import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import sa1bpack
from sa1bpack import Dataset
from sa1bpack.transforms import (
    ColorJitter,
    GaussianBlur,
    Pipeline,
    RandomAffine,
    RandomHorizontalFlip,
    ScaleJitter,
    correction_clicks,
    holes,
)

TAR = Path(__file__).parent.parent / "tests" / "samples" / "sa_000000.tar"
# Options of a pack, and what its masks are read as.
PACKS = (
    ({}, ("bits", "bool", "runs")),
    ({"fit": "native", "pixels": "yuv420", "masks": "runs"}, ("bool", "runs")),
)
READ = (
    {"mask_layout": "padded", "max_masks": 16},
    {"mask_layout": "concat", "io": "cached"},
    {"mask_layout": "padded_bits", "max_masks": 16, "mask_select": "random"},
)
STEPS = (
    (),
    (RandomHorizontalFlip(), ScaleJitter()),
    (RandomAffine(20), ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(3)),
)


def datasets(roots: list[Path]) -> Iterator[tuple[Dataset, dict[str, Any]]]:
    """The packs in the forms of masks that are read, with options of loaders for each."""
    for root, (_, forms) in zip(roots, PACKS, strict=True):
        for mask_format in forms:
            reads = {"bits": READ, "bool": READ[:1], "runs": ({},)}[mask_format]
            for read in reads:
                yield sa1bpack.open(root, mask_format=mask_format), read


def compile_loading(roots: list[Path]) -> None:
    """Compile what a Loader reads with, in a process of its own: half of the work."""
    for ds, read in datasets(roots):
        with sa1bpack.Loader(ds, 2, **read) as loader:
            next(iter(loader))
    some = sa1bpack.open(roots[-1], mask_format="runs", min_area=100)
    with sa1bpack.Loader(some, 2) as loader:
        next(iter(loader))


def compile_drawing(roots: list[Path]) -> None:
    """Compile what draws pictures, pipelines and prompts; a DataLoader needs few kernels."""
    for root in roots:
        sa1bpack.show(root, samples=1, large=True)
    for ds, read in datasets(roots):
        options = {name: value for name, value in read.items() if name != "io"}
        batch = next(iter(sa1bpack.make_dataloader(ds, 2, num_workers=0, **options)))
        for steps in STEPS:
            made = Pipeline(ds, steps)(batch, 0)
    masks = made["masks"]
    ids = made["annotation_ids"]
    correction_clicks(masks ^ True, masks, ids, where="interior", seed=0, epoch=0)
    holes(made)


def compile_records(folder: Path) -> None:
    """Compile what reads records of other data sets: packs an image with an annotation file."""
    images = folder / "images"
    images.mkdir()
    with tarfile.open(TAR) as tar:
        member = next(member for member in tar if member.name.endswith(".jpg"))
        data = tar.extractfile(member)
        assert data is not None
        (images / "one.jpg").write_bytes(data.read())
    file = {
        "images": [{"id": 1, "file_name": "one.jpg"}],
        "annotations": [{"id": 1, "image_id": 1}],
    }
    annotations = folder / "annotations.json"
    annotations.write_text(json.dumps(file))
    options: dict[str, Any] = {"workers": 1, "image_size": 256, "mask_size": 64}
    sa1bpack.pack(images, folder / "records", annotations=annotations, **options)


def main() -> None:
    """Compile all, and say how long it took."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        roots = []
        for number, (options, _) in enumerate(PACKS):
            root = Path(folder, str(number))
            sa1bpack.pack(TAR, root, workers=1, image_size=256, mask_size=64, **options)
            roots.append(root)
        loading = get_context("spawn").Process(target=compile_loading, args=(roots,))
        loading.start()
        try:
            compile_drawing(roots)
            compile_records(Path(folder))
        finally:
            loading.join()
        if loading.exitcode:
            sys.exit(f"set-up: the kernels of loading do not compile (exit {loading.exitcode})")
    print(f"set-up: kernels are compiled ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
