"""The look-up of samples in the arrays of their shards: sizes, bytes of images, kept masks.

Values that are taken from a shard are copied out of its memory map once, compared with the
bounds of the arrays that they point into, and used from the copy: whatever a damaged array holds,
no address outside an array results.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import Field, number_fields
from sa1bpack.dataset.shards import SHARD, SIDE, ShardArrays
from sa1bpack.disk.page_cache import read_ahead_map
from sa1bpack.errors import FormatError
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.shard_reader import REPAIR
from sa1bpack.format.side.spec import SIDE_AXES
from sa1bpack.kernels import memcpy, njit
from sa1bpack.loading.batch.feature_arrays import BatchFeature
from sa1bpack.loading.batch.mask_choice import MaskChoice
from sa1bpack.loading.batch.put import address_of
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.batch.tables import MASK, SPAN, SampleTables


class Stored(NamedTuple):
    """The properties of the samples of a pack, as they are stored, and what is read of them.

    Attributes:
        with_sizes: sizes are read.
        with_images: images are read: their places are found.
        image_bytes: bytes of a stored canvas; 0 if images have none.
        channels: channels of images without a canvas: 3, or 0 for planes.
        side: the largest side of a stored image in pixels.
        with_runs: masks come from runs, whose offsets are checked.
        scaled: coordinates are scaled from the source to the stored image.
    """

    with_sizes: bool
    with_images: bool
    image_bytes: int
    channels: int
    side: int
    with_runs: bool
    scaled: bool


@njit
def _image_bytes(height: int, width: int, channels: int) -> int:
    """Bytes of an image without a canvas: RGB, or planes if `channels` is 0."""
    if channels:
        return height * width * channels
    return height * width + 2 * ((height + 1) // 2) * ((width + 1) // 2)


@njit
def _rising(edges: np.ndarray, most: int) -> bool:
    """True if offsets are non-decreasing, and from 0 to `most`."""
    before = 0
    for n in range(len(edges)):
        if edges[n] < before:
            return False
        before = edges[n]
    return before <= most


@njit
def look_up(
    shards: np.ndarray,
    shard_at: np.ndarray,
    samples: np.ndarray,
    stored: Stored,
    fits: np.ndarray,
) -> None:
    """Find and check the images of samples, and the runs of their masks.

    Args:
        shards: SHARD (s,), distinct shards.
        shard_at: int64 (n,), which of them each sample is in.
        samples: SAMPLE (n,); rows in the arrays exist. Out: size, scale, and bytes of the image.
        stored: properties of the stored samples.
        fits: bool (n,), out: everything is within its array.
    """
    image_edge = np.empty(2, np.int64)
    size = np.empty(4, np.int32)
    for k in range(len(samples)):  # all of them are announced before the first is waited for
        shard = shards[shard_at[k]]
        row = samples[k].array_row
        first = samples[k].first_mask
        stop = samples[k].stop_mask
        if stored.with_sizes:
            read_ahead_map(shard.size + 16 * row, 16)
        if stored.with_images and not stored.image_bytes:
            read_ahead_map(shard.image_offset + 8 * row, 16)
        if stored.with_runs and 0 <= first <= stop <= shard.masks:
            read_ahead_map(shard.run_offset + 8 * first, 8 * (stop + 1 - first))
    for k in range(len(samples)):
        shard = shards[shard_at[k]]
        sample = samples[k]
        row = sample.array_row
        first = sample.first_mask
        stop = sample.stop_mask
        sample.scale[0] = 1
        sample.scale[1] = 1
        fits[k] = False
        if not 0 <= first <= stop <= shard.masks:
            continue
        height = 0
        width = 0
        if stored.with_sizes:
            memcpy(size.ctypes.data, shard.size + 16 * row, 16)
            for n in range(4):
                sample.size[n] = size[n]
            height = int(size[2])
            width = int(size[3])
            if size.min() < 1 or max(height, width) > stored.side:
                continue
            if stored.scaled:
                sample.scale[0] = size[3] / size[1]
                sample.scale[1] = size[2] / size[0]
        if not stored.with_images:
            sample.image_begin = 0
            sample.image_bytes = 0
        elif stored.image_bytes:
            sample.image_begin = row * stored.image_bytes
            sample.image_bytes = stored.image_bytes
        else:
            memcpy(image_edge.ctypes.data, shard.image_offset + 8 * row, 16)
            begin = image_edge[0]
            end = image_edge[1]
            nbytes = _image_bytes(height, width, stored.channels)
            # Compared, not subtracted: a difference of two int64 may wrap around.
            if not 0 <= begin <= end <= shard.image_bytes or end - begin != nbytes:
                continue
            sample.image_begin = begin
            sample.image_bytes = nbytes
        fits[k] = True
        if stored.with_runs:
            run_edges = np.empty(stop + 1 - first, np.int64)
            memcpy(run_edges.ctypes.data, shard.run_offset + 8 * first, 8 * len(run_edges))
            fits[k] = _rising(run_edges, shard.runs)


@njit
def gather_scores(addresses: np.ndarray, samples: np.ndarray, out: np.ndarray) -> None:
    """Copy the rows of samples' masks, of 8 bytes, in some arrays, one sample after the other.

    Waits for the disk without the GIL.

    Args:
        addresses: int64 (n, a), of the arrays of each sample.
        samples: SAMPLE (n,).
        out: int64 (a, T), out: the bytes of all rows.
    """
    arrays = addresses.shape[1]
    for k in range(len(samples)):  # all of them are announced before the first is waited for
        first = samples[k].first_mask
        for a in range(arrays):
            read_ahead_map(addresses[k, a] + 8 * first, 8 * (samples[k].stop_mask - first))
    for a in range(arrays):
        target = address_of(out[a])
        for k in range(len(samples)):
            first = samples[k].first_mask
            nbytes = 8 * (samples[k].stop_mask - first)
            memcpy(target, addresses[k, a] + 8 * first, nbytes)
            target += nbytes


@njit
def _find_items(span: Any, offsets: int, row: int, items: int, edges: np.ndarray) -> None:
    """Find the items of a ragged row; -1 if its offsets are out of order.

    Args:
        span: MASK or SPAN. Out: begin and end.
        offsets: address of the int64 offsets of the rows.
        row: the row.
        items: number of items there are.
        edges: int64 (2,), scratch.
    """
    memcpy(edges.ctypes.data, offsets + 8 * row, 16)
    span.begin = -1
    span.end = -1
    if 0 <= edges[0] <= edges[1] <= items:
        span.begin = edges[0]
        span.end = edges[1]


@njit
def find_runs(
    shards: np.ndarray, shard_at: np.ndarray, samples: np.ndarray, masks: np.ndarray
) -> None:
    """Find the runs of the kept masks of samples: rows of run_ends; -1 if they are out of order.

    Args:
        shards: SHARD (s,), distinct shards.
        shard_at: int64 (n,), which of them each sample is in.
        samples: SAMPLE (n,).
        masks: MASK (T,); rows are in the shards. Out: begin and end.
    """
    edges = np.empty(2, np.int64)
    for k in range(len(samples)):
        shard = shards[shard_at[k]]
        for n in range(samples[k].kept_begin, samples[k].kept_end):
            mask = masks[n]
            _find_items(mask, shard.run_offset, mask.row, shard.runs, edges)


@njit
def find_spans(
    sides: np.ndarray, owner: np.ndarray, rows: np.ndarray, numbers: np.ndarray, spans: np.ndarray
) -> None:
    """Find the items of ragged rows; -1 if the offsets of a row are out of order.

    Args:
        sides: SIDE (s, f), the features of distinct shards.
        owner: int64 (q,), which of the shards each row is in.
        rows: int64 (q,), rows in the features of that shard, which exist.
        numbers: int64 (a,), which of the features.
        spans: SPAN (q, a). Out: begin and end.
    """
    edges = np.empty(2, np.int64)
    for i in range(len(rows)):
        for a in range(len(numbers)):
            side = sides[owner[i], numbers[a]]
            _find_items(spans[i, a], side.offset, rows[i], side.items, edges)


@njit
def find_present(
    sides: np.ndarray, owner: np.ndarray, rows: np.ndarray, numbers: np.ndarray, present: np.ndarray
) -> None:
    """Find which rows are there.

    Args:
        sides, owner, rows, numbers: as for `find_spans`.
        present: uint8 (q, c), out.
    """
    flag = np.empty(1, np.uint8)
    for i in range(len(rows)):
        for c in range(len(numbers)):
            side = sides[owner[i], numbers[c]]
            memcpy(flag.ctypes.data, side.present + rows[i], 1)
            present[i, c] = flag[0]


class FeatureLookUp:
    """Finds rows of features that are ragged, or may be missing."""

    def __init__(self, features: Sequence[BatchFeature]):
        self._count = len(features)
        self._ragged = {axis: _numbers(features, axis, "spans_at") for axis in SIDE_AXES}
        self._missing = {axis: _numbers(features, axis, "present_at") for axis in SIDE_AXES}
        self._finds = any(feature.spec.ragged or feature.spec.missing for feature in features)

    def find(
        self,
        shards: Sequence[ShardArrays],
        shard_at: np.ndarray,
        samples: np.ndarray,
        masks: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The spans of samples and masks, and the flags of both, as in SampleTables.

        Args:
            shards: distinct shards.
            shard_at: int64 (n,), which of them each sample is in.
            samples: SAMPLE (n,), with their kept masks.
            masks: MASK (T,).
        """
        if not self._finds:
            of_samples = (len(samples), 0)
            of_masks = (len(masks), 0)
            return (
                np.zeros(of_samples, SPAN),
                np.zeros(of_masks, SPAN),
                np.zeros(of_samples, np.uint8),
                np.zeros(of_masks, np.uint8),
            )
        sides = np.zeros((len(shards), self._count), SIDE)
        for of_shard, shard in zip(sides, shards, strict=True):
            of_shard[:] = shard.sides
        sample_rows = np.ascontiguousarray(samples["array_row"])
        sample_spans, sample_present = self._of_axis("sample", sides, shard_at, sample_rows)
        mask_owner = np.repeat(shard_at, samples["kept_end"] - samples["kept_begin"])
        if len(self._ragged["mask"]):
            _announce_offsets(sides, shard_at, samples, self._ragged["mask"])
        mask_rows = np.ascontiguousarray(masks["row"])
        mask_spans, mask_present = self._of_axis("mask", sides, mask_owner, mask_rows)
        return sample_spans, mask_spans, sample_present, mask_present

    def _of_axis(
        self, axis: str, sides: np.ndarray, owner: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The spans and the flags of the rows of samples or of masks."""
        ragged = self._ragged[axis]
        missing = self._missing[axis]
        spans = np.zeros((len(rows), len(ragged)), SPAN)
        present = np.zeros((len(rows), len(missing)), np.uint8)
        if len(ragged):
            find_spans(sides, owner, rows, ragged, spans)
        if len(missing):
            find_present(sides, owner, rows, missing, present)
        return spans, present


def _numbers(features: Sequence[BatchFeature], axis: str, attribute: str) -> np.ndarray:
    """int64 (a,): the numbers of the features of an axis that have such an attribute."""
    numbers = []
    for feature in features:
        if feature.spec.axis == axis and getattr(feature, attribute) >= 0:
            numbers.append(feature.number)
    return np.array(numbers, np.int64)


@njit
def _announce_offsets(
    sides: np.ndarray, shard_at: np.ndarray, samples: np.ndarray, numbers: np.ndarray
) -> None:
    """Let the system begin to read the offsets of the rows of masks.

    Those of samples were read when the shard was opened, and are few.
    """
    for k in range(len(samples)):
        for a in range(len(numbers)):
            first = samples[k].first_mask
            count = samples[k].stop_mask - first
            offsets = sides[shard_at[k], numbers[a]].offset
            read_ahead_map(offsets + 8 * first, 8 * (count + 1))


class LookUp:
    """Finds samples of a dataset in the arrays of their shards, for any thread."""

    def __init__(self, ds: Dataset, spec: BatchSpec):
        layout = ds.layout
        self._layout = layout
        self._filter = ds.mask_filter
        self._of_masks = spec.chosen.of_masks
        self._numbers = [field.array for field in spec.numbers]
        self._fields = number_fields(layout)
        self._features = FeatureLookUp(spec.batch_features)
        self._stored = Stored(
            with_sizes=spec.chosen.of_shards,
            with_images=spec.chosen.images,
            image_bytes=0 if layout.flat else layout.array("image").row_bytes,
            channels=3 if layout.pixels == "rgb" else 0,
            side=layout.image_size,
            with_runs=spec.reads_runs,
            scaled=ds.options.coordinates == "stored" and spec.chosen.of_shards,
        )
        # Of a stored canvas of RGB that is cut to that of a class.
        self._row_bytes = 0
        if not layout.flat and layout.pixels == "rgb":
            self._row_bytes = 3 * layout.image_size

    def find(
        self,
        samples: np.ndarray,
        shards: Sequence[ShardArrays],
        shard_at: np.ndarray,
        epoch: int,
        choice: MaskChoice,
        canvases: np.ndarray | None,
    ) -> tuple[np.ndarray, SampleTables]:
        """Find samples.

        Args:
            samples: SAMPLE (n,), with the rows of samples and masks in their arrays, and no masks
                kept; the rest of them is filled in.
            shards: distinct shards.
            shard_at: int64 (n,), which of them each sample is in.
            epoch: epoch of the batches.
            choice: which masks are kept.
            canvases: int32 (n, 2), height and width of the canvas of each sample's class; None:
                they have no classes of aspect.

        Returns:
            bool (n,), which of the samples fit their arrays; and the tables of these.
        """
        records = np.array([shard.record for shard in shards], SHARD)
        fits = np.empty(len(samples), np.bool_)
        look_up(records, shard_at, samples, self._stored, fits)
        if canvases is not None:
            self._cut_to_canvases(samples, canvases, fits)
        if not fits.all():
            samples = samples[fits]
            shard_at = shard_at[fits]
        masks = np.empty(0, MASK)
        if self._of_masks:
            masks = self._kept(samples, shards, shard_at, epoch, choice)
        if self._stored.with_runs:
            find_runs(records, shard_at, samples, masks)
        numbers = _addresses(shards, self._numbers, shard_at)
        found = self._features.find(shards, shard_at, samples, masks)
        return fits, SampleTables(samples, masks, numbers, *found)

    def _kept(
        self,
        samples: np.ndarray,
        shards: Sequence[ShardArrays],
        shard_at: np.ndarray,
        epoch: int,
        choice: MaskChoice,
    ) -> np.ndarray:
        """MASK (T,): the masks of samples that are kept, whose places are entered in these."""
        mask_rows, counts = self._passing(samples, shards, shard_at)
        if not choice.keeps_all(counts):
            in_shards = [shards[k] for k in shard_at.tolist()]
            mask_rows, counts = _chosen(
                samples, in_shards, mask_rows, counts, epoch, choice, self._fields
            )
        offsets = offsets_of(counts)
        samples["kept_begin"] = offsets[:-1]
        samples["kept_end"] = offsets[1:]
        masks = np.empty(len(mask_rows), MASK)
        masks["row"] = mask_rows
        masks["begin"] = mask_rows
        masks["end"] = mask_rows + 1
        return masks

    def _cut_to_canvases(self, samples: np.ndarray, canvases: np.ndarray, fits: np.ndarray) -> None:
        """Leave out samples that are larger than the canvas of their class: sizes have changed.

        Of a stored canvas that is cut to a smaller one, only the rows that hold the image are read.
        """
        stored = samples["size"][:, 2:]
        fits &= (stored <= canvases).all(1)
        if self._row_bytes:
            cut = fits & (canvases < self._stored.side).any(1)
            samples["image_bytes"][cut] = stored[cut, 0].astype(np.int64) * self._row_bytes

    def _passing(
        self, samples: np.ndarray, shards: Sequence[ShardArrays], shard_at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The masks that the samples have: int64 (C,) rows in the arrays, int64 (n,) counts."""
        first = samples["first_mask"]
        counts = samples["stop_mask"] - first
        mask_rows = expanded(first, offsets_of(counts))
        if self._filter is None:
            return mask_rows, counts
        owner = np.repeat(np.arange(len(samples)), counts)
        names = self._filter.compared

        def compared() -> dict[str, np.ndarray]:
            scores = np.empty((len(names), len(mask_rows)), np.int64)
            gather_scores(_addresses(shards, names, shard_at), samples, scores)
            size = samples["size"].astype(np.int64)
            numbers = {"pixels": (size[:, 0] * size[:, 1])[owner]}
            for name, values in zip(names, scores, strict=True):
                numbers[name] = values.view(self._layout.array(name).dtype)
            return numbers

        in_shards = samples[["shard", "first_mask", "stop_mask"]].copy()
        # 0, but for copies of samples.
        first_masks = np.array([shard.first_mask for shard in shards], np.int64)[shard_at]
        in_shards["first_mask"] += first_masks
        in_shards["stop_mask"] += first_masks
        passing = self._filter.flags(in_shards, compared)
        return mask_rows[passing], np.bincount(owner[passing], minlength=len(samples))

    def misfit(self, sample: np.void, shard: ShardArrays) -> FormatError:
        """The error of a sample that does not fit its arrays.

        Most of it was checked when the shard was opened, and has changed in place since.
        """
        return FormatError(
            f"{shard.folder}: size {sample['size'].tolist()} of sample {sample['shard_row']}, its "
            f"masks {sample['first_mask']} to {sample['stop_mask']}, or the offsets of its image "
            f"or runs do not fit {shard.lengths} with images of up to {self._stored.side} pixels "
            "per side, or its class of aspect, if it has one, which was found by another size; "
            f"{REPAIR}"
        )


def _addresses(
    shards: Sequence[ShardArrays], names: Sequence[str], shard_at: np.ndarray
) -> np.ndarray:
    """int64 (n, a): the addresses of arrays of the shards that samples are in, 0 for none.

    Args:
        shards: distinct shards.
        names: names of the arrays.
        shard_at: int64 (n,), which of them each sample is in.
    """
    if not names:
        return np.empty((len(shard_at), 0), np.int64)
    of_shards: list[int] = []
    for shard in shards:
        of_shards += [shard.addresses.get(name, 0) for name in names]
    addresses = np.array(of_shards, np.int64).reshape(len(shards), len(names))
    of_samples: np.ndarray = addresses[shard_at]
    return of_samples


def _chosen(
    samples: np.ndarray,
    shards: Sequence[ShardArrays],
    mask_rows: np.ndarray,
    counts: np.ndarray,
    epoch: int,
    choice: MaskChoice,
    numbers: Sequence[Field],
) -> tuple[np.ndarray, np.ndarray]:
    """The masks that a choice keeps, by numbers that all have, as `LookUp._passing` has them."""
    edges = offsets_of(counts).tolist()
    image_ids = samples["image_id"].tolist()
    repetitions = samples["repetition"].tolist()
    scales = samples["scale"]
    rows_kept = []
    for k, shard in enumerate(shards):
        rows = choice.of_arrays(
            image_ids[k],
            shard.arrays,
            mask_rows[edges[k] : edges[k + 1]],
            scales[k],
            repetitions[k],
            epoch=epoch,
            numbers=numbers,
        )
        rows_kept.append(rows)
    return np.concatenate(rows_kept), np.array([len(rows) for rows in rows_kept], np.int64)
