"""What a sample is: read-only views of one row of a pack, in the form that was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.data.shards import Pack
from sa1bpack.errors import FormatError, OptionError, ReadError
from sa1bpack.format.array_reader import map_array

MASKS = ("bits", "bool")
COORDINATES = ("source", "stored")
ON_ERROR = ("raise", "return")

# Keys of a sample for the arrays of `Shards.arrays`, in their order: `image`, `size` and
# `file_name` have a row a sample, the others a row a mask.
MASK_KEYS = (
    "masks", "bboxes", "areas", "predicted_ious", "stability_scores", "point_coords", "crop_boxes",
    "annotation_ids",
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

    def __post_init__(self):
        check_choice("masks", self.masks, MASKS)
        check_choice("coordinates", self.coordinates, COORDINATES)
        check_choice("on_error", self.on_error, ON_ERROR)
        for name in ("transform", "mask_transform"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise OptionError(f"{name} is {hook!r}: give a function or None")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise OptionError if an option has a value that is not one of its choices."""
    if value not in choices:
        raise OptionError(f"{name} is {value!r}: choose one of {', '.join(choices)}")


def read_sample(pack: Pack, row: int, options: SampleOptions) -> Any:
    """One sample of a pack: a dict as `Dataset` describes it, or what `transform` made of it.

    Raises ReadError with the sample's name if it cannot be read. An exception of a hook is passed
    on with a note that names the sample.
    """
    number, local, first, stop = pack.locate(row)
    try:
        image, size, file_name, *of_masks = pack.shards.arrays(number)
        sample = {"image": image[local], "size": size[local]}
        sample["file_name"] = _file_name(file_name[local])
    except (FormatError, OSError, UnicodeDecodeError) as error:
        raise read_error(pack, row, number, local, error) from error
    for key, array in zip(MASK_KEYS, of_masks, strict=True):
        sample[key] = array[first:stop]
    sample["image_id"] = int(pack.index.image_id[row])
    sample["index"] = row
    if options.masks == "bool":
        sample["masks"] = _as_bool(sample["masks"])
    if options.coordinates == "stored":
        _scale(sample)
    if options.mask_transform is None and options.transform is None:
        return sample
    return _transformed(sample, options)


def _as_bool(bits: np.ndarray) -> np.ndarray:
    return np.unpackbits(bits, axis=-1, bitorder="little").view(bool)


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
