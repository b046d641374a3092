"""`sa1bpack bench` and `sa1bpack tune`: what they print, and the files that they write."""

import json
import time
from functools import partial

import pytest

import sa1bpack
from sa1bpack.measuring.bench import Ceilings, bench_with
from sa1bpack.measuring.speeds import Setting, Speed
from sa1bpack.measuring.tune import tune_with


@pytest.fixture
def made_up(monkeypatch):
    """Ceilings and speeds that nothing has measured, so that the commands take no time."""
    ceilings = Ceilings(20e9, None, None, "there is no disk"), 4e6
    for name in ("bench", "tune"):
        monkeypatch.setattr(f"sa1bpack.measuring.{name}.measure_ceilings", lambda *_: ceilings)

    def measured(task, setting: Setting, seconds, seed=0) -> Speed:
        return Speed(100.0 * len(setting.options), 0.25, 1 << 28)

    monkeypatch.setattr("sa1bpack.measuring.bench.measure", measured)
    bench, tune = partial(bench_with, lambda *_: 0.5), partial(tune_with, measured, time.monotonic)
    monkeypatch.setattr("sa1bpack.measuring.bench.bench", bench)
    monkeypatch.setattr("sa1bpack.measuring.tune.tune", tune)


def test_bench_prints_ceilings_and_loaders_and_writes_them_as_json(
    command, packed, made_up, tmp_path
):
    out = tmp_path / "bench.json"
    code, text, error = command("bench", packed, "--batch-size", 2, "-o", out)
    assert (code, error) == (0, "")
    assert "memory, copied by" in text and "disk: not measured: there is no disk" in text
    assert "DataLoader, 2 workers" in text and "0.50" in text
    found = json.loads(out.read_text())
    assert found["batch_size"] == 2 and found["ceilings"]["disk"] is None
    assert found["lines"]["DataLoader, 0 workers"]["warm"]["samples_per_second"] == 100
    code, text, error = command("bench", packed, "--batch-size", 2, "--json")
    assert (code, error, text.count("\n")) == (0, "", 1)
    assert json.loads(text) == found and next(iter(found)) == "pack"


def test_tune_prints_the_recommendation_and_writes_file_and_plot(
    command, packed, made_up, tmp_path
):
    out, plot = tmp_path / "tuned.json", tmp_path / "tuned.png"
    code, text, error = command(
        "tune", packed, "--batch-size", 2, "--masks", "flat", "-o", out, "--plot", plot
    )
    assert (code, error) == (0, "")
    recommended = text.splitlines()[-2]
    assert recommended.startswith("sa1bpack.Loader(ds, 2, threads=")
    ds = sa1bpack.open(packed)
    loader = eval(recommended, {"sa1bpack": sa1bpack, "ds": ds})  # it is a line of Python
    with loader, sa1bpack.Loader(ds, 2, masks="flat", tuned=out) as same:
        assert (same.plan().threads, same.plan().batches) == (
            loader.plan().threads, loader.plan().batches
        )  # fmt: skip
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_measured_is_refused_before_it_takes_time(command, packed, tmp_path):
    for name, flag in (("bench", "--seconds"), ("tune", "--minutes")):
        code, out, error = command(name, packed, flag, 0)
        unit = flag.removeprefix("--")
        assert (code, out) == (2, "") and f" is 0.0: choose a number of {unit} above 0" in error
        assert command(name, tmp_path / "absent")[0] == 2
        code, _, error = command(name, packed, "--device", "tpu")
        assert code == 2 and "--device is 'tpu'" in error
    code, _, error = command("tune", packed, "--plot", packed / "plot.png")
    assert code == 2 and f"--plot is '{packed}/plot.png', in the pack {packed}" in error
    for name in ("bench", "tune"):
        code, _, error = command(name, packed, "-o", tmp_path / "absent" / "a.json")
        assert code == 2 and "does not exist" in error
