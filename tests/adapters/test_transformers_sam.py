"""What the SAM and SAM 2 of transformers take is what batches have: pixels, points and boxes."""

import pytest
import torch
from frameworks import has_torchvision

import sa1bpack
from sa1bpack import transforms as T

has_torchvision()  # before transformers imports it
transformers = pytest.importorskip("transformers")

SIDE = 64  # of the images of the pack


@pytest.fixture(scope="module")
def batches(photos):
    """A batch of the Loader, and what a Pipeline makes of it."""
    ds = sa1bpack.open(photos.root)
    batch = next(iter(sa1bpack.Loader(ds, 5, pad_to_max=True, max_masks=5)))
    return batch, T.Pipeline(ds)(batch)


def test_pixels_are_those_of_the_processor(batches):
    processor = transformers.SamImageProcessor(
        size={"longest_edge": SIDE}, pad_size={"height": SIDE, "width": SIDE}
    )
    batch, made = batches
    for image, sizes, pixels in zip(batch["images"], batch["sizes"], made["images"], strict=True):
        height, width = sizes[2:].tolist()
        expected = processor(image[:height, :width].numpy(), return_tensors="pt")["pixel_values"]
        torch.testing.assert_close(pixels, expected[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_sam_2_takes_boxes_as_points_and_sam_takes_them_apart(batches):
    """Of labels 2 and 3 the encoder of SAM knows nothing: the documents say so."""
    from transformers.models.sam2.modeling_sam2 import Sam2PromptEncoder

    _, made = batches
    boxed = T.Prompts("box")(made)
    points, labels = T.sam_points(boxed)
    is_box = boxed["prompt_kinds"] == 1
    boxes = boxed["prompt_boxes"] - 0.5
    encoder = Sam2PromptEncoder(transformers.Sam2PromptEncoderConfig(image_size=SIDE))
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter)
    as_points, _ = encoder(points[:, :, 1:], labels[:, :, 1:], None, None)
    as_boxes, _ = encoder(None, None, boxes, None)
    assert is_box.sum() == 13
    assert torch.equal(as_points[is_box], as_boxes[is_box])

    config = transformers.SamConfig(
        vision_config={"num_hidden_layers": 0, "image_size": SIDE, "num_pos_feats": 128},
        prompt_encoder_config={"image_size": SIDE},
        mask_decoder_config={"num_hidden_layers": 0},
    )
    encoder = transformers.SamModel(config).prompt_encoder
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter)
    as_points, _ = encoder(points[:, :, 1:], labels[:, :, 1:], None, None)
    corners = as_points[:, :, :2][is_box]  # without the padding that it adds
    as_boxes, _ = encoder(None, None, boxes, None)
    unlabelled = as_boxes[is_box] - torch.cat([encoder.point_embed[k].weight for k in (2, 3)])
    torch.testing.assert_close(corners, unlabelled)


def test_points_and_boxes_are_those_of_the_processor(photos):
    """Given in pixels of the photograph, it scales them as the pack does."""
    processor = transformers.SamProcessor(
        transformers.SamImageProcessor(
            size={"longest_edge": SIDE}, pad_size={"height": SIDE, "width": SIDE}
        )
    )
    source, stored = (sa1bpack.open(photos.root, coordinates=c) for c in ("source", "stored"))
    for of_source, of_stored in zip(source, stored, strict=True):
        if not len(of_source["areas"]):
            continue
        height, width = of_source["size"][:2].tolist()
        corners, extents = of_source["bboxes"][:, :2], of_source["bboxes"][:, 2:]
        scaled = processor(
            torch.zeros(3, height, width, dtype=torch.uint8),
            input_points=[[[point.tolist()] for point in of_source["point_coords"]]],
            input_boxes=[[[*a, *(a + b)] for a, b in zip(corners.tolist(), extents, strict=True)]],
            return_tensors="pt",
        )
        found = scaled["input_points"][0, :, 0], scaled["input_boxes"][0]
        torch.testing.assert_close(found[0], torch.from_numpy(of_stored["point_coords"]))
        corners, extents = torch.from_numpy(of_stored["bboxes"]).split(2, 1)
        torch.testing.assert_close(found[1], torch.cat([corners, corners + extents], 1))
