"""A run into a pack takes the options of the pack; one that is given must be the pack's."""

import dataclasses
import threading

import pytest
from format_files import manifest_of
from small_tars import contents, members, write_tar

import sa1bpack
from sa1bpack import OptionError, PackOptions
from sa1bpack.errors import OptionsDiffer
from sa1bpack.packing.options import options_text
from sa1bpack.packing.publishers import folder_publisher, part_publisher
from sa1bpack.packing.records import PackJob
from sa1bpack.packing.requested_options import RequestedOptions

ODD = {"preset": "compact", "image_size": 64, "samples_per_shard": 2, "max_masks": 2, "seed": 3}


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remembered")
    return [write_tar(folder / f"sa_{n}.tar", members([n, 10 + n, 20 + n])) for n in range(2)]


@pytest.fixture(scope="module")
def at_once(tars, tmp_path_factory):
    """What a pack of both tars holds, with all options given."""
    root = tmp_path_factory.mktemp("at_once") / "pack"
    sa1bpack.pack(tars, root, workers=1, **ODD)
    return contents(root)


@pytest.fixture
def begun(tars, tmp_path):
    """A pack of the first tar."""
    sa1bpack.pack(tars[:1], tmp_path / "pack", workers=1, **ODD)
    return tmp_path / "pack"


TAKEN = (
    "the options are those of the pack: --preset compact --image-size 64 --samples-per-shard 2 "
    "--max-masks 2 --seed 3"
)


def test_tars_are_added_with_the_options_of_the_pack_which_is_said_once(
    begun, tars, at_once, capsys
):
    result = sa1bpack.pack(tars, begun, workers=1)
    assert contents(begun) == at_once
    assert capsys.readouterr().err.count(TAKEN) == 1 and result.notes == [TAKEN]


def test_a_dry_run_takes_them_too_and_writes_nothing(begun, tars, at_once, capsys):
    before = contents(begun)
    forecast = sa1bpack.estimate(tars, begun)
    assert contents(begun) == before and TAKEN in capsys.readouterr().err
    given = sa1bpack.estimate(tars, begun, **ODD)
    assert (forecast.images, forecast.disk_bytes) == (given.images, given.disk_bytes)
    with pytest.raises(OptionsDiffer, match="seed: the pack has 3, this run asks for 4"):
        sa1bpack.estimate(tars, begun, seed=4)


def test_parts_and_finalize_take_them_too(begun, tars, at_once, capsys):
    for k in (1, 2):
        sa1bpack.pack_part(tars, begun, (k, 2), workers=1)
    assert capsys.readouterr().err.count(TAKEN) == 2
    assert sa1bpack.finalize(begun).complete and contents(begun) == at_once


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"preset": "plain"}, "fit: the pack has 'native', this run asks for 'pad'"),
        ({"max_masks": None}, "max_masks: the pack has 2, this run asks for all"),
        ({"image_size": 1024}, "image_size: the pack has 64, this run asks for 1024"),
        (dataclasses.asdict(PackOptions()), "masks: the pack has 'runs', this run asks for 'bits+"),
    ],
    ids=["preset", "none", "a-default", "an-object"],
)
def test_a_default_that_is_given_is_compared_as_any_value(begun, tars, given, said):
    before = contents(begun)
    with pytest.raises(OptionsDiffer) as caught:
        sa1bpack.pack(tars, begun, workers=1, **given)
    assert f"\n  {said}" in str(caught.value) and contents(begun) == before


@pytest.mark.parametrize("given", [{"preset": "compact"}, {"fit": None}, {"fit": "native"}, ODD])
def test_an_option_with_the_value_of_the_pack_is_taken(begun, tars, given):
    assert sa1bpack.pack(tars[:1], begun, workers=1, **given).packed_before == 1


def test_flags_that_are_left_out_are_those_of_the_pack(command, tars, begun, at_once):
    code, _, error = command("pack", *tars, "-o", begun, "--workers", 1)
    assert code == 0 and error.count(TAKEN) == 1 and contents(begun) == at_once
    code, _, error = command("pack", *tars, "-o", begun, "--max-masks", "all")
    assert code == 3 and "--max-masks: the pack has 2, this run asks for all" in error


