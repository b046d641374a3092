"""scripts/train_promptable.py: a few steps of a tiny model, in this process and in others."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import make_figures
import numpy as np
import pytest
import torch
import train_promptable as script
from commands import finish
from forked_ranks import HELPERS
from made_batches import sent
from PIL import Image
from small_tars import SMALL as SMALL_PACK
from small_tars import members, write_tar
from sync_debug import waiting_is_an_error

import sa1bpack

ROOT = Path(__file__).parents[1]
IDS = range(100, 107)
# As two processes that torchrun starts. An optimizer imports `torch._dynamo`: once for both.
TWO_RANKS = """
import sys
import torch._dynamo
import train_promptable
from forked_ranks import fork_ranks
fork_ranks(2)
sys.exit(train_promptable.main(sys.argv[1:]))
"""
SMALL = ("--size", "64", "--width", "16", "--masks", "4", "--batch-size", "4", "--min-area", "1")
DISTILLED = (*SMALL, "--val", "0", "--distill", "teacher")


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """Seven images in two shards, a feature of each as a teacher's embeddings would be; those of
    even ids have no masks."""
    folder = tmp_path_factory.mktemp("promptable")
    tar = write_tar(folder / "sa_000000.tar", members(IDS, lambda number: number % 2 * 3))
    sa1bpack.pack(tar, folder / "pack", workers=1, **SMALL_PACK)
    sa1bpack.derive(sa1bpack.open(folder / "pack"), "teacher", embed, batch_size=2)
    return folder / "pack"


def embed(batch):
    pooled = torch.nn.functional.adaptive_avg_pool2d(
        batch["images"].permute(0, 3, 1, 2).float() / 255, 4
    )
    return pooled.half()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As in the processes, which must have the same losses."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def main(*arguments) -> int:
    """The script in this process, on the CPU; what it sets is restored. Returns the exit code."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        code = script.main(list(map(str, arguments)))
    signal.signal(signal.SIGTERM, handler)
    return code


def run(pack, out, *options, settings=DISTILLED) -> list[dict]:
    """Train in this process; returns the lines of the log."""
    assert main(pack, "--output", out, *settings, *options) == 0
    return lines(out)


def start(*arguments, program=(script.__file__,)) -> subprocess.Popen:
    """Train in a process of its own, on the CPU."""
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")}  # fmt: skip
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(script.__file__).parent), str(HELPERS)])
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def scores(folder: Path) -> list[dict]:
    """The validations of a run, a line each."""
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


def lines(folder: Path) -> list[dict]:
    """The log of a run, a line per step."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def same_as(undisturbed: Path, folder: Path) -> bool:
    """Whether a run had exactly the same losses and weights."""
    expected, found = weights(undisturbed), weights(folder)
    return lines(undisturbed) == lines(folder) and all(
        torch.equal(expected[name], found[name]) for name in expected | found
    )


def trainer_of(pack, out, *options, device="cpu"):
    arguments = [str(pack), "--output", str(out), *DISTILLED, *options]
    return script.Trainer(script.make_parser().parse_args(arguments), torch.device(device))


@pytest.fixture(scope="module")
def undisturbed(pack, tmp_path_factory):
    """The folder of a run of five steps, two and a half epochs."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run(pack, out, "--steps", 5)
    return out


