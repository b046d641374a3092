"""Tiny models with the interfaces of EdgeSAM's training code, for the recipes of the documents."""

from functools import partial
from types import SimpleNamespace

import torch

WIDTH = 8


class Distilled(torch.nn.Module):
    """What EdgeSAM's `build_sam_from_config(config, None, True, True)` returns: called by mode."""

    mask_threshold = 0.0

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Conv2d(3, WIDTH, 16, stride=16)
        self.prompts = torch.nn.Linear(3, WIDTH)
        self.masks = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.judge = torch.nn.Linear(WIDTH, 4)
        place = torch.zeros(1, WIDTH, 64, 64)
        self.prompt_encoder = SimpleNamespace(get_dense_pe=lambda: place)

    def forward(self, x=None, mode="image_encoder", **given):
        modes = {
            "image_encoder": self.encoder,
            "prompt_encoder": self._encode,
            "mask_decoder": self._decode,
        }
        return modes[mode](x) if x is not None else modes[mode](**given)

    def _encode(self, points, boxes, masks, num_prompts):
        """Sparse (T, k, C) and dense embeddings, of points (T, n, 2) with labels (T, n) and boxes
        (T, 4), of which one may be None; num_prompts: of each image."""
        found = []
        if points is not None:
            coords, labels = points
            found.append(torch.cat([coords / 1024, labels[..., None].float()], 2))
        if boxes is not None:
            corners = boxes.unflatten(1, (2, 2)) / 1024
            kinds = torch.tensor([2.0, 3.0]).expand(len(boxes), 2)
            found.append(torch.cat([corners, kinds[..., None]], 2))
        tokens = torch.cat(found, 1)
        assert masks is None and len(tokens) == sum(num_prompts)
        return self.prompts(tokens), torch.zeros(len(tokens), WIDTH, 1, 1)

    def _decode(
        self, image_embeddings, image_pe, sparse_prompt_embeddings, dense_prompt_embeddings,
        num_multimask_outputs, num_prompts,
    ):  # fmt: skip
        """Logits (T, n, 256, 256), IoUs (T, n), and what EdgeSAM may also distil."""
        counts = torch.tensor(num_prompts)
        image = torch.arange(len(counts)).repeat_interleave(counts)
        features = (image_embeddings + image_pe)[image] + dense_prompt_embeddings
        token = sparse_prompt_embeddings.mean(1)
        weights = self.masks(token).unflatten(1, (4, WIDTH))[:, :num_multimask_outputs]
        logits = torch.einsum("tnc,tchw->tnhw", weights, features)
        logits = torch.nn.functional.interpolate(logits, scale_factor=4)
        return logits, self.judge(token)[:, :num_multimask_outputs], {}


torch.manual_seed(0)
model, _teacher = Distilled(), Distilled().requires_grad_(False)
teacher_model = {mode: partial(_teacher, mode=mode) for mode in ("prompt_encoder", "mask_decoder")}
sam = SimpleNamespace(image_encoder=_teacher.encoder)  # (B, 3, 1024, 1024) → (B, C, 64, 64)
sam3 = torch.nn.Conv2d(3, WIDTH, 14, stride=14).requires_grad_(False)  # 1008 pixels → 72 cells
student3 = torch.nn.Conv2d(3, WIDTH, 14, stride=14)


def decode(of_mode, embeddings, outputs: int, **prompts):
    """Logits and IoUs by their calls of a prompt encoder and a mask decoder, train.py 399 to 427.

    Args:
        of_mode: the function that a mode selects.
    """
    sparse, dense = of_mode("prompt_encoder")(masks=None, **prompts)
    logits, ious, _ = of_mode("mask_decoder")(
        image_embeddings=embeddings,
        image_pe=model.prompt_encoder.get_dense_pe(),
        sparse_prompt_embeddings=sparse,
        dense_prompt_embeddings=dense,
        num_multimask_outputs=outputs,
        num_prompts=prompts["num_prompts"],
    )
    return logits, ious


def decode_s(embeddings, outputs: int, **prompts):
    """The student's, with gradients."""
    return decode(lambda mode: partial(model, mode=mode), embeddings, outputs, **prompts)


@torch.no_grad()
def decode_t(embeddings, outputs: int, **prompts):
    """The teacher's."""
    return decode(teacher_model.get, embeddings, outputs, **prompts)
