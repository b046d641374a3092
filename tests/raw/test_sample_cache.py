"""Decoded samples are kept within their bytes, and what is kept is what was decoded."""

import errno
import logging
import os
from pathlib import Path

import pytest
from batches import all_same, same_samples
from small_tars import SMALL, members, write_tar
from system import failing

import sa1bpack
from sa1bpack.raw import decoding

OPTIONS = sa1bpack.PackOptions(**SMALL)


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "sa_000000.tar", members(range(6)), compress=False)


@pytest.fixture
def kept(tar, tmp_path):
    """kept(**options): a dataset of the tar whose samples are kept in the folder `cache`."""
    given = {"options": OPTIONS, "cache_dir": tmp_path / "cache", "cache_dir_size": 1 << 24}
    return lambda **options: sa1bpack.TarDataset(tar, **given | options)


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """The names of the images that are decoded."""
    names, attempt = [], decoding.attempt
    monkeypatch.setattr(
        decoding,
        "attempt",
        lambda pair, *rest: (names.append(pair.file_name), attempt(pair, *rest))[1],
    )
    return names


def test_the_least_recently_used_go_first(tar, decoded):
    """Of samples of 13.5 to 13.8 kB, two fit into 28 kB, and none into 1 kB."""
    used = [0, 1, 0, 2, 0, 1]
    for limit, order, missed in (("28 kB", used, [0, 1, 2, 1]), ("1 kB", [0, 0], [0, 0])):
        ds = sa1bpack.TarDataset(tar, options=OPTIONS, cache_size=limit)
        names = [ds.metadata(index).file_name for index in range(3)]
        del decoded[:]
        for index in order:
            ds[index]
        assert decoded == [names[index] for index in missed]


def test_a_sample_in_memory_is_not_decoded_again(tar, decoded):
    more = {"options": OPTIONS, "mask_format": "bool", "min_area": 9}
    cached = sa1bpack.TarDataset(tar, cache_size="1 MiB", **more)
    expected = sa1bpack.TarDataset(tar, **more)[2]
    del decoded[:]
    assert same_samples(cached[2], expected) and same_samples(cached[2], expected)
    assert same_samples(cached[1:][1], expected) and len(decoded) == 1


def test_a_folder_is_shared_by_runs_that_ask_for_the_same(tar, kept, decoded):
    first = [kept()[index] for index in range(6)]
    assert len(decoded) == 6
    again = list(kept())
    assert all_same(first, again) and len(decoded) == 6
    assert kept(mask_format="runs")[0]["run_ends"].size and len(decoded) == 6
    other = sa1bpack.PackOptions(**SMALL | {"image_size": 32})
    assert kept(options=other)[0]["image"].shape == (32, 32, 3) and len(decoded) == 7
    write_tar(tar, members(range(6), masks=2), compress=False)  # another tar of the same name
    assert len(kept()[0]["areas"]) == 2 and len(decoded) == 8


def test_a_file_of_a_folder_that_changed_is_decoded_again(tmp_path, decoded):
    """Also if it has as many bytes as before, so that its folder looks the same."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, data in members([1, 2]).items():
        (photos / name).write_bytes(data)
    more = {"cache_dir": tmp_path / "cache", "cache_dir_size": 1 << 24}
    first = list(sa1bpack.TarDataset(photos, options=OPTIONS, **more))
    assert list(map(len, (decoded, first))) == [2, 2]
    changed = photos / "sa_1.json"
    text = changed.read_bytes()
    changed.write_bytes(text.replace(b"0.9", b"0.8"))
    os.utime(changed, ns=(0, 0))
    assert changed.stat().st_size == len(text) and changed.read_bytes() != text
    again = list(sa1bpack.TarDataset(photos, options=OPTIONS, **more))
    assert decoded[2:] == ["sa_1.jpg"] and same_samples(again[1], first[1])
    assert not same_samples(again[0], first[0])


def test_a_tar_that_changed_between_its_ends_is_decoded_again(tar, kept, decoded):
    """Its pairs are where they were, and its ends the same, as in a download that is replaced."""
    write_tar(tar, members(range(40)), compress=False)
    first = list(kept())
    data = tar.read_bytes()
    half = len(data) // 2
    assert half > 64 << 10, "its ends identify the tar"
    changed_data = data[:half] + data[half:].replace(
        b'"stability_score": 0.9', b'"stability_score": 0.8', 1
    )
    assert len(changed_data) == len(data) and changed_data != data
    tar.write_bytes(changed_data)
    os.utime(tar, ns=(0, 0))
    again = list(kept())
    assert len(decoded) == 80
    differing = [index for index in range(40) if not same_samples(first[index], again[index])]
    assert len(differing) == 1


def test_a_flipped_bit_anywhere_in_the_cache_is_never_another_error(kept, tmp_path, caplog):
    """In the list of arrays too, which says how the bytes are read."""
    first = kept()[0]
    (path,) = tmp_path.glob("cache/*.npz")
    sound = path.read_bytes()
    places = [*range(0, 600, 9), *range(600, len(sound), 997), len(sound) - 1]
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert same_samples(kept()[0], first)
    assert caplog.text.count("decoded again") > len(places) // 2  # others are of no array


def test_a_folder_stays_within_its_bytes(kept, tmp_path, decoded):
    kept()[0]
    (path,) = tmp_path.glob("cache/*.npz")
    limit = int(path.stat().st_size * 3.5)
    ds = kept(cache_dir_size=limit)
    for index in range(6):
        ds[index]
        assert sum(path.stat().st_size for path in tmp_path.glob("cache/*.npz")) <= limit
    del decoded[:]
    ds[5]
    assert decoded == []
    ds[0]
    assert len(decoded) == 1


def test_a_folder_that_is_full_is_said_once(kept, tmp_path, monkeypatch, caplog):
    ds = kept()

    monkeypatch.setattr(Path, "replace", failing(errno.ENOSPC))
    caplog.set_level(logging.WARNING, "sa1bpack")
    assert len([ds[index] for index in range(3)]) == 3
    assert caplog.text.count("No space left on device") == 1
    assert not list((tmp_path / "cache").glob("*tmp*"))


def test_a_damaged_file_that_cannot_be_removed_is_decoded_again(kept, tmp_path, monkeypatch):
    """As in a folder that has become read-only, or whose files are another user's."""
    first = kept()[0]
    [path] = tmp_path.glob("cache/*.npz")

    for target, name in ((os, "utime"), (Path, "unlink"), (Path, "replace")):
        monkeypatch.setattr(target, name, failing(errno.EACCES))
    assert same_samples(kept()[0], first)  # of the cache
    path.write_bytes(b"damaged")
    assert same_samples(kept()[0], first)
