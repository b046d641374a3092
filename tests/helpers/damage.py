"""Random damage to a pack, and the findings that a check must report.

A pack is damaged in a copy whose files are hard links (`linked_copy`), so every change here
replaces the old file with a new one.
"""

import os
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa1bpack.format.arrays import ChunkFile
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.verify_shard import HEAVY_ARRAYS

KINDS = {
    "flip": 10, "truncate": 4, "extend": 2, "swap": 2, "missing": 2, "extra": 2, "link": 2,
    "shard": 2,
}  # fmt: skip


@dataclass
class Damage:
    """The damage done, and the expected findings.

    what        description for messages
    kind        one of KINDS
    place       kind of the file, such as "bbox", "zarr.json of an array", "index"
    shard       damaged shard; None for the pack's own files
    array       damaged array, of the shard or of the index
    samples     rows in the shard, at least one of which a check must name; empty for no sample
    names       texts, one of which a check must report
    harmless    nothing is damaged: a check notes it, and everything is read as before
    quick       whether the quick check of sa1bpack finds it
    quick_script  whether the quick check of verify_shards.py does
    """

    what: str
    kind: str
    place: str
    names: tuple[str, ...]
    shard: str | None = None
    array: str | None = None
    samples: frozenset[int] = frozenset()
    quick: bool = True
    quick_script: bool = True
    harmless: bool = False


def linked_copy(root: Path, copy: Path) -> Path:
    """A copy of a pack that shares its files."""
    return Path(shutil.copytree(root, copy, copy_function=os.link))


