"""Commands about this machine: `info` and `bench`."""

import json

import pytest

from sa1bpack.cli.machine import cuda_devices
from sa1bpack.measuring.bench import Ceilings
from sa1bpack.measuring.speeds import Setting, Speed


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo 'Small, 16384 MiB'; echo 'Large, 81559 MiB'", "Small, 16384 MiB; Large, 81559 MiB"),
        ("echo 'no devices were found'; exit 6", "none: nvidia-smi is missing, or names no device"),
    ],
)
def test_devices_are_those_that_the_driver_names(tmp_path, monkeypatch, program, said):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_devices().startswith("none: nvidia-smi is missing")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert cuda_devices() == said


def test_info_without_a_pack_describes_the_machine(command):
    code, out, error = command("info")
    assert (code, error) == (0, "")
    labels = [line.split("  ")[0] for line in out.splitlines()]
    assert {"PIL set-up", "CUDA", "file system", "limits"} <= set(labels)
    assert "SIMD" in out


@pytest.fixture
def made_up(monkeypatch):
    """Ceilings and speeds that nothing has measured, so that the commands take no time."""
    ceilings = Ceilings(20e9, None, None, "there is no disk"), 4e6
    monkeypatch.setattr("sa1bpack.measuring.bench.measure_ceilings", lambda *_: ceilings)

    def measured(task, setting: Setting, seconds, seed=0) -> Speed:
        return Speed(100.0 * len(setting.options), 1 << 28)

    monkeypatch.setattr("sa1bpack.measuring.bench.measure", measured)


def test_bench_prints_ceilings_and_loaders_also_as_json(command, packed, made_up):
    code, text, error = command("bench", packed, "--batch-size", 2)
    assert (code, error) == (0, "")
    assert "memory, copied by" in text and "disk: not measured: there is no disk" in text
    assert "DataLoader, 2 workers" in text
    code, text, error = command("bench", packed, "--batch-size", 2, "--json")
    assert (code, error, text.count("\n")) == (0, "", 1)
    found = json.loads(text)
    assert next(iter(found)) == "pack"
    assert found["batch_size"] == 2 and found["ceilings"]["disk"] is None
    assert found["lines"]["DataLoader, 0 workers"]["warm"]["samples_per_second"] == 100
