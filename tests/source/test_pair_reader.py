"""Claims about pairing, rejects, limits and errors."""

import contextlib
import errno
import gzip
import hashlib
import os
import random
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tars import members, tar_bytes

from sa1bpack.errors import SourceError, SourceTruncated
from sa1bpack.source import pairs as pairs_module
from sa1bpack.source.find import open_source

BLOCK_BYTES = 128 << 10  # of the spool's file


def read_pairs(path, **options):
    """(pairs, reader) of a complete source."""
    with pairs_module.PairReader(open_source(path), spool_dir=path.parent, **options) as reader:
        return list(reader), reader


def members_of(count, size=1000, seed=0):
    """[(name, data)] of `count` pairs, in random order."""
    rng = random.Random(seed)
    members = [
        (f"./sa_{number}.{extension}", rng.randbytes(rng.randrange(size)))
        for number in range(count)
        for extension in ("jpg", "json")
    ]
    rng.shuffle(members)
    return members


def expected_pairs(members):
    """{stem: (jpeg, json)}."""
    data = {name.removeprefix("./"): content for name, content in members}
    stems = {name.rsplit(".", 1)[0] for name in data}
    return {stem: (data[f"{stem}.jpg"], data[f"{stem}.json"]) for stem in stems}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    count=st.integers(0, 12),
    seed=st.integers(0, 999),
    memory=st.sampled_from([0, 3000, 1 << 20]),
    packed=st.booleans(),
)
def test_order_and_memory_change_no_pair(tmp_path_factory, count, seed, memory, packed):
    """Members in random order, and any memory of the spool."""
    members = members_of(count, seed=seed)
    data = tar_bytes([("./README", b""), *members])
    path = tmp_path_factory.mktemp("pairs") / "sa_000000.tar"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    pairs, reader = read_pairs(path, spool_memory=memory, md5=True)
    assert {p.name: (p.jpeg, p.json) for p in pairs} == expected_pairs(members)
    seen, order = set(), []
    for name, _ in members:  # a pair is complete with its second half
        stem = name[2:].rsplit(".", 1)[0]
        if stem in seen:
            order.append(stem)
        seen.add(stem)
    assert [(p.index, p.name, p.file_name) for p in pairs] == [
        (index, stem, stem + ".jpg") for index, stem in enumerate(order)
    ]
    assert (reader.rejects, reader.ignored) == ([], Counter(foreign=1))
    assert (reader.members, reader.bytes_read) == (len(members) + 1, path.stat().st_size)
    assert reader.md5 == hashlib.md5(path.read_bytes()).hexdigest()
    assert reader.xxh128 == xxhash.xxh3_128_hexdigest(path.read_bytes())


def test_a_folder_yields_the_same_pairs_sorted_by_number(tmp_path):
    members = members_of(12)
    folder = tmp_path / "sa_000000"
    folder.mkdir()
    for name, data in members:
        (folder / name).write_bytes(data)
    pairs, reader = read_pairs(folder, md5=True)
    assert [p.name for p in pairs] == [f"sa_{number}" for number in range(12)]
    assert {p.name: (p.jpeg, p.json) for p in pairs} == expected_pairs(members)
    assert (reader.xxh128, reader.md5, reader.rejects) == (None, None, [])
    assert reader.bytes_read == open_source(folder).nbytes


def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path):
    for name in ("sa_1.jpg", "sa_1.json", "sa_2.jpg"):
        (tmp_path / name).write_bytes(b"x")
    with pairs_module.PairReader(open_source(tmp_path), spool_dir=tmp_path) as reader:
        pairs = iter(reader)
        next(pairs)
        (tmp_path / "sa_2.jpg").write_bytes(b"longer")
        with pytest.raises(SourceError, match=r"sa_2.jpg: its size changed from 1 bytes"):
            next(pairs)


LONGEST, LONGER = "é" * 30, "é" * 30 + "x"


