"""Checking a side array against its checksums and against docs/format.md, "Side data"."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.arguments import ALL, Share, share_of
from sa1bpack.errors import FormatError, NotAPack
from sa1bpack.format.array_reader import check_metadata, read_metadata
from sa1bpack.format.array_stream import ArrayStreams, Reader
from sa1bpack.format.checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.files import byte_view
from sa1bpack.format.layout import Extent
from sa1bpack.format.manifest import MANIFEST_NAME, Count
from sa1bpack.format.problems import Findings
from sa1bpack.format.side.binding import ShardIdentity, coverage, part_names
from sa1bpack.format.side.part import SidePart, open_part, part_bytes
from sa1bpack.format.side.spec import (
    AGAIN,
    REMAKE,
    SIDES_NAME,
    SideManifest,
    SideSpec,
    read_side_manifest,
    side_root_metadata,
)
from sa1bpack.format.verify_shard import (
    check_digest,
    check_tail,
    compare_digests,
    compare_files,
)
from sa1bpack.format.zarr_metadata import METADATA_NAME
from sa1bpack.wording import counted

# Masks of each sample of a shard, int64 (N,), by its number.
Counts = Callable[[int], np.ndarray]


class _PartAttributes(msgspec.Struct, kw_only=True):
    """The attributes of a part that say which shard it is bound to."""

    shard: str
    digest: str
    samples: Count
    masks: Count


def side_folders(root: Path) -> list[Path]:
    """The side arrays in a pack's own folder, sorted by name."""
    folder = Path(root) / SIDES_NAME
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def check_side(
    folder: Path,
    findings: Findings,
    *,
    quick: bool = False,
    reader: Reader,
    shards: Sequence[ShardIdentity] | None = None,
    counts: Counts | None = None,
    advance: Callable[[int], None] = lambda nbytes: None,
    share: Share = ALL,
) -> SideManifest | None:
    """Check a side array, and report every problem; returns its manifest unless that is damaged.

    quick    skip the rows themselves
    reader   reads the rows
    shards   of the pack that it belongs to: what is missing and what is stale is noted
    counts   masks of the samples of these shards, by number: needed to name damaged samples
    advance  called with the bytes that were checked
    share    (K, N): check every N-th part, from the K-th on; the first also what is not in parts
    """
    side = Path(folder).name
    with findings.collecting(side=side):
        try:
            manifest = read_side_manifest(folder)
        except NotAPack as error:
            findings.add(f"{error}, or remove it", side=side, extra=True)
            return None
        side, spec = manifest.name, manifest.spec
        if share[0] == 1:
            with findings.collecting(side=side):
                _check_top(folder, findings, side)
        names = part_names(folder)
        known = {shard.part: number for number, shard in enumerate(shards or ())}
        if shards is not None and share[0] == 1:
            _note_coverage(folder, names, shards, findings)
        for name in share_of(names, share):
            with findings.collecting(side=side, shard=name):
                number = known.get(name)
                rows = None if number is None or counts is None else counts(number)
                _check_part(folder, name, spec, findings, quick, reader, rows, advance)
        return manifest
    return None


def _check_top(folder: Path, findings: Findings, side: str) -> None:
    """Check the files that are not part of a part."""
    listed = read_checksums(folder / CHECKSUMS_NAME)
    if set(listed) != {MANIFEST_NAME, METADATA_NAME}:
        findings.add(
            f"{folder / CHECKSUMS_NAME}: must list exactly {MANIFEST_NAME} and {METADATA_NAME}",
            side=side,
        )
    for path, digest in listed.items():
        check_digest(folder, path, digest, findings, side=side)
    check_metadata(folder / METADATA_NAME, side_root_metadata())


