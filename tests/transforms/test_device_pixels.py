"""Planes to RGB and bytes to normalised numbers, compared with numpy and PIL."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.pixels import yuv420
from sa1bpack.transforms.images.pixels import SAM_MEAN, SAM_STD, normalize, yuv420_to_rgb


def canvas_of(planes, side: int, filling: int) -> np.ndarray:
    """uint8 (S * 3 / 2, S): I420 with `filling` outside the image."""
    luma, *chroma = planes
    canvas = np.full((side * 3 // 2, side), filling, np.uint8)
    canvas[: luma.shape[0], : luma.shape[1]] = luma
    halves = canvas[side:].reshape(2, side // 2, side // 2)
    for place, plane in zip(halves, chroma, strict=True):
        place[: plane.shape[0], : plane.shape[1]] = plane
    return canvas


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_planes_convert_to_the_bytes_of_the_reference_whatever_the_padding(sizes, seed):
    rng = np.random.default_rng(seed)
    planes = [
        tuple(
            rng.integers(0, 256, shape, dtype=np.uint8)
            for shape in ((h, w), *2 * [((h + 1) // 2, (w + 1) // 2)])
        )
        for h, w in sizes
    ]
    canvases = np.stack([canvas_of(each, 12, int(rng.integers(256))) for each in planes])
    found = yuv420_to_rgb(torch.from_numpy(canvases), torch.tensor(sizes, dtype=torch.int32))
    assert found.shape == (len(sizes), 12, 12, 3) and found.dtype == torch.uint8
    for k, (h, w) in enumerate(sizes):
        assert np.array_equal(found[k, :h, :w].numpy(), yuv420.yuv420_to_rgb(*planes[k]))


def test_normalising_matches_sam_and_padding_is_zero(device):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, 3, 4, 5), dtype=np.uint8)
    inside = np.ones((2, 1, 4, 5), bool)
    inside[1, :, 2:] = False
    mean, std = torch.tensor(SAM_MEAN).to(device), torch.tensor(SAM_STD).to(device)
    images = torch.from_numpy(pixels).to(device)
    found = normalize(images, mean, std, torch.from_numpy(inside).to(device)).cpu().numpy()
    expected = (pixels - np.reshape(SAM_MEAN, (3, 1, 1))) / np.reshape(SAM_STD, (3, 1, 1)) * inside
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.array_equal(images.cpu().numpy(), pixels)
