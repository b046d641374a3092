"""docs/format.md a second time: packs written and read by its tables, without sa1bpack."""

import functools
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import xxhash
from shard_files import arrays_of

DOCS = Path(__file__).parents[2] / "docs" / "format.md"
SUMS = "checksums.xxh128"
# Offset array → the axis whose rows it divides.
CHILDREN = {"image_offset": "image_byte", "mask_offset": "mask", "run_offset": "run"}


def section(heading: str) -> str:
    """The text below a heading of docs/format.md."""
    return DOCS.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def documented(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of docs/format.md."""
    rows = [line for line in section(heading).splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in rows]


class Array(NamedTuple):
    """A row of the tables of arrays: dtype, shape of one row, names of all dimensions."""

    dtype: np.dtype
    row: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def axis(self) -> str:
        """What axis 0 counts; an offset array has one row more."""
        return self.dims[0].removesuffix("_edge")

    @property
    def offsets(self) -> bool:
        """Whether it is an offset array."""
        return self.dims[0].endswith("_edge")


def as_array(dtype: str, shape: str, dims: str, **sides: int) -> Array:
    """The documented array for these values of the symbols in its shape."""
    row = shape.strip("()").replace("×", "*").replace("/", "//").split(",")[1:]
    row = tuple(eval(side, sides) for side in row if side)
    return Array(np.dtype(dtype).newbyteorder("<"), row, tuple(dims.split(", ")))


def layout_of(image_size: int = 24, mask_size: int = 16, **other) -> dict[str, Any]:
    """A layout as the manifest has it."""
    found = {"fit": "pad", "pixels": "rgb", "bits": True, "runs": True} | other
    return found | {"image_size": image_size, "mask_size": mask_size}


def array_table(layout: dict[str, Any]) -> dict[str, Array]:
    """The arrays of a shard by name, in the order of the table."""
    lists = {name: tuple(layout.get(name, ())) for name in ("numbers", "absent")}
    return _arrays(**{**layout, **lists})


@functools.cache
def _arrays(image_size, mask_size, fit, pixels, bits, runs, numbers, absent) -> dict[str, Array]:
    images = {
        (each, row[1]): row[2:] for row in documented("Pixels") for each in row[0].split("`, `")
    }
    lacking = {*absent, *(["image_offset"] if fit in ("pad", "squash") else [])}
    lacking |= (set() if bits else {"mask_bits"}) | (set() if runs else {"run_offset", "run_ends"})
    found = {}
    for name, dtype, *described, content in documented("Arrays of a shard"):
        if content.startswith("optional") and name not in numbers:
            continue
        if name not in lacking:
            shape, dims = images[fit, pixels] if name == "image" else described
            found[name] = as_array(dtype, shape, dims, S=image_size, Sm=mask_size)
    return found


# ------------------------------------------------------------------------------------- reading


def digest_of(path: Path) -> str:
    """The XXH3-128 of a file."""
    return xxhash.xxh3_128_hexdigest(path.read_bytes())


def manifest_of(root: Path) -> dict[str, Any]:
    """The manifest of a pack."""
    return json.loads((root / "manifest.json").read_text())


def index_of(root: Path) -> dict[str, np.ndarray]:
    """The arrays of the index that a pack's manifest names."""
    return arrays_of(root / manifest_of(root)["index"])


def layout_in(folder: Path) -> dict[str, Any]:
    """The layout that a shard names."""
    return json.loads((folder / "zarr.json").read_text())["attributes"]["sa1bpack"]["layout"]


def sample_views(folder: Path, row: int) -> dict[str, np.ndarray]:
    """A sample of a shard, by array name: the rows of arrays per sample lack their first axis,
    offsets are one row more."""
    arrays, found, bounds = arrays_of(folder), {}, {"sample": (row, row + 1)}
    for name, array in array_table(layout_in(folder)).items():
        first, stop = bounds[array.axis]
        rows = found[name] = arrays[name][first : stop + array.offsets]
        if array.offsets:
            bounds[CHILDREN[name]] = int(rows[0]), int(rows[-1])
        elif array.axis == "sample":
            found[name] = rows[0]
    return found


def entry_of(folder: Path) -> dict[str, Any]:
    """The entry of a shard in a manifest."""
    own = json.loads((folder / "zarr.json").read_text())["attributes"]["sa1bpack"]
    keys = ("source", "part", "samples", "masks", "runs", "image_bytes", "annotations")
    nbytes = sum(path.stat().st_size for path in folder.glob("*/c.*"))
    return {"name": folder.name, "bytes": nbytes, **{key: own[key] for key in keys}}


# ------------------------------------------------------------------------------------- writing


def as_json(data: Any) -> bytes:
    """JSON in the form that the format has."""
    return (json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def checksums(digests: dict[str, str]) -> bytes:
    """The lines of a checksum file: path → XXH3-128."""
    return "".join(f"{digests[path]}  {path}\n" for path in sorted(digests)).encode()


def replace(path: Path, data: bytes) -> None:
    """Write a file, which may be a link to one of another pack, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(".new").write_bytes(data)
    path.with_name(".new").rename(path)


def array_metadata(
    shape: tuple[int, ...], dtype: np.dtype, dims: Iterable[str]
) -> tuple[dict[str, Any], int]:
    """The zarr.json of an array, and the bytes of its chunk file."""
    rows, row_bytes = shape[0], dtype.itemsize * math.prod(shape[1:])
    step = max(1, min(rows, 1 << max(1, 262_144 // row_bytes).bit_length() - 1))
    count = -(-rows // step)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {"codecs": [little], "index_codecs": [little, {"name": "crc32c"}]}
    sharding |= {"index_location": "end", "chunk_shape": [step, *shape[1:]]}
    outer = {"chunk_shape": [max(1, count * step), *shape[1:]]}
    found = {"zarr_format": 3, "node_type": "array", "attributes": {}, "fill_value": 0}
    found |= {"shape": list(shape), "data_type": dtype.name, "dimension_names": list(dims)}
    found["chunk_grid"] = {"name": "regular", "configuration": outer}
    found["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "."}}
    found["codecs"] = [{"name": "sharding_indexed", "configuration": sharding}]
    return found, count * (step * row_bytes + 16) + 4


def chunk_file(values: np.ndarray, step: int) -> bytes:
    """The bytes of a chunk file, with so many rows in an inner chunk."""
    count, nbytes = -(-len(values) // step), step * values.itemsize * math.prod(values.shape[1:])
    index = np.array([(k * nbytes, nbytes) for k in range(count)], "<u8").tobytes()
    crc = google_crc32c.value(index).to_bytes(4, "little")
    return values.tobytes().ljust(count * nbytes, b"\0") + index + crc


def write_group(
    folder: Path,
    arrays: dict[str, tuple[np.ndarray, Iterable[str]]],
    attributes: dict[str, Any] | None = None,
    listed: bool = True,
) -> None:
    """Write arrays, with the names of their dimensions, as a group; `listed`: with checksums."""
    files, inner = {}, {}
    for name, (values, dims) in arrays.items():
        about, nbytes = array_metadata(values.shape, values.dtype, dims)
        inner[name], files[f"{name}/zarr.json"] = about, as_json(about)
        if len(values):
            step = about["codecs"][0]["configuration"]["chunk_shape"][0]
            data = files[f"{name}/c{'.0' * values.ndim}"] = chunk_file(values, step)
            assert len(data) == nbytes
    consolidated = {"kind": "inline", "must_understand": False, "metadata": inner}
    files["zarr.json"] = as_json(
        {"zarr_format": 3, "node_type": "group", "consolidated_metadata": consolidated}
        | {"attributes": {} if attributes is None else {"sa1bpack": attributes}}
    )
    if listed:
        files[SUMS] = checksums({k: xxhash.xxh3_128_hexdigest(v) for k, v in files.items()})
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


# A sample of a pack that no tar makes: array name → its rows, without `checksum` and the offsets
# that follow from the others; `run_offset` from 0.
Sample = dict[str, np.ndarray]


def lengths_of(sample: Sample) -> dict[str, np.ndarray]:
    """What a sample adds to each offset array, and what its checksum covers of them."""
    found = {"image_offset": [sample["image"].size], "mask_offset": [len(sample["area"])]}
    found["run_offset"] = np.diff(sample.get("run_offset", []))
    return {name: np.array(lengths, "<i8") for name, lengths in found.items()}


def sample_checksum(layout: dict[str, Any], sample: Sample) -> int:
    """The checksum that a shard stores of a sample; its `run_offset` may begin anywhere."""
    rows = sample | lengths_of(sample)
    parts = [rows[name].tobytes() for name in array_table(layout) if name != "checksum"]
    return xxhash.xxh3_64_intdigest(b"".join(parts))


def shard_arrays(layout: dict[str, Any], samples: list[Sample]) -> dict[str, np.ndarray]:
    """The arrays of a shard of these samples."""
    found = {}
    for name, array in array_table(layout).items():
        if name == "checksum":
            parts = [[sample_checksum(layout, sample)] for sample in samples]
        else:
            parts = [(lengths_of(s) if array.offsets else s)[name] for s in samples]
        parts = [np.asarray(part, array.dtype).reshape(-1, *array.row) for part in parts]
        rows = np.concatenate([np.empty((0, *array.row), array.dtype), *parts])
        found[name] = np.append(0, np.cumsum(rows)) if array.offsets else rows
    return found


def write_shard(shards: Path, name: str, samples: list[Sample], layout: dict[str, Any]) -> None:
    """Write a shard of these samples; with `publish` it is one of the pack."""
    source, part = name.rsplit("-", 1)
    found, described = shard_arrays(layout, samples), array_table(layout)
    attributes = {"format": [1, 0], "layout": layout, "source": source, "part": int(part)}
    attributes |= {"samples": len(samples), "masks": len(found["area"])}
    attributes |= {"runs": len(found.get("run_ends", ())), "image_bytes": 0}
    attributes["annotations"] = int(found["annotation_count"].sum())
    if "image_offset" in described:
        attributes["image_bytes"] = len(found["image"])
    arrays = {name: (values, described[name].dims) for name, values in found.items()}
    write_group(shards / name, arrays, attributes)


def publish(root: Path, names: Iterable[str] | None = None, **keys) -> dict[str, Any]:
    """Publish the shards of these names, or those that are listed; returns the manifest.

    Its keys stay as they were, but for those that are given: a new pack needs a layout.
    """
    manifest = {"format": "sa1bpack", "version": [1, 0], "complete": True}
    manifest |= {"options": {}, "sources": [], "counts": {}, "shards": []}
    if (root / "manifest.json").exists():
        manifest = manifest_of(root)
    if names is not None:
        manifest["shards"] = [entry_of(root / "shards" / name) for name in names]
    for key in ("samples", "masks"):
        manifest[key] = sum(entry[key] for entry in manifest["shards"])
    manifest |= {"index": _write_index(root, manifest["shards"]), **keys}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    replace(root / "shards/zarr.json", as_json(group))
    replace(root / "zarr.json", as_json(group | {"attributes": {"sa1bpack": {"format": [1, 0]}}}))
    replace(root / "manifest.json", as_json(manifest))
    digest_pack(root)
    for path in root.glob("index-????????"):
        if path.name != manifest["index"]:
            shutil.rmtree(path)
    return manifest


def digest_pack(root: Path, *more: str) -> None:
    """Write the checksum file of a pack, with these files besides."""
    manifest, paths = manifest_of(root), {"manifest.json", "zarr.json", "shards/zarr.json", *more}
    paths |= {path.name for path in root.glob("rejects.jsonl")}
    paths |= {f"shards/{entry['name']}/{SUMS}" for entry in manifest["shards"]}
    inside = root.glob(f"{manifest['index']}/**/*")
    paths |= {str(path.relative_to(root)) for path in inside if path.is_file()}
    replace(root / SUMS, checksums({path: digest_of(root / path) for path in paths}))


def _write_index(root: Path, entries: list[dict[str, Any]]) -> str | None:
    """The name of the index of these shards, which is written unless it is there."""
    if not entries:
        return None
    folders = [root / "shards" / entry["name"] for entry in entries]
    lines = "".join(f"{folder.name} {digest_of(folder / SUMS)}\n" for folder in folders)
    name = f"index-{xxhash.xxh3_128_hexdigest(lines.encode())[:8]}"
    if not (root / name).exists():
        shards = [arrays_of(folder) for folder in folders]
        ids = np.concatenate([shard["image_id"] for shard in shards])
        masks = np.concatenate([np.diff(shard["mask_offset"]) for shard in shards])
        counts = [len(shard["image_id"]) for shard in shards]
        found = {"image_id": ids, "id_order": np.argsort(ids, kind="stable")}
        found |= {"shard_offset": np.cumsum([0, *counts]), "mask_offset": np.cumsum([0, *masks])}
        arrays = {
            array: (found[array].astype("<i8"), dims.split(", "))
            for array, _, _, dims, _ in documented("Arrays of the index")
        }
        write_group(root / ".index", arrays, listed=False)
        (root / ".index").rename(root / name)
    return name
