"""`copy_selection`: the selected samples of packs, copied to an ordinary pack of their own.

Nothing is decoded. A shard of which all samples are selected is linked, cloned or copied as by a
merge; of another one, the rows of its selected samples are copied, byte for byte, after they were
compared with their checksums. What is left out is a part of the accounts of the new pack. A copy
that is killed is repeated: shards that are published stay.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack import __version__, interrupts
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.errors import FormatError, OptionError, OutputRefused
from sa1bpack.export.copy_features import (
    CopiedShard,
    FeatureCopy,
    copy_feature_shard,
    find_feature_copies,
    make_feature_folder,
)
from sa1bpack.format import file_checksums, working_names
from sa1bpack.format.arrays import group_bytes
from sa1bpack.format.layout import AxisLengths
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, folder_to_write
from sa1bpack.format.run_log import CopyRecord, append_to_log
from sa1bpack.format.shard_reader import Shard, open_shard, read_sample_rows
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.format.side.shards import ShardIdentity
from sa1bpack.keywords import checks_options
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.merge import FolderCopier, check_apart, common_options
from sa1bpack.packing.pack_folder import locked_folder
from sa1bpack.packing.publishers import FolderPublisher, folder_publisher, inspect_pack, make_pack
from sa1bpack.packing.records import (
    PublishedShard,
    ShardKey,
    is_copied_in_part,
    published_shard,
    read_own_manifest,
)
from sa1bpack.packing.requested_options import RequestedOptions
from sa1bpack.progress import ProgressOption, check_progress, report, reporting_steps


@dataclass(frozen=True, kw_only=True)
class CopyResult:
    """The outcome of a copy, and the totals of the new pack; of a dry run, what they would be.

    Attributes:
        root: folder of the new pack.
        images, masks, shards: totals of the pack.
        left_out: images of its sources that are not in it, because they were not selected.
        bytes: size of the files of its shards, with holes counted.
        before: number of shards that an earlier call had put there.
        bytes_to_copy: size of the files of the other shards, and of their rows of features.
        features: name of each feature in PACK/side of the packs, whose rows come along → shards for
            which it has none.
        dry_run: nothing was written.
        seconds: wall time.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> result = sa1bpack.copy_selection(ds[:2], "two", progress=False)
        >>> result.images, result.left_out, result.features
        (2, 1, {})
    """

    root: Path
    images: int
    masks: int
    shards: int
    left_out: int
    bytes: int
    before: int
    bytes_to_copy: int
    features: dict[str, list[str]]
    dry_run: bool
    seconds: float


@checks_options(out="output")
def copy_selection(
    dataset: Dataset,
    output: str | Path,
    *,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> CopyResult:
    """Copy the samples of a dataset to a pack of their own, byte for byte, without decoding.

    The result is an ordinary pack, with the options of the packs that the samples are from; `pack`
    adds tars to it. Its samples are in the order of the packs, each once, with all of their masks.
    A source of which samples are left out is recorded as packed to its end, with their number.
    Features in PACK/side come along; other ones are bound to the packs, and are not copied.
    Rows are compared with their checksums before they are copied.

    If it is interrupted or killed, repeat the call: complete shards stay.

    Args:
        dataset: samples that are selected from an open pack, or several: by slices, index arrays,
            `where`, `split`, `fraction`, or a saved selection.
        output: folder of the new pack: new, empty, or what the same call, or one with fewer shards
            of the same rows, has left there.
        dry_run: write nothing; the result says what would be copied.
        progress: show a bar on stderr; or a function that is called as function(bytes done, all
            bytes). Default: a bar if stderr is a terminal.

    Raises:
        OptionError: an argument cannot be used: a dataset without samples, with thresholds or
            `where_masks`, or at a URL; a source that is not packed to its end.
        OptionsDiffer: the packs were made with different options.
        OutputRefused: `output` holds something else, or two packs have a source of one name.
        OutputLocked: a packer or a repair works on one of the folders.
        FormatError: a pack or a selected sample is damaged, or a pack is not one of this packer.
        OSError: the disk fails or is too small.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> sa1bpack.copy_selection(ds[1:], "two", progress=False).images
        2
        >>> sa1bpack.verify("two").ok
        True
    """
    started = time.perf_counter()
    check_progress(progress)
    ds = as_dataset(dataset)
    root = folder_to_write("output", output, "give a new folder", itself=False)
    _check_selection(ds)
    plan = _Plan(ds, root)
    check_apart(root, plan.roots, output)
    with _ledger_at(root, plan.options, dry_run) as (ledger, publisher):
        missing = plan.missing(root, ledger)
        if publisher is not None:
            _copy(plan, missing, publisher, progress)
            _log_copy(plan, missing, root)
    shards = plan.shards.values()
    return CopyResult(
        root=root,
        images=sum(len(shard.rows) for shard in shards),
        masks=sum(shard.lengths.masks for shard in shards),
        shards=len(shards),
        left_out=plan.left_out,
        bytes=sum(shard.nbytes for shard in shards),
        before=len(shards) - len(missing),
        bytes_to_copy=plan.bytes_to_copy(missing),
        features={feature.name: list(feature.without_rows) for feature in plan.features},
        dry_run=dry_run,
        seconds=time.perf_counter() - started,
    )


def _check_selection(ds: Dataset) -> None:
    """Raise OptionError for a dataset of which no copy of whole samples can be made."""
    if not len(ds):
        raise OptionError("the dataset has no sample: select at least one")
    if not ds.options.keeps_all:
        raise OptionError(
            f"the dataset has the thresholds {ds.options.as_text()}, but samples are copied with "
            "all of their masks: select from a dataset without, and open the copy with them"
        )
    if ds.mask_filter is not None:
        raise OptionError(
            f"the dataset has the masks {ds.mask_filter.text}, but samples are copied with all of "
            "their masks: select from the dataset before where_masks, and use it on the copy"
        )
    for folder in ds.pack.folders:
        if folder.source is not None:
            raise OptionError(
                f"the dataset is of {folder.name}, but files are copied from disks of this "
                "machine: copy the pack to a disk first (aws s3 sync, gsutil rsync), or save the "
                "selection, which is read from there (ds.save_selection, `sa1bpack subset` "
                "without --copy)"
            )


@contextmanager
def _ledger_at(
    root: Path, options: RequestedOptions, dry_run: bool
) -> Iterator[tuple[Ledger, FolderPublisher | None]]:
    """The ledger of the output, and its publisher, unless nothing is to be written."""
    if dry_run:
        yield inspect_pack(root, options), None
        return
    with folder_publisher(root, options) as publisher:
        yield publisher.ledger, publisher


# ------------------------------------------------------------------------------------------ plans


@dataclass(frozen=True)
class _ShardCopy:
    """A shard of the new pack.

    Attributes:
        root: folder of the pack that it is copied from.
        shard: the shard there, with its record.
        digest: XXH3-128 of its checksum file.
        rows: int64 (n,), ascending: the rows to copy.
        lengths: lengths of the new shard along its axes.
        nbytes: bytes of its chunk files, with holes counted.
    """

    root: Path
    shard: PublishedShard
    digest: str
    rows: np.ndarray
    lengths: AxisLengths
    nbytes: int

    @property
    def folder(self) -> Path:
        """The folder that it is copied from."""
        return self.root / SHARDS_NAME / self.shard.entry.name

    @property
    def whole(self) -> bool:
        """True if all rows are copied."""
        return len(self.rows) == self.shard.entry.samples

    @property
    def for_features(self) -> CopiedShard:
        """The shard, as features see it."""
        entry = self.shard.entry
        identity = ShardIdentity(entry.name, self.digest, entry.lengths)
        return CopiedShard(self.root, identity, self.rows, self.lengths)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a shard of which not all rows are copied."""
        attributes = self.shard.attributes
        left_out = self.shard.entry.samples - len(self.rows)
        return attributes | {
            "left_out": attributes.get("left_out", 0) + left_out,
            "copied_from": self.origin,
        }

    @property
    def origin(self) -> dict[str, str]:
        """The shard and the rows that are copied."""
        rows = self.rows.astype("<i8")
        return {"digest": self.digest, "rows": xxhash.xxh3_64_hexdigest(rows.tobytes())}

    def is_at(self, root: Path, published: PublishedShard) -> bool:
        """True if a published shard is this copy."""
        if not self.whole:
            return published.attributes.get("copied_from") == self.origin
        folder = root / SHARDS_NAME / published.entry.name
        return file_checksums.file_digest(folder / file_checksums.CHECKSUMS_NAME) == self.digest


