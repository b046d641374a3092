"""The feature shards that a dataset needs: which exist, and which this process makes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sa1bpack import __version__
from sa1bpack.arguments import whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import check_feature_name
from sa1bpack.deriving.options import RowOptions
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.manifest import pack_above
from sa1bpack.format.side.spec import (
    SCALED_DTYPES,
    SIDES_NAME,
    FeatureShard,
    ShardIdentity,
    SideManifest,
    SideSpec,
    coverage,
    create_side,
    feature_shard_names,
    is_side,
    is_unused,
    read_side_manifest,
    remove_unused,
    scaled_of,
    side_name,
)
from sa1bpack.loading.order.batches import process_group
from sa1bpack.parts import part_of_job
from sa1bpack.paths import check_can_be_folder
from sa1bpack.wording import brief, counted


@dataclass(frozen=True)
class DeriveResult:
    """The result of `derive` and `attach`.

    Attributes:
        folder: folder of the feature.
        made: names of the shards whose rows this call made.
        existing: names of the shards whose rows were there before.
        missing: names of the shards without rows yet: those of other ranks or parts of a job.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> ids = sa1bpack.attach(ds, "place", np.arange(3), ids=[2, 5, 6], output="derived/place")
        >>> ids.made, ids.existing, ids.missing
        (('sa_000000-000',), (), ())
    """

    folder: Path
    made: tuple[str, ...]
    existing: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        state = f"{len(self.missing):,} missing" if self.missing else "complete"
        made = counted(len(self.made), "shard")
        existing = len(self.existing)
        return f"{self.folder}: {made} made, {existing:,} existing, {state}"


@dataclass(frozen=True)
class ShardToDo:
    """A shard that needs rows: its identity, and its samples."""

    identity: ShardIdentity
    samples: Dataset

    def row_counts(self, axis: str) -> np.ndarray:
        """int64 (k,): the rows of each sample."""
        if axis == "mask":
            return self.samples.column("mask_count").astype(np.int64)
        return np.ones(len(self.samples), np.int64)


class Target:
    """A feature of a dataset, to be made or completed.

    Attributes:
        axis: "sample" or "mask": what a row belongs to.
        folder: folder of the feature.
        provenance: record of how the feature is made, for its manifest.
        spec: spec of its rows; None until it is known.
        shards: shards of the dataset, in order, without those that have no samples.
    """

    def __init__(
        self,
        ds: Dataset,
        name: str,
        provenance: dict[str, Any],
        rows: RowOptions,
    ):
        """Check the arguments. Raises what `derive` raises."""
        axis = rows.axis
        spatial = rows.spatial
        covers = rows.covers
        quantize = rows.quantize
        self.axis = axis
        self._spatial = spatial
        self._allow_nonfinite = rows.allow_nonfinite
        self._scaled = SCALED_DTYPES.get(quantize or "")
        if self._scaled and rows.allow_nonfinite:
            raise OptionError(f"quantize is {brief(quantize)}: NaN and infinities have no scale")
        if spatial and axis != "sample":
            raise OptionError(f"spatial is True, but axis is {brief(axis)}: choose axis='sample'")
        _check_spatial_only(rows)
        self._covers = covers
        self._interpolation = rows.interpolation
        if spatial and covers is None and ds.layout.fit == "squash":
            self._covers = "canvas"  # which the photograph fills
        if ds.options.rule is not None:
            raise OptionError(
                f"the dataset has thresholds for masks, {ds.options.rule.as_text()}, but a "
                "feature is of all that the pack has: open it without them"
            )
        check_feature_name(name)
        self.name = side_name(name)
        versions = {"sa1bpack": __version__, **{each: version(each) for each in ("numpy", "torch")}}
        try:  # as JSON returns it
            made_by = msgspec.json.encode({**provenance, "versions": versions})
            self.provenance = msgspec.json.decode(made_by)
        except (TypeError, ValueError, OverflowError) as error:
            raise OptionError(
                f"options is {brief(provenance['options'])}: choose what JSON can hold ({error})"
            ) from None
        if rows.output is not None:
            self.folder = _outside(self.name, rows.output)
        elif len(ds.pack.folders) == 1 and not ds.pack.sources:
            self.folder = ds.root / SIDES_NAME / self.name
        else:
            raise OptionError(
                f"output is None, but {ds.pack.name} have no folder in common on this machine: "
                "choose one (and upload it, for a pack at a URL)"
            )
        self.shards = _complete_shards(ds)
        self.spec: SideSpec | None = None
        self._given = ""
        if is_side(self.folder) and not is_unused(self.folder):
            found = read_side_manifest(self.folder).spec
            if found.dtype != self._scaled and (found.scaled or self._scaled):
                raise OutputRefused(
                    f"{self.folder}: rows are {found.to_text()}, but quantize is "
                    f"{brief(quantize)}: "
                    "choose quantize as before (--quantize), or another folder"
                )
            spec = replace(
                found,
                name=self.name,
                axis=axis,
                spatial=spatial,
                covers=self._covers,
                interpolation=self._interpolation,
            )
            create_side(self.folder, SideManifest(spec, self.provenance))  # refuses another one
            self.spec = found

    def use(self, dtype: str, shape: Sequence[int]) -> None:
        """Make the folder for rows of this type and shape, or check that it is for such rows.

        A folder without feature shards, which a call that failed has left, is replaced.
        """
        self._given = dtype
        if self._scaled:
            if "float" not in dtype:
                raise OptionError(f"rows are {dtype}: choose floats, or quantize=None")
            dtype = self._scaled
        spec = SideSpec(
            self.name,
            self.axis,
            dtype,
            tuple(shape),
            self._spatial,
            self._covers,
            self._interpolation,
        )
        if spec.spatial and spec.covers is None:
            raise OptionError(
                f"covers is None, but rows are {spec.row_shape}, not as high as wide: choose "
                "covers='photograph' if they cover the image without its padding, or "
                "covers='canvas' if they cover its padding, too"
            )
        if self.spec is None:
            manifest = SideManifest(spec, self.provenance)
            try:
                create_side(self.folder, manifest)
            except OutputRefused:
                if not (is_side(self.folder) and is_unused(self.folder)):
                    raise
                remove_unused(self.folder)
                create_side(self.folder, manifest)
            self.spec = spec
        elif spec != self.spec:
            raise OptionError(
                f"rows are {spec.to_text()}, but those before, in {self.folder}, are "
                f"{self.spec.to_text()}: choose the same shape and type, or another folder"
            )

    def missing(self, shards: Sequence[ShardToDo]) -> list[ShardToDo]:
        """The shards that have no rows yet; the feature shards of the others are opened.

        Raises FormatError for one that is not as docs/format.md demands.
        """
        if self.spec is None:
            return list(shards)
        names = set(feature_shard_names(self.folder))
        for shard in shards:
            if shard.identity.feature_shard in names:
                FeatureShard.open(self.folder, self.spec, shard.identity, deep=True)
        return [shard for shard in shards if shard.identity.feature_shard not in names]

    def stored(self, shard: ShardToDo, rows: np.ndarray, counts, first: int) -> np.ndarray:
        """Rows as they are stored.

        Args:
            shard: the shard that the rows belong to.
            rows: (n, ...), of the type that `use` was given.
            counts: int64 (k,), rows of each of the k samples.
            first: row of the first of these samples in the shard.

        Raises:
            OptionError: rows have NaN or an infinity and must not; the message names the sample.
        """
        found = rows
        if self._given == "bfloat16":
            found = (rows.astype(np.uint32) << 16).view(np.float32)
        if not self._allow_nonfinite and found.dtype.kind == "f":
            checked = found
            remedy = "store such rows with allow_nonfinite=True"
            if self._scaled:
                remedy = "store rows beyond float16 without quantize"
                with np.errstate(over="ignore"):
                    checked = found.astype(np.float16)
            bad = ~np.isfinite(checked).all(tuple(range(1, checked.ndim)))
            if bad.any():
                row = int(bad.argmax())
                edges = np.cumsum(counts)
                sample = int(np.searchsorted(edges, row, "right"))
                place = f"image {shard.samples.column('image_id')[first + sample]}"
                if self.axis == "mask":
                    place = f"mask {row - int(edges[sample] - counts[sample])} of {place}"
                raise OptionError(
                    f"{self.name} of {place}, shard {shard.identity.name}, has NaN or an infinity: "
                    f"repair what computes it, or {remedy}"
                )
        return scaled_of(found, self._scaled) if self._scaled else rows

    def result(self, made: Sequence[ShardToDo]) -> DeriveResult:
        """The state of the array, if this call made these."""
        names = feature_shard_names(self.folder) if self.spec is not None else []
        missing = coverage(names, (shard.identity for shard in self.shards)).missing
        done = tuple(shard.identity.name for shard in made)
        existing = [shard.identity.name for shard in self.shards]
        existing = tuple(name for name in existing if name not in {*done, *missing})
        return DeriveResult(self.folder, done, existing, missing)


def _check_spatial_only(rows: RowOptions) -> None:
    """Raise OptionError for an option of spatial rows, where rows are not spatial."""
    for name in ("covers", "interpolation"):
        value = getattr(rows, name)
        if value is not None and not rows.spatial:
            raise OptionError(f"{name} is {value!r}, but spatial is False: choose spatial=True")


def _outside(name: str, folder: Path) -> Path:
    """The folder that was asked for. Raises OptionError if it lies among the files of a pack."""
    check_can_be_folder(folder.parent, "choose another folder")
    found = folder.resolve()
    root = pack_above(found / "shard")
    if root is not None and found.parent != root / SIDES_NAME:
        raise OptionError(
            f"output is {str(folder)!r}: this is in the pack {root}, whose features are in "
            f"{SIDES_NAME}; choose {root / SIDES_NAME / name}, or a folder elsewhere"
        )
    return folder


def _complete_shards(ds: Dataset) -> list[ShardToDo]:
    """The shards of a dataset. Raises OptionError unless it has each of them complete, once."""
    numbers, local, *_ = ds.locate_many(np.arange(len(ds)))
    order = np.lexsort((local, numbers))
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    found = []
    identities = ds.pack.identities
    for positions in np.split(order, starts[1:]) if len(order) else []:
        identity = identities[int(numbers[positions[0]])]
        if not np.array_equal(local[positions], np.arange(identity.lengths.samples)):
            raise OptionError(
                f"ds has {counted(len(positions), 'sample')} of the "
                f"{identity.lengths.samples:,} of shard {identity.name}: a feature shard "
                "is for a complete shard; compute it for the pack, or select with "
                "ds.from_sources(...) or ds.from_shards(...)"
            )
        found.append(ShardToDo(identity, ds[positions]))
    return found


def share(shards: Sequence[ShardToDo], part: Any) -> Sequence[ShardToDo]:
    """The shards of one part of a job: every N-th, from the K-th on.

    Args:
        part: (K, N) with K from 1 to N. None: rank and world size of torch.distributed if it is
            initialized, otherwise of the environment (RANK and WORLD_SIZE, which torchrun sets),
            otherwise all.
    """
    if part is not None:
        number, count = part_of_job(part)
    elif (group := process_group()) is not None:
        number = group.get_rank() + 1
        count = group.get_world_size()
    else:
        rank = os.environ.get("RANK") or "0"
        world = os.environ.get("WORLD_SIZE") or "1"
        try:
            count = int(world)
            number = whole_number("RANK", int(rank), 0, count - 1) + 1
        except ValueError:
            raise OptionError(
                f"RANK is {brief(rank)} and WORLD_SIZE is {brief(world)} in the environment: set "
                "both, or "
                "pass part=(K, N)"
            ) from None
    return shards[number - 1 :: count]
