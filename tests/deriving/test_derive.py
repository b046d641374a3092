"""derive: rows are those of the function, for every type; they are kept, shared out and remade."""

import functools
import importlib
import pickle
import shutil
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from format_files import manifest_of
from packs_with_features import stored
from PIL import Image
from shard_files import arrays_of, feature_shards_of
from small_tars import contents

import sa1bpack
from sa1bpack import FormatError, OptionError, ReadError, derive, verify
from sa1bpack import transforms as T
from sa1bpack.errors import OutputRefused
from sa1bpack.format.side.manifest import read_side_manifest, top_of_side
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.writer import FeatureShardWriter

# The types of docs/format.md that hold numbers as they are.
DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
calls = []


def embed(batch, scale=1.0):
    """float16 (B, 2, 4, 4): means of blocks of the image, and of its id."""
    calls.append(batch["image_ids"].tolist())
    images = batch["images"].float().mean(3).unfold(1, 6, 6).unfold(2, 6, 6).mean((3, 4))
    ids = batch["image_ids"].float()[:, None, None].expand_as(images)
    return (torch.stack([images, ids], 1) * scale).half()


def depth(batch):
    """int64 (T, 3): of each mask its annotation id, its image's, and its place in the image."""
    counts = batch["mask_counts"]
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    place = torch.arange(len(owner)) - batch["mask_offsets"][:-1][owner]
    return torch.stack([batch["annotation_ids"], batch["image_ids"][owner], place], 1)


class Returning:
    """A function with the name of this class."""

    def __init__(self, function):
        self.function = function

    def __call__(self, batch):
        return self.function(batch)


def test_rows_are_those_that_the_function_returns_in_the_order_of_the_pack(ds, pack):
    result = sa1bpack.derive(ds, "teacher", embed, batch_size=3, spatial=True)
    assert result.folder == pack / "side/teacher" and result.missing == result.existing == ()
    assert str(result) == f"{result.folder}: 4 shards made, 0 existing, complete"
    images = np.stack([sample["image"] for sample in ds]).astype(np.float32).mean(3)
    means = images.reshape(-1, 4, 6, 4, 6).mean((2, 4))
    found = stored(result.folder, pack)
    assert found.dtype == np.float16 and found.shape == (len(ds), 2, 4, 4)
    np.testing.assert_allclose(found[:, 0], means, rtol=2e-3)
    np.testing.assert_array_equal(found[:, 1, 0, 0], ds.column("image_id").astype(np.float16))
    manifest = manifest_of(result.folder)
    assert manifest["spatial"] is True
    assert manifest["provenance"]["function"] == f"{__name__}:embed"
    assert manifest["provenance"]["samples"] == ds.spec_text
    assert set(manifest["provenance"]["versions"]) == {"sa1bpack", "numpy", "torch"}
    assert verify(pack).ok and verify(pack).notes == ()


def test_a_row_per_mask_follows_the_masks_of_the_shard(ds, pack):
    result = sa1bpack.derive(ds, "depth", depth, batch_size=2, axis="mask")
    found = stored(result.folder, pack)
    np.testing.assert_array_equal(found[:, 0], ds.mask_column("annotation_id"))
    counts = ds.column("mask_count")
    np.testing.assert_array_equal(found[:, 1], np.repeat(ds.column("image_id"), counts))
    np.testing.assert_array_equal(found[:, 2], np.concatenate([np.arange(n) for n in counts]))
    assert verify(pack).ok


def whole(batch):
    """float32 (B, 3, H, W): the images themselves, as a pipeline has made them."""
    return batch["images"]


def test_a_function_of_a_script_has_the_name_of_the_script(ds, monkeypatch):
    """Else that of every script would have the same name, and those of an import another one."""
    made = Returning(embed)
    monkeypatch.setattr(Returning, "__module__", "__main__")
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", "/some/folder/phase1.py", raising=False
    )
    derive(ds, "named", made, device="cpu")
    assert manifest_of(ds.root / "side/named")["provenance"]["function"] == "phase1:Returning"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/some/folder/other.py")
    with pytest.raises(OutputRefused, match="phase1:Returning"):
        derive(ds, "named", made, device="cpu")
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    folder = derive(ds, "cell", made, device="cpu").folder
    assert manifest_of(folder)["provenance"]["function"] == "__main__:Returning"  # of a notebook


