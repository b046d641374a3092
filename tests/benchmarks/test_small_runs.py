"""Every benchmark runs at its smallest, so what it names still exists."""

import sys
from pathlib import Path

import pytest
from commands import python

ROOT = Path(__file__).parents[2]
FEW = "--rounds 1 --images 8 --masks 2 --batch 2"
RUNS = {
    "ahead": "TAR --images 8 --rounds 1 --size 64",
    "annotations": "TAR --repeat 1", "augmenting": "--side 32 --images 2 --rounds 1",
    "bucket": "--samples 40 --latency 1 --link 10 --rounds 1",
    "bucket_peers": "--samples 40 --latency 1 --link 10 --rounds 1 --peers PYTHON",
    "buckets": "--samples 3000", "counting": f"TAR {FEW}",
    "coco": "TAR --images 4 --times 2 --rounds 1 --form jpeg png tar",
    "cloud": "--megabytes 8 --repeat 1", "decode": "TAR --photos 1 --size 64 --repeats 1",
    "features": f"TAR {FEW}", "fields": "TAR --small 32 --long 4 --rounds 1",
    "inflate": "TAR --repeat 1 --megabytes 2", "load": f"TAR {FEW}",
    "masks": "TAR --images 1 --repeats 1 --mask-size 32 --sizes 32",
    "pack": "TAR --images 2 --masks 2 --repeat 1",
    "per_batch": "TAR --epochs 1 --images 8 --small 32 --long 4",
    "pipeline": "TAR --photos 2 --masks 2 --batch 2 --rounds 1",
    "pixels": "TAR --size 64 --mask-size 32 --photos 1 --repeats 1",
    "remote": "--samples 4 --link 4000 --latency 0 --repeat 1",
    "runs_domain": "TAR --photos 1 --repeats 1",
    "seek": "TAR --images 4 --reads 2 --level 1", "synthetic": "TAR OUT --images 2 --masks 2",
    "simulate": "--batches 20 --measure TAR",
    "small_files": "TAR --images 8 --batch 4 --rounds 1",
    "shuffle": "--samples 4096 --shards 4 --batch 32 --repeats 1",
}  # fmt: skip
ELSEWHERE = {
    "cold",
    "gpu",
    "gpu_parts",
    "gpu_wheels",
    "object_server",
    "real_clients",
    "scale",
    "slow",
    "usual",
}


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_runs(name, sample_tar, tmp_path, complete_runs):
    files = {"TAR": sample_tar, "OUT": tmp_path / "out.tar", "PYTHON": Path(sys.executable)}
    options = [files.get(word, word) for word in RUNS[name].split()]
    out = python(ROOT / f"benchmarks/{name}.py", *options, quiet=False, cwd=ROOT)
    assert out or files["OUT"].exists()


def test_every_benchmark_has_a_run():
    programs = (ROOT / "benchmarks").glob("*.py")
    found = {path.stem for path in programs if '__name__ == "__main__"' in path.read_text()}
    assert found == RUNS.keys() | ELSEWHERE
