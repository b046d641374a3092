"""Tuning and benchmarks of a small pack: all that is measured, and the files that result."""

import json
import logging
import os
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.dataloader import make_dataloader
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.tuned import read_tuned
from sa1bpack.measuring.bench import Ceilings, bench, bench_with, in_new_process
from sa1bpack.measuring.ceilings import device_ceiling, memory_ceiling, read_spans
from sa1bpack.measuring.page_cache import drop_pages, resident_bytes
from sa1bpack.measuring.spans import large_spans
from sa1bpack.measuring.speeds import Setting, Speed, Task, measure, some_samples
from sa1bpack.measuring.tune import thread_counts, tune, tune_with


class Machine:
    """Loaders are the faster the more threads and batches ahead; DataLoaders with two workers."""

    def __init__(self):
        self.now, self.asked = 0.0, []

    def clock(self) -> float:
        return self.now

    def measure(self, task: Task, setting: Setting, seconds: float, seed: int) -> Speed:
        self.now += seconds + 0.3
        self.asked.append(setting)
        options = dict(setting.options)
        if setting.reader == "DataLoader":
            return Speed(50.0 if options["workers"] == 2 else 30.0, 0.1, 1 << 30)
        speed = 100 * min(options["threads"], 4) + 10 * min(options["ahead"], 4)
        return Speed(speed + setting.batch / 100, 0.1, 1 << 28)


@pytest.fixture
def tuned(packed, monkeypatch):
    ceilings = Ceilings(20e9, 2e9, None), 4e6
    monkeypatch.setattr("sa1bpack.measuring.tune.measure_ceilings", lambda *given: ceilings)
    machine = Machine()
    result = tune_with(machine.measure, machine.clock, packed.root, batch_size=4, minutes=2)
    return machine, result


def test_each_sweep_begins_from_the_best_of_the_one_before(tuned):
    machine, result = tuned
    assert dict(result.loader.options)["threads"] == 4
    assert dict(result.loader.options)["ahead"] == 4 and result.loader.batch == 4
    assert dict(result.dataloader.options) == {
        "workers": 2, "prefetch_factor": 2, "pin_memory": False
    }  # fmt: skip
    assert [one.name for one in result.sweeps][-1] == "DataLoader"
    assert all(one.rounds >= 3 for one in result.sweeps) and machine.now < 130
    for setting in machine.asked:
        options = dict(setting.options)
        if setting.batch != 4:
            assert (options["threads"], options["ahead"]) == (4, 4)
    workers = {dict(s.options)["workers"] for s in machine.asked if s.reader == "DataLoader"}
    assert workers == {0, 2, 4, 8}
    assert {s.batch for s in machine.asked} == {2, 4, 8}


def test_the_table_has_every_setting_and_the_recommendation(tuned):
    _, result = tuned
    text = result.as_text()
    assert max(map(len, text.splitlines())) <= 100
    for one in result.sweeps:
        assert all(line.setting.short() in text for line in one.lines)
    assert text.endswith(
        f"{result.recommendation}\nor sa1bpack.make_dataloader(ds, 4, workers=2, "
        "prefetch_factor=2, pin_memory=False)"
    )
    assert result.recommendation.startswith("sa1bpack.Loader(ds, 4, threads=4, ahead=4, io='")


def test_the_file_sets_what_is_not_given(tuned, packed, tmp_path, caplog):
    _, result = tuned
    path = tmp_path / "tuned.json"
    path.write_bytes(result.settings.as_json())
    assert read_tuned(path) == result.settings
    ds = open_pack(packed.root)
    with Loader(ds, 4, tuned=path) as loader, Loader(ds, 4, tuned=path, threads=1, ahead=1) as own:
        assert loader.plan().threads == 4 and loader.plan().batches == 4 + 2
        assert own.plan().threads == 1 and own.plan().batches == 1 + 2
        next(iter(loader))
        assert loader.stats().disk_ceiling == result.settings.disk_bytes_per_second
    batches = make_dataloader(ds, [2, 4], tuned=path)  # as a schedule: its largest batch counts
    assert (batches.num_workers, batches.prefetch_factor, batches.pin_memory) == (2, 2, False)
    transformed = open_pack(packed.root, transform=dict)
    assert make_dataloader(transformed, 4, tuned=path, workers=1).num_workers == 1
    assert caplog.records == []


def test_a_file_for_something_else_is_used_and_named(tuned, packed, tmp_path, caplog):
    _, result = tuned
    path = tmp_path / "tuned.json"
    found = json.loads(result.settings.as_json())
    found["measured_for"]["layout"]["image_size"] = 2048
    path.write_text(json.dumps(found))
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        Loader(open_pack(packed.root), 2, tuned=path)
    [record] = caplog.records
    size = open_pack(packed.root).layout.image_size
    assert f"image_size 2048 (here {size}), batch_size 4 (here 2); " in record.getMessage()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "cannot be read"), ("{", "cannot be read"), ("[]", "not a file of `sa1bpack tune`"),
        ({"kind": "other"}, "the kind and version other, 1"), ({"version": 2}, "settings, 2"),
        ({"loader": {"threads": "4"}}, "loader is"), ({"measured_for": {}}, "TypeError"),
        ({"disk_bytes_per_second": "fast"}, "of another type"),
    ],
)  # fmt: skip
def test_a_file_that_is_something_else_is_refused(tuned, packed, tmp_path, change, message):
    path = tmp_path / "tuned.json"
    if isinstance(change, str):
        path.write_text(change)
    elif change is not None:
        found = json.loads(tuned[1].settings.as_json())
        path.write_text(json.dumps(found | change))
    with pytest.raises(OptionError, match=message):
        Loader(open_pack(packed.root), 4, tuned=path)


