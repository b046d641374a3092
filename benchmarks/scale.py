"""Opening and reading at the size of all of SA-1B, compared with a small pack.

    python benchmarks/scale.py                       11,185,362 samples in 2000 shards
    python benchmarks/scale.py --packs 1000          the same samples in 1000 packs, opened as one
    python benchmarks/scale.py --folder /scratch     folder for the sparse files
    python benchmarks/scale.py --json                one JSON object instead of a table

Both packs have the full logical size of their pixels and masks, as sparse files: metadata, manifest
and index are real, pixels read as zero, and arrays that are the same in all shards exist once. The
large pack takes about 0.7 GB of disk and 60,000 files and folders, and is removed at the end. Each
pack is read by a separate process, with a warm page cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np

from sa1bpack.disk.page_cache import drop_pages
from sa1bpack.format.arrays import (
    METADATA_NAME,
    ChunkFile,
    array_metadata,
    canonical_json,
    group_bytes,
    group_metadata,
)
from sa1bpack.format.file_checksums import CHECKSUMS_NAME
from sa1bpack.format.files import byte_view
from sa1bpack.format.index import publish
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.format.manifest import ShardEntry, make_manifest

SAMPLES = 11_185_362  # images of SA-1B
SHARDS = 2000
MASKS = 100  # per sample, on average
RUNS = 250  # per mask
LAYOUT = Layout()
COLD_BYTES = 1 << 26  # larger files are holes, which opening does not read


class ScalePack:
    """Writes a pack whose large arrays are holes; equal arrays of its shards are symbolic links."""

    def __init__(self, root: Path, samples: int, shards: int, source: int = 0, first: int = 0):
        """source, first: number of its first source, and its first image id."""
        self.root, self.source, self.first = root, source, first
        self.rows = -(-samples // shards)
        self.samples = samples
        rng = np.random.default_rng(0)
        counts = np.concatenate([[0], rng.poisson(MASKS, self.rows)])
        self.mask_offset = np.cumsum(counts, dtype=np.int64)

    def write(self) -> None:
        """Write the complete pack."""
        entries = []
        for first in range(0, self.samples, self.rows):
            entries.append(self._write_shard(first, min(self.rows, self.samples - first)))
        pairs = Counter()
        for entry in entries:
            pairs[entry.source] += entry.samples
        sources = []
        for name, count in pairs.items():
            sources.append({"name": name, "pairs": count, "dropped": 0, "rejects": []})
        manifest = make_manifest(
            LAYOUT,
            entries,
            says_complete=True,
            options={"samples_per_shard": self.rows},
            sources=sources,
            counts={"dropped_images": 0},
        )
        assert manifest.complete, manifest.shortfalls
        publish(self.root, manifest)

    def _write_shard(self, first: int, rows: int) -> ShardEntry:
        number = first // self.rows
        source, part = f"sa_{self.source + number // 2:06d}", number % 2
        name = f"{source}-{part:03d}"
        lengths = self._lengths(rows)
        template = self._template(rows, lengths)
        folder = self.root / "shards" / name
        folder.mkdir(parents=True)
        for spec, count in LAYOUT.array_rows(lengths).items():
            self._write_array(folder, template, spec, count, self.first + first)
        text = (template / METADATA_NAME).read_text()
        text = text.replace('"source": "SOURCE"', f'"source": "{source}"')
        (folder / METADATA_NAME).write_text(text.replace('"part": 9', f'"part": {part}'))
        (folder / CHECKSUMS_NAME).write_text(f"{self.first + first:032x}  {METADATA_NAME}\n")
        return ShardEntry(
            name=name, source=source, part=part, samples=rows, masks=lengths.masks,
            runs=lengths.runs, image_bytes=0, annotations=lengths.masks,
            bytes=group_bytes(LAYOUT.array_rows(lengths)),
        )  # fmt: skip

    def _write_array(self, folder: Path, template: Path, spec, rows: int, first: int) -> None:
        if (template / spec.chunk_path).exists():
            (folder / spec.name).symlink_to(template / spec.name)
            return
        (folder / spec.name).mkdir()
        metadata = f"{spec.name}/{METADATA_NAME}"
        os.link(template / metadata, folder / metadata)
        data = first + np.arange(rows) if spec.name == "image_id" else np.empty(0, np.int64)
        _write_sparse(folder / spec.chunk_path, data, ChunkFile(spec, rows).file_bytes)

    def _lengths(self, rows: int) -> AxisLengths:
        masks = int(self.mask_offset[rows])
        return AxisLengths(rows, masks, RUNS * masks)

    def _template(self, rows: int, lengths: AxisLengths) -> Path:
        """A folder with the files that all shards of `rows` samples share."""
        folder = self.root.parent / f".template-{rows}"
        if folder.exists():
            return folder
        none = np.empty(0, np.uint8)
        contents = {
            "checksum": none, "number_types": none, "run_ends": none,  # all zero, and never read
            "mask_offset": self.mask_offset[: rows + 1],
            "size": np.tile(np.array([1500, 2250, 683, 1024], np.int32), rows),
            "file_name": np.frombuffer(b"sa_0.jpg".ljust(64, b"\0") * rows, np.uint8),
            "annotation_count": np.diff(self.mask_offset[: rows + 1]).astype(np.int32),
            "run_offset": np.arange(lengths.masks + 1) * RUNS,
        }  # fmt: skip
        arrays = LAYOUT.array_rows(lengths)
        for spec, count in arrays.items():
            (folder / spec.name).mkdir(parents=True)
            metadata = canonical_json(array_metadata(spec, count))
            (folder / spec.name / METADATA_NAME).write_bytes(metadata)
            if spec.name in contents:
                size = ChunkFile(spec, count).file_bytes
                _write_sparse(folder / spec.chunk_path, contents[spec.name], size)
        attributes = {
            "format": [1, 0], "layout": asdict(LAYOUT), "source": "SOURCE", "part": 9,
            "samples": lengths.samples, "masks": lengths.masks, "runs": lengths.runs,
            "image_bytes": 0, "annotations": lengths.masks,
        }  # fmt: skip
        group = canonical_json(group_metadata(attributes, arrays))
        (folder / METADATA_NAME).write_bytes(group)
        return folder


def _write_sparse(path: Path, data: np.ndarray, size: int) -> None:
    with path.open("wb") as file:
        file.write(byte_view(data))
        file.truncate(size)


def memory() -> dict[str, float]:
    """MB of this process: private as the kernel counts it, and the anonymous part of that.

    A page of a file counts as private while no other process maps it, though it belongs to the page
    cache.
    """
    found = {"Private_Clean": 0, "Private_Dirty": 0, "Anonymous": 0}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0])
    private = found["Private_Clean"] + found["Private_Dirty"]
    return {"private_mb": private / 1024, "anonymous_mb": found["Anonymous"] / 1024}


def mappings() -> int:
    """Memory maps of this process."""
    with Path("/proc/self/maps").open() as file:
        return sum(1 for _ in file)


def measure(root: Path, copies: int, reads: int) -> dict[str, float]:
    """Open a pack and read samples of it at random; times are medians in microseconds."""
    from sa1bpack import open as open_pack

    before = memory()
    start = time.perf_counter()
    ds = open_pack(root)
    found = {"samples": len(ds), "shards": len(ds.shards),
             "open_ms": 1e3 * (time.perf_counter() - start)}  # fmt: skip
    found |= {f"open_{key}": value for key, value in memory().items()}
    found["grown_mb"] = found["open_private_mb"] - before["private_mb"]
    start = time.perf_counter()
    for first in ds.shard_bounds()[:-1].tolist():
        ds[first]
    found["touch_ms_a_shard"] = 1e3 * (time.perf_counter() - start) / len(ds.shards)
    found["mappings"] = mappings()
    found["touched_anonymous_mb"] = memory()["anonymous_mb"]
    found["calls"] = _calls(lambda: ds[len(ds) // 2])
    found |= _saved(ds, root.with_name(f"{root.name}.sel"))
    rng = np.random.default_rng(1)
    indices = rng.choice(len(ds), reads, replace=False).tolist()
    found["sample_us"] = _median_us(lambda i: ds[i], indices)
    found["sample_again_us"] = _median_us(lambda i: ds[i], indices)
    copy = _copier(ds)
    _median_us(copy(ds), indices[:copies])  # brings the pages into the cache
    fresh = open_pack(root)
    for i in indices[:copies]:
        fresh[i]
    found["copy_us"] = _median_us(copy(fresh), indices[:copies])
    found["copy_again_us"] = _median_us(copy(fresh), indices[:copies])
    return found


def _saved(ds, path: Path) -> dict[str, float]:
    """Save all samples in random order as a selection, and open it again."""
    from sa1bpack import open as open_pack

    shuffled = ds[np.random.default_rng(2).permutation(len(ds))]
    start = time.perf_counter()
    shuffled.save_selection(path)
    saved = time.perf_counter()
    again = open_pack(path)
    opened = time.perf_counter()
    assert again.fingerprint == shuffled.fingerprint
    return {"save_ms": 1e3 * (saved - start), "open_saved_ms": 1e3 * (opened - saved),
            "saved_mb": path.stat().st_size / 1e6,
            "save_calls": _calls(lambda: shuffled.save_selection(path)),
            "open_saved_calls": _calls(lambda: open_pack(path))}  # fmt: skip


def write_packs(folder: Path, samples: int, count: int) -> list[Path]:
    """The samples in packs of one source and shard each, as many machines make them."""
    rows = -(-samples // count)
    roots = []
    for number, first in enumerate(range(0, samples, rows)):
        roots.append(folder / f"{number:04d}")
        ScalePack(roots[-1], min(rows, samples - first), 1, number, first).write()
    return roots


def measure_packs(folder: Path) -> dict[str, float]:
    """Open all packs in a folder as one, with no byte of them in the page cache, then again.

    Times in ms; all but the first with a warm page cache.
    """
    from sa1bpack import open as open_pack

    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    drop_pages(path for path in files if path.stat().st_size < COLD_BYTES)
    before, found, start = memory(), {}, time.perf_counter()

    def lap(name: str) -> None:
        nonlocal start
        found[name] = 1e3 * (time.perf_counter() - start)
        start = time.perf_counter()

    open_pack(f"{folder}/*")
    lap("open_packs_cold_ms")
    ds = open_pack(f"{folder}/*")
    lap("open_packs_ms")
    found |= {"packs": len(ds.pack.folders), "packs_samples": len(ds), "mappings": mappings()}
    found["packs_grown_mb"] = memory()["private_mb"] - before["private_mb"]
    rows = np.random.default_rng(0).integers(0, len(ds), (100, 256))
    start = time.perf_counter()
    _ = ds.fingerprint
    lap("fingerprint_ms")
    for batch in rows:
        ds.locate_many(batch)
        ds.pack.image_ids(batch)
    found["locate_us"] = 1e6 * (time.perf_counter() - start) / rows.size
    start = time.perf_counter()
    ds.index_of(ds.pack.image_id(len(ds) // 2))
    lap("first_index_of_ms")
    return found


def _calls(work) -> int:
    """The number of function calls, of Python and C, that some work makes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _copier(ds):
    """A function from a dataset to one that copies a sample's pixels and 64 masks."""
    side, grid = ds.layout.image_size, ds.layout.mask_size
    image = np.zeros((side, side, 3), np.uint8)
    masks = np.zeros((64, grid, grid // 8), np.uint8)

    def copier(source):
        def copy(i):
            sample = source[i]
            image[...] = sample["image"]
            rows = sample["masks"][:64]
            masks[: len(rows)] = rows

        return copy

    return copier


def _median_us(work, indices) -> float:
    times = []
    for i in indices:
        start = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - start)
    return 1e6 * median(times)


ROWS = {
    "samples": ("samples", "{:,.0f}"),
    "shards": ("shards", "{:,.0f}"),
    "open_ms": ("open, ms", "{:.1f}"),
    "open_private_mb": ("private memory after opening, MB", "{:.1f}"),
    "grown_mb": ("  of which by opening", "{:.1f}"),
    "touch_ms_a_shard": ("first sample of a shard, ms", "{:.2f}"),
    "mappings": ("memory maps with every shard open", "{:,.0f}"),
    "touched_anonymous_mb": ("anonymous memory then, MB", "{:.1f}"),
    "calls": ("function calls per sample", "{:,.0f}"),
    "sample_us": ("random sample, us", "{:.2f}"),
    "sample_again_us": ("the same again", "{:.2f}"),
    "save_ms": ("save all in random order, ms", "{:,.0f}"),
    "open_saved_ms": ("open that selection, ms", "{:,.0f}"),
    "saved_mb": ("its file, MB", "{:,.2f}"),
    "copy_us": ("copy of pixels and 64 masks, us", "{:.0f}"),
    "copy_again_us": ("the same again", "{:.0f}"),
}


def as_table(small: dict[str, float], large: dict[str, float]) -> str:
    """Both results as a Markdown table."""
    lines = ["| | small pack | full scale |", "|---|---:|---:|"]
    for key, (label, form) in ROWS.items():
        lines.append(f"| {label} | {form.format(small[key])} | {form.format(large[key])} |")
    return "\n".join(lines)


def _in_own_process(root: Path, options: argparse.Namespace, *more: str) -> dict[str, float]:
    counts = ["--copies", str(options.copies), "--reads", str(options.reads)]
    command = [sys.executable, __file__, "--measure", str(root), *counts, *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--copies", type=int, default=200, help="samples to copy (4 MB each)")
    parser.add_argument("--reads", type=int, default=2000, help="random samples to read, and again")
    parser.add_argument("--folder", help="folder for the packs (default: the temporary folder)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--packs", type=int, metavar="N", help="several packs, opened as one")
    parser.add_argument("--measure", metavar="PACK", help="only measure a pack, as JSON")
    options = parser.parse_args()
    if options.measure:
        path = Path(options.measure)
        found = (
            measure_packs(path) if options.packs else measure(path, options.copies, options.reads)
        )
        print(json.dumps(found))
        return
    os.fsync = lambda fd: None  # packs of holes need not survive a power failure
    if options.packs:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            write_packs(Path(folder), options.samples, options.packs)
            found = _in_own_process(Path(folder), options, "--packs", str(options.packs))
        print(json.dumps(found, indent=1))
        return
    results = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = -(-options.samples // options.shards)
        sizes = {"small": (2 * rows, 2), "large": (options.samples, options.shards)}
        for name, (samples, shards) in sizes.items():
            start = time.perf_counter()
            ScalePack(Path(folder) / name, samples, shards).write()
            written = time.perf_counter() - start
            results[name] = _in_own_process(Path(folder) / name, options)
            results[name]["write_s"] = written
    print(json.dumps(results) if options.json else as_table(results["small"], results["large"]))


if __name__ == "__main__":
    main()
