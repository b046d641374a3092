"""`sa1bpack derive`: what it prints and returns, and that a killed one resumes."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import finish, start, wait_until
from layout_packs import layout_packs  # noqa: F401 - a fixture
from packs_with_features import stored
from reading_packs import packed  # noqa: F401 - a fixture
from simulated_cuda import SimulatedCuda
from simulated_loading import cuda  # noqa: F401 - a fixture
from system import without_privileges

import sa1bpack
from sa1bpack import verify
from sa1bpack.deriving import ranks
from sa1bpack.finalizers import settle
from sa1bpack.transforms import Pipeline

FUNCTIONS = '''
import sys, time
from pathlib import Path

def ids(batch, scale=1, name="x"):
    return batch["image_ids"] * scale

def mean(batch):
    return batch["images"].mean(1, keepdim=True)

def none(ds):
    return 0

def failing(batch):
    raise StopIteration

def slow(batch):
    """Wait in the second batch of the second shard, until a file says that the wait is over."""
    if batch["image_ids"][0] < 4989 and batch["batch_idx"] and not Path("go").exists():
        Path("waiting").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    with Path("computed").open("a") as file:
        file.write("".join(f"{number}\\n" for number in batch["image_ids"].tolist()))
    return batch["image_ids"]

def maps(batch):
    return batch["images"].float().mean(3)[:, None, ::12, ::12]

wrong = 5
'''


@pytest.fixture
def pack(packed, tmp_path) -> Path:  # noqa: F811
    (tmp_path / "made.py").write_text(FUNCTIONS)
    return Path(shutil.copytree(packed.root, tmp_path / "pack"))


@pytest.fixture
def in_folder(command, tmp_path, monkeypatch):
    """in_folder(*arguments): the command, called within this process, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield command
    sys.modules.pop("made", None)


def test_a_function_of_the_current_folder_is_run_with_its_options(pack, tmp_path, in_folder):
    out = tmp_path / "elsewhere"
    code, printed, error = in_folder(
        "derive", pack, "ids", "--fn", "made:ids", "--option", "scale=3", "--option", "name=a b",
        "-o", out, "--batch-size", 2,
    )  # fmt: skip
    assert (code, error) == (0, "")
    assert printed == f"{out}: 4 shards made, 0 existing, complete\n"
    provenance = json.loads((out / "manifest.json").read_text())["provenance"]
    assert provenance["options"] == {"scale": 3, "name": "a b"}
    assert provenance["function"] == "made:ids"
    np.testing.assert_array_equal(stored(out, pack), 3 * sa1bpack.open(pack).column("image_id"))
    assert not (pack / "side").exists()
    code, printed, _ = in_folder("verify", out)
    assert (code, printed) == (0, f"{out}: feature, sound; 4 shards, every byte read\n")


def test_a_pipeline_is_made_of_the_dataset_by_a_function_that_is_named(pack, in_folder):
    command = ("derive", pack, "inputs", "--fn", "made:mean", "--spatial", "--pipeline")
    assert in_folder(*command, "sa1bpack.transforms:Pipeline")[0] == 0
    ds = sa1bpack.open(pack)
    with sa1bpack.Loader(ds, 4) as loader:
        made = np.concatenate([Pipeline(ds)(batch)["images"].mean(1) for batch in loader])
    np.testing.assert_array_equal(stored(pack / "side/inputs", pack)[:, 0], made)
    command = (*command, "sa1bpack.transforms:Pipeline", "--quantize")
    for kind, share in (("int8", 225), ("float8", 27)):
        assert in_folder(*command, kind, "-o", kind)[0] == 0
        small = sa1bpack.open(pack, features=f"./{kind}").column("inputs")
        np.testing.assert_allclose(small[:, 0], made, atol=np.abs(made).max() / share)
    for name, message in (("made:wrong", "of type int"), ("made:none", "is 0: choose a")):
        code, _, error = in_folder("derive", pack, "other", "--fn", "made:ids", "--pipeline", name)
        assert code == 2 and "--pipeline is " in error and message in error


def test_an_exception_of_the_function_is_shown_with_its_traceback(pack, in_folder):
    code, _, error = in_folder("derive", pack, "other", "--fn", "made:failing")
    assert code == 1 and "in failing\n" in error
    assert "made:failing raised StopIteration for batch 0 of shard sa_000000-000" in error


def test_a_file_that_changed_between_two_commands_is_a_note_on_stderr(pack, tmp_path, in_folder):
    """The rows of both are in one feature: the command goes on, as only the user knows."""
    command = ("derive", pack, "ids", "--fn", "made:ids", "--batch-size", 2)
    assert in_folder(*command, "--part", "1/4")[::2] == (0, "")
    sys.modules.pop("made")
    (tmp_path / "made.py").write_text(FUNCTIONS.replace("* scale", "* scale + 1"))
    code, printed, error = in_folder(*command)
    assert code == 0 and ": 3 shards made, 1 existing, complete" in printed
    assert "made.py has changed since" in error and "1 shard there may have rows of" in error
    assert in_folder(*command, "-o", tmp_path / "elsewhere")[::2] == (0, "")


def test_rows_that_look_like_maps_are_noted_on_stderr_unless_no_spatial_says_so(pack, in_folder):
    command = ("derive", pack, "maps", "--fn", "made:maps")
    code, printed, error = in_folder(*command)
    assert code == 0 and "complete" in printed and "look like maps of the image" in error
    assert in_folder(*command, "--no-spatial")[::2] == (0, "")
    assert in_folder(*command, "--spatial", "-o", "moved")[::2] == (0, "")


