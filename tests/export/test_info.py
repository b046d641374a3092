"""`info` says what a pack holds, with histograms that count every value once."""

import itertools
import shutil
from collections import Counter

import numpy as np
import pytest
from commands import run
from edited_packs import unfinished_pack
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packs_with_features import SPECS, write_side
from scenarios import Case, Stage
from small_packs import pack_small
from small_tars import SMALL, changed, members, write_tar

import sa1bpack
from sa1bpack import FormatError, PackOptions
from sa1bpack.errors import NotAPack
from sa1bpack.export.histograms import histogram


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """Photos 0 to 24 with as many masks each, two rejected, some over the cap."""
    folder = tmp_path_factory.mktemp("info")
    found = members(range(25), masks=lambda number: number)
    found["./sa_5.json"] = b"{ not json"
    del found["./sa_6.jpg"]
    for key in ("a" * 70, "b" * 70, "caption"):
        changed(found, 7, lambda record, key=key: record["image"].update({key: 1}))
    tar = write_tar(folder / "sa_000000.tar", found)
    pack_small(tar, folder / "pack", max_masks=20, empty="drop")
    return folder / "pack"


def test_counts_are_those_of_the_pack(pack):
    info = sa1bpack.info(pack)
    numbers = set(range(1, 25)) - {5, 6}
    assert sorted(info.mask_counts) == sorted(min(20, number) for number in numbers)
    assert info.manifest.samples == len(numbers) == 22
    assert info.manifest.counts == {
        "images": 22, "masks": sum(min(20, n) for n in numbers), "annotations": sum(numbers),
        "dropped_images": 1, "rejects": 2, "rejects:bad-annotation": 1, "rejects:missing-jpeg": 1,
    }  # fmt: skip
    files = (pack / "shards").glob("sa_*/*/c.*")
    assert info.bytes == sum(path.stat().st_size for path in files)


def test_files_and_folders_are_counted_without_a_packers_working_files(pack, tmp_path):
    root = shutil.copytree(pack, tmp_path / "pack")
    paths = [path for path in root.rglob("*") if not path.name.startswith(".")]
    files = sum(path.is_file() for path in paths)
    (root / "shards/.tmp-sa_9-000-0").mkdir()
    (root / "shards/.tmp-sa_9-000-0/zarr.json").write_text("{}")
    info = sa1bpack.info(root)
    assert (info.files, info.folders) == (files, 1 + len(paths) - files)
    assert f"  files      {files} in {info.folders} folders\n" in info.as_text()


@pytest.mark.parametrize(
    "options, pixels, masks, holes",
    [
        ({}, "rgb, padded to 64 x 64", "16 x 16 bits and exact runs at full size", True),
        ({"fit": "squash", "masks": "bits"}, "rgb, squashed to 64 x 64", "16 x 16 bits", True),
        ({"fit": "native", "pixels": "yuv420", "masks": "runs"},
         "yuv420, longer side 64, without padding", "exact runs at full size", False),
    ],
)  # fmt: skip
def test_the_text_says_how_pixels_and_masks_are_stored(tmp_path, options, pixels, masks, holes):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1, 2]))
    pack_small(tar, tmp_path / "pack", **options)
    lines = sa1bpack.info(tmp_path / "pack").as_text().splitlines()
    assert f"  pixels     {pixels}" in lines and f"  mask data  {masks}" in lines
    assert any("padding is stored as holes" in line for line in lines) == holes
    assert "  masks      6; none left out" in lines


def test_the_text_has_everything_in_90_columns(pack):
    text = sa1bpack.info(pack).as_text()
    lines = [line for line in text.splitlines()[1:] if str(pack) not in line]
    assert [line for line in lines if len(line) > 90] == []
    for word in (
        "complete", "22 in 6 shards from 1 source\n",
        "279; 10 of 289 of the images that were kept left out by --max-masks 20",
        "1 image without masks", "2 rejected members", "1 bad-annotation", "1 missing-jpeg",
        f"sa1bpack {sa1bpack.__version__}", "simplejpeg", "image.caption",
    ):  # fmt: skip
        assert word in text, text
    options = PackOptions(**SMALL, max_masks=20, empty="drop").to_json()
    lines = [line.split(None, 1) for line in text.splitlines()]
    for name, value in options.items():
        shown = {"None": "none", "True": "yes", "False": "no"}.get(str(value), str(value))
        assert [name, shown] in lines
    bars = text[text.index("masks per image") :].splitlines()[1:]
    assert sum(int(line.split()[-1].replace(",", "")) for line in bars) == 22


