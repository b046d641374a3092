"""One image and its record → the rows that a shard stores."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import PurePath
from typing import Any

import numpy as np
import simplejpeg

from sa1bpack import pixels
from sa1bpack.disk.direct import HUGE_PAGE, aligned
from sa1bpack.errors import AnnotationError, MaskError, SampleError
from sa1bpack.format.layout import (
    FILE_NAME_BYTES,
    NONCANONICAL_BIT,
    AxisLengths,
    Layout,
    image_nbytes,
    image_planes,
)
from sa1bpack.format.shard_writer import finished_rows, sample_lengths
from sa1bpack.interrupts import interrupts_held
from sa1bpack.masks.raster import draw_grid, fit_axes
from sa1bpack.masks.rle import parse_counts, take_masks
from sa1bpack.masks.select import select_masks
from sa1bpack.packing.options import PackOptions
from sa1bpack.pixels.header import stored_size
from sa1bpack.source.annotations import parse_annotations
from sa1bpack.source.pairs import Reject
from sa1bpack.wording import brief, size_text

# Images of up to this size are resized in memory that malloc keeps. glibc's limit is 32 MiB, with
# the header of the block.
KEPT_MEMORY = (32 << 20) - (64 << 10)

# The bits of a sample's masks take at most this, which is more than a record of MAX_ANNOTATIONS
# masks takes on grids of up to 1024 x 1024.
MAX_BITS = 2 << 30


@dataclass(frozen=True)
class Packed:
    """The rows of one sample.

    Attributes:
        rows: array name → its rows, as `finished_rows` returns them. `image` and `mask_bits` are
            views of buffers, valid until these are used for another sample.
        lengths: what the sample adds to its shard.
        unknown_keys: keys of the record that are not in the schema; they are not stored.
    """

    rows: dict
    lengths: AxisLengths
    unknown_keys: frozenset


# None: no masks of the sample remained, and the options drop such images.
Outcome = Packed | Reject | None


class Buffers:
    """Reused memory for the large arrays of a sample: 3 MB of fresh memory cost 768 page faults.

    Both start at a block boundary, so that they can be written to disk without a copy.
    """

    def __init__(
        self, options: PackOptions, image: np.ndarray | None = None, bits: np.ndarray | None = None
    ):
        """Use this memory, (n,) uint8, for the image and for the bits, or allocate it."""
        self._image = aligned(most_image_bytes(options.layout)) if image is None else image
        self._row_shape = (options.mask_size, options.mask_size // 8)
        self._bits = aligned(0) if bits is None else bits

    def image(self, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8, with whatever the last sample left in it."""
        return self._image[:nbytes]

    def bits(self, masks: int) -> np.ndarray:
        """(masks, Sm, Sm / 8) uint8, with whatever the last sample left in it."""
        nbytes = masks * prod(self._row_shape)
        if self._bits.size < nbytes:
            self._bits = aligned(max(nbytes + min(nbytes, 8 << 20), HUGE_PAGE))
        return self._bits[:nbytes].reshape(masks, *self._row_shape)


def most_image_bytes(layout: Layout) -> int:
    """The bytes that an image of the layout takes at most."""
    return image_nbytes(layout, layout.image_size, layout.image_size)


