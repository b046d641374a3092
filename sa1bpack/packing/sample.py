"""Images and their records → the rows that a shard stores.

Several samples are made at once where they can be: their masks take fewer calls of numpy and of
compiled code, each of which takes longer than the work that one sample has for it.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import chain
from math import prod
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import simplejpeg

from sa1bpack import __version__, pixels
from sa1bpack.disk.direct import BLOCK, HUGE_PAGE, aligned
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
from sa1bpack.masks.raster import draw_images, fit_axes
from sa1bpack.masks.rle import take_masks
from sa1bpack.masks.select import select_masks
from sa1bpack.packing.empty_masks import NONE_EMPTY, EmptyMasks, empty_masks_of
from sa1bpack.packing.kept_rows import KeptRows, kept_of_records
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.runs import complete_numbers, runs_of_records
from sa1bpack.pixels.header import stored_size
from sa1bpack.source.annotations import Annotations
from sa1bpack.source.pairs import Reject
from sa1bpack.source.records.images import joined
from sa1bpack.source.records.table import SA1B, PairRecord, parse_records
from sa1bpack.source.shapes import offsets_of_lengths
from sa1bpack.wording import brief, size_text

# Images of up to this size are resized in memory that malloc keeps. glibc's limit is 32 MiB, with
# the header of the block.
KEPT_MEMORY = (32 << 20) - (64 << 10)

# The bits of a sample's masks take at most this, which is more than a record of MAX_ANNOTATIONS
# masks takes on grids of up to 1024 x 1024.
MAX_BITS = 2 << 30


@dataclass(frozen=True)
class Packed:
    """The rows of one sample, or of several, one after the other.

    Attributes:
        rows: array name → its rows, as `finished_rows` returns them. `image` and `mask_bits` are
            views of buffers, valid until these are used for other samples.
        lengths: what the samples add to their shard.
        unknown_keys: key of the records that is not in the schema, and not stored → number of
            samples whose records have it.
        kept_rows: the values of the keys that the pack keeps.
        empty_masks: those of the masks that have no pixel.
    """

    rows: dict[str, np.ndarray]
    lengths: AxisLengths
    unknown_keys: Mapping[str, int]
    kept_rows: KeptRows = field(default_factory=KeptRows)
    empty_masks: EmptyMasks = NONE_EMPTY


# What a source's bytes are, in this process or in shared memory.
Bytes = bytes | memoryview

# None: no masks of the sample remained, and the options drop such images.
Outcome = Packed | Reject | None


class PairBytes(NamedTuple):
    """A pair as a decoder gets it.

    Attributes:
        file_name: name of the image without its folders, such as "sa_5.jpg".
        jpeg: bytes of the image, in any format that `pixels` reads.
        json: those of its record.
    """

    file_name: str
    jpeg: Bytes
    json: Bytes


class Buffers:
    """Reused memory for the large arrays of samples: 3 MB of fresh memory cost 768 page faults.

    Both start at a block boundary, so that they can be written to disk without a copy. Images may
    begin behind it, as far as they will in their file.

    Attributes:
        begin_at: offset in the memory of the first image, below BLOCK.
    """

    def __init__(
        self,
        options: PackOptions,
        samples: int = 1,
        image: np.ndarray | None = None,
        bits: np.ndarray | None = None,
    ):
        """
        Args:
            options: options of the pack.
            samples: the most samples at once.
            image, bits: memory for the images and for the bits, (n,) uint8; None: allocated.
        """
        if image is None:
            image = aligned(max(samples * most_image_bytes(options.layout) + BLOCK, HUGE_PAGE))
        if bits is None:
            bits = aligned(0)
        self.begin_at = 0
        self._image = image
        self._image_end = 0  # of those in use
        self._bits = bits
        self._row_shape = options.mask_size, options.mask_size // 8

    def begin(self) -> None:
        """Begin with other samples."""
        self._image_end = self.begin_at

    def image(self, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8 for the next image, with whatever an earlier sample left there."""
        first = self._image_end
        self._image_end += nbytes
        return self._image[first : self._image_end]

    def take_back(self, nbytes: int) -> None:
        """Take back the memory of the last image, which has so many bytes."""
        self._image_end -= nbytes

    def images(self) -> np.ndarray:
        """(n,) uint8: all images since the beginning, one after the other."""
        return self._image[self.begin_at : self._image_end]

    def bits(self, masks: int) -> np.ndarray:
        """(masks, Sm, Sm / 8) uint8, with whatever earlier samples left in it."""
        nbytes: int = masks * prod(self._row_shape)
        if self._bits.size < nbytes:
            self._bits = aligned(max(nbytes + min(nbytes, 8 << 20), HUGE_PAGE))
        return self._bits[:nbytes].reshape(masks, *self._row_shape)


