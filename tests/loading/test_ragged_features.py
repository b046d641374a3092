"""Text, rows of any length and missing rows in batches: as they were written, by the id of each."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import BOTH, OF_LOADERS, same
from narrow_packs import pack_of
from page_cache import drop
from ragged_features import RAGGED_KINDS, RowKind, write_ragged

import sa1bpack
from sa1bpack import Collate, Loader, ReadError, make_dataloader, transforms

NAMES = [*RAGGED_KINDS]
LAYOUTS = ("padded", "concat_bits")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("ragged-batches") / "pack"
    pack_of(root)
    for kind in RAGGED_KINDS.values():
        write_ragged(root, kind)
    return root


@pytest.fixture
def ds(root):
    return sa1bpack.open(root, features=NAMES)


def expected_values(kind: RowKind, ids: list[list[int]], padded: bool, most: int) -> dict[str, Any]:
    """What a batch has of a feature.

    Args:
        kind: what the rows are.
        ids: of the rows of each sample: its image id, or those of its masks.
        padded: the layout is.
        most: masks of the fullest sample.
    """
    by_mask = kind.axis == "mask"
    shape = [len(ids), most] if by_mask and padded else [sum(map(len, ids))]
    places = [(k, m) for k, sample in enumerate(ids) for m in range(len(sample))]
    if not (by_mask and padded):
        places = [(n,) for n in range(len(places))]
    rows = [kind.row(row_id) for sample in ids for row_id in sample]
    expected: dict[str, Any] = {}
    if kind.missing:
        present = np.zeros(shape, bool)
        for place, row in zip(places, rows, strict=True):
            present[place] = row is not None
        expected[f"{kind.name}_present"] = present
    if kind.dtype == "text":
        texts = [[kind.row(row_id) or "" for row_id in sample] for sample in ids]
        if not (by_mask and padded):
            texts = [text for sample in texts for text in sample]
        expected[kind.name] = texts
        return expected
    nothing = np.zeros((0, *kind.item_shape) if kind.ragged else kind.item_shape, kind.stored)
    arrays = [nothing if row is None else row for row in rows]
    if not kind.ragged:
        values = np.zeros((*shape, *kind.item_shape), kind.stored)
        for place, row in zip(places, arrays, strict=True):
            values[place] = row
        expected[kind.name] = values
        return expected
    lengths = [len(row) for row in arrays]
    if not padded:
        empty = np.zeros((0, *kind.item_shape), kind.stored)
        expected[kind.name] = np.concatenate([empty, *arrays])
        expected[f"{kind.name}_offsets"] = np.cumsum([0, *lengths])
        return expected
    values = np.zeros((*shape, max(lengths, default=0), *kind.item_shape), kind.stored)
    of_rows = np.zeros(shape, np.int64)
    for place, row in zip(places, arrays, strict=True):
        values[place][: len(row)] = row
        of_rows[place] = len(row)
    expected[kind.name] = values
    expected[f"{kind.name}_lengths"] = of_rows
    return expected


def check_batch(batch: dict, names: list[str], padded: bool) -> None:
    """Assert that a batch has what was written for its images and masks."""
    counts = batch["mask_counts"].tolist()
    masks = batch["annotation_ids"]
    if padded:
        of_masks = [row[:count].tolist() for row, count in zip(masks, counts, strict=True)]
        most = masks.shape[1]
    else:
        of_masks = [part.tolist() for part in torch.split(masks, counts)]
        most = 0
    of_images = [[image] for image in batch["image_ids"].tolist()]
    for name in names:
        kind = RAGGED_KINDS[name]
        ids = of_images if kind.axis == "sample" else of_masks
        expected = expected_values(kind, ids, padded, most)
        assert {key for key in batch if key.split("_")[0] == name} == expected.keys()
        for key, value in expected.items():
            found = batch[key]
            if isinstance(found, torch.Tensor):
                if found.dtype == torch.bfloat16:
                    found = found.view(torch.uint16)
                np.testing.assert_array_equal(found.cpu().numpy(), value, key, strict=True)
            else:
                assert found == value, key


@BOTH
@pytest.mark.parametrize("verified", [False, True], ids=["", "verified"])
@pytest.mark.parametrize("options", [{}, {"max_masks": 2, "mask_select": "random"}], ids=str)
def test_rows_are_those_of_their_images_and_masks(root, make, verified, options):
    ds = sa1bpack.open(root, features=NAMES, verify_checksums=verified)
    for layout in LAYOUTS:
        images = 0
        for batch in make(ds, 3, shuffle=True, mask_layout=layout, **options):
            check_batch(batch, NAMES, layout == "padded")
            images += len(batch["image_ids"])
        assert images == len(ds)


def as_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform that returns tensors, as `as_tv_tensors` does."""
    made = {}
    for key, value in sample.items():
        made[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        kind = RAGGED_KINDS.get(key)
        if kind is not None and kind.dtype == "bfloat16":
            made[key] = made[key].view(torch.bfloat16)
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_may_be_tensors_of_a_transform(root, layout):
    ds = sa1bpack.open(root, features=NAMES, transform=as_tensors)
    for batch in make_dataloader(ds, 3, mask_layout=layout, num_workers=0):
        check_batch(batch, NAMES, layout == "padded")


@BOTH
def test_padded_rows_have_max_masks_where_that_is_asked_for(ds, make):
    for batch in make(ds, 3, max_masks=4, pad_to_max=True):
        assert batch["points"].shape[1] == 4
        check_batch(batch, NAMES, padded=True)


@BOTH
def test_a_rule_for_masks_leaves_the_rows_of_the_others(root, make):
    areas = sa1bpack.open(root).mask_column("area")
    ds = sa1bpack.open(root, features=NAMES, min_area=int(np.median(areas)))
    for layout in LAYOUTS:
        for batch in make(ds, 4, mask_layout=layout):
            check_batch(batch, NAMES, layout == "padded")


@BOTH
def test_fields_choose_them_with_their_lengths_and_flags(ds, make):
    batch = next(iter(make(ds, 3, fields=["title", "tokens"])))
    always = {"image_ids", "indices", *OF_LOADERS}
    assert batch.keys() == {"title", "title_present", "tokens", "tokens_lengths",
                            "tokens_present", *always}  # fmt: skip
    alone = next(iter(make(ds, 3, fields=["phrase"], mask_layout="concat")))
    complete = next(iter(make(ds, 3, mask_layout="concat")))
    assert alone["phrase"] == complete["phrase"]
    assert torch.equal(alone["mask_offsets"], complete["mask_offsets"])


@pytest.mark.parametrize("io", ["cached", "direct"])
def test_rows_are_read_from_the_disk(root, direct_folder, io):
    copy = direct_folder / "ragged-batches"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    drop(*(path for path in copy.rglob("values/c*") if path.is_file()))
    ds = sa1bpack.open(copy, features=NAMES)
    with Loader(ds, 4, io=io, mask_layout="concat_bits") as loader:
        for batch in loader:
            check_batch(batch, NAMES, padded=False)
    assert loader.stats().disk_bytes > 0


def test_a_device_gets_numbers_and_the_host_keeps_texts(ds, cuda):
    for layout in LAYOUTS:
        with (
            Loader(ds, 3, device="cuda", mask_layout=layout) as sent,
            Loader(ds, 3, mask_layout=layout) as expected,
        ):
            for batch, on_host in zip(sent, expected, strict=True):
                cuda.synchronize()
                same_values(batch, on_host)


def same_values(batch: dict, expected: dict) -> None:
    """Assert that two batches have the same tensors and texts."""
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(batch[key].cpu(), value), key
        else:
            assert batch[key] == value, key


def test_workers_send_them(ds):
    options = {"fields": NAMES, "mask_layout": "padded", "max_masks": 3}
    sent = make_dataloader(ds, 4, num_workers=1, pin_memory=False, **options)
    for batch, expected in zip(sent, make_dataloader(ds, 4, **options), strict=True):
        same_values(batch, expected)


def test_a_collate_of_ones_own_makes_them_with_the_spec_of_the_dataset(ds):
    samples = [ds[0], ds[3], ds[1]]
    check_batch(Collate("concat", sample_spec=ds.spec)(samples), NAMES, padded=False)
    check_batch(Collate(sample_spec=ds.spec)(samples), NAMES, padded=True)
    lists = Collate()(samples)
    assert lists["caption"] == [sample["caption"] for sample in samples]


def test_a_pipeline_passes_them_on(ds):
    pipeline = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip(), transforms.Mixup()])
    with Loader(ds, 4) as loader:
        batch = next(iter(loader))
        result = pipeline(batch)
    for name in NAMES:
        for key in [key for key in batch if key.split("_")[0] == name]:
            assert result[key] is batch[key]