class Damager:
    """Damages copies of one pack at random."""

    def __init__(self, root: Path, rng: random.Random):
        self._rng = rng
        self._manifest = read_manifest(root)
        self._shards = {
            entry.name: open_shard(root / "shards" / entry.name) for entry in self._manifest.shards
        }
        paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
        names = [str(path.relative_to(root)) for path in paths]
        self._files = [name for name in names if name[0] != "."]  # the packer's working files
        self._contents = {name: (root / name).read_bytes() for name in self._files}
        self._places: dict[str, list[str]] = {}
        for name in self._files:
            self._places.setdefault(_place_of(name), []).append(name)

    @property
    def places(self) -> set[str]:
        """The kinds of files in the pack."""
        return set(self._places)

    def damage(self, root: Path, kind: str | None = None, place: str | None = None) -> Damage:
        """Damage a copy of the pack; kind of damage and kind of file are random by default."""
        kind = kind or self._rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "shard":
            return self._damage_shard(root)
        name = self._rng.choice(self._places[place or self._rng.choice(sorted(self._places))])
        return getattr(self, f"_{kind}")(root, name)

    # ------------------------------------------------------------------------ kinds of damage

    def _flip(self, root: Path, name: str) -> Damage:
        data = bytearray(self._contents[name])
        at, bit = self._byte(name), self._rng.randrange(8)
        data[at] ^= 1 << bit
        _replace(root / name, bytes(data))
        damage = self._damage(name, "flip", f"bit {bit} of byte {at}")
        damage.samples = self._samples(name, at)
        if self._is_heavy(name):
            damage.quick, damage.quick_script = at >= self._data_bytes(name), False
        return damage

    def _truncate(self, root: Path, name: str) -> Damage:
        data = self._contents[name]
        left = self._rng.choice((len(data) - 1, len(data) // 2, 0))
        _replace(root / name, data[:left])
        return self._damage(name, "truncate", f"to {left} of {len(data)} bytes")

    def _extend(self, root: Path, name: str) -> Damage:
        more = self._rng.randbytes(self._rng.choice((1, 16, 4096)))
        _replace(root / name, self._contents[name] + more)
        return self._damage(name, "extend", f"by {len(more)} bytes")

    def _swap(self, root: Path, name: str) -> Damage:
        """With another file, if possible of the same length, such as one of another shard."""
        data = self._contents[name]
        others = [other for other in self._files if self._contents[other] != data]
        same = [other for other in others if len(self._contents[other]) == len(data)]
        twins = [other for other in others if _place_of(other) == _place_of(name)]
        other = self._rng.choice(same or twins or others)
        _replace(root / name, self._contents[other])
        _replace(root / other, data)
        damage = self._damage(name, "swap", f"with {other}")
        if "manifest.json" in (name, other):  # without it nothing else is checked
            damage.names += ("manifest.json",)
        if len(self._contents[other]) == len(data) and self._is_heavy(name, other):
            damage.quick = any(
                self._contents[name][self._data_bytes(one) :]
                != self._contents[other][self._data_bytes(one) :]
                for one in (name, other)
            )
            damage.quick_script = False
        return damage

    def _missing(self, root: Path, name: str) -> Damage:
        (root / name).unlink()
        return self._damage(name, "missing", "removed")

    def _extra(self, root: Path, name: str) -> Damage:
        new = str(Path(name).with_name(self._rng.choice(("c.9", "notes.txt", "zarr.json~"))))
        (root / new).write_bytes(self._rng.randbytes(self._rng.randrange(100)))
        return self._damage(new, "extra", "added")

    def _link(self, root: Path, name: str) -> Damage:
        """The same bytes, through a symbolic link to a file elsewhere."""
        away = root.with_name(root.name + "-away")
        away.mkdir(exist_ok=True)
        target = away / name.replace("/", "_")
        (root / name).rename(target)
        (root / name).symlink_to(target)
        damage = self._damage(name, "link", "made a symbolic link")
        damage.harmless = True
        return damage

    def _damage_shard(self, root: Path) -> Damage:
        name = self._rng.choice(sorted(self._shards))
        folder, other = root / "shards" / name, self._rng.choice(("copy of it", "sa_999999-000"))
        way = self._rng.choice(("removed", "doubled", "renamed", "linked"))
        names = name
        if way == "removed":
            shutil.rmtree(folder)
        elif way == "doubled":
            linked_copy(folder, folder.with_name(other))
            names = other
        elif way == "renamed":
            folder.rename(folder.with_name(other))
        else:
            folder.rename(root.with_name(root.name + "-shard"))
            folder.symlink_to(root.with_name(root.name + "-shard"))
        hit = None if way == "doubled" else name
        return Damage(
            f"shard {name} {way}", "shard", "shard", (names,), hit, harmless=way == "linked"
        )

    # ---------------------------------------------------------------------- expected findings

    def _damage(self, name: str, kind: str, how: str) -> Damage:
        shard, array = _parts_of(name)
        names = name if array is None else f"{name.split('/')[-3]}/{array}"
        if array is None:
            names = Path(name).name if shard else name
        return Damage(f"{name}: {how}", kind, _place_of(name), (names,), shard, array)

    def _is_heavy(self, *names: str) -> bool:
        """Whether quick checks skip the data of all these files, and the script skips the files."""
        return all(_place_of(name) in HEAVY_ARRAYS for name in names)

    def _byte(self, name: str) -> int:
        """A random byte of a file; in chunk files, 70% in the data and 30% in the shard index."""
        size, rng = len(self._contents[name]), self._rng
        shard, array = _parts_of(name)
        if shard is None or array is None or name.endswith("zarr.json"):
            return rng.randrange(size)
        data = self._data_bytes(name)
        return rng.randrange(data) if rng.random() < 0.7 else rng.randrange(data, size)

    def _data_bytes(self, name: str) -> int:
        shard, array = _parts_of(name)
        spec = self._shards[shard].layout.array(array)
        return ChunkFile(spec, spec.rows(self._shards[shard].extent)).data_bytes

    def _samples(self, name: str, at: int) -> frozenset[int]:
        """The samples to which a byte of a shard's chunk file belongs."""
        shard_name, array = _parts_of(name)
        if shard_name is None or array is None or name.endswith("zarr.json"):
            return frozenset()
        if at >= self._data_bytes(name):
            return frozenset()
        shard = self._shards[shard_name]
        spec = shard.layout.array(array)
        row = at // spec.row_bytes
        if spec.offsets:
            if row in (0, spec.rows(shard.extent) - 1):
                return frozenset()  # a wrong end concerns the complete array
            return frozenset({_sample_of(shard, spec.axis, row - 1),
                              _sample_of(shard, spec.axis, row)})  # fmt: skip
        return frozenset({_sample_of(shard, spec.axis, row)})


def _sample_of(shard, axis: str, row: int) -> int:
    if axis == "run":
        row, axis = int(np.searchsorted(shard["run_offset"], row, side="right")) - 1, "mask"
    if axis == "mask":
        row = int(np.searchsorted(shard["mask_offset"], row, side="right")) - 1
    if axis == "image_byte":
        row = int(np.searchsorted(shard["image_offset"], row, side="right")) - 1
    return row


def _parts_of(name: str) -> tuple[str | None, str | None]:
    """The shard and the array of a file; for the index only the array."""
    parts = name.split("/")
    if parts[0] == "shards" and len(parts) > 2:
        return parts[1], parts[2] if len(parts) == 4 else None
    return None, parts[1] if len(parts) == 3 else None


def _place_of(name: str) -> str:
    """The kind of a file."""
    parts = name.split("/")
    if parts[-1] == "zarr.json":
        owner = "index" if parts[0].startswith("index-") else "shard"
        of = {1: "the pack", 2: f"the {owner}s", 3: f"the {owner}", 4: "an array"}[len(parts)]
        return f"zarr.json of {of}"
    if re.match(r"c(\.0)+$", parts[-1]):
        return parts[-2] if parts[0] == "shards" else f"{parts[-2]} of the index"
    return parts[-1] if len(parts) == 1 else f"{parts[-1]} of a shard"


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)
