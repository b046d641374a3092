"""Where a pack is stored and who reads it makes no difference to the data."""

import json
import multiprocessing
import os
import re
import shutil
import stat
from pathlib import Path

import pytest
import reading_child
from commands import python
from format_files import publish
from reading_child import batch_digests, sample_digest
from reading_packs import write_pack
from system import give_up_privileges

from sa1bpack import FormatError, Loader, ReadError, verify
from sa1bpack import open as open_pack

# Newer Pythons warn of a fork while other threads run: torch has some, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

forking = multiprocessing.get_context("fork")


def everything(ds) -> tuple[list[str], dict[int, str]]:
    """Digests of all samples, through the dataset and through a Loader."""
    with Loader(ds, 5, mask_layout="concat_bits", threads=2) as loader:
        batches: dict[int, str] = {}
        for batch in loader:
            batches |= batch_digests(batch)
    return [sample_digest(sample) for sample in ds], dict(sorted(batches.items()))


@pytest.fixture(scope="module")
def expected(packed):
    """Everything in an untouched pack."""
    return everything(open_pack(packed.root))


def in_a_child(call, *arguments):
    """What `call` returns in a forked process."""
    receiver, sender = forking.Pipe(duplex=False)

    def run():
        sender.send(call(*arguments))

    child = forking.Process(target=run, daemon=True)
    child.start()
    sender.close()
    answer = receiver.recv() if receiver.poll(60) else None
    child.join(60)
    assert child.exitcode == 0
    return answer


# ---------------------------------------------------------------------------------- where it lies


@pytest.mark.parametrize("verified", [False, True])
def test_a_pack_that_nobody_may_write_to_is_read_and_verified(root, expected, verified):
    """By a process that may not write, so that it would be an error."""
    for path in (*root.rglob("*"), root):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))

    def read():
        give_up_privileges()
        refused = 0
        for path in (root / "manifest.json", root / "new", root / "shards" / "new"):
            try:
                path.open("ab").close()
            except PermissionError:
                refused += 1
        return refused, everything(open_pack(root, verify_checksums=verified)), verify(root).ok

    assert in_a_child(read) == (3, expected, True)


def test_a_pack_that_is_gone_is_named_and_not_said_to_be_damaged(root, tmp_path):
    """What is gone is named up to the highest folder, in samples as in batches."""
    opened, begun, open_shards = (open_pack(root) for _ in range(3))
    open_shards.shards.open_many(range(5))
    begun, files_closed = Loader(begun, 2), Loader(open_shards, 2)
    root.rename(tmp_path / "away")
    gone = re.escape(f"missing, with all of {root} (if that was moved or is not mounted, open it")
    with pytest.raises(ReadError, match=gone):
        opened[0]
    with pytest.raises(FormatError, match=gone):
        Loader(opened, 2)
    with pytest.raises(FormatError, match=gone):
        next(iter(begun))
    with pytest.raises(ReadError, match=gone):
        next(iter(files_closed))  # its shards are open, the files of images not yet


# ------------------------------------------------------------------------------ few files, many


def with_many_shards(root: Path, count: int) -> None:
    """Publish `count` shards, all of them hard links to one."""
    shards, [first] = root / "shards", (root / "shards").glob("sa_*")
    names = [f"sb_{number:06d}-000" for number in range(count)]
    for name in names:
        shutil.copytree(first, shards / name, copy_function=os.link)
    publish(root, names)


# Samples by the dataset and by a Loader, and large batches, in a process that may open 64 files.
FEW_FILES = """
import json, resource, sys
sys.path.insert(0, sys.argv[2])
from reading_child import batch_digests, sample_digest
from sa1bpack import Loader, open

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
found = []
for verified in (False, True):
    ds, batches = open(sys.argv[1], verify_checksums=verified, duplicates="all"), {}
    with Loader(ds, 5, mask_layout="concat_bits", threads=2) as loader:
        for batch in loader:
            batches |= batch_digests(batch)
    with Loader(ds, 100, threads=2, prefetch=4) as loader:  # each from some 60 shards
        count = sum(len(batch["image_ids"]) for batch in loader)
    batches = [batches[row] for row in range(len(ds))]
    found.append([[sample_digest(sample) for sample in ds], batches, count])
print(json.dumps(found))
"""


def test_more_shards_than_files_that_may_be_open_are_read(tmp_path):
    """In a process of its own: how many files this one has open depends on the tests before."""
    root, helpers = tmp_path / "pack", Path(reading_child.__file__).parent
    write_pack(root, {"sa_000000-000": (2, 0, 5, 1)})
    samples, batches = everything(open_pack(root))
    with_many_shards(root, 100)
    expected = [samples * 100, [*batches.values()] * 100, 400]
    assert json.loads(python("-c", FEW_FILES, root, helpers)) == [expected] * 2


# ------------------------------------------------------------------------- while it is written


def publish_some(root: Path, count: int, complete: bool) -> None:
    """Publish the first `count` of the shards that there are."""
    names = sorted(path.parent.name for path in (root / "shards").glob("*/zarr.json"))
    publish(root, names[:count], complete=complete)


@pytest.mark.parametrize("verified", [False, True])
def test_a_reader_keeps_its_samples_while_a_packer_publishes_more(root, expected, verified):
    """Bit for bit, over epochs; a pack opened again shows more."""
    publish_some(root, 3, complete=False)
    ds = open_pack(root, verify_checksums=verified)
    late = open_pack(root, verify_checksums=verified)  # opens shards after the index is gone
    before, ids = everything(ds), ds.column("image_id").tolist()
    assert len(ds) == 7 and before[0] == expected[0][:7]
    loader = Loader(ds, 3)
    running = iter(loader)
    rows = next(running)["indices"].tolist()
    for count, complete in ((4, False), (5, False), (5, True)):
        publish_some(root, count, complete)
        assert everything(ds) == before
        assert ds.column("image_id").tolist() == ids
        newer = open_pack(root, verify_checksums=verified)
        assert len(newer) == (0, 0, 0, 0, 9, 12)[count] and verify(root).ok
        assert everything(newer)[0] == expected[0][: len(newer)]
    assert rows + [row for batch in running for row in batch["indices"].tolist()] == [*range(7)]
    loader.close()
    assert everything(late) == before


def test_opening_never_fails_while_a_packer_publishes(root):
    """The manifest may name an index that is gone by the time it is opened."""
    published, stop = forking.Value("q", 0), forking.Event()

    def publish_again_and_again():
        while not stop.is_set():
            publish_some(root, 3 + published.value % 3, complete=False)
            published.value += 1

    child = forking.Process(target=publish_again_and_again, daemon=True)
    child.start()
    met = 0
    try:
        while met < 3:  # openings that a publication fell into
            assert child.is_alive()
            before = published.value
            for verified in (False, True):
                ds = open_pack(root, verify_checksums=verified)
                assert len(ds) in (7, 9, 12) and ds[6]["row"] == 6
            met += published.value > before
    finally:
        stop.set()
        child.join(60)
    assert child.exitcode == 0
