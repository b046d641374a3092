"""The speed at which batches reach a GPU and become training input, and the tests that need one.

    python benchmarks/gpu.py [TAR...] --out DIR [--budget 540] [--wheels DIR] [--peers PYTHON]
    python benchmarks/gpu.py --rehearse

One call, under ten minutes, whatever fails in between. Every part is a process of its own with its
own limit of time (PARTS); what it has measured until it ends, fails or is stopped is kept. Figures
come first, then the tests, in all the time that is left; what matters less has what they leave.

    machine     what is measured on: device, driver, versions
    kernels     compiles the kernels for CPU and GPU, so that no other part's time has that in it
    packs       two packs of the photographs of the tars: the default layout, and planes with runs
    memory      how buffers are pinned, and the rates of copies from them and from other memory
    loading     the pinned copy (the ceiling), Loader with bits, with masks unpacked, DataLoader
    sweep       Loader against the pinned copy: batches of 8, 32, 128 with 2, 4, 12 threads, beside
                what simulate.py predicts
    model       forward and backward pass of a ViT-B at the size of the images, in bfloat16, with
                fused attention
    training    that, with a pipeline: on one batch that stays, and on batches of a Loader
    steps       each step of a pipeline, complete pipelines, prompts, clicks, crops, pictures of
                masks: time of the device and of the host, and the memory that they take
    rivals      JPEGs decoded on the device, by torchvision's nvJPEG and nvImageCodec, against packs
    compact     loading for planes: as they are stored, converted, with runs; and into a pipeline
    quantized   features in half the bytes
    large       results of more than 2**31 elements
    tests       pytest -m cuda
    compiled    the model, compiled by torch.compile
    sanitizer   tests of kernels under compute-sanitizer
    sam2        SAM 2's own steps for SA-1B, on a core of the CPU
    peers       FFCV, in the environment of `make peers`, or the Python that `--peers` names

Page cache warm, methods in turn in each round; figures are medians, a ratio to the first way is the
median of the ratios of the same round. Batches are counted from the first one on, for half a second
or more; `start_ms` is what passes until it is there, `peak_mb` the most memory of the device. Which
kernels ran is reported last: one that fails is replaced by slower operations.

The results are printed as tables, which are in DIR/gpu.md as well; DIR/gpu.json has all figures and
is written after every part, DIR/gpu.jsonl gets each figure at once, and DIR/gpu.log the logs of
parts that did not end well. At the end, the results are compared with the targets. Without a CUDA
device the same parts run on the CPU, and say so; `--rehearse` runs each of them there, as small as
it can be. No network is needed: packages that are missing, too old, or not made for what else is
here, are named, or installed for the time of the run from a folder of wheels (gpu_wheels.py makes
one), beside those that are there; so is nvImageCodec, if its wheel is among them.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Part → the most seconds that it may take, of the tests the seconds that are kept for them. In all
# that may be more than a run has, see limit_of.
PARTS = {
    "machine": 40, "kernels": 80, "packs": 45, "memory": 30, "loading": 40, "sweep": 60,
    "model": 30, "training": 40, "steps": 70, "rivals": 60, "compact": 30, "quantized": 25,
    "large": 30, "tests": 110, "compiled": 50, "sanitizer": 60, "sam2": 25, "peers": 30,
}  # fmt: skip
# Parts whose figures the targets are about, and the tests: the others leave time for these.
NEEDED = ("loading", "model", "training", "steps", "tests")
# With --rehearse: as small as a part can be.
REHEARSAL = {"rounds": 1, "images": 4, "masks": 2, "batch": 2, "side": 64}
SAMPLE = ROOT / "tests/samples/sa_000000.tar"
# Wheels that the run takes if they are there: nobody needs them.
OPTIONAL_WHEELS = ("nvidia_nvimgcodec_*.whl", "nvidia_nvjpeg-*.whl")
SPARE = 5  # seconds to stop a part and to write the results
# Module → package: what is imported, and what these require. pip is to install no more: another
# numpy than the one that torch was built for, say.
REQUIRED = {
    "google_crc32c": "google-crc32c", "ml_dtypes": "ml-dtypes", "msgspec": "msgspec",
    "numba": "numba", "numpy": "numpy",
    "PIL": "pillow", "pycocotools": "pycocotools", "pytest": "pytest", "hypothesis": "hypothesis",
    "simplejpeg": "simplejpeg", "torch": "torch", "tqdm": "tqdm", "xxhash": "xxhash",
    "zarr": "zarr", "zlib_ng": "zlib-ng",
    "donfig": "donfig", "iniconfig": "iniconfig", "llvmlite": "llvmlite", "numcodecs": "numcodecs",
    "packaging": "packaging", "pluggy": "pluggy", "pygments": "pygments",
    "sortedcontainers": "sortedcontainers", "typing_extensions": "typing-extensions",
    "yaml": "pyyaml",
}  # fmt: skip
OLDEST_PIL = "11.3"  # of either package, see sa1bpack/pixels/decode.py
INSTALLING = 60  # seconds at most
NO_EXTRA = {"extra": ""}  # of a marker in a requirement
# Where tests are marked `cuda`.
CUDA_TESTS = (
    "tests/loading/test_device_cuda.py", "tests/test_train_promptable.py",
    "tests/dataset/test_specs.py", "tests/transforms/triton", "tests/transforms",
)  # fmt: skip
PEERS = ROOT / ".venv-peers/bin/python"  # of `make peers`
TRAINED = "ViT-B and pipeline, batches of a Loader"
TARGETS = (  # name, part, way, figure ("ms" as a share of a ViT-B step), target, is more better?
    ("Loader with bits, of the pinned copy", "loading", "Loader, bits", "of the first", 0.95, True),
    ("pipeline with bits at {grid}, of a ViT-B step", "steps",
     "pipeline: crop, flip, masks from bits, {grid}", "ms", 0.1, False),
    ("pipeline with runs at {grid}, of a ViT-B step", "steps",
     "pipeline: crop, flip, masks from runs, {grid}", "ms", 0.1, False),
    ("pipeline with colours and runs at {side}, of a ViT-B step", "steps",
     "pipeline: crop, flip, colours, masks from runs, {side}", "ms", 0.1, False),
    ("share of training that waits for batches", "training", TRAINED, "waited", 0.01, False),
    ("steps per second of training, of those on one batch", "training", TRAINED,
     "of the first", 0.99, True),
)  # fmt: skip


def versions() -> dict[str, str]:
    """Packages that are here → their versions."""
    found = {}
    for package in sorted({*REQUIRED.values(), "pillow-simd", "triton", "pip"}):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def unfit_packages() -> dict[str, str]:
    """Packages that the run cannot use, as pip names them → why.

    What sa1bpack requires must be here, and what each package requires of the others: an older
    numba is there and refuses the machine's numpy, say. Then it is the one to replace.
    """
    unfit = {package: "missing" for module, package in REQUIRED.items() if not find_spec(module)}
    if "packaging" in unfit:
        return unfit
    from packaging.requirements import Requirement  # may have been missing
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    def found(line: str) -> tuple[str, str, str] | None:
        """Package, version and specifier of a requirement that is not met."""
        needed = Requirement(line)
        name = canonicalize_name(needed.name)
        if name not in others or not (needed.marker is None or needed.marker.evaluate(NO_EXTRA)):
            return None
        fits = needed.specifier.contains(version(name), prereleases=True)
        return None if fits else (name, version(name), str(needed.specifier))

    # PIL is of one of two packages; torch brings what it requires.
    others = set(REQUIRED.values()) - {"pillow"} - unfit.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"] + project["optional-dependencies"]["test"]:
        if wrong := found(line):
            unfit[wrong[0]] = f"{wrong[1]}, but {wrong[2]} is needed"
    for package in sorted(others - unfit.keys() - {"torch"}):
        for wrong in filter(None, map(found, requires(package) or [])):
            unfit[package] = f"it needs {wrong[0]}{wrong[2]}, but {wrong[1]} is here"
    if "pillow" not in unfit:
        import PIL

        if Version(PIL.__version__) < Version(OLDEST_PIL):
            unfit["pillow"] = f"{PIL.__version__}, but {OLDEST_PIL} is needed"
    if "numba" in unfit:  # each release is for one of llvmlite
        unfit.setdefault("llvmlite", "another numba needs another one")
    return unfit


def provide(unfit: dict[str, str], wheels: Path | None, folder: Path) -> dict[str, str]:
    """Install packages for this run, and nothing that they require. Returns the environment of
    the parts.

    Ends the program, naming them, if they are not in the folder of wheels.
    """
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-compile", "--find-links", str(wheels), "--target", str(folder / "site")]
    optional = []
    for pattern in OPTIONAL_WHEELS:
        optional += sorted(map(str, (wheels or folder).glob(pattern)))
    if optional and _succeeds(pip + optional):
        paths.insert(0, str(folder / "site"))
    if unfit:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        tried = (pinned_here([*unfit], python), [*unfit])  # the second: wheels of an earlier day
        if wheels is None or not any(_succeeds([*pip, "--upgrade", *names]) for names in tried):
            raise SystemExit(
                f"cannot be used here: {', '.join(f'{k} ({why})' for k, why in unfit.items())}. "
                "Install what is missing, or bring wheels: where there is a network, `python "
                f"benchmarks/gpu_wheels.py DIR {' '.join(unfit)} --python {python}`, then pass "
                "--wheels DIR"
            )
        if str(folder / "site") not in paths:
            paths.insert(0, str(folder / "site"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def pinned_here(packages: list[str], python: str) -> list[str]:
    """The packages as constraints.txt pins them, if what reads it is here."""
    try:
        from gpu_wheels import pinned
    except ModuleNotFoundError:  # packaging is missing
        return packages
    return pinned(packages, python)


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, check=False, timeout=INSTALLING).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"not installed within {INSTALLING} s", file=sys.stderr)
        return False


def run_part(
    name: str, seconds: float, arguments: list[str], folder: Path, env: dict, lines: Path
) -> dict:
    """Run a part in a process group of its own, and stop it when its time is over.

    The part appends its figures to the file `lines`. Returns its status ("ok", "failed", "timed
    out"), these figures, and if it is not ok the last lines of its log, which remains in the folder
    as `name`.log.
    """
    log = folder / f"{name}.log"
    command = [sys.executable, str(Path(__file__).with_name("gpu_parts.py")), name, str(lines)]
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command + arguments, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            status = "failed" if process.wait(max(seconds, 0.1)) else "ok"
        except subprocess.TimeoutExpired:
            status = "timed out"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started ends with it
            process.wait()
    part = {
        "status": status,
        "seconds": round(time.monotonic() - start, 1),
        "figures": figures_of(name, lines),
    }
    if status != "ok":
        part["log"] = log.read_text(errors="replace").strip().splitlines()[-20:]
    return part


def figures_of(name: str, lines: Path) -> list[dict]:
    """The figures of a part in a file; a line that was broken off is none, and ends the line."""
    if not lines.exists():
        return []
    text = lines.read_text()
    if not text.endswith("\n"):
        with lines.open("a") as file:
            file.write("\n")
    figures = []
    for line in text.splitlines():
        with suppress(ValueError):
            figure = json.loads(line)
            if figure.pop("part", name) == name:
                figures.append(figure)
    return figures


def summary(figures: list[dict]) -> list[dict]:
    """One row per way: the medians of its figures, and of the ratios of its speed to that of the
    first way with the same unit in the same round.

    A figure is {"way", "round", "speed", ...}: a higher speed is better, whatever its unit.
    """
    rows: dict[str, dict] = {}
    found: dict[str, list[dict]] = {}
    for figure in figures:
        if "way" in figure:
            row = rows.setdefault(figure["way"], {"way": figure["way"]})
            row |= {key: figure[key] for key in figure if key not in ("way", "round")}
            found.setdefault(figure["way"], []).extend([figure] if "speed" in figure else [])
    speeds = {way: {each["round"]: each["speed"] for each in some} for way, some in found.items()}
    ceilings: dict[str, dict] = {}  # unit → speeds of the first way
    for way, some in found.items():
        for key in {key for each in some for key, value in each.items() if type(value) is float}:
            rows[way][key] = statistics.median(each[key] for each in some if key in each)
        if not some:
            continue
        ceiling = ceilings.setdefault(some[0].get("unit", ""), speeds[way])
        shared = [
            speeds[way][number] / ceiling[number] for number in speeds[way] if number in ceiling
        ]
        if shared:
            rows[way]["of the first"] = statistics.median(shared)
    return list(rows.values())


def compared(parts: dict[str, dict], side: int) -> list[dict]:
    """The targets with what was found: a share of the first way of the part, of the time of the
    model for a batch of the same size, or of the epoch. side: pixels of the images."""
    step = next((row["ms"] for row in summary(parts["model"]["figures"]) if "ms" in row), None)
    rows = []
    for name, part, way, figure, target, more in TARGETS:
        name, way = (text.format(side=side, grid=side // 4) for text in (name, way))
        row = next((row for row in summary(parts[part]["figures"]) if row["way"] == way), {})
        found = row.get(figure)
        if figure == "ms" and found is not None:
            found = found / step if step else None
        met = None if found is None else (found >= target if more else found <= target)
        rows.append({"target": name, "asked": target, "found": found, "met": met})
    return rows


def table(rows: list[dict]) -> str:
    """Rows with the same kinds of figures as a Markdown table; a missing figure is empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = (_shown(row.get(column, "")) for column in columns)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"
    return "not measured" if value is None else str(value).replace("|", "/")


def write(results: dict, out: Path | None) -> None:
    """Write the results into a folder, complete or not at all."""
    if out is not None:
        unfinished = out / "gpu.json.part"
        unfinished.write_text(json.dumps(results, indent=1))
        unfinished.replace(out / "gpu.json")


def limit_of(name: str, names: list[str], left: float) -> float:
    """Seconds for a part: its own limit, or less if little time is left for what is needed later.

    The tests may have all that is left, but what later parts may take if that leaves enough.
    """
    later = names[names.index(name) + 1 :]
    if name == "tests":
        rest = left - sum(PARTS[other] for other in later)
        return rest if rest >= PARTS[name] else left
    return min(PARTS[name], left - sum(PARTS[other] for other in later if other in NEEDED))


def main() -> None:
    """Run all parts; exits with 1 if one did not succeed. A signal ends the part as well."""
    options = parsed()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    end = time.monotonic() + options.budget - SPARE
    names = [name for name in PARTS if not options.part or name in options.part]
    parts: dict[str, dict] = {name: {"status": "not run", "figures": []} for name in PARTS}
    results = {"command": sys.argv[1:], "parts": parts, "targets": []}
    folder = Path(tempfile.mkdtemp(prefix="sa1bpack-gpu-", dir=options.folder))
    lines = folder / "gpu.jsonl"
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        lines = options.out / "gpu.jsonl"
        for file in ("gpu.jsonl", "gpu.md", "gpu.log"):
            (options.out / file).unlink(missing_ok=True)
    write(results, options.out)
    try:
        results["packages"] = versions()
        say(", ".join(f"{package} {text}" for package, text in versions().items()), options.out)
        unfit = unfit_packages()
        for package, why in unfit.items():
            say(f"to be replaced: {package} ({why})", options.out)
        env = provide(unfit, options.wheels, folder)
        if options.rehearse:
            env |= {"CUDA_VISIBLE_DEVICES": ""}
        given = json.dumps(options_of_parts(options, folder))
        for name in names:
            seconds = limit_of(name, names, end - time.monotonic())
            if seconds > 0:
                parts[name] = run_part(name, seconds, [given], folder, env, lines)
            results["targets"] = compared(parts, options.side)
            write(results, options.out)
            if options.out and "log" in parts[name]:
                with (options.out / "gpu.log").open("a") as logs:
                    text = (folder / f"{name}.log").read_text(errors="replace")
                    logs.write(f"---- {name}\n{text}\n")
            say(part_text(name, parts[name]), options.out)
            machine = parts["machine"].get("figures") or [{"device": ""}]
            if options.cuda and machine[0]["device"].startswith("CPU"):
                raise SystemExit("--cuda: there is no CUDA device")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"\n## Targets\n\n{table(results['targets'])}", options.out)
    sys.exit(any(parts[name]["status"] != "ok" for name in names))