def most_image_bytes(layout: Layout) -> int:
    """The bytes that an image of the layout takes at most."""
    nbytes: int = image_nbytes(layout, layout.image_size, layout.image_size)
    return nbytes


# A pair that cannot be used, and why.
Fault = tuple[PairBytes, Exception]


def make_samples(
    pairs: Sequence[PairBytes],
    options: PackOptions,
    buffers: Buffers,
    faults: list[Fault] | None = None,
) -> Packed | None:
    """Decode the samples of pairs, whose order they keep.

    Every mask of the records is checked, including those that the rule drops, so that the options
    do not determine which images are valid.

    Args:
        pairs: the pairs, at least one.
        options: options of the pack.
        buffers: memory for the large rows; images follow those that are in it.
        faults: takes the pairs whose images cannot be decoded; the samples are those of the others.
            None: that is raised.

    Returns:
        The samples' rows, of images that have masks if the options drop others; None if none has.

    Raises:
        SampleError: AnnotationError, MaskError or ImageError: a sample must be rejected. It is
            that of `pairs`, and its message that of the sample, if there is one.
        MissingPackage: PIL was built without what reads such an image.
    """
    masks = read_masks(pairs, options)
    if options.empty == "drop" and options.records != "none":
        with_masks = np.flatnonzero(np.diff(masks.masks_of)).tolist()
        if not with_masks:
            return None
        if len(with_masks) < len(pairs):
            pairs = [pairs[image] for image in with_masks]
            masks = read_masks(pairs, options)
    images = _decode_images(pairs, masks.record, options, buffers, faults)
    if len(images) < len(pairs):
        if not images:
            return None
        masks = read_masks([image.pair for image in images], options)
    layout = options.layout
    record = masks.record
    rows = _image_rows(images, record, buffers)
    rows |= _annotation_rows(record, masks.selected, masks.noncanonical)
    if layout.bits:
        rows["mask_bits"] = buffers.bits(len(masks.selected))
        _draw_bits(masks, options, rows["mask_bits"])
    if layout.runs:
        rows["run_offset"] = masks.run_offset
        rows["run_ends"] = masks.run_ends
    image_bytes = np.array([image.memory.size for image in images], np.int64)
    rows = finished_rows(layout, rows, image_bytes, np.diff(masks.masks_of))
    unknown_keys = Counter(chain.from_iterable(image.unknown_keys for image in record.images))
    empty_masks = empty_masks_of(
        record, masks.selected, masks.masks_of, masks.run_ends, masks.run_offset
    )
    return Packed(rows, sample_lengths(layout, rows), unknown_keys, masks.kept_rows, empty_masks)


@dataclass(frozen=True)
class Masks:
    """The masks of the records of k pairs.

    Attributes:
        record: the records.
        selected: int64 (m,), the masks of the records that are stored.
        masks_of: int64 (k + 1,), where among these those of each image are.
        run_ends, run_offset: the runs of the masks that are stored, see `runs_of_records`.
        noncanonical: bool (n,), of all masks of the records, see there.
        kept_rows: the values of the keys that the pack keeps.
    """

    record: Annotations
    selected: np.ndarray
    masks_of: np.ndarray
    run_ends: np.ndarray
    run_offset: np.ndarray
    noncanonical: np.ndarray
    kept_rows: KeptRows


