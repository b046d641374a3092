"""What `sa1bpack info` says about the machine, against the system's own tools."""

import os

import pytest

from sa1bpack.cli.machine import cuda_devices, direct_state


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


def test_a_folder_is_read_past_the_page_cache_or_it_says_why_not(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(4096))
    try:
        os.close(os.open(tmp_path / "file", os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        assert error.strerror in direct_state(tmp_path)
    else:
        assert direct_state(tmp_path) == "works there"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert direct_state(tmp_path / "none").startswith("unknown: no file can be written there")
    obstacle = "sa1bpack.cli.machine.direct_obstacle"
    monkeypatch.setattr(obstacle, lambda path: "it is opened with nothing")
    assert direct_state(tmp_path) == "no: it is opened with nothing"


def test_info_without_a_pack_describes_the_machine(command):
    code, out, error = command("info")
    assert (code, error) == (0, "")
    labels = [line.split("  ")[0] for line in out.splitlines()]
    assert {"PIL set-up", "CUDA", "file system", "O_DIRECT", "limits"} <= set(labels)
    assert "SIMD" in out
