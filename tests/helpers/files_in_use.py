"""Commands that remove or replace what a reader has open, on NFS; run by tests/packing/test_nfs.py.

Arguments: the folder of the mount, and a folder elsewhere. For each command, this process opens
all files of the folder that it changes, as a reader of the same machine. Prints a line of JSON:
{"command", "kept", "left"}: hidden names, such as `.nfs…`, that are there after the command, and
those that are left once the reader has ended and the command was repeated. An error ends the
program.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from small_tars import SMALL, members, write_tar

import sa1bpack

WHOLE = {"workers": 1, **SMALL}


def grey(batch):
    """A feature."""
    return batch["images"].float().mean((1, 2, 3))


def open_all(folder: Path) -> ExitStack:
    """A reader that has every file of a folder open."""
    reader = ExitStack()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            reader.enter_context(path.open("rb"))
    return reader


def leftovers(folder: Path) -> list[str]:
    """The hidden names below a folder that no command leaves."""
    usual = (".lock", ".runs.jsonl", ".sa_000000.tar.index")
    paths = folder.rglob(".*")
    return sorted(str(path.relative_to(folder)) for path in paths if path.name not in usual)


def forget_closed(folder: Path) -> None:
    """Remove what NFS removes when a file is closed, but for what is in a folder to be removed."""
    for path in folder.rglob(".nfs*"):
        if not any(name.startswith(".tmp-") for name in path.relative_to(folder).parts):
            path.unlink()


def check(root: Path) -> None:
    """Raise AssertionError unless a pack is sound and can be read."""
    report = sa1bpack.verify(root)
    assert report.ok, report.problems
    ds = sa1bpack.open(root)
    assert len([ds[index] for index in range(len(ds))]) == len(ds) > 0


def damage(root: Path) -> None:
    """Damage every shard, in place."""
    for chunk in root.glob("shards/*/mask_bits/c.*"):
        with chunk.open("r+b") as file:
            file.write(bytes(100))


def pack_more(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """A tar is added: the index that the reader maps is replaced."""
    sa1bpack.pack(first, mount / "more", **WHOLE)
    return mount / "more", lambda: sa1bpack.pack([first, second], mount / "more", **WHOLE)


def withdraw(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """A tar turns out to be corrupt: its shards are removed."""
    data = second.read_bytes()
    second.write_bytes(data[: len(data) * 3 // 4])
    sa1bpack.pack([first, second], mount / "withdrawn", **WHOLE)
    assert len(list((mount / "withdrawn/shards").glob("sa_000001-*"))) > 0
    second.write_bytes(data[:-8] + b"\0\0\0\0" + data[-4:])

    def command() -> None:
        sa1bpack.pack([first, second], mount / "withdrawn", **WHOLE)
        assert not list((mount / "withdrawn/shards").glob("sa_000001-*"))

    return mount / "withdrawn", command


def repair(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """Damaged shards are replaced."""
    root = mount / "repaired"
    sa1bpack.pack(first, root, **WHOLE)

    def command() -> None:
        damage(root)
        assert sa1bpack.repair(root, first, workers=1).ok

    return root, command


def repair_in_parts(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """Damaged shards are replaced by a part."""
    root, _ = repair(mount / "parts", first, second)

    def command() -> None:
        damage(root)
        assert sa1bpack.repair(root, first, part=(1, 1), workers=1).ok
        sa1bpack.repair(root, first, workers=1, quick=True)

    return root, command


def finalize(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """The notes of parts are removed, and the index is replaced."""
    root = mount / "finalized"
    sa1bpack.pack(first, root, **WHOLE)
    sa1bpack.pack_part([first, second], root, (1, 1), **WHOLE)

    def command() -> None:
        assert sa1bpack.finalize(root).complete

    return root, command


def merge(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """A pack is merged into one that is there, with a feature."""
    for name, tar in (("one", first), ("two", second)):
        sa1bpack.pack(tar, mount / name, **WHOLE)
        sa1bpack.derive(sa1bpack.open(mount / name), "grey", grey)
    sa1bpack.merge(mount / "one", mount / "merged")
    packs = [mount / "one", mount / "two"]
    return mount / "merged", lambda: sa1bpack.merge(packs, mount / "merged")


def derive(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """A feature is computed again, after its rows were removed."""
    root = mount / "derived"
    sa1bpack.pack(first, root, **WHOLE)
    ds = sa1bpack.open(root)
    sa1bpack.derive(ds, "grey", grey)
    rows = np.zeros((len(ds), 2), np.float32)

    def command() -> None:
        sa1bpack.derive(ds, "grey", grey)
        sa1bpack.attach(ds, "rows", rows, ds.column("image_id"))

    return root, command


def exports(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """Exports are made again."""
    root = mount / "exported"
    sa1bpack.pack(first, root, **WHOLE)

    def command() -> None:
        sa1bpack.export_sa1b(root, mount / "exports" / "json")
        sa1bpack.export_coco(root, mount / "exports" / "coco.json")
        sa1bpack.report(root, mount / "exports" / "report.html")

    (mount / "exports").mkdir()
    command()
    return mount / "exports", command


def cache(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """Shards are removed from a cache to make room."""
    root = mount / "cached"
    sa1bpack.pack([first, second], root, **WHOLE)
    shard = max(path.name for path in (root / "shards").glob("sa_*"))
    size = sum(path.stat().st_size for path in (root / "shards" / shard).rglob("*"))

    def command() -> None:
        ds = sa1bpack.open(root.as_uri(), cache_dir=mount / "cache", cache_size=4 * size)
        for index in range(len(ds)):
            ds[index]

    command()
    return mount / "cache", command


def tar_index(mount: Path, first: Path, second: Path) -> tuple[Path, Callable]:
    """The index of a tar that has changed is made again, and kept samples are removed."""
    tar = mount / "tars" / "sa_000000.tar"
    tar.parent.mkdir()

    def command() -> None:
        write_tar(tar, members(range(command.first, command.first + 8)))
        command.first += 10
        options = sa1bpack.PackOptions(**SMALL)
        kept = {"cache_dir": mount / "tars" / "kept", "cache_dir_size": 60_000}
        ds = sa1bpack.TarDataset(tar, options=options, **kept)
        assert len([ds[index] for index in range(len(ds))]) == 8
        tar.unlink()  # a reader of the tar itself is not what is tried

    command.first = 0
    command()
    return mount / "tars", command


def main(mount: Path, elsewhere: Path) -> None:
    """Run all commands."""
    mount = mount.resolve()
    commands = [
        pack_more,
        withdraw,
        repair,
        repair_in_parts,
        finalize,
        merge,
        derive,
        exports,
        cache,
        tar_index,
    ]
    for prepare in commands:
        first = write_tar(elsewhere / "sa_000000.tar", members(range(5)))
        second = write_tar(elsewhere / "sa_000001.tar", members(range(10, 20)))
        folder, command = prepare(mount, first, second)
        os.environ["READERS"] = str(os.getpid())
        is_pack = (folder / "manifest.json").exists()
        with open_all(folder):
            for _ in range(2):  # what was kept stops no other run
                command()
            kept = leftovers(folder)
            if is_pack:
                check(folder)
        forget_closed(folder)
        for _ in range(2):
            command()
        forget_closed(folder)  # of locks that were removed before they were closed
        if is_pack:
            check(folder)
        del os.environ["READERS"]
        line = {"command": prepare.__name__, "kept": kept, "left": leftovers(folder)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
