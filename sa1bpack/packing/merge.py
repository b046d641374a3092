"""`merge`: one pack from several, without reading a tar or decoding anything.

What is taken from each is checked before anything is written. Shards are put under their names in
the new pack by links, clones or copies, each in one step; then index, manifest and checksums are
published as by the packer. What results has the bytes of a pack of all sources. A merge that is
killed is repeated: what is published stays.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sa1bpack import interrupts
from sa1bpack.errors import FormatError, OptionError, OptionsDiffer, OutputRefused
from sa1bpack.format import files
from sa1bpack.format.index import shard_digests
from sa1bpack.format.manifest import (
    DIGEST_NAMES,
    MANIFEST_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    lost_remedy,
    refuse_in_pack,
)
from sa1bpack.format.side.spec import (
    SIDES_NAME,
    ShardIdentity,
    create_side,
    first_difference,
    is_side,
    is_unused,
    read_side_manifest,
    side_folders,
)
from sa1bpack.keywords import checks_options
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions, differences
from sa1bpack.packing.pack_folder import locked_folder
from sa1bpack.packing.publishers import folder_publisher, make_pack
from sa1bpack.packing.records import ShardKey, published_shard, read_own_manifest
from sa1bpack.paths import check_can_be_folder, local_path, paths_of
from sa1bpack.progress import Advance, ProgressOption, reporting
from sa1bpack.wording import brief

_WORKING = "merge-"
_FICLONE = 0x40049409  # of Linux, linux/fs.h
_ZEROS = bytes(1 << 16)  # so much is copied at a time, unless it is zeros: holes stay holes


@dataclass(frozen=True)
class MergeResult:
    """The outcome of a merge, and the totals of the new pack.

    Attributes:
        root: folder of the new pack.
        images, masks, shards: totals of the pack.
        packs: number of packs that were merged.
        before: number of shards that an earlier merge had put there.
        repeated: number of shards that several packs have, which are in the new pack once.
        linked, cloned, copied: number of files of shards and features that are hard links, clones,
            and copies.
        features: name of a feature → shards for which it has no rows.
        complete: every pack was complete.
        seconds: wall time.

    Examples:
        >>> result = sa1bpack.merge(["packed"], "merged")
        >>> result.images, result.shards, result.complete
        (3, 1, True)
    """

    root: Path
    images: int
    masks: int
    shards: int
    packs: int
    before: int
    repeated: int
    linked: int
    cloned: int
    copied: int
    features: dict[str, list[str]] = field(default_factory=dict)
    complete: bool = True
    seconds: float = 0.0


@checks_options(out="output")
def merge(
    packs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    progress: ProgressOption = None,
) -> MergeResult:
    """Make one pack of several that were made with the same options.

    Nothing is decoded and no tar is read. Files are hard links where the file system can do that,
    else clones that share their blocks, else copies. Features in PACK/side come along. The result
    has the same bytes as if all sources had been packed into `output`; interrupted or killed,
    repeat the call.

    Args:
        packs: folders of packs, or glob patterns. They stay as they are, and may be removed
            afterwards.
        output: folder of the new pack: new, empty, or what an earlier merge of these packs, or of
            some of them, left there.
        progress: show a bar on stderr; or a function that is called as function(bytes copied, bytes
            to copy), repeatedly while files are copied. Default: a bar if stderr is a terminal.

    Raises:
        OptionError: an argument cannot be used.
        OptionsDiffer: the packs were made with different options.
        OutputRefused: two packs have different shards, sources or features of one name, or `output`
            holds something else.
        OutputLocked: a packer or a repair works on one of the folders.
        FormatError: a pack is damaged, or is not one of this packer.
        OSError: the disk fails or is too small.

    Examples:
        >>> sa1bpack.merge(["packed"], "both").copied
        0
        >>> sa1bpack.verify("both").ok
        True
    """
    started = time.perf_counter()
    roots = paths_of("packs", packs)
    root = local_path("output", output)
    for pack in roots:
        one = root.resolve()
        other = pack.resolve()
        if one.is_relative_to(other) or other.is_relative_to(one):
            raise OptionError(
                f"output is {str(output)!r}: it is, holds or is in the pack {pack}; choose another"
            )
    check_can_be_folder(root, "give a new folder, or that of a pack")
    refuse_in_pack("output", root)
    union = _Union(root, roots)
    with (
        reporting(progress, "byte") as advance,
        folder_publisher(root, union.options) as publisher,
    ):
        ledger = publisher.ledger
        missing = union.missing(ledger)
        before = len(ledger.shards)
        feature_shards = union.find_feature_shards()
        make_pack(root, union.options)
        placing = Placing([*(taken.folder for taken in missing), *feature_shards], advance)
        publisher.publish()
        with ExitStack() as held:  # as several merges may hold them, and no packer or repair
            for pack in roots:
                with suppress(FileNotFoundError, PermissionError):  # then no packer can work there
                    held.enter_context(locked_folder(pack, shared=True, create=False))
            for taken in missing:
                interrupts.check()
                shard = published_shard(taken.folder, taken.pack, union.options.layout)
                if shard.entry != taken.entry:
                    raise FormatError(
                        f"{taken.folder}: not the shard that the manifest lists; `sa1bpack verify`"
                    )
                final = publisher.shards_dir / taken.entry.name
                placing.publish(taken.folder, files.temporary_beside(final), final, taken.digest)
                ledger.add_shard(shard)
        union.create_sides()
        for found, final in feature_shards.items():
            interrupts.check()
            # A name that tells it from those at which `derive` is working.
            working = files.temporary_beside(final.with_name(_WORKING + final.name))
            placing.publish(found, working, final)
        interrupts.check()
        ledger.sources.update(union.sources)
        manifest = publisher.publish(complete=union.complete)
    return MergeResult(
        root,
        manifest.samples,
        manifest.masks,
        len(manifest.shards),
        len(roots),
        before,
        union.repeated,
        placing.linked,
        placing.cloned,
        placing.copied,
        union.without_rows,
        union.complete,
        time.perf_counter() - started,
    )


@dataclass(frozen=True)
class _Taken:
    """A shard of one of the packs: the pack, its entry, and its digest."""

    pack: Path
    entry: ShardEntry
    digest: str

    @property
    def folder(self) -> Path:
        return self.pack / SHARDS_NAME / self.entry.name


class _Union:
    """The joint contents of the packs, checked as far as possible without writing anything.

    Attributes:
        root: folder of the merged pack, which may have part of an earlier merge.
        options: options of all packs.
        shards: (source, number within it) → the shard to be placed.
        sources: name → record, of the sources that are packed to their end.
        repeated: shards that several packs have, with the same bytes.
        complete: every pack is complete.
        features: name of a feature in PACK/side → the folders of that name.
        without_rows: name → shards with samples, for which none of the packs has rows of it.
    """

    def __init__(self, root: Path, packs: Sequence[Path]):
        """Read the packs, and check that they make one.

        Raises OptionsDiffer, naming the differences, if they were not made with the same options;
        OutputRefused if two packs have different shards, sources or features of one name;
        FormatError or VersionError for a pack that is damaged or newer.
        """
        manifests = {pack: read_own_manifest(pack) for pack in packs}
        first, one = next(iter(manifests.items()))
        for pack, manifest in manifests.items():
            lines = ["packs made with other options cannot be merged:"]
            for name, own, other in differences(one.options, manifest.options):
                lines.append(f"  {name}: {own} in {first}, {other} in {pack}")
            if len(lines) > 1:
                lines.append("sa1bpack.open([...]) opens packs together if they have one layout.")
                raise OptionsDiffer("\n".join(lines))
        self.root = root
        self.options = PackOptions.from_json(one.options)
        self.shards: dict[ShardKey, _Taken] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.repeated = 0
        self.complete = all(manifest.complete for manifest in manifests.values())
        for pack, manifest in manifests.items():
            for shortfall in manifest.shortfalls:
                raise FormatError(f"{pack / MANIFEST_NAME}: {shortfall}; {lost_remedy(pack)}")
            self._take(pack, manifest)
        self.features: dict[str, list[Path]] = {}
        self.without_rows: dict[str, list[str]] = {}
        for pack in packs:
            for folder in side_folders(pack):
                if not folder.is_dir():  # a stray file, which `verify` names
                    continue
                if not is_side(folder):
                    raise FormatError(
                        f"{folder}: not a feature: it has no {MANIFEST_NAME}; remove it, or make "
                        "the feature again"
                    )
                if not is_unused(folder):  # as a failed call leaves it
                    self.features.setdefault(folder.name, []).append(folder)
        for name, folders in self.features.items():
            out = root / SIDES_NAME / name
            spec = read_side_manifest(folders[0])
            for folder in [*folders[1:], out] if out.exists() else folders[1:]:
                if difference := first_difference(spec, read_side_manifest(folder)):
                    raise OutputRefused(
                        f"{folders[0]} and {folder} are different features, {difference}: make one "
                        "of them again like the other, or move its folder out of the pack"
                    )

    def _take(self, pack: Path, manifest: Manifest) -> None:
        for entry, digest in zip(manifest.shards, shard_digests(pack, manifest), strict=True):
            mine = _Taken(pack, entry, digest)
            found = self.shards.setdefault((entry.source, entry.part), mine)
            if found.digest != digest:
                raise OutputRefused(
                    f"{found.pack} and {pack} have different shards {entry.name}: two sources of "
                    "one name, or one was packed again; leave one out"
                )
            self.repeated += found is not mine
        for record in manifest.sources:
            found = self.sources.setdefault(record["name"], record)
            for key in ("kind", "nbytes", "pairs", *DIGEST_NAMES):
                one = found.get(key)
                other = record.get(key)
                if one != other and not (key in DIGEST_NAMES and None in (one, other)):
                    raise OutputRefused(
                        f"{pack / MANIFEST_NAME}: the source {record['name']} is another file: its "
                        f"{key} is {brief(other)}, not {brief(one)}; leave one of the packs out"
                    )

    def missing(self, ledger: Ledger) -> list[_Taken]:
        """The shards that are not there yet. Raises OutputRefused if others are."""
        unknown = sorted(ledger.sources.keys() - self.sources.keys())
        others = [f"the source {name}" for name in unknown]
        for key, shard in ledger.shards.items():
            digest = files.file_digest(
                self.root / SHARDS_NAME / shard.entry.name / files.CHECKSUMS_NAME
            )
            if key not in self.shards or self.shards[key].digest != digest:
                others.append(f"the shard {shard.entry.name} with these bytes")
        if others:
            raise OutputRefused(
                f"{self.root} holds {others[0]}, which the packs to be merged do not have: name "
                "all packs that it was merged from, or another folder"
            )
        return [taken for key, taken in self.shards.items() if key not in ledger.shards]

    def find_feature_shards(self) -> dict[Path, Path]:
        """The feature shards that the merged pack lacks: where each is → where it goes.

        Each is bound to the bytes of its shard, so it fits them under the same name in any pack.
        """
        found: dict[Path, Path] = {}
        for name, folders in self.features.items():
            out = self.root / SIDES_NAME / name
            self.without_rows[name] = []
            for _, taken in sorted(self.shards.items()):
                shard = ShardIdentity(taken.entry.name, taken.digest, taken.entry.lengths)
                there = [each for each in (out, *folders) if (each / shard.feature_shard).is_dir()]
                if not there and shard.lengths.samples:
                    self.without_rows[name].append(shard.name)
                elif there and there[0] != out:
                    found[there[0] / shard.feature_shard] = out / shard.feature_shard
        return found

    def create_sides(self) -> None:
        """Make the folders of the features, with their manifests, where they are not there yet.

        Only for the process that holds the pack's lock: what a killed merge left is removed.
        """
        for name, folders in self.features.items():
            out = self.root / SIDES_NAME / name
            files.make_folder(out.parent)
            for folder in folders:
                create_side(out, read_side_manifest(folder), _WORKING)
            for place in (out.parent, out):
                for left in place.glob(f"{files.TEMPORARY_PREFIX}{_WORKING}*"):
                    files.remove_entry(left)


class Placing:
    """The making of folders like others: of hard links, else clones, else copies.

    A hard link is the same file: it costs nothing, and nothing may ever write into it. No part of
    sa1bpack does: a shard is never changed once it is published, and a repair puts another folder
    in its place. A clone (a reflink) is a file of its own whose blocks are shared until one is
    written. Symbolic links are followed.

    Attributes:
        linked, cloned, copied: number of files that were made so.
    """

    def __init__(self, folders: Sequence[Path], advance: Advance):
        """
        Args:
            folders: all folders that will be placed.
            advance: called with the bytes that were copied, and those that `folders` take on the
                disk, whenever some are copied.
        """
        self.linked = self.cloned = self.copied = 0
        self._folders = folders
        self._advance = advance
        self._done = 0

    @cached_property
    def _total(self) -> int:
        """The bytes of all files without their holes."""
        paths = (path for folder in self._folders for path in folder.rglob("*") if path.is_file())
        return sum(path.stat().st_blocks * 512 for path in paths)

    def publish(self, source: Path, working: Path, final: Path, digest: str | None = None) -> None:
        """Make a folder like another, and give it its final name in one step.

        Args:
            source: the folder to be like.
            working: name of the folder until then, beside the final one.
            final: the final name.
            digest: for a shard, the XXH3-128 of its checksum file.

        Raises:
            OSError: the disk fails.
            FormatError: the files of a shard are not exactly those in its checksum file.
        """
        try:
            self._place(source, working)
            if digest is not None:
                found = {path.relative_to(working).as_posix() for path in working.rglob("*")}
                checksums = working / files.CHECKSUMS_NAME
                listed = {files.CHECKSUMS_NAME, *files.read_checksums(checksums)}
                listed |= {path.partition("/")[0] for path in listed}  # folders of arrays
                if strays := sorted(found - listed):
                    raise FormatError(f"{source / strays[0]}: not a file of the shard; remove it")
                if files.file_digest(checksums) != digest or found != listed:
                    raise FormatError(f"{source}: it changed or lacks files; `sa1bpack verify`")
            working.rename(final)
        except BaseException:
            files.discard_entry(working)
            raise
        files.flush_folder(final.parent)

    def _place(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in sorted(source.iterdir()):
            place = self._place if entry.is_dir() else self.place_file
            place(entry, target / entry.name)
        files.flush_folder(target)

    def place_file(self, source: Path, target: Path) -> None:
        """Make a file with the bytes of another, flushed to disk. Raises OSError."""
        with suppress(OSError):  # not in this file system, or not these two files
            os.link(source, target, follow_symlinks=True)
            self.linked += 1
            return
        with source.open("rb") as read, target.open("xb") as write:
            try:
                fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
                self.cloned += 1
            except OSError:  # the same
                self._copy(read.fileno(), write.fileno(), source, target)
                self.copied += 1
            with files.naming(target):
                os.fsync(write.fileno())

    def _copy(self, read: int, write: int, source: Path, target: Path) -> None:
        """Copy a file, leaving out its holes."""
        at = 0
        with files.naming(source):
            size = os.fstat(read).st_size
        with files.naming(target):
            os.ftruncate(write, size)
        while at < size:
            with files.naming(source):
                data = os.pread(read, len(_ZEROS), at)
            if not data:
                raise OSError(errno.EIO, f"it ends at byte {at}, but had {size}", str(source))
            if data != _ZEROS[: len(data)]:
                files.write_at(write, data, at, target)
                self._done += len(data)
                self._advance(self._done, max(self._done, self._total))
            at += len(data)
