"""Packs whose metadata is random: structure, lengths and pixels are those of a sound pack."""

from pathlib import Path
from typing import Any

import numpy as np
from damage import linked_copy
from format_files import array_table, layout_of, manifest_of
from reading_packs import write_pack
from shard_files import arrays_of, writable_array

LAYOUTS = {
    "pad": layout_of(),
    "native": layout_of(fit="native", pixels="yuv420", bits=False),
    "squash": layout_of(fit="squash", runs=False),
}
SHARD = "sa_000001-000"  # the one that is damaged: samples 4, 5 and 6
ROWS = (4, 5, 6)
# Any bytes; values between those that were there, which more of the checks let pass; a few of the
# smallest, 0, 1 and the largest.
WAYS = ("bytes", "near", "extreme")
PAYLOAD = ("image", "mask_bits")  # any bytes are right there


def targets(layout: dict[str, Any]) -> list[str]:
    """What can be made random: arrays of the shard, arrays of the index, and all at once."""
    index = ["index/image_id", "index/id_order", "index/mask_offset"]
    return [*metadata(layout), *index, "all of the shard", "all"]


def metadata(layout: dict[str, Any]) -> list[str]:
    """The arrays of a shard that are made random."""
    return [name for name in array_table(layout) if name not in PAYLOAD]


class Hostile:
    """Makes copies of a sound pack, and writes random bytes into their arrays."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._made = 0

    def pack(self, name: str, target: str | None, seed: int = 0) -> Path:
        """A copy of the pack of a layout, with the bytes of a target random; None: a sound one."""
        sound = self._folder / f"sound-{name}"
        if not sound.exists():
            write_pack(sound, layout=LAYOUTS[name])
        if target is None:
            return sound
        self._made += 1
        root = linked_copy(sound, self._folder / f"hostile-{self._made}")
        damage(root, target, np.random.default_rng([seed, *target.encode()]), WAYS[seed % 3])
        return root


def damage(root: Path, target: str, rng: np.random.Generator, way: str) -> None:
    """Write random values into arrays of a pack, in one of WAYS."""
    layout = manifest_of(root)["layout"]
    chosen = [target]
    if target.startswith("all"):
        chosen = metadata(layout)
    if target == "all":
        chosen = [name for name in targets(layout) if not name.startswith("all")]
    for name in chosen:
        of_index = name.startswith("index/")
        group = root / (manifest_of(root)["index"] if of_index else f"shards/{SHARD}")
        array = name.removeprefix("index/")
        for path in (group / array).glob("c.*"):  # it may be shared with the sound pack
            path.rename(path.with_name("shared"))
            path.write_bytes(path.with_name("shared").read_bytes())
            path.with_name("shared").unlink()
            _randomise(writable_array(group, array), array.endswith("_offset"), rng, way)


def _randomise(rows: np.ndarray, offsets: bool, rng: np.random.Generator, way: str) -> None:
    """Give the rows of an array random values.

    The ends of offsets stay: without them the array is refused before anything else happens.
    """
    values = rows.reshape(-1)
    kept = values[0], values[-1]
    if way == "bytes":
        values[:] = np.frombuffer(rng.bytes(values.nbytes), values.dtype)
    elif values.dtype.kind == "f":
        values[:] = rng.choice([np.nan, np.inf, -np.inf, -1.5, 0.0, 1e308, -1e-310], len(values))
    elif way == "near":
        low, high = int(values.min()), int(values.max())
        values[:] = rng.integers(low, high, len(values), endpoint=True, dtype=values.dtype)
    else:
        limits = np.iinfo(values.dtype)
        for value in (limits.max, 1, limits.min, 0):
            values[rng.integers(len(values), size=max(1, len(values) // 20))] = value
    if offsets:
        values[0], values[-1] = kept


class Found:
    """What the files of a pack hold, read without sa1bpack's readers."""

    def __init__(self, root: Path):
        manifest = manifest_of(root)
        self._names = [entry["name"] for entry in manifest["shards"]]
        self._counts = [entry["samples"] for entry in manifest["shards"]]
        self._shards = [arrays_of(root / "shards" / name) for name in self._names]
        self._described = array_table(manifest["layout"])
        self.index = arrays_of(root / manifest["index"])

    def shard_name(self, row: int) -> str:
        return self._names[self._place(row)[0]]

    def _place(self, row: int) -> tuple[int, int]:
        for number, count in enumerate(self._counts):
            if row < count:
                return number, row
            row -= count
        raise IndexError(row)

    def sample(self, row: int) -> dict[str, np.ndarray]:
        """The rows of a sample by name of the array; of its masks by the shard's own offsets."""
        number, local = self._place(row)
        arrays = self._shards[number]
        first, stop = arrays["mask_offset"][local : local + 2].tolist()
        found = {}
        for name, array in self._described.items():
            if array.axis in ("sample", "mask") and not array.offsets:
                found[name] = arrays[name][local if array.axis == "sample" else slice(first, stop)]
        found["image_id"] = self.index["image_id"][row]
        if "image_offset" in arrays:
            begin, end = arrays["image_offset"][local : local + 2].tolist()
            found["image"] = arrays["image"][begin:end]
        if "run_offset" in arrays:
            offset = arrays["run_offset"][first : stop + 1]
            found["run_offset"] = offset - offset[0]
            found["run_ends"] = arrays["run_ends"][offset[0] : offset[-1]]
        return found

    def column(self, name: str) -> np.ndarray:
        """An array of all shards, joined."""
        return np.concatenate([arrays[name] for arrays in self._shards])
