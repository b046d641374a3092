"""Benchmarks of a small pack: all that is measured, what is said of it, and settings compared."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import page_cache
import pytest
from small_tars import members, write_tar

import sa1bpack
from sa1bpack import OptionError, bench
from sa1bpack import open as open_pack
from sa1bpack.measuring import speeds
from sa1bpack.measuring.ceilings import device_ceiling, large_spans, read_spans
from sa1bpack.measuring.speeds import Speed, Task
from sa1bpack.measuring.sweeps import sweep


@pytest.fixture(scope="module")
def swept(packed):
    """The settings that a sweep asked for, and its result.

    Loaders are the faster the more threads and batches ahead, DataLoaders with two workers.
    """
    asked = []

    def measured(task, setting, seconds: float, seed: int = 0) -> Speed:
        options = setting.options
        if "io" in options or "pin_memory" in options:  # of the sweep
            asked.append(setting)
        if setting.reader == "DataLoader":
            return Speed(50.0 if options["num_workers"] == 2 else 30.0, 1 << 30)
        threads = options.get("threads", 1)
        prefetch = options.get("prefetch", 1)
        speed = 100 * min(threads, 4) + 10 * min(prefetch, 4) + setting.batch / 100
        return Speed(speed, 1 << 28)

    options = {"mask_layout": "concat", "duration": 0.02, "sweep": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sa1bpack.measuring.bench.measure", measured)
        patch.setattr("sa1bpack.measuring.sweeps.measure", measured)
        result = bench(packed.root, batch_size=4, **options)
    return asked, result


def test_each_sweep_begins_from_the_best_so_far(swept):
    asked, result = swept
    chosen = [sweep.chosen.setting.options for sweep in result.sweeps]
    assert [sweep.name.split(":")[0] for sweep in result.sweeps] == [*["Loader"] * 3, "DataLoader"]
    assert chosen[0]["threads"] == 4 and chosen[1]["prefetch"] == 4
    assert chosen[3] == {"num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
    for setting in asked:
        options = setting.options
        assert setting.batch == 4 or (options["threads"], options["prefetch"]) == (4, 4)
    workers = {s.options["num_workers"] for s in asked if s.reader == "DataLoader"}
    assert workers == {0, 2, 4, 8} and {s.batch for s in asked} == {2, 4, 8}


def test_the_tables_have_every_setting_and_end_with_the_lines_of_python(swept, packed):
    _, result = swept
    *lines, loader, other = result.as_text().splitlines()
    for line in (line for each in result.sweeps for line in each.lines):
        assert any(line.setting.short() in text for text in lines)
    assert sum(text.startswith("* ") for text in lines) == len(result.sweeps)
    assert max(map(len, lines[1:])) <= 100
    assert list(result.settings.values()) == [loader, other]
    assert "threads=4, prefetch=4" in loader and "mask_layout='concat'" in loader
    assert "num_workers=2" in other
    found = json.loads(json.dumps(result.as_dict()))
    assert found["settings"]["Loader"] == loader and len(found["sweeps"]) == 4
    names = {"sa1bpack": sa1bpack, "ds": open_pack(packed.root)}
    with eval(loader, names) as made:  # it is a line of Python
        assert (made.plan().threads, next(iter(made))["masks"].ndim) == (4, 3)
    eval(other, names).end_workers()


def test_a_benchmark_has_every_line(packed):
    steps = []
    told = lambda *counts: steps.append(counts)  # noqa: E731
    result = bench(packed.root, batch_size=4, duration=0.02, progress=told)
    assert list(result.lines) == ["Loader", "DataLoader, 0 workers", "DataLoader, 2 workers"]
    for line in result.lines.values():
        for speed in line.values():
            assert speed.samples_per_second > 0 and speed.host_bytes >= 0 == speed.device_bytes
    assert result.ceilings.memory > 0 and result.ceilings.device is None
    assert (result.ceilings.disk is None) == bool(result.ceilings.why)
    text = result.as_text()
    assert ("cold is not cold" in text) == (result.remaining_share > 0.01)
    result.remaining_share = 0.25
    assert "cold is not cold: 25% of the pack" in result.as_text()
    assert max(map(len, text.splitlines()[1:])) <= 100
    assert all(name in text for name in result.lines)
    assert steps == [(number, 7) for number in range(8)]
    assert "cold figures are of little time, such as " in text
    for line in result.lines.values():
        assert 0 < line["cold"].samples <= result.samples and line["cold"].seconds > 0
        line["cold"] = replace(line["cold"], seconds=1.0)
    assert "cold figures" not in result.as_text()
    ds = open_pack(packed.root)
    stored = sum(sum(sample[key].nbytes for key in ("image", "masks")) for sample in ds)
    assert result.sample_bytes == stored / len(ds)
    assert json.loads(json.dumps(result.as_dict()))["samples"] == len(ds)
    result.ceilings = replace(result.ceilings, disk=None, why="there is no disk")
    assert "disk: not measured: there is no disk" in result.as_text()


def test_what_is_read_of_the_masks_is_said_and_counted(packed):
    """The bytes of a sample are those of what `sa1bpack.open` gives of it."""
    said = {}
    for form in ("bool", "runs", "none"):
        result = bench(packed.root, batch_size=4, duration=0.01, mask_format=form)
        ds = open_pack(packed.root, mask_format="runs")
        images = sum(sample["image"].nbytes for sample in ds) / len(ds)
        runs = sum(sample["run_ends"].nbytes for sample in ds) / len(ds)
        assert result.sample_bytes - result.mask_bytes == pytest.approx(images)
        if form == "runs":
            assert result.mask_bytes == runs > 0
        if form == "none":
            assert result.mask_bytes == 0
        pixels, masks = result.as_text().splitlines()[1:3]
        assert pixels.endswith(f" kB, rgb, on a square of {ds.layout.image_size}")
        said[form] = masks.partition(", ")[2]
    size = ds.layout.mask_size
    assert said == {
        "bool": f"stored bits of {size} x {size}",
        "runs": "exact runs, as they are",
        "none": "none read",
    }


def test_bits_of_a_pack_without_bits_are_drawn_from_runs_whose_bytes_count(tmp_path):
    tar = write_tar(tmp_path / "sa_0.tar", members(range(3)))
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, preset="compact", image_size=64, mask_size=16)
    result = bench(tmp_path / "pack", batch_size=2, duration=0.01)
    ds = open_pack(tmp_path / "pack", mask_format="runs")
    assert result.mask_bytes == sum(sample["run_ends"].nbytes for sample in ds) / len(ds)
    text = result.as_text()
    assert "yuv420, longer side 64, without padding" in text
    assert "exact runs, from which 16 x 16 cells are drawn" in text


def test_spans_are_the_bytes_of_the_samples_and_reading_them_counts_them(packed, direct_folder):
    ds = open_pack(packed.root)
    spans = large_spans(ds, np.arange(len(ds)))
    for index, sample in enumerate(spans):
        for (path, begin, count), name in zip(sample, ("image", "mask_bits"), strict=True):
            with open(path, "rb") as file:  # noqa: PTH123 - a str
                file.seek(begin)
                shard, row, first, stop = ds.locate(index)
                low, high = (row, row + 1) if name == "image" else (first, stop)
                assert file.read(count) == ds.shards[shard][name][low:high].tobytes()
    total = sum(count for sample in spans for _, _, count in sample)
    found = read_spans(spans, 2, direct=False, at_once=1)
    assert (found.samples, found.nbytes) == (len(ds), total)
    none = read_spans(spans, 1, direct=False, at_once=1, seconds=-1.0)
    assert (none.samples, none.nbytes) == (0, 0)
    with pytest.raises(OSError, match="status"):
        read_spans([[(spans[0][0][0], 0, 1 << 20)]], 1, direct=False, at_once=1)


def test_past_the_page_cache_whole_blocks_are_read(direct_folder):
    path = direct_folder / "spans"
    path.write_bytes(bytes(100_000))
    page_cache.drop(path)
    spans = [[(str(path), 5000, 10)], [(str(path), 4095, 2)], [(str(path), 0, 1)]]
    for at_once in (8, 2, 1):
        found = read_spans(spans, 1, at_once=at_once)
        assert (found.samples, found.nbytes) == (3, 4 * 4096)
    assert not page_cache.resident(path).any()


def test_the_ceiling_of_a_device_is_that_of_copies_from_pinned_memory(cuda, monkeypatch):
    monkeypatch.setattr("sa1bpack.measuring.ceilings.CUDA", cuda)
    assert device_ceiling(0, 4096, 0.001) > 0
    assert not any(cuda.copying.values())  # it waited for all of them


@pytest.mark.parametrize(
    "given, message",
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"mask_layout": "none"}, "mask_layout is 'none'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"max_masks": -1}, "max_masks is -1"),
        ({"mask_format": "rle"}, "mask_format is 'rle': choose one of bits, bool, runs, none"),
        ({"mask_format": "none", "max_masks": 5}, "max_masks is 5: leave it out"),
        ({"mask_format": "runs", "mask_layout": "padded_bits"}, "runs"),
        ({"duration": -1}, "duration is -1"),
        ({"pack": "manifest.json"}, "a file: name the folder of a pack"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(packed, given, message):
    options = {"pack": "", **given}
    pack = packed.root / options.pop("pack")
    with pytest.raises(OptionError, match=message):
        bench(pack, **options)


class Setting:
    def __init__(self, threads: int):
        self.options = {"threads": threads}


SETTINGS = [Setting(count) for count in (1, 2, 4)]


def measured(speeds: dict[int, list[float]]):
    """Measures settings: speeds by threads and round, none for one that fails; and what it was
    asked for, (round, threads)."""
    asked = []

    def measure(setting: Setting, number: int) -> Speed:
        threads = setting.options["threads"]
        asked.append((number, threads))
        if not (own := speeds[threads]):
            raise MemoryError("none left")
        return Speed(own[number % len(own)], 100 << 20)

    return measure, asked


def test_rounds_are_interleaved_every_other_one_in_reverse():
    measure, asked = measured({1: [10.0], 2: [20.0], 4: [15.0]})
    found = sweep("threads", SETTINGS, measure)
    assert [threads for _, threads in asked] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert [number for number, _ in asked] == [0] * 3 + [1] * 3 + [2] * 3
    assert [line.speed for line in found.lines] == [10, 20, 15]
    assert found.chosen is found.lines[1]
    assert [line.noise for line in found.lines] == [False, True, False]


@pytest.mark.parametrize(
    "speeds, noise, chosen",
    [
        ({1: [19.9], 2: [20.0], 4: [5.0]}, [True, True, False], 1),
        ({1: [19, 25, 19], 2: [20, 20, 21], 4: [5.0]}, [True, True, False], 1),
        ({1: [5, 25, 6], 2: [20, 20, 21], 4: [5.0]}, [False, True, False], 2),
        ({1: [20, 21, 20], 2: [21, 20, 21], 4: [20, 20, 21]}, [True] * 3, 1),
        ({1: [19.0], 2: [20.0], 4: [5.0]}, [False, True, False], 2),
    ],
)
def test_of_those_within_the_noise_the_one_that_takes_least_is_chosen(speeds, noise, chosen):
    found = sweep("threads", SETTINGS, measured(speeds)[0])
    assert [line.noise for line in found.lines] == noise
    assert found.chosen.setting.options == {"threads": chosen}


def test_a_setting_that_fails_is_named_and_left_out():
    measure, asked = measured({1: [10.0], 2: [], 4: [15.0]})
    found = sweep("threads", SETTINGS, measure)
    assert found.lines[1].error == "MemoryError: none left" and not found.lines[1].speeds
    assert [threads for _, threads in asked] == [1, 2, 4, 4, 1, 1, 4]
    assert found.chosen is found.lines[2]
    with pytest.raises(MemoryError):
        sweep("threads", SETTINGS, measured({1: [], 2: [], 4: []})[0])


def test_the_files_of_a_pack_are_also_those_that_links_lead_to(packed, tmp_path):
    """Their pages are dropped: shards may be on several disks."""
    linked = Path(shutil.copytree(packed.root, tmp_path / "pack"))
    others = tmp_path / "other disk"
    (linked / "shards").rename(others)
    (linked / "shards").mkdir()
    for shard in others.iterdir():
        (linked / "shards" / shard.name).symlink_to(shard)
    expected = {path.relative_to(packed.root) for path in Task(packed.root).files()}
    assert {path.relative_to(linked) for path in Task(linked).files()} == expected
    assert any(path.name == "c.0.0.0.0" for path in expected)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_pack_of_another_user_is_not_said_to_be_in_memory(packed):
    """Of files that one may not write, the system calls every page resident."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        task = Task(Path(shutil.copytree(packed.root, folder / "pack")), cold=True)
        folder.chmod(0o755)
        list(open_pack(task.pack))
        os.setresuid(65534, 65534, 0)
        try:
            share = task.remaining_share()
        finally:
            os.setresuid(0, 0, 0)
        assert share == 0 < task.remaining_share()
    finally:
        shutil.rmtree(folder)


