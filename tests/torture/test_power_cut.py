"""What was flushed before a power cut suffices: the pack is sound, the next run completes it.

The calls of a real run are recorded, and replayed into a model of a disk that keeps no more than
what was flushed.
"""

import shutil
from pathlib import Path

import pytest
from faults import Plan
from power_cut import Disk, read_log, record
from scenarios import SCENARIOS, Case, Stage
from small_tars import contents


def recorded(case: Case, *ends: Plan) -> tuple[Disk, list[tuple]]:
    """The disk before a run of a case, and before it some that are ended, and all their calls."""
    disk, log = Disk(case.folder), case.folder.with_name("calls")
    log.unlink(missing_ok=True)
    for end in ends:
        case.run(lambda end=end: (record(case.folder, log), end.apply()))
    code, said = case.run(lambda: record(case.folder, log))
    assert code == case.code, said
    return disk, read_log(log)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_power_cut_at_any_moment_leaves_a_sound_pack(stage, tmp_path, torture, scenario):
    disk, calls = recorded(Case(stage, tmp_path / "case", scenario))
    cuts = 0
    chosen = set(torture.rng.sample(range(len(calls)), torture.rounds(4, 100)))
    for number, call in enumerate(calls):
        disk.apply(*call)
        for rng in (None, torture.rng) if number in chosen else ():
            left = Case(stage, tmp_path / "left", scenario)
            shutil.rmtree(left.folder)
            disk.restore(left.folder, rng)
            assert scenario == "fresh" or (left.root / "manifest.json").exists(), call
            left.check_readable()
            cuts += 1
            if cuts % 4 == 0:
                left.check_completed_by_the_next()
    torture.record(f"power cut: {scenario}", cuts, "all left sound packs; one in four was resumed")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_gets_a_final_name_before_it_is_flushed_completely(stage, tmp_path, scenario):
    disk, calls = recorded(Case(stage, tmp_path / "case", scenario))
    named = []
    for call in calls:
        if call[0] == "rename" and not Path(call[2]).name.startswith(".tmp-"):
            assert disk.is_safe(call[1]), call
            named.append(Path(call[2]).name)
        disk.apply(*call)
    assert {"sa_000001-000", "sa_000001-001", "manifest.json", "checksums.xxh128"} <= set(named)
    shards = [name for name in named if name.startswith("sa_")]  # each is safe once it is named
    assert sum(c[0] == "fsync" and Path(c[1]).name == "shards" for c in calls) > len(shards)


def check_flushed(disk: Disk, calls: list[tuple], stage: Stage, left: Path) -> None:
    """Check that what a power cut after these calls leaves is the complete pack."""
    for call in calls:
        disk.apply(*call)
    shutil.rmtree(left, ignore_errors=True)
    disk.restore(left, None)
    found = contents(left / "pack").items()  # the removal of working files need not be flushed
    assert {name: data for name, data in found if not name.startswith(".tmp-")} == stage.expected


@pytest.mark.parametrize("scenario", ["fresh", "added"])
def test_every_file_of_a_finished_run_is_flushed(stage, tmp_path, scenario):
    check_flushed(*recorded(Case(stage, tmp_path / "case", scenario)), stage, tmp_path / "left")


def test_the_next_run_flushes_what_a_killed_run_renamed_without_flushing(stage, tmp_path, torture):
    case = Case(stage, tmp_path / "case", "fresh")
    case.calls(calls=("fsync",))
    flushed = [Path(path) for _, path in case.hits()]
    after_renames = [at for at, path in enumerate(flushed) if path.name in ("pack", "shards")]
    last_shard = max(at for at in after_renames if flushed[at].name == "shards")
    steps = {last_shard, *torture.rng.sample(after_renames, torture.rounds(1, len(after_renames)))}
    for at in steps:
        case.begin()
        kill = case.plan("kill", at=at, calls=("fsync",))
        check_flushed(*recorded(case, kill), stage, tmp_path / "left")
    torture.record("power cut: after a kill and a complete run", len(steps), "complete packs")
