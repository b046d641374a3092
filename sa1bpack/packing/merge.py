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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sa1bpack import interrupts
from sa1bpack.errors import FormatError, NotAPack, OptionError, OptionsDiffer, OutputRefused
from sa1bpack.format import file_checksums, files, removal, working_names
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
from sa1bpack.format.side.manifest import (
    create_side,
    first_difference,
    is_unused,
    read_side_manifest,
)
from sa1bpack.format.side.shards import SIDES_NAME, ShardIdentity, side_folders
from sa1bpack.keywords import checks_options
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions, differences
from sa1bpack.packing.pack_folder import locked_folder
from sa1bpack.packing.publishers import FolderPublisher, folder_publisher, make_pack
from sa1bpack.packing.records import ShardKey, is_copied_in_part, published_shard, read_own_manifest
from sa1bpack.packing.requested_options import RequestedOptions
from sa1bpack.paths import (
    check_can_be_folder,
    exists,
    is_file,
    is_folder,
    local_path,
    matching,
    naming,
    paths_below,
    paths_of,
    real_path,
)
from sa1bpack.progress import Advance, ProgressOption, reporting
from sa1bpack.wording import brief

_WORKING = "merge-"
_NOT_AT_URLS = (
    "a merge links files of the packs, or clones or copies them, on disks of this machine: copy "
    "the packs to a disk, or open them as one without a merge, sa1bpack.open([...])"
)
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


@checks_options
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
    roots = paths_of("packs", packs, _NOT_AT_URLS)
    root = local_path("output", output, _NOT_AT_URLS)
    check_apart(root, roots, output)
    check_can_be_folder(root, "give a new folder, or that of a pack")
    refuse_in_pack("output", root)
    union = _Union(root, roots)
    with (
        reporting(progress, "byte") as advance,
        folder_publisher(root, RequestedOptions.all_of(union.options)) as publisher,
    ):
        missing = union.missing(publisher.ledger)
        before = len(publisher.ledger.shards)
        feature_shards = union.find_feature_shards()
        make_pack(root, union.options)
        placing = FolderCopier([*(shard.folder for shard in missing), *feature_shards], advance)
        publisher.publish()
        _place_shards(missing, union, publisher, placing)
        union.create_sides()
        _place_feature_shards(feature_shards, placing)
        interrupts.check()
        publisher.ledger.sources.update(union.sources)
        manifest = publisher.publish(complete=union.complete)
    return MergeResult(
        root=root,
        images=manifest.samples,
        masks=manifest.masks,
        shards=len(manifest.shards),
        packs=len(roots),
        before=before,
        repeated=union.repeated,
        linked=placing.linked,
        cloned=placing.cloned,
        copied=placing.copied,
        features=union.without_rows,
        complete=union.complete,
        seconds=time.perf_counter() - started,
    )


def check_apart(root: Path, packs: Sequence[Path], output: str | os.PathLike[str]) -> None:
    """Raise OptionError if the output is one of the packs, or one of them is in the other."""
    merged = real_path(root)
    for pack in packs:
        folder = real_path(pack)
        if merged.is_relative_to(folder) or folder.is_relative_to(merged):
            raise OptionError(
                f"output is {str(output)!r}: it is, holds or is in the pack {pack}; choose another"
            )


@dataclass(frozen=True)
class _PackShard:
    """A shard of one of the packs: the pack, the shard's entry, and its digest."""

    pack: Path
    entry: ShardEntry
    digest: str

    @property
    def folder(self) -> Path:
        return self.pack / SHARDS_NAME / self.entry.name


def _place_shards(
    shards: Sequence[_PackShard],
    union: "_Union",
    publisher: FolderPublisher,
    placing: "FolderCopier",
) -> None:
    """Place shards in the merged pack, while no packer and no repair works on any of the packs."""
    with ExitStack() as locks:
        for pack in union.packs:  # other merges may lock them, too
            with suppress(FileNotFoundError, PermissionError):  # then no packer can work there
                locks.enter_context(locked_folder(pack, shared=True, create=False))
        for shard in shards:
            interrupts.check()
            published = published_shard(shard.folder, shard.pack, union.options.layout)
            if published.entry != shard.entry:
                raise FormatError(
                    f"{shard.folder}: not the shard that the manifest lists; `sa1bpack verify`"
                )
            final = publisher.shards_dir / shard.entry.name
            placing.publish(
                shard.folder, working_names.temporary_beside(final), final, shard.digest
            )
            publisher.add_shard(published)


def _place_feature_shards(folders: Mapping[Path, Path], placing: "FolderCopier") -> None:
    """Place feature shards in the merged pack: folder of each → its folder there."""
    for folder, final in folders.items():
        interrupts.check()
        # A name that tells it from those at which `derive` is working.
        working = working_names.temporary_beside(final.with_name(_WORKING + final.name))
        placing.publish(folder, working, final)


