"""The features of a dataset: which folder has the rows of each shard."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sa1bpack.arguments import items_of
from sa1bpack.dataset.fields import check_feature_name
from sa1bpack.dataset.rows import Rows, row_array
from sa1bpack.errors import FormatError, NotAPack, OptionError
from sa1bpack.format.arrays import group_bytes
from sa1bpack.format.side.spec import (
    AGAIN,
    SIDES_NAME,
    FeatureShard,
    ShardIdentity,
    SideSpec,
    coverage,
    feature_shard_names,
    read_side_manifest,
)
from sa1bpack.paths import listed, local_path
from sa1bpack.urls import FOLDER_BYTES, Lease, SideSource, is_pack_url, pack_url
from sa1bpack.wording import brief

if TYPE_CHECKING:
    from sa1bpack.dataset.pack import Pack


MAX_FILE_NAME = 255  # bytes, of almost every file system


@dataclass(frozen=True)
class Feature:
    """A feature of a Pack.

    Attributes:
        spec: the spec of its rows.
        shards: the shards of the Pack.
        folders: for each shard the folder that has its feature shard; None: there is none.
        sources: where the feature shards come from that are not in these folders.
    """

    spec: SideSpec
    shards: Sequence[ShardIdentity]
    folders: Sequence[Path | None]
    sources: Mapping[Path, SideSource]

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
            empty = np.empty((0, *self.spec.stored_shape), self.spec.stored)
            return FeatureShard(Path(), self.spec, empty, 0)
        if folder in self.sources:
            leases.append(self.sources[folder].fetch(self.spec, shard))
        return FeatureShard.open(folder, self.spec, shard)

    def fetched_bytes(self, number: int) -> int:
        """Bytes that the rows of a shard take in a cache; 0 if they are not fetched."""
        if self.folders[number] not in self.sources:
            return 0
        return FOLDER_BYTES + group_bytes(self.spec.arrays(self.shards[number].lengths))


def feature_paths(value: Any) -> tuple[str, ...]:
    """The option `features` as names, absolute paths and URLs. Raises OptionError otherwise."""
    found = []
    for each in listed(items_of(value)):
        if is_pack_url(each):
            found.append(pack_url("features", each))
            continue
        path = local_path("features", each)
        if len(os.fsencode(path.name)) > MAX_FILE_NAME:
            raise OptionError(
                f"features has {brief(each)}, of more than {MAX_FILE_NAME} bytes: no file has that "
                "name; give the name of a feature, or the path of its folder"
            )
        plain = isinstance(each, str) and path.name == each and each not in ("", ".", "..")
        found.append(each if plain else str(path.absolute()))
    return tuple(found)


def with_features(pack: "Pack", rows: Rows, named: Sequence[str]) -> "Pack":
    """The pack with these features.

    Args:
        rows: rows of the dataset: every shard that they are in must have a feature shard.
        named: names in the pack's own folder, or paths.

    Raises:
        OptionError: a shard lacks its feature shard, or two features have one name.
        NotAPack, FormatError, VersionError: what is named is not a feature, or is damaged.
        OSError: a file cannot be read.
    """
    if not named:
        return pack.with_features(()) if pack.features else pack
    needed = set(np.unique(pack.shard_numbers(row_array(rows))).tolist())
    features = [_feature(pack, name, needed) for name in named]
    names = [found.spec.name for found in features]
    for name in names:
        check_feature_name(name)
        if names.count(name) > 1:
            raise OptionError(f"features has {brief(name)} more than once")
    return pack.with_features(features)


def _feature(pack: "Pack", name: str, needed: set[int]) -> Feature:
    places: list[Path | SideSource | None]
    if is_pack_url(name):
        if not pack.sources:
            raise OptionError(
                f"features has {name}, but no pack is read through a cache that it could "
                "be read through: copy it to a folder"
            )
        places = [pack.sources[0].open_side(name)]
    elif Path(name).is_absolute():
        places = [Path(name)]
    else:
        places = [each.source.open_side(name) for each in pack.folders if each.source is not None]
        own = [each.root / SIDES_NAME / name for each in pack.folders if each.source is None]
        places += filter(Path.is_dir, own)
    sources = {each.root: each for each in places if each and not isinstance(each, Path)}
    folders = [*sources, *(each for each in places if isinstance(each, Path))]
    if not folders:
        raise NotAPack(
            f"feature {brief(name)}: there is no {pack.folders[0].root / SIDES_NAME / name}; make "
            "it "
            f"with `sa1bpack derive`, or give the path of its folder, such as ./{name}"
        )
    spec = read_side_manifest(folders[0]).spec
    found: dict[str, Path] = {}
    for folder in folders:
        if (other := read_side_manifest(folder).spec) != spec:
            raise OptionError(
                f"feature {brief(name)} is {spec.to_text()} in {folders[0]}, but "
                f"{other.to_text()} in "
                f"{folder}"
            )
        found |= dict.fromkeys(feature_shard_names(folder), folder)
    covered = coverage(found, (pack.identities[number] for number in sorted(needed)))
    if covered.missing:
        raise OptionError(
            f"feature {brief(name)} does not fit: {covered}; {AGAIN}, or select what it has and "
            "add it "
            "with ds.with_options(features=...)"
        )
    folders = [found.get(shard.feature_shard) for shard in pack.identities]
    return Feature(spec, pack.identities, folders, sources)