class _Plan:
    """The contents of the new pack, found without writing anything.

    Attributes:
        roots: folders of the packs that have selected samples.
        options: the options of these packs.
        shards: (source, number within it) → the shard to be copied.
        sources: name → record, of the sources that have selected samples.
        left_out: number of samples of these sources that are not copied.
        features: the features of the packs.
    """

    def __init__(self, ds: Dataset, output: Path):
        """Raises what `copy_selection` raises before it writes."""
        rows_by_shard = _rows_by_shard(ds)
        used = {}
        for number in rows_by_shard:
            folder, _ = ds.pack.places[number]
            used[folder.root] = read_own_manifest(folder.root)
        self.roots = tuple(used)
        self.options = RequestedOptions.all_of(common_options(used, "copied into one"))
        self.shards: dict[ShardKey, _ShardCopy] = {}
        self.sources: dict[str, dict[str, Any]] = {}
        self.left_out = 0
        for number, rows in rows_by_shard.items():
            self._add_shard(ds.pack, number, rows)
        for root, manifest in used.items():
            for record in manifest.sources:
                self._add_source(ds.pack, root, record)
        for (source, _), shard in self.shards.items():
            if source not in self.sources:
                raise OptionError(
                    f"{shard.root}: the source {source} is not packed to its end: complete the "
                    "pack, or leave out the samples of this source"
                )
        self.features = find_feature_copies(
            self.roots, [shard.for_features for shard in self.shards.values()], output
        )

    def _add_shard(self, pack: Pack, number: int, rows: np.ndarray) -> None:
        """Add rows of a shard of the packs. Raises OutputRefused for two of one name."""
        folder, folder_number = pack.places[number]
        published = _published(folder, folder_number)
        key = published.entry.source, published.entry.part
        if key in self.shards:
            raise OutputRefused(
                f"{self.shards[key].root} and {folder.root} have a shard {published.entry.name} "
                "each: select from one of them, or merge the packs first"
            )
        digest = folder.identities[folder_number].digest
        lengths = published.entry.lengths
        nbytes = published.entry.bytes
        if len(rows) < published.entry.samples:
            lengths = _lengths_of(pack[number], rows)
            nbytes = group_bytes(pack.layout.array_rows(lengths))
        self.shards[key] = _ShardCopy(folder.root, published, digest, rows, lengths, nbytes)

    def _add_source(self, pack: Pack, root: Path, record: Mapping[str, Any]) -> None:
        """Add the record of a source, if samples of it are copied from this pack.

        The pairs of its shards that are not copied are in its record, as those of shards without
        samples. Raises OutputRefused if two packs have the source.
        """
        name = record["name"]
        copies = {n: shard for (source, n), shard in self.shards.items() if source == name}
        if not any(shard.root == root for shard in copies.values()):
            return
        if any(shard.root != root for shard in copies.values()):
            raise OutputRefused(
                f"the source {name} is in several of the packs: select from one of them, or merge "
                "the packs first"
            )
        dropped = record["dropped"]
        rejects: list[dict[str, str]] = []
        left_out = record.get("left_out", 0)
        for folder, folder_number in pack.places:
            entry = folder.manifest.shards[folder_number]
            if folder.root == root and entry.source == name and entry.part not in copies:
                attributes = _published(folder, folder_number).attributes
                dropped += attributes["dropped"]
                rejects += attributes["rejects"]
                left_out += entry.samples + attributes.get("left_out", 0)
        in_shards = 0
        for shard in copies.values():
            in_shards += shard.shard.attributes.get("left_out", 0)
            in_shards += shard.shard.entry.samples - len(shard.rows)
        copied = dict(record) | {"dropped": dropped, "rejects": [*rejects, *record["rejects"]]}
        if left_out or in_shards or is_copied_in_part(record):
            copied["left_out"] = left_out
        self.sources[name] = copied
        self.left_out += left_out + in_shards

    def missing(self, root: Path, ledger: Ledger) -> list[_ShardCopy]:
        """The shards that the pack at `root` lacks, in order.

        Raises OutputRefused if it holds others.
        """
        others = [f"the source {name}" for name in ledger.sources if name not in self.sources]
        for key, shard in ledger.shards.items():
            if key not in self.shards or not self.shards[key].is_at(root, shard):
                others.append(f"the shard {shard.entry.name}, of other samples")
        if others:
            raise OutputRefused(
                f"{root} holds {others[0]}, which this selection does not have: choose a new folder"
            )
        return [shard for key, shard in sorted(self.shards.items()) if key not in ledger.shards]

    def bytes_to_copy(self, missing: Sequence[_ShardCopy]) -> int:
        """The bytes of missing shards, and of their rows of features."""
        nbytes = sum(shard.nbytes for shard in missing)
        names = {shard.shard.entry.name for shard in missing}
        for feature in self.features:
            for shard in feature.shards:
                if shard.identity.name in names:
                    nbytes += feature.bytes_of(shard)
        return nbytes


