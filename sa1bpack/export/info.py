"""`info`: what one pack or several hold, by their records, without reading pixels.

The format leaves records to the packer: a missing one is fine, one of another type is damage.
Several packs are summed up as `sa1bpack.open` has them as one dataset.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from sa1bpack.arguments import choice
from sa1bpack.dataset.layouts import check_layouts
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.pack_folder import open_folders
from sa1bpack.dataset.places import origins_of
from sa1bpack.errors import FormatError
from sa1bpack.export.disk_use import DiskUse, attributes_in, attributes_of, checked_record
from sa1bpack.export.histograms import bin_text, histogram
from sa1bpack.export.pack_records import PackRecords, pack_records
from sa1bpack.export.source_counts import (
    SourceAccount,
    SourceCounts,
    counts_of_sources,
    joined_counts,
    table_of_sources,
)
from sa1bpack.format.arrays import Count, group_bytes
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.index import find_duplicates
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    Completeness,
    Manifest,
    completeness_of,
    identity_text,
    read_manifest,
)
from sa1bpack.format.run_log import CopyRecord, records_in_log
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.side.manifest import read_side_manifest
from sa1bpack.format.side.shard import arrays_in
from sa1bpack.format.side.shards import (
    SIDES_NAME,
    ShardIdentity,
    coverage,
    feature_shard_names,
    shard_identities,
    side_folders,
)
from sa1bpack.keywords import checks_options
from sa1bpack.masks.select import left_out_text
from sa1bpack.options import LAYOUTS
from sa1bpack.paths import is_file, matching, paths_below, real_path
from sa1bpack.wording import brief, counted, size_text

_PACK_OPTIONS = "sa1bpack.packing.options"  # loaded when it is asked for: reading has no packer
_BINS = 10
_REASON = "rejects:"  # begins the keys of counts by reason


class _ShownRecords(msgspec.Struct):
    """What a source's record says of the records of its images; `file` has the annotations."""

    file: str = ""


class ShownSource(msgspec.Struct):
    """The record of a source, as far as it is shown."""

    name: str = ""
    kind: str = ""
    pairs: Count = 0
    nbytes: Count = 0
    xxh128: str | None = None
    md5: str | None = None
    md5_checked: bool = False
    records: _ShownRecords = msgspec.field(default_factory=_ShownRecords)


def text_of(value: Any) -> str:
    """A recorded value: texts and numbers as they are, lists and objects shortened."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, dict)):
        return brief(value)
    return str(value)


def template(
    name: str, filters: dict[str, Callable[..., str]] | None = None, **options: Any
) -> Template:
    """A template of this package, with more filters, and options of jinja2's Environment."""
    loader = PackageLoader("sa1bpack.export")
    environment = Environment(loader=loader, undefined=StrictUndefined, **options)
    environment.filters |= {"counted": counted, "size": size_text, "shown": text_of}
    environment.filters |= filters or {}
    return environment.get_template(name)


@cache
def _text_template() -> Template:
    """The template of a summary as text, which takes longer to compile than to render."""
    return template("info.txt", trim_blocks=True, lstrip_blocks=True)