def test_a_function_gets_what_the_pipeline_makes_of_each_batch(ds):
    made = {"size": 20, "mean": (9, 8, 7.5), "std": (2, 3, 4)}
    pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip(), T.ColorJitter(0.2)], seed=5, **made)
    pickled = pickle.loads(pickle.dumps(pipeline))
    result = derive(ds, "inputs", whole, batch_size=2, pipeline=pickled)
    with sa1bpack.Loader(ds, 3) as loader:
        expected = torch.cat([pipeline(batch)["images"] for batch in loader])
    assert torch.equal(torch.from_numpy(stored(result.folder, ds.root).copy()), expected)
    recorded = manifest_of(result.folder)["provenance"]["pipeline"]
    assert recorded == str(pipeline) and "mean=[9.0, 8.0, 7.5], std=[2.0, 3.0, 4.0]" in recorded
    assert derive(ds, "inputs", whole, pipeline=pipeline).made == ()
    for other in (T.Pipeline(ds, **made | {"std": (2, 3, 5)}), None):
        with pytest.raises(OutputRefused, match=r"made with pipeline 'Pipeline.*seed=5"):
            derive(ds, "inputs", whole, pipeline=other)


def test_the_rule_of_relations_is_part_of_what_made_a_feature(ds):
    def depths(batch):
        return batch["depths"]

    def made(relations):
        pipeline = T.Pipeline(ds, relations=relations)
        return derive(ds, "depths", depths, axis="mask", pipeline=pipeline)

    assert made(["depths"]).made
    recorded = manifest_of(ds.root / "side/depths")["provenance"]["pipeline"]
    assert "relations=('depths',), seed" in recorded  # as ever, so that it is found again
    assert not made(T.Relate(["depths"], share=0.9)).made
    for rule in ({"share": 0.3}, {"neighbors": 4}):
        with pytest.raises(OutputRefused, match="it is another feature, made with pipeline"):
            made(T.Relate(["depths"], **rule))


def test_a_spatial_array_takes_no_pipeline_that_moves_images(ds):
    for steps, size in (([T.CenterCrop()], 24), ([], (24, 32))):
        pipeline = T.Pipeline(ds, steps, size=size)
        with pytest.raises(OptionError, match=r"spatial is True: .* a square size that moves no"):
            derive(ds, "inputs", whole, spatial=True, pipeline=pipeline)
    still = T.Pipeline(ds, [T.ColorJitter(0.1)], size=48)
    assert derive(ds, "inputs", whole, spatial=True, pipeline=still).made
    others = T.Pipeline(ds.with_options(coordinates="source"))
    with pytest.raises(OptionError, match="create the pipeline with the dataset"):
        derive(ds, "others", whole, pipeline=others)


