"""Random damage to a pack, and the findings that a check must report.

A pack is damaged in a copy whose files are hard links (`linked_copy`), so every change here
replaces the old file with a new one.
"""

import os
import random
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from format_files import Array, array_table, manifest_of
from shard_files import arrays_of

# Large: the quick checks compare the sizes of their files alone.
HEAVY_ARRAYS = ("image", "mask_bits", "run_ends")
KINDS = {
    "flip": 10, "truncate": 4, "extend": 2, "swap": 2, "missing": 2, "extra": 2, "link": 2,
    "shard": 2,
}  # fmt: skip


@dataclass
class Damage:
    """The damage done, and the expected findings.

    Attributes:
        what: description for messages.
        kind: one of KINDS.
        place: kind of the file, such as "bbox", "zarr.json of an array", "index".
        shard: damaged shard; None for the pack's own files.
        array: damaged array, of the shard or of the index.
        samples: rows in the shard, at least one of which a check must name; empty for no sample.
        names: texts, one of which a check must report.
        harmless: nothing is damaged: a check notes it, and everything is read as before.
        quick: whether the quick checks, of sa1bpack and of verify_shards.py, find it.
    """

    what: str
    kind: str
    place: str
    names: tuple[str, ...]
    shard: str | None = None
    array: str | None = None
    samples: frozenset[int] = frozenset()
    quick: bool = True
    harmless: bool = False


def linked_copy(root: Path, copy: Path) -> Path:
    """A copy of a pack that shares its files."""
    return Path(shutil.copytree(root, copy, copy_function=os.link))


@dataclass(frozen=True)
class _File:
    """A file of a pack.

    Attributes:
        place: its kind, such as "bbox", "zarr.json of an array", "manifest.json".
        shard, array: that it belongs to; of the index only the array.
        data: its bytes.
        payload: how many of them are of the array of a shard, before the index of its chunks.
    """

    name: str
    place: str
    shard: str | None
    array: str | None
    data: bytes = b""
    payload: int = 0

    @classmethod
    def at(cls, name: str, **content) -> "_File":
        parts = name.split("/")
        shard, array = None, parts[1] if len(parts) == 3 else None
        if parts[0] == "shards" and len(parts) > 2:
            shard, array = parts[1], parts[2] if len(parts) == 4 else None
        owner = "index" if parts[0].startswith("index-") else "shard"
        place = parts[-1] if len(parts) == 1 else f"{parts[-1]} of a shard"
        if parts[-1] == "zarr.json":
            of = {1: "the pack", 2: f"the {owner}s", 3: f"the {owner}", 4: "an array"}[len(parts)]
            place = f"zarr.json of {of}"
        elif re.match(r"c(\.0)+$", parts[-1]):
            place = parts[-2] if parts[0] == "shards" else f"{parts[-2]} of the index"
        return cls(name, place, shard, array, **content)

    def damaged(self, kind: str, how: str, **expected) -> Damage:
        """What a check must report of a damage to this file."""
        named = Path(self.name).name if self.shard else self.name
        if self.array is not None:
            named = f"{self.name.split('/')[-3]}/{self.array}"
        what = f"{self.name}: {how}"
        return Damage(what, kind, self.place, (named,), self.shard, self.array, **expected)


