"""What a teacher gets by `pipeline`: the tensors of SAM's and of SAM 2's own preprocessing.

Written as their code does it: `Sam.preprocess` after `ResizeLongestSide.apply_image` of
segment-anything, and `SAM2Transforms` of sam2, which resizes tensors with antialiasing.
"""

import io
import tarfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import sa1bpack
from sa1bpack import transforms as T

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)


def column(numbers) -> torch.Tensor:
    return torch.tensor(numbers).view(3, 1, 1)


def sam(image: Image.Image) -> torch.Tensor:
    """float32 (3, 1024, 1024): resized on uint8, normalised, then padded."""
    scale = 1024 / max(image.size)
    width, height = (int(side * scale + 0.5) for side in image.size)
    resized = np.array(image.resize((width, height), Image.Resampling.BILINEAR))
    pixels = (torch.as_tensor(resized).permute(2, 0, 1) - column(MEAN)) / column(STD)
    return F.pad(pixels, (0, 1024 - width, 0, 1024 - height))


def sam2(image: Image.Image) -> torch.Tensor:
    """float32 (3, 1024, 1024): in 0 to 1, resized to a square, normalised."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    pixels = F.interpolate(pixels, (1024, 1024), mode="bilinear", antialias=True)[0]
    return (pixels - column((0.485, 0.456, 0.406))) / column((0.229, 0.224, 0.225))


@pytest.mark.parametrize("fit, theirs", [("pad", sam), ("native", sam), ("squash", sam2)])
def test_a_teacher_gets_the_tensors_of_its_own_preprocessing(sample_tar, tmp_path, fit, theirs):
    def inputs(batch):
        return batch["images"]

    sa1bpack.pack(sample_tar, tmp_path / "packed", workers=1, fit=fit, resample="exact")
    ds = sa1bpack.open(tmp_path / "packed")
    sa1bpack.derive(ds, "inputs", inputs, spatial=True, pipeline=T.Pipeline(ds))
    with tarfile.open(sample_tar) as tar:
        files = [member for member in tar if member.name.endswith(".jpg")]
        photographs = {member.name[2:]: tar.extractfile(member).read() for member in files}
    errors = []
    for sample in ds.with_options(features=["inputs"]):
        height, width = sample["size"][2:]
        stored = Image.fromarray(sample["image"][:height, :width])
        found = torch.from_numpy(sample["inputs"].copy())
        # Of the pack's pixels, they are theirs: only float32 rounds.
        torch.testing.assert_close(found, theirs(stored), atol=1e-6, rtol=0)
        expected = theirs(Image.open(io.BytesIO(photographs[sample["file_name"]])))
        if theirs is sam:
            assert torch.equal(found == 0, expected == 0)  # padding, and nothing else
        errors.append((found - expected).abs())
    # Of the photograph's, resized by a bilinear filter there and by a bicubic one in the pack.
    assert 0.4 < max(error.max() for error in errors) < 0.57
    assert max(error.mean() for error in errors) < 0.016
