"""Every call of the system that can fail on a descriptor names its file when it does."""

import errno
import fcntl
import inspect
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from small_tars import members, pack_small, write_tar
from system import failing

import sa1bpack
from sa1bpack.errors import Sa1bpackError

PACKAGE = str(Path(sa1bpack.__file__).parent)
CALLS = [
    *((os, name) for name in ("fstat", "pread", "preadv", "pwrite", "fsync", "fdatasync")),
    *((os, name) for name in ("ftruncate", "utime", "posix_fadvise", "link")),
    *((fcntl, name) for name in ("flock", "ioctl")),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A tar, and a pack of it."""
    folder = tmp_path_factory.mktemp("made")
    tar = write_tar(folder / "sa_000000.tar", members(range(6)))
    pack_small(tar, folder / "pack")
    return tar, folder / "pack"


def loaded(ds) -> None:
    with sa1bpack.Loader(ds, 2, threads=1) as loader:
        for _ in loader:
            pass


def attached(packed: Path, out: Path) -> None:
    ds = sa1bpack.open(packed)
    rows = np.zeros((len(ds), 2), np.float32)
    sa1bpack.attach(ds, "rows", rows, ds.column("image_id"), output=out / "rows")


# What reads and writes, of a tar, a pack, and a folder to write to.
WORK = {
    "pack": lambda tar, packed, out: pack_small(tar, out / "pack"),
    "verify": lambda tar, packed, out: sa1bpack.verify(packed, progress=False, io="cached"),
    "verify directly": lambda tar, packed, out: sa1bpack.verify(packed, progress=False),
    "merge": lambda tar, packed, out: sa1bpack.merge([packed], out / "merged"),
    "a Loader": lambda tar, packed, out: loaded(sa1bpack.open(packed)),
    "a checked Loader": lambda tar, packed, out: loaded(
        sa1bpack.open(packed, verify_checksums=True)
    ),
    "a cached pack": lambda tar, packed, out: loaded(
        sa1bpack.open(packed.as_uri(), cache_dir=out / "cache")
    ),
    "a tar": lambda tar, packed, out: sa1bpack.TarDataset(tar, index_folder=out / "index")[5],
    "export": lambda tar, packed, out: sa1bpack.export_coco(packed, out / "coco.json"),
    "attach": lambda tar, packed, out: attached(packed, out),
    "select": lambda tar, packed, out: sa1bpack.open(packed)[:3].save_selection(out / "chosen"),
}


def folder_of(path: Path) -> Path:
    path.mkdir()
    return path


class Failing:
    """Notes where the package makes calls, and fails the first one of one place.

    Attributes:
        places: (call, file, line) of each place of the package that has made one.
    """

    def __init__(self, monkeypatch, fail: tuple | None):
        self.places: dict[tuple, None] = {}
        for module, name in CALLS:
            monkeypatch.setattr(module, name, self._noting(name, getattr(module, name), fail))

    def _noting(self, name, call, fail):
        def noted(*arguments, **options):
            frame = inspect.currentframe().f_back
            place = (name, frame.f_code.co_filename, frame.f_lineno)
            if place[1].startswith(PACKAGE):
                is_first = place not in self.places
                self.places[place] = None
                if is_first and place == fail:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **options)

        return noted


def test_each_call_that_fails_names_its_file(torture, made, tmp_path, monkeypatch):
    work_of = defaultdict(list)
    for name, work in WORK.items():
        with monkeypatch.context() as patch:
            noting = Failing(patch, None)
            work(*made, folder_of(tmp_path / f"undisturbed {name}"))
        for place in noting.places:
            work_of[place].append(name)
    assert len(work_of) > 20
    raised, unnamed = 0, []
    for number, (place, names) in enumerate(work_of.items()):
        for name in names[: torture.rounds(1, len(names))]:
            text = f"{place} in {name}"
            with monkeypatch.context() as patch:
                Failing(patch, place)
                try:
                    WORK[name](*made, folder_of(tmp_path / f"{number} {name}"))
                except Sa1bpackError as error:
                    if "/" not in str(error) or "None" in str(error):
                        unnamed.append(f"{text}: {error}")
                except OSError as error:
                    raised += 1
                    if error.filename is None or str(error.filename) not in str(error):
                        unnamed.append(f"{text}: {error}")
    assert unnamed == [] and raised > 5


@pytest.mark.parametrize("name", ["export", "attach", "select", "merge"])
def test_the_error_told_of_a_disk_that_became_read_only_is_the_first_one(
    made, tmp_path, monkeypatch, name
):
    """Nothing can be removed then either, as after an error of ext4 with errors=remount-ro."""

    def fail(*_) -> None:
        for name in ("unlink", "rmdir"):
            monkeypatch.setattr(os, name, failing(errno.EROFS))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=str(tmp_path)) as caught:
        WORK[name](*made, folder_of(tmp_path / "out"))
    assert caught.value.errno == errno.EIO