def _rows_by_shard(ds: Dataset) -> dict[int, np.ndarray]:
    """Number of each shard that has selected samples → their rows in it, int64 (n,), ascending."""
    rows = np.unique(ds.rows_at(np.arange(len(ds))))
    edges = np.searchsorted(rows, ds.pack.first_row).tolist()
    selected = {}
    for number, (low, high) in enumerate(pairwise(edges)):
        if low < high:
            selected[number] = rows[low:high] - ds.pack.first_row[number]
    return selected


def _published(folder: PackFolder, number: int) -> PublishedShard:
    """A shard of a pack with the packer's record. Raises FormatError if it is damaged."""
    path = folder.shard_path(number)
    published = published_shard(path, folder.root, folder.layout)
    if published.entry != folder.manifest.shards[number]:
        raise FormatError(f"{path}: not the shard that {MANIFEST_NAME} lists; `sa1bpack verify`")
    return published


def _lengths_of(shard: Shard, rows: np.ndarray) -> AxisLengths:
    """The lengths of a shard of some rows, int64 (n,), of another one."""
    first = shard["mask_offset"][rows]
    stop = shard["mask_offset"][rows + 1]
    runs = 0
    if shard.layout.runs:
        runs = int((shard["run_offset"][stop] - shard["run_offset"][first]).sum())
    image_bytes = 0
    if shard.layout.flat:
        image_bytes = int((shard["image_offset"][rows + 1] - shard["image_offset"][rows]).sum())
    return AxisLengths(
        samples=len(rows), masks=int((stop - first).sum()), runs=runs, image_bytes=image_bytes
    )


