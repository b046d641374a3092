"""Small packs written by released versions, kept in tests/format/released/ and opened for ever.

`python tests/helpers/released_packs.py` writes those of this version, once, when it is released.
"""

import hashlib
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from small_tars import SMALL, members, write_tar

import sa1bpack

RELEASED = Path(__file__).parents[1] / "format/released"
OPTIONS = {**SMALL, "image_size": 32}
LAYOUTS = {
    "default": {},
    "compact": {"pixels": "yuv420", "fit": "native", "masks": "runs"},
    "squash": {"fit": "squash", "masks": "bits", "mask_sampling": "center"},
}


def facts_of(folder: Path, layout: str) -> list[dict[str, Any]]:
    """Every sample of a pack as JSON, with each kind of masks that it has."""
    kinds = LAYOUTS[layout].get("masks", "bits+runs").split("+")
    features = sorted(path.name for path in (folder / "side").iterdir())
    opened = [
        sa1bpack.open(folder, mask_format=kind, features=features, coordinates="source")
        for kind in kinds
    ]
    return [
        {key: fact_of(value) for ds in opened for key, value in sorted(ds[i].items())}
        for i in range(len(opened[0]))
    ]


def fact_of(value: Any) -> Any:
    """Small values as they are, arrays by their type, shape and SHA-256."""
    if isinstance(value, np.ndarray) and value.nbytes > 64:
        digest = hashlib.sha256(np.ascontiguousarray(value)).hexdigest()
        return [str(value.dtype), list(value.shape), digest]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def write_released(folder: Path) -> None:
    """Write the packs of this version as one tar, and beside it what they hold."""
    name = f"sa1bpack-{sa1bpack.__version__}"
    facts = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        source = write_tar(work / "sa_000000.tar", members(range(2)))
        for layout, options in LAYOUTS.items():
            pack = work / "packs" / layout
            sa1bpack.pack(source, pack, workers=1, progress=False, **OPTIONS, **options)
            ds = sa1bpack.open(pack)
            rows = np.arange(4 * len(ds), dtype=np.float16).reshape(len(ds), 4)
            sa1bpack.attach(ds, "teacher", rows, ds.column("image_id"))
            attach_other_kinds(ds)
            facts[layout] = facts_of(pack, layout)
        with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as tar:
            tar.add(work / "packs", name, filter=_undated)
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def attach_other_kinds(ds: sa1bpack.Dataset) -> None:
    """Attach text and rows of any length, of images and of masks, of which some are missing."""
    images = ds.column("image_id").tolist()
    masks = ds.mask_column("annotation_id").tolist()
    sa1bpack.attach(ds, "caption", {images[0]: "un café, 犬"}, missing="allow")
    tokens = [np.full((number, 3), number, np.float16) for number in range(len(images))]
    sa1bpack.attach(ds, "tokens", tokens, images, shape=(None, 3))
    options = {"axis": "mask", "missing": "allow"}
    sa1bpack.attach(ds, "phrase", {mask: f"mask {mask}" for mask in masks[::2]}, **options)
    points = {mask: np.full((mask % 3, 2), mask, np.int64) for mask in masks[1:]}
    sa1bpack.attach(ds, "points", points, shape=(None, 2), **options)


def _undated(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    RELEASED.mkdir(exist_ok=True)
    if any(RELEASED.glob(f"sa1bpack-{sa1bpack.__version__}.*")):
        sys.exit(f"the packs of {sa1bpack.__version__} are there already: they never change")
    write_released(RELEASED)