class _Union:
    """The joint contents of the packs, checked as far as possible without writing anything.

    Attributes:
        root: folder of the merged pack, which may have part of an earlier merge.
        packs: folders of the packs.
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
        self.root = root
        self.packs = packs
        self.options = common_options(manifests, "merged")
        self.shards: dict[ShardKey, _PackShard] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.repeated = 0
        self.complete = all(manifest.complete for manifest in manifests.values())
        for pack, manifest in manifests.items():
            for shortfall in manifest.shortfalls:
                raise FormatError(f"{pack / MANIFEST_NAME}: {shortfall}; {lost_remedy(pack)}")
            self._add_shards(pack, manifest)
            self._add_sources(pack, manifest)
        self.features = find_features(packs)
        self.without_rows: dict[str, list[str]] = {}
        for name, folders in self.features.items():
            merged = root / SIDES_NAME / name
            if exists(merged):
                check_same_feature([*folders, merged])
            else:
                check_same_feature(folders)
            self._check_same_rows([merged, *folders])

    def _check_same_rows(self, folders: Sequence[Path]) -> None:
        """Raise OutputRefused if two folders of a feature have different rows for one shard."""
        for shard in self.shards.values():
            name = ShardIdentity(shard.entry.name, shard.digest, shard.entry.lengths).feature_shard
            having = [folder for folder in folders if is_folder(folder / name)]
            if len(having) < 2:
                continue
            digests = [
                file_checksums.file_digest(folder / name / file_checksums.CHECKSUMS_NAME)
                for folder in having
            ]
            for folder, digest in zip(having[1:], digests[1:], strict=True):
                if digest != digests[0]:
                    raise OutputRefused(
                        f"{having[0] / name} and {folder / name} have different rows for one "
                        "shard: remove the one that is wrong, or move its feature out of the pack"
                    )

    def _add_shards(self, pack: Path, manifest: Manifest) -> None:
        """Add the shards of a pack. Raises OutputRefused if another pack has one of other bytes."""
        for entry, digest in zip(manifest.shards, shard_digests(pack, manifest), strict=True):
            key = entry.source, entry.part
            if key not in self.shards:
                self.shards[key] = _PackShard(pack, entry, digest)
                continue
            first = self.shards[key]
            if first.digest != digest:
                raise OutputRefused(
                    f"{first.pack} and {pack} have different shards {entry.name}: two sources of "
                    "one name, or one was packed again; leave one out"
                )
            self.repeated += 1

    def _add_sources(self, pack: Path, manifest: Manifest) -> None:
        """Add the sources of a pack.

        Raises OutputRefused if another pack's is another file, or one has a copy of a part of it.
        """
        for record in manifest.sources:
            name = record["name"]
            if name in self.sources and (
                is_copied_in_part(record) or is_copied_in_part(self.sources[name])
            ):
                raise OutputRefused(
                    f"{pack / MANIFEST_NAME}: the source {name} is in several of the packs, of "
                    "which one has a copy of some of its samples: leave one out, or copy both "
                    "selections from the pack that has all"
                )
            first = self.sources.setdefault(name, record)
            for key in ("kind", "nbytes", "pairs", *DIGEST_NAMES):
                value = record.get(key)
                expected = first.get(key)
                if key in DIGEST_NAMES and None in (value, expected):
                    continue  # one of the packs does not record it
                if value != expected:
                    raise OutputRefused(
                        f"{pack / MANIFEST_NAME}: the source {record['name']} is another file: its "
                        f"{key} is {brief(value)}, not {brief(expected)}; leave one of the packs "
                        "out"
                    )

    def missing(self, ledger: Ledger) -> list[_PackShard]:
        """The shards that the merged pack lacks. Raises OutputRefused if it has others."""
        unknown = sorted(ledger.sources.keys() - self.sources.keys())
        others = [f"the source {name}" for name in unknown]
        for key, shard in ledger.shards.items():
            name = shard.entry.name
            digest = file_checksums.file_digest(
                self.root / SHARDS_NAME / name / file_checksums.CHECKSUMS_NAME
            )
            if key not in self.shards or self.shards[key].digest != digest:
                others.append(f"the shard {name} with these bytes")
        if others:
            raise OutputRefused(
                f"{self.root} holds {others[0]}, which the packs to be merged do not have: name "
                "all packs that it was merged from, or another folder"
            )
        return [shard for key, shard in self.shards.items() if key not in ledger.shards]

    def find_feature_shards(self) -> dict[Path, Path]:
        """The feature shards that the merged pack lacks: folder of each → its folder there.

        Each is bound to the bytes of its shard, so it fits them under the same name in any pack.
        """
        feature_shards: dict[Path, Path] = {}
        for name, folders in self.features.items():
            merged = self.root / SIDES_NAME / name
            self.without_rows[name] = []
            for _, shard in sorted(self.shards.items()):
                entry = shard.entry
                identity = ShardIdentity(entry.name, shard.digest, entry.lengths)
                folder_name = identity.feature_shard
                having = [path for path in (merged, *folders) if is_folder(path / folder_name)]
                if having:
                    if having[0] != merged:
                        feature_shards[having[0] / folder_name] = merged / folder_name
                elif entry.samples:
                    self.without_rows[name].append(entry.name)
        return feature_shards

    def create_sides(self) -> None:
        """Make the folders of the features, with their manifests, where they are not there yet.

        Only for the process that holds the pack's lock: what a killed merge left is removed.
        """
        for name, folders in self.features.items():
            merged = self.root / SIDES_NAME / name
            files.make_folder(merged.parent)
            for folder in folders:
                create_side(merged, read_side_manifest(folder), _WORKING)
            for parent in (merged.parent, merged):
                for leftover in matching(parent, f"{working_names.TEMPORARY_PREFIX}{_WORKING}*"):
                    removal.remove_entry(leftover)


def common_options(manifests: Mapping[Path, Manifest], purpose: str) -> PackOptions:
    """The options of all packs, which are to be "merged" or the like.

    Raises OptionsDiffer, naming the differences, if they differ.
    """
    first_pack, first = next(iter(manifests.items()))
    for pack, manifest in manifests.items():
        lines = []
        for name, value, other in differences(first.options, manifest.options):
            lines.append(f"  {name}: {value} in {first_pack}, {other} in {pack}")
        if lines:
            raise OptionsDiffer(
                "\n".join(
                    [
                        f"packs made with other options cannot be {purpose}:",
                        *lines,
                        "sa1bpack.open([...]) opens packs together if they have one layout.",
                    ]
                )
            )
    return PackOptions.from_json(first.options)


def find_features(packs: Iterable[Path]) -> dict[str, list[Path]]:
    """Name of each feature in PACK/side → the folders of that name.

    Raises FormatError for a folder there that is not one of a feature, or has a damaged manifest.
    """
    features: dict[str, list[Path]] = {}
    for pack in packs:
        for folder in side_folders(pack):
            if not is_folder(folder):  # a stray file, which `verify` names
                continue
            try:
                read_side_manifest(folder)
            except NotAPack as error:
                raise FormatError(f"{error}, or remove it") from None
            if not is_unused(folder):  # as a failed call leaves it
                features.setdefault(folder.name, []).append(folder)
    return features


def check_same_feature(folders: Sequence[Path]) -> None:
    """Raise OutputRefused unless these folders are of the same feature."""
    first = read_side_manifest(folders[0])
    for folder in folders[1:]:
        difference = first_difference(first, read_side_manifest(folder))
        if difference:
            raise OutputRefused(
                f"{folders[0]} and {folder} are different features, {difference}: make one "
                "of them again like the other, or move its folder out of the pack"
            )


class FolderCopier:
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
        self.linked = 0
        self.cloned = 0
        self.copied = 0
        self._folders = folders
        self._advance = advance
        self._copied_bytes = 0

    @cached_property
    def _total(self) -> int:
        """The bytes of all files without their holes."""
        paths = (path for folder in self._folders for path in paths_below(folder) if is_file(path))
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
            FormatError: the files of the folder are not exactly those in its checksum file.
        """
        try:
            self._place(source, working)
            _check_whole_shard(source, working, digest)
            working.rename(final)
        except BaseException:
            removal.discard_entry(working)
            raise
        files.flush_folder(final.parent)

    def _place(self, source: Path, target: Path) -> None:
        target.mkdir()
        for path in sorted(source.iterdir()):
            if is_folder(path):
                self._place(path, target / path.name)
            else:
                self.place_file(path, target / path.name)
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
            with naming(target):
                os.fsync(write.fileno())

    def _copy(self, read: int, write: int, source: Path, target: Path) -> None:
        """Copy a file, leaving out its holes."""
        offset = 0
        with naming(source):
            size = os.fstat(read).st_size
        with naming(target):
            os.ftruncate(write, size)
        while offset < size:
            with naming(source):
                data = os.pread(read, len(_ZEROS), offset)
            if not data:
                raise OSError(errno.EIO, f"it ends at byte {offset}, but had {size}", str(source))
            if data != _ZEROS[: len(data)]:
                files.write_at(write, data, offset, target)
                self._copied_bytes += len(data)
                self._advance(self._copied_bytes, max(self._copied_bytes, self._total))
            offset += len(data)


def _check_whole_shard(source: Path, folder: Path, digest: str | None) -> None:
    """Raise FormatError unless a folder has exactly the files of a shard, or of a feature shard.

    Args:
        source: the folder that it was made like, for messages.
        folder: the folder.
        digest: XXH3-128 that its checksum file must have; None: any.
    """
    paths = {path.relative_to(folder).as_posix() for path in paths_below(folder)}
    checksums = folder / file_checksums.CHECKSUMS_NAME
    listed = {file_checksums.CHECKSUMS_NAME, *file_checksums.read_checksums(checksums)}
    listed |= {path.partition("/")[0] for path in listed}  # folders of arrays
    strays = sorted(paths - listed)
    if strays:
        raise FormatError(f"{source / strays[0]}: not a file of the shard; remove it")
    differs = digest is not None and file_checksums.file_digest(checksums) != digest
    if differs or paths != listed:
        raise FormatError(f"{source}: it changed or lacks files; `sa1bpack verify`")
