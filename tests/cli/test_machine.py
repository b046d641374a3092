"""What `sa1bpack info` says about the machine, against the system's own tools."""

import os
import resource
import shutil
import subprocess

import pytest

from sa1bpack.cli.machine import cuda_devices, describe_machine, direct_state, file_system

# The calls of the CUDA Driver API that are made, of a driver with two devices.
DRIVER = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return ERROR; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int number) { *device = number + 40; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 40 ? "Small" : "Large", length);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)1000000000 * (device == 40 ? 16 : 80);
    return 0;
}
"""


@pytest.fixture
def driver(tmp_path):
    """Compiles a driver whose cuInit returns an error number."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")

    def compiled(error: int) -> str:
        source, library = tmp_path / "driver.c", tmp_path / f"driver{error}.so"
        source.write_text(DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", f"-DERROR={error}", "-o", library, source],
                       check=True)  # fmt: skip
        return str(library)

    return compiled


def test_devices_are_those_of_the_driver(driver):
    assert cuda_devices(driver(0)) == "Small (16 GB), Large (80 GB)"
    assert cuda_devices(driver(100)) == "none: the driver reports error 100"
    assert cuda_devices("libnothing.so.1") == "none: no NVIDIA driver"


def test_the_file_system_is_the_one_that_df_names(tmp_path):
    done = subprocess.run(["df", "--output=fstype", tmp_path], capture_output=True, text=True)
    assert file_system(tmp_path) == done.stdout.split()[-1]


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


@pytest.mark.parametrize(
    ("soft", "text"), [(512, "512 open files"), (resource.RLIM_INFINITY, "open files: no limit")]
)
def test_limits_are_those_of_this_process(soft, text, tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
    found = describe_machine(tmp_path)
    assert found["limits"].startswith(text + ", ") and "memory maps" in found["limits"]
    assert found["memory"].endswith(" for this process")


def test_info_without_a_pack_describes_the_machine(command):
    code, out, error = command("info")
    assert (code, error) == (0, "")
    labels = [line.split("  ")[0] for line in out.splitlines()]
    assert {"PIL set-up", "CUDA", "file system", "O_DIRECT", "limits"} <= set(labels)
    assert "SIMD" in out
