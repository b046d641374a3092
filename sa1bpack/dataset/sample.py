"""What a sample is: read-only views of one row of a pack, in the form that was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack import masks as kernels
from sa1bpack import pixels
from sa1bpack.arguments import choice
from sa1bpack.dataset.shards import MASK_ARRAYS, Pack
from sa1bpack.dataset.specs import (
    AS_STORED,
    MASKS,
    PIXELS,
    RGB_OF_YUV,
    ImageSpec,
    MaskSpec,
    image_spec,
    mask_spec,
)
from sa1bpack.errors import FormatError, MaskError, OptionError, ReadError
from sa1bpack.format import Layout, Manifest, Shard
from sa1bpack.format.array_reader import map_array
from sa1bpack.format.checked_rows import REPAIR
from sa1bpack.format.image_place import image_planes

COORDINATES = ("source", "stored")
ON_ERROR = ("raise", "return")
CHECKS = ("open", "read")

# Keys of a sample for MASK_ARRAYS, in their order.
MASK_KEYS = (
    "bboxes", "areas", "predicted_ious", "stability_scores", "point_coords", "crop_boxes",
    "annotation_ids", "masks",
)  # fmt: skip
_SCALED = ("bboxes", "point_coords", "crop_boxes")

Sample = dict[str, Any]


@dataclass(frozen=True)
class SampleOptions:
    """In which form a dataset gives its samples; see `sa1bpack.open`.

    Raises OptionError for a value that is none of the choices.
    """

    masks: str = "bits"
    coordinates: str = "source"
    transform: Callable[[Sample], Any] | None = None
    mask_transform: Callable[[np.ndarray], Any] | None = None
    on_error: str = "raise"
    check: str = "open"
    mask_size: int | None = None
    mask_sampling: str | None = None
    pixels: str = "rgb"

    def __post_init__(self):
        choice("masks", self.masks, MASKS)
        choice("pixels", self.pixels, PIXELS)
        choice("coordinates", self.coordinates, COORDINATES)
        choice("on_error", self.on_error, ON_ERROR)
        choice("check", self.check, CHECKS)
        for name in ("transform", "mask_transform"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise OptionError(f"{name} is {hook!r}: give a function or None")


@dataclass(frozen=True)
class SampleSpec:
    """The form of a pack's samples; see `forms`."""

    image: ImageSpec
    masks: MaskSpec

    @classmethod
    def of(cls, manifest: Manifest, options: SampleOptions) -> "SampleSpec":
        """The form that the options ask for. Raises OptionError if the pack does not have it."""
        masks = mask_spec(manifest, options.masks, options.mask_size, options.mask_sampling)
        if masks.source == "runs" and options.mask_transform is not None:
            raise OptionError(
                "mask_transform is for masks, but masks='runs' without a mask_size gives runs; use "
                "transform for those"
            )
        return cls(image_spec(manifest.layout, options.pixels), masks)


def read_sample(pack: Pack, row: int, options: SampleOptions, spec: SampleSpec) -> Any:
    """One sample of a pack: a dict as `Dataset` describes it, or what `transform` made of it.

    Raises ReadError with the sample's name if it cannot be read. An exception of a hook is passed
    on with a note that names the sample.
    """
    number, local, first, stop = pack.locate(row)
    try:
        if options.check == "read":
            sample = _checked_sample(pack, row, spec)
        else:
            image, size, file_name, *arrays = pack.shards.arrays(number)
            sample = {"size": size[local], "file_name": file_name[local]}
            for key, array in zip(MASK_KEYS, arrays, strict=False):  # perhaps without bits
                sample[key] = array[first:stop]
            if not pack.layout.flat:
                sample["image"] = image[local]
            else:
                sample["image"] = image[slice(*pack.shards[number].image_range(local))]
            if spec.masks.source != "bits":
                sample |= _runs(pack.shards[number], first, stop)
        sample["file_name"] = _file_name(sample["file_name"])
        _convert(sample, pack.layout, spec)
    except (FormatError, MaskError, OSError, UnicodeDecodeError) as error:
        raise read_error(pack, row, number, local, error) from error
    sample["image_id"] = int(pack.index.image_id[row])
    sample["index"] = row
    if options.coordinates == "stored":
        _scale(sample)
    if options.mask_transform is None and options.transform is None:
        return sample
    return _transformed(sample, options)


