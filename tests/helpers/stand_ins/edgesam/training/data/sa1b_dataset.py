"""Samples in the form of EdgeSAM's: (image, annotation)."""

import json
from pathlib import Path

import mmengine.dataset  # not installed for the tests: what stands in for it must do
import numpy as np
import torch
from edge_sam.utils.transforms import stored_size
from PIL import Image
from pycocotools import mask as coco
from torch.nn.functional import interpolate, pad

MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (
    [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]))  # fmt: skip


class SA1BDataset(torch.utils.data.Dataset):
    def __init__(self, data_root, img_size=1024, split="train", load_gt_mask=False,
                 max_allowed_prompts=-1, mask_nms_thresh=-1.0):  # fmt: skip
        assert callable(mmengine.dataset.pseudo_collate)
        self.images = sorted(Path(data_root, "images", split).glob("*.jpg"))
        self.side, self.masks, self.most = img_size, load_gt_mask, max_allowed_prompts

    def get_keys(self):
        return [path.stem for path in self.images]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        path = self.images[index]
        pixels = np.array(Image.open(path).convert("RGB"), np.float32).transpose(2, 0, 1)
        height, width = pixels.shape[1:]
        size = stored_size(height, width, self.side)
        image = interpolate(torch.from_numpy(pixels)[None], size, mode="bilinear", antialias=True)
        record = Path(str(path).replace("images", "annotations")).with_suffix(".json").read_text()
        masks = json.loads(record)["annotations"]
        if 0 < self.most < len(masks):
            masks = [masks[row] for row in torch.randint(0, len(masks), (self.most,)).tolist()]
        scale = torch.tensor([size[1] / width, size[0] / height])
        boxes = torch.tensor([mask["bbox"] for mask in masks])
        boxes[:, 2:] += boxes[:, :2]
        annotation = {
            "prompt_box": boxes * scale.repeat(2),
            "prompt_point": torch.tensor([mask["point_coords"] for mask in masks]) * scale,
            "img_size_before_pad": torch.tensor([3, *size]),
        }
        if self.masks:
            cells = np.stack([coco.decode(mask["segmentation"]) for mask in masks])
            cells = interpolate(torch.from_numpy(cells)[:, None], size, mode="nearest")[:, 0]
            annotation["gt_mask"] = self.padded(cells)
        return self.padded((image[0] - MEAN) / STD), annotation

    def padded(self, grid):
        return pad(grid, (0, self.side - grid.shape[-1], 0, self.side - grid.shape[-2]))