@pytest.mark.parametrize(
    ("members", "pairs", "rejects", "detail"),
    [
        (  # orphans, at the end
            [("./sa_1.jpg", b""), ("./sa_2.json", b"")], [],
            {"./sa_1.jpg": "missing-json", "./sa_2.json": "missing-jpeg"}, "no json for 'sa_1'",
        ),
        (  # duplicates, in whatever folders: the first counts
            [("a/sa_1.jpg", b"first"), ("b/sa_1.jpg", b"2nd"), ("c/sa_1.jpeg", b"3rd"),
             ("a/sa_1.json", b"{}"), ("b/sa_1.json", b"late")],
            [("sa_1.jpg", b"first", b"{}")],
            dict.fromkeys(["b/sa_1.jpg", "c/sa_1.jpeg", "b/sa_1.json"], "duplicate"), "it follows",
        ),
        (  # above their limits: rejected once, and the other half is dropped
            [("sa_1.jpg", bytes(101)), ("sa_1.json", b""), ("sa_2.jpg", bytes(100)),
             ("sa_2.json", bytes(11)), ("sa_3.jpg", bytes(100)), ("sa_3.json", bytes(10))],
            [("sa_3.jpg", bytes(100), bytes(10))],
            {"sa_1.jpg": "too-large", "sa_2.json": "too-large"},
            "101 bytes, the limit for a jpeg member is 100",
        ),
        (  # names of more than 64 bytes
            [(f"deep/{stem}.{e}", b"") for stem in (LONGEST, LONGER) for e in ("json", "jpg")],
            [(LONGEST + ".jpg", b"", b"")], {f"deep/{LONGER}.json": "name-too-long"},
            "65 bytes, the limit is 64",
        ),
        (  # extensions of any case
            [("sa_1.JPG", b"a"), ("x/sa_1.Json", b"b"), ("sa_2.json", b"c"), ("sa_2.jpeg", b"d")],
            [("sa_1.JPG", b"a", b"b"), ("sa_2.jpeg", b"d", b"c")], {}, "",
        ),
        (  # images in other formats
            [("sa_1.png", b"a"), ("sa_1.json", b"b"), ("sa_2.json", b"c"), ("sa_2.TIFF", b"d"),
             ("sa_3.webp", b"e"), ("sa_4.json", b"f")],
            [("sa_1.png", b"a", b"b"), ("sa_2.TIFF", b"d", b"c")],
            {"sa_3.webp": "missing-json", "sa_4.json": "missing-jpeg"}, "no json for 'sa_3'",
        ),
        (  # an image that follows one in another format
            [("sa_1.png", b"a"), ("sa_1.jpg", b"b"), ("sa_1.json", b"c"), ("x/sa_1.jpg", b"d")],
            [("sa_1.png", b"a", b"c")], dict.fromkeys(["sa_1.jpg", "x/sa_1.jpg"], "duplicate"),
            "it follows 'sa_1.png'",
        ),
    ],
    ids=[
        "orphans", "duplicates", "large", "long names", "extensions", "other formats", "two formats"
    ],
)  # fmt: skip
def test_a_member_that_cannot_be_half_of_a_pair_is_rejected_with_its_reason(
    write, monkeypatch, members, pairs, rejects, detail
):
    monkeypatch.setattr(pairs_module, "MAX_JPEG_BYTES", 100)
    monkeypatch.setattr(pairs_module, "MAX_JSON_BYTES", 10)
    found, reader = read_pairs(write(tar_bytes(members)))
    assert [(p.file_name, p.jpeg, p.json) for p in found] == pairs
    assert {reject.member: reject.code for reject in reader.rejects} == rejects
    assert not rejects or detail in reader.rejects[0].detail


def test_halves_of_two_pairs_of_one_stem_are_not_a_pair(write):
    """Frames of videos are called alike; images and records may be in folders of their own."""
    apart = [("images/1.jpg", b"a"), ("records/1.json", b"b"), ("depth/1.png", b"c")]
    found, reader = read_pairs(write(tar_bytes(apart)))
    assert [(p.jpeg, p.json) for p in found] == [(b"a", b"b")] and not reader.rejects
    # The record of an image that comes second in another folder, and then that of the first.
    members = [("a/1.jpg", b"a"), ("b/1.jpg", b"b"), ("b/1.json", b"of b"), ("a/1.json", b"of a")]
    for end, pairs in ((4, [(b"a", b"of a")]), (3, [])):
        found, reader = read_pairs(write(tar_bytes(members[:end])))
        assert [(p.jpeg, p.json) for p in found] == pairs
        codes = {reject.member: reject.code for reject in reader.rejects}
        duplicates = dict.fromkeys(["b/1.jpg", "b/1.json"], "duplicate")
        assert codes == duplicates | ({} if pairs else {"a/1.jpg": "missing-json"})
    for first, second, late in (
        ("./a/1.jpg", "b/1.json", "./b/1.jpg"), ("a/1.json", "b/1.jpg", "b/1.json"),
    ):  # fmt: skip
        members = [(first, b"x"), (second, b"y"), (late, b"z")]
        said = "'b/1.*' was taken for the other half of '.*a/1.*', but '.*b/1.*' is: rename"
        with pytest.raises(SourceError, match=said):
            read_pairs(write(tar_bytes(members)))


MAPS = [("sa_1.jpg", b"a"), ("sa_1.png", b"b"), ("sa_1.json", b"c"), ("sa_1.webp", b"d"),
        ("depth/sa_2.png", b"e"), ("sa_2.json", b"f"), ("sa_2.jpg", b"g"), ("sa_3.mask.png", b"h"),
        ("sa_4.jpg", b"i"), ("sa_4.json", b"j")]  # fmt: skip