class Damager:
    """Damages copies of one pack at random."""

    def __init__(self, root: Path, rng: random.Random):
        self._rng = rng
        manifest = manifest_of(root)
        names = [entry["name"] for entry in manifest["shards"]]
        self._shards = {name: arrays_of(root / "shards" / name) for name in names}
        self._described = array_table(manifest["layout"])
        self._places: dict[str, list[_File]] = {}
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_file() and name[0] != ".":  # those are the packer's working files
                file = _File.at(name, data=path.read_bytes())
                if file.place in self._described:
                    file = replace(file, payload=self._shards[file.shard][file.array].nbytes)
                self._places.setdefault(file.place, []).append(file)

    @property
    def places(self) -> set[str]:
        """The kinds of files in the pack."""
        return set(self._places)

    def damage(self, root: Path, kind: str | None = None, place: str | None = None) -> Damage:
        """Damage a copy of the pack; kind of damage and kind of file are random by default."""
        kind = kind or self._rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "shard":
            return self._damage_shard(root)
        file = self._rng.choice(self._places[place or self._rng.choice(sorted(self._places))])
        return getattr(self, f"_{kind}")(root / file.name, file)

    # ------------------------------------------------------------------------ kinds of damage

    def _flip(self, path: Path, file: _File) -> Damage:
        data, bit, payload = bytearray(file.data), self._rng.randrange(8), file.payload
        begin, stop = 0, len(data)
        if payload:  # 70% in the data
            begin, stop = (0, payload) if self._rng.random() < 0.7 else (payload, stop)
        at = self._rng.randrange(begin, stop)
        data[at] ^= 1 << bit
        _replace(path, bytes(data))
        quick, samples = file.place not in HEAVY_ARRAYS, self._samples(file, at)
        return file.damaged("flip", f"bit {bit} of byte {at}", samples=samples, quick=quick)

    def _truncate(self, path: Path, file: _File) -> Damage:
        left = self._rng.choice((len(file.data) - 1, len(file.data) // 2, 0))
        _replace(path, file.data[:left])
        return file.damaged("truncate", f"to {left} of {len(file.data)} bytes")

    def _extend(self, path: Path, file: _File) -> Damage:
        more = self._rng.randbytes(self._rng.choice((1, 16, 4096)))
        _replace(path, file.data + more)
        return file.damaged("extend", f"by {len(more)} bytes")

    def _swap(self, path: Path, file: _File) -> Damage:
        """With another file, if possible of the same length, such as one of another shard."""
        others = [each for files in self._places.values() for each in files]
        others = [each for each in others if each.data != file.data]
        same = [each for each in others if len(each.data) == len(file.data)]
        twins = [each for each in others if each.place == file.place]
        other = self._rng.choice(same or twins or others)
        _replace(path, other.data)
        _replace(path.parents[file.name.count("/")] / other.name, file.data)
        damage = file.damaged("swap", f"with {other.name}")
        if "manifest.json" in (file.name, other.name):  # without it nothing else is checked
            damage.names += ("manifest.json",)
        # Quick checks compare sizes of these files alone.
        damage.quick = not (other in same and {file.place, other.place} <= {*HEAVY_ARRAYS})
        return damage

    def _missing(self, path: Path, file: _File) -> Damage:
        path.unlink()
        return file.damaged("missing", "removed")

    def _extra(self, path: Path, file: _File) -> Damage:
        name = self._rng.choice(("c.9", "notes.txt", "zarr.json~"))
        path.with_name(name).write_bytes(self._rng.randbytes(self._rng.randrange(100)))
        return _File.at(str(Path(file.name).with_name(name))).damaged("extra", "added")

    def _link(self, path: Path, file: _File) -> Damage:
        """The same bytes, through a symbolic link to a file elsewhere."""
        root = path.parents[file.name.count("/")]
        away = root.with_name(root.name + "-away")
        away.mkdir(exist_ok=True)
        target = path.rename(away / file.name.replace("/", "_"))
        path.symlink_to(target)
        return file.damaged("link", "made a symbolic link", harmless=True)

    def _damage_shard(self, root: Path) -> Damage:
        name = self._rng.choice(sorted(self._shards))
        folder, other = root / "shards" / name, self._rng.choice(("copy of it", "sa_999999-000"))
        way = self._rng.choice(("removed", "doubled", "renamed", "linked"))
        if way == "removed":
            shutil.rmtree(folder)
        elif way == "doubled":
            linked_copy(folder, folder.with_name(other))
        elif way == "renamed":
            folder.rename(folder.with_name(other))
        else:
            folder.symlink_to(folder.rename(root.with_name(root.name + "-shard")))
        hit, named = (None, other) if way == "doubled" else (name, name)
        what = f"shard {name} {way}"
        return Damage(what, "shard", "shard", (named,), hit, harmless=way == "linked")

    def _samples(self, file: _File, at: int) -> frozenset[int]:
        """The samples to which a byte of a shard's array belongs."""
        if at >= file.payload:
            return frozenset()
        arrays, array = self._shards[file.shard], self._described[file.array]
        rows = arrays[file.array]
        row = at * len(rows) // rows.nbytes
        if not array.offsets:
            return frozenset({_sample_of(arrays, array, row)})
        if row in (0, len(rows) - 1):
            return frozenset()  # a wrong end concerns the complete array
        return frozenset(_sample_of(arrays, array, each) for each in (row - 1, row))


def _sample_of(arrays: dict[str, np.ndarray], array: Array, row: int) -> int:
    offsets = {"run": ("run_offset", "mask_offset"), "mask": ("mask_offset",)}
    for name in (offsets | {"image_byte": ("image_offset",)}).get(array.axis, ()):
        row = int(np.searchsorted(arrays[name], row, side="right")) - 1
    return row


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)