def make_sample(
    file_name: str, jpeg, record, options: PackOptions, buffers: Buffers
) -> Packed | None:
    """Decode one sample.

    Every mask of the record is checked, including those that the rule drops, so that the options do
    not determine which images are valid.

    Args:
        file_name: name of the JPEG without its folders, such as "sa_5.jpg".
        jpeg, record: bytes of the image and of its JSON.
        options: options of the pack.
        buffers: memory for the large rows.

    Returns:
        The sample's rows; None for an image without remaining masks if the options drop those.

    Raises:
        SampleError: AnnotationError, MaskError or ImageError: the sample must be rejected.
    """
    record = parse_annotations(record, options.layout.mask_numbers)
    if record.file_name != file_name:
        raise AnnotationError(
            f"image.file_name is {brief(record.file_name)}, but the record lies beside "
            f"{brief(file_name)}; "
            "it belongs to another image, or a file was renamed",
            code="name-mismatch",
        )
    image_pixels = record.height * record.width
    kept = select_masks(
        options,
        record.numbers["area"],
        record.numbers["predicted_iou"],
        record.numbers["stability_score"],
        image_pixels,
        record.image_id,
    )
    layout = options.layout
    side = options.mask_size
    nbytes = len(kept) * side * side // 8 if layout.bits else 0
    if nbytes > MAX_BITS:
        raise AnnotationError(
            f"image {record.image_id} has {len(kept):,} masks, whose bits on a grid of "
            f"{side} x {side} take {size_text(nbytes)}, and the limit is {size_text(MAX_BITS)}; "
            "use a smaller --mask-size, a cap (--max-masks) or --masks runs",
            code="too-many-masks",
        )
    try:
        run_ends, run_offset, noncanonical = parse_counts(
            record.counts_text, record.counts_offset, image_pixels
        )
    except MaskError as error:  # kernels know the index of a mask only
        if (mask := getattr(error, "mask", None)) is None:
            raise
        named = f"annotation id {record.numbers['annotation_id'][mask]}: {error}"
        raise MaskError(named, error.code) from error
    if len(kept) < len(noncanonical):
        run_ends, run_offset = take_masks(run_ends, run_offset, kept)
    if options.empty == "drop" and len(kept) == 0:
        return None
    size = stored_size(record.height, record.width, options.image_size, options.fit)
    image = buffers.image(image_nbytes(layout, *size))
    whole = size if layout.flat else (options.image_size,) * 2
    planes = tuple(plane.view(image) for plane in image_planes(layout, *whole))
    pixels.decode_into(jpeg, (record.height, record.width), size, planes, options.resample)
    number_types = record.number_types[kept]
    number_types[noncanonical[kept]] |= np.uint16(1 << NONCANONICAL_BIT)
    rows = {
        "image": image if layout.flat else image.reshape(layout.array("image").row_shape),
        "image_id": np.array([record.image_id], np.int64),
        "file_name": np.frombuffer(file_name.encode().ljust(FILE_NAME_BYTES, b"\0"), np.uint8),
        "size": np.array([[record.height, record.width, *size]], np.int32),
        "annotation_count": np.array([len(record)], np.int32),
        **{name: values[kept] for name, values in record.numbers.items()},
        "number_types": number_types,
    }
    if layout.bits:
        axes = fit_axes(record.height, record.width, side, options.fit)
        bits = buffers.bits(len(kept))
        rows["mask_bits"] = draw_grid(run_ends, run_offset, *axes, options.mask_sampling, bits)
    if layout.runs:
        rows["run_offset"] = run_offset
        rows["run_ends"] = run_ends
    rows = finished_rows(layout, rows)
    return Packed(rows, sample_lengths(layout, rows), record.unknown_keys)


def require_decoder() -> None:
    """Raise MissingPackage, which names the remedy, if PIL is missing, broken or too old."""
    _ = pixels.decode_into  # imported on first use


@interrupts_held()
def warm_up(options: PackOptions) -> None:
    """Make a tiny sample, so that every kernel is compiled, or loaded from its file (`kernels`).

    Done once by the parent before its workers start, it spares them all compiling the same. Raises
    MissingPackage as `require_decoder` does.
    """
    require_decoder()
    # glibc returns freed memory of an image's size to the system, whose zeroed pages every resize
    # would take again, until it has seen a block of that size freed. The block is never touched.
    np.empty(KEPT_MEMORY, np.uint8)
    black = np.zeros((16, 16, 3), np.uint8)
    jpeg = simplejpeg.encode_jpeg(black, quality=95, colorsubsampling="420")
    # All of the image, with numbers that pass the lower thresholds.
    values = {1: 256, 2: [[8, 8]], 4: [0, 0, 15, 15]}
    annotation: dict[str, Any] = {"segmentation": {"size": [16, 16], "counts": "0P8"}}
    for number in options.layout.mask_numbers:
        annotation[number.json] = values[number.columns]
    record = {
        "image": {"image_id": 1, "width": 16, "height": 16, "file_name": "sa_1.jpg"},
        "annotations": [annotation],
    }
    make_sample("sa_1.jpg", jpeg, json.dumps(record).encode(), options, Buffers(options))


def attempt(file_name: str, jpeg, json, options: PackOptions, buffers: Buffers) -> Outcome:
    """Make a sample; what goes wrong with it becomes a Reject.

    An exception that no code of ours raises on purpose is filed as "unexpected" with its type: one
    image must not end a run of days. A lack of memory and errors of the operating system (which,
    unlike PIL's own OSErrors, have a number) are not the sample's fault, and are raised.
    """
    try:
        return make_sample(file_name, jpeg, json, options, buffers)
    except (AnnotationError, MaskError) as error:
        record = str(PurePath(file_name).with_suffix(".json"))
        return Reject(record, error.code, str(error))
    except SampleError as error:
        return Reject(file_name, error.code, str(error))
    except Exception as error:
        of_system = isinstance(error, OSError) and error.errno is not None
        if of_system or isinstance(error, MemoryError):
            raise
        return Reject(file_name, "unexpected", f"{type(error).__name__}: {error}")
