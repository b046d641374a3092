"""The feature shards that a dataset needs: which exist, and which this process makes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from sa1bpack import __version__
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import check_feature_keys, check_feature_name, column_names
from sa1bpack.deriving.options import RowOptions
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format import removal, working_names
from sa1bpack.format.manifest import pack_above
from sa1bpack.format.side.manifest import (
    CODE,
    SideManifest,
    create_side,
    is_of_another_file,
    is_side,
    is_unused,
    read_side_manifest,
    remove_begun_by_another_file,
    remove_unused,
)
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.scaled import SCALED_DTYPES, scaled_of
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.format.side.shards import SIDES_NAME, ShardIdentity, coverage, feature_shard_names
from sa1bpack.format.side.spec import SideSpec, side_name
from sa1bpack.paths import check_can_be_folder, real_path
from sa1bpack.progress import report
from sa1bpack.wording import brief, counted


@dataclass(frozen=True)
class DeriveResult:
    """The result of `derive` and `attach`.

    Attributes:
        folder: folder of the feature.
        made: names of the shards whose rows this call made.
        existing: names of the shards whose rows were there before.
        missing: names of the shards without rows yet: those of other ranks or parts of a job.
        without_row: of `attach` with missing="allow", how many images, or masks, have no row.
        left_out: of `attach`, how many rows have an id that the dataset lacks.
        left_out_ids: the first of these ids, or names.
        without_value: of `attach`, how many rows of the dataset's images, or masks, have no value,
            such as null or an empty cell of a table.
        other_files: of `attach` from folders and tars, how many files are not of rows.
        other_names: the first names of these.

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
    without_row: int = 0
    left_out: int = 0
    left_out_ids: tuple[int | str, ...] = ()
    without_value: int = 0
    other_files: int = 0
    other_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = "complete"
        if self.missing:
            state = f"{len(self.missing):,} missing"
        shards = counted(len(self.made), "shard")
        text = f"{self.folder}: {shards} made, {len(self.existing):,} existing, {state}"
        return "; ".join([text, *self.notes()])

    def notes(self) -> list[str]:
        """What does not match between rows and dataset, a line for each kind."""
        notes = []
        if self.without_row:
            notes.append(f"{self.without_row:,} without a row")
        if self.left_out:
            rows = counted(self.left_out, "row")
            names = ", ".join(map(str, self.left_out_ids))
            notes.append(f"{rows} left out, of ids that the dataset lacks, such as {names}")
        if self.without_value:
            rows = counted(self.without_value, "row")
            notes.append(f"{rows} left out, without a value (null or empty)")
        if self.other_files:
            files = counted(self.other_files, "file")
            names = ", ".join(self.other_names)
            notes.append(f"{files} left out, not of rows, such as {names}")
        return notes


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


