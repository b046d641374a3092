"""Errors of calls on descriptors name the file, and a write without progress is an error."""

import errno
import os

import pytest

from sa1bpack.format.files import remove_published, write_at


def test_a_write_without_progress_is_an_error_not_an_endless_loop(tmp_path, monkeypatch):
    path = tmp_path / "file"
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: 0)
    with path.open("wb") as file, pytest.raises(OSError, match="0 of 5 bytes were written") as got:
        write_at(file.fileno(), b"hello", 0, path)
    assert (got.value.errno, got.value.filename) == (errno.EIO, str(path))


def test_a_folder_loses_its_final_name_before_anything_in_it_is_removed(tmp_path, monkeypatch):
    folder = tmp_path / "index-00000000"
    (folder / "array").mkdir(parents=True)
    seen = []
    rmtree = "sa1bpack.format.files.shutil.rmtree"
    monkeypatch.setattr(rmtree, lambda path: seen.append((path, folder.exists(), path.is_dir())))
    remove_published(folder)
    ((path, *found),) = seen
    assert path.name.startswith(".tmp-index-00000000-") and found == [False, True]
