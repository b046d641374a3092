"""Checking a feature against its checksums and against docs/format.md, "Features"."""

from collections.abc import Sequence, Set
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.arguments import ALL, Share, share_of
from sa1bpack.errors import FormatError, NotAPack
from sa1bpack.format.arrays import (
    METADATA_NAME,
    check_metadata,
    chunk_file,
    group_files,
    read_metadata,
)
from sa1bpack.format.files import CHECKSUMS_NAME, byte_view, read_checksums
from sa1bpack.format.index import Index
from sa1bpack.format.layout import Extent
from sa1bpack.format.manifest import MANIFEST_NAME, Count
from sa1bpack.format.problems import Check
from sa1bpack.format.side.spec import (
    AGAIN,
    REMAKE,
    SIDES_NAME,
    ShardIdentity,
    SidePart,
    SideSpec,
    coverage,
    open_part,
    part_names,
    read_side_manifest,
    side_root_metadata,
)
from sa1bpack.format.verify_shard import (
    Listed,
    check_group,
    check_listed,
    check_tail,
    finish_streams,
    open_streams,
)
from sa1bpack.wording import counted


class _PartAttributes(msgspec.Struct, kw_only=True):
    """The attributes of a part that say which shard it is bound to."""

    shard: str
    digest: str
    samples: Count
    masks: Count


def side_folders(root: Path) -> list[Path]:
    """The features in a pack's own folder, sorted by name."""
    folder = Path(root) / SIDES_NAME
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def check_side(
    check: Check,
    folder: Path,
    *,
    quick: bool = False,
    shards: Sequence[ShardIdentity] | None = None,
    index: Index | None = None,
    share: Share = ALL,
) -> int:
    """Check a feature, and report every problem; returns the number of parts.

    quick   skip the rows themselves
    shards  of the pack that it belongs to: what is missing and what is stale is noted
    index   of that pack: needed to name damaged samples of arrays with a row per mask
    share   (K, N): check every N-th part, from the K-th on; the first also what is not in parts
    """
    names: Sequence[str] = ()
    with check.collecting(feature=folder.name):
        try:
            spec = read_side_manifest(folder).spec
        except NotAPack as error:
            check.add(f"{error}, or remove it", feature=folder.name, extra=True)
            return 0
        if share[0] == 1:
            with check.collecting(feature=spec.name):
                _check_top(check, folder, spec.name)
        names = part_names(folder)
        if shards is not None and share[0] == 1:
            _note_coverage(check, folder, names, shards)
        numbers = {shard.part: number for number, shard in enumerate(shards or ())}
        names = share_of(names, share)
        for name in names:
            with check.collecting(feature=spec.name, shard=name):
                _check_part(check, folder / name, spec, quick, index, numbers.get(name))
    return len(names)


def _check_top(check: Check, folder: Path, name: str) -> None:
    """Check the files that are not part of a part."""
    listed = read_checksums(folder / CHECKSUMS_NAME)
    with check.collecting(feature=name):
        check_listed(folder, {MANIFEST_NAME, METADATA_NAME}, listed)
    for path, digest in listed.items():
        check.digest(folder / path, digest, feature=name)
    check_metadata(folder / METADATA_NAME, side_root_metadata())


def _note_coverage(
    check: Check, folder: Path, names: list[str], shards: Sequence[ShardIdentity]
) -> None:
    found = coverage(names, shards)
    if found.missing:
        check.notes.append(f"{folder}: {found}; to make them, {AGAIN}")
    if found.others:
        verb = "belongs" if len(found.others) == 1 else "belong"
        check.notes.append(
            f"{folder}: {counted(len(found.others), 'part')} {verb} to no shard of this pack, such "
            f"as {found.others[0]}; another pack may have the shard; otherwise remove what belongs "
            "to none"
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
    check: Check, part: Path, spec: SideSpec, quick: bool, index: Index | None, number: int | None
) -> None:
    """Check a part, that of the shard of a number in the index."""
    place = {"feature": spec.name, "shard": part.name}
    if not part.is_dir():
        check.add(f"{part}: not a part of the feature; remove it", extra=True, **place)
        return
    values = spec.values

    def read(listed: Listed) -> Set[str]:
        identity = read_identity(part)
        opened = open_part(part.parent, spec, identity, deep=True)
        arrays = spec.arrays(identity.extent)
        rows = arrays[values]
        check.advance(sum(chunk_file(*each).file_bytes for each in arrays.items()))
        if listed is not None:
            check_listed(part, group_files(arrays), listed)
        if quick:
            check_tail(check.files, part, values, rows)
            return {values.chunk_path}
        counts = None
        if spec.axis == "sample":
            counts = np.ones(opened.samples, np.int64)
        elif number is not None and index is not None:
            first, stop = index.shard_offset[number : number + 2].tolist()
            counts = np.diff(index.mask_offset[first : stop + 1])
        if not rows or counts is None or int(counts.sum()) != rows:
            return set()  # nobody knows which rows are whose
        _check_rows(check, opened, listed, counts, place)
        return {values.chunk_path}

    check_group(check, part, read, heavy={values.chunk_path} if quick else set(), **place)


def _check_rows(
    check: Check, part: SidePart, listed: Listed, counts: np.ndarray, place: dict
) -> None:
    """Read the rows once: check the checksum of each sample, then the digest of the file."""
    stored, values, first = part.checksum, part.spec.values, 0
    with open_streams(check.files, part.folder, {values: len(part.values)}) as streams:
        stream = streams[values.name]
        for sample, stop in enumerate(np.cumsum(counts).tolist()):
            found = xxhash.xxh3_64_intdigest(byte_view(stream.read(first, stop)))
            first = stop
            if found != int(stored[sample]):
                check.add(
                    f"checksum of sample {sample} is {found:016x}, but "
                    f"{int(stored[sample]):016x} is stored; {REMAKE}",
                    **place,
                )
        finish_streams(check, streams, listed, **place)
