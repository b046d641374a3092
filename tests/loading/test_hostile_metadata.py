"""Random bytes in any array of metadata, through the loaders: an error with a name, or the data, of
features as well.

Batches of one sample each, so that a batch is compared with its sample.
"""

import itertools
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from batches import clone, same
from forked_programs import forked_python
from guard_pages import guard_maps
from hostile_packs import LAYOUTS, ROWS, Found, Hostile, targets
from hostile_reading import masks_of
from loader_seams import nothing_told
from packs_with_features import SPECS, write_side
from page_cache import why_not_direct

import sa1bpack
from sa1bpack import FormatError, ReadError

HELPERS = Path(__file__).parents[1] / "helpers"
LAYOUT_NAMES = ("padded", "concat", "padded_bits", "concat_bits")
CHOICES = (None, "largest", "iou", "random", "stability", "balanced", "of a rule")
RULE = {"min_area": 5, "max_area_frac": 0.5, "min_iou": 0.8, "min_stability": 0.1}
READ = (0, 3, *ROWS, 7)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return Hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def ios(tmp_path_factory) -> tuple[str, ...]:
    """The values of `io` that the file system of the packs allows."""
    return ways_to_read(tmp_path_factory.mktemp("probe"))


def ways_to_read(folder: Path) -> tuple[str, ...]:
    return ("cached",) if why_not_direct(folder) else ("cached", "direct")


def not_asked(io: str):
    """With "direct", what is in memory is not asked, so that all of it is read from the disk."""
    if io == "cached":
        return nullcontext()
    return nothing_told()


def load_everything(
    root: Path, masks: str, mask_select: str | None, verified: bool, loader: str, io: str = "cached"
) -> int:
    """Load samples one by one; returns how many loaded. Raises AssertionError otherwise.

    Args:
        io: of the Loader; make_dataloader has none.
    """
    by_rule = mask_select == "of a rule"
    options = {"coordinates": "source", "duplicates": "all"} | (RULE if by_rule else {})
    ds = sa1bpack.open(root, verify_checksums=verified, **options)[list(READ)]
    given = {"mask_layout": masks, "on_error": "raise"}
    if mask_select is not None:
        given |= {"max_masks": 3, "mask_select": "balanced" if by_rule else mask_select}
    found, loaded = Found(root), 0
    for index, row in enumerate(READ):
        one = ds[index : index + 1]
        try:
            if loader == "Loader":
                with (
                    not_asked(io),
                    sa1bpack.Loader(one, 1, device="cpu", threads=1, io=io, **given) as batches,
                ):
                    [batch] = map(clone, batches)
            else:
                [batch] = sa1bpack.make_dataloader(one, 1, num_workers=0, pin_memory=False, **given)
        except ReadError as error:
            assert found.shard_name(row) in str(error), error
            continue
        expected = found.sample(row)
        passing = passes(expected) if by_rule else np.ones(len(expected["area"]), bool)
        kept = min(passing.sum(), 3) if mask_select is not None else len(passing)
        assert batch["mask_counts"].tolist() == [kept], row
        assert batch["image_ids"].tolist() == [expected["image_id"]]
        areas = batch["areas"].reshape(-1).tolist()
        assert all(area in expected["area"][passing].tolist() for area in areas)
        if mask_select is None:
            assert areas == expected["area"].tolist()
            with np.errstate(all="ignore"):
                boxes = expected["bbox"].astype(np.float32)
            np.testing.assert_array_equal(batch["bboxes"].numpy().reshape(-1, 4), boxes)
            wanted = masks_of(one, expected, as_bool=not masks.endswith("bits"))
            found_masks = batch["masks"].numpy().reshape(wanted.shape)
            np.testing.assert_array_equal(found_masks, wanted, strict=True)
        if not ds.layout.flat:
            np.testing.assert_array_equal(batch["images"][0].numpy(), expected["image"])
        loaded += 1
    return loaded


def passes(sample: dict) -> np.ndarray:
    """bool (m,): the masks of a stored sample that pass the rule."""
    height, width = sample["size"][:2].tolist()
    passing = (sample["area"] >= 5) & (sample["area"] <= 0.5 * height * width)
    return passing & (sample["predicted_iou"] >= 0.8) & (sample["stability_score"] >= 0.1)


def load_or_refuse(root: Path, *arguments) -> int:
    """`load_everything`, of a pack that may be refused when it is opened."""
    try:
        return load_everything(root, *arguments)
    except ReadError:
        raise
    except FormatError as error:
        assert "index-" in str(error), error
        return 0


CASES = [(name, target) for name, layout in LAYOUTS.items() for target in targets(layout)]


