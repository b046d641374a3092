"""Worker processes of make_dataloader that end, or cannot send a batch: they are named at once."""

import os
import resource
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from commands import python
from forked_programs import run_forked
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from sa1bpack import Loader, LoaderError, make_dataloader
from sa1bpack.errors import LoaderTimeout, ResourceShortage

# Newer Pythons warn of a fork while other threads run: torch has some, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
# Far longer than a test may take: what it says happens before.
LONG = 100_000


def ending(end, sample):
    """End the process with the fifth sample."""
    if sample["row"] == 4:
        end()
        time.sleep(LONG)  # a signal may arrive later
    return sample


def by_signal(number):
    os.kill(os.getpid(), number)


ENDS = {
    "SIGKILL": (partial(by_signal, signal.SIGKILL), "by SIGKILL: .*lack of memory"),
    "SIGTERM": (partial(by_signal, signal.SIGTERM), "by SIGTERM: another program"),
    "SIGBUS": (partial(by_signal, signal.SIGBUS), r"by SIGBUS: .*/dev/shm is full"),
    "os._exit(0)": (partial(os._exit, 0), "with exit code 0: .*or a transform did it"),
    "os._exit(7)": (partial(os._exit, 7), "with exit code 7: a transform"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_that_ends_is_named_with_its_batch_and_the_next_epoch_is_whole(ds, end):
    """Long before the timeout of a batch."""
    how, text = ENDS[end]
    failing = ds.with_options(transform=partial(ending, how))
    loader = make_dataloader(failing, 4, num_workers=2, timeout=LONG)
    ids = failing.column("image_id").tolist()
    with pytest.raises(LoaderError, match=text) as caught:
        list(loader)
    assert f"batch 1 of epoch 0 (image_ids {ids[4:8]})" in str(caught.value)
    loader.end_workers()
    sound = make_dataloader(ds.with_options(transform=dict), 4, num_workers=2, timeout=LONG)
    assert [i for batch in sound for i in batch["image_ids"].tolist()] == ids
    sound.end_workers()


def with_process(sample):
    return stuck(sample) | {"process": os.getpid()}


def test_a_worker_that_its_loader_s_process_ends_is_noticed(ds):
    """By SIGTERM, which torch lets end a worker with the exit code 0."""
    loader = make_dataloader(
        ds.with_options(transform=with_process), 4, num_workers=1, prefetch_factor=1, timeout=LONG
    )
    batches = iter(loader)
    os.kill(next(batches)["process"][0], signal.SIGTERM)
    with pytest.raises(LoaderError, match=r"with exit code 0: .*\(SIGTERM\).* batch 1 of epoch 0"):
        next(batches)


def stuck(sample):
    if sample["row"] == 4:
        time.sleep(LONG)
    return sample


def test_a_batch_that_does_not_come_in_time_is_named(ds, monkeypatch):
    # torch waits so long, in seconds, for the end of a worker before it kills it.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    loader = make_dataloader(ds.with_options(transform=stuck), 4, num_workers=1, timeout=1)
    with pytest.raises(LoaderTimeout, match=r"batch [01] of epoch 0 .* not ready after 1 seconds"):
        list(loader)


def with_function(sample):
    return sample | {"function": lambda: None}


def test_what_cannot_be_sent_is_an_error_at_once(ds):
    loader = make_dataloader(
        ds.with_options(transform=with_function), 4, num_workers=1, timeout=LONG
    )
    with pytest.raises(
        LoaderError, match=r"cannot be sent from a worker process: .*(pickle|local)"
    ):
        list(loader)


def with_large_tensor(sample):
    return sample | {"large": torch.zeros(1_000_000)}


def limit_files(nbytes, number):
    """No file of this process may be larger, as if /dev/shm were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def left_by_ended_processes():
    """Names of torch's files in /dev/shm, which begin with the number of the process."""
    names = [path.name for path in Path("/dev/shm").glob("torch_*")]
    return [name for name in names if not Path("/proc", name.split("_")[1]).exists()]


@pytest.mark.parametrize(("transform", "nbytes"), [(dict, 100), (with_large_tensor, 1_000_000)])
def test_full_shared_memory_is_an_error_with_the_remedy_and_leaves_no_file(ds, transform, nbytes):
    """Of the arrays of a batch, which are made there, and of tensors that a transform has added."""
    before = set(left_by_ended_processes())
    limited = {"num_workers": 2, "worker_init_fn": partial(limit_files, nbytes), "timeout": LONG}
    loader = make_dataloader(ds.with_options(transform=transform), 4, **limited)
    with pytest.raises(ResourceShortage, match=r"/dev/shm has no room .*--shm-size"):
        list(loader)
    loader.end_workers()
    assert not set(left_by_ended_processes()) - before


def test_too_few_open_files_are_an_error_with_the_remedy(packed):
    """In a process of its own, in which nothing else opens files."""
    script = f"""
import os, resource
from sa1bpack import make_dataloader
from sa1bpack import open as open_pack
from sa1bpack.errors import ResourceShortage

ds = open_pack({str(packed.root)!r}, transform=dict)
loader = make_dataloader(ds, 1, num_workers=1, timeout={LONG})
batches = iter(loader)
kept = [next(batches)]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
last = os.open("/dev/null", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (last + 3, hard))
try:
    kept.extend(batches)
except ResourceShortage as error:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(error)
"""
    found = python("-c", script, timeout=300, quiet=False)
    assert "`ulimit -n` allows" in found and "set_sharing_strategy('file_system')" in found


STUCK = """
import os, signal, sys, threading, time
from pathlib import Path
from sa1bpack import make_dataloader, open as open_pack

root, notes = sys.argv[1:]

def stuck(sample):
    Path(notes, str(os.getpid())).touch()
    time.sleep(100_000)

loader = make_dataloader(open_pack(root, transform=stuck), 2, num_workers=2, timeout=100_000)
threading.Thread(target=next, args=(iter(loader),), daemon=True).start()
while len(list(Path(notes).iterdir())) < 2:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGTERM)
"""


def is_running(process: int) -> bool:
    """True unless a process has ended; one that nobody has asked how is a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_end_with_their_main_process_also_within_a_batch_that_does_not_come(
    packed, tmp_path
):
    """Killed by SIGTERM, as by a scheduler, it cannot end them; nobody else would."""
    status, _, _ = run_forked(STUCK, packed.root, tmp_path)
    assert status == -signal.SIGTERM
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    limit = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


class Loading(IterableDataset):
    """A Loader as others' code wraps a dataset: torch's workers iterate it."""

    def __init__(self, ds, by_worker):
        self.ds = ds
        self.by_worker = by_worker

    def __iter__(self):
        ranks = {}
        if self.by_worker:
            info = get_worker_info()
            ranks = {"rank": info.id, "world_size": info.num_workers}
        for batch in Loader(self.ds, 2, threads=1, **ranks):
            yield from batch["image_ids"].tolist()


def test_each_of_several_workers_around_a_loader_would_have_all_samples(ds):
    ids = ds.column("image_id").tolist()
    with pytest.raises(LoaderError, match="one of 2 workers of a DataLoader, and each would get"):
        list(DataLoader(Loading(ds, by_worker=False), batch_size=None, num_workers=2))
    alone = DataLoader(Loading(ds, by_worker=False), batch_size=None, num_workers=1)
    assert list(alone) == ids
    shares = DataLoader(Loading(ds, by_worker=True), batch_size=None, num_workers=2)
    assert sorted(shares) == sorted(ids)