def test_maps_beside_jpegs_are_passed_over(write, tmp_path):
    """Images in other formats of the stem of a JPEG before them, and those without a record."""
    without_2 = [(name, data) for name, data in MAPS if "sa_2" not in name]
    found, reader = read_pairs(write(tar_bytes(without_2)))
    assert [(p.file_name, p.jpeg, p.json) for p in found] == [
        ("sa_1.jpg", b"a", b"c"), ("sa_4.jpg", b"i", b"j")
    ]  # fmt: skip
    assert (reader.rejects, reader.ignored) == ([], Counter(foreign=3))
    assert reader.ignored_names == ["sa_1.png", "sa_1.webp", "sa_3.mask.png"]
    folder = tmp_path / "folder"
    for name, data in MAPS:  # a JPEG counts wherever it lies
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    found, reader = read_pairs(folder)
    assert [(p.file_name, p.jpeg, p.json) for p in found] == [
        ("sa_1.jpg", b"a", b"c"), ("sa_2.jpg", b"g", b"f"), ("sa_4.jpg", b"i", b"j")
    ]  # fmt: skip
    assert (reader.rejects, reader.ignored) == ([], Counter(foreign=4))
    assert reader.ignored_names == ["depth/sa_2.png", "sa_1.png", "sa_1.webp", "sa_3.mask.png"]
    assert reader.bytes_read == open_source(folder).nbytes == 6


def test_foreign_members_are_counted_and_the_first_names_kept(write, read):
    foreign = [(f"./note_{number}.txt", b"x") for number in range(25)]
    foreign += [("./._sa_1.jpg", b"x"), ("./.json", b""), ("./LICENSE", b"x")]
    jpeg, record = members([1]).items()
    (found,), ids, rejects = read(write(tar_bytes([jpeg, *foreign, record])))
    assert (found["pairs"], ids, rejects) == (1, [1], [])
    assert found["ignored"] == {"foreign": 28}
    assert found["ignored_names"] == [f"./note_{number}.txt" for number in range(20)]


def test_pairs_before_a_truncation_are_yielded_and_valid(write):
    members = members_of(60, size=30_000)
    data = gzip.compress(tar_bytes(members), 1)
    path = write(data[: len(data) // 2])
    expected = expected_pairs(members)
    found = []
    with pairs_module.PairReader(open_source(path), spool_dir=path.parent) as reader:
        with pytest.raises(SourceTruncated, match=r"sa_000000.tar.*compare its md5"):
            for pair in reader:
                found.append(pair)
        assert reader.md5 is None
    assert len(found) > 5
    assert all((p.jpeg, p.json) == expected[p.name] for p in found)


def test_leaving_early_closes_the_files_and_the_thread(sample_tar, tmp_path):
    """Its own descriptors and threads: those of other tests may end at any time."""
    before = set(threading.enumerate())

    def held() -> list[str]:
        """Paths of the tar and of spool files that are open, and new threads."""
        paths = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                paths.append(str(descriptor.readlink()))
        mine = (str(sample_tar), str(tmp_path))
        threads = [t.name for t in set(threading.enumerate()) - before]
        return [path for path in paths if path.startswith(mine)] + threads

    assert held() == []
    with pairs_module.PairReader(
        open_source(sample_tar), spool_dir=tmp_path, spool_memory=0, md5=True
    ) as reader:
        next(iter(reader))
        assert len(held()) == 3
    assert held() == []


def test_too_many_members_are_an_error(write, monkeypatch):
    monkeypatch.setattr(pairs_module, "MAX_MEMBERS", 3)
    with pytest.raises(SourceError, match="more than 3 members"):
        read_pairs(write(tar_bytes([(str(number), b"") for number in range(4)])))


# ----------------------------------------------------------------------------------------- spool


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 5 * BLOCK_BYTES), max_size=12),
    memory=st.integers(0, 8 * BLOCK_BYTES),
    seed=st.integers(0, 99),
)
def test_items_can_be_taken_in_any_order(tmp_path_factory, sizes, memory, seed):
    rng = random.Random(seed)
    spool = pairs_module.Spool(tmp_path_factory.mktemp("spool"), memory)
    held, live, peak = [], 0, 0
    for size in sizes:
        data = rng.randbytes(size)
        held.append((data, spool.put(data)))
        live = sum(-(-len(d) // BLOCK_BYTES) for d, t in held if not isinstance(t, bytes))
        peak = max(peak, live)
        assert spool.memory_used <= memory
        if rng.random() < 0.5:
            data, ticket = held.pop(rng.randrange(len(held)))
            assert spool.take(ticket) == data
    assert spool.file_bytes == peak * BLOCK_BYTES
    for data, ticket in held:
        assert spool.take(ticket) == data
    assert (spool.memory_used, spool.spilled) == (0, 0)
    spool.close()


@pytest.mark.parametrize(
    ("name", "answer", "code", "text"),
    [
        ("pwrite", OSError(28, "No space left on device"), errno.ENOSPC, "on device: 1000 bytes"),
        ("pread", b"x" * 10, errno.EIO, "only 10 of 1000 bytes of the spool file"),
    ],
)
def test_a_full_or_failing_spool_disk_is_named(tmp_path, monkeypatch, name, answer, code, text):
    monkeypatch.setattr(os, name, Mock(side_effect=[answer]))
    with (
        closing(pairs_module.Spool(tmp_path, 0)) as spool,
        pytest.raises(OSError, match=text) as caught,
    ):
        spool.take(spool.put(b"x" * 1000))
    assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path))