class FeatureTarget:
    """A feature of a dataset, to be made or completed.

    Attributes:
        axis: "sample" or "mask": what a row belongs to.
        folder: folder of the feature.
        provenance: record of how the feature is made, for its manifest.
        spec: spec of its rows; None until it is known.
        shards: shards of the dataset, in order, without those that have no samples.
        rows_may_be_missing: the feature is one of rows that may be missing.
    """

    def __init__(
        self,
        ds: Dataset,
        name: str,
        provenance: dict[str, Any],
        rows: RowOptions,
        missing: bool = False,
    ):
        """Check the arguments; `missing` says that rows may be. Raises what `derive` raises."""
        self.rows_may_be_missing = missing
        self.axis = rows.axis
        self._rows = rows
        self._scaled = SCALED_DTYPES.get(rows.quantize or "")
        _check_rows(rows)
        self._covers = rows.covers
        if rows.spatial and rows.covers is None and ds.layout.fit == "squash":
            self._covers = "canvas"  # which the photograph fills
        if ds.options.rule is not None:
            raise OptionError(
                f"the dataset has thresholds for masks, {ds.options.rule.as_text()}, but a "
                "feature is of all that the pack has: open it without them"
            )
        if ds.mask_filter is not None:
            raise OptionError(
                f"the dataset has the masks {ds.mask_filter.text}, but a feature is of all that "
                "the pack has: make it for the dataset before where_masks"
            )
        check_feature_name(name, column_names(ds.layout))
        self.name = side_name(name)
        self.provenance = _with_versions(provenance)
        self.folder = _folder(ds, self.name, rows.output)
        self.shards = _complete_shards(ds)
        self.spec: SideSpec | None = None
        self._row_dtype = ""  # of what was computed, by name
        code = self.provenance.get(CODE)
        if code is not None:
            remove_begun_by_another_file(self.folder, code)
        if is_side(self.folder) and not is_unused(self.folder):
            self._continue_feature()

    def _continue_feature(self) -> None:
        """Take the spec of the feature that exists. Raises OutputRefused if it is another one."""
        spec = read_side_manifest(self.folder).spec
        if spec.dtype != self._scaled and (spec.scaled or self._scaled):
            raise OutputRefused(
                f"{self.folder}: rows are {spec.to_text()}, but quantize is "
                f"{brief(self._rows.quantize)}: choose quantize as before (--quantize), or another "
                "folder"
            )
        asked_for = self._spec(spec.dtype, spec.row_shape, spec.ragged)
        create_side(self.folder, SideManifest(asked_for, self.provenance))  # refuses another one
        self.spec = spec
        self._note_what_may_be_a_map(spec)

    def _note_what_may_be_a_map(self, spec: SideSpec) -> None:
        """Tell the user of rows that look like maps of the image, if nobody said whether they are.

        Training on such rows that a Pipeline does not move succeeds, with the wrong targets.
        """
        shape = spec.row_shape
        unsaid = self._rows.spatial is None and not spec.spatial and not spec.ragged
        if not unsaid or len(shape) < 3 or min(shape[-2:]) < 2:
            return
        maps = "spatial=True (--spatial)"
        if len(shape) > 3:
            maps = f"reshape them to (C, h, w), with {maps}"
        report(
            f"{self.folder}: rows {shape} look like maps of the image, but a Pipeline that flips "
            f"or crops the image will not move them: if they are maps, make them with {maps}, and "
            "covers='canvas' if they cover the image with its padding, or 'photograph' if without "
            "it; if they are not, spatial=False (--no-spatial) says so"
        )

    def note_other_file(self, file: Path) -> None:
        """Tell the user if feature shards exist that another version of a file made.

        Args:
            file: the file of the function.
        """
        if self.spec is None or not is_of_another_file(self.folder, self.provenance.get(CODE)):
            return
        shards = feature_shard_names(self.folder)
        if not shards:  # but another process makes one
            return
        report(
            f"{file} has changed since {self.folder} was begun: {counted(len(shards), 'shard')} "
            "there may have rows of another teacher, and nothing there is computed again. If the "
            "change matters, choose another name or folder (--output), or remove this one"
        )

    def _spec(self, dtype: str, row_shape: tuple[int, ...], ragged: bool) -> SideSpec:
        """The spec of rows of this type and shape, as the options ask for."""
        return SideSpec(
            self.name,
            # The options have checked that these are of the choices.
            cast(Any, self.axis),
            dtype,
            row_shape,
            bool(self._rows.spatial),
            cast(Any, self._covers),
            cast(Any, self._rows.interpolation),
            ragged,
            self.rows_may_be_missing,
        )

    def use(self, dtype: str, shape: Sequence[int], ragged: bool = False) -> None:
        """Make the folder for rows of this type and shape, or check that it is for such rows.

        A folder without feature shards, which a call that failed has left, is replaced.

        Args:
            dtype: type of the rows: one of SIDE_DTYPES, or TEXT.
            shape: shape of a row, or of an item of ragged rows.
            ragged: rows have any number of items.
        """
        self._row_dtype = dtype
        if self._scaled:
            if "float" not in dtype:
                raise OptionError(f"rows are {dtype}: choose floats, or quantize=None")
            dtype = self._scaled
        spec = self._spec(dtype, tuple(shape), ragged)
        check_feature_keys([spec])
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
            self._note_what_may_be_a_map(spec)
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

    def stored(
        self, shard: ShardToDo, rows: FeatureRows, counts: np.ndarray, first: int
    ) -> FeatureRows:
        """Rows as they are stored.

        Args:
            shard: the shard that the rows belong to.
            rows: rows of the type that `use` was given, without scales.
            counts: int64 (k,), rows of each of the k samples.
            first: row of the first of these samples in the shard.

        Raises:
            OptionError: rows have NaN or an infinity and must not; the message names the sample.
        """
        values = rows.values
        if self._row_dtype == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        if not self._rows.allow_nonfinite and values.dtype.kind == "f":
            self._check_finite(shard, replace(rows, values=values), counts, first)
        if self._scaled is None:
            return rows
        return replace(rows, values=scaled_of(values, self._scaled))

    def _check_finite(
        self, shard: ShardToDo, rows: FeatureRows, counts: np.ndarray, first: int
    ) -> None:
        """Raise OptionError for rows with NaN or an infinity; arguments as in `stored`."""
        values = rows.values
        remedy = "store such rows with allow_nonfinite=True"
        if self._scaled:
            remedy = "store rows beyond float16 without quantize"
            with np.errstate(over="ignore"):
                values = values.astype(np.float16)
        nonfinite = ~np.isfinite(values).all(tuple(range(1, values.ndim)))
        if not nonfinite.any():
            return
        row = int(nonfinite.argmax())
        if rows.lengths is not None:
            row = int(np.searchsorted(np.cumsum(rows.lengths), row, "right"))
        edges = np.cumsum(counts)
        sample = int(np.searchsorted(edges, row, "right"))
        name = f"image {shard.samples.column('image_id')[first + sample]}"
        if self.axis == "mask":
            name = f"mask {row - int(edges[sample] - counts[sample])} of {name}"
        raise OptionError(
            f"{self.name} of {name}, shard {shard.identity.name}, has NaN or an infinity: repair "
            f"what computes it, or {remedy}"
        )

    def remove(self, made_shards: Sequence[ShardToDo]) -> None:
        """Remove feature shards that this call has made, and the folder if it is then unused."""
        for shard in made_shards:
            published = self.folder / shard.identity.feature_shard
            working = working_names.temporary_beside(
                published
            )  # what is half removed has no final name
            published.rename(working)
            removal.discard_entry(working)
        if is_side(self.folder) and is_unused(self.folder):
            remove_unused(self.folder)

    def result(self, made_shards: Sequence[ShardToDo]) -> DeriveResult:
        """The state of the feature, if this call made these shards."""
        feature_shards: list[str] = []
        if self.spec is not None:
            feature_shards = feature_shard_names(self.folder)
        missing = coverage(feature_shards, (shard.identity for shard in self.shards)).missing
        made_names = tuple(shard.identity.name for shard in made_shards)
        existing = []
        for shard in self.shards:
            if shard.identity.name not in made_names and shard.identity.name not in missing:
                existing.append(shard.identity.name)
        return DeriveResult(self.folder, made_names, tuple(existing), missing)