@dataclass(frozen=True, kw_only=True)
class PackInfo(DiskUse):
    """Summary of a pack, or of several as one.

    Attributes:
        roots: folder of the pack, or its URL; of several packs that are summarized as one, those of
            all.
        manifest: manifest of the pack; of several packs, one that lists the shards of all, with the
            sums of their counts.
        sources: records of the sources.
        bytes: size of the chunk files, including holes; `disk_bytes` is their size on disk, at a
            URL the same as `bytes`: objects have no holes.
        files, folders: number of each, without working files of a packer, as a limit on inodes
            counts them; at a URL, the objects that the checksum files list, and no folders.
        mask_counts: int64 (N,), number of masks of each sample.
        packed_by: the versions that packed it, one entry per combination.
        unknown_keys: keys of the JSON records that a pack does not store.
        completeness: how much of the pack is published.
        duplicates: sentences on the image ids that the pack holds more than once.
        features: the features in PACK/side, whose files are not counted above: name → what it
            holds, how large it is, which function made it, and what is missing; or what is wrong
            with it.
        of_sources: what the pack holds of each of its sources, by name.
        copies: selections that were copied to the pack, by its log.
        packs: of several packs, what each holds; empty for one.
        unlisted: URLs whose server does not say which files there are, hence which features.
    """

    roots: tuple[Path | str, ...]
    manifest: Manifest
    sources: tuple[ShownSource, ...]
    mask_counts: np.ndarray
    completeness: Completeness
    duplicates: list[str]
    features: dict[str, str]
    of_sources: tuple[SourceCounts, ...] = ()
    copies: tuple[CopyRecord, ...] = ()
    packs: tuple["PackInfo", ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def places(self) -> list[str]:
        """The absolute paths of the folders, or their URLs."""
        return [str(root if isinstance(root, str) else real_path(root)) for root in self.roots]

    @property
    def at_urls(self) -> bool:
        """True if all packs are at URLs."""
        return all(isinstance(root, str) for root in self.roots)

    @property
    def notes(self) -> list[str]:
        """What is not known of the packs."""
        return [
            f"{url}: the server does not say which files there are: features are not listed"
            for url in self.unlisted
        ]

    @property
    def annotations(self) -> int:
        """Masks in the records of the images, before filtering and capping."""
        return sum(entry.annotations for entry in self.manifest.shards)

    @property
    def left_out(self) -> str:
        """The masks that a pack does not hold, with the options that left them out, or nothing."""
        counts = {**self.manifest.counts, "annotations": self.annotations}
        return left_out_text(self.manifest.options, counts, self.manifest.masks)

    @property
    def command(self) -> str | None:
        """The command that makes such a pack of its tars, to be given as TARS.

        It has the options that are no defaults. None for several packs, for a copy of a selection,
        and for a pack whose options this release does not know.
        """
        if self.packs or self.manifest.counts.get("left_out_images"):
            return None
        root = self.roots[0]
        output = "OUTPUT" if isinstance(root, str) else quote(str(root))
        text_of_options = import_module(_PACK_OPTIONS).recorded_text
        flags: str | None = text_of_options(self.manifest.options, Path(root))
        if flags is None:
            return None
        words = ["sa1bpack pack", self._kind_of_sources, "-o", output, flags]
        if any(source.records.file for source in self.sources):
            words.append("--annotations FILE")
        if any(source.md5_checked for source in self.sources):
            words.append("--md5sums FILE")
        elif any(source.md5 is not None for source in self.sources):
            words.append("--md5")
        return " ".join(filter(None, words))

    @property
    def _kind_of_sources(self) -> str:
        """What stands for the sources in a command."""
        kinds = {source.kind for source in self.sources}
        if len(kinds) > 1:
            return "SOURCES"
        return {"folder": "FOLDER", "parquet": "FILES"}.get("".join(kinds), "TARS")

    @property
    def most_rejects(self) -> SourceCounts | None:
        """Of several sources, the one of which most members were rejected; None without rejects."""
        with_rejects = [source for source in self.of_sources if source.rejects]
        if len(self.of_sources) < 2 or not with_rejects:
            return None
        return max(with_rejects, key=lambda source: source.rejects)

    @property
    def reasons(self) -> dict[str, int]:
        """Reason → members that were rejected for it."""
        counts = sorted(self.manifest.counts.items())
        return {key.removeprefix(_REASON): n for key, n in counts if key.startswith(_REASON)}

    def histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Images by number of masks: counts int64 (b,), edges float64 (b + 1,), upper excluded."""
        return histogram(self.mask_counts, _BINS)

    def __str__(self) -> str:
        return self.as_text()

    def sources_text(self) -> str:
        """What the pack holds of each of its sources, a line of at most 80 columns for each."""
        return table_of_sources(self.of_sources)

    def as_text(self) -> str:
        """A summary in lines of at most 90 columns, unless the path of the folder is longer."""
        counts, edges = map(np.ndarray.tolist, self.histogram())
        names = [bin_text(*edge, whole=True) for edge in pairwise(edges)]
        text = _text_template().render(
            held=self,
            identity=identity_text(self.manifest.sources),
            bins=[*zip(names, counts, strict=True)],
            most=max(counts, default=1),
        )
        return text.rstrip()

    def as_dict(self) -> dict[str, Any]:
        """The summary for JSON: what `as_text` says, in numbers; "pack" is None for several."""
        manifest = self.manifest
        (images, edges) = self.histogram()
        return {
            "pack": None if self.packs else str(self.roots[0]),
            "complete": manifest.complete,
            "counts": {
                "sources": len(manifest.sources),
                "shards": len(manifest.shards),
                "samples": manifest.samples,
                "masks": manifest.masks,
                **manifest.counts,
                "files": self.files,
                "folders": self.folders,
                "bytes": self.bytes,
                "disk_bytes": self.disk_bytes,
            },
            "masks_per_image": {
                "edges": edges.astype(np.int64).tolist(),
                "images": images.tolist(),
            },
            "sources": [source.as_dict() for source in self.of_sources],
            "copied_from": [copy.as_dict() for copy in self.copies],
            "options": manifest.options,
            "command": self.command,
            "identity": identity_text(manifest.sources),
            "packed_by": self.packed_by,
            "unknown_keys": self.unknown_keys,
            "features": self.features,
            "notes": [
                *([] if manifest.complete else [str(self.completeness)]),
                *self.duplicates,
                *self.notes,
            ],
            "packs": [pack.as_dict() for pack in self.packs],
        }


def read_info(records: Sequence[PackRecords], pack: Pack | None) -> PackInfo:
    """A summary by manifests and indexes alone: figures of shards are 0.

    Args:
        records: the records of packs.
        pack: the packs that have images, open as one; None for a pack that has no index yet.

    Raises:
        FormatError: a manifest or an index is damaged.
    """
    ids = mask_counts = np.zeros(0, np.int64)
    duplicates: list[str] = []
    if pack is None:
        manifests = [manifest := read_manifest(records[0].folder)]
    else:
        opened = {folder.root: folder.manifest for folder in pack.folders}
        # Of packs without an image, which are not among those that were opened, too.
        manifests = [
            opened.get(record.opened_root) or read_manifest(record.folder) for record in records
        ]
        manifest = pack.manifest
        rows = range(manifest.samples)
        ids = pack.image_ids(rows)
        mask_counts = np.diff(pack.mask_offsets(rows))
        duplicates = find_duplicates(manifest, replace(pack.folders[0].index, image_id=ids))
    counts: Counter[str] = Counter()
    sources: list[ShownSource] = []
    for record, of_root in zip(records, manifests, strict=True):
        path = record.folder / MANIFEST_NAME
        sources += checked_record(of_root.sources, list[ShownSource], f"{path}: sources")
        counts.update(checked_record(of_root.counts, dict[str, Count], f"{path}: counts"))
    return PackInfo(
        roots=tuple(record.name for record in records),
        manifest=msgspec.structs.replace(manifest, counts=dict(sorted(counts.items()))),
        sources=tuple(sources),
        mask_counts=mask_counts,
        completeness=_completeness(records, manifests),
        duplicates=duplicates,
        features=_features_of(records, manifests),
        unlisted=_unlisted(records),
    )


def _completeness(records: Sequence[PackRecords], manifests: Sequence[Manifest]) -> Completeness:
    """Of the first pack that is not complete, or of the first."""
    states = []
    for record, manifest in zip(records, manifests, strict=True):
        state = completeness_of(record.folder, manifest)
        states.append(replace(state, remedy=record.named(state.remedy)))
    return next((state for state in states if not state.complete), states[0])


def _unlisted(records: Sequence[PackRecords]) -> tuple[str, ...]:
    """The URLs of packs whose server does not say which files there are."""
    sources = [record.source for record in records if record.source is not None]
    return tuple(source.url for source in sources if not source.lists)


def _features_of(records: Sequence[PackRecords], manifests: Sequence[Manifest]) -> dict[str, str]:
    """Name → text of the features of packs; of several, their folders are named."""
    if len(records) == 1:
        return dict(_features(records[0], manifests[0]))
    texts = {}
    for record, manifest in zip(records, manifests, strict=True):
        for name, text in _features(record, manifest):
            texts[f"{record.name}: {name}"] = text
    return texts


def _features(record: PackRecords, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Name and text of the features in PACK/side. Raises FormatError for damaged digests."""
    folders = side_folders(record.folder)
    shards: Sequence[ShardIdentity] = ()
    if folders:
        shards = shard_identities(record.folder, manifest)
    for folder in folders:
        try:
            side = read_side_manifest(folder)
            names = feature_shard_names(folder)
            nbytes = 0
            for shard in shards:
                if shard.feature_shard in names:
                    nbytes += group_bytes(arrays_in(folder, side.spec, shard))
        except FormatError as error:
            yield folder.name, record.named(str(error))
            continue
        facts = [side.spec.to_text(), size_text(nbytes)]
        function = side.provenance.get("function")
        if function is not None:
            facts.append(f"by {brief(function)}")
        covered = coverage(names, shards)
        state = "complete"
        if covered.missing:
            state = str(covered)
        facts.append(state)
        yield folder.name, ", ".join(facts)


@checks_options
def info(root: str | Path | Iterable[str | Path], *, layouts: str = "equal") -> PackInfo:
    """Summarize a pack, or several as one.

    Of a pack at a URL, index and manifest are fetched, and two small files of each shard.

    Args:
        root: folder of a pack, or its URL; several, or a glob pattern.
        layouts: what becomes of packs whose layouts differ, as in `sa1bpack.open`: "equal" raises
            OptionError, "shared" summarizes what all of them have.

    Raises:
        FormatError, VersionError: one is not a pack, or is damaged.
        OptionError: a pattern that matches nothing, or packs of different layouts; the message
            names what differs.
        EmptyPack: the pack at a URL has no image.
        StoreError, MissingPackage: a URL cannot be read.

    Examples:
        >>> facts = sa1bpack.info("packed")
        >>> int(facts.mask_counts.sum()), facts.files
        (270, 52)
        >>> print(facts.as_text().splitlines()[2])
          images     3 in 1 shard from 1 source
    """
    choice("layouts", layouts, LAYOUTS)
    origins, empty = origins_of("root", root)
    if not origins:
        raise empty[0]
    with pack_records(origins, of_shards=True) as records:
        packs = [_of_pack(record) for record in records]
        if len(packs) == 1 and not empty:
            return packs[0]
        folders = open_folders(origins, empty)
        check_layouts({folder.root: folder.manifest for folder in folders}, layouts)
        held = read_info(records, Pack(folders))
        return replace(
            held,
            **vars(sum(packs, DiskUse())),
            of_sources=joined_counts(pack.of_sources for pack in packs),
            packs=tuple(packs),
        )


def _of_pack(record: PackRecords) -> PackInfo:
    """The summary of one pack."""
    root = record.folder
    pack = None
    if read_manifest(root).index is not None:
        pack = Pack(open_folders([record.origin]))
    held = read_info([record], pack)
    use = _own_use(record, held.manifest)
    accounts = []
    for entry in held.manifest.shards:
        folder = root / SHARDS_NAME / entry.name
        if record.source is None:
            shard = open_shard(folder)
            attributes = attributes_of(shard)
            use += DiskUse.of(shard)
        else:
            attributes = attributes_in(folder)
            use += DiskUse.by_records(folder, attributes, entry.bytes)
        accounts.append((entry, attributes))
    where = f"{root / MANIFEST_NAME}: sources"
    sources = checked_record(held.manifest.sources, list[SourceAccount], where)
    return replace(
        held,
        **vars(use),
        of_sources=counts_of_sources(accounts, sources),
        copies=tuple(records_in_log(root, CopyRecord)),
    )


def _own_use(record: PackRecords, manifest: Manifest) -> DiskUse:
    """The files and folders of a pack outside its shards, without working files of a packer."""
    root = record.folder
    if record.source is not None:
        listed = read_checksums(root / CHECKSUMS_NAME)
        of_shards = [name for name in listed if name.startswith(f"{SHARDS_NAME}/")]
        in_shards = [name for name in of_shards if name.endswith(f"/{CHECKSUMS_NAME}")]
        return DiskUse(files=len(listed) - len(in_shards) + 1)
    paths = [
        path
        for path in (*root.iterdir(), *matching(root / SHARDS_NAME, "*"))
        if not path.name.startswith(".") and path != root / SIDES_NAME
    ]
    if manifest.index is not None:
        paths += paths_below(root / manifest.index)
    files = sum(is_file(path) for path in paths)
    return DiskUse(files=files, folders=1 + len(paths) - files)
