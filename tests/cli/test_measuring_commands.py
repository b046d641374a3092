"""`sa1bpack bench`: what it prints, and the file that it writes."""

import json

import pytest

from sa1bpack.measuring.bench import Ceilings
from sa1bpack.measuring.speeds import Setting, Speed


@pytest.fixture
def made_up(monkeypatch):
    """Ceilings and speeds that nothing has measured, so that the commands take no time."""
    ceilings = Ceilings(20e9, None, None, "there is no disk"), 4e6
    monkeypatch.setattr("sa1bpack.measuring.bench.measure_ceilings", lambda *_: ceilings)

    def measured(task, setting: Setting, seconds, seed=0) -> Speed:
        return Speed(100.0 * len(setting.options), 1 << 28)

    monkeypatch.setattr("sa1bpack.measuring.bench.measure", measured)
    monkeypatch.setattr("sa1bpack.measuring.bench.in_new_process", lambda *_: 0.5)


def test_bench_prints_ceilings_and_loaders_also_as_json(command, packed, made_up):
    code, text, error = command("bench", packed, "--batch-size", 2)
    assert (code, error) == (0, "")
    assert "memory, copied by" in text and "disk: not measured: there is no disk" in text
    assert "DataLoader, 2 workers" in text and "0.50" in text
    code, text, error = command("bench", packed, "--batch-size", 2, "--json")
    assert (code, error, text.count("\n")) == (0, "", 1)
    found = json.loads(text)
    assert next(iter(found)) == "pack"
    assert found["batch_size"] == 2 and found["ceilings"]["disk"] is None
    assert found["lines"]["DataLoader, 0 workers"]["warm"]["samples_per_second"] == 100


def test_what_cannot_be_measured_is_refused_before_it_takes_time(command, packed, tmp_path):
    code, out, error = command("bench", packed, "--seconds", 0)
    assert (code, out) == (2, "") and " is 0.0: choose a number of seconds above 0" in error
    assert command("bench", tmp_path / "absent")[0] == 2
    code, _, error = command("bench", packed, "--device", "tpu")
    assert code == 2 and "--device is 'tpu'" in error
