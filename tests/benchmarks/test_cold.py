"""The benchmark of reading from the disk runs, and reports every line."""

import sys

import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="dropping pages is Linux's"
)


def test_every_line_of_a_pack_is_reported(figures_of, tmp_path, sample_tar, complete_runs):
    options = ["--layout", "native", "--samples", "6", "--rounds", "1", "--batch", "4"]
    found, out = figures_of("cold", tmp_path, sample_tar, "--folder", tmp_path / "packs", *options)
    lines = [line["line"] for line in found["lines"]]
    assert len(lines) == len(set(lines)) == 12  # eight of bytes, and four Loaders
    for line in found["lines"]:
        assert line["speed"][0] > 0
        assert not line["line"].startswith("O_DIRECT") or line["cached_mb"][0] < 1
    assert len(found["first_batch_seconds"]) == 2
    assert out.count("(ceiling)") == 1
