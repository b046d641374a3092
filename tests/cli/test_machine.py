"""Commands about this machine: `info` and `bench`."""

import json
import re

import pytest


@pytest.mark.parametrize(
    "program, said",
    [
        ("echo 'Small, 16384 MiB'; echo 'Large, 81559 MiB'", "Small, 16384 MiB; Large, 81559 MiB"),
        ("echo 'no devices were found'; exit 6", "none: nvidia-smi is missing, or names no device"),
    ],
)
def test_devices_are_those_that_the_driver_names(command, tmp_path, monkeypatch, program, said):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.search(r"^CUDA +none: nvidia-smi is missing", command("info")[1], re.M)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert re.search(rf"^CUDA +{re.escape(said)}$", command("info")[1], re.M)


def test_info_without_a_pack_describes_the_machine(command):
    code, out, error = command("info")
    assert (code, error) == (0, "")
    labels = [line.split("  ")[0] for line in out.splitlines()]
    assert {"PIL set-up", "CUDA", "file system", "limits"} <= set(labels)
    assert "SIMD" in out


def test_bench_prints_ceilings_and_loaders_also_as_json(command, packed):
    options = ("--batch-size", 2, "--seconds", 0.001)
    code, text, error = command("bench", packed, *options)
    assert (code, error) == (0, "")
    assert "memory, copied by" in text and "\ndisk" in text and "DataLoader, 2 workers" in text
    code, text, error = command("bench", packed, *options, "--json")
    assert (code, error, text.count("\n")) == (0, "", 1)
    found = json.loads(text)
    assert next(iter(found)) == "pack"
    assert found["batch_size"] == 2 and found["ceilings"]["memory"] > 0
    assert found["lines"]["DataLoader, 0 workers"]["warm"]["samples_per_second"] > 0
