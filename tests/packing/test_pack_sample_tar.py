"""A pack of the sample tar, held array by array against PIL, pycocotools and the JSON itself."""

import io
import json
import tarfile

import numpy as np
import pytest
from mask_oracle import decode, grid
from PIL import Image
from shard_files import arrays_of
from small_tars import names_of

import sa1bpack
from sa1bpack.masks import unpack_bits


@pytest.fixture(scope="module")
def originals(sample_tar) -> dict[str, tuple[bytes, dict]]:
    """File name → (JPEG, record as Python has it)."""
    with tarfile.open(sample_tar) as tar:
        files = {
            member.name.removeprefix("./"): tar.extractfile(member).read()
            for member in tar
            if member.isfile()
        }
    return {
        name: (data, json.loads(files[name.replace(".jpg", ".json")]))
        for name, data in files.items()
        if name.endswith(".jpg")
    }


@pytest.fixture(scope="module")
def pack_with(sample_tar, tmp_path_factory):
    """pack_with(**options) packs the sample tar and opens its one shard, once for each options."""
    packs = {}

    def pack_with(**options):
        key = tuple(sorted(options.items()))
        if key not in packs:
            root = tmp_path_factory.mktemp("sample") / "pack"
            result = sa1bpack.pack(sample_tar, root, workers=1, max_masks=None, **options)
            assert result.complete and result.rejects == 0
            packs[key] = arrays_of(root / "shards" / "sa_000000-000")
        return packs[key]

    return pack_with


def resized_by_pil(jpeg: bytes, size: tuple[int, int]) -> np.ndarray:
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


def test_samples_are_those_of_the_tar_in_the_order_of_whole_pairs(pack_with, sample_tar, originals):
    seen, whole = set(), []
    with tarfile.open(sample_tar) as tar:
        for name in tar.getnames():
            stem = name.removeprefix("./").rpartition(".")[0]
            if stem in seen:
                whole.append(stem + ".jpg")
            seen.add(stem)
    shard = pack_with()
    assert names_of(shard) == whole
    for row, name in enumerate(whole):
        record = originals[name][1]
        assert shard["image_id"][row] == record["image"]["image_id"]
        assert shard["annotation_count"][row] == len(record["annotations"])


@pytest.mark.parametrize("fit", ["pad", "squash"])
def test_fast_images_are_within_38_db_of_a_full_decode(pack_with, originals, fit):
    shard = pack_with(fit=fit, image_size=512)
    for row, name in enumerate(names_of(shard)):
        stored = shard["size"][row, 2:]
        exact = resized_by_pil(originals[name][0], (int(stored[1]), int(stored[0])))
        found = shard["image"][row, : stored[0], : stored[1]]
        error = np.mean((found.astype(float) - exact) ** 2)
        assert error > 0, "nothing was gained by decoding in small"
        psnr = 10 * np.log10(255**2 / error)
        assert psnr > 38, (name, psnr)
        assert not shard["image"][row, stored[0] :].any()
        assert not shard["image"][row, :, stored[1] :].any()


@pytest.mark.parametrize("fit", ["pad", "squash"])
@pytest.mark.parametrize("sampling", ["area", "center"])
def test_mask_bits_are_those_of_masks_decoded_at_full_size(pack_with, originals, fit, sampling):
    shard = pack_with(fit=fit, mask_sampling=sampling)
    for row, name in enumerate(names_of(shard)):
        annotations = originals[name][1]["annotations"]
        cells = unpack_bits(shard["mask_bits"][slice(*shard["mask_offset"][row : row + 2])])
        assert len(cells) == len(annotations)
        for index in range(0, len(annotations), 4):
            mask = decode(annotations[index]["segmentation"])
            expected = grid(mask, 256, fit, sampling)
            np.testing.assert_array_equal(cells[index], expected, err_msg=f"{name}, {index}")
