"""Benchmarks of a small pack: all that is measured, and what is said of it."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

import sa1bpack
from sa1bpack import bench
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.measuring.bench import Ceilings, in_new_process
from sa1bpack.measuring.ceilings import device_ceiling, large_spans, read_spans
from sa1bpack.measuring.memory import drop_pages, resident_bytes
from sa1bpack.measuring.speeds import Setting, Speed, Task, measure, some_samples


class Machine:
    """Loaders are the faster the more threads and batches ahead; DataLoaders with two workers."""

    def __init__(self):
        self.asked = []

    def measure(self, task: Task, setting: Setting, seconds: float, seed: int = 0) -> Speed:
        options = setting.options
        if setting.reader == "DataLoader":
            speed = Speed(50.0 if options["num_workers"] == 2 else 30.0, 1 << 30)
        else:
            threads, prefetch = options.get("threads", 1), options.get("prefetch", 1)
            total = 100 * min(threads, 4) + 10 * min(prefetch, 4) + setting.batch / 100
            speed = Speed(total, 1 << 28)
        if "io" in options or "pin_memory" in options:  # of the sweep
            self.asked.append(setting)
        return speed


@pytest.fixture
def swept(packed, monkeypatch):
    """A machine, and the result of the sweep on it."""
    machine = Machine()
    ceilings = Ceilings(20e9, 2e9, None), 4e6
    monkeypatch.setattr("sa1bpack.measuring.bench.measure_ceilings", lambda *given: ceilings)
    monkeypatch.setattr("sa1bpack.measuring.bench.measure", machine.measure)
    monkeypatch.setattr("sa1bpack.measuring.bench.in_new_process", lambda *_: 0.5)
    return machine, bench(packed.root, batch_size=4, mask_layout="concat", sweep=True)


def test_each_sweep_begins_from_the_best_so_far(swept):
    machine, result = swept
    chosen = [sweep.chosen.setting.options for sweep in result.sweeps]
    assert [sweep.name.split(":")[0] for sweep in result.sweeps] == [*["Loader"] * 3, "DataLoader"]
    assert chosen[0]["threads"] == 4 and chosen[1]["prefetch"] == 4
    assert chosen[3] == {"num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
    for setting in machine.asked:
        options = setting.options
        assert setting.batch == 4 or (options["threads"], options["prefetch"]) == (4, 4)
    workers = {s.options["num_workers"] for s in machine.asked if s.reader == "DataLoader"}
    assert workers == {0, 2, 4, 8} and {s.batch for s in machine.asked} == {2, 4, 8}


def test_the_tables_have_every_setting_and_end_with_the_lines_of_python(swept, packed):
    _, result = swept
    *lines, loader, other = result.as_text().splitlines()
    for sweep in result.sweeps:
        for line in sweep.lines:
            assert any(line.setting.short() in text for text in lines)
    assert sum(text.startswith("* ") for text in lines) == len(result.sweeps)
    assert max(map(len, lines[1:])) <= 100
    assert list(result.settings.values()) == [loader, other]
    assert (
        "threads=4, prefetch=4" in loader
        and "mask_layout='concat'" in loader
        and "num_workers=2" in other
    )
    found = json.loads(json.dumps(result.as_dict()))
    assert found["settings"]["Loader"] == loader and len(found["sweeps"]) == 4
    names = {"sa1bpack": sa1bpack, "ds": open_pack(packed.root)}
    with eval(loader, names) as made:  # it is a line of Python
        assert (made.plan().threads, next(iter(made))["masks"].ndim) == (4, 3)
    eval(other, names).end_workers()


@pytest.mark.parametrize("reader", ["Loader", "DataLoader"])
@pytest.mark.parametrize("cold", [False, True])
def test_loaders_are_measured(packed, reader, cold):
    task = Task(packed.root, options={"mask_layout": "concat"}, cold=cold)
    task.prepare()
    found = measure(task, Setting(reader, 4), 0.01)
    assert found.samples_per_second > 0
    assert found.host_bytes >= 0
    assert found.device_bytes == 0


def test_a_benchmark_has_every_line(packed, monkeypatch):
    steps = []
    monkeypatch.setattr(
        "sa1bpack.measuring.bench.in_new_process", lambda function, *given: function(*given)
    )
    result = bench(packed.root, batch_size=4, duration=0.02, progress=steps.append)
    assert list(result.lines) == ["Loader", "DataLoader, 0 workers", "DataLoader, 2 workers"]
    for line in result.lines.values():
        assert line["cold"].samples_per_second > 0 and line["warm"].samples_per_second > 0
        assert line["first_cold"] > 0 and line["first_again"] > 0
    assert result.ceilings.memory > 0 and result.ceilings.device is None
    assert (result.ceilings.disk is None) == bool(result.ceilings.why)
    text = result.as_text()
    assert ("cold is not cold" in text) == (result.remaining_share > 0.01)
    result.remaining_share = 0.25
    assert "cold is not cold: 25% of the pack" in result.as_text()
    assert max(map(len, text.splitlines()[1:])) <= 100
    assert all(name in text for name in result.lines) and len(steps) == 10
    assert "again: in another one" in text and "cold figures are of little time, such as " in text
    for line in result.lines.values():
        assert 0 < line["cold"].samples <= result.samples and line["cold"].seconds > 0
        line["cold"] = replace(line["cold"], seconds=1.0)
    assert "cold figures" not in result.as_text()
    assert json.loads(json.dumps(result.as_dict()))["samples"] == len(open_pack(packed.root))


def test_the_first_batch_is_that_of_a_new_process():
    assert in_new_process(os.getpid) not in (os.getpid(), in_new_process(os.getpid))


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
    with pytest.raises(OSError, match="expected"):
        read_spans([[(spans[0][0][0], 0, 1 << 20)]], 1, direct=False, at_once=1)


def test_past_the_page_cache_whole_blocks_are_read(direct_folder):
    path = direct_folder / "spans"
    path.write_bytes(bytes(100_000))
    drop_pages([path])
    assert resident_bytes([path]) == 0
    spans = [[(str(path), 5000, 10)], [(str(path), 4095, 2)], [(str(path), 0, 1)]]
    for at_once in (8, 2, 1):
        found = read_spans(spans, 1, at_once=at_once)
        assert (found.samples, found.nbytes) == (3, 4 * 4096)
    assert resident_bytes([path]) == 0


def test_samples_of_the_ceiling_are_of_few_shards(packed):
    ds = open_pack(packed.root)
    assert sorted(some_samples(ds, 100, 100).tolist()) == list(range(len(ds)))
    few = some_samples(ds, 100, 1)
    numbers = ds.locate_many(np.arange(len(ds)))[0]
    assert len(set(numbers.tolist())) > 1 and len(set(numbers[few].tolist())) == 1
    assert len(few) == (numbers == numbers[few[0]]).sum()
    assert len(some_samples(ds, 3, 100)) == 3


def test_the_ceiling_of_a_device_is_that_of_copies_from_pinned_memory(cuda, monkeypatch):
    monkeypatch.setattr("sa1bpack.measuring.ceilings.CUDA", cuda)
    assert device_ceiling(0, 4096, 0.001) > 0
    assert not any(cuda.copying.values())  # it waited for all of them


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"mask_layout": "none"}, "mask_layout is 'none'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"max_masks": -1}, "max_masks is -1"),
        ({"duration": -1}, "duration is -1"),
        ({"pack": "manifest.json"}, "a file: name the folder of a pack"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(packed, given, message):
    options = {"pack": "", **given}
    pack = packed.root / options.pop("pack")
    with pytest.raises(OptionError, match=message):
        bench(pack, **options)