def test_cuda_is_the_device_of_the_local_rank(
    pack, in_folder, monkeypatch, cuda: SimulatedCuda  # noqa: F811
):  # fmt: skip
    """Where torchrun starts a process for each GPU; the module's weights go there, too."""
    monkeypatch.setattr(ranks, "CUDA", cuda)
    command = ("derive", pack, "ids", "--fn", "made:ids", "--batch-size", 2, "--device")
    for rank in ("0", "1"):
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")):
            monkeypatch.setenv(name, value)
        cuda.most.clear()
        code, printed, error = in_folder(*command, "cuda")
        settle()
        assert (code, error) == (0, "") and ": 2 shards made" in printed
        assert [*cuda.most] == [int(rank)] and cuda.current() == int(rank)
    monkeypatch.setenv("RANK", "0")
    cuda.most.clear()
    assert in_folder(*command, "cuda:0", "-o", "named")[0] == 0 and [*cuda.most] == [0]
    monkeypatch.setenv("LOCAL_RANK", "2")
    code, _, error = in_folder(*command, "cuda", "-o", "other")
    assert code == 2 and "LOCAL_RANK is '2'" in error and "--nproc-per-node 2" in error
    cuda.devices = 1  # each process may see one of its own
    cuda.set_device(0)
    assert in_folder(*command, "cuda", "-o", "other")[0] == 0


@pytest.mark.parametrize("number, code", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_killed_command_keeps_complete_shards_and_batches_and_resumes_after_them(
    pack, tmp_path, in_folder, number, code
):
    command = ("derive", pack, "ids", "--fn", "made:slow", "--batch-size", 1)
    process = start(*command, cwd=tmp_path)
    assert wait_until((tmp_path / "waiting").exists, process)
    os.kill(process.pid, number)
    found, _, error = finish(process)
    assert found == code
    if code > 0:
        assert "repeat the command" in error
    folder = pack / "side/ids"
    before = {path: path.stat().st_ino for path in folder.glob("sa_*")}
    assert len(before) == 1
    assert verify(pack).ok  # what is missing is a note
    (tmp_path / "go").touch()
    code, printed, error = in_folder(*command)
    assert (code, error) == (0, "") and ": 3 shards made, 1 existing, complete" in printed
    assert {path: path.stat().st_ino for path in before} == before
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []
    assert verify(pack).ok and verify(pack).notes == ()
    computed = (tmp_path / "computed").read_text().split()
    assert sorted(map(int, computed)) == sorted(sa1bpack.open(pack).column("image_id"))  # once each


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("ids", "--fn", "made"), "--fn is 'made': choose MODULE:FUNCTION"),
        (("na me", "--fn", "made:ids"), "sa1bpack: NAME is 'na me': choose a letter"),
        (("ids", "--fn", "nowhere:ids"), "No module named 'nowhere'"),
        (("ids", "--fn", "made:nothing"), "has no attribute 'nothing'"),
        (("ids", "--fn", "made:wrong"), "of type int, no function"),
        (("ids", "--fn", "made:ids", "--option", "a"), "--option is 'a': choose KEY=VALUE"),
        (("ids", "--fn", "made:ids", "--device", "tpu"), "--device is 'tpu'"),
    ],
)
def test_wrong_arguments_are_exit_code_2(pack, in_folder, arguments, message):
    code, printed, error = in_folder("derive", pack, *arguments)
    assert (code, printed) == (2, "")
    assert message in error


def test_a_pack_that_may_not_be_written_advises_another_folder_whose_array_stays(
    pack, in_folder, tmp_path
):
    pack.chmod(0o555)
    with without_privileges():
        code, printed, error = in_folder("derive", pack, "ids", "--fn", "made:ids")
    assert (code, printed) == (4, "")
    assert f"Permission denied: '{pack / 'side'}'" in error
    assert error.endswith("sa1bpack: keep the array outside the pack: --output FOLDER\n")
    command = ("derive", pack, "ids", "-o", tmp_path / "ids", "--fn")
    assert in_folder(*command, "made:ids")[0] == 0
    pack.chmod(0o755)
    code, _, error = in_folder(*command, "made:slow")
    assert code == 3 and "made with function 'made:ids', not 'made:slow'" in error


def test_exact_masks_are_given_to_the_function(layout_packs, in_folder):  # noqa: F811
    pack = layout_packs("pad", "rgb", "bits+runs")
    code, printed, _ = in_folder(
        "derive", pack, "extents", "--axis", "mask", "--fn", "sa1bpack.transforms:relation",
        "--option", "name=mask_boxes", "--mask-format", "runs", "-o", "extents",
    )  # fmt: skip
    assert code == 0 and printed == "extents: 2 shards made, 0 existing, complete\n"
    ds = sa1bpack.open(pack, mask_format="runs", features="./extents")
    for sample in ds:
        np.testing.assert_array_equal(sample["extents"], sa1bpack.masks.relate(sample).mask_boxes)
    assert ds.mask_column("extents").max() > ds.layout.mask_size / 2  # pixels of images, not cells


def test_parts_of_a_job_array_complete_the_array(pack, in_folder):
    command = ("derive", pack, "ids", "--fn", "made:ids", "--part")
    code, printed, _ = in_folder(*command, "1/2")
    assert code == 0 and printed.endswith(": 2 shards made, 0 existing, 2 missing\n")
    code, printed, _ = in_folder(*command, "2/2")
    assert code == 0 and printed.endswith(": 2 shards made, 2 existing, complete\n")
