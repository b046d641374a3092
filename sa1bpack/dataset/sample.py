"""A sample: views of one row of a pack, converted as the options ask."""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from sa1bpack import pixels
from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.feature_values import sample_values
from sa1bpack.dataset.fields import MASK_FIELDS, NUMBER_FIELDS, SAMPLE_FIELDS, SCALED_KEYS
from sa1bpack.dataset.kept_masks import MaskFilter
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.sample_spec import AS_STORED, RGB_OF_YUV, ImageSpec, SampleOptions, SampleSpec
from sa1bpack.dataset.shards import LOCATION, ComingSample, Location, OpenShard, ShardArrays
from sa1bpack.display import Sample
from sa1bpack.errors import FormatError, MaskError, ReadError, ResourceShortage
from sa1bpack.format.arrays import map_array
from sa1bpack.format.layout import Layout, image_planes
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.user_code import call_user

# Key of a sample, and the array that has it: a row of its own, and those of its masks.
_ROWS = [
    (field.sample, field.array)
    for field in SAMPLE_FIELDS
    if field.array not in ("", "image", "image_id")  # the id comes from the index of the pack
]
_MASK_ROWS = [(field.sample, field.array) for field in MASK_FIELDS]


def read_sample(
    pack: Pack,
    location: Location,
    shard: OpenShard | Exception,
    options: SampleOptions,
    spec: SampleSpec,
    masks_of: MaskFilter | None,
    chosen: ChosenFields | None = None,
    coming: ComingSample | None = None,
) -> Any:
    """One sample of a pack: a dict as `Dataset` describes it, or what `transform` returned for it.

    Args:
        pack: the pack.
        location: place of the sample.
        shard: its shard, or why that cannot be opened.
        options: options of the dataset.
        spec: the form that the options ask for.
        masks_of: which of the stored masks it has; None: all.
        chosen: what it has; None: everything.
        coming: what was asked for of it, of a shard at a URL.

    Raises:
        ReadError: it cannot be read; with the sample's name.
        ResourceShortage: the system refuses a map or a file.
        UserCodeError: an exception of the transform.
    """
    try:
        if isinstance(shard, Exception):
            raise shard
        arrays: ShardArrays = shard
        row = location.shard_row
        first_mask = location.first_mask
        stop_mask = location.stop_mask
        if options.verify_checksums or shard.is_fetched:
            arrays = shard.copy_sample(location, coming=coming, chosen=chosen)
            row = 0
            first_mask = 0
            stop_mask = arrays.lengths.masks
        sample: dict[str, Any] = {}
        selected = None
        if chosen is None or chosen.of_shards:
            stored = _views(arrays, pack.layout, row, first_mask, stop_mask, spec, chosen)
            sample = sample_of_rows(stored, spec)
            if masks_of is not None:
                selected = selected_masks(masks_of, location, sample)
                if len(selected) == stop_mask - first_mask:
                    selected = None
            convert(sample, pack.layout, selected, spec)
        for feature in arrays.features:
            rows = feature.rows(*feature.spec.row_range(row, first_mask, stop_mask))
            if selected is not None and feature.spec.axis == "mask":
                rows = rows.take(selected)
            sample |= sample_values(feature, rows)
    except ResourceShortage:
        raise
    except (FormatError, MaskError, OSError, UnicodeDecodeError) as error:
        raise read_error(pack, location, error) from error
    return delivered(sample, location.image_id, location.row, options, spec)


def selected_masks(
    masks_of: MaskFilter, location: Location, sample: Mapping[str, Any]
) -> np.ndarray:
    """int64 (k,): which of the stored masks of a sample a filter keeps."""

    def numbers() -> dict[str, Any]:
        height, width = sample["size"][:2].tolist()
        compared = {array: sample[key] for key, array in _MASK_ROWS if array in masks_of.compared}
        return compared | {"pixels": height * width}

    return np.flatnonzero(masks_of.flags(np.array([location], LOCATION), numbers))


def convert(
    sample: dict[str, Any], layout: Layout, selected: np.ndarray | None, spec: SampleSpec
) -> None:
    """Convert a sample's stored rows to the form that was asked for, in place.

    Args:
        sample: array name → stored rows.
        layout: layout of the pack.
        selected: int64 (k,), ascending: which of the stored masks the sample has; None: all.
        spec: the form that was asked for; image and masks may be left out.

    Raises:
        FormatError, MaskError, UnicodeDecodeError: the rows are none that a packer writes.
    """
    sample["file_name"] = sample["file_name"].tobytes().rstrip(b"\0").decode()
    if selected is not None:
        _keep(sample, selected, spec)
    if "image" in sample and (spec.image.flat or spec.image.how != AS_STORED):
        sample["image"] = _pixels(sample["image"], layout, sample["size"], spec.image)
    if spec.masks.source == "runs":
        sample.pop("masks", None)
        if "run_ends" not in sample:
            return
        height, width = sample["size"][:2].tolist()
        _kernels("arrays").check_image_runs(
            sample["run_ends"], sample["run_offset"], height * width
        )
        return
    if "run_ends" in sample:  # masks are drawn from them
        run_ends = sample.pop("run_ends")
        run_offset = sample.pop("run_offset")
        sample["masks"] = spec.masks.draw(run_ends, run_offset, sample["size"])
    if "masks" in sample and spec.masks.as_bool:
        bits = sample["masks"]
        sample["masks"] = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)


