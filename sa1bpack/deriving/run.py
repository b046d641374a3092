"""`sa1bpack.derive`: a feature computed by a function of batches."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Unpack, overload

import msgspec
import numpy as np
import torch
import xxhash

from sa1bpack import interrupts
from sa1bpack.arguments import choice
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.deriving.returned_rows import returned_rows
from sa1bpack.deriving.target import DeriveResult, FeatureTarget, ShardToDo, share
from sa1bpack.errors import OptionError
from sa1bpack.format.side.rows import FeatureRows, no_rows
from sa1bpack.format.side.spec import side_name
from sa1bpack.format.side.writer import FeatureShardWriter
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.loading.batch.mask_choice import CHOICES
from sa1bpack.loading.batch.spec import MaskLayout
from sa1bpack.loading.loader import Loader
from sa1bpack.loading.options import ReadingOptions, check_needs
from sa1bpack.options import group_of
from sa1bpack.progress import ProgressOption, check_progress, reporting_steps
from sa1bpack.transforms.geometric_steps import GeometricStep
from sa1bpack.transforms.pipeline import Pipeline
from sa1bpack.transforms.seeding import Seeded
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief

if TYPE_CHECKING:
    from sa1bpack.option_keywords import DeriveKeywords

# What it returns is checked: `returned_rows` says which rows there are.
Function = Callable[..., Any]


@overload
def derive(
    ds: Dataset,
    name: str,
    fn: Function,
    *,
    pipeline: Pipeline | None = ...,
    options: Mapping[str, Any] | None = ...,
    part: tuple[int, int] | None = ...,
    progress: ProgressOption = ...,
    **call: Unpack["DeriveKeywords"],
) -> DeriveResult: ...


@overload
def derive(
    ds: Dataset,
    name: list[str] | tuple[str, ...],
    fn: Function,
    *,
    pipeline: Pipeline | None = ...,
    options: Mapping[str, Any] | None = ...,
    part: tuple[int, int] | None = ...,
    progress: ProgressOption = ...,
    **call: Unpack["DeriveKeywords"],
) -> tuple[DeriveResult, ...]: ...


@checks_options(masks="mask_layout")
@takes_options(DeriveOptions)
def derive(
    ds: Dataset,
    name: str | Sequence[str],
    fn: Function,
    *,
    pipeline: Pipeline | None = None,
    options: Mapping[str, Any] | None = None,
    part: tuple[int, int] | None = None,
    progress: ProgressOption = None,
    **call: Unpack["DeriveKeywords"],
) -> DeriveResult | tuple[DeriveResult, ...]:
    """Compute a feature, or several at once, by a function of batches: a row per image or mask.

    The rows of each shard, a feature shard, are published when they are complete. Feature shards
    that exist are kept, and so are the complete batches of one that is not, as long as the file of
    the function is the same. So a call that was killed is repeated to resume, and a shard that was
    packed again is the only one that is computed again. Any number of processes may work on one
    feature at once, each on the shards of its `part`.

    Args:
        ds: a dataset of complete shards, without a transform: of a pack, `ds.from_sources(...)`, or
            a torch Subset of one.
        name: name of the feature, and its key in samples and batches. Or a list of names: several
            features of one call of `fn`, such as the levels of a pyramid, each with rows of its
            own; with `output`, in folders of these names there.
        fn: called as fn(batch, **options) with a batch of the Loader, its tensors on the device,
            without gradients. It returns a tensor or an array with one row per image (B, ...), or
            per mask (T, ...) in the order of the batch, the same shape and type every time:
            uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64; or a list of
            arrays (n, ...), rows of any length; or a list of strings. For several features, a dict
            of these by name, or a tuple of these in the order of the names. It is recorded by its
            name, module:function, and is known again by that alone.
        pipeline: a `transforms.Pipeline` of the dataset: `fn` is given its output in place of the
            batch, such as the float images that a teacher was trained on. Its steps and numbers are
            recorded.
        options: keyword arguments of `fn`, which JSON can hold; they are recorded.
        part: (K, N): make every N-th shard, from the K-th (from 1) on. None: by the rank in
            torch.distributed, or by RANK and WORLD_SIZE of the environment; otherwise all.
        progress: show a bar on stderr; or a function that is called as function(images done, images
            in all) after each batch, and after the rows that a killed call left behind; images
            whose rows exist are not counted. Default: a bar if stderr is a terminal.

    Raises:
        OptionError: a value that cannot be used, rows of another shape, type or number than
            expected, or a row with NaN or an infinity, whose image is named.
        OutputRefused: the folder holds something else, such as an array of another function, of
            other options, or of a dataset that was opened with other options.
        ReadError: a sample cannot be read; the rows of its shard are not published.
        FormatError: a feature shard that exists is damaged.
        OutputLocked: another process makes the same feature shard.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> def grey(batch):
        ...     return batch["images"].float().mean((1, 2, 3))
        >>> result = sa1bpack.derive(ds, "mean_grey", grey, output="derived/mean_grey")
        >>> ds = sa1bpack.open("packed", features="derived/mean_grey")
        >>> ds[0]["mean_grey"].shape, ds[0]["mean_grey"].dtype
        ((), dtype('float32'))
        >>> def levels(batch):
        ...     images = batch["images"].permute(0, 3, 1, 2).float()
        ...     return {f"p{n}": torch.nn.functional.avg_pool2d(images, 2**n) for n in (5, 6)}
        >>> results = sa1bpack.derive(ds, ["p5", "p6"], levels, output="derived/levels")
        >>> [result.folder.name for result in results]
        ['p5', 'p6']
    """
    check_progress(progress)
    maker = FeatureShardMaker(ds, name, fn, pipeline, options, group_of(DeriveOptions, call))
    todo = maker.missing(share(maker.shards, part))
    total = sum(shard.identity.lengths.samples for shard, _ in todo)
    with reporting_steps(progress, "image", total) as step:
        for shard, targets in todo:
            for images in maker.make(shard, targets):
                interrupts.check()
                step(images)
    return maker.result()


def function_name(fn: Function) -> str:
    """The name of a function in the manifest: "module:name"; of a script "its file:name".

    A module that imports the script would have the same name for it.

    Raises OptionError for a lambda or a partial, which share their name with every other one.
    """
    named = _named(fn)
    module = named.__module__
    script = getattr(sys.modules["__main__"], "__file__", None)
    if module == "__main__" and script is not None:
        module = Path(script).stem
    name = f"{module}:{named.__qualname__}"
    if name.endswith("<lambda>") or isinstance(fn, functools.partial):
        raise OptionError(
            f"fn is {name}, which does not tell it from another one when a call is repeated: "
            "choose a function with a name (def), and pass arguments as options"
        )
    return name


def _named(fn: Function) -> Any:
    """The object that has the name of a function: itself, or the class of a callable object."""
    if isinstance(fn, Seeded):
        fn = fn.function
    return fn if hasattr(fn, "__qualname__") else type(fn)


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
        self._options = _options_of(options)
        self._pipeline = pipeline
        _check_function(fn, pipeline, chosen)
        self._batch_size = chosen.batch_size
        self._loading = _loading(ds, pipeline, chosen)
        self.axis = chosen.axis
        self._several = not isinstance(name, str)
        made_by = self._made_by(ds, chosen)
        self.targets: dict[str, FeatureTarget] = {}
        for feature in _names(name):
            rows = chosen
            if self._several and chosen.output is not None:
                rows = replace(chosen, output=chosen.output / side_name(feature))
            self.targets[feature] = FeatureTarget(ds, feature, made_by, rows)
        self.shards = next(iter(self.targets.values())).shards
        self.made: dict[str, list[ShardToDo]] = {feature: [] for feature in self.targets}

    def _made_by(self, ds: Dataset, chosen: DeriveOptions) -> dict[str, Any]:
        """The record of what makes the rows. Raises OptionError for masks that cannot be chosen."""
        made_by: dict[str, Any] = {
            "function": function_name(self._fn),
            "options": self._options,
        }
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
        with self.loader(shard) as loader, _ShardWriters(self._writer, shard, counts) as writers:
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
        try:
            file = inspect.getsourcefile(inspect.unwrap(_named(self._fn)))
            code = xxhash.xxh3_128_hexdigest(Path(file or "").read_bytes())
        except (TypeError, OSError):  # another language, or by another program
            return None
        made_by = {
            **target.provenance,
            "masks": self._loading.get("mask_layout"),
            "code": code,
        }
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


class _ShardWriters:
    """The writers of the feature shards of one shard, one for each feature that lacks its own.

    A context manager: what is not published is left to a call that resumes, or discarded where the
    rows cannot be stored, as what computed them will change.

    Attributes:
        samples: samples, from the first on, whose rows all of them have.
    """

    def __init__(
        self,
        open_writer: Callable[[FeatureTarget, ShardToDo, np.ndarray], FeatureShardWriter],
        shard: ShardToDo,
        counts: np.ndarray,
    ):
        """
        Args:
            open_writer: opens the writer of a feature for the shard.
            shard: the shard.
            counts: int64 (N,), rows of each sample.
        """
        self._open_writer = open_writer
        self._shard = shard
        self._counts = counts
        self._targets: dict[str, FeatureTarget] = {}
        self._writers: dict[str, FeatureShardWriter] = {}

    @property
    def samples(self) -> int:
        """See the class."""
        if len(self._writers) < len(self._targets):
            return 0
        return min((writer.samples for writer in self._writers.values()), default=0)

    def add(self, target: FeatureTarget) -> None:
        """Add a feature, and open its writer if it is known what its rows are."""
        self._targets[target.name] = target
        if target.spec is not None:
            self._writers[target.name] = self._open_writer(target, self._shard, self._counts)

    def append(self, name: str, rows: FeatureRows | None, counts: np.ndarray, first: int) -> None:
        """Append the rows of the next samples, unless the feature has them.

        Args:
            name: name of the feature.
            rows: their rows; None: there are none, of a kind that is not known.
            counts: int64 (k,), rows of each sample.
            first: the first of the samples.
        """
        target = self._targets.get(name)
        if target is None:  # whose feature shard existed before
            return
        if name not in self._writers:
            if target.spec is None:  # then all samples before have no rows
                return
            self._writers[name] = self._open_writer(target, self._shard, self._counts)
        writer = self._writers[name]
        if writer.samples > first:  # a call that was killed has left them
            return
        if writer.samples < first:
            writer.append(no_rows(writer.spec), self._counts[writer.samples : first])
        if rows is None:
            rows = no_rows(writer.spec)
        writer.append(rows, counts)

    def publish(self) -> list[str]:
        """Publish the feature shards; returns the names of those that no other process has."""
        return [name for name, writer in self._writers.items() if writer.publish()]

    def __enter__(self) -> "_ShardWriters":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            if kind is not None and issubclass(kind, OptionError):
                writer.discard()
            else:
                writer.leave()


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


def _options_of(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keyword arguments of the function. Raises OptionError."""
    if options is None:
        return {}
    if not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise OptionError(f"options is {brief(options)}: choose a dict of keyword arguments")
    return dict(options)


