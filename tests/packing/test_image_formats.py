"""Sources whose images are in several formats: packed, verified, read raw and exported."""

import json

import numpy as np
import pytest
from format_files import manifest_of
from image_files import HAS_WEBP, as_rgb, file_of
from PIL import Image
from small_tars import SMALL, members, pack_small, pixels_of, record, rejects_of, write_tar

import sa1bpack
from sa1bpack.errors import MissingPackage

# Ending of the name → how it is written; those at the end have bytes that the name does not say.
WAYS = {
    "jpg": ("RGB", "JPEG"), "png": ("RGBA", "PNG"), "TIF": ("CMYK", "TIFF"),
    "tiff": ("RGB", "TIFF"), "bmp": ("P", "BMP"), "gif": ("L", "GIF"), "jpeg": ("RGB", "PNG"),
    "webp": ("RGB", "BMP"),
}  # fmt: skip


def mixed_members():
    """Name → bytes of one image and record for each way, and the RGB image of each."""
    members = {}
    images = []
    for number, (ending, (mode, form)) in enumerate(WAYS.items(), 1):
        options = {"quality": 92} if form == "JPEG" else {}
        image = pixels_of(number).convert(mode)
        if mode == "RGBA":
            image.putalpha(0)
        data = file_of(image, form, **options)
        text = record(number)
        text["image"]["file_name"] = f"sa_{number}.{ending}"
        members[f"sa_{number}.{ending}"] = data
        members[f"sa_{number}.json"] = json.dumps(text).encode()
        images.append(as_rgb(image) if form != "JPEG" else None)
    return members, images


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A folder of mixed formats, a tar of the same, and the pack of each."""
    root = tmp_path_factory.mktemp("formats")
    members, images = mixed_members()
    folder = root / "sa_000001"
    folder.mkdir()
    for name, data in members.items():
        (folder / name).write_bytes(data)
    tar = write_tar(root / "sa_000001.tar", members, shuffle=None)
    for source, name in ((folder, "of-folder"), (tar, "of-tar")):
        result = pack_small(source, root / name)
        assert (result.images, rejects_of(root / name)) == (len(WAYS), [])
    return root, members, images


def test_a_pack_of_mixed_formats_is_verified_and_has_their_pixels(mixed):
    root, _, images = mixed
    assert sa1bpack.verify(root / "of-folder").ok
    ds = sa1bpack.open(root / "of-folder")
    assert [sample["file_name"] for sample in ds] == [
        f"sa_{number}.{ending}" for number, ending in enumerate(WAYS, 1)
    ]
    other = sa1bpack.open(root / "of-tar")
    for index, image in enumerate(images):
        sample = ds[index]
        np.testing.assert_array_equal(sample["image"], other[index]["image"])
        np.testing.assert_array_equal(sample["masks"], other[index]["masks"])
        if image is not None:
            h, w = sample["size"][2:].tolist()
            expected = np.asarray(image.resize((w, h), Image.Resampling.BICUBIC))
            np.testing.assert_array_equal(sample["image"][:h, :w], expected)


def test_records_are_exported_byte_for_byte(mixed, tmp_path):
    root, members, _ = mixed
    sa1bpack.export_sa1b(root / "of-tar", tmp_path / "json")
    written = {path.name: path.read_bytes() for path in (tmp_path / "json").rglob("*.json")}
    assert written == {name: members[name] for name in members if name.endswith(".json")}


def test_raw_datasets_and_a_dry_run_read_them_as_well(mixed, tmp_path):
    root, _, _ = mixed
    packed = sa1bpack.open(root / "of-tar")
    options = sa1bpack.PackOptions(**SMALL)
    raw = sa1bpack.TarDataset(root / "sa_000001.tar", options=options, index_folder=tmp_path)
    streamed = list(sa1bpack.IterableTarDataset(root / "sa_000001.tar", options=options))
    assert len(raw) == len(streamed) == len(packed)
    for index in range(len(packed)):
        np.testing.assert_array_equal(raw[index]["image"], packed[index]["image"])
        np.testing.assert_array_equal(streamed[index]["image"], packed[index]["image"])
        image_id = int(packed[index]["image_id"])
        if list(WAYS)[index].islower():
            assert raw.index_of(image_id) == index
    forecast = sa1bpack.estimate(root / "sa_000001", tmp_path / "dry", workers=1, **SMALL)
    assert (forecast.images, forecast.rejected) == (len(WAYS), 0)


@pytest.mark.skipif(HAS_WEBP, reason="this PIL reads WebP")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_needs_a_pil_with_webp_ends(workers, tmp_path):
    """No reject: another PIL would read the image."""
    webp = b"RIFF\x24\0\0\0WEBPVP8 " + bytes(28)
    text = record(1)
    text["image"]["file_name"] = "sa_1.webp"
    members = {"sa_1.webp": webp, "sa_1.json": json.dumps(text).encode()}
    tar = write_tar(tmp_path / "sa_1.tar", members)
    with pytest.raises(MissingPackage, match="reads no WebP"):
        pack_small(tar, tmp_path / "pack", workers=workers)


def test_shards_of_webdataset_are_packed_as_they_are(tmp_path):
    """Keys with more members than the image and the record, one after the other."""
    listed = []
    for name, data in members(range(1, 5)).items():
        listed.append((f"train/{name[2:]}", data))
        if name.endswith(".json"):
            stem = name[2:].removesuffix(".json")
            listed += [(f"train/{stem}.txt", b"a street"), (f"train/{stem}.depth.png", b"depth")]
    tar = write_tar(tmp_path / "train-000000.tar", listed, shuffle=None, compress=False)
    assert pack_small(tar, tmp_path / "pack").images == 4
    assert rejects_of(tmp_path / "pack") == []
    (source,) = manifest_of(tmp_path / "pack")["sources"]
    assert source["ignored"] == {"foreign": 8}
