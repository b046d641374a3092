"""One contract for commands on a pack: in this process, in parts, as tasks on a Ray cluster.

That of `pack`: tests/packing/test_engines.py.
"""

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commands import command  # noqa: F401 - a fixture
from dying_tasks import ids, ids_but_one, ids_killed_once
from edited_packs import flip
from on_ray import on_ray
from reading_packs import packed  # noqa: F401 - a fixture
from small_tars import contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import ClusterError, NotAPack, UserCodeError

ENGINES = ["local", "parts", "ray"]
PARTS = 3


@pytest.fixture(params=ENGINES)
def engine(request) -> str:
    return request.param


@pytest.fixture
def cluster(engine, request) -> dict:
    """The address of a cluster, for functions that are called on one."""
    return {"address": request.getfixturevalue("ray_address")} if engine == "ray" else {}


@pytest.fixture
def verify(engine, cluster):
    """verify(root): the report."""
    if engine == "ray":
        return partial(on_ray("verify"), **cluster)
    return verify_in_parts if engine == "parts" else sa1bpack.verify


def verify_in_parts(root: Path):
    """Verify in three parts: their reports as one."""
    reports = [sa1bpack.verify(root, part=(k, PARTS)) for k in range(1, PARTS + 1)]
    counts = Counter()
    for report in reports:
        counts.update(report.counts)
    if "features" in counts:  # each part checks all of them
        counts["features"] = reports[0].counts["features"]
    found = {
        name: tuple(dict.fromkeys(each for report in reports for each in getattr(report, name)))
        for name in ("problems", "notes")
    }
    return replace(reports[0], counts=dict(counts), **found)


@pytest.fixture
def repair(engine, cluster):
    """repair(root, tars): the result; of parts, the last of those that are not sound."""
    if engine == "ray":
        return partial(on_ray("repair"), **cluster)
    if engine == "parts":
        return repair_in_parts
    return lambda root, tars: sa1bpack.repair(root, tars, workers=1)


def repair_in_parts(root: Path, tars) -> sa1bpack.RepairResult:
    """Repair in three parts, and do what they name for the pack as a whole, before or after."""
    try:
        sa1bpack.repair(root, part=(1, PARTS), dry_run=True)
    except FormatError as error:
        assert "TARS --quick" in str(error)
        sa1bpack.repair(root, tars, quick=True, workers=1)
    results = [sa1bpack.repair(root, tars, part=(k, PARTS), workers=1) for k in (2, 3, 1)]
    left = {name for result in results for name in result.left}
    shards = [name for name in left if name.startswith("sa_")]
    return sa1bpack.repair(root, tars, quick=True, shards=shards, workers=1)


@pytest.fixture
def derive(engine, cluster):
    """derive(ds, name, fn, **options): the result; of parts, that of the last."""
    if engine == "ray":
        return partial(on_ray("derive"), threads=1, **cluster)
    if engine == "parts":
        return lambda *given, **options: [
            sa1bpack.derive(*given, part=(k, PARTS), **options) for k in range(1, PARTS + 1)
        ][-1]
    return sa1bpack.derive


@pytest.fixture
def pack(packed, tmp_path) -> Path:  # noqa: F811
    return Path(shutil.copytree(packed.root, tmp_path / "pack"))


def test_verify_finds_the_same_in_a_damaged_pack(verify, pack):
    sa1bpack.derive(sa1bpack.open(pack), "ids", ids)
    sound = verify(pack)
    assert sound == sa1bpack.verify(pack) and sound.ok and sound.counts["features"] == 1
    flip(pack / "shards" / "sa_000001-000" / "image" / "c.0.0.0.0")
    flip(next((pack / "side" / "ids").glob("sa_000002-000-*")) / "values" / "c.0")
    (pack / "shards" / "sa_000000-000" / "zarr.json").unlink()
    (pack / "zarr.json").write_text("{}")
    (pack / "stray").touch()
    found, expected = verify(pack), sa1bpack.verify(pack)
    assert set(found.problems) == set(expected.problems) and len(found.problems) >= 5
    assert (found.counts, found.complete) == (expected.counts, expected.complete)
    assert set(found.notes) == set(expected.notes)