def _note_coverage(folder: Path, names, shards, findings: Findings) -> None:
    found = coverage(names, shards)
    if found.missing:
        findings.notes.append(f"{folder}: {found}; to make them, {AGAIN}")
    if found.others:
        of_shards = {shard.name for shard in shards}
        stale = sum(name.rpartition("-")[0] in of_shards for name in found.others)
        stale = f" ({stale:,} stale: for other bytes of one)" if stale else ""
        verb = "belongs" if len(found.others) == 1 else "belong"
        findings.notes.append(
            f"{folder}: {counted(len(found.others), 'part')} {verb} to no shard of this "
            f"pack{stale}, such as {found.others[0]}; another pack may have the shard; "
            "otherwise remove what belongs to none"
        )


def read_identity(part: Path) -> ShardIdentity:
    """The shard that a part says it is bound to. Raises FormatError, OSError."""
    path = part / METADATA_NAME
    try:
        found = msgspec.convert(read_metadata(path)["attributes"]["sa1bpack"], _PartAttributes)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise FormatError(f"{path}: not the attributes of a part ({error}); {REMAKE}") from None
    identity = ShardIdentity(
        found.shard, found.digest, Extent(samples=found.samples, masks=found.masks)
    )
    if identity.part != part.name:
        raise FormatError(f"{path}: it is the part {identity.part}, not {part.name}; {REMAKE}")
    return identity


def _check_part(
    folder: Path,
    name: str,
    spec: SideSpec,
    findings: Findings,
    quick: bool,
    reader: Reader,
    counts: np.ndarray | None,
    advance: Callable[[int], None],
) -> None:
    place = {"side": spec.name, "shard": name}
    if not (folder / name).is_dir():
        findings.add(
            f"{folder / name}: not a part of the side array; remove it", extra=True, **place
        )
        return
    part = folder / name
    listed = read_checksums(part / CHECKSUMS_NAME)
    compare_files(part, {*listed, CHECKSUMS_NAME}, findings, **place)
    identity = read_identity(part)
    opened = open_part(folder, spec, identity, deep=True)
    arrays = spec.arrays(identity.extent)
    expected = {METADATA_NAME} | {f"{array.name}/{METADATA_NAME}" for array in arrays}
    expected |= {array.chunk_path for array, rows in arrays.items() if rows}
    if expected != set(listed):
        findings.add(
            f"{part / CHECKSUMS_NAME}: must list exactly the files of the part; missing or extra: "
            f"{sorted(expected ^ set(listed))}",
            **place,
        )
    chunk, rows = spec.values.chunk_path, arrays[spec.values]
    if quick:
        check_tail(part, spec.values, rows, reader)
    elif rows:
        _check_rows(opened, listed.get(chunk), findings, reader, counts, place)
    for path, digest in listed.items():
        if path != chunk:
            check_digest(part, path, digest, findings, **place)
    advance(part_bytes(spec, identity.extent))


def _check_rows(
    part: SidePart,
    expected: str | None,
    findings: Findings,
    reader: Reader,
    counts: np.ndarray | None,
    place: dict,
) -> None:
    """Read the rows once: check the checksum of each sample, then the digest of the file."""
    if part.spec.axis == "sample":
        counts = np.ones(part.samples, np.int64)
    rows = len(part.values)
    if counts is None or int(counts.sum()) != rows:  # nobody knows which rows are whose
        path = part.spec.values.chunk_path
        check_digest(part.folder, path, expected or "", findings, reader=reader, **place)
        return
    with ArrayStreams(reader) as opened:
        stored = part.checksum
        stream = opened.open(part.folder, part.spec.values, rows)
        for sample, count in enumerate(counts.tolist()):
            found = xxhash.xxh3_64_intdigest(byte_view(stream.take(count)))
            if found != int(stored[sample]):
                findings.add(
                    f"checksum of sample {sample} is {found:016x}, but "
                    f"{int(stored[sample]):016x} is stored; {REMAKE}",
                    **place,
                )
        findings.files += 1
        compare_digests(stream.path, stream.finish(), expected or "none", findings, **place)
