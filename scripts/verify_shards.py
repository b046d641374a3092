#!/usr/bin/env python3
"""Check a pack with only Python, numpy and xxhash: sa1bpack itself is not needed.

Every file of the pack is compared with its checksum file, files that are missing or not listed are
named, and each sample is compared with its own checksum, so that damage is traced to the image it
affects. docs/format.md specifies what is checked here; `sa1bpack verify` checks more (the Zarr
metadata, and the index against the shards).
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

EPILOG = """\
examples:
  verify_shards.py /data/sa1b            every byte and every sample; as fast as the disk reads
  verify_shards.py /data/sa1b --quick    all but pixels, mask bits and runs; seconds per tar

exit status: 0 the pack is as it was written (the last line is NOT COMPLETE if there is more to
pack), 1 something is damaged, missing or foreign, 2 wrong usage, or not a pack that this script
can check, 130 interrupted

The same checksums can be checked with the xxhash tools alone:
  cd /data/sa1b && xxh128sum -c --quiet checksums.xxh128
  cd /data/sa1b/shards/<name> && xxh128sum -c --quiet checksums.xxh128
"""

CHECKSUMS = "checksums.xxh128"
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
INDEX = re.compile(r"index-[0-9a-f]{8}")
CHANGING = ("manifest.json", "rejects.jsonl")  # until the pack is complete
MAJOR_VERSION = 1
# The arrays that the checksum of a sample covers, in order, and what a row of each stands for
# (docs/format.md). Without image_offset, a row of image is a sample.
ROWS = {
    "image_offset": "sample", "image": "image byte", "image_id": "sample", "file_name": "sample",
    "size": "sample", "annotation_count": "sample", "mask_offset": "sample", "bbox": "mask",
    "area": "mask", "predicted_iou": "mask", "stability_score": "mask", "point_coords": "mask",
    "crop_box": "mask", "annotation_id": "mask", "number_types": "mask", "mask_bits": "mask",
    "run_offset": "mask", "run_ends": "run",
}  # fmt: skip
# Offset arrays, and an array of the rows that they point to.
OFFSETS = {"image_offset": "image", "mask_offset": "bbox", "run_offset": "run_ends"}
OPTIONAL = ("image_offset", "mask_bits", "run_offset", "run_ends")
HEAVY = ("image", "mask_bits", "run_ends")


class Damage(Exception):
    """A problem that prevents further checks of a file or shard."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError of a file or folder into Damage that names it, or otherwise `path`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Damage(f"{error.filename or path}: missing") from None
    except OSError as error:
        raise Damage(f"{error.filename or path}: cannot be read: {error.strerror}") from None


class Output:
    """Counts and prints problems, prints notes, and shows a progress line on a terminal only."""

    def __init__(self):
        self.problems = self.files = self.samples = 0
        self._said: set[str] = set()
        self._draws = sys.stderr.isatty()
        self._drawn = 0.0

    def problem(self, text: str) -> None:
        """Print a problem, once: several checks can find the same problem in the same file."""
        if text not in self._said:
            self._said.add(text)
            self.problems += 1
            self._print(text)

    @contextmanager
    def collecting(self, path: Path) -> Iterator[None]:
        """Turn Damage or an OSError into a problem; it ends the block."""
        try:
            with reading(path):
                yield
        except Damage as error:
            self.problem(str(error))

    def note(self, text: str) -> None:
        """Print what a running or killed packer left, which is not damage."""
        self._print(f"note: {text}")

    def _print(self, text: str) -> None:
        self.clear()
        print(text, flush=True)

    def progress(self, text: str) -> None:
        if self._draws and time.monotonic() - self._drawn > 0.2:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
            self._drawn = time.monotonic()

    def clear(self) -> None:
        if self._draws:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=local_folder,
                        help="folder of the pack: the one with manifest.json")  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help="skip pixels, mask bits and runs, and the checksums of samples",
    )  # fmt: skip
    arguments = parser.parse_args()
    output = Output()
    try:
        shards, complete = read_manifest(arguments.pack)
    except Damage as error:
        output.problem(str(error))
        return 1
    except ValueError as error:
        parser.error(str(error))
    check_top(arguments.pack, shards, complete, output)
    if not complete:
        shards += unlisted_shards(arguments.pack, shards, output)
    for number, name in enumerate(shards, 1):
        output.progress(f"shard {number} of {len(shards)}: {name}")
        folder = arguments.pack / "shards" / name
        with output.collecting(folder):
            check_shard(folder, arguments.quick, output)
    check_sides(arguments.pack / "side", arguments.quick, output)
    output.clear()
    numbers = {"shard": len(shards), "file": output.files, "sample": output.samples}
    looked_at = ", ".join(counted(number, noun) for noun, number in numbers.items())
    verdict = counted(output.problems, "problem") if output.problems else "ok"
    print(f"{looked_at} checked: {verdict}")
    if not complete:
        print("NOT COMPLETE: the packer has not finished; wait for it, or repeat the pack command")
    return 1 if output.problems else 0