@pytest.fixture(scope="module")
def stopped(pack, tmp_path_factory):
    """The folder of a run of three steps, in mid-epoch."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert run(pack, out, "--steps", 3)[-1]["epoch"] == 1
    return out


def test_a_run_has_losses_scores_and_pictures(undisturbed):
    found = lines(undisturbed)
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5]
    assert {line["epoch"] for line in found} == {0, 1, 2}
    for line in found:
        assert all(np.isfinite(line[key]) for key in ("loss", "iou", "distill"))
    picture = np.asarray(Image.open(undisturbed / "predictions.png"))
    strips = np.split(picture[: 3 * (len(picture) // 3)], 3)  # true, before and after training
    assert all(strip.std() > 0 for strip in strips)
    assert not np.array_equal(strips[1], strips[2])
    drawing = ElementTree.parse(undisturbed / "losses.svg").getroot()
    texts = [element.text for element in drawing if element.tag.endswith("text")]
    assert {"loss", "mean IoU", "step", "0", "1", "5"} <= set(texts)  # both panels have axes
    assert sum(element.tag.endswith("polyline") for element in drawing) == 4


def test_resuming_in_mid_epoch_has_bit_for_bit_the_losses_of_an_undisturbed_run(
    pack, undisturbed, stopped, tmp_path
):
    out = shutil.copytree(stopped, tmp_path / "run")
    assert not same_as(undisturbed, out)
    run(pack, out, "--steps", 5, "--resume")
    assert same_as(undisturbed, out)


def test_sigterm_saves_after_the_step_and_the_same_command_resumes(pack, undisturbed, tmp_path):
    options = ("--output", tmp_path, *DISTILLED, "--resume", "--epochs", 100_000)
    process = start(pack, *options)
    for line in process.stdout:
        if line.startswith("step 1 "):
            process.send_signal(signal.SIGTERM)
            break
    code, _, error = finish(process)
    assert code == 128 + signal.SIGTERM, error
    steps = len(lines(tmp_path))
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == steps
    target = max(5, steps + 1)
    found = run(pack, tmp_path, "--steps", target, "--resume", "--epochs", 100_000)
    assert [line["step"] for line in found] == list(range(1, target + 1))
    assert found[:5] == lines(undisturbed)


def test_a_run_of_one_process_resumes_as_two_ranks_with_the_same_losses(
    pack, undisturbed, stopped, tmp_path
):
    """Images of even ids have no masks, so a rank may have none, and takes part all the same."""
    out = shutil.copytree(stopped, tmp_path / "run")
    options = ("--output", out, *DISTILLED, "--steps", 5, "--resume")
    code, _, error = finish(start(pack, *options, program=("-c", TWO_RANKS)))
    assert code == 0, error
    for expected, found in zip(lines(undisturbed), lines(out), strict=True):
        assert found["epoch"] == expected["epoch"]
        for name in ("loss", "iou", "distill"):
            assert found[name] == pytest.approx(expected[name], rel=1e-3), name
    found_weights = weights(out)
    for name, tensor in weights(undisturbed).items():
        assert torch.allclose(found_weights[name], tensor, atol=1e-3), name


def test_validation_in_between_changes_nothing_and_is_logged_once_per_step(
    pack, undisturbed, stopped, tmp_path
):
    out = tmp_path / "run"
    run(pack, out, "--steps", 4, "--validate-every", 2)
    run(pack, out, "--steps", 5, "--validate-every", 2, "--resume")
    assert same_as(undisturbed, out)
    assert [line["step"] for line in scores(out)] == [0, 2, 4, 5]
    assert scores(out)[-1] == scores(undisturbed)[-1]
    assert scores(stopped)[-1].keys() == {"step", "iou@1", "iou@3", "iou@5"}


def documented() -> dict[int, tuple[float, float, float]]:
    """The table of the example of training.md: step → loss, mean IoU at 1 and at 3 clicks."""
    text = (ROOT / "docs/training.md").read_text()
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    return {int(step): (float(loss), float(one), float(three)) for step, loss, one, three in rows}


def test_the_example_of_the_documents_learns_the_photographs_as_they_say(sample_tar, tmp_path):
    """To its first row after the start."""
    table = documented()
    sa1bpack.pack(sample_tar, tmp_path / "packed", workers=1)
    steps = min(step for step in table if step)
    with contextlib.chdir(tmp_path):  # its options name the pack, and the run
        assert main(*make_figures.example(), "--steps", steps) == 0
    log = lines(tmp_path / "run")
    for line in scores(tmp_path / "run"):
        loss, *ious = table[line["step"]]
        assert [line["iou@1"], line["iou@3"]] == pytest.approx(ious, abs=0.1), line
        if line["step"]:
            mean_loss = np.mean([each["loss"] for each in log[line["step"] - 10 : line["step"]]])
            assert mean_loss == pytest.approx(loss, rel=0.15)


def test_results_that_are_read_together_are_those_of_single_steps(pack, undisturbed, tmp_path):
    (tmp_path / "run").mkdir()
    trainer = trainer_of(pack, tmp_path / "run", "--steps", "5")
    trainer.read_every = 3
    assert not trainer.run(threading.Event())
    assert lines(tmp_path / "run") == lines(undisturbed)


def test_a_step_does_not_wait_for_the_device(pack, tmp_path):
    """On meta tensors: what needs their contents, and so would wait, raises."""
    trainer, meta = trainer_of(pack, tmp_path), torch.device("meta")
    trainer.device = meta
    trainer.model.to(meta)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
    for batch in itertools.islice(trainer.loader, 3):
        assert trainer.train_step(sent(batch, meta), stop=False)["sums"].is_meta


@pytest.mark.cuda
def test_a_step_on_cuda_does_not_wait_for_it(pack, tmp_path):
    trainer = trainer_of(pack, tmp_path, device="cuda:0")
    batches = iter(trainer.loader)
    trainer.train_step(next(batches), stop=False)  # the optimizer makes its state
    batch = next(batches)
    with waiting_is_an_error():
        trainer.train_step(batch, stop=False)


@pytest.mark.cuda
def test_a_run_on_cuda_resumes_with_step_counts_on_the_cpu(pack, tmp_path):
    """Those of the optimizer, which would be read at every step."""
    (tmp_path / "run").mkdir()
    trainer = trainer_of(pack, tmp_path / "run", "--steps", "2", device="cuda:0")
    assert not trainer.run(threading.Event())
    trainer.save()
    again = trainer_of(pack, tmp_path / "run", device="cuda:0")
    again.load()
    states = list(again.optimizer.state.values())
    assert all(state["step"].device.type == "cpu" and state["step"] == 2 for state in states)
    assert all(state["exp_avg"].is_cuda for state in states)


def test_the_model_learns_what_it_is_shown(pack, tmp_path):
    options = "--no-augment", "--lr", 3e-3, "--warmup", 1, "--steps", 24, "--batch-size", 2
    settings = (*SMALL, "--val", "0")
    found = run(pack, tmp_path / "run", *options, settings=settings)
    losses = [line["loss"] for line in found if line["loss"]]
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:6])


def test_a_part_is_held_out_unless_all_is_trained_on(pack, tmp_path):
    trainer = trainer_of(pack, tmp_path, "--val", "0.3")
    train, held_out = (set(part.column("image_id")) for part in (trainer.train, trainer.val))
    assert train and held_out and not train & held_out
    assert len(train | held_out) == len(IDS)


def test_wrong_usage_is_one_line_and_exit_code_2(pack, undisturbed, tmp_path, capsys):
    assert main(tmp_path / "none", "--output", tmp_path / "run") == 2
    out, error = capsys.readouterr()
    assert out == "" and "none" in error and error.count("\n") == 1
    with pytest.raises(SystemExit) as ended:  # a folder with a checkpoint is not overwritten
        main(pack, "--output", undisturbed)
    assert ended.value.code == 2 and "--resume" in capsys.readouterr().err


def test_a_checkpoint_of_other_images_is_one_line_and_exit_code_2(pack, stopped, tmp_path, capsys):
    part = tmp_path / "part.sel"
    sa1bpack.open(pack)[1:].save_selection(part)
    out = shutil.copytree(stopped, tmp_path / "run")
    assert main(part, "--output", out, *DISTILLED, "--resume") == 2
    error = capsys.readouterr().err
    assert "the state belongs to another order: fingerprint was" in error
    assert error.count("\n") == 1


def test_its_losses_are_those_that_the_recipe_takes_from_monai():
    """docs/recipes.md, Losses and metrics."""
    losses, metrics = (pytest.importorskip(f"monai.{name}") for name in ("losses", "metrics"))
    draws = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 3, 16, 16, generator=draws)
    masks = torch.rand(5, 16, 16, generator=draws) > 0.6
    masks[4] = False
    target = masks[:, None].expand_as(logits)
    focal, dice, iou = script.mask_losses(logits, masks)
    found = losses.FocalLoss(gamma=2, alpha=0.25, reduction="none")(logits, target.float())
    assert torch.allclose(found.mean((2, 3)), focal)
    options = {"sigmoid": True, "smooth_nr": 1, "smooth_dr": 1, "reduction": "none"}
    found = losses.DiceLoss(**options)(logits, target.float())
    assert torch.allclose(found.flatten(1), dice)
    found = metrics.compute_iou(logits > 0, target, ignore_empty=False)
    assert torch.allclose(found, iou)
