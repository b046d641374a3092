"""Writing shards: the same bytes every time, complete or absent, each byte in its place."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from killed_calls import Killed, killed_after
from sample_views import sample_views

from sa1bpack.errors import FormatError, OptionError, PackError
from sa1bpack.format import append_file
from sa1bpack.format.layout import Extent, Layout
from sa1bpack.format.publish import scan_shards
from sa1bpack.format.sample_rows import finished_rows, sample_checksum, sample_extent
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.shard_writer import ShardWriter

MASKS = (2, 0, 5, 1)
ATTRIBUTES = {"source": "sa_000000", "part": 0, "rejects": [{"member": "sa_5.jpg"}]}


def extents(samples, layout):
    """The position of each sample, and the end."""
    positions = [Extent()]
    for sample in samples:
        positions.append(positions[-1] + sample_extent(layout, sample))
    return positions


def write(shards, layout, samples):
    """Publish the shard "a-000" of these samples."""
    with ShardWriter(shards, "a-000", layout) as writer:
        for sample in samples:
            writer.append(finished_rows(layout, sample))
        return writer.publish(ATTRIBUTES)


def reference_checksum(layout, sample):
    """The checksum as docs/format.md defines it, from one joined string of bytes."""
    parts = []
    for spec in layout.arrays:
        if spec.name == "mask_offset":
            parts.append(np.array([len(sample["area"])], "<i8").tobytes())
        elif spec.name == "run_offset":
            parts.append(np.diff(sample["run_offset"]).astype("<i8").tobytes())
        elif spec.name != "checksum":
            parts.append(sample[spec.name].tobytes())
    return xxhash.xxh3_64_intdigest(b"".join(parts))


@pytest.mark.parametrize("runs", [True, False])
def test_what_was_written_is_read_back_sample_by_sample(tmp_path, sample_of, runs):
    layout = Layout(image_size=16, mask_size=8, runs=runs)
    samples = [sample_of(number, masks, layout) for number, masks in enumerate(MASKS)]
    positions = extents(samples, layout)
    with ShardWriter(tmp_path / "shards", "a-000", layout) as writer:
        for row, sample in enumerate(samples):
            assert writer.extent == positions[row]
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
        assert found["checksum"] == reference_checksum(layout, sample)


def test_checksum_is_the_documented_one_and_does_not_depend_on_the_shape_of_the_rows(sample_of):
    layout = Layout(image_size=16, mask_size=8)
    sample = sample_of(7, 3, layout)
    expected = reference_checksum(layout, sample)
    assert sample_checksum(layout, sample) == expected
    with_axis = {**sample, "image": sample["image"][None], "size": sample["size"][None]}
    assert sample_checksum(layout, with_axis) == expected
    bare = {**sample, "image_id": sample["image_id"][0]}
    assert sample_checksum(layout, bare) == expected
    spread = {**sample, "bbox": np.repeat(sample["bbox"], 2, axis=0)[::2]}
    assert not spread["bbox"].flags.c_contiguous and sample_checksum(layout, spread) == expected
    changed = {**sample, "area": sample["area"] + np.array([0, 0, 1])}
    assert sample_checksum(layout, changed) != expected


def test_rows_below_the_stored_height_are_never_read(tmp_path, sample_of, small_layout):
    sample = sample_of(3, 1, small_layout)
    sample["size"] = np.array([150, 225, 5, 16], np.int32)
    clean = {**sample, "image": sample["image"].copy()}
    clean["image"][5:] = 0
    dirty = {**sample, "image": sample["image"].copy()}
    dirty["image"][5:] = 255  # left in a reused buffer by an earlier image
    assert sample_checksum(small_layout, dirty) == reference_checksum(small_layout, clean)
    write(tmp_path, small_layout, [dirty])
    np.testing.assert_array_equal(open_shard(tmp_path / "a-000")["image"][0], clean["image"])


def test_an_unused_canvas_takes_no_disk_space(tmp_path, sample_of):
    layout = Layout(image_size=512, mask_size=8)
    sample = sample_of(3, 1, layout)
    sample["size"] = np.array([150, 225, 100, 512], np.int32)
    write(tmp_path, layout, [sample])
    state = (tmp_path / "a-000" / "image" / "c.0.0.0.0").stat()
    if state.st_blocks * 512 >= state.st_size:
        pytest.skip("this file system does not keep holes")
    assert state.st_blocks * 512 < state.st_size // 2


def test_direct_and_cached_writes_give_the_same_bytes(tmp_path, sample_of, contents, monkeypatch):
    layout = Layout(image_size=512, mask_size=64)
    samples = [sample_of(number, masks, layout) for number, masks in enumerate((300, 0, 700, 1))]
    for name, direct in (("one", True), ("two", False)):
        if not direct:
            monkeypatch.setattr(append_file, "set_direct", lambda fd, on: False)
            monkeypatch.setattr(append_file, "CACHED_BYTES", 1 << 19)
        write(tmp_path / name, layout, samples)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_rows_may_change_once_they_are_appended(tmp_path, sample_of, small_layout, contents):
    samples = [sample_of(number, masks) for number, masks in enumerate(MASKS)]
    write(tmp_path / "one", small_layout, samples)
    with ShardWriter(tmp_path / "two", "a-000", small_layout) as writer:
        for sample in samples:
            rows = {name: np.array(v) for name, v in finished_rows(small_layout, sample).items()}
            writer.append(rows)
            for array in rows.values():
                array[...] = 7
        writer.publish(ATTRIBUTES)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_digests_in_the_checksum_file_are_those_of_the_files(tmp_path, shard_of, contents):
    shard_of(tmp_path, "sa_000000-000", MASKS, 99)
    files = contents(tmp_path / "sa_000000-000")
    listed = files.pop("checksums.xxh128").decode()
    expected = "".join(
        f"{xxhash.xxh128_hexdigest(files[path])}  {path}\n" for path in sorted(files)
    )
    assert listed == expected


def test_short_writes_are_continued(tmp_path, shard_of, monkeypatch, contents):
    shard_of(tmp_path / "one", "sa_000000-000", MASKS, 99)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, memoryview(data)[:7], at))
    shard_of(tmp_path / "two", "sa_000000-000", MASKS, 99)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_full_disk_names_the_file_and_leaves_nothing(
    tmp_path, sample_of, small_layout, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(append_file, "STAGE_BYTES", append_file.BLOCK)
    sample = finished_rows(small_layout, sample_of(1, 999))
    with ShardWriter(tmp_path, "a-000", small_layout) as writer:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"No space left.*a-000.*c\.0"):
            writer.append(sample)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["image", "bbox", "run_ends"])
def test_a_shard_with_a_partial_sample_cannot_be_published(
    tmp_path, sample_of, small_layout, monkeypatch, name
):
    append = append_file.AppendFile.append

    def fail(file, data):
        append(file, data)
        if file.path.parent.name == name:
            raise OSError(5, "Input/output error")

    with ShardWriter(tmp_path, "a-000", small_layout) as writer:
        writer.append(finished_rows(small_layout, sample_of(1, 2)))
        monkeypatch.setattr(append_file.AppendFile, "append", fail)
        with pytest.raises(OSError, match="Input/output"):
            writer.append(finished_rows(small_layout, sample_of(2, 2)))
        monkeypatch.setattr(append_file.AppendFile, "append", append)
        with pytest.raises(FormatError, match="a sample was written in part"):
            writer.publish(ATTRIBUTES)
    assert list(tmp_path.iterdir()) == []


FDS = Path("/proc/self/fd")


@pytest.mark.parametrize(
    "step, stride", [("pwrite", 5), ("fsync", 5), ("ftruncate", 5), ("mkdir", 5), ("rename", 1)]
)
def test_kill_at_a_call_leaves_no_final_name(tmp_path, step, stride, shard_of, monkeypatch):
    """Fail the first, sixth, eleventh … call of one kind until the shard is published."""
    for survivors in range(0, 1000, stride):
        shards = tmp_path / str(survivors)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, step, killed_after(step, survivors))
                shard_of(shards, "sa_000000-000", (1, 2), 9)
            break
        except Killed:
            names = [path.name for path in shards.iterdir()] if shards.exists() else []
            if names:  # only the flush after the rename may fail, and the shard is then complete
                assert step == "fsync" and names == ["sa_000000-000"]
                assert len(open_shard(shards / names[0])) == 2
    assert survivors > 0
    assert [path.name for path in shards.iterdir()] == ["sa_000000-000"]


def test_everything_is_flushed_before_the_final_name_appears(tmp_path, shard_of, monkeypatch):
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


def test_a_killed_process_leaves_only_a_working_name(tmp_path):
    code = (
        "import os, sys\n"
        "from sa1bpack.format.layout import Layout\n"
        "from sa1bpack.format.shard_writer import ShardWriter\n"
        "writer = ShardWriter(sys.argv[1], 'a-000', Layout(16, 8))\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "shards")], check=False)
    assert done.returncode == 9
    (left,) = (tmp_path / "shards").iterdir()
    assert left.name.startswith(".tmp-a-000-") and scan_shards(tmp_path) == []


@pytest.mark.parametrize("change, message", [
    ({"bbox": None}, "no array 'bbox'"),
    ({"bbox": np.zeros((3, 4), np.float32)}, "bbox .* float32"),
    ({"bbox": np.zeros((2, 4))}, "bbox"),
    ({"image": np.zeros((8, 16, 3), np.uint8)}, "image"),
    ({"run_offset": np.array([0, 1, 2], np.int64)}, "run_offset"),
    ({"run_offset": np.array([1, 1, 2, 3], np.int64)}, "from 1"),
    ({"run_offset": np.array([0, 9, 2, 3], np.int64)}, "non-decreasing"),
    ({"size": np.array([9, 9, 17, 9], np.int32)}, "17 x 9"),
    ({"size": np.array([9, 9, 0, 9], np.int32)}, "0 x 9"),
])  # fmt: skip
def test_sample_that_does_not_fit_is_refused(sample_of, small_layout, change, message):
    sample = {**sample_of(1, 3), "run_ends": np.array([1, 2, 3], np.int32),
              "run_offset": np.arange(4)}  # fmt: skip
    sample = {name: value for name, value in {**sample, **change}.items() if value is not None}
    with pytest.raises(OptionError, match=message):
        finished_rows(small_layout, sample)


@pytest.mark.parametrize("attributes", [
    {}, {"source": "a"}, {"source": 3, "part": 0}, {"source": "a", "part": True},
    {"source": "a", "part": 0, "masks": 3},
])  # fmt: skip
def test_attributes_that_could_not_be_read_back_are_refused(tmp_path, small_layout, attributes):
    writer = ShardWriter(tmp_path, "a-000", small_layout)
    with writer, pytest.raises(OptionError, match="attributes"):
        writer.publish(attributes)
    assert list(tmp_path.iterdir()) == []


def test_published_shard_is_not_overwritten(tmp_path, shard_of, small_layout):
    shard_of(tmp_path, "sa_000000-000", (1,), 9)
    with pytest.raises(PackError, match="the shard exists already"):
        ShardWriter(tmp_path, "sa_000000-000", small_layout)


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "../a", "/a", "a\nb", "__a", "a\\b",
                                  "a" * 201])  # fmt: skip
def test_names_that_leave_the_folder_or_look_unfinished_are_refused(tmp_path, small_layout, name):
    with pytest.raises(FormatError, match="cannot be the name of a shard"):
        ShardWriter(tmp_path, name, small_layout)
    assert list(tmp_path.iterdir()) == []


def test_files_are_closed_if_one_cannot_be_created(tmp_path, small_layout, monkeypatch):
    make = append_file.AppendFile.__init__

    def fail(file, path):
        if path.parent.name == "run_ends":
            raise OSError(28, "No space left on device", str(path))
        make(file, path)

    monkeypatch.setattr(append_file.AppendFile, "__init__", fail)
    before = open_files()
    with pytest.raises(OSError, match="run_ends"):
        ShardWriter(tmp_path, "a-000", small_layout)
    assert open_files() == before and list(tmp_path.iterdir()) == []


def open_files():
    """Number of file descriptors of this process."""
    if not FDS.is_dir():
        pytest.skip("needs /proc")
    return len(list(FDS.iterdir()))
