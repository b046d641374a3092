#!/usr/bin/env python3
"""Check a pack with Python and xxhash alone: sa1bpack itself is not needed.

Every file is compared with its digest in a checksum file of the pack, and files that are missing,
or that no checksum file lists, are named. So are sources of which pairs are missing: docs/format.md
specifies the checksums, and the accounts of sources. `sa1bpack verify`
checks more: metadata, the index against the shards, and each sample, so that it names the images
that damage affects.

examples:
  verify_shards.py /data/sa1b            every byte; as fast as the disk reads
  verify_shards.py /data/sa1b --quick    all but pixels, mask bits and runs; seconds per tar

exit status, as that of sa1bpack verify: 0 the pack is as it was written, 1 something is damaged,
missing or foreign, 2 wrong usage, or not a pack, 3 a pack of another version, 4 the manifest
cannot be read, 5 nothing is damaged, but the pack is not complete or has no image, 130 interrupted

The same checksums can be checked with the xxhash tools alone:
  cd /data/sa1b && xxh128sum -c --quiet checksums.xxh128
  cd /data/sa1b/shards/<name> && xxh128sum -c --quiet checksums.xxh128
"""

import argparse
import hashlib
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

CHECKSUMS = "checksums.xxh128"
CHANGING = ("manifest.json", "rejects.jsonl")  # until the pack is complete
HEAVY = ("image", "mask_bits", "run_ends")
# Reasons of rejects that are no pair of an image and a record; nor is "too-large" with this detail.
UNPAIRED = "missing-json", "missing-jpeg", "duplicate", "name-too-long", "bad-name", "not-a-file"
TOO_LARGE_MEMBER = re.compile(r"[0-9]+ bytes, the limit for a (jpeg|json) member is [0-9]+")
# What Windows, network disks and file systems put into folders of their own accord; what macOS and
# desktops do begins with a dot.
OF_SYSTEM = (
    *("$RECYCLE.BIN", "@eaDir", "desktop.ini", "Desktop.ini", "ehthumbs.db", "lost+found"),
    *("System Volume Information", "Thumbs.db"),
)


