"""Tars that end early, are damaged, or change between two runs."""

import errno
import hashlib
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from edited_packs import unfinished_pack
from format_files import manifest_of
from shard_files import arrays_of
from small_tars import contents, members, names_of, pack_part_small, pack_small, write_tar

import sa1bpack
from sa1bpack.errors import SourceCorrupt, SourceError, SourceTruncated


def shards(root) -> list[str]:
    return sorted(path.name for path in root.glob("shards/sa_*"))


def changed_during_a_run(change, root, sources):
    """The result of a run that has `change` called while it reads the first of its sources."""
    calls = []

    def advance(done, total):
        if not calls:
            calls.append(done)
            change()

    result = pack_small(sources, root, progress=advance)
    assert calls
    return result


@pytest.mark.parametrize("compress", [False, True])
def test_a_tar_that_is_downloaded_to_its_end_during_a_run_is_packed_as_it_is_then(
    tmp_path, root, compress
):
    first = write_tar(tmp_path / "sa_1.tar", members(range(8)))
    tar = write_tar(tmp_path / "sa_2.tar", members(range(10, 18)), compress=compress)
    pack_small([first, tar], tmp_path / "whole")
    data = tar.read_bytes()
    tar.write_bytes(data[: len(data) // 2])
    result = changed_during_a_run(lambda: tar.write_bytes(data), root, [first, tar])
    assert result.complete
    assert contents(root) == contents(tmp_path / "whole")
    assert pack_small([first, tar], root).new_images == 0  # it is known again
    shutil.rmtree(root / "shards" / "sa_2-001")
    assert sa1bpack.repair(root, [first, tar], workers=1).repaired == ["sa_2-001"]


def test_a_tar_that_loses_bytes_during_a_run_is_given_up_until_they_are_there_again(tmp_path, root):
    """Also if these are zeros after the end marker, without which it is whole."""
    first = write_tar(tmp_path / "sa_1.tar", members(range(8)))
    tar = write_tar(tmp_path / "sa_2.tar", members(range(10, 18)), compress=False)
    data = tar.read_bytes()
    assert not any(data[-2048:])
    result = changed_during_a_run(lambda: os.truncate(tar, len(data) - 512), root, [first, tar])
    assert list(result.failed) == ["sa_2"]
    assert f"had {len(data):,} when the run began" in str(result.failed["sa_2"])
    tar.write_bytes(data)
    assert pack_small([first, tar], root).complete
    pack_small([first, tar], tmp_path / "whole")
    assert contents(root) == contents(tmp_path / "whole")


@pytest.mark.parametrize("added_to", ["the folder that is read", "a later one"])
def test_a_folder_to_which_files_are_added_during_a_run_is_given_up_until_it_is_whole(
    tmp_path, root, added_to
):
    folders = [tmp_path / "sa_1", tmp_path / "sa_2"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        numbers = range(100 * number, 100 * number + 40)  # more than is read ahead
        for name, data in members(numbers).items():
            (folder / name).write_bytes(data)
    changed = folders[added_to == "a later one"]

    def add_pair():
        for name, data in members([999]).items():
            (changed / name).write_bytes(data)

    result = changed_during_a_run(add_pair, root, folders)
    assert list(result.failed) == [changed.name]
    assert "wait until nothing writes there any more" in str(result.failed[changed.name])
    assert pack_small(folders, root).complete
    pack_small(folders, tmp_path / "at_once")
    assert contents(root) == contents(tmp_path / "at_once")


@pytest.mark.parametrize("answer", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOENT])
def test_a_file_of_a_folder_that_the_disk_does_not_show_is_no_reject(
    tmp_path, root, monkeypatch, answer
):
    """It was taken for a pipe or the like: an image was lost, and the pack called complete."""
    folder = tmp_path / "sa_1"
    folder.mkdir()
    for name, data in members(range(3)).items():
        (folder / name).write_bytes(data)
    stat = os.stat

    def refused(path, *arguments, **named):
        if str(path) == f"{folder}/sa_2.jpg":
            raise OSError(answer, os.strerror(answer), path)
        return stat(path, *arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(SourceError) as caught:
        patch.setattr(os, "stat", refused)
        pack_small(folder, root)
    assert str(caught.value) == f"{folder}/sa_2.jpg: cannot be read: {os.strerror(answer)}"
    assert pack_small(folder, root).images == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_of_a_tar_with_a_wrong_crc_are_withdrawn(tmp_path, root, workers):
    # So long that its first shards are published before the CRC at the end is read.
    fillers = {"./filler1": os.urandom(6 << 20), "./filler2": os.urandom(6 << 20)}
    listed = members(range(9)) | fillers | members(range(9, 12))
    tar = write_tar(tmp_path / "sa_1.tar", listed, shuffle=None)
    pack_small(tar, tmp_path / "whole")
    data = tar.read_bytes()
    tar.write_bytes(data[:-8] + b"\0\0\0\0" + data[-4:])
    result = pack_small(tar, root, workers=workers)
    error = result.failed["sa_1"]
    assert isinstance(error, SourceCorrupt) and "data check" in str(error)
    if workers == 1:  # of several, some may not have got as far
        assert error.__notes__ == ["withdrawn with it: 2 shards"]
    assert shards(root) == [] and result.images == 0
    assert sa1bpack.verify(root).ok
    tar.write_bytes(data)
    assert pack_small(tar, root, workers=workers).complete
    assert contents(root) == contents(tmp_path / "whole")


@pytest.mark.parametrize("md5", [False, True])
def test_a_list_given_later_is_compared_with_old_and_new_md5s(tmp_path, root, md5):
    tar = write_tar(tmp_path / "sa_1.tar", members([1]))
    sums = tmp_path / "sums.txt"
    sums.write_text(f"{hashlib.md5(tar.read_bytes()).hexdigest()}  sa_1.tar\n")
    pack_small(tar, root, md5=md5)
    assert not manifest_of(root)["sources"][0]["md5_checked"]
    result = pack_small(tar, root, md5sums=sums)
    assert (result.new_images, result.complete) == (0, True)
    assert result.identity == "XXH3-128 of 1 tar, md5 of 1 (1 compared with a list)"
    at_once = root.with_name("at_once")
    pack_small(tar, at_once, md5sums=sums)
    assert contents(root) == contents(at_once)


def test_another_tar_of_the_size_does_not_get_its_md5_into_the_pack(tmp_path, root):
    tar = write_tar(tmp_path / "sa_1.tar", members([1]), compress=False)
    pack_small(tar, root)
    before = manifest_of(root)["sources"]
    data = bytearray(tar.read_bytes())
    data[-1] ^= 1
    tar.write_bytes(data)
    result = pack_small(tar, root, md5=True)
    assert list(result.failed) == ["sa_1"] and result.images == 1
    assert manifest_of(root)["sources"] == before


def test_a_wrong_md5_withdraws_the_shards_and_spares_the_others(tmp_path, root):
    tars = [write_tar(tmp_path / f"sa_{n}.tar", members(range(n, n + 6))) for n in (10, 20)]
    right = hashlib.md5(tars[1].read_bytes()).hexdigest()
    sums = tmp_path / "sums.txt"
    sums.write_text(f"{'0' * 32} *sa_10.tar\n{right} *folder/sa_20.tar\n")
    result = pack_small(tars, root, md5sums=sums)
    assert isinstance(result.failed["sa_10"], SourceCorrupt)
    assert "the list says 00000000" in str(result.failed["sa_10"])
    assert shards(root) == ["sa_20-000", "sa_20-001"]
    assert sa1bpack.verify(root).ok
    assert not manifest_of(root)["complete"]


def test_a_packed_tar_that_a_list_contradicts_is_named_and_its_shards_stay(tmp_path, root):
    tar = write_tar(tmp_path / "sa_1.tar", members([1]))
    pack_small(tar, root)
    sums = tmp_path / "sums.txt"
    sums.write_text(f"{'0' * 32}  sa_1.tar\n")
    result = pack_small(tar, root, md5sums=sums)
    assert "the list says 0000" in str(result.failed["sa_1"])
    assert result.images == 1 and shards(root) == ["sa_1-000"]


def test_a_name_that_no_shard_can_have_is_refused_before_any_work(tmp_path, root):
    with pytest.raises(SourceError, match=r"__sa.*rename it"):
        pack_small(write_tar(tmp_path / "__sa.tar", members([1])), root)
    assert not root.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{'0' * 32}  sa_2.tar\n", "lacks sa_1.tar"),
        ("sa_1.tar\n", "line 1"),
        (f"# sums\n\n{'0' * 31}  sa_1.tar\n", "line 3.*not in md5sum's format"),
        (f"{'0' * 32}  sa_1.tar\n{'1' * 32}  sa_1.tar\n", "second, different sum"),
    ],
)
def test_a_list_that_cannot_be_used_is_an_error_before_any_work(tmp_path, root, text, message):
    tar = write_tar(tmp_path / "sa_1.tar", members([1]))
    sums = tmp_path / "sums.txt"
    sums.write_text(text)
    with pytest.raises(SourceError, match=message):
        pack_small(tar, root, md5sums=sums)
    assert not root.exists()


@pytest.mark.parametrize(
    ("now", "workers"),
    [(range(100, 112), 2), ([1, 0, *range(2, 12)], 1), (range(3), 1), (range(5), 1)],
    ids=["other photos", "another order", "ends in a packed shard", "a packed shard is longer"],
)
def test_a_source_that_changed_between_runs_is_noticed(tmp_path, root, now, workers):
    tar = unfinished_pack(root, range(12), "sa_1")
    assert shards(root) == ["sa_1-000", "sa_1-001"]
    before = [names_of(arrays_of(root / "shards" / name)) for name in shards(root)]
    write_tar(tar, members(now), shuffle=None)
    other = write_tar(tmp_path / "sa_2.tar", members([50]))
    result = pack_small([tar, other], root, workers=workers)
    assert list(result.failed) == ["sa_1"]
    assert "restore that file" in str(result.failed["sa_1"])
    assert shards(root) == ["sa_1-000", "sa_1-001", "sa_2-000"]
    assert before == [names_of(arrays_of(root / "shards" / name)) for name in shards(root)[:2]]
    assert not manifest_of(root)["complete"]


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("in_parts", [False, True])
def test_one_command_removes_all_shards_of_a_truncated_copy_in_another_order(
    tmp_path, root, order, in_parts
):
    """The whole tar has its members in another order than the truncated copy that was packed."""

    def pack():
        if in_parts:
            result = pack_part_small(tar, root, (1, 1))
            sa1bpack.finalize(root)
            return result
        return pack_small(tar, root)

    tar = write_tar(tmp_path / "sa_1.tar", members(range(22)), shuffle=None, compress=False)
    tar.write_bytes(tar.read_bytes()[: int(0.8 * tar.stat().st_size)])
    assert isinstance(pack().failed["sa_1"], SourceTruncated)
    before = shards(root)
    assert len(before) == 4
    # The first shards may have the same pairs: these stay.
    same = members(range(4 * order))
    others = {name: data for name, data in members(range(22)).items() if name not in same}
    shuffled = list(others.items())
    random.Random(order).shuffle(shuffled)
    write_tar(tar, [*same.items(), *shuffled], shuffle=None, compress=False)
    message = str(pack().failed["sa_1"])
    command = re.search("`(.*)`", message)[1]
    subprocess.run(command, shell=True, check=True)
    assert shards(root) == before[:order]
    assert pack().complete
    pack_small(tar, tmp_path / "whole")
    assert contents(root) == contents(tmp_path / "whole")
    assert sa1bpack.verify(root).ok


def test_a_source_without_pairs_and_image_ids_that_occur_twice_are_named(root, tmp_path, capsys):
    whole = write_tar(tmp_path / "sa_000000.tar", members([1, 2, 3]))
    copy = shutil.copy(whole, tmp_path / "copy.tar")
    empty = write_tar(tmp_path / "sa_000001.tar", {"./a.txt": b"hello"})
    sources = [whole, copy, empty]
    for _ in range(2):  # also by a run that finds them packed
        result = pack_small(sources, root)
        assert (result.images, result.complete) == (6, True)
        ids, note = result.notes
        assert ids.startswith("3 image ids occur more than once: 1 in copy and sa_000000, also 2, ")
        assert note.startswith(
            "no pair of an image and a .json file of the same name is in sa_00000"
        )
        assert f"sa1bpack: {ids}\nsa1bpack: {note}\n" in capsys.readouterr().err
    for number in (1, 2):
        pack_part_small(sources, tmp_path / "parts", (number, 2))
    assert sa1bpack.finalize(tmp_path / "parts").notes == [ids, note]


@pytest.fixture
def unlistable(monkeypatch):
    """Called with a folder and an error number: the system fails to look into it, as into a mount
    that is gone."""

    def fail(folder, code):
        scandir = os.scandir

        def failing(path="."):
            if os.fspath(path).rstrip("/") == str(folder):
                raise OSError(code, os.strerror(code), str(path))
            return scandir(path)

        lstat = os.lstat

        def failing_look(path, **options):
            if Path(path).parent == folder:
                raise OSError(code, os.strerror(code), str(path))
            return lstat(path, **options)

        monkeypatch.setattr(os, "scandir", failing)
        monkeypatch.setattr(os, "lstat", failing_look)

    return fail


@pytest.mark.parametrize("pattern", ["*/sa_*.tar", "**/sa_*.tar"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_tars_in_a_folder_that_is_not_listed_are_not_passed_over_in_silence(
    unlistable, tmp_path, caplog, pattern, code
):
    """Python's glob does, also where a disk fails: the pack would be complete without them."""
    for number, name in enumerate("ab"):
        (tmp_path / "tars" / name).mkdir(parents=True)
        write_tar(tmp_path / "tars" / name / f"sa_{number}.tar", members([number]))
    unlistable(tmp_path / "tars" / "b", code)
    if code == errno.EIO:
        with pytest.raises(SourceError, match=r"tars/b/?: cannot be listed: Input/output error"):
            pack_small(tmp_path / "tars" / pattern, tmp_path / "pack")
        with pytest.raises(OSError, match="Input/output error"):
            sa1bpack.open(str(tmp_path / "tars" / "*" / "pack"))
        return
    assert pack_small(tmp_path / "tars" / pattern, tmp_path / "pack").images == 1
    [line] = [text for text in caplog.messages if "passed over" in text]
    assert "tars/b" in line and "Permission denied" in line
