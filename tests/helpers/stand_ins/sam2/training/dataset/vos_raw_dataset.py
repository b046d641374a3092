"""Images as videos of one frame."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from iopath.common.file_io import g_pathmgr  # not installed for the tests
from pycocotools import mask as coco


@dataclass
class Frame:
    frame_idx: int
    image_path: str
    data: torch.Tensor | None = None


@dataclass
class Video:
    video_id: int
    frames: list[Frame]


class Segments:
    def __init__(self, path):
        with g_pathmgr.open(path, "r") as file:
            self.masks = [each["segmentation"] for each in json.load(file)["annotations"]]

    def load(self, frame_idx):
        return self

    def keys(self):
        return range(len(self.masks))

    def __getitem__(self, key):
        return torch.from_numpy(coco.decode(self.masks[key]))


class SA1BRawDataset:
    def __init__(self, img_folder, gt_folder):
        self.images, self.annotations = Path(img_folder), Path(gt_folder)
        self.video_names = sorted(path.stem for path in self.images.glob("*.jpg"))

    def __len__(self):
        return len(self.video_names)

    def get_video(self, index):
        name = self.video_names[index]
        frame = Frame(0, str(self.images / f"{name}.jpg"))
        return Video(int(name[3:]), [frame]), Segments(self.annotations / f"{name}.json")
