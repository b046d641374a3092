"""Compile the kernels that packing and training use, so that nobody waits for them later.

The sample tar is packed in the common layouts, and batches of each are read and transformed. What
is compiled is kept (sa1bpack/kernels.py says where), so a second call takes seconds.
"""

import tempfile
import time
from pathlib import Path

import sa1bpack
from sa1bpack.transforms import (
    ColorJitter,
    GaussianBlur,
    Pipeline,
    RandomAffine,
    RandomHorizontalFlip,
    ScaleJitter,
    correction_clicks,
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


def main() -> None:
    """Compile all, and say how long it took."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number, (options, forms) in enumerate(PACKS):
            root = Path(folder, str(number))
            sa1bpack.pack(TAR, root, workers=1, image_size=256, mask_size=64, **options)
            sa1bpack.show(root, samples=1, large=True)
            for mask_format in forms:
                ds = sa1bpack.open(root, mask_format=mask_format)
                reads = {"bits": READ, "bool": READ[:1], "runs": ({},)}[mask_format]
                for read in reads:
                    with sa1bpack.Loader(ds, 2, **read) as loader:
                        batch = next(iter(loader))
                    for steps in STEPS:
                        Pipeline(ds, steps)(batch, 0)
        some = sa1bpack.open(root, mask_format="runs", min_area=100)
        with sa1bpack.Loader(some, 2) as loader:
            batch = Pipeline(some)(next(iter(loader)))
        masks, ids = batch["masks"], batch["annotation_ids"]
        correction_clicks(masks ^ True, masks, ids, where="interior", seed=0, epoch=0)
    print(f"set-up: kernels are compiled ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main()
