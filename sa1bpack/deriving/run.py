"""`sa1bpack.derive`: a feature computed by a function of batches."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import numpy as np
import torch
import xxhash

from sa1bpack import interrupts
from sa1bpack.arguments import choice
from sa1bpack.dataset.dataset import Dataset, as_dataset
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.deriving.target import DeriveResult, FeatureTarget, ShardToDo, share
from sa1bpack.errors import OptionError
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.spec import SIDE_DTYPES
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

Function = Callable[..., torch.Tensor | np.ndarray]


@checks_options(masks="mask_layout")
@takes_options(DeriveOptions)
def derive(
    ds: Dataset,
    name: str,
    fn: Function,
    *,
    pipeline: Pipeline | None = None,
    options: Mapping[str, Any] | None = None,
    part: tuple[int, int] | None = None,
    progress: ProgressOption = None,
    **call: Unpack["DeriveKeywords"],
) -> DeriveResult:
    """Compute a feature: one row per image or per mask, by a function of batches.

    The rows of each shard, a feature shard, are published when they are complete. Feature shards
    that exist are kept, and so are the complete batches of one that is not, as long as the file of
    the function is the same. So a call that was killed is repeated to resume, and a shard that was
    packed again is the only one that is computed again. Any number of processes may work on one
    feature at once, each on the shards of its `part`.

    Args:
        ds: a dataset of complete shards, without a transform: of a pack, `ds.from_sources(...)`, or
            a torch Subset of one.
        name: name of the array, and its key in samples and batches.
        fn: called as fn(batch, **options) with a batch of the Loader, its tensors on the device,
            without gradients. It returns a tensor or an array with one row per image (B, ...), or
            per mask (T, ...) in the order of the batch, the same shape and type every time:
            uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64. It is recorded
            by its name, module:function, and is known again by that alone.
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
    """
    check_progress(progress)
    maker = FeatureShardMaker(ds, name, fn, pipeline, options, group_of(DeriveOptions, call))
    todo = maker.target.missing(share(maker.target.shards, part))
    total = sum(shard.identity.lengths.samples for shard in todo)
    with reporting_steps(progress, "image", total) as step:
        for shard in todo:
            for images in maker.make(shard):
                interrupts.check()
                step(images)
    return maker.target.result(maker.made)


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
        target: the feature.
        made: the shards whose rows this call published.
    """

    def __init__(
        self,
        ds: Dataset,
        name: str,
        fn: Function,
        pipeline: Pipeline | None,
        options: Mapping[str, Any] | None,
        chosen: DeriveOptions,
    ):
        """Check the arguments. Raises what `derive` raises."""
        ds = as_dataset(ds)
        if options is None:
            options = {}
        if not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
            raise OptionError(f"options is {brief(options)}: choose a dict of keyword arguments")
        if not callable(fn):
            raise OptionError(f"fn is {brief(fn)}: choose a function of a batch")
        if not isinstance(pipeline, Pipeline | None):
            raise OptionError(f"pipeline is {brief(pipeline)}: choose a transforms.Pipeline")
        if pipeline is not None and chosen.spatial:
            moves = any(isinstance(step, GeometricStep) for step in pipeline.steps)
            if moves or pipeline.canvas[0] != pipeline.canvas[1]:
                raise OptionError(
                    f"pipeline is {pipeline}, but spatial is True: rows are over the canvas of the "
                    "stored image, so choose a pipeline with a square size that moves no image"
                )
        by_mask = chosen.axis == "mask"
        layout = chosen.mask_layout
        if layout is None:
            layout = "padded"
            if by_mask:
                layout = "concat"
        if by_mask and MaskLayout.of(layout).padded:
            raise OptionError(
                f"mask_layout is {brief(layout)}: for masks choose concat or concat_bits"
            )
        mask_choice = _mask_choice(by_mask, chosen)
        self._batch_size = chosen.batch_size
        self._fn = fn
        self._options = dict(options)
        self._pipeline = pipeline
        self._loading: dict[str, Any] = {
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
        if chosen.fields is not None:
            reading = ReadingOptions(fields=chosen.fields, max_masks=chosen.max_masks)
            check_needs(pipeline, reading.fields, reading.chosen(ds))
        made_by: dict[str, Any] = {"function": function_name(fn), "options": self._options}
        if isinstance(fn, Seeded):
            made_by["seed"] = fn.seed
        if pipeline is not None:
            made_by["pipeline"] = str(pipeline)
        if mask_choice is not None:
            made_by["mask_choice"] = mask_choice
        self.target = FeatureTarget(ds, name, made_by | {"samples": ds.spec_text}, chosen)
        self.made: list[ShardToDo] = []

    def loader(self, shard: ShardToDo) -> Loader:
        """The batches of a shard."""
        return Loader(shard.samples, self._batch_size, **self._loading)

    def make(self, shard: ShardToDo) -> Iterator[int]:
        """Make the rows of a shard; yields the number of images of each batch that is done."""
        counts = shard.row_counts(self.target.axis)
        with self.loader(shard) as loader:
            writer: FeatureShardWriter | None = None
            first = 0  # sample that is next
            try:
                if self.target.spec is not None:
                    writer = self._writer(shard, counts)
                    first = writer.samples
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
                    rows = self._rows(shard, batch, of_batch, first)
                    if writer is None:
                        writer = self._writer(shard, counts)
                    writer.append(rows, of_batch)
                    first += len(of_batch)
                    yield len(of_batch)
                if writer is not None and writer.publish():
                    self.made.append(shard)
            except OptionError:  # the rows cannot be stored: what computed them will change
                if writer is not None:
                    writer.discard()
                raise
            finally:
                if writer is not None:
                    writer.leave()

    def _writer(self, shard: ShardToDo, counts: np.ndarray) -> FeatureShardWriter:
        target = self.target
        assert target.spec is not None  # `use` has set it, if it was not known before
        return FeatureShardWriter(
            target.folder,
            target.spec,
            shard.identity,
            origin=self._origin(),
            counts=counts,
            step=self._batch_size,
        )

    def _origin(self) -> bytes | None:
        """A record of what makes the rows, with the file of the function; None if it has none."""
        try:
            file = inspect.getsourcefile(inspect.unwrap(_named(self._fn)))
            code = xxhash.xxh3_128_hexdigest(Path(file or "").read_bytes())
        except (TypeError, OSError):  # another language, or by another program
            return None
        made_by = {
            **self.target.provenance,
            "masks": self._loading.get("mask_layout"),
            "code": code,
        }
        return msgspec.json.encode(made_by, order="sorted")

    def _rows(
        self, shard: ShardToDo, batch: Mapping[str, Any], counts: np.ndarray, first: int
    ) -> FeatureRows:
        """The rows that the function returns for a batch, as they are stored."""
        if self._pipeline is not None:
            batch = self._pipeline(batch)
        name = function_name(self._fn)
        subject = f"batch {batch['batch_idx']} of shard {shard.identity.name} ({_ids_text(batch)})"
        function = functools.partial(self._fn, batch, **self._options)
        with torch.no_grad():
            returned = call_user(
                function, role=name, subject=f"{subject}, shards before it are kept"
            )
        rows, dtype = stored_rows(returned)
        expected = int(counts.sum())
        if rows.ndim < 1 or len(rows) != expected:
            raise OptionError(
                f"{name} returned {dtype} {tuple(rows.shape)} for {subject}: it must return "
                f"{expected} rows, one per {'image' if self.target.axis == 'sample' else 'mask'}"
            )
        self.target.use(dtype, rows.shape[1:])
        return self.target.stored(shard, FeatureRows(rows), counts, first)


def _mask_choice(by_mask: bool, chosen: DeriveOptions) -> dict[str, Any] | None:
    """The record of which masks the function is given; None for all of them.

    Args:
        by_mask: the feature has a row per mask.

    Raises:
        OptionError: a value that cannot be used, or that such a feature cannot have.
    """
    most = chosen.max_masks
    select = chosen.mask_select
    choice("mask_select", select, CHOICES)
    if most is None:
        return None
    if by_mask:
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


def stored_rows(rows: Any) -> tuple[np.ndarray, str]:
    """A tensor or an array as it is stored, C-contiguous, and its type by name.

    Raises OptionError for anything else, and for a type that a feature cannot have.
    """
    if isinstance(rows, torch.Tensor):
        dtype = str(rows.dtype).removeprefix("torch.")
        tensor = rows.detach().cpu().contiguous()
        if dtype == "bfloat16":
            return tensor.view(torch.int16).numpy().view(np.uint16), dtype
        if dtype in SIDE_DTYPES:
            rows = tensor.numpy()
    else:
        dtype = getattr(getattr(rows, "dtype", None), "name", type(rows).__name__)
    if dtype not in SIDE_DTYPES or not isinstance(rows, np.ndarray) or dtype == "bfloat16":
        raise OptionError(f"rows are {dtype}: choose one of {', '.join(SIDE_DTYPES)}")
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")), dtype


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
