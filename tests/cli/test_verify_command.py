"""Output of `verify` and `repair` for packs in any state, and of all commands without a pack."""

import json
import shlex
import shutil

import pytest
from commands import pack_command
from edited_packs import flip
from small_tars import members, write_tar
from system import without_privileges


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made / "pack", tmp_path / "my pack")


def test_a_pack_of_another_version_is_refused_with_one_line(command, root):
    manifest = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps(manifest | {"version": [2, 0]}))
    said = {command(name, root) for name in ("verify", "info", "repair")}
    assert said == {
        (3, "", f"sa1bpack: {root}/manifest.json: format version 2.0, but this release reads 1.x; "
         "install a sa1bpack for format 2\n")
    }  # fmt: skip


def test_without_a_manifest_nothing_is_claimed_that_only_it_can_tell(command, root):
    (root / "manifest.json").write_text('{"a": 1')
    code, out, error = command("verify", root)
    assert (code, error) == (1, "")
    assert out.splitlines() == [
        f"{root}/manifest.json: not JSON (Input data was truncated)",
        f"to repair it, keeping what is sound: sa1bpack repair '{root}' TARS",
        f"{root}: DAMAGED: 1 problem; without its manifest nothing else can be checked",
    ]


def test_the_repair_command_can_be_copied_into_a_shell(command, root):
    file = root / "shards/sa_000000-000/bbox/c.0.0"
    file.unlink()
    what, repair, *_ = command("verify", root)[1].splitlines()
    assert what.endswith(f"{file}: missing")
    assert shlex.split(repair.partition(": ")[2]) == ["sa1bpack", "repair", str(root), "TARS"]


@pytest.mark.parametrize("flags", [(), ("--quick",)], ids=["full", "quick"])
def test_what_may_not_be_read_is_neither_called_damaged_nor_repaired(command, root, flags):
    file = root / "shards/sa_000000-000/bbox/c.0.0"
    file.chmod(0)
    with without_privileges():
        code, out, error = command("verify", root, *flags)
        repaired = command("repair", root, "--workers", 1)
    assert (code, error) == (1, "")
    problem, advice, last = out.splitlines()
    assert problem.endswith(f": {file}: cannot be read: Permission denied")
    assert "owner and mode" in advice and "repair" not in out
    assert last == (
        f"{root}: NOT ALL CHECKED: 1 problem; 6 images in 2 shards, "
        f"{'quick check' if flags else 'every byte read'}, except what may not be read"
    )
    assert repaired[0] == 1 and "Permission denied; check its owner and mode" in repaired[2]
    file.chmod(0o644)
    assert command("verify", root)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [("verify",), ("info",), ("repair",), ("show", "-o", "x.png"), ("report", "-o", "x.html"),
     ("export", "-o", "json"), ("finalize",)],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_every_command_tells_a_mistyped_path_from_damage(
    command, root, tmp_path, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    name, *more = arguments
    for path, said in (
        ("nothing", "nothing: not a pack: the folder does not exist"),
        ("file", "file: not a pack, but a file"),
        ("empty", "empty: not a pack: it has no manifest.json"),
        ("my pack/shards", f"my pack/shards: not a pack, but a part of the pack {root}; name that"),
    ):
        code, out, error = command(name, path, *more)
        assert (code, out) == (2, "") and error.startswith(f"sa1bpack: {said}"), (path, error)
    assert not list((tmp_path / "empty").iterdir())
    (root / "manifest.json").unlink()
    if name not in ("repair", "finalize"):
        code, _, error = command(name, "my pack", *more)
        assert code == 1 and error.startswith("sa1bpack: my pack/manifest.json: missing; ")
        assert "sa1bpack repair" in error


def test_parts_are_joined_by_exit_code_and_json(command, root):
    flip(next((root / "shards/sa_000000-001/image").glob("c*")))
    found = []
    for number, code in ((1, 0), (2, 1)):
        ended, out, error = command("verify", root, "--part", f"{number}/2", "--json")
        assert (ended, error) == (code, "")
        found.append(json.loads(out))
    assert [(each["part"], each["ok"]) for each in found] == [("1/2", True), ("2/2", False)]
    assert sum(part["counts"]["samples"] for part in found) == 6
    assert {problem["shard"] for problem in found[1]["problems"]} == {"sa_000000-001"}
    assert command("verify", root, "--part", "2/2")[1].count("part 2/2: DAMAGED") == 1


def test_verify_and_train_is_safe_for_packs_that_are_not_whole(command, made, root, tmp_path):
    tar = write_tar(tmp_path / "sa_000001.tar", members([50, 51]))
    tar.write_bytes(tar.read_bytes()[:-2000])
    partial = tmp_path / "partial"
    empty = tmp_path / "empty"
    assert command(*pack_command(tar, partial))[0] == 1
    code, out, _ = command("verify", partial)
    assert code == 5 and out.splitlines()[-2:] == [
        "NOT COMPLETE: repeat the pack command, which names what is missing",
        f"{partial}: sound, NOT COMPLETE; 0 images in 0 shards, every byte read",
    ]
    assert command("verify", partial, "--quick")[0] == 5
    assert command("verify", partial, "--part", "2/2")[0] == 5
    tar = write_tar(tmp_path / "sa_000002.tar", {"sa_9.jpg": b"no image", "sa_9.json": b"{}"})
    assert command(*pack_command(tar, empty))[0] == 1
    code, out, _ = command("verify", empty)
    assert code == 5 and ": sound, NO IMAGE; 0 images in 0 shards" in out
    # A part without a shard says nothing of the whole.
    assert command("verify", made / "pack", "--part", "9/9")[0] == 0
    # Of several, damage counts more than what is missing.
    code, out, _ = command("verify", made / "pack", partial, empty)
    assert code == 5 and len(out.splitlines()) > 3
    (root / "stray").write_text("")
    code, out, _ = command("verify", partial, root, empty)
    assert code == 1 and "DAMAGED" in out


def test_every_json_is_an_object_on_one_line_that_begins_with_the_pack(
    command, root, tmp_path, monkeypatch
):
    several = shutil.copytree(root, tmp_path / "two") and (root, tmp_path / "two")
    for arguments, packs in (
        (("verify", root), [str(root)]),
        (("verify", *several), [str(path) for path in several]),
        (("verify", root, "--part", "2/2"), [str(root)]),
        (("info", root), [str(root)]),
        (("info", *several), [None]),
        (("info",), [None]),
    ):
        code, out, error = command(*arguments, "--json")
        found = [json.loads(line) for line in out.splitlines()]
        assert (code, error) == (0, "") and out.endswith("}\n")
        assert [each["pack"] for each in found] == packs
        assert all(next(iter(each)) == "pack" for each in found)
    info = json.loads(command("info", *several, "--json")[1])
    assert info["complete"] and info["counts"]["samples"] == 12
    assert [each["pack"] for each in info["packs"]] == [str(path) for path in several]
    assert sum(info["masks_per_image"]["images"]) == 12
    assert "numpy" in json.loads(command("info", "--json")[1])["machine"]
