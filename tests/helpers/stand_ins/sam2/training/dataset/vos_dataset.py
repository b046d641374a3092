"""Samples: the frames of a video, each with its objects."""

from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image


class VOSDataset:
    def __init__(self, transforms, training, video_dataset, sampler, multiplier):
        self.transforms, self.videos, self.sampler = transforms, video_dataset, sampler

    def __len__(self):
        return len(self.videos)

    def __getitem__(self, index):
        video, loader = self.videos.get_video(index)
        [frame] = video.frames
        segments = loader.load(0)
        keys = self.sampler.sample(segments)
        if frame.data is None:
            image = Image.open(frame.image_path).convert("RGB")
        else:
            pixels = frame.data.numpy().transpose(1, 2, 0) * 255
            image = Image.fromarray(pixels.astype(np.uint8))
        objects = [SimpleNamespace(segment=segments[key].to(torch.uint8)) for key in keys]
        sample = SimpleNamespace(frames=[SimpleNamespace(data=image, objects=objects)])
        for transform in self.transforms:
            sample = transform(sample)
        return sample
