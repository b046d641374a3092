"""Packs of every layout of pixels and masks, held against PIL and against the pack of all masks."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
from jpegs import by_pil, documented_planes, stored_size
from shard_files import arrays_of
from small_tars import pack_small, photo, record, write_tar

import sa1bpack

LAYOUTS = [
    {"fit": fit, "pixels": pixels}
    for fit in ("pad", "squash", "native", "scale_down")
    for pixels in ("rgb", "yuv420")
]
COMPACT = {"fit": "native", "pixels": "yuv420", "masks": "runs"}


def size_of(number: int) -> tuple[int, int]:
    """(height, width) of a photo: landscape, portrait, square, and far from square."""
    return [(64, 96), (90, 63), (64, 64), (30, 211), (150, 31)][number % 5]


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    """Photos 0 to 9 of several sizes, with 0 to 3 masks."""
    found = {}
    for number in range(10):
        found[f"./sa_{number}.jpg"] = photo(number, *size_of(number))
        text = json.dumps(record(number, number % 4, *size_of(number)))
        found[f"./sa_{number}.json"] = text.encode()
    return write_tar(tmp_path_factory.mktemp("layouts") / "sa_000000.tar", found)


@pytest.fixture(scope="module")
def packed(tar, tmp_path_factory):
    """packed(**options): folder of a pack of the tar, made once for each set of options."""
    packs = {}

    def packed(**options):
        key = tuple(sorted(options.items()))
        if key not in packs:
            packs[key] = tmp_path_factory.mktemp("packs") / "pack"
            result = pack_small(tar, packs[key], **options)
            assert result.complete and result.images == 10 and result.rejects == 0
        return packs[key]

    return packed


def test_a_preset_stands_for_its_options_and_each_of_them_may_be_given_as_well(packed):
    assert sa1bpack.PackOptions(preset="compact") == sa1bpack.PackOptions(**COMPACT)
    assert sa1bpack.PackOptions(preset="plain") == sa1bpack.PackOptions()
    both = sa1bpack.PackOptions(preset="compact", masks="bits+runs", samples_per_shard=5)
    assert both == sa1bpack.PackOptions(**COMPACT | {"masks": "bits+runs"}, samples_per_shard=5)
    one, other = packed(preset="compact", workers=2), packed(**COMPACT)
    for path in sorted(each for each in one.rglob("*") if each.is_file()):
        if path.name != ".runs.jsonl":  # when it ran
            assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path


def samples_of(root) -> Iterator[tuple[int, list[int], np.ndarray]]:
    """Image id, sizes and stored pixels of each sample."""
    for folder in (root / "shards").glob("sa_*"):
        shard = arrays_of(folder)
        images = shard["image"]
        if "image_offset" in shard:
            images = np.split(images, shard["image_offset"][1:-1])
        yield from zip(shard["image_id"].tolist(), shard["size"].tolist(), images, strict=True)


def reference(number: int, stored: tuple[int, int], fit: str, pixels: str) -> np.ndarray:
    """What `exact` promises of a photo: PIL's pixels, as docs/format.md has them on disk."""
    rgb = by_pil(photo(number, *size_of(number)), *stored)
    planes = [rgb] if pixels == "rgb" else list(documented_planes(rgb))
    for k, plane in enumerate(planes if fit in ("pad", "squash") else ()):
        side = 64 if k == 0 else 32
        planes[k] = np.zeros((side, side, *plane.shape[2:]), np.int64)
        planes[k][: plane.shape[0], : plane.shape[1]] = plane
    return np.concatenate([plane.ravel() for plane in planes])


@pytest.mark.parametrize("options", LAYOUTS, ids=lambda options: "-".join(options.values()))
def test_exact_pixels_are_the_documented_ones_in_every_layout(packed, options):
    root = packed(**options, resample="exact")
    assert sa1bpack.verify(root).ok
    for number, size, found in samples_of(root):
        height, width = size_of(number)
        stored = stored_size(height, width, 64, options["fit"])
        assert size == [height, width, *stored]
        np.testing.assert_array_equal(found.ravel(), reference(number, stored, **options))


@pytest.mark.parametrize("options", LAYOUTS, ids=lambda options: "-".join(options.values()))
def test_planes_of_a_shard_are_the_documented_ones_without_padding(packed, options):
    shard = sa1bpack.open(packed(**options, resample="exact")).shards[0]
    for row, number in enumerate(shard["image_id"].tolist()):
        height, width = shard["size"][row, 2:].tolist()
        rgb = by_pil(photo(number, *size_of(number)), height, width)
        names = ("rgb",) if options["pixels"] == "rgb" else ("y", "cb", "cr")
        expected = (rgb,) if options["pixels"] == "rgb" else documented_planes(rgb)
        found = shard.planes(row)
        assert tuple(found) == names
        for name, plane in zip(names, expected, strict=True):
            np.testing.assert_array_equal(found[name], plane)
    for row in (-1, len(shard)):
        with pytest.raises(IndexError, match=f"row {row} of "):
            shard.planes(row)
