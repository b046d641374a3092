"""None is none: an option that takes several of something takes None for none of them."""

import re

import numpy as np
import pytest
from public_surface import surface

import sa1bpack
from sa1bpack import transforms as T

NONE = (None, (), [])


def test_every_option_with_an_empty_default_takes_none():
    """As `[x] if x else None` is written, and an empty list is not at hand."""
    options = re.findall(r"(\w+): ([^:=()]*) = \(\)", surface())
    refusing = {name for name, kind in options if not kind.endswith("None")}
    # Fields of results, which nobody passes, and what only other packages of sa1bpack pass.
    results = {"problems", "extra", "left_out_ids", "other_names"}
    assert refusing <= results | {"packs", "schedules"}
    assert {"features", "relations", "steps", "sources"} <= {name for name, _ in options}


@pytest.mark.parametrize("none", NONE)
def test_no_features_no_relations_and_no_steps(root, none):
    ds = sa1bpack.open(root, features=none)
    assert ds.spec.features == ds.with_options(features=none).spec.features == ()
    assert T.Pipeline(ds, none, relations=none).steps == ()
    for make in (sa1bpack.Loader, sa1bpack.make_dataloader):
        options = {} if make is sa1bpack.Loader else {"num_workers": 0}
        batch = next(iter(make(ds, 2, relations=none, **options)))
        assert "ious" not in batch
    assert "ious" not in sa1bpack.Collate(relations=none)([ds[0]])


@pytest.mark.parametrize("none", NONE)
def test_no_sources_and_no_shards_are_repaired(root, none):
    assert sa1bpack.repair(root, none, shards=none, workers=1, progress=False).ok


def test_masks_that_are_runs_say_so(root):
    ds = sa1bpack.open(root, mask_format="runs")
    batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
    for held, kept in ((ds[0], "run_ends and run_offset"), (batch, "runs")):
        with pytest.raises(KeyError, match=f"they are runs here, in {kept}. A transforms.Pipeline"):
            held["masks"]
    assert "masks" in T.Pipeline(ds)(batch, 0)
    drawn = ds.with_options(mask_format="bool", mask_size=256)
    assert drawn[0]["masks"].dtype == np.bool_
    with pytest.raises(KeyError, match="is mask_counts meant"):
        batch["mask_count"]