def test_verify_reports_or_raises_the_same_without_a_manifest(verify, pack):
    (pack / "manifest.json").write_text("{")
    assert verify(pack) == sa1bpack.verify(pack)
    with pytest.raises(NotAPack):
        verify(pack.parent / "absent")


def test_verify_of_a_feature_of_its_own_is_the_same(verify, pack, tmp_path):
    folder = tmp_path / "ids"
    sa1bpack.derive(sa1bpack.open(pack), "ids", ids, output=folder)
    flip(next(folder.glob("sa_000002-000-*")) / "values" / "c.0")
    found, expected = verify(folder), sa1bpack.verify(folder)
    assert found.problems == expected.problems != () and found.counts == expected.counts


def test_derive_makes_the_same_array_and_completes_what_is_there(derive, pack, tmp_path):
    ds = sa1bpack.open(pack)
    sa1bpack.derive(ds, "ids", ids, output=tmp_path / "whole")
    made = tmp_path / "made"
    result = derive(ds, "ids", ids, output=made)
    assert (result.missing, len(result.made) + len(result.existing)) == ((), 4)
    assert contents(made) == contents(tmp_path / "whole")
    shutil.rmtree(next(made.glob("sa_000001-000-*")))
    assert derive(ds, "ids", ids, output=made).missing == ()
    assert contents(made) == contents(tmp_path / "whole")


def test_an_error_of_the_function_is_raised_and_a_repeated_call_completes(derive, pack, tmp_path):
    ds, made = sa1bpack.open(pack), tmp_path / "made"
    last = int(ds[len(ds) - 1]["image_id"])
    with pytest.raises(UserCodeError, match=f"ZeroDivisionError: image {last}"):
        derive(ds, "ids", ids_but_one, output=made, options={"image_id": last})
    with pytest.raises(OptionError, match="fn is"):
        derive(ds, "ids", 5, output=made)
    result = derive(ds, "ids", ids_but_one, output=tmp_path / "all", options={"image_id": -1})
    assert result.missing == ()


