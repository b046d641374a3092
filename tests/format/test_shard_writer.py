"""Writing shards: the same bytes every time, complete or absent, each byte in its place."""

import os

import numpy as np
import pytest
from edited_packs import sample_checksum, sample_views
from narrow_packs import NARROW, sample_of, shard_of

from sa1bpack.errors import PackError
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.shard_writer import ShardWriter, finished_rows, sample_lengths

MASKS = (2, 0, 5, 1)
ATTRIBUTES = {"source": "sa_000000", "part": 0, "rejects": [{"member": "sa_5.jpg"}]}


def lengths_of(samples, layout):
    """The position of each sample, and the end."""
    positions = [AxisLengths()]
    for sample in samples:
        positions.append(positions[-1] + sample_lengths(layout, sample))
    return positions


@pytest.mark.parametrize("runs", [True, False])
def test_what_was_written_is_read_back_sample_by_sample(tmp_path, runs):
    layout = Layout(image_size=16, mask_size=8, runs=runs)
    samples = [sample_of(number, masks, layout) for number, masks in enumerate(MASKS)]
    positions = lengths_of(samples, layout)
    with ShardWriter(tmp_path / "shards", "a-000", layout) as writer:
        for row, sample in enumerate(samples):
            assert writer.lengths == positions[row]
            writer.append(finished_rows(layout, sample))
        entry = writer.publish(ATTRIBUTES)
    shard = open_shard(tmp_path / "shards" / "a-000", layout)
    assert (entry.samples, entry.masks, entry.runs) == (4, 8, positions[-1].runs)
    assert entry.annotations == sum(MASKS) + 4
    assert shard.entry == entry and shard.attributes["rejects"] == ATTRIBUTES["rejects"]
    for row, sample in enumerate(samples):
        found = sample_views(shard, row)
        for name, value in sample.items():
            if name == "run_offset":
                value = value + positions[row].runs
            np.testing.assert_array_equal(found[name], value.reshape(found[name].shape))
        assert list(found["mask_offset"]) == [positions[row].masks, positions[row + 1].masks]
        assert found["checksum"] == sample_checksum(layout, sample)


def test_everything_is_flushed_before_the_final_name_appears(tmp_path, monkeypatch):
    flushed, at_rename = set(), []
    rename = os.rename

    def renaming(source, target):
        at_rename.extend(p for p in [source, *source.rglob("*")] if p.stat().st_ino not in flushed)
        flushed.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda fd: flushed.add(os.fstat(fd).st_ino))
    monkeypatch.setattr(os, "rename", renaming)
    shard_of(tmp_path, "sa_000000-000", MASKS, 99)
    assert at_rename == []
    assert flushed == {tmp_path.stat().st_ino}


def test_published_shard_is_not_overwritten(tmp_path):
    shard_of(tmp_path, "sa_000000-000", (1,), 9)
    with pytest.raises(PackError, match="the shard exists already"):
        ShardWriter(tmp_path, "sa_000000-000", NARROW)