@pytest.mark.parametrize("name, target", CASES)
@pytest.mark.parametrize("half", [0, 1])
def test_random_metadata_is_an_error_or_the_data_of_its_sample(hostile, ios, name, target, half):
    """Each array with another of the layouts, choices and checks; with options that affect it.

    A DataLoader reads as a dataset does, of which there is such a test as well.
    """
    number = CASES.index((name, target))
    combinations = list(itertools.product(LAYOUT_NAMES, CHOICES, (False, True)))
    chosen = combinations[number % 23 :: 23]
    if target in ("area", "predicted_iou", "stability_score", "mask_offset", "run_offset", "size"):
        chosen = combinations[number % 11 :: 11]
    for seed, (masks, mask_select, verified) in [*enumerate(chosen)][half::2]:
        io = ios[seed // 2 % len(ios)]  # each with either
        load_or_refuse(hostile.pack(name, target, seed), masks, mask_select, verified, "Loader", io)


@pytest.mark.parametrize("loader", ["Loader", "make_dataloader"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_intact_pack_is_loaded_completely(hostile, ios, name, loader):
    """In every layout, with a choice of each kind."""
    root = hostile.pack(name, None)
    for masks, mask_select in zip(LAYOUT_NAMES, (None, "balanced", "of a rule", None), strict=True):
        for verified in (False, True):
            for io in ios if loader == "Loader" and not verified else ("cached",):
                assert load_everything(root, masks, mask_select, verified, loader, io) == len(READ)


def load_with_guards(folder: Path, side: str, *names: str) -> None:
    """Load packs of these layouts, each array random in turn, and with "end" features as well.

    From then on, a read past that side of any array ends this process.
    """
    maps = guard_maps(side)
    hostile = Hostile(folder)
    ios = ways_to_read(folder)
    loaded = 0
    cases = [(name, target) for name in names for target in (None, *targets(LAYOUTS[name]))]
    for number, (name, target) in enumerate(cases):
        masks = LAYOUT_NAMES[number % 4]
        mask_select = CHOICES[number // 4 % 7]
        for seed, verified in enumerate((False, True)):
            root = hostile.pack(name, target, seed)
            io = ios[(number + seed) % len(ios)]
            loaded += load_or_refuse(root, masks, mask_select, verified, "Loader", io)
    assert maps[0] > 100 and loaded > 20
    if side == "end":
        loaded = load_features(hostile, ios)
        assert loaded > 12


def load_features(hostile: Hostile, ios: tuple[str, ...]) -> int:
    """Load features of packs whose offsets are random; returns how many samples loaded."""
    sound = hostile.pack("pad", None)
    for spec in SPECS.values():
        write_side(sound, spec)
    assert features_loaded(sound, False, "concat", ios[-1]) == len(READ)
    loaded = 0
    for number, target in enumerate(
        ("mask_offset", "index/mask_offset", "all of the shard", "all")
    ):
        for seed in (0, 2, 4):
            root = hostile.pack("pad", target, seed)
            verified = seed == 4
            masks = ("concat", "padded")[number % 2]
            loaded += features_loaded(root, verified, masks, ios[(number + seed) % len(ios)])
    return loaded


def features_loaded(root: Path, verified: bool, masks: str, io: str) -> int:
    """Load samples one by one, and compare their features with those of the dataset."""
    found = Found(root)
    try:
        ds = sa1bpack.open(root, features=list(SPECS), verify_checksums=verified)
    except FormatError as error:
        assert "index-" in str(error), error
        return 0
    collate = sa1bpack.Collate(masks, sample_spec=ds.spec)
    loaded = 0
    for row in READ:
        part = ds[row : row + 1]
        try:
            expected = collate([ds[row]])
            with (
                not_asked(io),
                sa1bpack.Loader(part, 1, mask_layout=masks, io=io, threads=1) as batches,
            ):
                [batch] = batches
                for name in SPECS:
                    same({name: batch[name]}, {name: expected[name]})
        except FormatError as error:
            assert found.shard_name(row) in str(error) or "index-" in str(error), error
            continue
        loaded += 1
    return loaded


PROGRAM = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from test_hostile_metadata import load_with_guards
load_with_guards(Path(sys.argv[3]), *sys.argv[4:])
print("alive")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages need mprotect")
@pytest.mark.parametrize(
    "side, names", [("end", ("pad", "squash")), ("start", ("native",))], ids=["end", "start"]
)
def test_nothing_outside_an_array_or_a_feature_is_read(tmp_path, side, names):
    """In a process that a read past that side of any array would kill.

    The tests of datasets take the other sides.
    """
    folders = HELPERS, Path(__file__).parent, tmp_path
    assert forked_python(PROGRAM, *folders, side, *names, action="error") == "alive\n"
