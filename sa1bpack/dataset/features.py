"""The features of a dataset: which folder has the rows of each shard, and their opening."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sa1bpack.arguments import items_of
from sa1bpack.dataset.fields import check_feature_keys, check_feature_name
from sa1bpack.errors import FormatError, NotAPack, OptionError
from sa1bpack.format.side.manifest import AGAIN, read_side_manifest
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.format.side.shards import (
    SIDES_NAME,
    ShardIdentity,
    coverage,
    feature_shard_names,
    side_folders,
)
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.paths import is_folder, listed, local_path
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import Lease, ShardSource, SideSource, is_pack_url, pack_url, scheme_of
from sa1bpack.wording import brief

MAX_FILE_NAME = 255  # bytes, of almost every file system
# Feature shards that an average is taken of; of those at URLs, the items are asked for all at once.
_LOOKED_AT = 8


@dataclass(frozen=True)
class Feature:
    """A feature of one or several packs.

    Attributes:
        spec: the spec of its rows.
        shards: the shards of the packs.
        folders: for each shard the folder that has its feature shard; None: there is none.
        sources: where the feature shards come from that are not in these folders.
        known_items: number of a shard → the items of its ragged rows, of those that were asked for.
    """

    spec: SideSpec
    shards: Sequence[ShardIdentity]
    folders: Sequence[Path | None]
    sources: Mapping[Path, SideSource]
    known_items: dict[int, int] = field(default_factory=dict)

    def open(self, number: int, leases: list[Lease]) -> FeatureShard:
        """The rows of a shard, by its number; what keeps them in place is added to the leases.

        Raises FormatError if they are missing or damaged, OSError, and what fetching them raises,
        see `urls.SideSource`.
        """
        shard = self.shards[number]
        folder = self.folders[number]
        if folder is None:
            if shard.lengths.samples:
                raise FormatError(
                    f"feature {self.spec.name} has no rows for shard {shard.name}; run "
                    "`sa1bpack derive` again"
                )
            return FeatureShard.without_rows(self.spec)
        reader = None
        if folder in self.sources:
            leases.append(self.sources[folder].fetch(self.spec, shard))
            reader = self.sources[folder].reader(self.spec, shard)
        return FeatureShard.open(folder, self.spec, shard, reader=reader)

    @cached_property
    def mean_items(self) -> float:
        """The items of a row, on average of some shards: 1 of fixed rows.

        Raises what asking for feature shards at URLs raises, see `urls.SideSource`.
        """
        if not self.spec.ragged:
            return 1.0
        rows = 0
        items = 0.0
        for number in self._looked_at():
            folder = self.folders[number]
            if folder is None:
                continue
            rows += self._rows_of(number)
            if folder in self.sources:
                items += self._items(number)
                continue
            with suppress(OSError):  # it is damaged, or has no items
                path = self.shard_folder(number) / self.spec.values.chunk_path
                items += path.stat().st_size / self.spec.row_bytes
        return items / max(rows, 1)

    def _looked_at(self) -> list[int]:
        """The numbers of some shards with samples, from the first to the last."""
        filled = [number for number, shard in enumerate(self.shards) if shard.lengths.samples]
        return filled[:: max(-(-len(filled) // _LOOKED_AT), 1)]

    def shard_folder(self, number: int) -> Path:
        """The folder of the feature shard of a shard, by its number, which has one."""
        folder = self.folders[number]
        assert folder is not None, "a shard with samples has a feature shard"
        return folder / self.shards[number].feature_shard

    def fetched_bytes(self, number: int) -> int:
        """Bytes that the rows of a shard take in a cache; 0 if they are not fetched."""
        folder = self.folders[number]
        if folder is None or folder not in self.sources:
            return 0
        shard = self.shards[number]
        items = 0
        if self.spec.ragged:
            items = self._items(number)
        return self.sources[folder].kept_bytes(self.spec, shard, items)

    def _items(self, number: int) -> int:
        """The items of the ragged rows of a shard at a URL; of most, about as many as of others."""
        known = self.known_items
        if not known:
            self._ask_for_items()
        if number in known:
            return known[number]
        rows = sum(self._rows_of(k) for k in known)
        return sum(known.values()) * self._rows_of(number) // max(1, rows)

    def _ask_for_items(self) -> None:
        """Ask for the items of some shards at URLs, in one round trip."""

        def ask(number: int, source: SideSource) -> None:
            with suppress(FormatError):  # who opens it learns of the damage
                self.known_items[number] = source.items(self.spec, self.shards[number])

        numbers = []
        asked_of = []
        for number in self._looked_at():
            folder = self.folders[number]
            if folder is not None and folder in self.sources:
                numbers.append(number)
                asked_of.append(self.sources[folder])
        with ThreadPool(_LOOKED_AT, "sa1bpack-items") as pool:
            list(pool.map(ask, numbers, asked_of))

    def _rows_of(self, number: int) -> int:
        return self.shards[number].lengths.along(self.spec.axis)


def feature_paths(value: Any) -> tuple[str, ...]:
    """The option `features` as names, absolute paths and URLs. Raises OptionError otherwise."""
    paths = []
    for feature in listed(items_of(value)):
        if is_pack_url(feature):
            paths.append(pack_url("features", feature))
            continue
        path = local_path("features", feature)
        if len(os.fsencode(path.name)) > MAX_FILE_NAME:
            raise OptionError(
                f"features has {brief(feature)}, of more than {MAX_FILE_NAME} bytes: no file has "
                "that name; give the name of a feature, or the path of its folder"
            )
        if isinstance(feature, str) and path.name == feature and feature not in ("", ".", ".."):
            paths.append(feature)
        else:
            paths.append(str(path.absolute()))
    return tuple(paths)


def find_features(
    names: Sequence[str],
    packs: Sequence[Path | ShardSource],
    shards: Sequence[ShardIdentity],
    needed: Iterable[int],
) -> list[Feature]:
    """The features of these names, for the shards of one or several packs.

    Args:
        names: names in the packs' own folders, paths, or URLs.
        packs: folder of each pack, or where its shards come from.
        shards: the shards of all packs.
        needed: numbers of the shards that must have a feature shard.

    Raises:
        OptionError: a shard lacks its feature shard, or two features have one name.
        NotAPack, FormatError, VersionError: what is named is not a feature, or is damaged.
        OSError: a file cannot be read.
    """
    needed_shards = [shards[number] for number in sorted(set(needed))]
    features = [_feature(name, packs, shards, needed_shards) for name in names]
    spec_names = [feature.spec.name for feature in features]
    for name in spec_names:
        check_feature_name(name)
        if spec_names.count(name) > 1:
            raise OptionError(f"features has {brief(name)} more than once")
    check_feature_keys(feature.spec for feature in features)
    return features


def _feature(
    name: str,
    packs: Sequence[Path | ShardSource],
    shards: Sequence[ShardIdentity],
    needed: Sequence[ShardIdentity],
) -> Feature:
    """The feature of a name, a path or a URL. Raises as `find_features`."""
    sources, folders = _places_of(name, packs, shards)
    places = [*(source.root for source in sources), *folders]
    spec = read_side_manifest(places[0]).spec
    folder_of: dict[str, Path] = {}
    for folder in places:
        other = read_side_manifest(folder).spec
        if other != spec:
            raise OptionError(
                f"feature {brief(name)} is {spec.to_text()} in {places[0]}, but "
                f"{other.to_text()} in {folder}"
            )
        folder_of |= dict.fromkeys(feature_shard_names(folder), folder)
    covered = coverage(folder_of, needed)
    if covered.missing:
        raise OptionError(
            f"feature {brief(name)} does not fit: {covered}; {AGAIN}, or select what it has and "
            "add it with ds.with_options(features=...)"
        )
    return Feature(
        spec=spec,
        shards=shards,
        folders=[folder_of.get(shard.feature_shard) for shard in shards],
        sources={source.root: source for source in sources},
    )


def _places_of(
    name: str, packs: Sequence[Path | ShardSource], shards: Sequence[ShardIdentity]
) -> tuple[list[SideSource], list[Path]]:
    """Where a feature is fetched from, and its folders on this machine: at least one.

    Raises NotAPack if there is none.
    """
    caches = [pack for pack in packs if not isinstance(pack, Path)]
    opened: list[SideSource | None] = []
    folders: list[Path] = []
    if is_pack_url(name) and caches:
        opened = [caches[0].open_side(name)]
    elif is_pack_url(name):
        opened = [scheme_of(name).open_side(name, shards)]
    elif Path(name).is_absolute():
        folders = [Path(name)]
    else:
        opened = [cache.open_side(name) for cache in caches]
        roots = [pack for pack in packs if isinstance(pack, Path)]
        folders = [folder for root in roots if is_folder(folder := root / SIDES_NAME / name)]
    sources = [source for source in opened if source is not None]
    if not sources and not folders:
        raise NotAPack(_no_feature(name, packs[0]))
    return sources, folders


def _no_feature(name: str, pack: Path | ShardSource) -> str:
    """The message for a feature that a pack does not have, with those that it has."""
    url = ""
    if not isinstance(pack, Path):
        url = pack.url
        pack = pack.root
    existing = sorted(folder.name for folder in side_folders(pack))
    has = "the pack has none"
    if existing:
        has = f"the pack has {', '.join(map(brief, existing[:8]))}"
    if url:
        address = f"{url}/{SIDES_NAME}/{name}"
        return (
            f"feature {brief(name)}: there is no {address} with rows of the pack's shards: upload "
            f"its folder to there (docs/features.md), or give the path or the URL of its folder"
        )
    return (
        f"feature {brief(name)}: there is no {pack.absolute() / SIDES_NAME / name} ({has}); make "
        f"it with `sa1bpack derive` or `sa1bpack attach`, or give the path of its folder, such as "
        f"./{name}"
    )