def local_folder(text: str) -> Path:
    """The type of the argument: a path of this machine, with `~` expanded."""
    if url := URL.match(text):
        raise argparse.ArgumentTypeError(
            f"the path is {text!r}: {url[1]} URLs are not supported; give a path of this machine, "
            "such as a mounted folder or a local copy"
        )
    return Path(os.path.expanduser(text))  # noqa: PTH111 - keeps "~" for a user without a home


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def read_manifest(pack: Path) -> tuple[list[str], bool]:
    """The shards that the manifest lists, and whether the pack is complete.

    Raises ValueError if it is not a pack that this script can check.
    """
    path = pack / "manifest.json"
    with reading(path):
        if not path.is_file():
            raise ValueError(f"{path} is missing: {pack} is not a pack")
        data = path.read_bytes()
    try:
        manifest = json.loads(data)
        major = manifest["version"][0]
        names = [shard["name"] for shard in manifest["shards"]]
        complete = manifest["complete"]
        plain = all(isinstance(name, str) and inside(name, 1) for name in names)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Damage(f"{path}: damaged ({type(error).__name__}: {error})") from None
    if major != MAJOR_VERSION:
        raise ValueError(f"{path}: format version {major}, but this script checks {MAJOR_VERSION}")
    if not plain or len(set(names)) != len(names):
        raise Damage(f"{path}: damaged: invalid names of shards")
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and not all(name.isascii() for name in names):
        raise ValueError(
            f"{path}: names of shards are not ASCII, but this process encodes names of files as "
            f"{encoding}, and a pack needs UTF-8: set PYTHONUTF8=1, or LC_ALL=C.UTF-8"
        )
    if not isinstance(complete, bool):
        raise Damage(f"{path}: damaged: complete is {complete!r}, not true or false")
    return names, complete


def inside(path: str, parts: int = 99) -> bool:
    """Whether a path has at most `parts` parts, and none leads out of its folder."""
    split = path.split("/")
    return len(split) <= parts and all(part not in ("", ".", "..") for part in split)


def check_top(pack: Path, shards: list[str], complete: bool, output: Output) -> None:
    """Check the pack's own files, and report foreign names.

    The checksum file of an incomplete pack may be older than the manifest: differences are then
    notes (docs/format.md, "Publication").
    """
    if not (complete or shards or (pack / CHECKSUMS).exists()):
        report_names(pack, {*CHANGING, "zarr.json", "shards", "side"}, output)
        output.note(f"{pack}: nothing is published yet")
        return
    listed = checked_list(pack / CHECKSUMS, output)
    report = output.problem if complete else output.note
    for path, digest in listed.items():
        if complete or path not in CHANGING:
            compare(pack / path, digest, output)
            continue
        with output.collecting(pack / path):
            if not (pack / path).exists() or file_digest(pack / path) != digest:
                output.note(f"{pack / CHECKSUMS}: not up to date for {path}")
    expected = [f"shards/{name}/{CHECKSUMS}" for name in shards]
    for path in (*expected, "manifest.json", "zarr.json", "shards/zarr.json"):
        if listed and path not in listed:
            report(f"{pack / CHECKSUMS}: {path} is not listed")
    indexes = {path.split("/")[0] for path in listed if path.startswith("index-")}
    for index in sorted(indexes):
        known = {path.removeprefix(index + "/") for path in listed if path.startswith(index + "/")}
        report_unknown(pack / index, known, output)
    if listed:
        top = {path.split("/")[0] for path in listed} | {CHECKSUMS, "shards", "side"}
        for path in sorted(pack.glob("index-*")):
            if path.name not in top and INDEX.fullmatch(path.name):
                output.note(f"{path}: an index that the manifest or its checksums do not name")
                top.add(path.name)
        report_names(pack, top | (set() if complete else {*CHANGING}), output)
    folders = set() if complete else {path.name for path in shard_folders(pack, output)}
    report_names(pack / "shards", {*shards, *folders, "zarr.json"}, output)