def test_the_plot_is_a_picture_of_all_settings(tuned, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    from sa1bpack.measuring.plot import write_plot

    write_plot(tuned[1], tmp_path / "plot.png")
    with pil.open(tmp_path / "plot.png") as picture:
        pixels = np.asarray(picture)
    colours = {tuple(colour) for colour in pixels.reshape(-1, 3)[::7].tolist()}
    assert {(160, 185, 215), (40, 110, 190), (255, 255, 255)} <= colours


def test_threads_are_powers_of_two_and_the_cores():
    assert thread_counts(2) == (1, 2, 4, 8)
    assert thread_counts(6) == (1, 2, 4, 6, 8)
    assert thread_counts(64) == (1, 2, 4, 8, 12, 16, 32)


# ------------------------------------------------------------------------------ real measurements


@pytest.mark.parametrize("reader", ["Loader", "DataLoader"])
@pytest.mark.parametrize("cold", [False, True])
def test_loaders_are_measured(packed, reader, cold):
    task = Task(packed.root, options={"masks": "flat"}, cold=cold)
    task.prepare()
    found = measure(task, Setting.of(reader, 4), 0.01)
    assert found.samples_per_second > 0 and found.first_batch_seconds > 0
    assert (found.cached_share is None) == (reader == "DataLoader")
    assert found.host_bytes is None or found.host_bytes >= 0
    assert found.device_bytes == 0


def test_a_benchmark_has_every_line(packed):
    steps = []
    result = bench_with(
        lambda function, *arguments: function(*arguments),
        packed.root, batch_size=4, duration=0.02, progress=steps.append,
    )  # fmt: skip
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
    for kept in (1, 3, len(ds) + 1):
        found = read_spans(spans, 2, direct=False, at_once=1, kept=kept)
        assert (found.samples, found.nbytes) == (len(ds), total)
    none = read_spans(spans, 1, direct=False, at_once=1, seconds=-1.0)
    assert (none.samples, none.nbytes) == (0, 0)
    with pytest.raises(OSError, match="expected"):
        read_spans([[(spans[0][0][0], 0, 1 << 30)]], 1, direct=False, at_once=1)


def test_past_the_page_cache_whole_blocks_are_read(direct_folder):
    path = direct_folder / "spans"
    path.write_bytes(bytes(100_000))
    drop_pages([path])
    assert resident_bytes([path]) == 0
    spans = [[(str(path), 5000, 10)], [(str(path), 4095, 2)], [(str(path), 0, 1)]]
    for at_once, kept in ((8, 1), (2, 5), (1, 1), (1, 2)):
        found = read_spans(spans, 1, at_once=at_once, kept=kept)
        assert (found.samples, found.nbytes) == (3, 4 * 4096)
    assert resident_bytes([path]) == 0


def test_samples_of_the_ceiling_are_of_few_shards(packed):
    ds = open_pack(packed.root)
    assert sorted(some_samples(ds, 0, 100, 100).tolist()) == list(range(len(ds)))
    few = some_samples(ds, 0, 100, 1)
    numbers = ds.locate_many(np.arange(len(ds)))[0]
    assert len(set(numbers.tolist())) > 1 and len(set(numbers[few].tolist())) == 1
    assert len(few) == (numbers == numbers[few[0]]).sum()
    assert len(some_samples(ds, 0, 3, 100)) == 3


class Device:
    """A device whose copies are done when they were queued; it has the calls of CudaRuntime."""

    def __init__(self):
        self.sent = self.recorded = 0

    def on(self, index):
        return nullcontext()

    queuing_on = on

    def stream(self, index):
        return self

    def pinned(self, nbytes):
        return bytes(nbytes)

    def empty(self, nbytes, index):
        return bytearray(nbytes)

    def send(self, data, to):
        to[:] = data
        self.sent += 1

    def event(self):
        return self

    def record(self, stream):
        self.recorded = self.sent

    def query(self):
        return self.recorded == self.sent  # the event is after all copies


def test_the_ceiling_of_a_device_waits_for_all_copies(monkeypatch):
    device = Device()
    monkeypatch.setattr("sa1bpack.measuring.ceilings.CUDA", device)
    assert device_ceiling(0, 1000, 0.001) > 0
    assert device.sent >= 2 + 1 + 3 * 3 and device.query()


def test_memory_is_copied_by_all_threads():
    assert memory_ceiling(2, 0.01) > 0


def test_wrong_options_are_refused_before_anything_is_measured(packed):
    for given, message in (
        ({"batch_size": 0}, "batch_size is 0"), ({"masks": "none"}, "masks is 'none'"),
        ({"device": "tpu"}, "device is 'tpu'"), ({"max_masks": 0}, "max_masks is 0"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            tune(packed.root, **given)
        with pytest.raises(OptionError, match=message):
            bench(packed.root, **given)
    file = packed.root / "manifest.json"
    for call in (tune, bench):
        with pytest.raises(OptionError, match="a file: name the folder of a pack"):
            call(file)
    with pytest.raises(OptionError, match="minutes is 0"):
        tune(packed.root, minutes=0)
    with pytest.raises(OptionError, match="duration is -1"):
        bench(packed.root, duration=-1)
