"""An option that a call does not have: one answer everywhere, which says what is meant."""

import inspect

import pytest

import sa1bpack
from sa1bpack import OptionError, keywords
from sa1bpack.masks import select

TAR = "tests/samples/sa_000000.tar"


def called(name, pack, **options):
    """A public call by its name, with what it needs besides the options."""
    needed = dict.fromkeys(("Loader", "make_dataloader"), (sa1bpack.open(pack), 2))
    needed |= {"derive": (sa1bpack.open(pack), "a", len)}
    needed |= {"open": (pack,), "OrderedBatches": (None, 2), "pack_part": (TAR, "out")}
    needed |= {"TarDataset": (TAR,), "IterableTarDataset": (TAR,), "estimate": (TAR,)}
    needed |= {"pack": (TAR,) if "out" in options else (TAR, "out")}
    needed["with_options"] = ()
    place = sa1bpack.open(pack) if name == "with_options" else sa1bpack
    getattr(select if name == "MaskRule" else place, name)(*needed.get(name, ()), **options)


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("open", {"max_masks": 3}, "it is an option of Loader"),
        ("open", {"mask_form": 3}, "is mask_format meant"),
        ("with_options", {"verify": True}, "use verify_checksums"),
        ("open", {"masks": "runs"}, "use mask_format"),
        ("IterableTarDataset", {"masks": "x"}, "use mask_format"),
        ("open", {"embeddings": ["x"]}, "use features"),
        ("open", {"cache_bytes": 1}, "is cache_size meant"),
        ("TarDataset", {"cache_folder": 1}, "is cache_dir meant"),
        ("TarDataset", {"cache_sise": 1}, "is cache_size meant"),
        ("IterableTarDataset", {"shuffle": 8}, "use shuffle_buffer"),
        ("Collate", {"masks": "flat"}, "use mask_layout"),
        ("derive", {"masks": "flat"}, "use mask_layout"),
        ("MaskRule", {"select": "iou"}, "is mask_select meant"),
        ("Loader", {"mask_sampling": "random"}, "use mask_select"),
        ("Loader", {"masks": "flat"}, "use mask_layout"),
        ("open", {"verify": True}, "use verify_checksums"),
        ("PackOptions", {"image_sze": 3}, "is image_size meant"),
        ("pack", {"num_workers": 2}, "is workers meant"),
        ("pack_part", {"pat": (1, 2)}, "is part meant"),
        ("pack", {"out": "packed"}, "is output meant"),
        ("derive", {"out": "b"}, "is output meant"),
        ("estimate", {"masc": "bits"}, "is masks meant"),
        ("Loader", {"cache_dir": "x"}, "it is an option of open"),
        ("Loader", {"num_workers": 2}, "use threads"),
        ("make_dataloader", {"workers": 2}, "use num_workers"),
        ("make_dataloader", {"io": "direct"}, "use Load"),
        ("make_dataloader", {"device": "cuda"}, "use Load"),
    ],
)
def test_it_is_named_with_what_is_meant_or_where_it_belongs(packed, name, options, said):
    with pytest.raises(OptionError, match=f"has no option '{next(iter(options))}': {said}"):
        called(name, packed.root, **options)


def test_every_place_that_is_named_has_the_option():
    for place, names in keywords.PLACES.items():
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
    "call, said",
    [
        # which reads as the part for training
        (lambda ds: ds.split(0.9), "Dataset.split has no place for 0.9: .* seed, val_fraction"),
        (lambda ds: sa1bpack.Collate("padded", 4), "Collate has no place for 4: .* max_masks"),
        (lambda ds: sa1bpack.Loader(ds, 2, "a"), "Loader has no place for 'a': .* order"),
    ],
)
def test_an_option_without_its_name_is_refused_with_the_names(packed, call, said):
    with pytest.raises(OptionError, match=said):
        call(sa1bpack.open(packed.root))


def test_a_cache_for_a_pack_that_is_read_where_it_is_is_refused(packed, tmp_path):
    for given in ({"cache_dir": tmp_path / "cache"}, {"cache_size": "1 GB"}):
        with pytest.raises(OptionError, match=rf"{next(iter(given))} .* is read where it is"):
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


@pytest.mark.parametrize("old, new", [("select", "where"), ("filter", "where")])
def test_a_method_that_people_look_for_is_answered_with_its_name(packed, old, new):
    with pytest.raises(AttributeError, match=f"no attribute {old!r}: it is {new}"):
        getattr(sa1bpack.open(packed.root), old)
