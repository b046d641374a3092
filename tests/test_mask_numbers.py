"""One line of the table of numbers carries a number of each mask from the JSON to the batch."""

import itertools
import json
import re
from collections import Counter

import pytest
from forked_programs import forked_python, run_forked
from format_files import DOCS, documented
from small_tars import SMALL, changed, contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack.mask_numbers import MASK_NUMBERS, MaskNumber

# What is done to add `made_up`: the line, and of an optional number what its option does.
LINE = """
from sa1bpack import mask_numbers

mask_numbers.MASK_NUMBERS += (
    mask_numbers.MaskNumber(
        array="made_up", json="made_up", key="made_ups", meaning="of a test", type_bit=14,
        optional={optional}, title="Made up", heading="made_up",
    ),
)
mask_numbers.OPTIONAL_NUMBERS += ("made_up",) * {optional}

from sa1bpack.packing.options import PackOptions

if {stored}:
    PackOptions.optional_numbers = ("made_up",)
"""
PROGRAM = """
import json, sys
import numpy as np
import sa1bpack

tar, folder, expected, options = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
root, stored = f"{folder}/pack", expected["stored"]
sa1bpack.pack(tar, root, workers=1, **options)
assert sa1bpack.verify(root).ok
info = sa1bpack.info(root)
assert info.unknown_keys == expected["unknown"], info.unknown_keys

ds = sa1bpack.open(root, coordinates="source")
if stored:
    samples = [np.array(sample, float) for sample in stored]
    values = np.concatenate(samples)
    np.testing.assert_array_equal(ds.mask_column("made_up"), values)
    numbers = [sample[~np.isnan(sample)] for sample in samples]  # of masks that have one
    least = ds.column("made_up", reduce="min")
    np.testing.assert_array_equal(least, [min(values, default=0) for values in numbers])
    above = sum(max(values, default=0) > 10 for values in numbers)
    assert len(ds.where("max(made_up) > 10")) == above
    for verified in (False, True):
        ds = sa1bpack.open(root, min_iou=0, verify_checksums=verified)
        for row, sample in enumerate(samples):
            np.testing.assert_array_equal(ds[row]["made_ups"], sample)
        loaders = [
            sa1bpack.Loader(ds, 4, mask_layout="concat", shuffle=False, order=None),
            sa1bpack.make_dataloader(ds, 4, mask_layout="concat", shuffle=False, num_workers=0),
        ]
        for loader in loaders:
            [batch] = loader
            assert batch["made_ups"].dtype.itemsize == 4
            np.testing.assert_array_equal(batch["made_ups"].numpy(), np.float32(values))
        weigh = lambda columns: np.nan_to_num(columns["made_up"])
        with sa1bpack.Loader(ds, 4, max_masks=1, mask_select=weigh) as loader:
            assert len(next(iter(loader))["made_ups"]) == len(samples)
else:
    assert "made_ups" not in ds[0]
    assert "made_ups" not in next(iter(sa1bpack.Loader(ds, 2)))
sa1bpack.show(root, rows=[0], large=True)
page = sa1bpack.report(root, f"{folder}/report.html").path.read_text()
assert ("Made up" in page) == bool(stored)
sa1bpack.export_sa1b(root, f"{folder}/records")
sa1bpack.export_coco(root, f"{folder}/coco.json")
"""


def made_tar(tmp_path, values):
    """A tar whose masks have these values, None for none, after SA-1B's keys."""
    found = members(range(len(values)), len(values[0]))
    for number, of_masks in enumerate(values):

        def change(record, of_masks=of_masks):
            for annotation, value in zip(record["annotations"], of_masks, strict=True):
                if value is not None:
                    annotation["made_up"] = value

        changed(found, number, change)
    return write_tar(tmp_path / "sa_000000.tar", found, shuffle=None), found


def carried(tmp_path, values, optional, stored):
    """Pack, read and export in a process that has the line; returns what was exported, and had."""
    tar, found = made_tar(tmp_path, values)
    expected = {"stored": values if stored else [], "unknown": []}
    if not stored:
        expected["unknown"] = ["annotations.made_up"]
    program = LINE.format(optional=optional, stored=stored and optional) + PROGRAM
    options = json.dumps(SMALL)
    status, _, errors = run_forked(program, tar, tmp_path, json.dumps(expected), options)
    assert status == 0, errors
    records = {
        name.removeprefix("./"): data for name, data in found.items() if name.endswith(".json")
    }
    return contents(tmp_path / "records/sa_000000"), records


@pytest.mark.parametrize("optional", [False, True])
def test_a_number_is_carried_from_the_json_to_the_batch_and_back_by_one_line(tmp_path, optional):
    """A mask without an optional number has NaN, and is exported without it; a release that does
    not know the number refuses the pack."""
    values = [[1, 2.5, -3.0], [0.125, 7, 1e9], [4, 4, 11.5], [0, 1, 2]]
    if optional:
        values[2:] = [[None, 4, 3], [None, None, None]]
    exported, records = carried(tmp_path, values, optional, stored=True)
    assert exported == records  # the texts of the numbers as well
    coco = json.loads((tmp_path / "coco.json").read_text())
    in_coco = [mask.get("made_up") for mask in coco["annotations"]]
    assert in_coco == list(itertools.chain(*values))
    if optional:
        with pytest.raises(sa1bpack.FormatError, match=r"numbers has 'made_up'.*newer sa1bpack"):
            sa1bpack.open(tmp_path / "pack")


def test_an_optional_number_that_the_pack_does_not_store_is_an_unknown_key(tmp_path):
    values = [[1, 2, 3], [4, 5, 6]]
    exported, records = carried(tmp_path, values, optional=True, stored=False)
    assert exported.keys() == records.keys() and exported != records
    pack_small(tmp_path / "sa_000000.tar", tmp_path / "plain")
    with_line, without = (contents(tmp_path / name / "shards") for name in ("pack", "plain"))
    assert with_line == without


