"""One image and its record → the rows that a shard stores."""

import json
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from math import prod
from pathlib import PurePath
from typing import Any

import numpy as np
import simplejpeg

from sa1bpack import __version__, pixels
from sa1bpack.disk.direct import HUGE_PAGE, aligned
from sa1bpack.environment import pil_in_force
from sa1bpack.errors import AnnotationError, MaskError, MissingPackage, SampleError
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
from sa1bpack.masks.rle import take_masks
from sa1bpack.masks.select import select_masks
from sa1bpack.packing.kept_rows import KeptRows, kept_of_record
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.runs import complete_numbers, runs_of_record
from sa1bpack.pixels.header import stored_size
from sa1bpack.source.annotations import Annotations
from sa1bpack.source.pairs import Reject
from sa1bpack.source.records.images import joined
from sa1bpack.source.records.table import SA1B, parse_record
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
        kept_rows: the values of the keys that the pack keeps.
    """

    rows: dict[str, np.ndarray]
    lengths: AxisLengths
    unknown_keys: frozenset[str]
    kept_rows: KeptRows = field(default_factory=KeptRows)


# What a source's bytes are, in this process or in shared memory.
Bytes = bytes | memoryview

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
        if image is None:
            image = aligned(max(most_image_bytes(options.layout), HUGE_PAGE))
        if bits is None:
            bits = aligned(0)
        self._image = image
        self._bits = bits
        self._row_shape = options.mask_size, options.mask_size // 8

    def image(self, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8, with whatever the last sample left in it."""
        return self._image[:nbytes]

    def bits(self, masks: int) -> np.ndarray:
        """(masks, Sm, Sm / 8) uint8, with whatever the last sample left in it."""
        nbytes: int = masks * prod(self._row_shape)
        if self._bits.size < nbytes:
            self._bits = aligned(max(nbytes + min(nbytes, 8 << 20), HUGE_PAGE))
        return self._bits[:nbytes].reshape(masks, *self._row_shape)


def most_image_bytes(layout: Layout) -> int:
    """The bytes that an image of the layout takes at most."""
    nbytes: int = image_nbytes(layout, layout.image_size, layout.image_size)
    return nbytes


def make_sample(
    file_name: str, jpeg: Bytes, json: Bytes, options: PackOptions, buffers: Buffers
) -> Packed | None:
    """Decode one sample.

    Every mask of the record is checked, including those that the rule drops, so that the options do
    not determine which images are valid.

    Args:
        file_name: name of the image without its folders, such as "sa_5.jpg".
        jpeg, json: bytes of the image, in any format that `pixels` reads, and of its record.
        options: options of the pack.
        buffers: memory for the large rows.

    Returns:
        The sample's rows; None for an image without remaining masks if the options drop those.

    Raises:
        SampleError: AnnotationError, MaskError or ImageError: the sample must be rejected.
        MissingPackage: PIL was built without what reads such an image.
    """
    paths = tuple((key.parent, key.last) for key in options.kept_keys)
    numbers = options.layout.mask_numbers
    record = parse_record(
        str(options.records), json, file_name, partial(pixels.image_size, jpeg), numbers, paths
    )
    if record.file_name != file_name:
        raise AnnotationError(
            f"image.file_name is {brief(record.file_name)}, but the record lies beside "
            f"{brief(file_name)}; it belongs to another image, or a file was renamed",
            code="name-mismatch",
        )
    run_ends, run_offset, noncanonical = runs_of_record(record)
    complete_numbers(record, run_ends, run_offset)
    masks = select_masks(options, record.numbers, record.height * record.width, record.image_id)
    _check_bits(record, len(masks), options)
    kept_rows = kept_of_record(record, options.kept_keys, masks)
    if len(masks) == 0 and options.empty == "drop" and options.records != "none":
        return None
    if len(masks) < len(record):
        run_ends, run_offset = take_masks(run_ends, run_offset, masks)
    layout = options.layout
    rows = _image_rows(file_name, jpeg, record, options, buffers)
    rows |= _annotation_rows(record, masks, noncanonical)
    if layout.bits:
        axes = fit_axes(
            record.height, record.width, options.mask_size, layout.fit, layout.image_size
        )
        bits = buffers.bits(len(masks))
        rows["mask_bits"] = draw_grid(run_ends, run_offset, *axes, options.mask_sampling, bits)
    if layout.runs:
        rows["run_offset"] = run_offset
        rows["run_ends"] = run_ends
    rows = finished_rows(layout, rows)
    return Packed(rows, sample_lengths(layout, rows), record.unknown_keys, kept_rows)


def _check_bits(record: Annotations, masks: int, options: PackOptions) -> None:
    """Raise AnnotationError if the bits of so many masks are more than a sample may have."""
    if not options.layout.bits:
        return
    side = options.mask_size
    nbytes = masks * side * side // 8
    if nbytes > MAX_BITS:
        raise AnnotationError(
            f"image {record.image_id} has {masks:,} masks, whose bits on a grid of {side} x {side} "
            f"take {size_text(nbytes)}, and the limit is {size_text(MAX_BITS)}; use a smaller "
            "--mask-size, a cap (--max-masks) or --masks runs",
            code="too-many-masks",
        )