def _runs(shard: Shard, first: int, stop: int) -> Sample:
    """The runs of masks `first` to `stop` of a shard."""
    offset = shard["run_offset"][first : stop + 1]
    begin, end = int(offset[0]), int(offset[-1])
    # Compared, not subtracted: a difference of two int64 may wrap round.
    if begin < 0 or end > shard.extent.runs or (offset[1:] < offset[:-1]).any():
        raise FormatError(
            f"{shard.folder / 'run_offset'}: runs of masks {first} to {stop} do not rise within 0 "
            f"and {shard.extent.runs}; {REPAIR}"
        )
    return {"run_ends": shard["run_ends"][begin:end], "run_offset": offset - begin}


def _checked_sample(pack: Pack, row: int, spec: SampleSpec) -> Sample:
    """A sample's stored rows, copied and compared with its checksum; read-only."""
    rows = pack.read_rows(row)
    for array in rows.values():
        array.flags.writeable = False
    sample = {"image": rows["image"] if pack.layout.flat else rows["image"][0]}
    sample |= {"size": rows["size"][0], "file_name": rows["file_name"][0]}
    sample |= {
        key: rows[name] for key, name in zip(MASK_KEYS, MASK_ARRAYS, strict=True) if name in rows
    }
    if spec.masks.source != "bits":
        offset = rows["run_offset"]
        sample |= {"run_ends": rows["run_ends"], "run_offset": offset - offset[0]}
    return sample


def _convert(sample: Sample, layout: Layout, spec: SampleSpec) -> None:
    """Bring stored pixels and masks into the form that was asked for, in place."""
    if layout.flat or spec.image.how != AS_STORED:
        sample["image"] = _pixels(sample["image"], layout, sample["size"], spec.image)
    masks = spec.masks
    if masks.source == "drawn":
        runs = sample.pop("run_ends"), sample.pop("run_offset")
        sample["masks"] = masks.draw(*runs, sample["size"])
    elif masks.source == "runs":
        sample.pop("masks", None)
        height, width = sample["size"][:2].tolist()
        kernels.check_image_runs(sample["run_ends"], sample["run_offset"], height * width)
    if masks.as_bool and masks.source != "runs":
        bits = sample["masks"]
        sample["masks"] = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)


def _pixels(stored: np.ndarray, layout: Layout, size: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Views of native pixels, or new RGB of planes."""
    height, width = int(size[2]), int(size[3])
    if layout.pixels == "rgb":
        return stored.reshape(height, width, 3)
    if spec.how != RGB_OF_YUV:
        return stored
    found = image_planes(layout, height, width)
    rgb = pixels.yuv420_to_rgb(*(plane.view(stored.reshape(-1)) for plane in found))
    if layout.flat:
        return rgb
    canvas = np.zeros(spec.shape, np.uint8)
    canvas[:height, :width] = rgb
    return canvas


def _file_name(stored: np.ndarray) -> str:
    return stored.tobytes().rstrip(b"\0").decode()


def _scale(sample: Sample) -> None:
    """Source pixels to stored-image pixels: x by stored w / source w, y by stored h / source h.

    Both ends of an axis are mapped onto each other (pixel edges, not centres), so 0 stays 0 and a
    side's length becomes the stored side's.
    """
    height, width, stored_height, stored_width = sample["size"].tolist()
    xy = (stored_width / width, stored_height / height)
    for key in _SCALED:
        sample[key] = sample[key] * np.array(xy * (sample[key].shape[-1] // 2))


def _transformed(sample: Sample, options: SampleOptions) -> Any:
    name = f"{sample['file_name']} (image_id {sample['image_id']}, row {sample['index']})"
    hook = "mask_transform"
    try:
        if options.mask_transform is not None:
            sample["masks"] = options.mask_transform(sample["masks"])
        hook = "transform"
        return sample if options.transform is None else options.transform(sample)
    except Exception as error:
        error.add_note(f"raised by {hook} for sample {name}")
        raise


def read_error(pack: Pack, row: int, number: int, local: int, cause: Exception) -> ReadError:
    """The ReadError of a row of the pack, which is row `local` of shard `number`."""
    entry = pack.manifest.shards[number]
    image_id = int(pack.index.image_id[row])
    name = _name_if_readable(pack, number, local)
    called = f"image_id {image_id}" if name is None else f"{name}, image_id {image_id}"
    return ReadError(
        f"row {row} of {pack.root} ({called}, shard {entry.name}): {cause}",
        entry.name, row, image_id, name,
    )  # fmt: skip


def _name_if_readable(pack: Pack, number: int, local: int) -> str | None:
    """The file name straight from its own file, whatever else is wrong with the shard."""
    samples = pack.manifest.shards[number].samples
    try:
        names = map_array(pack.shards.folder(number), pack.layout.array("file_name"), samples)
        return _file_name(names[local])
    except (FormatError, OSError, UnicodeDecodeError):
        return None
