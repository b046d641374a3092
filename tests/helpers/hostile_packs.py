"""Packs whose metadata is random: structure, lengths and pixels are those of a sound pack."""

from pathlib import Path

import numpy as np
from damage import linked_copy
from reading_packs import write_pack

from sa1bpack.format.index import index_arrays
from sa1bpack.format.layout import ArraySpec, Layout
from sa1bpack.format.manifest import read_manifest

LAYOUTS = {
    "pad": Layout(image_size=24, mask_size=16),
    "native": Layout(
        image_size=24, mask_size=16, fit="native", pixels="yuv420", bits=False, runs=True
    ),
    "squash": Layout(image_size=24, mask_size=16, fit="squash", runs=False),
}
SHARD = "sa_000001-000"  # the one that is damaged: samples 4, 5 and 6
ROWS = (4, 5, 6)
# Any bytes; values between those that were there, which more of the checks let pass; a few of the
# smallest, 0, 1 and the largest.
WAYS = ("bytes", "near", "extreme")
PAYLOAD = ("image", "mask_bits")  # any bytes are right there


def targets(layout: Layout) -> list[str]:
    """What can be made random: arrays of the shard, arrays of the index, and all at once."""
    index = ["index/image_id", "index/id_order", "index/mask_offset"]
    return [*metadata(layout), *index, "all of the shard", "all"]


def metadata(layout: Layout) -> list[str]:
    """The arrays of a shard that are made random."""
    return [spec.name for spec in layout.arrays if spec.name not in PAYLOAD]


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


def chunk_path(folder: Path) -> Path:
    """The chunk file of an array."""
    [path] = folder.glob("c.*")
    return path


def damage(root: Path, target: str, rng: np.random.Generator, way: str) -> None:
    """Write random values into arrays of a pack, in one of WAYS."""
    shard, manifest = root / "shards" / SHARD, read_manifest(root)
    entry = next(entry for entry in manifest.shards if entry.name == SHARD)
    found = {spec.name: (shard, spec, spec.rows(entry.lengths)) for spec in manifest.layout.arrays}
    found |= {f"index/{spec.name}": (root / manifest.index, spec, rows)
              for spec, rows in index_arrays(manifest).items()}  # fmt: skip
    chosen = [target]
    if target.startswith("all"):
        chosen = metadata(manifest.layout)
    if target == "all":
        chosen = [name for name in targets(manifest.layout) if not name.startswith("all")]
    for name in chosen:
        folder, spec, rows = found[name]
        if rows:
            _randomise(chunk_path(folder / spec.name), spec, rows, rng, way)


def _randomise(path: Path, spec: ArraySpec, rows: int, rng, way: str) -> None:
    """Give the rows of an array random values; what is after them in the file stays.

    The ends of offsets stay too: without them the array is refused before anything else happens.
    """
    data = bytearray(path.read_bytes())
    values = np.frombuffer(data, spec.dtype, rows * spec.row_bytes // spec.dtype.itemsize)
    kept = values[0], values[-1]
    if way == "bytes":
        values[:] = np.frombuffer(rng.bytes(values.nbytes), spec.dtype)
    elif spec.dtype.kind == "f":
        values[:] = rng.choice([np.nan, np.inf, -np.inf, -1.5, 0.0, 1e308, -1e-310], len(values))
    elif way == "near":
        low, high = int(values.min()), int(values.max())
        values[:] = rng.integers(low, high, len(values), endpoint=True, dtype=spec.dtype)
    else:
        limits = np.iinfo(spec.dtype)
        for value in (limits.max, 1, limits.min, 0):
            values[rng.integers(len(values), size=max(1, len(values) // 20))] = value
    if spec.offsets:
        values[0], values[-1] = kept
    path.unlink()  # it may be shared with the sound pack
    path.write_bytes(data)


class Found:
    """What the files of a pack hold, read without sa1bpack's readers."""

    def __init__(self, root: Path):
        self._manifest = read_manifest(root)
        self._shards = [
            self._arrays(
                root / "shards" / entry.name, self._manifest.layout.array_rows(entry.lengths)
            )
            for entry in self._manifest.shards
        ]
        self.index = self._arrays(root / self._manifest.index, index_arrays(self._manifest))

    @staticmethod
    def _arrays(folder: Path, specs) -> dict[str, np.ndarray]:
        return {
            spec.name: np.fromfile(chunk_path(folder / spec.name), spec.dtype,
                                   rows * spec.row_bytes // spec.dtype.itemsize)
                       .reshape(rows, *spec.row_shape)
            if rows else np.empty((0, *spec.row_shape), spec.dtype)
            for spec, rows in specs.items()
        }  # fmt: skip

    def shard_name(self, row: int) -> str:
        return self._manifest.shards[self._place(row)[0]].name

    def _place(self, row: int) -> tuple[int, int]:
        for number, entry in enumerate(self._manifest.shards):
            if row < entry.samples:
                return number, row
            row -= entry.samples
        raise IndexError(row)

    def sample(self, row: int) -> dict[str, np.ndarray]:
        """The rows of a sample by name of the array; of its masks by the shard's own offsets."""
        number, local = self._place(row)
        arrays = self._shards[number]
        first, stop = arrays["mask_offset"][local : local + 2].tolist()
        found = {}
        for spec in self._manifest.layout.arrays:
            if spec.axis in ("sample", "mask") and not spec.offsets:
                of_sample = local if spec.axis == "sample" else slice(first, stop)
                found[spec.name] = arrays[spec.name][of_sample]
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
