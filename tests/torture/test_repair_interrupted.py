"""A repair that fails or is killed at any call leaves a pack that opens as it did before.

Repeated, it ends with the bytes of an undamaged pack.
"""

import os
import shutil
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import temporaries
from edited_packs import flip
from faults import cannot_exchange
from reading_child import sample_digest
from scenarios import ENDS, Disturbed, Stage
from small_tars import contents
from system import prefer_other_decoder

import sa1bpack
from sa1bpack import FormatError, ReadError


def change_a_count(root: Path) -> None:
    """Another number in the manifest, which stays readable."""
    text = (root / "manifest.json").read_text()
    assert text.count('"images": 5') == 1
    (root / "manifest.json").write_text(text.replace('"images": 5', '"images": 7'))


SHARD = "shards/sa_000001-000"
DAMAGE: dict[str, Callable[[Path], object]] = {
    "rejects": lambda root: flip(root / "rejects.jsonl"),
    "index, after its data": lambda root: flip(next(root.glob("index-*/id_order/c.0")), -1),
    "index lost": lambda root: shutil.rmtree(next(root.glob("index-*"))),
    "checksums": lambda root: (root / "checksums.xxh128").write_text("x\n"),
    "checksums lost": lambda root: (root / "checksums.xxh128").unlink(),
    "manifest, readable": change_a_count,
    "manifest lost": lambda root: (root / "manifest.json").unlink(),
    "pixels of a shard": lambda root: flip(root / SHARD / "image" / "c.0.0.0.0"),
    "an array of a shard": lambda root: os.truncate(root / SHARD / "bbox" / "c.0.0", 5),
    "a shard lost": lambda root: shutil.rmtree(root / SHARD),
}
COMBINED = [
    ("checksums",),
    ("checksums lost", "pixels of a shard"),
    ("manifest lost",),
    ("manifest, readable", "pixels of a shard"),
    ("rejects", "index, after its data"),
    ("index lost", "a shard lost", "rejects"),
    ("an array of a shard",),
]


def samples_of(root: Path) -> dict[int, str | None] | None:
    """Image id → digest of its sample, None if that cannot be read; None for an unopenable pack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the pack is not complete
        try:
            dataset = sa1bpack.open(root)
        except (FormatError, OSError):
            return None
        found = {}
        for number, image_id in enumerate(dataset.column("image_id").tolist()):
            try:
                found[image_id] = sample_digest(dataset[number])
            except (ReadError, FormatError, OSError):
                found[image_id] = None
    return found


class Repair(Disturbed):
    """A repair of a damaged pack."""

    def __init__(self, stage: Stage, folder: Path, *damage: str, prepare=lambda: None):
        root = folder / "pack"
        super().__init__(root, folder, "repair", root, *stage.tars, "--workers", 1)
        self.stage, self.expected, self.prepare = stage, stage.expected, prepare
        self._damage = damage
        self.begin()
        self._before = samples_of(self.root)
        self._sound = samples_of(stage.begun.with_name("whole"))

    def begin(self) -> None:
        """Begin again with a damaged copy of the pack."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.stage.begun.with_name("whole"), self.root)
        for name in self._damage:
            DAMAGE[name](self.root)

    def check_readable(self, where: object) -> None:
        """What could be read can be read, as it was or as it is in a sound pack."""
        if self._before is None:
            return
        now = samples_of(self.root)
        assert now is not None, where
        assert now.keys() == self._before.keys(), where
        for image_id, before in self._before.items():
            if before is not None:
                assert now[image_id] in (before, self._sound[image_id]), (where, image_id)

    def check_completed_by_the_next(self, where: object) -> None:
        """Repeated, it leaves the bytes of an undamaged pack, which is sound and complete."""
        code, said = self.run()
        assert code == 0, (where, said)
        assert temporaries(self.root) == [], where
        assert contents(self.root) == self.expected, (where, said)
        report = sa1bpack.verify(self.root, quick=True)
        assert report.ok and report.complete, where


@pytest.mark.parametrize("damage", COMBINED, ids=" + ".join)
def test_a_repair_that_ends_at_any_call_leaves_the_pack_as_readable_as_it_was(
    stage, tmp_path, torture, damage
):
    ends = torture.rng.sample(sorted(ENDS), torture.rounds(1, len(ENDS)))
    rounds = Repair(stage, tmp_path, *damage).end_at_any_call(torture, ends, 1, 40)
    torture.record(
        f"repair ended at a call ({' + '.join(damage)})", rounds,
        "opened as before; completed by the next",
    )  # fmt: skip


@pytest.mark.parametrize("damage", ["rejects", "pixels of a shard"])
def test_where_names_cannot_be_exchanged_a_failure_puts_back_what_was_there(
    stage, tmp_path, torture, damage
):
    repair = Repair(stage, tmp_path, damage, prepare=cannot_exchange)
    repair.end_at_any_call(torture, ["the disk is full once"], 2, 80)


def test_what_a_kill_between_two_renames_left_aside_is_put_back_by_the_next_repair(stage, tmp_path):
    repair = Repair(stage, tmp_path, "pixels of a shard")
    damaged = contents(repair.root)
    shard, rename = repair.root / SHARD, os.rename

    def kill_at_the_second_rename() -> None:
        cannot_exchange()

        def renamed(source, target):
            if Path(target) == shard:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target)

        os.rename = renamed

    code, _ = repair.run(kill_at_the_second_rename)
    assert code == -signal.SIGKILL and not shard.exists()
    assert sa1bpack.repair(repair.root, workers=1).left.keys() == {shard.name}
    assert contents(repair.root) == damaged  # without its tar it stays, readable as before
    repair.check_completed_by_the_next("put back")


@pytest.mark.parametrize("damage", ["pixels of a shard", "a shard lost"])
def test_a_repair_by_other_versions_that_ends_at_any_call_is_completed_by_the_next(
    stage, tmp_path, torture, damage
):
    other_versions = partial(prefer_other_decoder, tmp_path / "other")
    repair = Repair(stage, tmp_path, damage, prepare=other_versions)
    assert repair.run()[0] == 0
    repair.expected = contents(repair.root)
    assert repair.expected != stage.expected
    repair.end_at_any_call(torture, ["killed"], 2, 80)
