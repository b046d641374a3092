"""Any damage to the files of a pack is found and named, and reading it is safe."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from damage import KINDS, Damage, Damager, linked_copy
from reading_child import ReadingChild
from small_tars import members, write_tar
from verify_script import script_finds

import sa1bpack

LAYOUTS = {
    "default": {},
    "native yuv420 runs": {"fit": "native", "pixels": "yuv420", "masks": "runs"},
    "squash yuv420 bits+runs": {"fit": "squash", "pixels": "yuv420", "masks": "bits+runs"},
}


@pytest.fixture(scope="module")
def packs(tmp_path_factory) -> list[Path]:
    """A pack of each layout: three shards of 3, 3 and 2 samples, and one reject."""
    folder = tmp_path_factory.mktemp("corruption")
    given = members(range(100, 108), masks=lambda number: (3, 0, 5, 1, 2)[number % 5])
    given["./sa_200.jpg"] = b"no picture"
    given["./sa_200.json"] = b"{}"
    tar = write_tar(folder / "sa_000000.tar", given)
    found = [folder / name for name in LAYOUTS]
    for root, options in zip(found, LAYOUTS.values(), strict=True):
        sa1bpack.pack(
            tar, root, image_size=192, mask_size=16, samples_per_shard=3, workers=1, **options
        )
        assert (root / "rejects.jsonl").stat().st_size > 0
    return found


def check_found(root: Path, damage: Damage) -> None:
    """`sa1bpack.verify` finds the damage and names shard, array and sample."""
    try:
        report = sa1bpack.verify(root)
    except sa1bpack.errors.VersionError as error:  # a flipped bit changed the version
        assert damage.place == "manifest.json" and damage.kind == "flip", error
        return
    except sa1bpack.errors.FormatError as error:
        assert damage.place == "manifest.json" and damage.kind == "missing", error
        return
    if damage.harmless:
        assert report.ok and sa1bpack.verify(root, quick=True).ok, (damage, report.problems)
        return
    assert not report.ok, damage
    text = "\n".join(map(str, report.problems))
    assert any(name in text for name in damage.names), (damage, text)
    if not report.counts:  # the manifest cannot be read, so nothing else was checked
        return
    mine = [p for p in report.problems if p.shard == damage.shard]
    if damage.shard is not None:
        assert mine, (damage, text)
        if damage.array is not None:
            assert damage.array in {p.array for p in mine}, (damage, text)
        if damage.samples:
            assert damage.samples & {p.sample for p in mine}, (damage, text)
    assert sa1bpack.verify(root, quick=True).ok != damage.quick, damage


def check_found_by_script(root: Path, damage: Damage) -> None:
    """The script finds it as well."""
    code, text = script_finds(root)
    if damage.harmless:
        assert code == 0 and script_finds(root, "--quick")[0] == 0, (damage, text)
        return
    assert code in (1, 2, 3), (damage, text)
    assert any(name in text for name in damage.names), (damage, text)
    code, text = script_finds(root, "--quick")
    assert (code != 0) == damage.quick, (damage, text)


def check_reading(child: ReadingChild, root: Path, whole: dict, damage: Damage) -> int:
    """With verify_checksums everything is correct or an error; without, at least nothing crashes.

    Returns the number of samples that were wrong without it.
    """
    ids = [int(image_id) for image_id in whole["by_id"]]
    found = child.read(root, True, ids)
    if damage.harmless:
        assert found == whole, damage
    if "error" not in found:
        for part, values in whole.items():
            if isinstance(found[part], str):
                assert "Error: " in found[part]
                continue
            assert set(values) == set(found[part]), (damage, part)
            for key, value in values.items():
                got = found[part][key]
                error = "ReadError: " if part != "columns" else "FormatError: "
                assert got == value or got.startswith(error), (damage, part, key, got)
    found = child.read(root, False, ids)
    samples = found.get("samples", {})
    return sum(
        value != whole["samples"][row] and "Error: " not in value for row, value in samples.items()
    )


def plan_of(damagers: list[Damager], rounds: int, rng) -> list[tuple[int, str | None, str | None]]:
    """Pack, kind of damage and kind of file of each round; None for random ones."""
    numbers = range(len(damagers))
    # Every kind of file and every kind of damage, even in few rounds.
    plan = []
    for place in sorted(set().union(*(damager.places for damager in damagers))):
        having = [number for number in numbers if place in damagers[number].places]
        plan.append((rng.choice(having), "flip", place))
    plan += [(rng.choice(numbers), kind, None) for kind in KINDS]
    rng.shuffle(plan)
    return plan[:rounds] + [(k % len(damagers), None, None) for k in range(rounds - len(plan))]


def read_whole(child: ReadingChild, pack: Path) -> dict:
    """Everything read from an undamaged pack, with and without it."""
    ids = sa1bpack.open(pack).column("image_id").tolist()
    whole = child.read(pack, True, ids)
    assert whole == child.read(pack, False, ids)
    assert len(whole["samples"]) == len(whole["loader"]) == 8
    assert not any("Error" in value for part in whole.values() for value in part.values())
    return whole


def test_damage_is_found_and_named_and_never_read_with_a_check(packs, tmp_path, torture):
    damagers = [Damager(pack, torture.rng) for pack in packs]
    rounds = torture.rounds(12, 1000)
    wrong, kinds, hit = 0, Counter(), Counter()
    with ReadingChild() as child:
        wholes = [read_whole(child, pack) for pack in packs]
        for number, (which, kind, place) in enumerate(plan_of(damagers, rounds, torture.rng)):
            root = linked_copy(packs[which], tmp_path / str(number))
            damage = damagers[which].damage(root, kind, place)
            kinds[damage.kind] += 1
            hit[packs[which].name] += 1
            check_found(root, damage)
            check_found_by_script(root, damage)
            wrong += check_reading(child, root, wholes[which], damage)
            for path in tmp_path.glob(f"{number}*"):
                shutil.rmtree(path)
    assert wrong, "no damage was read without checksums, so the test proves nothing"
    listed = [
        ", ".join(f"{count} {name}" for name, count in counts.most_common())
        for counts in (kinds, hit)
    ]
    outcome = "all found and named, 0 crashes, 0 wrong samples with verify_checksums=True"
    named = f"damage at rest: {listed[0]}; layouts: {listed[1]}"
    torture.record(named, rounds, f"{outcome} ({wrong} without)")
