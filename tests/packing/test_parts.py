"""Parts of a job make the pack that one run makes, however they are cut, repeated or overlap."""

import errno
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest
from commands import wait_until
from fault_server import cut, stalled
from format_files import manifest_of
from small_tars import SMALL, contents, members, pack_part_small, pack_small, write_tar

import sa1bpack
from sa1bpack import FormatError
from sa1bpack.errors import OutputLocked, OutputRefused
from sa1bpack.packing.publishers import part_publisher
from sa1bpack.packing.requested_options import RequestedOptions


@pytest.fixture
def pack_part(sources, root):
    """pack_part((K, N), **options): one part of a job of all `sources`."""

    def pack_part(part, **options):
        return pack_part_small(sources, root, part, **options)

    return pack_part


@pytest.fixture
def begun(sources, root, web):
    """begun(tar): a part of all sources that has begun, and waits for the bytes of this tar, which
    is in place of the source of its name, until `web.held`."""
    with ThreadPoolExecutor(1) as pool:

        def begun(tar):
            path = f"/{tar.name}"
            web.files[path], web.faults[path] = tar.read_bytes(), [cut(512), stalled(900)]
            given = [source for source in sources if source.name != tar.name]
            given.append(f"{web.url}{path}")
            part = pool.submit(pack_part_small, given, root, (1, 1))
            wait_until(lambda: part.done() or len(web.requests) == 2)
            return part

        yield begun
        web.held.set()


@pytest.mark.parametrize(
    ("order", "workers"),
    [([(2, 2), (1, 2)], 2), ([(k, 7) for k in (5, 1, 7, 3, 2, 6, 4)], 1)],
)  # fmt: skip
def test_parts_in_any_order_make_the_pack_of_one_run(pack_part, root, undisturbed, order, workers):
    results = [pack_part(part, workers=workers) for part in order]
    assert sum(result.sources for result in results) == 5
    result = sa1bpack.finalize(root)
    assert result.complete and result.images == sum(each.images for each in results)
    assert contents(root) == undisturbed
    assert sa1bpack.verify(root).ok
    assert len((root / ".runs.jsonl").read_text().splitlines()) == sum(
        each.new_images > 0 for each in results
    )
    assert sa1bpack.finalize(root).complete and contents(root) == undisturbed


def test_readers_name_finalize_until_the_job_is_complete(pack_part, root, command, caplog):
    remedy = (
        "once all parts of its job have ended, this completes it or lists what is missing: "
        f"sa1bpack finalize {root}"
    )
    pack_part((1, 2))
    with pytest.raises(FormatError, match=f"no images yet: .*; {re.escape(remedy)}"):
        sa1bpack.open(root)
    assert not sa1bpack.finalize(root).complete
    caplog.clear()
    sa1bpack.open(root)
    assert remedy in caplog.text
    for name, code in (("verify", 5), ("repair", 0)):
        found, out, _ = command(name, root)
        assert found == code and f"NOT COMPLETE: {remedy}\n" in out
    pack_part((2, 2))
    assert sa1bpack.finalize(root).complete


def test_a_repeated_part_decodes_nothing_and_another_cut_what_is_left(pack_part, root, undisturbed):
    first = pack_part((1, 2))
    assert pack_part((1, 2)).new_images == 0
    others = [pack_part((number, 3)) for number in (1, 2, 3)]
    sa1bpack.finalize(root)
    assert contents(root) == undisturbed
    images = first.new_images + sum(result.new_images for result in others)
    assert images == len(sa1bpack.open(root))


def test_of_two_that_pack_at_once_the_second_finds_it_published(
    begun, sources, root, web, undisturbed
):
    """Both began when nothing was published, and the second is as far when the first has ended.

    What needs the folder for itself is kept off meanwhile, and the other way round.
    """
    second = begun(sources[0])
    first = pack_part_small(sources, root, (1, 1))
    for call in (sa1bpack.finalize, sa1bpack.repair):
        with pytest.raises(OutputLocked):
            call(root)
    web.held.set()
    assert second.result().complete and first.complete
    with (root / ".lock").open() as lock:
        flock(lock, LOCK_EX)
        with pytest.raises(OutputLocked):
            pack_part_small(sources, root, (1, 2))
    assert sa1bpack.finalize(root).complete
    assert contents(root) == undisturbed


def test_other_images_under_the_name_of_a_source_are_refused(begun, sources, root, web, tmp_path):
    second = begun(write_tar(tmp_path / "sa_000003.tar", members(range(500, 506))))
    pack_part_small(sources, root, (1, 1))
    web.held.set()
    with pytest.raises(OutputRefused, match="from other images; give all"):
        second.result()