def shard_folders(pack: Path, output: Output) -> list[Path]:
    """Folders under shards/, listed or not, except working folders."""
    shards = pack / "shards"
    with output.collecting(shards):
        folders = sorted(shards.iterdir()) if shards.is_dir() else []
        return [path for path in folders if path.is_dir() and path.name[0] != "."]
    return []


def unlisted_shards(pack: Path, listed: list[str], output: Output) -> list[str]:
    """Names of the shards that an incomplete pack has, but does not list yet."""
    names = [path.name for path in shard_folders(pack, output) if path.name not in listed]
    for name in names:
        output.note(f"{pack / 'shards' / name}: a shard that is not in the manifest yet")
    return names


def checked_list(path: Path, output: Output) -> dict[str, str]:
    """A checksum file as {path: digest}; if it is damaged, prints a problem and returns {}."""
    with output.collecting(path):
        data = path.read_bytes()
        lines = data.decode(errors="replace").splitlines()
        listed = {line[34:]: line[:32] for line in lines}
        whole = "".join(f"{listed[name]}  {name}\n" for name in sorted(listed))
        if listed and whole.encode() == data and all(inside(name) for name in listed):
            return listed
        raise Damage(f"{path}: not lines of '<32 hex digits>  <path>', sorted by path")
    return {}


def report_unknown(folder: Path, known: set[str], output: Output) -> None:
    """Report files below a folder that its checksum file does not list."""

    def report(error: OSError) -> None:
        with output.collecting(folder):
            raise error

    for parent, _, names in os.walk(folder, onerror=report):
        for name in names:
            path = Path(parent, name)
            if str(path.relative_to(folder)) not in known:
                output.problem(f"{path}: not a file of the pack: not in {CHECKSUMS}")


def report_names(folder: Path, known: set[str], output: Output) -> None:
    """Report entries that do not belong in a folder; names that start with a dot are skipped."""
    with output.collecting(folder):
        for path in sorted(folder.iterdir()):
            if path.name not in known and not path.name.startswith("."):
                output.problem(f"{path}: not in the manifest of the pack")


def compare(path: Path, expected: str, output: Output) -> None:
    """Compare a file's XXH3-128 with the one listed."""
    with output.collecting(path):
        found = file_digest(path)
        output.files += 1
        report_digest(path, found, expected, output)