KEPT = """
import json, sys
import sa1bpack

tar, folder, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = []
for number, keep in enumerate(("annotations.made_up", "all")):
    root = f"{folder}/kept_{number}"
    sa1bpack.pack(tar, root, workers=1, keep=keep, **options)
    found.append(sa1bpack.open(root, features=["made_up"]).mask_column("made_up").tolist())
sa1bpack.pack(tar, f"{folder}/before", workers=1)  # made before the table had the number
print(json.dumps(found))
"""


def test_the_key_of_an_optional_number_that_is_not_stored_can_be_kept(tmp_path):
    """By a request, and with all keys; a pack that kept it before the table had it is extended."""
    values = [[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]]
    tar, _ = made_tar(tmp_path, values)
    pack_small(tar, tmp_path / "before", keep="annotations.made_up")
    program = LINE.format(optional=True, stored=False) + KEPT
    status, output, errors = run_forked(program, tar, tmp_path, json.dumps(SMALL))
    assert status == 0, errors
    every = list(itertools.chain(*values))
    assert json.loads(output.splitlines()[-1]) == [every, every]


def test_the_key_of_an_optional_number_that_is_stored_is_not_kept_as_well(tmp_path):
    tar, _ = made_tar(tmp_path, [[1, 2, 3]])
    program = LINE.format(optional=True, stored=True) + (
        "import sys\nimport sa1bpack\n"
        "sa1bpack.pack(sys.argv[1], sys.argv[2], workers=1, keep='annotations.made_up')\n"
    )
    status, _, errors = run_forked(program, tar, tmp_path / "pack")
    assert status and "which every pack stores: leave it out" in errors, errors


def test_packs_with_and_without_the_number_are_not_one_dataset(tmp_path):
    carried(tmp_path, [[1, 2, 3], [4, 5, 6]], optional=True, stored=True)
    pack_small(tmp_path / "sa_000000.tar", tmp_path / "plain")
    program = (
        LINE.format(optional=True, stored=False)
        + """
import sys, sa1bpack
for packs in (sys.argv[1:], sys.argv[:0:-1]):
    try:
        sa1bpack.open(packs, duplicates="first")
    except sa1bpack.OptionError as error:
        print(error)
"""
    )
    said = forked_python(program, tmp_path / "pack", tmp_path / "plain").splitlines()
    assert len(said) == 2 and all("numbers is" in line for line in said), said


def test_docs_format_md_says_what_the_table_says():
    """A line of the document is a line of the table."""
    types = {"<f8": "float64", "<i8": "int64"}
    rows = {name: cells for name, *cells in documented("Arrays of a shard")}
    for number in MASK_NUMBERS:
        shape = f"(M, {number.columns})" if number.columns > 1 else "(M,)"
        expected = [types[number.dtype], shape, ", ".join(number.dims), number.meaning]
        if number.optional:
            expected[-1] = f"optional: {number.meaning}"
        line = " | ".join([f"`{number.array}`", *expected])
        found = [
            cell.replace("\N{MINUS SIGN}", "-").replace("`", "") for cell in rows[number.array]
        ]
        assert found == [cell.replace("`", "") for cell in expected], f"| {line} |"
        bits = [str(bit) for bit in number.type_bits]
        if bits:
            numbers = "\N{EN DASH}".join(dict.fromkeys([bits[0], bits[-1]]))
            assert re.search(rf"\b{numbers}\s+`{number.array}`", DOCS.read_text()), number.array


def test_docs_format_md_says_which_numbers_a_pack_may_lack():
    [text] = re.findall(r"\n- `absent`: (.*?)\.\s+Other", DOCS.read_text(), re.DOTALL)
    assert re.findall("`([a-z_]+)`", text) == [n.array for n in MASK_NUMBERS if n.may_be_absent]


def test_names_and_bits_of_the_table_are_used_once():
    for attribute in ("array", "json", "key"):
        names = Counter(getattr(number, attribute) for number in MASK_NUMBERS)
        assert max(names.values()) == 1, attribute
    bits = Counter(bit for number in MASK_NUMBERS for bit in number.type_bits)
    assert max(bits.values()) == 1 and max(bits) < 15
    assert all(re.fullmatch(r"[a-z_]+", number.array) for number in MASK_NUMBERS)


def test_docs_say_which_bits_and_optional_numbers_there_are():
    used = {bit for number in MASK_NUMBERS for bit in number.type_bits}
    free = [str(bit) for bit in range(15) if bit not in used]
    text = " ".join(DOCS.read_text().split())
    assert f"Bits {' and '.join(free)} are zero" in text
    assert f"{' and '.join(free)} are free" in MaskNumber.__doc__
    optional = [number.array for number in MASK_NUMBERS if number.optional]
    assert optional or "Format 1.0 defines none" in text
    for name in optional:
        assert f"`{name}`" in text.partition("- `numbers`: ")[2].partition(" - `")[0]


def test_the_key_of_an_optional_number_is_not_the_name_of_a_feature_that_was_kept():
    with pytest.raises(ValueError, match="choose another key than 'made_up'"):
        MaskNumber("made_up", "made_up", "made_up", "made up", optional=True)


@pytest.mark.parametrize("other", [{"dtype": "<i8"}, {"columns": 4}])
def test_an_optional_number_is_one_that_may_be_nan(other):
    with pytest.raises(ValueError, match="made_up is optional: it must be one float64"):
        MaskNumber("made_up", "made_up", "made_ups", "made up", optional=True, **other)