def read_masks(pairs: Sequence[PairBytes], options: PackOptions) -> Masks:
    """The masks of pairs, whose images are not decoded. Raises as `make_samples` does."""
    record = _record_of(pairs, options)
    run_ends, run_offset, noncanonical = runs_of_records(record)
    complete_numbers(record, run_ends, run_offset)
    selected, masks_of = _selected_masks(record, options)
    kept_rows = kept_of_records(record, options.kept_keys, selected, masks_of)
    if len(selected) < len(record):
        run_ends, run_offset = take_masks(run_ends, run_offset, selected)
    return Masks(record, selected, masks_of, run_ends, run_offset, noncanonical, kept_rows)


def _record_of(pairs: Sequence[PairBytes], options: PackOptions) -> Annotations:
    """The records of pairs. Raises AnnotationError for one that is not that of its image."""
    pair_records = []
    for pair in pairs:
        image_size = partial(pixels.image_size, pair.jpeg)
        pair_records.append(PairRecord(pair.json, pair.file_name, image_size))
    paths = tuple((key.parent, key.last) for key in options.kept_keys)
    numbers = options.layout.mask_numbers
    record = parse_records(str(options.records), pair_records, numbers, paths)
    for pair, image in zip(pairs, record.images, strict=True):
        if image.file_name != pair.file_name:
            raise AnnotationError(
                f"image.file_name is {brief(image.file_name)}, but the record lies beside "
                f"{brief(pair.file_name)}; it belongs to another image, or a file was renamed",
                code="name-mismatch",
            )
    return record


def _selected_masks(record: Annotations, options: PackOptions) -> tuple[np.ndarray, np.ndarray]:
    """int64 (m,), the masks that are stored; and int64 (k + 1,), where those of each image are.

    Raises AnnotationError if the bits of those of an image are more than a sample may have.
    """
    masks_of = record.masks_of
    masks = np.arange(len(record))
    if not (options.keeps_all and options.max_masks is None):
        selected = []
        for image, first, last in zip(record.images, masks_of, masks_of[1:], strict=False):
            numbers = {name: values[first:last] for name, values in record.numbers.items()}
            pixel_count = image.height * image.width
            selected.append(first + select_masks(options, numbers, pixel_count, image.image_id))
        masks = np.concatenate(selected)
        masks_of = offsets_of_lengths(selected)
    counts = np.diff(masks_of)
    largest = int(counts.argmax())
    _check_bits(record.images[largest].image_id, int(counts[largest]), options)
    return masks, masks_of


def _check_bits(image_id: int, masks: int, options: PackOptions) -> None:
    """Raise AnnotationError if the bits of so many masks are more than a sample may have."""
    if not options.layout.bits:
        return
    side = options.mask_size
    nbytes = masks * side * side // 8
    if nbytes > MAX_BITS:
        raise AnnotationError(
            f"image {image_id} has {masks:,} masks, whose bits on a grid of {side} x {side} "
            f"take {size_text(nbytes)}, and the limit is {size_text(MAX_BITS)}; use a smaller "
            "--mask-size, a cap (--max-masks) or --masks runs",
            code="too-many-masks",
        )


class _ImageInBuffer(NamedTuple):
    """An image that is to be decoded, or was.

    Attributes:
        pair: its pair.
        sizes: height and width in its source, and as it is stored.
        memory: uint8 (n,), takes its bytes.
        decode: decodes it; raises as `pixels.decode_into` does.
    """

    pair: PairBytes
    sizes: tuple[int, int, int, int]
    memory: np.ndarray
    decode: Callable[[], None]