def test_a_part_whose_process_is_killed_is_made_again(ray_address, pack, tmp_path):
    ds, options = sa1bpack.open(pack), {"marker": str(tmp_path / "killed")}
    steps = []
    result = on_ray("derive")(
        ds, "ids", ids_killed_once, options=options, address=ray_address, threads=1,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert (tmp_path / "killed").exists() and len(result.made) == 4 and result.missing == ()
    assert steps[-1] == (len(ds), len(ds)) and len(steps) == 4
    opened = sa1bpack.open(pack, features=["ids"])
    assert [int(opened[k]["ids"]) for k in range(len(ds))] == [
        int(ds[k]["image_id"]) for k in range(len(ds))
    ]
    assert not list((pack / "side" / "ids").glob(".tmp-*"))


def test_the_commands_work_on_a_cluster(ray_address, pack, command):  # noqa: F811
    flags = ("--engine", "ray", "--address", ray_address)
    code, out, _ = command("derive", pack, "ids", "--fn", "dying_tasks:ids", *flags)
    assert (code, out) == (0, f"{pack}/side/ids: 4 shards made, 0 existing, complete\n")
    flip(pack / "shards" / "sa_000001-000" / "image" / "c.0.0.0.0")
    code, on_ray, _ = command("verify", pack, *flags)
    assert code == 1 and "DAMAGED: " in on_ray and "sa_000001-000" in on_ray
    assert command("verify", pack)[:2] == (1, on_ray)


@pytest.mark.parametrize(
    "words", ["verify PACK", "repair PACK", "derive PACK ids --fn dying_tasks:ids"]
)
def test_a_cluster_does_all_of_the_work_and_an_address_is_that_of_one(pack, command, words):  # noqa: F811
    words = words.replace("PACK", str(pack))
    for wrong, said in (
        (f"{words} --engine ray --part 1/2", "does all of the work: leave out --part"),
        ("verify s3://bucket/pack --engine ray", "not s3://bucket/pack: use --part K/N"),
        (f"{words} --address auto", "--address is that of a Ray cluster: add --engine ray"),
    ):
        code, _, error = command(*wrong.split())
        assert code == 2 and said in error


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> list[Path]:
    """Three tars of nine photos: three shards each."""
    folder = tmp_path_factory.mktemp("tars")
    return [
        write_tar(folder / f"sa_{n}.tar", members(range(20 * n, 20 * n + 9)), shuffle=n)
        for n in range(3)
    ]


@pytest.fixture(scope="module")
def sound(tars, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "pack"
    pack_small(tars, root)
    return root


@pytest.mark.parametrize("own", [None, "zarr.json", "checksums.xxh128", "manifest.json"])
def test_repair_makes_the_pack_as_it_was(repair, sound, tars, tmp_path, own):
    root = shutil.copytree(sound, tmp_path / "pack")
    for name in ("sa_0-001", "sa_2-000"):
        flip(root / "shards" / name / "image" / "c.0.0.0.0")
    shutil.rmtree(root / "shards" / "sa_2-002")
    if own is not None:
        (root / own).write_text("{")
    assert repair(root, tars).ok
    found = contents(root)
    assert {name for name in found if not name.startswith(".parts")} == set(contents(sound))
    assert contents(sound).items() <= found.items()
    assert sa1bpack.verify(root).ok


def test_repair_names_what_it_cannot_do(repair, sound, tars, tmp_path):
    root = shutil.copytree(sound, tmp_path / "pack")
    flip(root / "shards" / "sa_1-001" / "image" / "c.0.0.0.0")
    result = repair(root, [tars[0], tars[2]])
    assert not result.ok and "sa_1 is needed, but was not given" in result.left["sa_1-001"]


@pytest.fixture
def second_task_dies(monkeypatch):
    """The second task dies each time it is run; others run here."""
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    from sa1bpack.cluster.tasks import Died

    def run_tasks(address, function, tasks, needs, **more):
        for number, (name, arguments) in enumerate(tasks.items()):
            yield name, Died("a signal") if number == 1 else function(**arguments)

    monkeypatch.setattr("sa1bpack.cluster.tasks.run_tasks", run_tasks)


@pytest.mark.usefixtures("second_task_dies")
def test_a_shard_that_no_task_could_check_is_named_beside_what_others_found(pack):
    flip(pack / "shards" / "sa_000001-000" / "image" / "c.0.0.0.0")
    report = on_ray("verify")(pack)
    unchecked = [problem for problem in report.problems if problem.denied]
    assert [problem.shard for problem in unchecked] == ["sa_000000-001"]
    assert "its task died 6 times, the last time with a signal" in str(unchecked[0])
    assert "sa_000001-000" in {problem.shard for problem in report.problems}


@pytest.mark.usefixtures("second_task_dies")
def test_a_part_that_no_task_could_make_is_named_and_the_others_are_kept(pack):
    ds = sa1bpack.open(pack)
    with pytest.raises(ClusterError, match=r"1 shard given up: sa_000001-000; .* died 6 times"):
        on_ray("derive")(ds, "ids", ids, threads=1)
    result = sa1bpack.derive(ds, "ids", ids)
    assert (result.made, len(result.existing)) == (("sa_000001-000",), 3)


@pytest.mark.usefixtures("second_task_dies")
def test_shards_that_no_task_could_repair_are_named(sound, tars, tmp_path):
    root = shutil.copytree(sound, tmp_path / "pack")
    for name in ("sa_0-001", "sa_1-000"):
        flip(root / "shards" / name / "image" / "c.0.0.0.0")
    result = on_ray("repair")(root, tars)
    assert result.repaired == ["sa_0-001"] and list(result.left) == ["sa_1"]
    assert "not checked: its task died 6 times" in result.left["sa_1"]
    assert [p.what.split(":")[0] for p in result.problems if p.denied] == ["source sa_1"]
    assert {p.shard for p in sa1bpack.verify(root).problems} == {"sa_1-000"}
