"""The benchmark for GPUs: all its parts, small and on the CPU, and what it does when they fail."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, files, requires
from importlib.metadata import version as installed
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
WRITTEN = ["gpu.json", "gpu.jsonl", "gpu.md"]


@pytest.fixture(scope="module")
def gpu(module):
    return module("gpu")


@pytest.fixture
def run_parts(bare, tmp_path, sample_tar, complete_runs):
    """run_parts(*names): results of parts that must succeed, and way → its figures."""

    def run(*names: str) -> tuple[dict, dict]:
        chosen = [argument for name in names for argument in ("--part", name)]
        options = ["--rehearse", *chosen, "--folder", tmp_path, "--out", tmp_path / "out"]
        out = bare("benchmarks/gpu.py", sample_tar, *options)
        results = json.loads((tmp_path / "out/gpu.json").read_text())
        parts = results["parts"]
        assert {name for name, part in parts.items() if part["status"] == "ok"} == {*names}
        figures = [f for name in names for f in parts[name]["figures"]]
        errors = [figure for figure in figures if "error" in figure]
        assert {figure["way"] for figure in errors} <= {"nvJPEG by torchvision", "nvImageCodec"}
        assert "## Targets" in out
        assert (tmp_path / "out/gpu.md").read_text().rstrip() == out.rstrip()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == WRITTEN
        return results, {f["way"]: f for f in figures if f.get("speed", 0) > 0}

    return run


def test_the_parts_that_load_run_and_say_that_they_are_on_a_cpu(run_parts):
    results, ways = run_parts("machine", "kernels", "packs", "loading", "training", "compact")
    assert "there is no CUDA device" in results["parts"]["machine"]["figures"][0]["device"]
    assert {"pinned copy (ceiling)", "Loader, bits"} < ways.keys()
    assert sum("DataLoader" in way for way in ways) == 2
    assert sum("Loader and pipeline" in way for way in ways) == 2
    found = results["targets"]
    assert [target["asked"] for target in found] == [0.95, 0.1, 0.1, 0.1, 0.01, 0.99]
    assert sum("start_ms" in figure for figure in ways.values()) == 11
    assert results["parts"]["compact"]["figures"][-1] == {"kernels": "compiled kernels"}
    assert found[0]["found"] > 0 and found[0]["met"] in (True, False)
    assert all(target["found"] >= 0 for target in found[4:])


def test_the_parts_that_compute_run(run_parts):
    results, ways = run_parts("model", "steps", "tests", "compiled", "sanitizer", "sam2", "peers")
    assert len(ways) >= 36 and {"SAM 2's steps, 3 masks", "bits to bool"} < ways.keys()
    assert "not run" in results["parts"]["peers"]["figures"][0]["peers"]
    assert results["parts"]["tests"]["figures"][-1]["skipped"] > 0
    assert all(target["found"] > 0 for target in results["targets"][1:4])


def test_a_part_that_fails_or_takes_too_long_keeps_its_figures_and_the_others(
    gpu, tmp_path, monkeypatch
):
    program = (
        "import sys, time; name, path, given = sys.argv[1:]\n"
        "print('started', name, flush=True)\n"
        'file = open(path, "a")\n'
        'file.write(\'{"part": "%s", "way": "a", "round": 0, "speed": 2.0}\\n{"way": "b\' % name)\n'
        "file.close()\n"
        "time.sleep(60) if name == 'slow' else sys.exit(3)\n"
    )
    (tmp_path / "gpu_parts.py").write_text(program)
    monkeypatch.setattr(gpu, "__file__", str(tmp_path / "gpu.py"))
    for name, status in (("slow", "timed out"), ("broken", "failed")):
        limit = 1 if name == "slow" else 60
        lines = tmp_path / "gpu.jsonl"
        part = gpu.run_part(name, limit, ["{}"], tmp_path, dict(os.environ), lines)
        assert part["status"] == status and part["log"] == [f"started {name}"]
        assert gpu.summary(part["figures"]) == [{"way": "a", "speed": 2.0, "of the first": 1.0}]


def test_ratios_are_those_of_the_same_round_and_targets_say_what_is_missing(gpu):
    figures = [
        {"way": way, "round": number, "speed": speed}
        for way, speeds in (("copy", [10.0, 20, 40]), ("Loader, bits", [9.0, 19, 42]))
        for number, speed in enumerate(speeds)
    ]
    rows = gpu.summary([*figures, {"way": "broken", "error": "no"}, {"note": 1}])
    assert [row.get("speed") for row in rows] == [20, 19, None]
    assert rows[1]["of the first"] == 0.95
    parts = {name: {"figures": []} for name in gpu.PARTS} | {"loading": {"figures": figures}}
    found = gpu.compared(parts, 1024)
    assert [target["met"] for target in found] == [True] + 5 * [None]
    parts["model"]["figures"] = [{"way": "ViT-B", "round": 0, "speed": 5.0, "ms": 200.0}]
    parts["steps"]["figures"] = [
        {"way": "pipeline: crop, flip, masks from bits, 256", "round": 0, "ms": 10.0},
        {"way": "pipeline: crop, flip, masks from runs, 256", "round": 0, "ms": 40.0},
        {"way": "pipeline: crop, flip, colours, masks from runs, 1024", "round": 0, "ms": 16.0},
    ]
    parts["training"]["figures"] = [
        {"way": "one batch", "round": 0, "speed": 10.0},
        {"way": gpu.TRAINED, "round": 0, "speed": 9.75, "waited": 0.002},
    ]
    found = gpu.compared(parts, 1024)
    assert [(t["found"], t["met"]) for t in found] == [
        (0.95, True), (0.05, True), (0.2, False), (0.08, True), (0.002, True), (0.975, False)
    ]  # fmt: skip
    assert found[3]["target"] == "pipeline with colours and runs at 1024, of a ViT-B step"
    assert "| 0.200 | False |" in gpu.table(found)


def test_parts_fit_into_the_run_and_leave_time_for_those_that_the_targets_need(gpu):
    names = list(gpu.PARTS)
    assert gpu.limit_of("tests", names, 123) == 123
    assert gpu.limit_of("tests", ["tests", "sanitizer"], 300) == 300 - gpu.PARTS["sanitizer"]
    for seconds in (535, 500, 450):
        left = seconds
        for name in names[: names.index("tests")]:
            limit = gpu.limit_of(name, names, left)
            assert limit == gpu.PARTS[name] or (name not in gpu.NEEDED and limit < gpu.PARTS[name])
            left -= max(limit, 0)
        assert left >= gpu.PARTS["tests"]


def test_missing_packages_are_named_with_what_to_do(gpu, tmp_path, monkeypatch):
    assert gpu.unfit_packages() == {}
    monkeypatch.setitem(gpu.REQUIRED, "no_such_module", "zarr")
    assert gpu.unfit_packages() == {"zarr": "missing"}
    with pytest.raises(
        SystemExit, match=r"cannot be used here: zarr \(missing\)\..*gpu_wheels.py DIR zarr --p"
    ):
        gpu.provide(gpu.unfit_packages(), None, tmp_path)


def test_a_package_that_is_too_old_or_refuses_the_version_of_another_is_unfit(gpu, monkeypatch):
    versions = {"numpy": "2.99", "msgspec": "0.10"}
    monkeypatch.setattr(gpu, "version", lambda name: versions.get(name) or installed(name))
    found = gpu.unfit_packages()
    assert found.pop("msgspec") == "0.10, but >=0.19 is needed"
    assert re.fullmatch(r"it needs numpy<2\.\d+,.*, but 2\.99 is here", found.pop("numba"))
    assert "llvmlite" in found  # of which each numba needs another
    assert "numpy" not in found  # the machine's torch was built for it


def test_missing_packages_come_from_a_folder_of_small_wheels(gpu, module, tmp_path, monkeypatch):
    """Without what they require: another numpy would take the place of the machine's. If there are
    no wheels of the pinned versions, others do."""
    wheel = tmp_path / "probe-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: probe\nVersion: 1.0\nRequires-Dist: numpy<1\n"
    made_as = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("probe.py", "0" * 9999)
        for name, text in (("METADATA", about), ("WHEEL", made_as), ("RECORD", "")):
            file.writestr(f"probe-1.0.dist-info/{name}", text)
    module("gpu_wheels").recompress(wheel)
    assert [*tmp_path.iterdir()] == [wheel] and wheel.stat().st_size < 2000
    monkeypatch.setattr(gpu, "pinned_here", lambda packages, python: ["probe==2.0"])  # today's
    env = gpu.provide({"probe": "missing"}, tmp_path, tmp_path)
    assert env["PYTHONPATH"].startswith(f"{tmp_path / 'site'}:{ROOT}")
    assert (tmp_path / "site/probe.py").read_text() == "0" * 9999


def required(names, found=frozenset()) -> set[str]:
    """Packages and all that they require, of what is installed."""
    for name in {*map(canonicalize_name, names)} - found:
        with suppress(PackageNotFoundError):
            needed = map(Requirement, requires(name) or [])
            names = [n.name for n in needed if not n.marker or n.marker.evaluate({"extra": ""})]
            found = required(names, found | {name})
    return found


@pytest.fixture(scope="module")
def bare(gpu, tmp_path_factory):
    """bare(*arguments): what a Python prints that has the required packages alone, in a copy of
    what is committed: sa1bpack is not installed there."""
    folder = tmp_path_factory.mktemp("bare")
    names = required(gpu.REQUIRED.values())
    # pip installs nothing beside these; torch brings what it requires.
    assert names - required(["torch"]) <= {name.lower() for name in gpu.REQUIRED.values()}
    venv.create(folder / "env")
    [site] = folder.glob("env/lib/python*/site-packages")
    for name in names | {"triton", "pillow-simd"}:  # of torch for CUDA; PIL
        with suppress(PackageNotFoundError):
            for top in {file.parts[0] for file in files(name)} - {"..", "__pycache__"}:
                if not (site / top).exists():  # of several packages, such as CUDA's
                    (site / top).symlink_to(distribution(name).locate_file(top))
    for name in ("benchmarks", "sa1bpack", "scripts", "tests"):
        # With the compiled kernels and modules, which are bound to their code.
        shutil.copytree(ROOT / name, folder / name)
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    env = os.environ | {"PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}

    def run(*arguments) -> str:
        command = [folder / "env/bin/python", *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, env=env)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return done.stdout

    return run


def test_tests_for_a_device_are_collected_with_the_required_packages_alone(gpu, bare):
    out = bare("-m", "pytest", "-m", "cuda", "--collect-only", "-q", *gpu.CUDA_TESTS)
    assert [path for path in gpu.CUDA_TESTS if f"\n{path}" not in f"\n{out}"] == []


def test_a_part_runs_with_the_required_packages_alone(bare, sample_tar):
    """`make torture` runs all of them so."""
    bare("-c", "from importlib.util import find_spec; assert not find_spec('psutil')")
    out = bare("benchmarks/gpu.py", sample_tar, "--rehearse", "--part=packs")
    assert re.findall(r"^## (\w+): ok", out, re.M) == ["packs"]


def test_all_tests_that_need_a_device_are_run(gpu):
    chosen = [ROOT / path for path in gpu.CUDA_TESTS]
    assert all(path.exists() for path in chosen)
    marked = [path for path in ROOT.glob("tests/**/*.py") if "mark.cuda" in path.read_text()]
    marked.remove(Path(__file__))
    assert len(marked) > 3
    assert [p for p in marked if not any(p.is_relative_to(path) for path in chosen)] == []


def test_a_signal_ends_the_part_as_well(gpu, tmp_path):
    """A part has a session of its own, which a signal to the program does not reach."""
    part = (
        "import os, sys, time\n"
        "open(sys.argv[2], 'w').write('{\"process\": %d}' % os.getpid() + chr(10))\n"
        f"held = open({str(tmp_path / 'fifo')!r}, 'w')\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "gpu_parts.py").write_text(part)
    run = (
        "import gpu, sys\n"
        f"gpu.__file__ = {str(tmp_path / 'gpu.py')!r}\n"
        f"sys.argv[1:] = ['x.tar', '--part', 'model', '--folder', {str(tmp_path)!r}]\n"
        "gpu.main()\n"
    )
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen([sys.executable, "-c", run], cwd=ROOT / "benchmarks") as process:
        with (tmp_path / "fifo").open() as fifo:  # the part has begun
            [lines] = tmp_path.glob("sa1bpack-gpu-*/gpu.jsonl")
            number = json.loads(lines.read_text())["process"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
            assert fifo.read() == ""  # which ends when the part has
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
    assert not list(tmp_path.glob("sa1bpack-gpu-*"))


def test_the_host_knows_of_made_batches_what_a_loader_would_have_sent(module):
    steps = module("steps")
    device = torch.device("meta")
    batch = steps.made_batch(2, 3, device) | {"runs": steps.made_runs(2, 3)}
    there = steps.as_sent(batch, device)
    names = {"sizes", "image_ids", "mask_counts", "bboxes", "point_coords", "mask_offset"}
    assert steps.host.numbers_of(there).keys() == names | {"source_sizes"}
    assert steps.host.numbers_of(dict(there)) == {}


@pytest.fixture(scope="module")
def parts(module):
    return module("gpu_parts")


@pytest.fixture(scope="module")
def gpu_tests(module):
    return module("gpu_tests")


def test_batches_are_timed_from_the_first_on_and_for_long_enough(parts, monkeypatch):
    clock = [0.0]
    begun = []
    monkeypatch.setattr(parts.time, "perf_counter", lambda: clock[0])

    def batches(count):
        clock[0] += 7.0  # an epoch begins
        for number in range(count):
            clock[0] += 1.0 if number == 0 else 0.25
            begun.append(number)
            yield 8

    start, speed = parts.time_batches(batches(1000), 3.0)
    assert (start, speed, len(begun)) == (8.0, 32.0, 13)
    assert parts.time_batches(batches(3), 3.0) == (8.0, 32.0)  # all there are


def test_kernels_are_reported_when_one_has_failed(parts, monkeypatch):
    said = ["Triton kernels"]
    found = []
    monkeypatch.setattr(parts.transforms, "describe_kernels", lambda device: said[-1])
    known = parts.report_kernels(None, lambda **figure: found.append(figure))
    known = parts.report_kernels(known, lambda **figure: found.append(figure))
    said.append("Triton kernels, but torch operations for runs.draw_runs: OSError: disk full")
    parts.report_kernels(known, lambda **figure: found.append(figure))
    assert found == [{"kernels": text} for text in said]


def test_the_tests_run_on_after_a_module_that_cannot_be_imported_and_say_at_once_what_failed(
    gpu_tests, tmp_path, monkeypatch, capfd
):
    for name, text in (
        ("pytest.ini", "[pytest]\nmarkers = cuda\naddopts = -ra\n"),
        ("test_broken.py", "import no_such_module\n"),
        ("test_sound.py", "import pytest\npytestmark = pytest.mark.cuda\ndef test_one():\n"
         "    assert [] == 'never'\ndef test_two():\n    pass\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    found = []
    options = gpu_tests.Options(tests=["test_broken.py", "test_sound.py"])
    monkeypatch.setattr(gpu_tests, "TESTS_IN", tmp_path)
    with pytest.raises(SystemExit):
        gpu_tests.tests(options, lambda **figure: found.append(figure))
    assert {"failed": "test_sound.py::test_one"} in found
    assert {"not_collected": "test_broken.py"} in found
    assert {"way": "tests", "failed": 1, "passed": 1} in found
    out = capfd.readouterr().out
    assert out.index("assert [] == 'never'") < out.index("test_two PASSED")


@pytest.mark.filterwarnings("ignore::UserWarning")  # which say why each kernel does not take it
def test_attention_that_no_fused_kernel_takes_is_an_error(module):
    """The targets are shares of the step of a model: an unfused one would take several times as
    long, and everything would meet them."""
    training = module("gpu_training")
    q = torch.zeros(2, 3, 4, 16, 8)
    with training.sdpa_kernel(training.FUSED):
        with pytest.raises(RuntimeError, match="No available kernel"):
            training.scaled_dot_product_attention(q, q, q)
        found = training.ViTB(64, depth=3, width=96)(torch.zeros(2, 3, 64, 64))
    assert found.shape == (2, 4, 4, 96)
