"""scripts/train_example.py, in its own processes."""

import shutil
import signal
import threading
from pathlib import Path

import example_runs
import numpy as np
import pytest
import torch
from example_runs import BATCH, TORCHRUN, finish, lines, same_as, start
from sync_debug import waiting_is_an_error

import sa1bpack

IDS = example_runs.IDS
SCRIPT = "train_example"


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    """Seven images in two shards; those of even ids have no masks."""
    return example_runs.write_pack(tmp_path_factory.mktemp("train"), lambda number: number % 2 * 3)


@pytest.fixture(scope="module")
def script():
    return example_runs.load(SCRIPT)


def train(script, pack: Path, folder: Path, *options) -> list[dict]:
    """Train in this process, with history and checkpoint in `folder`; returns the lines."""
    files = ("--history", folder, "--checkpoint", folder / "run.pt", "--batch-size", BATCH)
    with pytest.MonkeyPatch.context() as patch, example_runs.in_this_process(patch):
        assert script.main([str(pack), *map(str, (*files, *options))]) == 0
    return lines(folder)


@pytest.fixture(scope="module")
def undisturbed(script, pack, tmp_path_factory) -> Path:
    """The folder of a run of seven steps, three and a half epochs, in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    found = train(script, pack, folder, "--steps", 7)
    assert [line["step"] for line in found] == list(range(1, 8))
    return folder


@pytest.fixture(scope="module")
def ended_in_mid_epoch(script, pack, tmp_path_factory) -> Path:
    """The folder of a run of three steps, one and a half epochs, in one process."""
    folder = tmp_path_factory.mktemp("ended")
    assert train(script, pack, folder, "--steps", 3)[-1]["epoch"] == 1
    return folder


def test_resuming_in_mid_epoch_has_bit_for_bit_the_losses_of_an_undisturbed_run(
    script, pack, undisturbed, ended_in_mid_epoch, tmp_path
):
    shutil.copytree(ended_in_mid_epoch, tmp_path, dirs_exist_ok=True)
    assert not same_as(undisturbed, tmp_path)
    train(script, pack, tmp_path, "--steps", 7, "--resume")
    assert same_as(undisturbed, tmp_path)


def test_sigterm_saves_after_the_step_and_the_same_command_resumes(
    script, pack, undisturbed, tmp_path
):
    options = ("--history", tmp_path, "--checkpoint", tmp_path / "run.pt", "--batch-size", BATCH,
               "--resume", "--epochs", 100_000)  # fmt: skip
    process = start(SCRIPT, pack, *options)
    for line in process.stdout:
        if line.startswith("step     1 "):
            process.send_signal(signal.SIGTERM)
            break
    code, out = finish(process)
    assert code == 128 + signal.SIGTERM, out
    steps = len(lines(tmp_path))
    assert torch.load(tmp_path / "run.pt", weights_only=True)["step"] == steps
    target = max(7, steps + 1)
    train(script, pack, tmp_path, "--steps", target, "--resume", "--epochs", 100_000)
    found = lines(tmp_path)
    assert [line["step"] for line in found] == list(range(1, target + 1))
    assert found[:7] == lines(undisturbed)


def test_a_run_of_one_process_resumes_as_two_ranks_which_see_every_sample_once_per_epoch(
    pack, undisturbed, ended_in_mid_epoch, tmp_path
):
    shutil.copytree(ended_in_mid_epoch, tmp_path, dirs_exist_ok=True)
    files = ("--history", tmp_path, "--checkpoint", tmp_path / "run.pt", "--batch-size", BATCH)
    code, out = finish(start(SCRIPT, pack, *files, "--steps", 7, "--resume", launcher=TORCHRUN))
    assert code == 0, out
    alone, ranks = lines(undisturbed)[3:], (lines(tmp_path)[3:], lines(tmp_path, 1))
    for expected, *parts in zip(alone, *ranks, strict=True):
        assert parts[0]["images"] + parts[1]["images"] == expected["images"]
        assert parts[0]["loss"] == parts[1]["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    seen = [i for rank in ranks for line in rank if line["epoch"] == 2 for i in line["images"]]
    assert sorted(seen) == list(IDS)
    masks = [tuple(any(i % 2 for i in line["images"]) for line in step)
             for step in zip(*ranks, strict=True)]  # fmt: skip
    assert (True, False) in masks or (False, True) in masks, "a rank without masks takes part"


def test_a_batch_without_masks_is_a_step_without_a_loss(script, deterministic, pack, tmp_path):
    options = ["--history", str(tmp_path), "--epochs", "1", "--batch-size", "1"]
    assert script.main([str(pack), *options]) == 0
    losses = {line["images"][0]: line["loss"] for line in lines(tmp_path)}
    assert losses[100] == losses[102] == 0 < losses[101] * losses[103] < 10


@pytest.fixture
def deterministic(monkeypatch):
    """The settings of the script on a CPU, in this process for one test."""
    with example_runs.in_this_process(monkeypatch):
        yield


def parsed(script, argv):
    return script.arguments(script.make_parser(script.__file__, script.__doc__), argv)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_run_on_cuda_resumes_with_step_counts_on_the_cpu(script, pack, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    options = ["--checkpoint", str(tmp_path / "run.pt"), "--batch-size", str(BATCH), "--resume"]
    try:
        assert script.main([str(pack), *options, "--steps", "3"]) == 0
        trainer = script.Trainer(parsed(script, [str(pack), *options]), torch.device("cuda:0"))
        trainer.load()
        states = list(trainer.optimizer.state.values())
        assert all(state["step"].device.type == "cpu" and state["step"] == 3 for state in states)
        assert all(state["exp_avg"].is_cuda for state in states)
        assert script.main([str(pack), *options, "--steps", "5"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_step_does_not_wait_for_the_device(script, pack, deterministic):
    trainer = script.Trainer(parsed(script, [str(pack), "--batch-size", "2"]), torch.device("cpu"))
    assert all(done["sums"].is_meta for done in example_runs.steps_on_meta(trainer))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_step_on_cuda_does_not_wait_for_it(script, pack):
    device = torch.device("cuda:0")
    trainer = script.Trainer(parsed(script, [str(pack), "--batch-size", "2"]), device)
    batches = iter(trainer.loader)
    trainer.train_step(next(batches), stop=False)  # the optimizer makes its state
    batch = next(batches)
    with waiting_is_an_error():
        trainer.train_step(batch, stop=False)


def test_results_that_are_read_together_are_those_of_single_steps(
    script, pack, deterministic, undisturbed, tmp_path
):
    options = ["--history", str(tmp_path), "--batch-size", str(BATCH), "--steps", "7"]
    trainer = script.Trainer(parsed(script, [str(pack), *options]), torch.device("cpu"))
    trainer.read_every = 3
    assert not trainer.train(threading.Event())
    assert lines(tmp_path) == lines(undisturbed)
    stop = threading.Event()
    stop.set()
    trainer.args.steps = None
    assert trainer.train(stop)
    assert trainer.step == 8  # the first one of a run is read by itself


def test_make_dataloader_trains_identically(script, pack, undisturbed, tmp_path):
    train(script, pack, tmp_path, "--steps", 7, "--workers", 0)
    assert same_as(undisturbed, tmp_path)


def test_loss_falls_and_iou_rises_on_the_sample_photos(script, deterministic, sample_tar, tmp_path):
    out = tmp_path / "pack"
    sa1bpack.pack(sample_tar, out, workers=1, image_size=128, mask_size=64)
    options = ["--history", str(tmp_path), "--epochs", "60", "--masks", "8"]
    assert script.main([str(out), *options]) == 0
    found = lines(tmp_path)
    first, last = (
        {name: np.mean([line[name] for line in part]) for name in ("loss", "iou")}
        for part in (found[:5], found[-5:])
    )
    assert last["loss"] < 0.6 * first["loss"]
    assert last["iou"] > first["iou"] + 0.3


def test_a_drawn_point_is_in_its_mask_and_a_box_is_that_of_the_sample(script, pack):
    ds = sa1bpack.open(pack, coordinates="stored")
    (batch,) = sa1bpack.Loader(ds, len(ds), mask_layout="concat")
    kinds = set()
    for epoch in range(5):
        boxes = script.edges(batch["bboxes"]) / 64
        prompts = script.draw_prompts({**batch, "boxes": boxes, "epoch": epoch}, 0).double()
        assert len(prompts) == len(batch["masks"]) == batch["mask_counts"].sum()
        for mask, box, prompt in zip(batch["masks"], batch["bboxes"], prompts, strict=True):
            x0, y0, x1, y1, is_box = prompt.tolist()
            kinds.add(is_box)
            if is_box:
                x, y, w, h = (box / 64).tolist()
                assert (x0, y0, x1, y1) == pytest.approx((x, y, x + w, y + h))
            elif mask.any():
                assert (x0, y0) == (x1, y1)
                assert mask[int(y0 * 16), int(x0 * 16)]
    assert kinds == {0, 1}


def test_a_checkpoint_is_never_overwritten_by_a_new_run(script, pack, tmp_path, capsys):
    (tmp_path / "run.pt").touch()
    with pytest.raises(SystemExit):
        script.main([str(pack), "--checkpoint", str(tmp_path / "run.pt")])
    assert "resume from it with --resume" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        script.main([str(pack), "--resume"])
    assert "--resume needs --checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("none",), ("{pack}", "--batch-size", "0")], ids=str)
def test_an_invalid_pack_or_option_is_one_line_and_exit_code_2(
    script, deterministic, pack, capsys, arguments
):
    assert script.main([argument.format(pack=pack) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("train_example.py: ") and error.count("\n") == 1


def test_a_checkpoint_of_other_images_is_one_line_and_exit_code_2(
    script, deterministic, pack, ended_in_mid_epoch, tmp_path, capsys
):
    part = tmp_path / "part.sel"
    sa1bpack.open(pack)[1:].save_selection(part)
    checkpoint = str(ended_in_mid_epoch / "run.pt")
    options = ["--checkpoint", checkpoint, "--resume", "--batch-size", str(BATCH)]
    assert script.main([str(part), *options]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert error.startswith("train_example.py: the state belongs to another order: fingerprint was")