def test_a_pack_that_is_not_complete_or_without_a_sample_says_so(tmp_path):
    unfinished_pack(tmp_path / "pack")
    info = sa1bpack.info(tmp_path / "pack")
    nothing = write_tar(tmp_path / "b.tar", {"./readme.txt": b"hello"})
    pack_small(nothing, tmp_path / "empty")
    empty = sa1bpack.info(tmp_path / "empty")
    assert empty.histogram()[0].sum() == 0 and "0 in 0 shards" in empty.as_text()
    assert "NOT COMPLETE: repeat the pack command" in info.as_text()
    assert "8 in 2 shards from 1 source\n" in info.as_text()
    said = "8 images in 2 shards, 0 sources packed to the end, 1 in part; repeat the pack command"
    assert f"state not complete: {said}, which names" in " ".join(info.as_text().split())


def test_a_summary_and_a_page_name_what_a_pack_holds_more_than_once(tmp_path):
    tar = write_tar(tmp_path / "sa_000000.tar", members([1, 2]))
    copy = tmp_path / "sa_000001.tar"
    copy.write_bytes(tar.read_bytes())
    other = write_tar(tmp_path / "sa_000002.tar", members([2, 3]))
    root = tmp_path / "pack"
    pack_small([tar, copy, other], root)
    info = sa1bpack.info(root)
    found = info.as_text()
    assert "  identity   XXH3-128 of 3 tars, no md5\n" in found
    assert "  duplicates 2 image ids occur more than once" in found
    report = sa1bpack.verify(root)
    assert report.ok and len(report.notes) == 1 and "2 image ids occur" in report.notes[0]
    page = tmp_path / "page.html"
    assert sa1bpack.report(root, page, verify="none", samples=1).ok
    assert "image ids occur more than once" in page.read_text()


def test_features_are_listed_with_what_is_missing(pack, tmp_path):
    root = shutil.copytree(pack, tmp_path / "pack")
    before = sa1bpack.info(root)
    assert before.features == {}
    names = [shard.name for shard in before.manifest.shards]
    write_side(root, SPECS["odd"])
    write_side(root, SPECS["quality"], shards=names[1:])
    (root / "side/broken").mkdir()
    info = sa1bpack.info(root)
    text = " ".join(info.as_text().split())
    assert "feature odd: int8 (5,) per image" in text
    assert "feature quality: bfloat16 (3,) per mask" in text
    assert "by 'test', complete" in text
    assert f"1 shard missing: {names[0]}" in text
    assert "feature broken: " in text and "not a feature" in text
    assert (info.files, info.folders, info.bytes) == (before.files, before.folders, before.bytes)
    out = tmp_path / "report.html"
    sa1bpack.report(root, out, samples=1)
    page = out.read_text()
    assert "3 features." in page and "odd: int8 (5,) per image" in page


def test_info_and_open_agree_wherever_a_run_is_killed(tmp_path_factory, tmp_path):
    """Before and after the first shard is published, and until an index lists it."""
    stage = Stage(tmp_path_factory.mktemp("stage"))
    states = Counter()
    for at in itertools.count():
        case = Case(stage, tmp_path / "case", "fresh")
        plan = case.plan("kill", at=at, calls=("rename",))
        case.run(plan.apply)
        if not case.hits():
            break
        try:
            info = sa1bpack.info(case.root)
        except NotAPack:
            with pytest.raises(NotAPack):
                sa1bpack.open(case.root)
            states["not a pack"] += 1
            continue
        assert info.manifest.samples == info.completeness.images == len(info.mask_counts)
        if info.manifest.samples:
            assert len(sa1bpack.open(case.root)) == info.manifest.samples
            states[info.manifest.samples] += 1
        else:
            with pytest.raises(FormatError, match="shard"):
                sa1bpack.open(case.root)
            assert f"state {info.completeness}" in " ".join(info.as_text().split())
            states["published" if info.completeness.unindexed else "nothing"] += 1
    assert {"not a pack", "nothing", "published"} <= states.keys(), states


FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False)
WHOLE = st.integers(-1000, 100_000)


