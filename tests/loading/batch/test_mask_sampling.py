"""The sampling that masks are drawn with: that of the pack, unless another is requested."""

import functools
from pathlib import Path

import numpy as np
import pytest
from small_tars import members, write_tar

import sa1bpack
from sa1bpack.errors import OptionError

GRID = 16


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """pack(sampling, masks, fit) → folder, made once."""
    root = tmp_path_factory.mktemp("samplings")
    tar = write_tar(root / "sa_000000.tar", members(range(1, 4), masks=4))

    @functools.cache
    def pack(sampling: str, masks: str = "bits+runs", fit: str = "pad") -> Path:
        out = root / f"{sampling}-{masks}-{fit}"
        sa1bpack.pack(
            tar, out, workers=1, image_size=32, mask_size=GRID, mask_sampling=sampling, masks=masks,
            fit=fit,
        )  # fmt: skip
        return out

    return pack


def masks_of(path: Path, **options) -> np.ndarray:
    return np.concatenate([sample["masks"] for sample in sa1bpack.open(path, **options)])


@pytest.mark.parametrize(
    ("sampling", "fit"), [("area", "pad"), ("center", "squash"), ("area", "native")]
)
def test_masks_are_drawn_by_the_sampling_of_the_pack(packs, sampling, fit):
    path = packs(sampling, fit=fit)
    stored = masks_of(path, mask_format="bool")
    assert np.array_equal(masks_of(path, mask_format="runs", mask_size=GRID), stored)
    assert np.array_equal(masks_of(packs(sampling, "runs", fit), mask_format="bool"), stored)
    other = packs({"area": "center", "center": "area"}[sampling], fit=fit)
    assert not np.array_equal(masks_of(other, mask_format="bool"), stored)
    assert sa1bpack.open(path).mask_sampling == sampling


def test_another_sampling_is_drawn_from_the_runs_although_there_are_bits(packs):
    expected = masks_of(packs("center"))
    assert np.array_equal(masks_of(packs("area"), mask_sampling="center"), expected)
    ds = sa1bpack.open(packs("area"), mask_format="bool", mask_sampling="center")
    with sa1bpack.Loader(ds, 3, mask_layout="concat_bits", device="cpu") as loader:
        assert np.array_equal(next(iter(loader))["masks"].numpy(), expected)


def test_another_sampling_of_bits_alone_is_refused(packs):
    path = packs("area", "bits")
    assert np.array_equal(masks_of(path, mask_sampling="area"), masks_of(path))
    with pytest.raises(OptionError, match=r"mask_sampling='center' needs the exact runs.*'area'"):
        sa1bpack.open(path, mask_sampling="center")
    with pytest.raises(OptionError, match=r"^mask_format='runs' .*needs the exact runs"):
        sa1bpack.open(path, mask_format="runs")
    with pytest.raises(OptionError, match="mask_sampling is 'any': choose one of area, center"):
        sa1bpack.open(path, mask_sampling="any")