def test_finalize_names_sources_and_parts_left(sources, pack_part, root, undisturbed):
    """What is missing, and the parts to repeat."""
    pack_part((2, 3))
    result = sa1bpack.finalize(root)
    assert not result.complete and not manifest_of(root)["complete"]
    assert result.missing == dict.fromkeys(
        ("sa_000000", "sa_000002", "sa_000003"), "no shard is published"
    )
    assert result.parts == ((1, 3), (3, 3))
    assert sa1bpack.verify(root).ok and len(sa1bpack.open(root)) == result.images
    assert sa1bpack.finalize(root).missing == result.missing  # it stays known
    shutil.rmtree(root / "shards" / "sa_000001-000")
    assert "sa_000001" in sa1bpack.finalize(root).missing
    for number in (1, 2, 3):
        pack_part((number, 3))
    assert sa1bpack.finalize(root).complete
    assert contents(root) == undisturbed


@pytest.mark.parametrize("listed", [False, True], ids=["unlisted", "in the manifest"])
def test_shards_of_a_tar_whose_bytes_are_wrong_are_withdrawn(tmp_path, root, listed):
    tar = write_tar(tmp_path / "sa_1.tar", members(range(12)), shuffle=None, compress=False)
    data = tar.read_bytes()
    if listed:  # an earlier job found the tar cut off, and its finalize lists two shards
        tar.write_bytes(data[: len(data) * 5 // 6])
        pack_part_small(tar, root, (1, 1))
        assert sa1bpack.finalize(root).images == 8
        tar.write_bytes(data)
    sums = tmp_path / "sums"
    sums.write_text(f"{'0' * 32}  sa_1.tar\n")
    result = pack_part_small(tar, root, (1, 1), md5sums=sums)
    assert "its md5 is" in str(result.failed["sa_1"])
    assert len(list(root.glob("shards/sa_1-*"))) == (2 if listed else 0)
    found = sa1bpack.finalize(root)
    assert found.images == 0 and "its md5 is" in found.missing["sa_1"]
    assert list(root.glob("shards/sa_1-*")) == []
    assert [note for note in found.notes if "2 shards withdrawn" in note] != [] or not listed


def test_a_part_adds_to_a_complete_pack_until_finalize(sources, root, undisturbed):
    """The pack is complete again after it."""
    pack_small(sources[:2], root)
    assert manifest_of(root)["complete"]
    pack_part_small(sources, root, (1, 1))
    assert not manifest_of(root)["complete"]
    assert sa1bpack.verify(root).ok
    assert sa1bpack.finalize(root).complete
    assert contents(root) == undisturbed


def test_a_run_without_parts_takes_over_what_parts_have_done(sources, pack_part, root):
    pack_part((1, 2))
    result = pack_small(sources, root)
    assert result.complete and result.packed_before == 3
    assert manifest_of(root)["complete"] and sa1bpack.verify(root).ok
    assert not list((root / ".parts").glob("source-*"))
    assert sa1bpack.finalize(root).complete


def test_a_first_finalize_that_fails_between_two_files_leaves_a_pack_that_is_not_damaged(
    pack_part, root, monkeypatch
):
    """Parts write no checksums: the manifest that lists their shards must not come before them."""
    pack_part((1, 2))
    rename, failed = os.rename, []

    def fails_once(source, target, **more):
        if str(target).endswith(f"{root.name}/checksums.xxh128") and not failed:
            failed.append(target)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source), None, str(target))
        return rename(source, target, **more)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(OSError):
        sa1bpack.finalize(root)
    assert failed and sa1bpack.verify(root).ok
    sa1bpack.finalize(root)
    assert sa1bpack.verify(root).ok


def test_a_part_that_ends_early_leaves_the_folder_in_which_another_has_begun(root):
    options = RequestedOptions(SMALL)
    with ExitStack() as other:
        with pytest.raises(KeyboardInterrupt), part_publisher(root, options):
            publisher = other.enter_context(part_publisher(root, options))
            raise KeyboardInterrupt
        publisher.begin()
        with pytest.raises(OutputLocked):
            sa1bpack.finalize(root)
    with pytest.raises(KeyboardInterrupt), part_publisher(root.with_name("alone"), options):
        raise KeyboardInterrupt
    assert not root.with_name("alone").exists()


def test_finalize_does_not_call_a_pack_complete_whose_parts_it_cannot_list(
    root, tmp_path, monkeypatch
):
    """It would remove what the parts have left, and with it the names of what is missing."""
    tars = [write_tar(tmp_path / f"sa_{k}.tar", members(range(4 * k, 4 * k + 4))) for k in range(2)]
    pack_small(tars[0], root)
    tars[1].write_bytes(tars[1].read_bytes()[:700])
    assert pack_part_small(tars, root, (1, 1)).failed
    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, refusing(getattr(os, name), root / ".parts"))
        with pytest.raises(PermissionError):
            sa1bpack.finalize(root)
    assert sa1bpack.finalize(root).missing.keys() == {"sa_1"}
    assert not manifest_of(root)["complete"]


def refusing(call, folder):
    """What lists folders, except this one."""

    def listing(path="."):
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return call(path)

    return listing
