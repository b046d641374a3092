"""The simulation of many ranks counts what real caches count, and its figures are in the docs."""

import json
import sys
from math import log
from pathlib import Path

import numpy as np
import pytest
from cached_packs import open_cached
from reading_packs import LAYOUT, write_pack
from unflushed import unflushed

import sa1bpack
from sa1bpack.cache import blocks
from sa1bpack.format.checksums import CHECKSUMS_NAME
from sa1bpack.format.zarr_metadata import METADATA_NAME
from sa1bpack.order.orders import Extent

ROOT = Path(__file__).parents[2]
NODES, BATCH, EPOCHS = 2, 4, 3
HEADERS = METADATA_NAME, CHECKSUMS_NAME
# Masks of each sample.
SHARDS = {
    "sa_000000-000": (2, 0, 5, 1, 3),
    "sa_000001-000": (9, 3, 4, 0, 0, 2),
    "sa_000002-000": (1, 12, 2, 4),
    "sa_000003-000": (3, 3, 1, 0, 7, 2, 5),
}
ORDERS = {
    "shuffle": lambda ds: sa1bpack.ShuffleOrder(ds, seed=4),
    "home": lambda ds: sa1bpack.HomeShuffleOrder(ds, homes=2),
    "local": lambda ds: sa1bpack.LocalShuffleOrder(ds, window=2, block=2),
}


@pytest.fixture(scope="module")
def many_ranks():
    """The module benchmarks/many_ranks.py."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import many_ranks
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return many_ranks


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many_ranks") / "pack"
    with unflushed():
        write_pack(folder, SHARDS)
    return folder


def describe(many_ranks, root):
    """The pack as the simulation sees it."""
    ds = sa1bpack.open(root)
    runs = []
    for number in range(len(SHARDS)):
        shard = ds.shards[number]
        runs += np.diff(shard["run_offset"][shard["mask_offset"]]).tolist()
    masks, heights = ds.column("mask_count"), ds.column("size")[:, 2]
    return many_ranks.describe(LAYOUT, ds.shard_bounds(), masks, runs, heights)


@pytest.fixture(params=[1, 3000], ids=["blocks of one sample", "blocks of several"])
def described(request, many_ranks, root, monkeypatch):
    """The pack as the simulation sees it, with blocks of a size."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)
    return describe(many_ranks, root)


def real_counts(ds, read: list[np.ndarray]) -> np.ndarray:
    """COUNTS of a node that reads samples one by one, by epoch."""
    found = []
    for samples in read:
        before = ds.pack.cached[0].counts()
        for sample in samples.tolist():
            ds[sample]
        counts = ds.pack.cached[0].counts() - before
        found.append([counts.hits, counts.misses, counts.nbytes, counts.requests])
    return np.array(found)


@pytest.mark.parametrize("order", ORDERS)
def test_a_real_cache_has_as_many_hits_fetches_and_bytes(
    many_ranks, root, described, order, tmp_path
):
    # Of each shard: what the simulation leaves out.
    headers = np.array([
        sum((root / "shards" / name / file).stat().st_size for file in HEADERS) for name in SHARDS
    ])  # fmt: skip
    evicted = 0
    for node in range(NODES):
        for share in (0.4, 0.7, 1.0):
            limit = int(described.folder_room.sum() + share * described.room.sum())
            ds = open_cached(root, tmp_path / f"{node}-{share}", limit)
            read = [
                np.concatenate(many_ranks.parts(ORDERS[order](ds), BATCH, node, NODES, epoch))
                for epoch in range(EPOCHS)
            ]
            real = real_counts(ds, read)
            simulated = many_ranks.Node(described, [limit], EPOCHS * len(ds))
            expected = np.empty((EPOCHS, 4), np.int64)
            for epoch, samples in enumerate(read):
                before = simulated.opened.copy()
                expected[epoch] = simulated.read(samples)[0]
                expected[epoch, 2] += headers[simulated.opened & ~before].sum()
            assert real.tolist() == expected.tolist()
            evicted += share == 0.4 and real[1:, 1].sum()
    assert evicted


def test_a_node_with_room_for_its_homes_fetches_them_once(many_ranks, root, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    described = describe(many_ranks, root)
    for node in range(NODES):
        order = ORDERS["home"](sa1bpack.open(root))
        read = [
            np.concatenate(many_ranks.parts(order, NODES, node, NODES, epoch)) for epoch in range(3)
        ]
        limit = described.folder_room.sum() + described.room[described.block[read[0]]].sum()
        counts = real_counts(open_cached(root, tmp_path / str(node), int(limit)), read)
        assert counts[:, 1].tolist() == [11, 0, 0]  # of 22 samples


def test_the_hits_of_a_shuffled_epoch_are_those_that_chance_predicts(many_ranks):
    """A sample is read at u in one epoch and at v in the next, of 0 to 1. In between, all others
    are read but u (1 - v) of them, so it is still in a cache of part c if u (1 - v) > 1 - c."""
    samples = 20_000
    pack = many_ranks.full_scale(samples, 20)
    order = sa1bpack.ShuffleOrder(Extent(samples, "0123456789abcdef"))
    node = many_ranks.Node(pack, np.array(many_ranks.CACHES) * pack.nbytes, 2 * samples)
    node.read(order.take(0, 0, samples))
    hits = node.read(order.take(1, 0, samples))[:, 0] / samples
    for found, share in zip(hits.tolist(), many_ranks.CACHES, strict=True):
        rest = 1 - share
        predicted = share + (rest * log(rest) if rest else 0)
        assert found == pytest.approx(predicted, abs=0.025)  # 1/64 is removed at a time


def test_the_tables_of_the_docs_are_those_of_the_measurement(many_ranks):
    text = (ROOT / "docs/order.md").read_text()
    for name, shown in (("many_ranks", range(5)), ("many_ranks_256", [1])):
        found = json.loads((ROOT / f"docs/figures/{name}.json").read_text())
        assert f"`{found['command']}`" in text
        tables = many_ranks.tables(found).split("\n\n")
        for table in shown:
            assert tables[table].strip() in text, "put what the command prints into docs/order.md"