def parsed() -> argparse.Namespace:
    """The arguments of the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tars", nargs="*", type=Path, default=[SAMPLE],
        help="tars to take photographs from (that of the tests)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results")
    parser.add_argument("--budget", type=float, default=540, help="seconds of the run (540)")
    parser.add_argument("--all", action="store_true", help="all parts, as without --part")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, as small as can be")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count (3)")
    parser.add_argument("--images", type=int, default=400, help="images in a pack (400)")
    parser.add_argument("--masks", type=int, default=64, help="masks per image (64)")
    parser.add_argument("--batch", type=int, default=8, help="samples per batch (8)")
    parser.add_argument("--side", type=int, default=1024, help="pixels of a side (1024)")
    parser.add_argument("--cuda", action="store_true", help="end at once without a CUDA device")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python that has FFCV (.venv-peers)")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of missing packages")
    parser.add_argument("--test", action="append", help="only these tests, as pytest names them")
    parser.add_argument("--folder", type=Path, help="folder for packs (a temporary one)")
    options = parser.parse_args()
    if options.all and options.part:
        parser.error("--all is all parts, --part some")
    if options.rehearse:
        vars(options).update(REHEARSAL)
        options.test = options.test or ["tests/loading/test_device_cuda.py"]
    return options


def options_of_parts(options: argparse.Namespace, folder: Path) -> dict:
    """What a part is given."""
    return {
        "tars": [str(path.absolute()) for path in options.tars],
        "folder": str(folder),
        "rounds": options.rounds,
        "images": options.images,
        "masks": options.masks,
        "batch": options.batch,
        "side": options.side,
        "peers": options.peers or (str(PEERS) if PEERS.exists() else None),
        "tests": options.test or CUDA_TESTS,
        "sanitizer": None,
        "rehearse": options.rehearse,
    }


def say(text: str, out: Path | None) -> None:
    """Print a text, and append it to the file of tables."""
    print(text, flush=True)
    if out is not None:
        with (out / "gpu.md").open("a") as file:
            file.write(text + "\n")


def part_text(name: str, part: dict) -> str:
    """The figures of a part: notes, a table, and the end of its log if it did not end well."""
    texts = [f"\n## {name}: {part['status']}, {part.get('seconds', 0)} s\n"]
    notes = [figure for figure in part["figures"] if "way" not in figure]
    for note in notes:
        texts += [f"- {key}: {value}" for key, value in note.items()]
    if len(notes) < len(part["figures"]):
        texts.append("\n" + table(summary(part["figures"])))
    texts += [f"    {line}" for line in part.get("log", [])]
    return "\n".join(texts)


if __name__ == "__main__":
    main()