def _with_versions(provenance: dict[str, Any]) -> dict[str, Any]:
    """A record of how a feature is made, with the versions in force, as JSON returns it.

    Raises OptionError if JSON cannot hold the options.
    """
    versions = {"sa1bpack": __version__, "numpy": version("numpy"), "torch": version("torch")}
    try:
        data = msgspec.json.encode({**provenance, "versions": versions})
        record: dict[str, Any] = msgspec.json.decode(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(
            f"options is {brief(provenance['options'])}: choose what JSON can hold ({error})"
        ) from None
    return record


def _folder(ds: Dataset, name: str, output: Path | None) -> Path:
    """The folder of a feature. Raises OptionError if there is none."""
    if output is not None:
        return _outside(name, output)
    if len(ds.pack.folders) == 1 and not ds.pack.shard_sources:
        return ds.root / SIDES_NAME / name
    if len(ds.pack.folders) > 1:
        raise OptionError(
            f"output is None, but {ds.pack.name} have no folder in common on this machine: choose "
            "one (and upload it, for packs at URLs)"
        )
    raise OptionError(
        f"output is None, but {ds.pack.name} is read from a URL: choose a folder, "
        f"output='feat/{name}' (--output), and upload it to {ds.pack.name}/{SIDES_NAME}/{name}, or "
        f"open the pack with features=['feat/{name}']"
    )


def _check_rows(rows: RowOptions) -> None:
    """Raise OptionError for options of rows that exclude one another."""
    if rows.quantize is not None and rows.allow_nonfinite:
        raise OptionError(f"quantize is {brief(rows.quantize)}: NaN and infinities have no scale")
    for name in ("covers", "interpolation"):
        value = getattr(rows, name)
        if value is not None and not rows.spatial:
            raise OptionError(
                f"{name} is {value!r}, but spatial is {rows.spatial}: choose spatial=True"
            )


def _outside(name: str, folder: Path) -> Path:
    """The folder that was asked for. Raises OptionError if it lies among the files of a pack."""
    check_can_be_folder(folder.parent, "choose another folder")
    resolved = real_path(folder)
    root = pack_above(resolved / "shard")
    if root is not None and resolved.parent != root / SIDES_NAME:
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
    if not len(order):
        return []
    shards = []
    identities = ds.pack.identities
    for positions in np.split(order, starts[1:]):
        identity = identities[int(numbers[positions[0]])]
        if not np.array_equal(local[positions], np.arange(identity.lengths.samples)):
            raise OptionError(
                f"ds has {counted(len(positions), 'sample')} of the "
                f"{identity.lengths.samples:,} of shard {identity.name}: a feature shard "
                "is for a complete shard; compute it for the pack, or select with "
                "ds.from_sources(...) or ds.from_shards(...)"
            )
        shards.append(ShardToDo(identity, ds[positions]))
    return shards
