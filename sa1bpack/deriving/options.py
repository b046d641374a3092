"""The options of features; this module loads without torch, for the help of the command line."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.format.side.scaled import SCALED_DTYPES
from sa1bpack.format.side.spec import COVERS, INTERPOLATIONS, SIDE_AXES
from sa1bpack.options import Options, option


@dataclass(frozen=True, kw_only=True)
class RowOptions(Options):
    """The rows of a feature, and where they are."""

    axis: str = option(
        "sample",
        "sample: a row per image; mask: a row per mask, with masks in the layout concat",
        choices=SIDE_AXES,
    )
    spatial: bool | None = option(
        None,
        "rows are (C, h, w) over the image, so that a `transforms.Pipeline` moves them with it. "
        "Where it is not said, they are not, and rows that look like maps are noted",
        none="",
    )
    covers: str | None = option(
        None,
        "what spatial rows cover. canvas: the stored image with its padding, S x S pixels, as a "
        "batch has it; photograph: the image without padding, whatever its height and width. Rows "
        "that are not as high as wide must say it, unless the pack has the fit squash, where both "
        "are the same",
        choices=COVERS,
        none="the canvas",
    )
    interpolation: str | None = option(
        None,
        "how spatial rows are moved. bilinear: with the filter of images; integers become float32."
        " nearest: each cell is that of the rows which its centre lies in, and types stay, as "
        "labels need it",
        choices=INTERPOLATIONS,
        none="nearest for integers, bilinear for floats",
    )
    output: Path | None = option(
        None,
        "folder of the feature, not among the files of the pack",
        none="PACK/side/NAME",
        metavar="FOLDER",
        instead="a feature is made in a folder of this machine: give that, and upload it then, "
        "such as with `aws s3 sync feat/t5 s3://bucket/pack/side/t5`",
    )
    allow_nonfinite: bool = option(False, "store NaN and infinities, too, in place of an error")
    quantize: str | None = option(
        None,
        "store floats as int8 with a scale per row and channel, in half the bytes of float16, "
        "which samples and batches have them as; float8, float8_e4m3fn, is for channels with "
        "outliers. Channels are axis 0 of a row; a row of one axis has one scale",
        choices=tuple(SCALED_DTYPES),
        none="rows are stored as they are",
    )


@dataclass(frozen=True, kw_only=True)
class AttachOptions(RowOptions):
    """The rows of a feature, where they are, and where they come from."""

    missing: str = option(
        "refuse",
        "refuse: all images, or masks, must have a row; allow: some have none, and samples and "
        "batches say which, as NAME_present",
        choices=("refuse", "allow"),
    )
    key: str | None = option(
        None,
        "column of a table, or key of a record, that has the id of a row; with dots a path, "
        "annotations.id",
        none="image_id, or annotation_id of masks",
        metavar="KEY",
    )
    value: str | None = option(
        None,
        "column, or key, or path, that has the row; of .npz files, the name of the array",
        none="must be said, except of .npz files with one array",
        metavar="VALUE",
    )
    dtype: str | None = option(
        None,
        "type of the rows, to which numbers, and numbers that are text, are converted: text, "
        "uint8, int8, int16, int32, int64, float16, bfloat16, float32 or float64",
        none="that of the rows; of numbers of text files int64, or float64 if some have fractions",
        metavar="TYPE",
    )


@dataclass(frozen=True, kw_only=True)
class DeriveOptions(RowOptions):
    """The rows of a feature, and the batches that a function makes them of."""

    batch_size: int = option(32, "images per batch", low=1, metavar="N")
    device: str = option("cpu", "where the batches are: cpu, cuda, cuda:1", metavar="DEVICE")
    max_masks: int | None = option(
        None,
        "give the function at most N masks of an image, with a row per image; 0 if it takes none, "
        "and none is read",
        low=0,
        none="all",
        metavar="N",
    )
    mask_select: str = option(
        "largest",
        "which masks: largest, iou, stability, random or balanced; recorded, as is their number",
        metavar="CHOICE",
    )
    mask_layout: str | None = option(
        None,
        "padded, concat, padded_bits or concat_bits: how masks lie in a batch",
        none="concat with a row per mask, else padded",
        metavar="LAYOUT",
    )
    fields: tuple[str, ...] | None = option(
        None,
        "keys of the batches that the function is given, such as other features; nothing else is "
        "read",
        none="all",
        accepts=str | Iterable[str] | None,
        metavar="KEYS",
    )
    threads: int | None = option(None, "reader threads", none="chosen by the Loader", metavar="N")
    prefetch: int | None = option(
        None,
        "batches that are ready or in progress, besides the one that is used and the next one",
        none="chosen by the Loader",
        metavar="N",
    )
    io: str | None = option(
        None,
        "how to read what is not in the page cache: direct, past it; cached, into it; or auto",
        none="auto",
        metavar="MODE",
    )
    timeout: float = option(
        120.0,
        "seconds after which a batch that has not arrived is an error",
        metavar="SECONDS",
    )
