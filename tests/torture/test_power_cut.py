"""What was flushed before a power cut suffices: the pack is sound, the next run completes it.

The calls of a real run are recorded, and replayed into a model of a disk that keeps no more than
what was flushed.
"""

import shutil
from functools import partial
from pathlib import Path

import pytest
from power_cut import Disk, read_log, record
from scenarios import SCENARIOS, Case, Stage
from small_tars import contents


def finished(root: Path) -> dict[str, bytes]:
    """What a pack holds without working files, whose removal need not be flushed."""
    return {name: data for name, data in contents(root).items() if not name.startswith(".tmp-")}


class Recorded:
    """A case with the log of its runs and the disk before them."""

    def __init__(self, stage: Stage, folder: Path, scenario: str):
        self.case = Case(stage, folder / "case", scenario)
        self.disk = Disk(self.case.folder)
        self.log = folder / "calls"
        self.record = partial(record, self.case.folder, self.log)

    def calls(self) -> list[tuple]:
        return list(read_log(self.log))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_power_cut_at_any_moment_leaves_a_sound_pack(stage, tmp_path, torture, scenario):
    recorded = Recorded(stage, tmp_path, scenario)
    case, disk = recorded.case, recorded.disk
    assert recorded.case.run(recorded.record)[0] == case.code
    calls = recorded.calls()
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
    recorded = Recorded(stage, tmp_path, scenario)
    assert recorded.case.run(recorded.record)[0] == recorded.case.code
    named = []
    for call in recorded.calls():
        if call[0] == "rename" and not Path(call[2]).name.startswith(".tmp-"):
            assert recorded.disk.is_safe(call[1]), call
            named.append(Path(call[2]).name)
        recorded.disk.apply(*call)
    assert {"sa_000001-000", "sa_000001-001", "manifest.json", "checksums.xxh128"} <= set(named)


@pytest.mark.parametrize("scenario", ["fresh", "added"])
def test_every_file_of_a_finished_run_is_flushed(stage, tmp_path, scenario):
    recorded = Recorded(stage, tmp_path, scenario)
    assert recorded.case.run(recorded.record)[0] == 0
    for call in recorded.calls():
        recorded.disk.apply(*call)
    recorded.disk.restore(tmp_path / "left", None)
    assert finished(tmp_path / "left" / "pack") == stage.expected


def test_the_next_run_flushes_what_a_killed_run_renamed_without_flushing(stage, tmp_path, torture):
    case = Case(stage, tmp_path / "case", "fresh")
    case.calls(calls=("fsync",))
    flushed = [Path(path) for _, path in case.hits()]
    after_renames = [at for at, path in enumerate(flushed) if path.name in ("pack", "shards")]
    last_shard = max(at for at in after_renames if flushed[at].name == "shards")
    steps = {last_shard, *torture.rng.sample(after_renames, torture.rounds(1, len(after_renames)))}
    for at in steps:
        recorded = Recorded(stage, tmp_path, "fresh")
        recorded.log.unlink(missing_ok=True)
        kill = recorded.case.plan("kill", at=at, calls=("fsync",))
        recorded.case.run(lambda kill=kill, recorded=recorded: (recorded.record(), kill.apply()))
        assert recorded.case.run(recorded.record)[0] == 0
        for call in recorded.calls():
            recorded.disk.apply(*call)
        shutil.rmtree(tmp_path / "left", ignore_errors=True)
        recorded.disk.restore(tmp_path / "left", None)
        assert finished(tmp_path / "left" / "pack") == stage.expected
    torture.record(
        "power cut: after a kill and a complete run", len(steps), "sound, complete packs"
    )
