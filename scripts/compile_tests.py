"""Compile the tests on all processors, as each process of pytest would do for itself.

pytest has code of its own for assertions, and keeps what it compiles where Python keeps bytecode.
Several processes that begin together would all compile all files, which is most of their start; and
where the shell forbids to keep bytecode, they would do so every time. What cannot be compiled here,
pytest reports.
"""

from contextlib import suppress
from multiprocessing import Pool
from pathlib import Path

from _pytest.assertion import rewrite

TESTS = Path(__file__).parent.parent / "tests"


def compile_file(path: Path) -> None:
    """Compile a file of tests, unless what is kept of it is up to date."""
    kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, kept) is not None:
        return
    with suppress(SyntaxError, OSError):
        source, code = rewrite._rewrite_test(path, None)
        kept.parent.mkdir(exist_ok=True)
        rewrite._write_pyc(None, code, source, kept)


if __name__ == "__main__":
    files = [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
    with Pool() as pool:
        pool.map(compile_file, files, chunksize=8)