def test_nothing_is_said_where_nothing_was_left_out_or_all_are_defaults(begun, tars, tmp_path):
    assert sa1bpack.pack(tars[:1], begun, workers=1, **ODD).notes == []
    for _ in range(2):
        assert sa1bpack.pack(tars[:1], tmp_path / "defaults", workers=1).notes == []


def test_options_that_do_not_go_together_leave_no_folder(tars, tmp_path):
    for call in (sa1bpack.pack, sa1bpack.estimate):
        with pytest.raises(OptionError, match="image_size is 63"):
            call(tars, tmp_path / "new", image_size=63, pixels="yuv420")
    assert not (tmp_path / "new").exists()


def test_a_part_does_not_add_to_a_pack_that_another_has_begun_with_other_options(root):
    """Both looked at the folder when there was no pack in it."""
    with (
        part_publisher(root, RequestedOptions({"seed": 1})) as first,
        part_publisher(root, RequestedOptions()) as second,
    ):
        first.begin()
        with pytest.raises(OptionsDiffer, match="seed: the pack has 1, this run asks for 0"):
            second.begin()
    assert manifest_of(root)["options"]["seed"] == 1


def test_a_part_takes_the_options_of_a_pack_that_another_has_begun_since_it_looked(root):
    with (
        part_publisher(root, RequestedOptions({"seed": 1})) as first,
        part_publisher(root, RequestedOptions({"max_masks": 2})) as refused,
        part_publisher(root, RequestedOptions()) as second,
    ):
        first.begin()
        second.take_part(PackJob(parts=2, sources=("a", "b")), ["b"])
        assert second.ledger.options.seed == 1 and "--seed 1" in second.ledger.taken_options
        second.begin()
        with pytest.raises(OptionsDiffer, match="max_masks: the pack has all, this run asks"):
            refused.take_part(PackJob(parts=2, sources=("a", "b")), ["b"])


def test_of_two_runs_on_a_new_folder_the_second_takes_the_options_of_the_first(tars, root):
    """Or is refused, if it was there before the first had ended."""
    barrier = threading.Barrier(2)
    outcomes = []

    def run(options):
        barrier.wait()
        try:
            with folder_publisher(root, RequestedOptions(options)) as publisher:
                publisher.begin()
                outcomes.append(publisher.ledger.options.seed)
        except sa1bpack.errors.OutputRefused as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=run, args=[{"seed": seed}]) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorded = manifest_of(root)["options"]["seed"]
    assert recorded in outcomes
    assert {*outcomes} - {recorded} <= {"OutputLocked", "OptionsDiffer"}


# ---------------------------------------------------------------------------- the command of a pack


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, ""),
        ({"preset": "compact"}, "--preset compact"),
        ({"fit": "native"}, "--fit native"),
        ({"fit": "native", "pixels": "yuv420", "masks": "runs"}, "--preset compact"),
        (
            {"preset": "compact", "masks": "bits", "samples_per_shard": 6144},
            "--fit native --pixels yuv420 --masks bits --samples-per-shard 6144",
        ),
        (
            {"min_iou": 0.1 + 0.2, "mask_select": "iou", "max_masks": 9, "empty": "drop"},
            "--empty drop --min-iou 0.30000000000000004 --max-masks 9 --mask-select iou",
        ),
    ],
    ids=str,
)
def test_the_flags_of_a_pack_are_those_that_are_no_defaults(options, flags):
    assert sorted(options_text(PackOptions(**options)).split()) == sorted(flags.split())


def test_the_command_that_info_shows_makes_the_same_pack(command, tars, at_once, begun, tmp_path):
    shown = command("info", begun)[1].partition("\n  command    ")[2].partition("\noptions\n")[0]
    words = shown.replace("\\\n", " ").split()
    assert words == sa1bpack.info(begun).as_dict()["command"].split()
    assert words[:5] == ["sa1bpack", "pack", "TARS", "-o", str(begun)]
    code, _, error = command("pack", *tars, "-o", tmp_path / "again", "--workers", 1, *words[5:])
    assert code == 0, error
    assert contents(tmp_path / "again") == at_once


def test_the_command_of_a_pack_has_its_md5_and_several_packs_have_none(tars, begun, tmp_path):
    sa1bpack.pack(tars[1:], tmp_path / "other", workers=1, md5=True, **ODD)
    assert sa1bpack.info(tmp_path / "other").command.endswith(" --seed 3 --md5")
    assert sa1bpack.info([begun, tmp_path / "other"]).as_dict()["command"] is None