def _image_rows(
    file_name: str, jpeg: Bytes, record: Annotations, options: PackOptions, buffers: Buffers
) -> dict[str, np.ndarray]:
    """The rows of the image, decoded into the buffers."""
    layout = options.layout
    source_size = record.height, record.width
    height, width = stored_size(record.height, record.width, layout.image_size, layout.fit)
    image = buffers.image(image_nbytes(layout, height, width))
    planes = _whole_planes(layout, image, height, width)
    pixels.decode_into(jpeg, source_size, (height, width), planes, options.resample)
    if not layout.flat:
        image = image.reshape(layout.array("image").row_shape)
    return {
        "image": image,
        "image_id": np.array([record.image_id], np.int64),
        "file_name": np.frombuffer(file_name.encode().ljust(FILE_NAME_BYTES, b"\0"), np.uint8),
        "size": np.array([[*source_size, height, width]], np.int32),
        "annotation_count": np.array([len(record)], np.int32),
    }


def _whole_planes(
    layout: Layout, image: np.ndarray, height: int, width: int
) -> tuple[np.ndarray, ...]:
    """The planes of an image of this stored size, or of its canvas, in its bytes, (n,) uint8."""
    if not layout.flat:
        height = width = layout.image_size
    return tuple(plane.view(image) for plane in image_planes(layout, height, width))


def _annotation_rows(
    record: Annotations, masks: np.ndarray, noncanonical: np.ndarray
) -> dict[str, np.ndarray]:
    """The numbers of these masks of a record."""
    number_types = record.number_types
    number_types[noncanonical] |= np.uint16(1 << NONCANONICAL_BIT)
    rows = record.numbers | {"number_types": number_types}
    if len(masks) < len(record):
        rows = {name: values[masks] for name, values in rows.items()}
    return rows


def require_decoder() -> None:
    """Raise MissingPackage, which names the remedy, if PIL is missing, broken or too old."""
    _ = pixels.decode_into  # imported on first use


def versions_in_force() -> dict[str, str]:
    """The versions that determine pixels and masks besides the options; every shard records them.

    Raises MissingPackage as `require_decoder` does.
    """
    require_decoder()
    pil = pil_in_force()
    assert pil is not None
    return {"sa1bpack": __version__, pil.package: pil.version, "simplejpeg": version("simplejpeg")}


def versions_text(packed_by: dict[str, str]) -> str:
    """The versions that made a shard, in words."""
    return ", ".join(f"{package} {number}" for package, number in packed_by.items())


# A mask in each form that readers of records know.
_SHAPES = (
    {"size": [16, 16], "counts": "0P8"},
    {"size": [16, 16], "counts": [0, 256]},
    [[0, 0, 16, 0, 16, 16, 0, 16]],
    {
        "png": "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAQAAAAA3iMLMAAAAD0lEQVR4nGP8z8DEQAICADIBAR9ZTeQQ"
        "AAAAAElFTkSuQmCC"
    },
)


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
    half = json.dumps(record).encode()
    if options.records != SA1B:
        record["annotations"] = [annotation | {"segmentation": shape} for shape in _SHAPES]
        half = joined("sa_1.jpg", json.dumps(record).encode())
    buffers = Buffers(options)
    make_sample("sa_1.jpg", jpeg, half, options, buffers)
    # An image that keeps its size needs fewer kernels than one that does not.
    smaller = _whole_planes(options.layout, buffers.image(most_image_bytes(options.layout)), 8, 8)
    pixels.decode_into(jpeg, (16, 16), (8, 8), smaller, options.resample)


def attempt(
    file_name: str, jpeg: Bytes, json: Bytes, options: PackOptions, buffers: Buffers
) -> Outcome:
    """Make a sample; what goes wrong with it becomes a Reject.

    An exception that no code of ours raises on purpose is filed as "unexpected" with its type: one
    image must not end a run of days. A lack of memory, a PIL that cannot read the format, and
    errors of the operating system (which, unlike PIL's own OSErrors, have a number) are not the
    sample's fault, and are raised.
    """
    try:
        return make_sample(file_name, jpeg, json, options, buffers)
    except (AnnotationError, MaskError) as error:
        if options.records != SA1B:  # whose record has no name of its own
            return Reject(file_name, error.code, f"reader {options.records}: {error}")
        record = str(PurePath(file_name).with_suffix(".json"))
        return Reject(record, error.code, str(error))
    except SampleError as error:
        return Reject(file_name, error.code, str(error))
    except Exception as error:
        of_system = isinstance(error, OSError) and error.errno is not None
        if of_system or isinstance(error, MemoryError | MissingPackage):
            raise
        return Reject(file_name, "unexpected", f"{type(error).__name__}: {error}")