@settings(max_examples=25)
@given(st.lists(FLOATS, min_size=1, max_size=50) | st.lists(WHOLE, min_size=1, max_size=50))
@example([150001.0, -1e-05])  # below 0 by a 1e-9 of a bin
@example([0.95, 0.99, 1.0])
def test_every_value_is_counted_in_its_bin(values):
    values = np.array(values)
    counts, edges = histogram(values, 30)
    assert counts.sum() == len(values) and (np.diff(edges) > 0).all() and len(counts) <= 32
    assert edges[0] <= values.min() and values.max() <= edges[-1]
    if values.dtype.kind == "i":
        assert (edges == np.rint(edges)).all() and values.max() < edges[-1]


def test_what_is_not_finite_or_has_no_logarithm_is_not_counted():
    for values, logarithmic in (([0.5, np.nan, np.inf, -np.inf], False), ([0, 5], True)):
        assert histogram(np.array(values), 30, logarithmic)[0].sum() == 1


def test_every_source_has_its_counts_worst_first_in_80_columns(tmp_path):
    tars = []
    for number, images in enumerate([range(3), range(10, 17), range(20, 22)]):
        contents = members(images)
        for image in list(images)[:number]:
            contents[f"./sa_{image}.json"] = b"{ not json"
        name = f"{'long_' * 12}name_{number}" if number else "sa_000000"
        tars.append(write_tar(tmp_path / f"{name}.tar", contents))
    root = pack_small(tars, tmp_path / "pack").root
    info = sa1bpack.info(root)
    assert [(source.images, source.rejects) for source in info.of_sources] == [
        (6, 1),
        (0, 2),
        (3, 0),
    ]
    assert sum(source.masks for source in info.of_sources) == info.manifest.masks
    assert all(source.complete for source in info.of_sources)
    heading, *lines = info.sources_text().splitlines()
    assert heading.split() == ["source", "images", "masks", "rejects", "dropped"]
    assert [line.split()[1] for line in lines] == ["0", "6", "3"] and "..." in lines[0]
    assert max(map(len, [heading, *lines])) <= 80
    assert "name_2: 2 (--sources lists all)" in " ".join(info.as_text().split())
    assert info.as_dict()["sources"][2]["images"] == 3
    code, out, _ = run("info", root, "--sources")
    assert code == 0 and out == f"{info.sources_text()}\n"
    code, _, error = run("info", "--sources")
    assert code == 2 and "--sources needs a pack" in error


def test_sources_of_several_packs_and_in_part_are_counted_once(tmp_path):
    for name, images in (("a", [1, 2]), ("b", [3])):
        (tmp_path / name).mkdir()
        tar = write_tar(tmp_path / name / "sa_000000.tar", members(images))
        pack_small(tar, tmp_path / name / "pack")
    both = sa1bpack.info([tmp_path / "a/pack", tmp_path / "b/pack"])
    assert [(source.name, source.images) for source in both.of_sources] == [("sa_000000", 3)]
    unfinished_pack(tmp_path / "part")
    part = sa1bpack.info(tmp_path / "part")
    assert [source.complete for source in part.of_sources] == [False]
    assert " (in part)" in part.sources_text()


def test_a_copied_pack_says_what_it_was_copied_from(pack, tmp_path):
    ds = sa1bpack.open(pack)
    root = tmp_path / "copy"
    sa1bpack.copy_selection(ds[:5], root, progress=False)
    sa1bpack.copy_selection(ds[:5], root, progress=False)  # nothing is left to copy
    info = sa1bpack.info(root)
    [copy] = info.copies
    assert copy.copied_from == [str(pack)] and copy.images == 5
    assert f"copied 5 images from {pack}" in " ".join(info.as_text().split())
    assert info.as_dict()["copied_from"][0]["copied_from"] == [str(pack)]
    assert info.of_sources[0].left_out == len(ds) - 5
    assert "left out" in info.sources_text()
    assert sa1bpack.info(pack).copies == () and sa1bpack.verify(root).ok


def test_the_command_says_what_the_sources_were(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in members([1]).items():
        (folder / name).write_bytes(data)
    pack_small(folder, tmp_path / "pack")
    assert sa1bpack.info(tmp_path / "pack").command.startswith("sa1bpack pack FOLDER -o ")
