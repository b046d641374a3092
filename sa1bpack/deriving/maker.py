"""The rows of the shards of a dataset, computed by a function of batches."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from sa1bpack.arguments import choice
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.functions import (
    Function,
    check_function,
    checked_options,
    digest_of_file,
    function_file,
    function_name,
)
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.deriving.returned_rows import returned_rows
from sa1bpack.deriving.shard_writers import ShardWriters
from sa1bpack.deriving.target import DeriveResult, FeatureTarget, ShardToDo
from sa1bpack.errors import OptionError
from sa1bpack.format.side.manifest import CODE
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.spec import side_name
from sa1bpack.format.side.writer import FeatureShardWriter
from sa1bpack.loading.batch.mask_choice import CHOICES
from sa1bpack.loading.batch.spec import MaskLayout
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import ReadingOptions, check_needs
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.transforms.seeding import Seeded
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief


class FeatureShardMaker:
    """The maker of feature shards, as a call of `derive` with these arguments asks for.

    Attributes:
        axis: "sample" or "mask": what a row belongs to.
        shards: shards of the dataset, in order, without those that have no samples.
        targets: name → the feature.
        made: name → the shards whose rows this call published.
    """

    def __init__(
        self,
        ds: Dataset,
        name: str | Sequence[str],
        fn: Function,
        pipeline: Pipeline | None,
        options: Mapping[str, Any] | None,
        chosen: DeriveOptions,
    ):
        """Check the arguments. Raises what `derive` raises."""
        ds = as_dataset(ds)
        self._fn = fn
        self._options = checked_options(options)
        self._pipeline = pipeline
        check_function(fn, pipeline, chosen)
        self._batch_size = chosen.batch_size
        self._loading = _loading(ds, pipeline, chosen)
        self.axis = chosen.axis
        self._several = not isinstance(name, str)
        file = function_file(fn)
        made_by = self._made_by(ds, chosen, file)
        self.targets: dict[str, FeatureTarget] = {}
        for feature in _names(name):
            rows = chosen
            if self._several and chosen.output is not None:
                rows = replace(chosen, output=chosen.output / side_name(feature))
            target = FeatureTarget(ds, feature, made_by, rows)
            if file is not None:
                target.note_other_file(file)
            self.targets[feature] = target
        self.shards = next(iter(self.targets.values())).shards
        self.made: dict[str, list[ShardToDo]] = {feature: [] for feature in self.targets}

    def _made_by(self, ds: Dataset, chosen: DeriveOptions, file: Path | None) -> dict[str, Any]:
        """The record of what makes the rows. Raises OptionError for masks that cannot be chosen."""
        made_by: dict[str, Any] = {
            "function": function_name(self._fn),
            "options": self._options,
        }
        code = digest_of_file(file) if file is not None else None
        if code is not None:
            made_by[CODE] = code
        if isinstance(self._fn, Seeded):
            made_by["seed"] = self._fn.seed
        if self._pipeline is not None:
            made_by["pipeline"] = str(self._pipeline)
        mask_choice = _mask_choice(chosen)
        if mask_choice is not None:
            made_by["mask_choice"] = mask_choice
        made_by["samples"] = ds.spec_text
        return made_by

    def missing(self, shards: Sequence[ShardToDo]) -> list[tuple[ShardToDo, list[FeatureTarget]]]:
        """The shards for which some feature has no rows yet, and which these features are.

        The rows that exist are opened, once.
        """
        lacking: dict[str, list[FeatureTarget]] = {}
        for target in self.targets.values():
            for shard in target.missing(shards):
                lacking.setdefault(shard.identity.name, []).append(target)
        todo = []
        for shard in shards:
            if shard.identity.name in lacking:
                todo.append((shard, lacking[shard.identity.name]))
        return todo

    def by_feature(
        self, todo: Sequence[tuple[ShardToDo, list[FeatureTarget]]]
    ) -> dict[str, list[ShardToDo]]:
        """Name of each feature → the shards for which it has no rows, of what is `missing`."""
        shards: dict[str, list[ShardToDo]] = {name: [] for name in self.targets}
        for shard, targets in todo:
            for target in targets:
                shards[target.name].append(shard)
        return shards

    def result(
        self, made: Mapping[str, Sequence[ShardToDo]] | None = None
    ) -> DeriveResult | tuple[DeriveResult, ...]:
        """The state of the feature, or of each of several.

        Args:
            made: name → shards whose rows the call made. None: those that this one published.
        """
        shards_of = self.made
        if made is not None:
            shards_of = {name: list(shards) for name, shards in made.items()}
        results = tuple(target.result(shards_of[name]) for name, target in self.targets.items())
        if self._several:
            return results
        return results[0]

    def loader(self, shard: ShardToDo) -> Loader:
        """The batches of a shard."""
        return Loader(shard.samples, self._batch_size, **self._loading)

    def make(self, shard: ShardToDo, targets: Sequence[FeatureTarget]) -> Iterator[int]:
        """Make the rows of a shard; yields the number of images of each batch that is done.

        Args:
            shard: the shard.
            targets: the features that have no rows for it.
        """
        counts = shard.row_counts(self.axis)
        with self.loader(shard) as loader, ShardWriters(self._writer, shard, counts) as writers:
            for target in targets:
                writers.add(target)
            first = writers.samples  # sample that is next
            if first > 0:
                yield first
            batches: Iterable[Mapping[str, Any]] = ()
            if first < len(counts):
                batches = loader
                if first > 0:
                    state = loader.batches.state_after(first // self._batch_size)
                    loader.load_state_dict(state)
            for batch in batches:
                of_batch = counts[first : first + len(batch["image_ids"])]
                rows_of = self._rows(shard, batch, of_batch, first)
                for name, rows in rows_of.items():
                    writers.append(name, rows, of_batch, first)
                first += len(of_batch)
                yield len(of_batch)
            for name in writers.publish():
                self.made[name].append(shard)

    def _writer(
        self, target: FeatureTarget, shard: ShardToDo, counts: np.ndarray
    ) -> FeatureShardWriter:
        assert target.spec is not None  # `use` has set it, if it was not known before
        return FeatureShardWriter(
            target.folder,
            target.spec,
            shard.identity,
            origin=self._origin(target),
            counts=counts,
            step=self._batch_size,
        )

    def _origin(self, target: FeatureTarget) -> bytes | None:
        """A record of what makes the rows, with the file of the function; None if it has none."""
        if CODE not in target.provenance:
            return None
        made_by = {**target.provenance, "masks": self._loading.get("mask_layout")}
        return msgspec.json.encode(made_by, order="sorted")

    def _rows(
        self, shard: ShardToDo, batch: Mapping[str, Any], counts: np.ndarray, first: int
    ) -> dict[str, FeatureRows | None]:
        """Name → the rows that the function returns for a batch, as they are stored.

        None for an empty list, which does not say what its rows would be.
        """
        if self._pipeline is not None:
            batch = self._pipeline(batch)
        name = function_name(self._fn)
        subject = f"batch {batch['batch_idx']} of shard {shard.identity.name} ({_ids_text(batch)})"
        function = functools.partial(self._fn, batch, **self._options)
        with torch.no_grad():
            returned = call_user(
                function, role=name, subject=f"{subject}, shards before it are kept"
            )
        rows_of: dict[str, FeatureRows | None] = {}
        for target, of_target in self._by_target(returned, f"{name} returned", subject):
            expected = int(counts.sum())
            if isinstance(of_target, list | tuple) and not of_target and not expected:
                rows_of[target.name] = None
                continue
            rows = returned_rows(of_target)
            if len(rows.rows) != expected:
                raise OptionError(
                    f"{name} returned {rows} for {subject}: it must return {expected} rows, one "
                    f"per {'image' if self.axis == 'sample' else 'mask'}"
                )
            target.use(rows.dtype, rows.row_shape, rows.ragged)
            rows_of[target.name] = target.stored(shard, rows.rows, counts, first)
        return rows_of

    def _by_target(
        self, returned: Any, said: str, subject: str
    ) -> Iterator[tuple[FeatureTarget, Any]]:
        """What was returned for each feature. Raises OptionError unless it is one for each."""
        names = list(self.targets)
        if not self._several:
            yield self.targets[names[0]], returned
            return
        if isinstance(returned, Mapping):
            if set(returned) != set(names):
                raise OptionError(
                    f"{said} the keys {brief(sorted(map(str, returned)))} for {subject}: choose "
                    f"those of name, {', '.join(names)}"
                )
            for name in names:
                yield self.targets[name], returned[name]
            return
        if not isinstance(returned, list | tuple) or len(returned) != len(names):
            raise OptionError(
                f"{said} {brief(returned)} for {subject}: choose a dict or a tuple, with rows for "
                f"each of {', '.join(names)}"
            )
        yield from zip(self.targets.values(), returned, strict=True)


def _names(name: str | Sequence[str]) -> list[str]:
    """The names of the features to be made. Raises OptionError for none, or for one twice."""
    if isinstance(name, str):
        return [name]
    if not isinstance(name, list | tuple) or not name or not all(isinstance(n, str) for n in name):
        raise OptionError(f"name is {brief(name)}: choose a name, or a list of names")
    for one_name in name:
        if list(name).count(one_name) > 1:
            raise OptionError(f"name has {brief(one_name)} more than once")
    return list(name)


def _loading(ds: Dataset, pipeline: Pipeline | None, chosen: DeriveOptions) -> dict[str, Any]:
    """The options of the Loader of a shard.

    Raises OptionError for a layout that has no row per mask, and for fields that the pipeline
    needs and that are left out.
    """
    by_mask = chosen.axis == "mask"
    layout = chosen.mask_layout
    if layout is None:
        layout = "concat" if by_mask else "padded"
    if by_mask and MaskLayout.of(layout).padded:
        raise OptionError(f"mask_layout is {brief(layout)}: for masks choose concat or concat_bits")
    if chosen.fields is not None:
        reading = ReadingOptions(fields=chosen.fields, max_masks=chosen.max_masks)
        check_needs(pipeline, reading.fields, reading.chosen(ds))
    return {
        "rank": 0,
        "world_size": 1,
        "mask_layout": layout,
        "max_masks": chosen.max_masks,
        "mask_select": chosen.mask_select,
        "fields": chosen.fields,
        "device": chosen.device,
        "threads": chosen.threads,
        "prefetch": chosen.prefetch,
        "io": chosen.io,
        "timeout": chosen.timeout,
    }


def _mask_choice(chosen: DeriveOptions) -> dict[str, Any] | None:
    """The record of which masks the function is given; None for all of them.

    Raises OptionError for a value that cannot be used, or that such a feature cannot have.
    """
    most = chosen.max_masks
    select = chosen.mask_select
    choice("mask_select", select, CHOICES)
    if most is None:
        return None
    if chosen.axis == "mask":
        raise OptionError(
            f"max_masks is {most}, but a row per mask is one for each mask that the pack has: "
            "leave it out, or choose axis='sample'"
        )
    return {"max_masks": most, "mask_select": select}


def _ids_text(batch: Mapping[str, Any]) -> str:
    """The first and the last image id of a batch, as text."""
    ids = batch["image_ids"].tolist()
    if len(ids) == 1:
        return f"image_id {ids[0]}"
    return f"image_ids {ids[0]} to {ids[-1]}"