def chunk_of(root: Path, name: str, array: str) -> Path:
    """The first file of an array of a feature that has more than a few bytes."""
    paths = sorted(path for path in (root / "side" / name).rglob(f"{array}/c*") if path.is_file())
    return max(paths, key=lambda path: path.stat().st_size)


@BOTH
@pytest.mark.parametrize("drops", [False, True], ids=["raise", "drop"])
def test_a_text_that_is_not_utf_8_is_an_error_of_its_sample(root, tmp_path, make, drops):
    copy = Path(shutil.copytree(root, tmp_path / "pack"))
    path = chunk_of(copy, "caption", "values")
    data = bytearray(path.read_bytes())
    data[0] = 0xFF
    path.write_bytes(data)
    ds = sa1bpack.open(copy, features=NAMES)
    if not drops:
        with pytest.raises(ReadError, match=r"caption.*not UTF-8"):
            list(make(ds, 3))
        return
    loader = make(ds, 3, on_error="drop", max_dropped=1.0)
    images = 0
    for batch in loader:
        images += len(batch["image_ids"])
        check_batch(batch, NAMES, padded=True)
    assert images == len(ds) - 1
    assert "not UTF-8" in str(loader.dropped[0])


@pytest.mark.parametrize("value", [-1, 2**40, 2**63 - 1])
@pytest.mark.parametrize("name", ["t5", "points", "caption"])
def test_offsets_that_change_under_a_loader_lead_to_no_address_outside(root, tmp_path, name, value):
    copy = Path(shutil.copytree(root, tmp_path / "pack"))
    ds = sa1bpack.open(copy, features=NAMES)
    for number in range(len(ds.shards)):
        ds.shards.open(number)  # what is checked here changes afterwards
    path = chunk_of(copy, name, "offset")
    with path.open("r+b") as file:
        file.seek(8)
        file.write(np.array([value], "<i8").tobytes())
    errors = []
    for layout in LAYOUTS:
        with Loader(ds, 3, mask_layout=layout, on_error="drop", max_dropped=1.0) as loader:
            for batch in loader:
                check_batch(batch, NAMES, layout == "padded")
            errors += loader.dropped
    assert errors
    assert all(f"{name}" in str(error) and "offset" in str(error) for error in errors)


def test_a_changed_byte_is_found_with_verify_checksums(root, tmp_path):
    copy = Path(shutil.copytree(root, tmp_path / "pack"))
    for name, array in (("points", "values"), ("title", "present")):
        path = chunk_of(copy, name, array)
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        ds = sa1bpack.open(copy, features=[name], verify_checksums=True)
        with pytest.raises(ReadError, match=name):
            list(Loader(ds, 3, fields=[name]))


def test_the_plan_counts_typical_rows(ds):
    with Loader(ds, 4, fields=["t5", "caption"]) as loader:
        plan = loader.plan()
        list(loader)
    assert plan.batch_bytes > 4 * 8 * 2
    assert "host memory" in str(plan)


def test_batches_of_both_loaders_are_the_same(ds):
    for layout in LAYOUTS:
        options = {"mask_layout": layout, "max_masks": 3, "mask_select": "balanced"}
        for one, other in zip(
            Loader(ds, 4, **options), make_dataloader(ds, 4, **options), strict=True
        ):
            same_values(one, other)
            same(
                {key: value for key, value in one.items() if not isinstance(value, list)},
                {key: value for key, value in other.items() if not isinstance(value, list)},
            )