def main() -> int:
    """Check the pack that the command line names, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pack", type=Path, help="folder of the pack: the one with manifest.json")
    parser.add_argument("--quick", action="store_true", help="skip pixels, mask bits and runs")
    given = parser.parse_args()
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        parser.error(
            f"this process encodes names of files as {encoding}, and a pack needs UTF-8: set "
            "PYTHONUTF8=1, or LC_ALL=C.UTF-8"
        )
    path = given.pack / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
        major, complete = manifest["version"][0], manifest["complete"]
        names = [shard["name"] for shard in manifest["shards"]]
        if not all(re.fullmatch(r"[^./\0][^/\0]*", name) for name in names):
            raise ValueError("invalid names of shards")
    except (FileNotFoundError, NotADirectoryError):
        parser.error(f"{path} is missing: {given.pack} is not a pack")
    except OSError as error:
        print(f"{path}: cannot be read: {error.strerror}")
        return 4
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        print(f"{path}: damaged ({type(error).__name__}: {error})")
        return 1
    if major != 1:
        print(f"{path}: format version {major}, but this script checks 1", file=sys.stderr)
        return 3
    check = Check(given.quick)
    for line in lost_pairs(manifest):
        check.problem(f"{path}: {line}; sa1bpack repair packs them again")
    shards = check.pack(given.pack, names, complete)
    print(f"shards: {shards}, files compared: {check.files}, problems: {len(check.problems)}")
    if not complete:
        print("NOT COMPLETE: the packer has not finished; wait for it, or repeat the pack command")
    return 1 if check.problems else 0 if complete and manifest.get("samples") else 5


class Check:
    """The problems of a pack, each printed when it is found, and the number of files compared."""

    def __init__(self, quick: bool):
        self.quick, self.problems, self.files = quick, set(), 0

    def problem(self, text: str) -> None:
        """Print a problem, once: several checks can find the same one."""
        if text not in self.problems:
            self.problems.add(text)
            print(text, flush=True)

    def tried(self, reader: Callable[[Path], Any], path: Path) -> Any:
        """The result of a reader of a file or folder; after an error None, and a problem."""
        try:
            return reader(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            self.problem(f"{error.filename or path}: missing")
        except OSError as error:
            self.problem(f"{error.filename or path}: cannot be read: {error.strerror}")
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            self.problem(f"{path}: {error}")
        return None

    def pack(self, root: Path, names: list[str], complete: bool) -> int:
        """Check a pack: its own files, its shards and its features; the number of shards.

        The checksums of an incomplete pack may be older than its manifest (docs/format.md,
        "Publication"): that, and what is not in the manifest yet, are notes.
        """
        listed, others = {}, {"shards", "side"}
        if complete or names or (root / CHECKSUMS).exists():
            listed = self.tried(checksums, root / CHECKSUMS)
        else:
            print(f"note: {root}: nothing is published yet")
            others.add("zarr.json")
        for path in () if complete or listed is None else CHANGING:
            others.add(path)
            digest = listed.pop(path, None)
            if digest and digest != self.tried(file_digest, root / path):
                print(f"note: {root / CHECKSUMS}: not up to date for {path}")
        for path in root.glob("index-????????"):
            if not any(name.startswith(path.name) for name in listed or ()):
                print(f"note: {path}: an index that the manifest or its checksums do not name")
                others.add(path.name)
        self.folder(root, listed, others)
        for path in self.tried(entries, root / "shards") or ():
            if path.is_dir() and not complete and path.name not in names:
                print(f"note: {path}: a shard that is not in the manifest yet")
                names = [*names, path.name]
            elif path.name not in (*names, "zarr.json"):
                self.problem(f"{path}: not in the manifest of the pack")
        for number, name in enumerate(names, 1):
            if sys.stderr.isatty():
                place = f"\r\033[Kshard {number} of {len(names)}: {name}\r"
                print(place, end="", file=sys.stderr, flush=True)
            shard = root / "shards" / name
            self.folder(shard, self.tried(checksums, shard / CHECKSUMS))
        for side in self.tried(entries, root / "side") or ():
            if not side.is_dir():
                self.problem(f"{side}: not a folder of a feature; remove it")
                continue
            inside = {path.name for path in self.tried(entries, side) or () if path.is_dir()}
            self.folder(side, self.tried(checksums, side / CHECKSUMS), inside)
            for name in sorted(inside):
                self.folder(side / name, self.tried(checksums, side / name / CHECKSUMS))
        return len(names)

    def folder(
        self, folder: Path, listed: dict[str, str] | None, others: Collection[str] = ()
    ) -> None:
        """Compare the files of a folder that its checksum file lists, and report all others.

        Args:
            others: names in the folder that are checked elsewhere; if any, working files and what
                systems put there are passed over.
        """

        def report(error: OSError) -> None:
            self.problem(f"{error.filename}: cannot be read: {error.strerror}")

        if listed is None:  # which is a problem already
            return
        for parent, _, names in os.walk(folder, onerror=report):
            for path in (Path(parent, name).relative_to(folder) for name in names):
                top = path.parts[0]
                mine = top not in others and not (others and passed_over(top))
                if mine and str(path) not in {*listed, CHECKSUMS}:
                    self.problem(f"{folder / path}: not a file of the pack: not in {CHECKSUMS}")
        for name, digest in listed.items():
            path = folder / name
            if self.quick and path.parent.name in HEAVY and path.name != "zarr.json":
                size = self.tried(chunk_bytes, path.with_name("zarr.json"))
                found = self.tried(lambda path: path.stat().st_size, path)
                if None not in (size, found) and found != size:
                    self.problem(f"{path}: {found} bytes, but must have {size}")
            elif (found := self.tried(file_digest, path)) is not None:
                self.files += 1
                if found != digest:
                    self.problem(f"{path}: XXH3-128 is {found}, but {CHECKSUMS} says {digest}")


def lost_pairs(manifest: dict[str, Any]) -> list[str]:
    """A line for each source of which pairs are missing: docs/format.md, "Accounts"."""
    lines = []
    for record in manifest.get("sources", ()):
        try:
            rows, pairs = manifest["options"]["samples_per_shard"], record["pairs"]
            found = record["dropped"] + record.get("left_out", 0)
            for shard in manifest["shards"]:
                if shard["source"] == record["name"]:
                    found += max(0, min(rows, pairs - shard["part"] * rows))
            found += sum(map(is_pair, record["rejects"]))
            if found != pairs:
                line = f"{record['name']}: {pairs} pairs, but {found} of them are in the pack"
                lines.append(line)
        except (LookupError, TypeError, ArithmeticError):
            continue  # the records of another writer
    return lines


def is_pair(reject: dict[str, Any]) -> bool:
    """Whether a reject is a pair, not a member that never became half of one."""
    if reject["reason"] == "too-large":
        return TOO_LARGE_MEMBER.fullmatch(reject.get("detail", "")) is None
    return reject["reason"] not in UNPAIRED


def entries(folder: Path) -> list[Path]:
    """The content of a folder, if there is one, except working files."""
    try:
        return sorted(path for path in folder.iterdir() if not passed_over(path.name))
    except FileNotFoundError:
        return []


def passed_over(name: str) -> bool:
    """Whether a name above the shards is that of a working file, or of a system."""
    return name[0] == "." or name in OF_SYSTEM


def checksums(path: Path) -> dict[str, str]:
    """A checksum file as path → digest."""
    path.parent.stat()  # raises an error that names the folder, if that is missing
    data = path.read_bytes()
    listed = {line[34:]: line[:32] for line in data.decode(errors="replace").splitlines()}
    whole = "".join(f"{listed[name]}  {name}\n" for name in sorted(listed))
    inside = all(not {"..", "/"} & {*PurePosixPath(name).parts} for name in listed)
    if not listed or whole.encode() != data or not inside:
        raise ValueError("not lines of '<32 hex digits>  <path>', sorted by path")
    return listed


def file_digest(path: Path) -> str:
    """The XXH3-128 of a file as hexadecimal digits."""
    if path.exists() and not path.is_file():
        raise ValueError("a folder, a pipe or a device, but must be a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def chunk_bytes(path: Path) -> int:
    """The size of the chunk file of an array, from its zarr.json: rows, index, CRC."""
    metadata = json.loads(path.read_bytes())
    outer = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    inner = metadata["codecs"][0]["configuration"]["chunk_shape"]
    values = math.prod(outer) * int(re.sub("[a-z]", "", metadata["data_type"])) // 8
    return values + 16 * -(-outer[0] // inner[0]) + 4


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files that it cannot encode
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # what reads the output may end first
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("verify_shards.py: interrupted", file=sys.stderr)
        sys.exit(130)