# ---------------------------------------------------------------------------------------- copying


def _copy(
    plan: _Plan,
    missing: Sequence[_ShardCopy],
    publisher: FolderPublisher,
    progress: ProgressOption,
) -> None:
    """Copy the missing shards, while no packer and no repair works on any of the packs."""
    total = plan.bytes_to_copy(missing)
    with reporting_steps(progress, "byte", total) as step, ExitStack() as locks:
        for root in plan.roots:
            with suppress(FileNotFoundError, PermissionError):  # then no packer can work there
                locks.enter_context(locked_folder(root, shared=True, create=False))
        make_pack(publisher.root, publisher.ledger.options)
        publisher.publish()
        copier = FolderCopier([], lambda finished, total, label="": None)
        for shard in missing:
            interrupts.check()
            if shard.whole:
                final = publisher.shards_dir / shard.shard.entry.name
                copier.publish(
                    shard.folder, working_names.temporary_beside(final), final, shard.digest
                )
                publisher.add_shard(shard.shard)
                step(shard.nbytes)
            else:
                publisher.add_shard(_copy_rows(shard, publisher, step))
        names = {shard.shard.entry.name for shard in missing}
        for feature in plan.features:
            _copy_feature(feature, publisher.root, copier, names, step)
        interrupts.check()
        publisher.ledger.sources.update(plan.sources)
        publisher.publish(complete=True)


def _log_copy(plan: _Plan, missing: Sequence[_ShardCopy], root: Path) -> None:
    """Note in the log of the new pack where its shards were copied from."""
    if not missing:
        return
    copied = CopyRecord(
        finished=datetime.now(UTC).replace(microsecond=0),
        copied_from=[str(pack) for pack in plan.roots],
        images=sum(len(shard.rows) for shard in missing),
        sa1bpack=__version__,
    )
    try:
        append_to_log(root, copied)
    except OSError as error:  # the copy is complete
        report(f"{root}: this copy is not logged ({error.strerror})")


def _copy_feature(
    feature: FeatureCopy,
    root: Path,
    copier: FolderCopier,
    counted_shards: Set[str],
    step: Callable[[int], None],
) -> None:
    """Copy the rows of a feature into the pack at `root`.

    Args:
        feature: the feature.
        root: folder of the new pack.
        copier: links or copies folders.
        counted_shards: names of the shards whose bytes are counted.
        step: called with the bytes that were copied.
    """
    target = make_feature_folder(root, feature)
    for shard in feature.shards:
        interrupts.check()
        copy_feature_shard(feature, shard, target, shard.copied_to(root), copier)
        if shard.identity.name in counted_shards:
            step(feature.bytes_of(shard))


def _copy_rows(
    copy: _ShardCopy, publisher: FolderPublisher, step: Callable[[int], None]
) -> PublishedShard:
    """Publish a shard of some of the rows of another one; returns it.

    Args:
        copy: the shard and its rows.
        publisher: publisher of the new pack.
        step: called with the bytes that were copied of each sample.

    Raises:
        FormatError: a sample differs from its checksum.
        OSError: the disk fails.
    """
    source = open_shard(copy.folder, publisher.ledger.options.layout)
    copied = 0
    with ShardWriter(publisher.shards_dir, copy.shard.entry.name, source.layout) as writer:
        for count, row in enumerate(copy.rows.tolist(), start=1):
            interrupts.check()
            rows = read_sample_rows(source, row)
            for spec in source.layout.arrays:
                if spec.offsets:  # a writer takes lengths
                    rows[spec.name] = np.diff(rows[spec.name])
            writer.append(rows)
            nbytes = copy.nbytes * count // len(copy.rows)
            step(nbytes - copied)
            copied = nbytes
        entry = writer.publish(copy.attributes)
    return published_shard(publisher.shards_dir / entry.name, publisher.root)
