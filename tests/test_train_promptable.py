"""scripts/train_promptable.py: a few steps of a tiny model in this process."""

import json
import xml.etree.ElementTree as ElementTree

import example_runs
import numpy as np
import pytest
import torch
from PIL import Image

import sa1bpack

SMALL = ("--size", "64", "--width", "16", "--masks", "4", "--batch-size", "2", "--min-area", "1")


@pytest.fixture(scope="module")
def script():
    return example_runs.load("train_promptable")


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """Six images in two shards, with a feature per image as a teacher's embeddings would be."""
    root = example_runs.write_pack(tmp_path_factory.mktemp("promptable"))
    sa1bpack.derive(sa1bpack.open(root), "teacher", embed, batch_size=2)
    return root


def embed(batch):
    pooled = torch.nn.functional.adaptive_avg_pool2d(
        batch["images"].permute(0, 3, 1, 2).float() / 255, 4
    )
    return pooled.half()


def run(script, pack, out, *options) -> list[dict]:
    with pytest.MonkeyPatch.context() as patch, example_runs.in_this_process(patch):
        assert script.main([str(pack), "--output", str(out), *SMALL, *map(str, options)]) == 0
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(script, pack, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    return out, run(script, pack, out, "--steps", 5, "--val", 0, "--distill", "teacher")


def test_a_run_has_losses_scores_and_pictures(undisturbed, script):
    out, lines = undisturbed
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert {line["epoch"] for line in lines} == {0, 1}
    for line in lines:
        assert all(np.isfinite(line[key]) for key in ("loss", "iou", "distill"))
    picture = np.asarray(Image.open(out / "predictions.png"))
    assert picture.shape == (2 * 64, 2 * 64, 3) and picture.std() > 0
    drawing = ElementTree.parse(out / "losses.svg").getroot()
    assert sum(element.tag.endswith("polyline") for element in drawing) == 2


def test_a_run_that_was_stopped_in_mid_epoch_continues_with_the_losses_of_an_undisturbed_one(
    script, pack, undisturbed, tmp_path
):
    options = "--val", 0, "--distill", "teacher"
    run(script, pack, tmp_path / "run", "--steps", 2, *options)
    lines = run(script, pack, tmp_path / "run", "--steps", 5, "--resume", *options)
    assert lines == undisturbed[1]


def test_a_step_does_not_wait_for_the_device(script, pack, tmp_path):
    arguments = [str(pack), "--output", str(tmp_path / "run"), *SMALL]
    arguments += ["--val", "0", "--distill", "teacher"]
    with pytest.MonkeyPatch.context() as patch, example_runs.in_this_process(patch):
        trainer = script.Trainer(script.make_parser().parse_args(arguments), torch.device("cpu"))
    assert all(done["sums"].is_meta for done in example_runs.steps_on_meta(trainer))


def test_the_model_learns_what_it_is_shown(script, pack, tmp_path):
    options = "--val", 0, "--no-augment", "--lr", 3e-3, "--warmup", 1
    lines = run(script, pack, tmp_path / "run", "--steps", 24, *options)
    losses = [line["loss"] for line in lines]
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:6])


def test_a_part_is_held_out_unless_all_is_trained_on(script, pack, tmp_path):
    arguments = [str(pack), "--output", str(tmp_path / "run"), *SMALL, "--val", "0.3"]
    with pytest.MonkeyPatch.context() as patch, example_runs.in_this_process(patch):
        trainer = script.Trainer(script.make_parser().parse_args(arguments), torch.device("cpu"))
    train, held_out = (set(part.column("image_id")) for part in (trainer.train, trainer.val))
    assert train and held_out and not train & held_out
    assert len(train | held_out) == len(example_runs.IDS)


def test_a_folder_with_a_checkpoint_is_not_overwritten(script, pack, undisturbed, capsys):
    with pytest.raises(SystemExit) as ended:
        script.main([str(pack), "--output", str(undisturbed[0])])
    assert ended.value.code == 2 and "--resume" in capsys.readouterr().err
