"""An option that a call does not have: one answer everywhere, which says what is meant."""

import inspect

import pytest

import sa1bpack
from sa1bpack import arguments
from sa1bpack.errors import OptionError

TAR = "tests/samples/sa_000000.tar"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda pack: sa1bpack.open(pack, max_masks=3), "'max_masks': it is an option of Loader"),
        (lambda pack: sa1bpack.open(pack, mask_form=3), "'mask_form': is mask_format meant"),
        (lambda pack: sa1bpack.open(pack).with_options(verify=True), "use verify_checksums"),
        (lambda pack: sa1bpack.open(pack, masks="runs"), "'masks': use mask_format"),
        (lambda pack: sa1bpack.IterableTarDataset(TAR, masks="x"), "'masks': use mask_format"),
        (lambda pack: sa1bpack.open(pack, side=["x"]), "'side': use features"),
        (lambda pack: sa1bpack.open(pack, cache_bytes=1), "'cache_bytes': is cache_size meant"),
        (lambda pack: sa1bpack.TarDataset(TAR, cache_folder=1), "'cache_folder': use cache_dir"),
        (lambda pack: sa1bpack.TarDataset(TAR, cache_sise=1), "'cache_sise': is cache_size meant"),
        (lambda pack: sa1bpack.IterableTarDataset(TAR, shuffle=8), "'shuffle': use shuffle_buffer"),
        (lambda pack: sa1bpack.Collate(masks="flat"), "'masks': use mask_layout"),
        (
            lambda pack: sa1bpack.derive(sa1bpack.open(pack), "a", len, masks="flat"),
            "'masks': use mask_layout",
        ),
        (lambda pack: sa1bpack.Collate(choose="iou"), "'choose': use mask_select"),
        (lambda pack: sa1bpack.masks.MaskRule(select="iou"), "'select': use mask_select"),
        (
            lambda pack: sa1bpack.Loader(sa1bpack.open(pack), 2, mask_sampling="random"),
            "'mask_sampling': use mask_select",
        ),
        (lambda pack: sa1bpack.OrderedBatches(None, 2, buckets=1), "'buckets': is bucket_by meant"),
        (lambda pack: sa1bpack.OrderedBatches(None, 2, last="drop"), "'last': is pad_last meant"),
        (lambda pack: sa1bpack.PackOptions(image_sze=3), "'image_sze': is image_size meant"),
        (lambda pack: sa1bpack.pack(TAR, "out", num_workers=2), "'num_workers': is workers meant"),
        (lambda pack: sa1bpack.pack_part(TAR, "out", pat=(1, 2)), "'pat': is part meant"),
        (lambda pack: sa1bpack.pack(TAR, out="packed"), "'out': use output"),
        (lambda pack: sa1bpack.finalize(out=pack), "'out': use pack"),
        (lambda pack: sa1bpack.derive(None, "a", print, out="b"), "'out': use output"),
        (lambda pack: sa1bpack.estimate(TAR, output="out", masc="bits"), "'masc': is masks meant"),
        (
            lambda pack: sa1bpack.Loader(sa1bpack.open(pack), 2, cache_dir="x"),
            "it is an option of open",
        ),
    ],
)
def test_it_is_named_with_what_is_meant_or_where_it_belongs(packed, call, said):
    with pytest.raises(OptionError, match=f"has no option .*{said}"):
        call(packed.root)


def test_every_place_that_is_named_has_the_option():
    for place, names in arguments.PLACES.items():
        assert {*names.split()} <= _options_of(place)


def _options_of(place: str) -> set[str]:
    found = set()
    for each in inspect.signature(getattr(sa1bpack, place)).parameters.values():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            found |= each.annotation.__args__[0].__annotations__.keys()
        else:
            found.add(each.name)
    return found


@pytest.mark.parametrize(
    ("call", "said"),
    [
        # which reads as the part for training
        (lambda ds: ds.split(0.9), "Dataset.split has no place for 0.9: .* seed, val_fraction"),
        (lambda ds: sa1bpack.Collate("padded", 4), "Collate has no place for 4: .* max_masks"),
        (
            lambda ds: sa1bpack.Loader(ds, 2, "shuffle"),
            "Loader has no place for 'shuffle': .* order",
        ),
    ],
)
def test_an_option_without_its_name_is_refused_with_the_names(packed, call, said):
    with pytest.raises(OptionError, match=said):
        call(sa1bpack.open(packed.root))


def test_a_cache_for_a_pack_that_is_read_where_it_is_is_refused(packed, tmp_path):
    for given in ({"cache_dir": tmp_path / "cache"}, {"cache_size": "1 GB"}):
        with pytest.raises(OptionError, match=rf"{next(iter(given))} is .* is read where it is"):
            sa1bpack.open(packed.root, **given)
    sa1bpack.open(packed.root).save_selection(tmp_path / "all.sel")
    with pytest.raises(OptionError, match=r"cache_dir is .* is read where it is"):
        sa1bpack.open(tmp_path / "all.sel", cache_dir=tmp_path / "cache")


def test_a_key_that_a_sample_or_a_batch_has_not_is_answered_with_those_meant(packed):
    ds = sa1bpack.open(packed.root)
    with pytest.raises(KeyError, match="a sample has no 'images': is image"):
        ds[0]["images"]
    batch = sa1bpack.Collate()([ds[0]])
    with pytest.raises(KeyError, match="a batch has no 'image': is images"):
        batch["image"]
    with pytest.raises(KeyError, match=r"a batch has no 'label': it has .*images"):
        batch["label"]
    assert batch.get("image") is None and "image" not in batch


def test_what_is_looked_for_in_the_module_is_answered_with_its_name():
    with pytest.raises(AttributeError, match="'DataLoader': it is Loader, or make_dataloader"):
        _ = sa1bpack.DataLoader
