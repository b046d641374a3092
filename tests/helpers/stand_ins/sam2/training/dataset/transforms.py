"""Steps for the frames of a sample and their objects."""

import random

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate


class ComposeAPI:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for transform in self.transforms:
            transform(sample.frames[0])
        return sample


class RandomHorizontalFlip:
    def __init__(self, consistent_transform):
        assert consistent_transform

    def __call__(self, frame):
        if random.random() < 0.5:
            frame.data = frame.data.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            for each in frame.objects:
                each.segment = each.segment.flip(-1)


class RandomResizeAPI:
    def __init__(self, sizes, square, consistent_transform):
        assert square and consistent_transform
        self.size = (sizes, sizes)

    def __call__(self, frame):
        frame.data = frame.data.resize(self.size, Image.Resampling.BILINEAR)
        for each in frame.objects:
            cells = interpolate(
                each.segment[None, None], self.size, mode="bilinear", antialias=True
            )
            each.segment = cells[0, 0]


class ToTensorAPI:
    def __call__(self, frame):
        frame.data = torch.from_numpy(np.array(frame.data)).permute(2, 0, 1) / 255


class NormalizeAPI:
    def __init__(self, mean, std):
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))

    def __call__(self, frame):
        frame.data = (frame.data - self.mean) / self.std
