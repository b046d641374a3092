"""What SAM 2's training code does with a raw dataset, done with ours.

`datapoint` is written after its `VOSDataset`, `RandomUniformSampler` and `load_images`; nothing of
theirs is needed to run it.
"""

import pickle
import random

import numpy as np
import pytest
import torch
from small_tars import mask_of

import sa1bpack
from sa1bpack.adapters.sam2 import RawDataset

SIDE = 64  # of the images of the pack, which are 96 x 64 before


def datapoint(raw, index, most_objects, rng=random) -> tuple:
    """(uint8 (h, w, 3) pixels, {object id: uint8 (h, w) mask}, video id) of an image."""
    video, loader = raw.get_video(index)
    frames = video.frames[:1]
    visible = [key for key, segment in loader.load(frames[0].frame_idx).items() if segment.sum()]
    chosen = rng.sample(visible, min(len(visible), most_objects))
    assert len(video.frames) == len(video) and frames[0].data is not None
    pixels = (frames[0].data.cpu().numpy().transpose((1, 2, 0)) * 255.0).astype(np.uint8)
    segments = loader.load(frames[0].frame_idx)
    assert all(key in segments and segments[key] is not None for key in chosen)
    found = {key: segments[key].to(torch.uint8) for key in chosen}
    return pixels, found, video.video_id


@pytest.fixture
def raw(photos):
    return RawDataset(photos.root)


def test_every_image_is_a_video_of_one_frame_with_its_pixels_and_masks(photos, raw):
    ds = sa1bpack.open(photos.root, mask_format="bool", mask_size=SIDE)
    assert len(raw) == len(ds) == 5
    for index, sample in enumerate(ds):
        height, width = sample["size"][2:].tolist()
        video, loader = raw.get_video(index)
        assert (video.video_name, video.video_id) == (str(sample["image_id"]), sample["image_id"])
        assert (len(video), video.frames[0].frame_idx) == (1, 0)
        pixels, masks, _ = datapoint(raw, index, 100)
        assert np.array_equal(pixels, sample["image"][:height, :width])
        assert pixels.shape == (43, 64, 3)
        assert [*loader.load(0)] == [*loader.load(0).keys()] == [*range(len(sample["areas"]))]
        for key, mask in masks.items():
            assert mask.dtype == torch.uint8 and mask.shape == (height, width)
            assert np.array_equal(mask.numpy(), sample["masks"][key, :height, :width])


def test_masks_are_those_that_were_encoded_at_the_size_of_the_pixels(photos, raw):
    """Against the full masks, by the nearest source pixel: only the outline differs."""
    compared = 0
    for index in range(len(raw)):
        video, loader = raw.get_video(index)
        for key, mask in ((key, loader.load(0)[key].numpy()) for key in loader.load(0)):
            full = mask_of(video.video_id, key)  # (64, 96)
            rows, columns = ((np.arange(side) + 0.5) * 96 / SIDE for side in mask.shape)
            nearest = full[np.minimum(rows.astype(int), 63)][:, columns.astype(int)]
            assert (nearest != mask).sum() <= 4 * nearest.sum() ** 0.5 + 4
            compared += nearest.sum() > 0
    assert compared == sum(len(found["annotations"]) for found in photos.records.values())


def test_only_the_masks_that_are_asked_for_are_drawn_and_those_once(photos, raw, monkeypatch):
    drawn, draw = [], sa1bpack.masks.draw_window
    monkeypatch.setattr(
        sa1bpack.masks, "draw_window", lambda *runs, **grid: drawn.append(1) or draw(*runs, **grid)
    )
    many = max(range(len(raw)), key=lambda index: len(raw.get_video(index)[1].load(0)))
    _, masks, _ = datapoint(raw, many, 2, random.Random(0))
    assert len(drawn) == len(masks) == 2
    segments = raw.get_video(many)[1].load(0)
    assert [segment.sum() for segment in segments.values()] == segments.areas.tolist()
    assert len(segments) == 5 and 4 in segments and 5 not in segments and "4" not in segments
    assert len(drawn) == 2
    assert segments[3] is segments[3] and len(drawn) == 3
    with pytest.raises(KeyError):
        segments[5]


@pytest.mark.parametrize("threshold", [-1, 0.05, 0.3, 0.93, 0.97, 1.0, 1.1, 2])
def test_scores_and_areas_filter_by_what_the_annotations_say(photos, threshold):
    """Their `uncertain_iou` looks for a key that no record has; a test would find all masks."""
    by_score = RawDataset(photos.root, uncertain_iou=threshold)
    by_area = RawDataset(photos.root, mask_area_frac_thresh=threshold)
    for index in range(len(by_score)):
        video, segments = by_score.get_video(index)
        found = photos.records[video.video_id]["annotations"]
        sure = [each["area"] for each in found if each["stability_score"] >= threshold]
        small = [a for a in (e["area"] for e in found) if threshold > 1 or a / 6144 < threshold]
        assert segments.load(0).areas.tolist() == sure
        segments = by_area.get_video(index)[1]
        assert segments.areas.tolist() == small and [*segments] == [*range(len(small))]


def test_selections_thresholds_frames_and_pickles_are_kept(photos, tmp_path):
    ds = sa1bpack.open(photos.root, min_area=200)[3:]
    raw = pickle.loads(pickle.dumps(RawDataset(ds, num_frames=3)))
    assert len(raw) == 2
    video, loader = raw.get_video(1)
    assert video.video_id == ds[1]["image_id"] and len(video) == 3
    assert [frame.frame_idx for frame in video.frames] == [0, 1, 2]
    assert loader.load(2).areas.tolist() == ds[1]["areas"].tolist()
    ds.save_selection(tmp_path / "train.sel")
    assert RawDataset(tmp_path / "train.sel").get_video(1)[0].video_id == video.video_id


def test_a_squashed_image_has_squashed_masks(tmp_path, sample_tar):
    sa1bpack.pack(sample_tar, tmp_path / "pack", workers=1, fit="squash", image_size=64)
    ds = sa1bpack.open(tmp_path / "pack", mask_format="bool", mask_size=64)
    raw = RawDataset(tmp_path / "pack")
    video, loader = raw.get_video(0)
    assert video.frames[0].data.shape == (3, 64, 64)
    assert np.array_equal(loader.load(0)[0].numpy(), ds[0]["masks"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames is 0"),
        ({"mask_area_frac_thresh": "0.9"}, "mask_area_frac_thresh is '0.9'"),
        ({"uncertain_iou": float("nan")}, "uncertain_iou is nan"),
        ({"zzz": 1}, "RawDataset has no option 'zzz'"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(photos, options, message):
    with pytest.raises(sa1bpack.OptionError, match=message):
        RawDataset(photos.root, **options)


def test_what_has_no_runs_or_has_a_transform_is_refused(photos, tmp_path, sample_tar):
    with pytest.raises(sa1bpack.OptionError, match="has a transform"):
        RawDataset(sa1bpack.open(photos.root, transform=dict))
    sa1bpack.pack(sample_tar, tmp_path / "bits", workers=1, masks="bits", image_size=64)
    with pytest.raises(sa1bpack.OptionError, match="needs the exact runs"):
        RawDataset(tmp_path / "bits")
    with pytest.raises(IndexError, match="index 5 is out of range"):
        RawDataset(photos.root).get_video(5)
