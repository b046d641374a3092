"""A thread that the system refuses is a named error with its remedy; nothing hangs or is left."""

import ast
import threading
import time
from pathlib import Path

import pytest
from commands import command, pack_command  # noqa: F401 - one is a fixture
from small_tars import contents, members, pack_small, write_tar

import sa1bpack
from sa1bpack.cli.main import main
from sa1bpack.errors import ThreadRefused
from sa1bpack.finalizers import settle

PACKAGE = Path(sa1bpack.__file__).parent


def test_every_thread_of_the_package_is_started_where_a_refusal_is_named():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        if path.name == "threads.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            made = getattr(node, "func", None)
            name = getattr(made, "attr", getattr(made, "id", ""))
            if name in ("Thread", "ThreadPoolExecutor", "start_new_thread", "to_thread"):
                wrong.append(f"{path.relative_to(PACKAGE)}, line {node.lineno}: {name}")
    assert not wrong, "use sa1bpack.threads: " + "; ".join(wrong)


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    return [
        write_tar(folder / f"sa_{number:06}.tar", members(range(10 * number, 10 * number + 4)))
        for number in range(2)
    ]


@pytest.fixture(scope="module")
def packed(tars, tmp_path_factory):
    root = tmp_path_factory.mktemp("packed") / "pack"
    pack_small(tars, root)
    return root


def loaded(ds, **options) -> None:
    with sa1bpack.Loader(ds, 2, threads=2, **options) as loader:
        for _ in loader:
            pass


def run(*words) -> None:
    code = main([str(word) for word in words])
    if code:
        raise SystemExit(code)


# What starts threads: a function of the tars, a pack of them, and a folder to write to.
WORK = {
    "pack": lambda tars, packed, out: run(*pack_command(tars, out / "pack"), "--md5"),
    "pack with workers": lambda tars, packed, out: run(
        *pack_command(tars, out / "pack", workers=2)
    ),
    "verify": lambda tars, packed, out: run("verify", packed),
    "merge": lambda tars, packed, out: run("merge", packed, "--output", out / "merged"),
    "open": lambda tars, packed, out: [sa1bpack.open(packed)[n] for n in (0, 7)],
    "columns": lambda tars, packed, out: sa1bpack.open(packed).column("area", "sum"),
    "a Loader": lambda tars, packed, out: loaded(sa1bpack.open(packed)),
    "a cached pack": lambda tars, packed, out: loaded(
        sa1bpack.open(packed.as_uri(), cache_dir=out / "cache", cache_size=10**9)
    ),
    "a DataLoader": lambda tars, packed, out: list(
        sa1bpack.make_dataloader(sa1bpack.open(packed), 2, num_workers=0)
    ),
    "tars": lambda tars, packed, out: sa1bpack.TarDataset(tars, index_folder=out / "index")[5],
    "export": lambda tars, packed, out: run("export", packed, "-o", out / "json"),
}


class Refusal:
    """Refuses the thread of that number, from 0 on, of those that are started; None: no thread.

    Attributes:
        started: number of threads that were asked for.
    """

    def __init__(self, monkeypatch, number: int | None):
        self.started = 0
        start = threading.Thread.start

        def refuse(thread):
            self.started += 1
            if self.started - 1 == number:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


def ours() -> set[str]:
    """Threads of the package, but for those that belong to the process."""
    settle()
    names = {thread.name for thread in threading.enumerate()}
    of_process = ("sa1bpack-finalizers", "sa1bpack-fetch", "sa1bpack-release", "sa1bpack-cloud")
    return {
        name
        for name in names
        if name.startswith(("sa1bpack", "ThreadPool")) and not name.startswith(of_process)
    }


@pytest.mark.parametrize("work", WORK)
def test_each_thread_that_is_refused_is_a_named_error_and_the_work_can_be_repeated(
    torture, tars, packed, tmp_path, monkeypatch, capsys, work
):
    """A few of the threads in `make test`, all of them in `make torture`."""
    with monkeypatch.context() as patch:
        undisturbed = Refusal(patch, None)
        WORK[work](tars, packed, tmp_path / "undisturbed")
    count = undisturbed.started
    expected = contents(tmp_path / "undisturbed") if (tmp_path / "undisturbed").exists() else {}
    for number in torture.rng.sample(range(count), torture.rounds(min(count, 2), count)):
        out = tmp_path / str(number)
        with monkeypatch.context() as patch:
            refusal = Refusal(patch, number)
            try:
                WORK[work](tars, packed, out)
            except ThreadRefused as error:
                message = str(error)
            except SystemExit as ended:
                assert ended.code == 4
                message = capsys.readouterr().err
            else:  # it started fewer, or does as well without
                message = "ulimit -u"
        assert "ulimit -u" in message and refusal.started > 0
        limit = time.monotonic() + 20
        while ours() and time.monotonic() < limit:
            time.sleep(0.01)
        assert ours() == set()
        WORK[work](tars, packed, out)
        assert (contents(out) if out.exists() else {}) == expected
