"""Reads everything of a pack whose metadata may be random, and checks what comes out.

    python hostile_reading.py FOLDER LAYOUT (end|start) FIRST STEP

in a process of its own, with guard pages after or before every array that is mapped. Of the arrays,
those are made random that `targets` lists at FIRST, FIRST + STEP and so on.
"""

import sys
from pathlib import Path

import numpy as np
from guard_pages import guard_maps
from hostile_packs import LAYOUTS, ROWS, SHARD, Found, Hostile, metadata, targets
from reading_packs import MASK_ARRAYS, SAMPLE_ARRAYS

from sa1bpack import Dataset, FormatError, ReadError
from sa1bpack import open as open_pack
from sa1bpack.masks import rasterize
from sa1bpack.pixels import yuv420_to_rgb

SPECS = {
    "pad": (
        {}, {"mask_format": "bool"}, {"mask_format": "runs"}, {"mask_size": 24},
        {"mask_format": "runs", "mask_size": 8, "mask_sampling": "center"},
        {"coordinates": "stored"},
    ),
    "native": (
        {}, {"mask_format": "bool"}, {"mask_format": "runs"},
        {"mask_format": "runs", "mask_size": 24},
        {"pixels": "stored", "coordinates": "stored"},
    ),
    "squash": ({}, {"mask_format": "bool"}, {"coordinates": "stored"}),
}  # fmt: skip


# Array of a shard → key of a sample.
NUMBERS = {"bbox": "bboxes", "area": "areas", "predicted_iou": "predicted_ious"}
NUMBERS |= {"stability_score": "stability_scores", "point_coords": "point_coords"}
NUMBERS |= {"crop_box": "crop_boxes", "annotation_id": "annotation_ids"}


def read_everything(root: Path, name: str, target: str | None) -> int:
    """Read a pack in all ways; returns how many samples could be read.

    Raises AssertionError if something other than the sample's own data, or an error that names
    what is damaged, comes out.
    """
    found, read = Found(root), 0
    of_index = ("all", *(each for each in targets(LAYOUTS["pad"]) if each.startswith("index/")))
    for verified in (False, True):
        for options in SPECS[name]:
            try:
                ds = open_pack(root, verify_checksums=verified, duplicates="all", **options)
            except FormatError as error:
                assert verified and target in of_index and "index-" in str(error), error
                continue
            read += _read_samples(ds, found, target)
        if not verified:
            _read_by_id(ds)
        _read_columns(ds, found)
    return read


def _read_samples(ds: Dataset, found: Found, target: str | None) -> int:
    count = 0
    for row in (0, 3, *ROWS, 7, 11):  # of the damaged shard, before it and after it
        try:
            sample = ds[row]
        except ReadError as error:
            assert found.shard_name(row) in str(error) and error.row == row, error
            in_shard = target is not None and not target.startswith("index/") and target != "all"
            assert row in ROWS or not in_shard, error
            assert target is not None, error
            continue
        check_sample(ds, sample, found.sample(row))
        count += 1
    return count


def check_sample(ds: Dataset, sample: dict, stored: dict[str, np.ndarray]) -> None:
    """Compare a sample with what the files hold for it."""
    size = stored["size"]
    np.testing.assert_array_equal(sample["size"], size)
    assert sample["image_id"] == stored["image_id"]
    assert sample["file_name"].encode() == stored["file_name"].tobytes().rstrip(b"\0")
    scale = np.ones(2)
    if ds.options.coordinates == "stored":
        scale = size[[3, 2]] / size[[1, 0]]
    for array, key in NUMBERS.items():
        with np.errstate(all="ignore"):
            scaled = array in ("bbox", "point_coords", "crop_box")
            expected = stored[array] * (
                np.tile(scale, stored[array].shape[1] // 2) if scaled else 1
            )
        np.testing.assert_array_equal(sample[key], expected)
    np.testing.assert_array_equal(sample["image"], _image(ds, stored))
    if ds.spec.masks.source == "runs":
        np.testing.assert_array_equal(sample["run_ends"], stored["run_ends"])
        np.testing.assert_array_equal(sample["run_offset"], stored["run_offset"])
    else:
        expected = masks_of(ds, stored, ds.spec.masks.as_bool)
        np.testing.assert_array_equal(sample["masks"], expected)


def masks_of(ds: Dataset, stored: dict[str, np.ndarray], as_bool: bool) -> np.ndarray:
    """The masks of a stored sample, drawn if the dataset draws them."""
    masks, bits = ds.spec.masks, stored.get("mask_bits")
    if masks.source == "drawn":
        bits = rasterize(stored["run_ends"], stored["run_offset"], *stored["size"][:2].tolist(),
                         masks.size, masks.fit, masks.sampling)  # fmt: skip
    return np.unpackbits(bits, axis=-1, bitorder="little").astype(bool) if as_bool else bits


def _image(ds: Dataset, stored: dict[str, np.ndarray]) -> np.ndarray:
    if not ds.layout.flat or ds.options.pixels == "stored":
        return stored["image"]
    height, width = stored["size"][2:].tolist()
    half = (height + 1) // 2, (width + 1) // 2
    edges = np.cumsum([height * width, half[0] * half[1]])
    y, cb, cr = np.split(stored["image"], edges)
    return yuv420_to_rgb(y.reshape(height, width), cb.reshape(half), cr.reshape(half))


def _read_by_id(ds: Dataset) -> None:
    for image_id in (5000, 4988, 4985, 4982, 4967, 7):
        try:
            assert ds.by_id(image_id)["image_id"] == image_id
        except (KeyError, FormatError) as error:
            assert str(image_id) in str(error) or "id_order" in str(error), error


def _read_columns(ds: Dataset, found: Found) -> None:
    """All columns, as far as they can be read."""

    def tried(read, *given):
        try:
            return read(*given)
        except FormatError as error:
            assert SHARD in str(error) or "index-" in str(error), error

    other = {
        "mask_count": lambda: np.diff(found.index["mask_offset"]),
        "image_id": lambda: found.index["image_id"],
        "file_name": lambda: found.column("file_name").view("S64")[:, 0],
    }
    for name in (*SAMPLE_ARRAYS, "mask_count"):
        if (column := tried(ds.column, name)) is not None:
            expected = other[name]() if name in other else found.column(name)
            np.testing.assert_array_equal(column, expected)
    for name in MASK_ARRAYS:
        if (column := tried(ds.mask_column, name)) is not None:
            np.testing.assert_array_equal(column, found.column(name))
        for how in ("sum", "max", "min"):
            tried(ds.column, name, how)
    for part in (ds[::-2], ds[[5, 4, 5]]):
        tried(part.mask_column, "area")
        tried(part.where, lambda columns: columns["mask_count"] > 2)


def main() -> None:
    """Read packs of one layout with guard pages, each array random in turn."""
    folder, name, side, first, step = sys.argv[1:]
    hostile = Hostile(Path(folder))
    maps = guard_maps(side)
    read = 0
    assert read_everything(hostile.pack(name, None), name, None) > 0
    for target in targets(LAYOUTS[name])[int(first) :: int(step)]:
        read += read_everything(hostile.pack(name, target), name, target)
    assert maps[0] > 100 and read > 30
    print("alive", len(metadata(LAYOUTS[name])))


if __name__ == "__main__":
    main()
