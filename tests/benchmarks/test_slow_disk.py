"""The slow disk of the benchmarks: it mirrors exactly, delays every read, and counts them."""

import mmap
import os
import time

import numpy as np
import pytest

DELAY_MS = 20


@pytest.fixture(scope="module")
def slow_disk(module):
    return module("slow_disk")


@pytest.fixture
def disk(slow_disk, tmp_path):
    """A mirror of a file of 3 MB and 100 bytes, a small one in a folder, and an empty one."""
    content = np.random.default_rng(0).bytes(3_000_100)
    (tmp_path / "large").write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/small").write_bytes(b"small")
    (tmp_path / "empty").touch()
    try:
        mirror = slow_disk.SlowDisk(tmp_path)
    except slow_disk.Unavailable as reason:
        pytest.skip(f"no slow disk here: {reason}")
    with mirror:
        mirror.content = content
        yield mirror


def test_the_mirror_has_the_same_files_and_bytes(disk):
    disk.start(0)
    found = {path.relative_to(disk.path): path for path in disk.path.rglob("*")}
    assert set(map(str, found)) == {"large", "folder", "folder/small", "empty"}
    assert (disk.path / "large").read_bytes() == disk.content
    assert (disk.path / "folder/small").read_bytes() == b"small"
    assert (disk.path / "empty").read_bytes() == b""
    log = disk.stop()
    assert set(disk.names(log)) == {"large", "folder/small"}
    with pytest.raises(FileNotFoundError):
        (disk.path / "absent").read_bytes()
    with pytest.raises(OSError, match="Read-only"):
        (disk.path / "large").write_bytes(b"")


def test_requests_of_one_direct_read_wait_together(slow_disk, disk):
    """3 MB are three requests or more, but one round trip."""
    buffer = mmap.mmap(-1, 3 << 20)
    disk.start(DELAY_MS)
    file = os.open(disk.path / "large", os.O_RDONLY | os.O_DIRECT)
    assert os.preadv(file, [buffer], 0) == len(disk.content)
    os.close(file)
    log = disk.stop()
    assert buffer[: len(disk.content)] == disk.content
    assert slow_disk.most_in_flight(log) == len(log) >= 3
    assert len(slow_disk.longest_chain(log)) == 1
    waited = log[:, slow_disk.ANSWERED] - log[:, slow_disk.CAME]
    assert waited.min() >= DELAY_MS * 1_000_000


def test_page_faults_of_a_map_wait_too_and_again_after_pages_are_dropped(disk):
    with (
        (disk.path / "large").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        for _ in range(2):
            disk.start(DELAY_MS)
            begin = time.monotonic()
            assert mapped[1_500_000] == disk.content[1_500_000]
            assert time.monotonic() - begin >= DELAY_MS / 1e3
            assert len(disk.stop()) >= 1


@pytest.fixture(scope="module")
def figures(figures_of, tmp_path_factory, sample_tar, complete_runs) -> dict:
    """What the benchmark writes about a few samples, with and without a delay."""
    folder = tmp_path_factory.mktemp("slow")
    options = ["--samples", 6, "--rounds", 1, "--batch", 2, "--delays", 0, DELAY_MS]
    return figures_of("slow", folder, sample_tar, "--folder", folder, *options)[0]


def test_the_benchmark_reports_every_line_with_every_delay(figures):
    lines = {(line["line"], line["delay_ms"]): line for line in figures["lines"]}
    assert len(lines) == 18  # bytes by three numbers of threads in two ways, and three Loaders
    for (_, delay_ms), line in lines.items():
        assert line["reads"][0] >= 2 and line["speed"][0] > 0
        assert line["took_ms"][0] >= delay_ms
    direct = lines["O_DIRECT AIO, 1 threads", DELAY_MS]
    assert 4 <= direct["reads"][0] <= 8  # image and bits, in requests of up to 1 MB
    assert all(len(one["chain"]) == len(one["reads"]) for one in figures["single"])


def test_two_round_trips_suffice_for_a_sample_past_the_page_cache_if_its_index_is_in_memory(
    figures,
):
    """The first has its size, the second everything else. A read that depends on another one comes
    after its answer, so no chain of dependent reads is longer than the longest chain."""
    [one] = [
        one for one in figures["single"] if one["line"].endswith("io=direct") and one["warm_index"]
    ]
    assert min(len(chain) for chain in one["chain"]) <= 2  # a busy machine makes some longer
