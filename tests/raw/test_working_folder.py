"""What was opened by relative paths is read after the process has changed its working folder."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_tars import SMALL, members, pack_small, write_tar

import sa1bpack


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with packs, a feature in another folder, a selection, and sources of all kinds."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_tar(Path("sa_000000.tar"), members(range(5)))
        write_tar(Path("sa_000001.tar"), members(range(10, 13)), compress=False)
        Path("sa_000002").mkdir()
        for name, data in members(range(20, 22)).items():
            Path("sa_000002", name).write_bytes(data)
        for name, tar in (("one", "sa_000000.tar"), ("two", "sa_000001.tar")):
            pack_small(tar, name)
            ds = sa1bpack.open(name)
            rows = np.ones((len(ds), 2), np.float32)
            sa1bpack.attach(ds, "f", rows, ds.column("image_id"), output="features/f")
        sa1bpack.open(["one", "two"])[[0, 6]].save_selection("selection")
        (Path("elsewhere")).mkdir()
    return folder


TARS = ["sa_000000.tar", "sa_000001.tar", "sa_000002"]
OPTIONS = sa1bpack.PackOptions(**SMALL)
KEPT = {"cache_dir": "kept", "cache_dir_size": "1 MB"}
OPENERS: dict[str, Callable] = {
    "a pack": lambda: sa1bpack.open("one"),
    "packs": lambda: sa1bpack.open(["one", "two"]),
    "a pattern": lambda: sa1bpack.open("t*o"),
    "a feature": lambda: sa1bpack.open(["one", "two"], features="features/f"),
    "a selection": lambda: sa1bpack.open("selection"),
    "a cache": lambda: sa1bpack.open(
        Path("one").absolute().as_uri(), cache_dir="cache", cache_size="1 GB"
    ),
    "options": lambda: sa1bpack.open("one", features="features/f").with_options(min_area=1),
    "tars": lambda: sa1bpack.TarDataset(TARS, options=OPTIONS),
    "a pattern of tars": lambda: sa1bpack.TarDataset("sa_*.tar", options=OPTIONS),
    "indices": lambda: sa1bpack.TarDataset(TARS, options=OPTIONS, index_folder="indices"),
    "kept samples": lambda: sa1bpack.TarDataset(TARS, options=OPTIONS, **KEPT),
    "a stream": lambda: sa1bpack.IterableTarDataset(TARS, options=OPTIONS),
    "a spool": lambda: sa1bpack.IterableTarDataset(TARS, options=OPTIONS, spool_folder="indices"),
}


def through_getitem(ds) -> list[int]:
    if isinstance(ds, sa1bpack.IterableTarDataset):
        return [int(sample["image_id"]) for sample in ds]
    return [int(ds[index]["image_id"]) for index in range(len(ds))]


def through_a_loader(ds) -> list[int]:
    if isinstance(ds, sa1bpack.IterableTarDataset | sa1bpack.TarDataset):
        return [int(sample["image_id"]) for batch in batches_of(ds) for sample in batch]
    batches = sa1bpack.Loader(ds, batch_size=2, device="cpu")
    return [number for batch in batches for number in batch["image_ids"].tolist()]


def batches_of(ds):
    from torch.utils.data import DataLoader

    return DataLoader(ds, batch_size=2, collate_fn=list)


@pytest.mark.parametrize("opener", OPENERS)
def test_whatever_was_opened_by_a_relative_path_is_read_from_another_working_folder(
    folder, monkeypatch, opener
):
    monkeypatch.chdir(folder)
    Path("indices").mkdir(exist_ok=True)
    expected = sorted(through_getitem(OPENERS[opener]()))
    for read in (through_getitem, through_a_loader):
        for sent in (False, True):  # to a process that works elsewhere, as a spawned worker
            monkeypatch.chdir(folder)
            ds = OPENERS[opener]()
            data = pickle.dumps(ds)
            monkeypatch.chdir("elsewhere")
            assert sorted(read(pickle.loads(data) if sent else ds)) == expected
            assert list(Path().iterdir()) == []
