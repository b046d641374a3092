"""Fuzz a target with atheris, guided by the coverage of sa1bpack's code.

    pip install atheris        # or '.[fuzz]' in a clone
    python tests/fuzz/run_fuzzer.py --target tar --seconds 60
    python tests/fuzz/run_fuzzer.py --seconds 60           # every target in turn

Numba's kernels run as Python, so that the fuzzer sees their branches; findings are run again with
compiled kernels, with and without bounds checks. Findings are written to --findings, and the exit
code is then 1; keep each as a seed under tests/fuzz/seeds/<target>/ once it is fixed. The seed of
the fuzzer is printed; the same seed repeats the run.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TIMEOUT = 30  # seconds per input, which usually takes milliseconds
RSS_MB = 2048
MAX_LENGTH = 32_768  # bytes of an input


def main() -> int:
    """Run the fuzzer over one or all targets; returns 1 if anything was found."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "helpers")]
    parser = argparse.ArgumentParser(
        description="Coverage-guided fuzzing of everything that reads bytes."
    )
    parser.add_argument("--target", help="one of tests/fuzz/targets.py (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="time per target (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the fuzzer (default: 1)")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"),
                        help="folder for inputs that fail (default: %(default)s)")  # fmt: skip
    parser.add_argument("--child", choices=("fuzz", "replay"), help=argparse.SUPPRESS)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child == "fuzz":
        _fuzz(arguments)  # atheris ends the process
    from targets import TARGETS

    if arguments.child == "replay":
        TARGETS[arguments.target](arguments.input.read_bytes())
        return 0
    names = [arguments.target] if arguments.target else list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"unknown target {', '.join(unknown)}; valid targets: {', '.join(TARGETS)}")
    return max(_run(name, arguments) for name in names)


def _run(name: str, arguments: argparse.Namespace) -> int:
    """Fuzz one target in a child process, then run its findings with compiled kernels."""
    with tempfile.TemporaryDirectory(prefix="sa1bpack-fuzzing-") as temporary:
        found = Path(temporary, "findings")
        found.mkdir()
        command = [
            sys.executable, __file__, "--target", name, "--seconds", str(arguments.seconds),
            "--seed", str(arguments.seed), "--findings", str(found), "--child",
        ]  # fmt: skip
        environment = {**os.environ, "TMPDIR": temporary}
        done = subprocess.run(
            [*command, "fuzz"], env={**environment, "NUMBA_DISABLE_JIT": "1"},
            stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        lines = done.stderr.splitlines()
        inputs = sorted(found.iterdir())
        covered = next((line for line in reversed(lines) if " cov: " in line), "no coverage")
        print(f"{name}: seed {arguments.seed}, {len(inputs)} findings, {covered.strip()}")
        if done.returncode == 0 and not inputs:
            return 0
        print("\n".join(lines[-60:]), file=sys.stderr)
        arguments.findings.mkdir(parents=True, exist_ok=True)
        for path in inputs:
            kept = shutil.copy(path, arguments.findings / f"{name}-{path.name}")
            for checks in ("0", "1"):
                # Numba's cache does not distinguish kernels with and without checks.
                environment["NUMBA_CACHE_DIR"] = str(Path(temporary, f"kernels-{checks}"))
                environment["NUMBA_BOUNDSCHECK"] = checks
                again = subprocess.run([*command, "replay", "--input", path], env=environment)
                print(f"{kept}: with compiled kernels, bounds checks {checks}: "
                      f"exit code {again.returncode}")  # fmt: skip
    return 1


def _fuzz(arguments: argparse.Namespace) -> None:
    """The child process, which atheris takes over; it does not return."""
    import atheris

    with atheris.instrument_imports(include=["sa1bpack", "targets"]):
        import inputs
        import targets

        from sa1bpack.pixels import decode
    decode.pack_rgb = _pack_rgb
    corpus = Path(tempfile.mkdtemp())
    for number, data in enumerate(inputs.seeds(arguments.target)):
        (corpus / str(number)).write_bytes(data)
    options = {
        "seed": arguments.seed, "max_total_time": arguments.seconds, "timeout": TIMEOUT,
        "rss_limit_mb": RSS_MB, "max_len": MAX_LENGTH, "artifact_prefix": f"{arguments.findings}/",
    }  # fmt: skip
    flags = [f"-{key}={value}" for key, value in options.items()]
    # Otherwise JSON would become invalid before it is interesting: its parser, in C, shows no
    # branches.
    guided = {"custom_mutator": _mutated} if arguments.target in inputs.JSON_TARGETS else {}
    atheris.Setup([sys.argv[0], *flags, str(corpus)], targets.TARGETS[arguments.target], **guided)
    atheris.Fuzz()


def _pack_rgb(rgbx, out) -> None:
    """`decode.pack_rgb` without vectors, which compiled code alone has."""
    height, width = rgbx.shape
    out[:height, :width] = rgbx.view("u1").reshape(height, width, 4)[..., :3]


def _mutated(data: bytes, max_size: int, seed: int) -> bytes:
    import atheris
    from inputs import mutate_json

    rng = random.Random(seed)
    changed = mutate_json(data, rng) if rng.random() < 0.7 else None
    if changed is None or len(changed) > max_size:
        return atheris.Mutate(data, max_size)
    return changed


if __name__ == "__main__":
    sys.exit(main())