def of_the_image(batch):
    """float32 (B, 3, 8, 8): of a teacher's map on a grid of 8, the image's part, stretched."""
    maps = F.avg_pool2d(batch["images"], batch["images"].shape[-1] // 8)
    share = batch["input_sizes"].flip(1).to(maps) / batch["images"].shape[-1]
    part = torch.cat([torch.diag_embed(share), share[:, :, None] - 1], 2)
    grid = F.affine_grid(part, [*maps.shape], align_corners=False)
    return F.grid_sample(maps, grid, padding_mode="border", align_corners=False)


def test_maps_of_images_that_a_pipeline_has_enlarged_lie_over_them(tmp_path):
    (tmp_path / "images").mkdir()
    for number, (height, width) in enumerate([(64, 64), (32, 32), (16, 32), (40, 20)]):
        ramp = np.linspace(0, 255, width, dtype=np.uint8)
        picture = np.repeat(np.tile(ramp, (height, 1))[:, :, None], 3, axis=2)
        Image.fromarray(picture).save(tmp_path / f"images/{number}.png")
    options = {"fit": "scale_down", "image_size": 64, "records": "none"}
    sa1bpack.pack(tmp_path / "images", tmp_path / "pack", workers=1, **options)
    ds = sa1bpack.open(tmp_path / "pack")
    pipeline = T.Pipeline(ds)
    options = {"spatial": True, "pipeline": pipeline}
    for covers in ({}, {"covers": "canvas"}):
        # Over the canvas of the stored image, they would lie elsewhere than the enlarged image.
        with pytest.raises(OptionError, match=r"enlarges the images .* covers='photograph'"):
            derive(ds, "maps", of_the_image, **options, **covers)
    derive(ds, "maps", of_the_image, **options, covers="photograph")
    with_maps = ds.with_options(features=["maps"])
    with sa1bpack.Loader(with_maps, 4) as loader:
        batch = T.Pipeline(with_maps, [T.RandomHorizontalFlip(1.0)])(next(iter(loader)))
    known = T.image_region(batch, 8)
    beyond = F.pad((~known).float()[:, None], (1, 1, 1, 1), value=1)
    inside = F.max_pool2d(beyond, 3, stride=1) == 0  # without the edge of the image
    expected = F.avg_pool2d(batch["images"], 8)
    assert inside.sum((1, 2, 3)).tolist() == [36, 36, 12, 12]
    assert ((batch["maps"] - expected).abs() * inside).max() < 0.01  # of 4.5, from black to white


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_stored_with_its_bits(ds, pack, dtype):
    kind = getattr(torch, dtype)

    def rows(batch):
        return (batch["image_ids"] % 100)[:, None].to(kind)

    result = derive(ds, "a", rows)
    expected = (torch.from_numpy(ds.column("image_id").copy()) % 100)[:, None].to(kind)
    found = torch.from_numpy(stored(result.folder, pack).copy())
    assert torch.equal(found.view(kind), expected)
    assert manifest_of(result.folder)["dtype"] == dtype


def test_rows_that_another_call_published_meanwhile_are_not_said_to_be_made(ds):
    def ids(batch):
        if not others:
            others.append(None)  # as another process would, which began a little later
            others.append(derive(ds, "a", ids))
        return batch["image_ids"]

    others = []
    result = derive(ds, "a", ids)
    assert result.made == () and result.existing == others[1].made and result.missing == ()
    assert len(others[1].made) > 2 and others[1].existing == ()


def test_an_array_that_is_complete_is_not_taken_for_one_of_another_kind(ds, pack, tmp_path):
    """Repeated with `spatial`, an array that a pipeline does not move would seem to be one."""

    def small(batch):
        return torch.zeros(len(batch["images"]), 2, 4, 4)

    derive(ds, "a", small)
    before = contents(pack / "side")
    with pytest.raises(OutputRefused, match=r"side/a: .* spatial is False, not True: choose"):
        derive(ds, "a", small, spatial=True)
    with pytest.raises(OutputRefused, match=r"side/a: .* axis is 'sample', not 'mask': choose"):
        derive(ds, "a", small, axis="mask")
    ids = ds.column("image_id")
    rows = np.zeros((len(ids), 2, 4, 4))
    out = tmp_path / "b"
    sa1bpack.attach(ds, "b", rows, ids, output=out)
    with pytest.raises(OutputRefused, match="spatial is False, not True"):
        sa1bpack.attach(ds, "b", rows, ids, output=out, spatial=True, covers="canvas")
    assert contents(pack / "side") == before


@pytest.mark.parametrize(
    "axis, kind", [("sample", None), ("mask", None), ("mask", "int8"), ("sample", "float8")]
)
def test_complete_batches_of_an_unfinished_shard_are_not_computed_again(
    ds, pack, tmp_path, axis, kind
):
    """As long as nothing has changed that decides the rows, and the rows are whole."""
    seen = []

    def ids(batch):
        if stop_at in batch["image_ids"]:
            raise KeyboardInterrupt
        seen.append((batch["batch_idx"], *batch["image_ids"].tolist()))
        found = batch["image_ids" if axis == "sample" else "annotation_ids"]
        return found[:, None] % 1000 / 7

    def made(**change):
        seen.clear()
        options = {"axis": axis, "quantize": kind, "batch_size": 1}
        return derive(ds.from_sources("sa_000000"), "a", ids, **options, **change)

    stop_at = -1
    whole = made(output=tmp_path / "whole").folder
    first, *_ = feature_shards_of(whole)
    numbers = seen.copy()
    folder = pack / "side/a"
    rows = ds.column("mask_count") if axis == "mask" else np.ones(len(ds), int)
    # The first sample after the first one that has rows; it may have no masks itself.
    changed = int(np.searchsorted(np.cumsum(rows), rows[0], "right"))
    [place] = (whole / first / "values").glob("c.*")
    values = folder / f".tmp-{first}" / "values" / place.name

    def nothing():
        assert feature_shards_of(folder) == [] and verify(pack).ok

    def changed_row():
        data = bytearray(values.read_bytes())
        data[arrays_of(whole / first)["values"][: rows[0]].nbytes] ^= 1
        values.write_bytes(data)

    for damage, kept in ((nothing, 3), (changed_row, changed)):
        shutil.rmtree(folder, ignore_errors=True)
        stop_at = numbers[3][1]
        with pytest.raises(KeyboardInterrupt):
            made()
        assert [path.name for path in folder.glob(".*")] == [f".tmp-{first}"] and len(seen) == 3
        damage()
        stop_at = -1
        steps = []
        made(progress=lambda *step, steps=steps: steps.append(step))
        assert seen == numbers[kept:] and steps[-1] == (len(numbers), len(numbers))
        assert contents(folder / first) == contents(whole / first)
        assert list(folder.glob(".*")) == []


def test_rows_of_a_function_whose_file_changed_are_computed_again(
    ds, tmp_path, monkeypatch, capsys
):
    code = "def ids(batch):\n    if batch['batch_idx'] == 2: raise KeyboardInterrupt\n"
    code += "    return batch['image_ids'] * 2\n"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing.py").write_text(code)
    changing = importlib.import_module("changing")
    with pytest.raises(KeyboardInterrupt):
        derive(ds, "a", changing.ids, batch_size=1)
    monkeypatch.delitem(sys.modules, "changing")
    (tmp_path / "changing.py").write_text("def ids(batch):\n    return batch['image_ids'] * 30\n")
    importlib.invalidate_caches()
    for _ in range(2):  # no row is of the file as it was, so nothing is said
        result = derive(ds, "a", importlib.import_module("changing").ids, batch_size=1)
        assert capsys.readouterr().err == ""
    monkeypatch.delitem(sys.modules, "changing")
    np.testing.assert_array_equal(stored(result.folder, ds.root), ds.column("image_id") * 30)


@pytest.fixture
def file_of(tmp_path, monkeypatch):
    """file_of(factor): a function of a file that is written again, `ids` of `changing.py`."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(factor):
        monkeypatch.delitem(sys.modules, "changing", raising=False)
        text = f"def ids(batch):\n    return batch['image_ids'] * {factor}\n"
        (tmp_path / "changing.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module("changing").ids

    yield write
    sys.modules.pop("changing", None)


def test_a_file_that_changed_since_shards_were_made_is_named_with_the_remedy(ds, file_of, capsys):
    """Rows of two teachers would be in one feature, and nothing else can tell."""
    folder = derive(ds, "a", file_of(2), part=(1, 4)).folder
    derive(ds, "a", file_of(2), part=(2, 4))
    assert capsys.readouterr().err == ""
    result = derive(ds, "a", file_of(30))
    assert (len(result.made), len(result.existing)) == (2, 2)
    said = " ".join(capsys.readouterr().err.split())
    assert f"changing.py has changed since {folder} was begun: 2 shards there may have" in said
    assert "choose another name or folder (--output), or remove this one" in said
    assert verify(ds.root).ok and set(stored(folder, ds.root) // ds.column("image_id")) == {2, 30}
    derive(ds, "b", file_of(30))
    assert capsys.readouterr().err == ""


def test_a_feature_of_a_release_that_kept_no_digest_is_continued(ds, file_of, capsys):
    folder = derive(ds, "a", file_of(2), part=(1, 4)).folder
    manifest = read_side_manifest(folder)
    assert len(manifest.provenance.pop("code")) == 32
    for name, data in top_of_side(manifest).items():
        (folder / name).write_bytes(data)
    assert derive(ds, "a", file_of(30)).missing == () and capsys.readouterr().err == ""


def test_what_another_file_began_stays_while_a_process_works_on_it(ds, file_of, capsys):
    """Its lock says that it is at work; once it has ended, what it left is removed."""
    derive(ds, "other", file_of(2))
    folder = derive(ds, "a", file_of(2), part=(1, 4)).folder
    [published] = feature_shards_of(folder)
    shutil.rmtree(folder / published)
    before = (folder / "manifest.json").read_bytes()
    identity = ds.pack.identities[0]
    ours = {"origin": b"2", "counts": np.ones(identity.lengths.samples, int)}
    spec = read_side_manifest(folder).spec
    with FeatureShardWriter(folder, spec, identity, **ours) as writer:
        writer.append(FeatureRows(np.zeros(1, np.int64)), np.ones(1, int))
        derive(ds, "a", file_of(30), part=(2, 4))
        assert (folder / "manifest.json").read_bytes() == before
        writer.leave()
    shutil.rmtree(folder / feature_shards_of(folder)[0])
    derive(ds, "a", file_of(30), part=(2, 4))
    assert (folder / "manifest.json").read_bytes() != before
    assert not list(folder.glob(".*")) + list(folder.parent.glob(".*"))


@pytest.mark.parametrize(
    "shape, said, noted",
    [
        ((2, 4, 4), {}, "make them with spatial=True (--spatial)"),
        ((2, 4, 6), {}, "covers='canvas' if"),
        ((3, 2, 4, 4), {}, "reshape them to (C, h, w)"),
        ((2, 4, 4), {"spatial": False}, ""),
        ((2, 4, 4), {"spatial": True}, ""),
        ((2, 1, 4), {}, ""),
        ((4, 4), {}, ""),
        ((), {}, ""),
    ],
)
@pytest.mark.parametrize("made_by", ["derive", "attach"])
def test_rows_that_look_like_maps_are_noted_unless_it_is_said_what_they_are(
    ds, capsys, shape, said, noted, made_by
):
    def rows(batch):
        return torch.zeros(len(batch["image_ids"]), *shape)

    if made_by == "attach" and said.get("spatial"):
        said = {**said, "covers": "canvas"}
    for _ in range(2):  # also when it is complete
        if made_by == "derive":
            derive(ds, "a", rows, **said)
        else:
            ids = ds.column("image_id")
            sa1bpack.attach(ds, "a", np.zeros((len(ids), *shape), "f4"), ids, **said)
        error = " ".join(capsys.readouterr().err.split())
        assert (noted in error and "look like maps" in error) if noted else error == ""


@pytest.mark.parametrize(
    "axis, dtype, value",
    [
        ("sample", "float16", float("nan")),
        ("mask", "bfloat16", float("-inf")),
        ("mask", "float64", float("nan")),
    ],
)
def test_nan_and_infinities_are_refused_with_the_name_of_the_image(ds, pack, axis, dtype, value):
    image = int(ds.column("image_id")[-1])

    def damaged(batch):
        key = "image_ids" if axis == "sample" else "annotation_ids"
        rows = torch.ones(len(batch[key]), 3, dtype=getattr(torch, dtype))
        if image in batch["image_ids"]:
            rows[-1, 1] = value
        return rows

    place = f"image {image}, shard sa_000002-000"
    if axis == "mask":
        place = f"mask {int(ds.column('mask_count')[-1]) - 1} of {place}"
    with pytest.raises(OptionError, match=f"a of {place}, has NaN or an infinity: .*allow_nonfin"):
        derive(ds, "a", damaged, axis=axis, batch_size=2)
    assert len(feature_shards_of(pack / "side/a")) == 3
    result = derive(ds, "a", damaged, axis=axis, batch_size=2, allow_nonfinite=True)
    assert result.missing == () and len(result.made) == 1 and verify(pack).ok


def test_ranks_share_the_shards_by_the_environment(ds, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        made.append(derive(ds, "teacher", embed).made)
    assert [len(names) for names in made] == [2, 2] and not set(made[0]) & set(made[1])
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(OptionError, match="RANK"):
        derive(ds, "other", embed)


def test_another_function_or_other_options_are_refused_and_nothing_is_computed(ds):
    derive(ds, "teacher", embed, options={"scale": 2})
    calls.clear()
    with pytest.raises(OutputRefused, match="made with function"):
        derive(ds, "teacher", depth)
    with pytest.raises(OutputRefused, match="made with options"):
        derive(ds, "teacher", embed, options={"scale": 3})
    assert derive(ds, "teacher", embed, options={"scale": 2}).made == ()
    assert calls == []


@pytest.mark.parametrize(
    "change, message",
    [
        ({"name": "image"}, "samples have that key"),
        ({"fn": 5}, "fn is 5"),
        ({"axis": "row"}, "axis is 'row'"),
        ({"part": (0, 2)}, "part is 0"),
        ({"part": 2}, r"choose \(K, N\)"),
        ({"shuffle": True}, "no option 'shuffle'"),
        ({"axis": "mask", "mask_layout": "padded"}, "mask_layout is 'padded'"),
        ({"axis": "mask", "mask_layout": "flat"}, "mask_layout is 'flat'.*concat"),
        ({"axis": "mask", "mask_layout": 1}, "mask_layout is 1: choose one of padded, concat"),
        ({"options": {"scale": object()}}, "what JSON can hold"),
        ({"pipeline": embed}, "pipeline is <function embed.*: choose a transforms.Pipeline"),
        ({"fn": Returning(lambda batch: batch["image_ids"][:1])}, "it must return 3 rows"),
        ({"fn": Returning(lambda batch: None)}, "rows are NoneType"),
        ({"fn": Returning(lambda batch: batch["image_ids"].to_sparse())}, "a sparse or nested"),
        ({"fn": Returning(lambda batch: batch["image_ids"].to(torch.complex64))}, "complex64"),
        ({"spatial": True, "fn": Returning(lambda batch: batch["image_ids"])}, "spatial is True"),
        ({"covers": "photograph"}, "covers is 'photograph', but spatial is None"),
        ({"interpolation": "nearest"}, "interpolation is 'nearest', but spatial is None"),
        ({"spatial": True, "covers": "image"}, "covers is 'image': choose"),
        ({"spatial": True, "interpolation": "cubic"}, "interpolation is 'cubic': choose"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"fn": lambda batch: batch["image_ids"]}, "<lambda>, which does not tell"),
        ({"fn": functools.partial(embed, scale=2)}, "partial, which does not tell"),
        ({"max_masks": 2, "axis": "mask"}, "max_masks is 2, but a row per mask"),
        ({"max_masks": -1}, "max_masks is -1"),
        ({"max_masks": [1, 2]}, "max_masks is"),
        ({"max_masks": 1, "mask_select": "best"}, "mask_select is 'best': choose one of largest"),
    ],
)
def test_what_cannot_be_used_is_refused_and_leaves_no_rows(ds, pack, change, message):
    arguments = {"name": "a", "fn": embed, "batch_size": 3} | change
    with pytest.raises(OptionError, match=message):
        derive(ds, arguments.pop("name"), arguments.pop("fn"), **arguments)
    assert not list((pack / "side").glob("*/sa_*"))


def test_a_call_that_failed_before_its_first_rows_does_not_block_the_name(ds, pack):
    for function, axis in ((embed, "sample"), (depth, "mask")):
        shapes = iter([1, 2])

        def changing(batch, shapes=shapes):
            return torch.zeros(len(batch["image_ids"]), next(shapes))

        with pytest.raises(OptionError, match="those before, in"):
            derive(ds, axis, changing, batch_size=2)
        assert (pack / "side" / axis / "manifest.json").exists()
        result = derive(ds, axis, function, batch_size=2, axis=axis)
        assert len(result.made) == 4 and manifest_of(result.folder)["axis"] == axis
    assert verify(pack).ok and verify(pack).notes == ()


def test_rows_of_a_dataset_that_was_opened_otherwise_are_refused(layout_packs, tmp_path):
    pack = layout_packs("pad", "rgb", "bits+runs")
    relation = sa1bpack.transforms.relation
    arguments = {"axis": "mask", "options": {"name": "mask_boxes"}, "output": tmp_path / "made"}
    derive(sa1bpack.open(pack), "extents", relation, part=(1, 2), **arguments)
    for options in ({"mask_format": "runs"}, {"mask_size": 64}, {"coordinates": "source"}):
        with pytest.raises(OutputRefused, match="made with samples 'pad 128 rgb, masks 256 area"):
            derive(sa1bpack.open(pack, **options), "extents", relation, **arguments)
    whole = sa1bpack.open(pack, mask_format="bool")
    assert derive(whole, "extents", relation, **arguments).missing == ()


@pytest.mark.parametrize("out", ["x", "shards/x", "shards/sa_000000-000/x", "side", "side/a/x"])
def test_a_folder_among_the_files_of_a_pack_is_refused(ds, pack, out):
    with pytest.raises(OptionError, match=r"this is in the pack .* choose .*/side/a, or a folder"):
        derive(ds, "a", embed, output=pack / out)
    assert verify(pack).ok and not (pack / out).exists()


def test_a_part_of_a_shard_is_refused_and_a_source_is_taken(ds):
    with pytest.raises(OptionError, match=r"ds has 3 samples of the 4 of shard sa_000000-000"):
        derive(ds[1:], "a", embed)
    result = derive(ds.from_sources("sa_000001"), "a", embed)
    assert result.made == ("sa_000001-000", "sa_000001-001") and result.missing == ()


def test_a_sample_that_cannot_be_read_ends_the_call_and_its_rows_are_not_published(ds, pack):
    path = pack / "shards/sa_000001-000/image/c.0.0.0.0"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ReadError, match="sa_000001-000"):
        derive(ds, "a", embed)
    assert [name[:13] for name in feature_shards_of(pack / "side/a")] == ["sa_000000-000"]


def test_a_damaged_feature_shard_is_named_and_made_again_once_removed(ds, pack):
    folder = derive(ds, "a", embed).folder
    first = folder / feature_shards_of(folder)[0]
    (first / "values/c.0.0.0.0").write_bytes(b"")
    with pytest.raises(FormatError, match="remove that folder"):
        derive(ds, "a", embed)
    shutil.rmtree(first)
    assert derive(ds, "a", embed).made == ("sa_000000-000",)
    assert verify(pack).ok


def test_a_dataset_with_thresholds_has_no_feature(ds, tmp_path):
    ruled = ds.with_options(min_area=3)
    with pytest.raises(OptionError, match="thresholds for masks, min_area=3, but a feature"):
        derive(ruled, "depth", depth, axis="mask", output=tmp_path / "depth")


# ------------------------------------------------------------------------- masks of the function


def masks_seen(batch):
    """int64 (B, 2): the masks that the function is given of each image, and cells of them."""
    cells = batch["masks"].flatten(1).sum(1) if batch["masks"].dim() == 4 else torch.zeros(1)
    return torch.stack([batch["mask_counts"], cells.long().expand(len(batch["images"]))], 1)


@pytest.mark.parametrize("most", [0, 1, 3, None])
def test_a_function_is_given_as_many_masks_as_it_takes(ds, pack, most):
    result = sa1bpack.derive(ds, "seen", masks_seen, max_masks=most, batch_size=3)
    counts = ds.column("mask_count")
    expected = counts if most is None else np.minimum(counts, most)
    assert stored(result.folder, pack)[:, 0].tolist() == expected.tolist()
    record = manifest_of(result.folder)["provenance"].get("mask_choice")
    assert record == (None if most is None else {"max_masks": most, "mask_select": "largest"})
    assert sa1bpack.derive(ds, "seen", masks_seen, max_masks=most, batch_size=3).made == ()
    other = 2 if most is None else None
    with pytest.raises(OutputRefused, match="made with mask_choice"):
        sa1bpack.derive(ds, "seen", masks_seen, max_masks=other)


def test_a_function_that_takes_no_masks_has_none_read(ds):
    """Neither for a batch nor for a Pipeline of it."""
    read = []

    def masks_of(batch):
        read.append(batch["masks"].numel())
        return batch["images"].float().mean((1, 2, 3))

    for pipeline in (None, T.Pipeline(ds)):
        name = f"mean_{pipeline is None}"
        sa1bpack.derive(ds, name, masks_of, max_masks=0, pipeline=pipeline)
    assert read
    assert not any(read)
    with sa1bpack.Loader(ds, 4, max_masks=0) as none, sa1bpack.Loader(ds, 4) as all_of_them:
        assert none.plan().batch_bytes < all_of_them.plan().batch_bytes
