"""Images under maps, compared with PIL's resampling of each image."""

import numpy as np
import pytest
import torch
from PIL import Image

from sa1bpack.transforms.geometry.frame import AxisMaps
from sa1bpack.transforms.images.resample import resample

S = 40
# Rectangles x0, y0, x1, y1 of stored images, whether mirrored, and stored width and height.
ANY = [
    ((0, 0, 30, 20), False, (30, 20)),
    ((3.3, 1.7, 12.1, 9.25), False, (40, 31)),
    ((10, 0, 40, 7.5), True, (40, 8)),
    ((0, 0, 40, 40), False, (40, 40)),
    ((1.2, 0, 39.9, 33), True, (40, 33)),
]


def images(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, S, S, 3), dtype=np.uint8)


def maps_of(cases, canvas, device) -> tuple[AxisMaps, torch.Tensor]:
    scale, offset = [], []
    for (x0, y0, x1, y1), mirrored, _ in cases:
        sx, sy = (x1 - x0) / canvas[1], (y1 - y0) / canvas[0]
        scale.append((-sx if mirrored else sx, sy))
        offset.append((x1 if mirrored else x0, y0))
    stored = [size for *_, size in cases]
    scale, offset, stored = (
        torch.tensor(values, dtype=torch.float64, device=device)
        for values in (scale, offset, stored)
    )
    return AxisMaps(scale, offset), stored


def by_pil(image: np.ndarray, case, canvas) -> np.ndarray:
    """One image in float, without rounding: float32 (3, h, w)."""
    box, mirrored, (width, height) = case
    planes = [
        np.asarray(
            Image.fromarray(image[:height, :width, c].astype(np.float32)).resize(
                canvas[::-1], Image.Resampling.BILINEAR, box=box
            )
        )
        for c in range(3)
    ]
    return np.stack(planes)[..., ::-1] if mirrored else np.stack(planes)


@pytest.mark.parametrize("canvas", [(16, 24), (7, 5), (48, 64)])
def test_any_map_matches_pil_for_each_image(canvas, device):
    source = images(len(ANY))
    maps, stored = maps_of(ANY, canvas, device)
    found = resample(torch.from_numpy(source).to(device), maps, stored, canvas).cpu().numpy()
    for k, case in enumerate(ANY):
        np.testing.assert_allclose(found[k], by_pil(source[k], case, canvas), atol=2e-3)


def test_padding_does_not_affect_the_image(device):
    source = torch.from_numpy(images(3)).to(device)
    maps, stored = maps_of(ANY[:3], (44, 52), device)
    other = source.clone()
    for k, (*_, (width, height)) in enumerate(ANY[:3]):
        other[k, height:], other[k, :, width:] = 255, 255
    found = resample(source, maps, stored, (44, 52))
    assert torch.equal(found, resample(other, maps, stored, (44, 52)))