WATCHED = """
import os, sys
import sa1bpack
import sa1bpack.measuring.bench as module

kept = []
measure = module.measure

def watched(*arguments):
    kept.append(len(os.listdir(os.environ["NUMBA_CACHE_DIR"])))
    speed = measure(*arguments)
    kept.append(len(os.listdir(os.environ["NUMBA_CACHE_DIR"])))
    return speed

module.measure = watched
sa1bpack.bench(sys.argv[1], batch_size=4, duration=0.01)
assert kept[0] and len(set(kept)) == 1, kept
"""


def test_what_is_compiled_is_compiled_before_anything_is_measured(packed, tmp_path):
    """On a new machine that takes longer than a measurement."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "NUMBA_OPT": "0"}
    subprocess.run([sys.executable, "-c", WATCHED, packed.root], env=environment, check=True)


def test_memory_is_counted_also_of_an_epoch_without_a_batch_left(packed, monkeypatch):
    """As when a small pack is read from a URL, whose samples are read once."""
    taken = itertools.count(0, 1000)  # bytes, asked for before and after
    monkeypatch.setattr("sa1bpack.measuring.speeds.own_bytes", lambda: next(taken))
    setting = speeds.Setting("Loader", 4)
    assert speeds.measure(Task(packed.root, cold=True), setting, 60.0).host_bytes == 1000
