"""Runs ended in mid-epoch continue on fewer and on more ranks, in real processes with a group."""

from itertools import chain

import pytest
from restarted_ranks import loader_of, read, restarted

import sa1bpack

# Ranks, and batches until the run is ended: of three batches in an epoch.
RUNS = [[2, 1], [4, 1], [1, 4]]


def test_global_batches_through_caches_are_the_same_on_any_number_of_ranks(packed, s3, tmp_path):
    """The ranks of a node share a cache, and nodes have caches of their own."""
    pytest.importorskip("obstore", reason="the extra `cloud` is not installed")
    s3.make_bucket("restarts")
    for path in packed.root.rglob("*"):
        if path.is_file():
            s3.put("restarts", str(path.relative_to(packed.root)), path.read_bytes())
    cache = str(tmp_path / "cache")
    options = {"cache_dir": cache, "cache_size": "1 GB"}
    found = restarted(tmp_path, packed.root, "by_node", RUNS, place="s3://restarts", **options)
    with loader_of(sa1bpack.open(packed.root), "by_node", rank=0, world_size=1) as loader:
        expected = read(loader, sum(batches for _, batches in RUNS))
    assert [list(chain(*parts)) for run in found for parts in run["parts"]] == expected
    for (ranks, _), run in zip(RUNS, found, strict=True):
        assert all(len(parts) == ranks and all(parts) for parts in run["parts"])
        assert all(state == run["states"][0] for state in run["states"])
    assert all(any((tmp_path / f"cache-{node}/shards").iterdir()) for node in range(2))