def file_digest(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise Damage(f"{path}: a folder, a pipe or a device, but must be a file")
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def report_digest(path: Path, found: str, expected: str, output: Output) -> None:
    if found != expected:
        output.problem(f"{path}: XXH3-128 is {found}, but {CHECKSUMS} says {expected}")


def check_shard(folder: Path, quick: bool, output: Output) -> None:
    """Check one shard: its files and, unless `quick`, its samples, reading each file once."""
    if not folder.is_dir():
        output.problem(f"{folder}: missing")
        return
    listed = checked_list(folder / CHECKSUMS, output)
    if not listed:
        return
    report_unknown(folder, {*listed, CHECKSUMS}, output)
    left = dict(listed)
    if quick:
        left = {path: expected for path, expected in listed.items()
                if path == "zarr.json" or path.endswith("/zarr.json")
                or path.split("/")[0] not in HEAVY}  # fmt: skip
        for path in sorted(set(listed) - set(left)):
            check_size(folder / path, output)
    else:
        with output.collecting(folder):  # after an error, files are compared one by one below
            for path in check_samples(folder, listed, output):
                del left[path]
    for path, expected in left.items():
        compare(folder / path, expected, output)


def check_size(path: Path, output: Output) -> None:
    """Compare the size of a chunk file with the metadata of its array."""
    with output.collecting(path):
        found, expected = path.stat().st_size, Array(path.parent).file_bytes
        if found != expected:
            output.problem(f"{path}: {found} bytes, but must have {expected}")


def check_sides(folder: Path, quick: bool, output: Output) -> None:
    """Check the side arrays of the pack: each file against the checksum file beside it."""
    for side in children(folder, output):
        listed = checked_list(side / CHECKSUMS, output)
        for path, expected in listed.items():
            compare(side / path, expected, output)
        for part in children(side, output):
            if part.name in listed or part.name == CHECKSUMS:
                continue
            output.progress(f"side array {side.name}: {part.name}")
            inner = checked_list(part / CHECKSUMS, output)
            report_unknown(part, {*inner, CHECKSUMS}, output)
            for path, expected in inner.items():
                if quick and path.startswith("values/c"):
                    check_size(part / path, output)
                else:
                    compare(part / path, expected, output)


def children(folder: Path, output: Output) -> list[Path]:
    """What is in a folder, except working files; nothing if it does not exist."""
    with output.collecting(folder):
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in found if path.name[0] != "."]
    return []