def delivered(
    sample: dict[str, Any], image_id: int, row: int, options: SampleOptions, spec: SampleSpec
) -> Any:
    """A converted sample with its id and row, scaled, or what the transform returned for it."""
    if options.coordinates == "stored" and "size" in sample:
        # Both ends of an axis are mapped onto each other (pixel edges, not centres), so 0 stays 0
        # and the length of a side becomes that of the stored side.
        height, width, stored_height, stored_width = sample["size"].tolist()
        xywh = np.array((stored_width / width, stored_height / height) * 2)
        with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
            for key in filter(sample.__contains__, SCALED_KEYS):
                sample[key] = sample[key] * xywh[: sample[key].shape[-1]]
    delivered_sample = Sample(sample, image_id=image_id, row=row)
    if spec.masks.fit == "scale_down" and "size" in sample:
        delivered_sample.covered = max(*sample["size"][:2].tolist(), spec.masks.image_size)
    if spec.features:
        delivered_sample.features = {f.name: f.to_text() for f in spec.features}
    if options.transform is None:
        return delivered_sample
    subject = f"sample {sample.get('file_name', '')} (image_id {image_id}, row {row})"
    return call_user(options.transform, delivered_sample, role="transform", subject=subject)


def _views(
    shard: ShardArrays,
    layout: Layout,
    row: int,
    first_mask: int,
    stop_mask: int,
    spec: SampleSpec,
    chosen: ChosenFields | None,
) -> dict[str, np.ndarray]:
    """The rows that a sample uses, by array name, as views: of the arrays of the pack's layout."""
    arrays = shard.arrays
    stored = layout.array_names
    rows = {name: arrays[name][row : row + 1] for _, name in _ROWS}
    rows |= {name: arrays[name][first_mask:stop_mask] for _, name in _MASK_ROWS if name in stored}
    if chosen is None or chosen.images:
        rows["image"] = arrays["image"][row : row + 1]
        if spec.image.flat:
            begin, end = arrays["image_offset"][row : row + 2].tolist()
            rows["image"] = arrays["image"][begin:end]
    if chosen is not None and not chosen.masks:
        rows.pop("mask_bits", None)
        return rows
    if spec.masks.source == "bits":
        return rows
    offset = arrays["run_offset"][first_mask : stop_mask + 1]
    begin = int(offset[0])
    end = int(offset[-1])
    # Compared, not subtracted: a difference of two int64 may wrap round.
    if begin < 0 or end > shard.lengths.runs or (offset[1:] < offset[:-1]).any():
        raise FormatError(
            f"{shard.folder / 'run_offset'}: runs of masks {first_mask} to {stop_mask} are not "
            f"non-decreasing from 0 to {shard.lengths.runs}; {REPAIR}"
        )
    rows["run_offset"] = offset
    rows["run_ends"] = arrays["run_ends"][begin:end]
    return rows


def sample_of_rows(rows: dict[str, np.ndarray], spec: SampleSpec) -> dict[str, Any]:
    """A sample of its rows by array name, with run_offset as offsets; they become read-only."""
    for array in rows.values():
        array.flags.writeable = False
    sample: dict[str, Any] = {key: rows[name][0] for key, name in _ROWS}
    sample |= {key: rows[name] for key, name in _MASK_ROWS if name in rows}
    if "image" in rows:
        sample["image"] = rows["image"] if spec.image.flat else rows["image"][0]
    if spec.masks.source != "bits" and "run_offset" in rows:
        offset = rows["run_offset"]
        sample["run_ends"] = rows["run_ends"]
        sample["run_offset"] = offset - offset[0]
    return sample


def _kernels(name: str) -> Any:
    """A module of `masks` with compiled functions, imported when one is needed: bits need none."""
    return import_module(f"sa1bpack.masks.{name}")


def _keep(sample: dict[str, Any], selected: np.ndarray, spec: SampleSpec) -> None:
    """Keep some of the masks, int64 (k,); arrays are copies, read-only like views."""
    # Stored bits are not used where masks come from runs.
    keys = [field.sample for field in NUMBER_FIELDS if field.sample in sample]
    if spec.masks.source == "bits" and "masks" in sample:
        keys.append("masks")
    arrays = {key: sample[key][selected] for key in keys}
    if "run_ends" in sample:
        arrays["run_ends"], arrays["run_offset"] = _kernels("rle").take_masks(
            sample["run_ends"], sample["run_offset"], selected
        )
    for array in arrays.values():
        array.flags.writeable = False
    sample |= arrays


def _pixels(stored: np.ndarray, layout: Layout, size: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Views of native pixels, or RGB in a new array that is converted from planes."""
    height, width = size[2:].tolist()
    if layout.pixels == "rgb":
        return stored.reshape(height, width, 3)
    if spec.how != RGB_OF_YUV:
        return stored
    planes = image_planes(layout, height, width)
    rgb = pixels.yuv420_to_rgb(*(plane.view(stored.reshape(-1)) for plane in planes))
    if layout.flat:
        return rgb
    canvas = np.zeros(spec.shape, np.uint8)
    canvas[:height, :width] = rgb
    return canvas


def read_error(pack: Pack, location: Location, cause: Exception) -> ReadError:
    """The error of a sample that cannot be read."""
    folder, folder_shard = pack.places[location.shard]
    entry = pack.manifest.shards[location.shard]
    file_name = None
    with suppress(FormatError, OSError, UnicodeDecodeError):  # whatever else is wrong there
        spec = pack.layout.array("file_name")
        names = map_array(pack.folder(location.shard), spec, entry.samples)
        file_name = names[location.shard_row].tobytes().rstrip(b"\0").decode()
    text = f"image_id {location.image_id}, shard {entry.name}"
    if file_name is not None:
        text = f"{file_name}, {text}"
    folder_row = folder.first_row[folder_shard] + location.shard_row
    return ReadError(
        f"row {folder_row} of {folder.name} ({text}): {cause}",
        entry.name,
        location.row,
        location.image_id,
        file_name,
    )