def _decode_images(
    pairs: Sequence[PairBytes],
    record: Annotations,
    options: PackOptions,
    buffers: Buffers,
    faults: list[Fault] | None,
) -> list[_ImageInBuffer]:
    """The images of pairs, but of those that end up in `faults`, one after the other in buffers."""
    layout = options.layout
    images = []
    buffers.begin()
    for pair, entry in zip(pairs, record.images, strict=True):
        source_size = entry.height, entry.width
        size = stored_size(entry.height, entry.width, layout.image_size, layout.fit)
        memory = buffers.image(image_nbytes(layout, *size))
        planes = _whole_planes(layout, memory, *size)
        try:
            decode = pixels.decoder_into(pair.jpeg, source_size, size, planes, options.resample)
        except Exception as error:
            if faults is None:
                raise
            faults.append((pair, error))
            buffers.take_back(memory.size)
            continue
        images.append(_ImageInBuffer(pair, source_size + size, memory, decode))
    decoded = []
    for image in images:
        try:
            image.decode()
        except Exception as error:
            if faults is None:
                raise
            faults.append((image.pair, error))
            continue
        decoded.append(image)
    if len(decoded) < len(images):  # the others leave no gap
        buffers.begin()
        for image in decoded:
            buffers.image(image.memory.size)[:] = image.memory
    return decoded


def _image_rows(
    images: Sequence[_ImageInBuffer], record: Annotations, buffers: Buffers
) -> dict[str, np.ndarray]:
    """The rows of images, of which these are the records."""
    names = [image.pair.file_name.encode().ljust(FILE_NAME_BYTES, b"\0") for image in images]
    return {
        "image": buffers.images(),
        "image_id": np.array([image.image_id for image in record.images], np.int64),
        "file_name": np.frombuffer(b"".join(names), np.uint8),
        "size": np.array([image.sizes for image in images], np.int32),
        "annotation_count": np.diff(record.masks_of).astype(np.int32),
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
    """The numbers of these masks of the records."""
    number_types = record.number_types
    number_types[noncanonical] |= np.uint16(1 << NONCANONICAL_BIT)
    rows = record.numbers | {"number_types": number_types}
    if len(masks) < len(record):
        rows = {name: values[masks] for name, values in rows.items()}
    return rows


def _draw_bits(masks: Masks, options: PackOptions, bits: np.ndarray) -> None:
    """Draw the masks that are stored."""
    layout = options.layout
    axes = []
    for image in masks.record.images:
        axes.append(
            fit_axes(image.height, image.width, options.mask_size, layout.fit, layout.image_size)
        )
    draw_images(masks.run_ends, masks.run_offset, masks.masks_of, axes, options.mask_sampling, bits)


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
    make_samples([PairBytes("sa_1.jpg", jpeg, half)], options, buffers)
    # An image that keeps its size needs fewer kernels than one that does not.
    buffers.begin()
    smaller = _whole_planes(options.layout, buffers.image(most_image_bytes(options.layout)), 8, 8)
    pixels.decode_into(jpeg, (16, 16), (8, 8), smaller, options.resample)


def attempt(pair: PairBytes, options: PackOptions, buffers: Buffers) -> Outcome:
    """Make a sample; what goes wrong with it becomes a Reject.

    An exception that no code of ours raises on purpose is filed as "unexpected" with its type: one
    image must not end a run of days. A lack of memory, a PIL that cannot read the format, and
    errors of the operating system (which, unlike PIL's own OSErrors, have a number) are not the
    sample's fault, and are raised.
    """
    try:
        return make_samples([pair], options, buffers)
    except Exception as error:
        return reject_of(pair, error, options)


def reject_of(pair: PairBytes, error: Exception, options: PackOptions) -> Reject:
    """The Reject of a pair with which something went wrong.

    Raises what is not the pair's fault, see `attempt`.
    """
    file_name = pair.file_name
    if isinstance(error, AnnotationError | MaskError):
        if options.records != SA1B:  # whose record has no name of its own
            return Reject(file_name, error.code, f"reader {options.records}: {error}")
        record = str(PurePath(file_name).with_suffix(".json"))
        return Reject(record, error.code, str(error))
    if isinstance(error, SampleError):
        return Reject(file_name, error.code, str(error))
    of_system = isinstance(error, OSError) and error.errno is not None
    if of_system or isinstance(error, MemoryError | MissingPackage):
        raise error
    return Reject(file_name, "unexpected", f"{type(error).__name__}: {error}")