class Array:
    """One array of a shard, described by its zarr.json: the next rows, and a running digest."""

    def __init__(self, folder: Path):
        path = folder / "zarr.json"
        with reading(path):
            data = path.read_bytes()
        try:
            metadata = json.loads(data)
            self.shape = tuple(metadata["shape"])
            if not all(isinstance(length, int) and length >= 0 for length in self.shape):
                raise ValueError(f"shape {self.shape}")
            self.dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
            outer = metadata["chunk_grid"]["configuration"]["chunk_shape"]
            inner = metadata["codecs"][0]["configuration"]["chunk_shape"]
            self.row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
            index_bytes = 16 * -(-outer[0] // inner[0]) + 4
            self.file_bytes = outer[0] * self.row_bytes + index_bytes if self.shape[0] else 0
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise Damage(f"{path}: damaged ({type(error).__name__}: {error})") from None
        self.path = folder / ("c" + ".0" * len(self.shape))
        self._digest = xxhash.xxh3_128()
        self._left = self.file_bytes
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Open the file. Raises Damage if its length does not follow from its metadata."""
        size = self.path.stat().st_size if self.file_bytes or self.path.exists() else 0
        if size != self.file_bytes:
            raise Damage(f"{self.path}: {size} bytes, but must have {self.file_bytes}")
        if size:
            self._file = self.path.open("rb")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def take(self, rows: int) -> np.ndarray:
        """The next rows. Not through a memory map: a failing disk would end the process."""
        return self._read(rows * self.row_bytes).view(self.dtype).reshape(rows, *self.shape[1:])

    def finish(self) -> str:
        """The digest of the whole file, after reading the rest of it."""
        self._read(self._left)
        return self._digest.hexdigest()

    def _read(self, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        with reading(self.path):
            found = self._file.readinto(data) if nbytes else 0
        if found != nbytes:
            raise Damage(f"{self.path}: cut short while it was read")
        self._left -= nbytes
        self._digest.update(data)
        return data


def check_samples(folder: Path, listed: dict[str, str], output: Output) -> list[str]:
    """Check the checksum of each sample, and the digests of all chunk files, in one pass.

    Returns the paths of the chunk files. Raises Damage if the shard cannot be split into samples.
    """
    names = [name for name in ROWS if name not in OPTIONAL or f"{name}/zarr.json" in listed]
    arrays = {name: Array(folder / name) for name in (*names, "checksum")}
    try:
        for array in arrays.values():
            array.open()
        check_lengths(arrays)
        offsets: dict[str, np.ndarray] = {}
        for name in OFFSETS:
            if name in arrays:
                offsets[name] = checked_offsets(folder, arrays, name, offsets)
        for row in range(arrays["image_id"].shape[0]):
            check_sample(folder, row, arrays, offsets, output)
        return compare_arrays(folder, arrays, listed, output)
    finally:
        for array in arrays.values():
            array.close()


def compare_arrays(folder: Path, arrays: dict[str, Array], listed: dict[str, str],
                   output: Output) -> list[str]:  # fmt: skip
    """Compare the digests of the chunk files, whose rows were all read; returns their paths."""
    paths = []
    for name, array in arrays.items():
        path = f"{name}/{array.path.name}"
        if array.file_bytes:
            if path not in listed:
                raise Damage(f"{folder / CHECKSUMS}: {path} is not listed")
            report_digest(array.path, array.finish(), listed[path], output)
            output.files += 1
            paths.append(path)
    return paths


def check_lengths(arrays: dict[str, Array]) -> None:
    """Check that all arrays with one row per sample have the same length, and so on."""
    lengths: dict[str, int] = {}
    for name, axis in {**ROWS, "checksum": "sample"}.items():
        if name in arrays:
            axis = "sample" if name == "image" and "image_offset" not in arrays else axis
            found = arrays[name].shape[0] - (name in OFFSETS)
            if lengths.setdefault(axis, found) != found:
                raise Damage(f"{arrays[name].path}: {found} rows, others have {lengths[axis]}")
        if name in OFFSETS and name in arrays and OFFSETS[name] not in arrays:
            raise Damage(f"{arrays[name].path}: exists, but {OFFSETS[name]} does not")


def checked_offsets(
    folder: Path, arrays: dict[str, Array], name: str, before: dict[str, np.ndarray]
) -> np.ndarray:
    """All rows of an offset array: non-decreasing from 0 to the number of rows they point to."""
    array = arrays[name]
    offsets, last = array.take(array.shape[0]), arrays[OFFSETS[name]].shape[0]
    if offsets.size == 0 or offsets[0] != 0 or offsets[-1] != last:
        raise Damage(f"{array.path}: offsets must be non-decreasing from 0 to {last}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        row = int(falls[0])
        if ROWS[name] == "mask":
            row = int(np.searchsorted(before["mask_offset"], row, side="right")) - 1
        raise Damage(
            f"{array.path}: offsets must be non-decreasing from 0 to {last}: see sample {row} of "
            f"{folder.name}"
        )
    return offsets


def check_sample(folder: Path, row: int, arrays: dict[str, Array],
                 offsets: dict[str, np.ndarray], output: Output) -> None:  # fmt: skip
    """Check the XXH3-64 over the rows of a sample in order, offsets as int64 lengths."""
    digest = xxhash.xxh3_64()
    span = {"sample": (row, row + 1)}
    rows = {"checksum": arrays["checksum"].take(1)}
    for name, axis in ROWS.items():
        if name not in arrays:
            continue
        first, stop = span.get(axis, span["sample"])  # the image, if it has no offsets
        if name in OFFSETS:
            ends = offsets[name][first : stop + 1]
            rows[name] = np.diff(ends).astype("<i8")
            span[ROWS[OFFSETS[name]]] = int(ends[0]), int(ends[-1])
        else:
            rows[name] = arrays[name].take(stop - first)
        digest.update(rows[name].reshape(-1).view(np.uint8))
    output.samples += 1
    expected = int(rows["checksum"][0])
    if digest.intdigest() != expected:
        name = rows["file_name"].tobytes().rstrip(b"\0").decode(errors="replace")
        output.problem(
            f"{folder}: sample {row} (image_id {rows['image_id'][0]}, {name}): checksum "
            f"is {digest.intdigest():016x}, but {expected:016x} is stored"
        )
    output.progress(f"{folder.name}: sample {row}")


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files that it cannot encode
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # what reads the output may end first
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("verify_shards.py: interrupted", file=sys.stderr)
        sys.exit(130)