def _check_function(fn: Function, pipeline: Pipeline | None, chosen: DeriveOptions) -> None:
    """Raise OptionError unless the function can be called with what the pipeline makes."""
    if not callable(fn):
        raise OptionError(f"fn is {brief(fn)}: choose a function of a batch")
    if not isinstance(pipeline, Pipeline | None):
        raise OptionError(f"pipeline is {brief(pipeline)}: choose a transforms.Pipeline")
    if pipeline is None or not chosen.spatial:
        return
    moves = any(isinstance(step, GeometricStep) for step in pipeline.steps)
    if moves or pipeline.canvas[0] != pipeline.canvas[1]:
        raise OptionError(
            f"pipeline is {pipeline}, but spatial is True: rows are over the canvas of the "
            "stored image, so choose a pipeline with a square size that moves no image"
        )


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


def function_of(name: str, option: str = "fn") -> Callable[..., Any]:
    """Import and return the function that an option names. Raises OptionError if there is none.

    An error of the module itself passes.
    """
    module, colon, attribute = name.partition(":")
    if not (colon and all(word.isidentifier() for word in f"{module}.{attribute}".split("."))):
        raise OptionError(
            f"{option} is {brief(name)}: choose MODULE:FUNCTION, such as my_teacher:embed"
        )
    try:
        function: Any = resolve_name(name)
    except (ModuleNotFoundError, AttributeError) as error:
        missing_module = ""
        if isinstance(error, ModuleNotFoundError):
            missing_module = f"{error.name}."
        if not f"{module}.".startswith(missing_module):
            raise  # something that the module imports
        raise OptionError(f"{option} is {brief(name)}: {error}") from None
    if not callable(function):
        kind = type(function).__name__
        raise OptionError(f"{option} is {brief(name)}: of type {kind}, no function")
    checked: Callable[..., Any] = function
    return checked
