"""`sa1bpack.derive`: a feature computed by a function of batches."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from sa1bpack import interrupts
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.deriving.functions import Function
from sa1bpack.deriving.maker import FeatureShardMaker
from sa1bpack.deriving.options import DeriveOptions
from sa1bpack.deriving.ranks import share
from sa1bpack.deriving.target import DeriveResult
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.options import group_of
from sa1bpack.progress import ProgressOption, check_progress, reporting_steps
from sa1bpack.transforms.pipeline import Pipeline

if TYPE_CHECKING:
    from sa1bpack.option_keywords import DeriveKeywords


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


@checks_options(
    masks="mask_layout",
    bucket_by="attach, with a generator over Loader(ds, bucket_by=...), as docs/other-code.md has "
    "it for PixArt; or crop the padding of each image by batch['sizes']",
)
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
    the function is the same. So if a call was killed, repeat it to resume; and of a pack in which a
    shard was packed again, that shard alone is computed again. Any number of processes may work on
    one feature at once, each on the shards of its `part`.

    Args:
        ds: a dataset of complete shards, without a transform: of a pack, `ds.from_sources(...)`, or
            a torch Subset of one.
        name: name of the feature, and its key in samples and batches. Or a list of names: several
            features of one call of `fn`, such as the levels of a pyramid, each with rows of its
            own; with `output`, in folders of these names there.
        fn: called as fn(batch, **options) with a batch of the Loader, its tensors on the device,
            without gradients. It returns a tensor or an array with one row per image (B, ...), or
            per mask (T, ...) in the order of the batch, the same shape and type every time: uint8,
            int8, int16, int32, int64, float16, bfloat16, float32 or float64; or a list of arrays
            (n, ...), rows of any length; or a list of strings. For several features, a dict of
            these by name, or a tuple of these in the order of the names. It is recorded by its
            name, module:function, and recognised by that alone.
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
