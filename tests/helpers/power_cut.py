"""The effect of a power cut: a record of a run's calls, and the folders that may remain on disk.

The model is what POSIX guarantees and no more. The bytes of a file are safe up to its last fsync;
later writes may be present, zero or missing. Names in a folder are safe up to the folder's last
fsync; of the later changes (new, renamed and removed names), any prefix may have reached the disk,
in each folder independently.
"""

import os
import pickle
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

from faults import path_of


def record(root: Path, log: Path) -> None:
    """Record every call below `root` that this process makes from now on, for `read_log`."""
    # Unbuffered: the process may be killed. Locked: a call and its record are atomic.
    file = log.open("ab", buffering=0)
    lock = threading.RLock()

    def recorded(name: str, call):
        def layered(target, *arguments, **named):
            with lock:
                path = path_of(target, named.get("dir_fd"))
                result = call(target, *arguments, **named)
                if name == "pwrite":
                    arguments = bytes(arguments[0][:result]), arguments[1]
                reads = name == "open" and not arguments[0] & os.O_CREAT
                if not reads and f"{path}/".startswith(f"{root}/"):
                    file.write(pickle.dumps((name, path, *arguments)))
                return result

        return layered

    for name in ("open", "mkdir", "pwrite", "ftruncate", "fsync", "rename", "unlink", "rmdir"):
        setattr(os, name, recorded(name, getattr(os, name)))


def read_log(log: Path) -> list[tuple]:
    """(call, path, ...) of every call that `record` wrote to `log`."""
    found, size = [], log.stat().st_size
    with log.open("rb") as file:
        while file.tell() < size:
            found.append(pickle.load(file))
    return found


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    safe: bytes = b""


@dataclass
class _Folder:
    names: dict = field(default_factory=dict)
    safe: dict = field(default_factory=dict)
    since: list = field(default_factory=list)  # states of `names` after each change


class Disk:
    """A folder as the calls leave it, and as a power cut may leave it.

    Args:
        folder: its current contents are safe.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._root = _load(folder)

    def apply(self, name: str, path: str, *rest) -> None:
        """Apply the next call of a log."""
        getattr(self, f"_{name}")(path, *rest)

    def restore(self, into: Path, rng: random.Random | None) -> None:
        """Write the contents that a power cut now leaves to a new folder.

        Args:
            rng: chooses which unsafe changes remain; None: none do.
        """
        _write(self._root, into, rng)

    def is_safe(self, path: str) -> bool:
        """Whether a power cut would leave all of its contents, if it left its name."""
        return _safe(self._at(path))

    def _at(self, path: str | Path):
        node = self._root
        for part in Path(path).relative_to(self._folder).parts:
            node = node.names[part]
        return node

    def _change(self, path: str, node) -> None:
        """Replace the node of a name; None removes it."""
        folder, name = self._at(Path(path).parent), Path(path).name
        folder.names = {key: value for key, value in folder.names.items() if key != name}
        if node is not None:
            folder.names[name] = node
        folder.since.append(folder.names)

    def _open(self, path: str, *_) -> None:
        if Path(path).name not in self._at(Path(path).parent).names:
            self._change(path, _File())

    def _mkdir(self, path: str, *_) -> None:
        self._change(path, _Folder())

    def _unlink(self, path: str) -> None:
        self._change(path, None)

    _rmdir = _unlink

    def _rename(self, path: str, target: str) -> None:
        node, folder = self._at(path), self._at(Path(path).parent)
        assert Path(path).parent == Path(target).parent
        before = len(folder.since)
        self._change(path, None)
        self._change(target, node)
        del folder.since[before]  # a rename is one change

    def _pwrite(self, path: str, data: bytes, offset: int) -> None:
        file = self._at(path).data
        file.extend(bytes(max(0, offset - len(file))))
        file[offset : offset + len(data)] = data

    def _ftruncate(self, path: str, size: int) -> None:
        file = self._at(path).data
        file.extend(bytes(max(0, size - len(file))))
        del file[size:]

    def _fsync(self, path: str) -> None:
        node = self._at(path)
        if isinstance(node, _File):
            node.safe = bytes(node.data)
        else:
            node.safe, node.since = node.names, []


def _load(path: Path):
    if path.is_file():
        data = path.read_bytes()
        return _File(bytearray(data), data)
    names = {child.name: _load(child) for child in path.iterdir()}
    return _Folder(names, names)


def _safe(node) -> bool:
    if isinstance(node, _File):
        return node.data == node.safe
    return node.names == node.safe and all(map(_safe, node.names.values()))


def _write(node, path: Path, rng: random.Random | None) -> None:
    if isinstance(node, _File):
        left = [node.safe]
        if node.data != node.safe:
            left += [bytes(node.data), bytes(len(node.data))]
        path.write_bytes(rng.choice(left) if rng else node.safe)
        return
    path.mkdir()
    names = rng.choice([node.safe, *node.since]) if rng else node.safe
    for name, child in names.items():
        _write(child, path / name, rng)
