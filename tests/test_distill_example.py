"""scripts/distill_example.py: a teacher's embeddings computed once, a student trained from them."""

import json
import sys
from pathlib import Path

import example_runs
import numpy as np
import pytest
import torch
from example_runs import IDS, SCRIPTS, TORCHRUN, finish, lines, same_as, start

import sa1bpack

CPU = torch.device("cpu")
SCRIPT = "distill_example"
BATCHES = ("--batch-size", str(example_runs.BATCH))


@pytest.fixture(scope="module")
def script():
    """The script as a module, which finds train_example beside it, as in a run of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        patch.setitem(sys.modules, SCRIPT, module := example_runs.load(SCRIPT))
        yield module


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script adds the current folder
    with example_runs.in_this_process(monkeypatch):
        yield


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    return example_runs.write_pack(tmp_path_factory.mktemp("distill"))


def train(script, pack: Path, folder: Path, *options) -> list[dict]:
    """Train in this process, with history and checkpoint in `folder`; returns the lines."""
    files = ("--history", str(folder), "--checkpoint", str(folder / "run.pt"))
    assert script.main([str(pack), *files, *BATCHES, *map(str, options)]) == 0
    return lines(folder)


@pytest.fixture
def undisturbed(script, pack, tmp_path) -> Path:
    """The folder of a run of five steps, two and a half epochs."""
    folder = tmp_path / "undisturbed"
    train(script, pack, folder, "--steps", 5)
    return folder


def test_resuming_in_mid_epoch_has_bit_for_bit_the_losses_of_an_undisturbed_run(
    script, pack, undisturbed, tmp_path
):
    part = tmp_path / "part"
    assert train(script, pack, part, "--steps", 3)[-1]["epoch"] == 1
    assert not same_as(undisturbed, part)
    train(script, pack, part, "--steps", 5, "--resume")
    assert same_as(undisturbed, part)
    assert all(line["teacher"] > 0 and line["loss"] > 0 for line in lines(part))


def test_a_step_does_not_wait_for_the_device(script, pack, monkeypatch):
    made = []
    monkeypatch.setattr(script, "run", lambda kind, args: made.append(kind(args, CPU)) or 0)
    assert script.main([str(pack), "--batch-size", "2"]) == 0
    assert all(done["sums"].is_meta for done in example_runs.steps_on_meta(made[0]))


def test_two_ranks_derive_and_train_as_one_which_resumes_their_run(script, tmp_path):
    """Each derives one of the two shards; seven images, so that the last step is uneven."""
    pack = example_runs.write_pack(tmp_path)
    folder = tmp_path / "ranks"
    files = ("--history", folder, "--checkpoint", folder / "run.pt", "--resume")
    code, out = finish(start(SCRIPT, pack, *files, *BATCHES, "--steps", 3, launcher=TORCHRUN))
    assert code == 0, out
    assert out.count("1 part made") == 2
    train(script, pack, folder, "--steps", 4, "--resume")
    alone = train(script, pack, tmp_path / "alone", "--steps", 4)
    first, second = lines(folder), lines(folder, 1)
    assert [line["images"] for line in alone[:3]] == [
        a["images"] + b["images"] for a, b in zip(first[:3], second, strict=True)
    ]
    for name in ("loss", "iou", "teacher"):
        expected = [pytest.approx(line[name], rel=1e-3) for line in alone]
        assert [line[name] for line in first] == expected
        assert [line[name] for line in second] == expected[:3]


def test_embeddings_are_computed_once_and_only_where_they_are_missing(
    script, pack, tmp_path, monkeypatch, capsys
):
    seen = []
    teacher = script.tiny_teacher

    def counting(batch):
        seen.extend(batch["image_ids"].tolist())
        return teacher(batch)

    counting.__name__ = "counting"
    counting.__qualname__, counting.__module__ = "counting", SCRIPT
    monkeypatch.setattr(script, "counting", counting, raising=False)
    for folder in ("first", "again"):
        options = ("--teacher", "distill_example:counting", "--steps", 1)
        train(script, pack, tmp_path / folder, *options)
    assert sorted(seen) == list(IDS)
    assert capsys.readouterr().out.count("2 parts made") == 1


def test_a_teacher_of_your_own_and_a_feature_that_exists(script, tmp_path, monkeypatch):
    pack = example_runs.write_pack(tmp_path)
    (tmp_path / "my_teacher_of_a_test.py").write_text(
        "def embed(batch):\n    return batch['images'][:, ::8, ::8].permute(0, 3, 1, 2).half()\n"
    )
    monkeypatch.chdir(tmp_path)
    train(script, pack, tmp_path / "own", "--teacher", "my_teacher_of_a_test:embed", "--steps", 2)
    train(script, pack, tmp_path / "feature", "--feature", pack / "side" / "embed", "--steps", 2)
    assert same_as(tmp_path / "own", tmp_path / "feature")
    recorded = json.loads((pack / "side" / "embed" / "manifest.json").read_text())
    assert recorded["provenance"]["function"] == "my_teacher_of_a_test:embed"
    assert recorded["row_shape"] == [3, 8, 8]


def test_the_student_comes_closer_to_its_teacher_and_to_the_masks(script, sample_tar, tmp_path):
    out = tmp_path / "pack"
    sa1bpack.pack(sample_tar, out, workers=1, image_size=128, mask_size=64)
    found = train(script, out, tmp_path, "--epochs", 40, "--masks", 8)
    first, last = (
        {name: np.mean([line[name] for line in part]) for name in ("loss", "iou", "teacher")}
        for part in (found[:5], found[-5:])
    )
    assert last["teacher"] < 0.5 * first["teacher"]
    assert last["loss"] < 0.7 * first["loss"]


@pytest.mark.parametrize(
    "options, message",
    [(["--teacher", "nothing"], "choose MODULE:FUNCTION"),
     (["--teacher", "no_such_module:embed"], "no_such_module"),
     (["--feature", "none"], "none")],
    ids=lambda value: "" if isinstance(value, str) else value[1],
)  # fmt: skip
def test_a_teacher_that_is_not_there_is_one_line_and_exit_code_2(
    script, pack, capsys, options, message
):
    assert script.main([str(pack), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("distill_example.py: ") and error.count("\n") == 1
    assert message in error


def test_an_array_that_is_not_spatial_is_refused(script, tmp_path, capsys):
    pack = example_runs.write_pack(tmp_path)
    ds = sa1bpack.open(pack)
    ids = ds.column("image_id")
    sa1bpack.attach(ds, "flat", torch.zeros(len(ids), 8), ids)
    assert script.main([str(pack), "--feature", "flat"]) == 2
    assert "derive it with --spatial" in capsys.readouterr().err
