"""Writing a shard: a process checks the rows of samples, appends them and publishes the shard.

The working folder has a temporary name beside the final one. It is renamed after every byte in it
was flushed, so whatever has a final name is complete.
"""

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.errors import FormatError, OptionError, PackError
from sa1bpack.format.append_file import AppendFile, complete_group
from sa1bpack.format.arrays import canonical_json, chunk_file, group_metadata
from sa1bpack.format.files import TEMPORARY_PREFIX, byte_view, flush_folder
from sa1bpack.format.layout import (
    FORMAT_VERSION,
    ArraySpec,
    Extent,
    Layout,
    canvas_spans,
    image_nbytes,
    rows_checksum,
)
from sa1bpack.format.manifest import ShardEntry, check_shard_name

# The rows of one sample by array name: per-sample arrays as the bare row or with a leading axis of
# 1, per-mask arrays (m, ...), run_ends (r,), run_offset (m + 1,) starting at 0, and a flat image as
# its bytes (n,). image_offset, mask_offset and checksum follow from the others and are absent. Rows
# of a canvas below the stored height are not read.
Sample = Mapping[str, np.ndarray]


def finished_rows(layout: Layout, sample: Sample) -> dict[str, np.ndarray]:
    """Everything that a shard stores of one sample, with the exact dtype and shape of each array.

    Returns C-contiguous (n, *row_shape) arrays, as views where the input is contiguous, and the
    `checksum`, (1,) uint64 (docs/format.md, "Checksum of a sample"). Offset arrays become lengths,
    so nothing depends on the position of the sample: mask_offset (1,) int64, the number of masks;
    image_offset (1,) int64, the number of bytes of the image; run_offset (m,) int64, the number of
    runs of each mask.

    Raises OptionError for another dtype or shape, or inconsistent offsets.
    """
    extent = sample_extent(layout, sample)
    rows = {}
    for spec in layout.arrays:
        if spec.name == "checksum":
            continue
        if spec.offsets and spec.axis == "sample":
            rows[spec.name] = np.array([extent.along(spec.child_axis)], np.int64)
            continue
        value, shape = sample[spec.name], (spec.rows(extent), *spec.row_shape)
        if spec.axis == "sample" and value.shape == spec.row_shape:  # the bare row
            value = value[None]
        if value.dtype != spec.dtype or value.shape != shape:
            raise OptionError(
                f"{spec.name} of a sample is {value.dtype} {value.shape}: the layout requires "
                f"{spec.dtype} {shape}"
            )
        rows[spec.name] = np.ascontiguousarray(value)
        if spec.offsets:
            rows[spec.name], last = np.diff(value), extent.along(spec.child_axis)
            if value[0] != 0 or value[-1] != last or (rows[spec.name] < 0).any():
                raise OptionError(
                    f"{spec.name} of a sample runs from {value[0]} to {value[-1]}: it must be "
                    f"non-decreasing from 0 to {last}, the rows of axis {spec.child_axis!r}"
                )
    side, (height, width) = layout.image_size, rows["size"][0, 2:].tolist()
    if not (1 <= height <= side and 1 <= width <= side):
        raise OptionError(
            f"stored size {height} x {width} (height x width) is not within 1 and the layout's "
            f"{side}"
        )
    if (found := rows["image"].size) != (expected := image_nbytes(layout, height, width)):
        raise OptionError(
            f"image of a sample has {found} bytes: {height} x {width} {layout.pixels} pixels take "
            f"{expected}"
        )
    rows["checksum"] = np.array([rows_checksum(layout, rows, height)], np.uint64)
    return rows


def stored_height(rows: Mapping[str, np.ndarray]) -> int:
    """Number of stored rows of pixels; a canvas is zero from there on."""
    return int(rows["size"][0, 2])


def sample_extent(layout: Layout, sample: Sample) -> Extent:
    """The extent of one sample, or of its checked rows, along each axis of a shard."""
    return Extent(
        samples=1,
        masks=len(sample["annotation_id"]),
        runs=len(sample["run_ends"]) if layout.runs else 0,
        image_bytes=sample["image"].size if layout.flat else 0,
    )


class ShardWriter:
    """An unpublished shard: samples are appended to it, then it is published or discarded.

    A context manager that discards the shard unless it was published. For one thread at a time.
    """

    def __init__(self, shards_dir: Path, name: str, layout: Layout):
        """Create the working folder of the shard `name`, with empty chunk files.

        Raises PackError if a shard of that name exists, FormatError for a name that a shard cannot
        have, OSError if the folder cannot be created.
        """
        check_shard_name(name, "new shard")
        self.name = name
        self.layout = layout
        self.extent = Extent()
        self._annotations = 0
        self._torn = False  # an append has not been completed
        self._final = Path(shards_dir) / name
        if self._final.exists():
            raise PackError(f"{self._final}: the shard exists already; remove it to pack it again")
        self.folder = self._final.with_name(f"{TEMPORARY_PREFIX}{name}-{secrets.token_hex(4)}")
        self._files: dict[ArraySpec, AppendFile] = {}
        try:
            self.folder.mkdir(parents=True)
            for spec in layout.arrays:
                (self.folder / spec.name).mkdir()
                self._files[spec] = file = AppendFile(self.folder / spec.chunk_path)
                if spec.offsets:
                    file.append(byte_view(np.zeros(1, spec.dtype)))
        except BaseException:
            self.discard()
            raise

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Write the `finished_rows` of the next sample; the arrays may change afterwards.

        Only the rows of a canvas that hold the image are read; the rest is zero, and a hole on
        disk. Raises OSError naming the file if the disk fails; the shard can then not be published.
        """
        self._torn = True
        for spec, file in self._files.items():
            if spec.offsets:
                ends = self.extent.along(spec.child_axis) + np.cumsum(rows[spec.name])
                file.append(byte_view(ends))
            elif spec.name == "image" and not self.layout.flat:
                self._append_canvas(file, byte_view(rows["image"]), stored_height(rows))
            else:
                file.append(byte_view(rows[spec.name]))
        self.extent = self.extent + sample_extent(self.layout, rows)
        self._annotations += int(rows["annotation_count"][0])
        self._torn = False

    def _append_canvas(self, file: AppendFile, image: np.ndarray, height: int) -> None:
        done = 0
        for start, stop in canvas_spans(self.layout, height):
            file.skip(start - done)
            file.append(image[start:stop])
            done = stop
        file.skip(image.size - done)

    def publish(self, attributes: dict[str, Any]) -> ShardEntry:
        """Complete the shard, flush it and give it its final name; returns its manifest entry.

        attributes  JSON data for the attributes of the group; "source" (str) and "part" (int) are
                    required, and those of the format are added

        Raises FormatError if an earlier `append` was not completed, OSError if writing fails. After
        an error the shard does not exist, unless only the last flush, after the rename, failed.
        """
        if self._torn:
            raise FormatError(f"{self.folder}: a sample was written in part; pack this part again")
        arrays = self.layout.array_rows(self.extent)
        counts = {**asdict(self.extent), "annotations": self._annotations}
        own = {"format": list(FORMAT_VERSION), "layout": self.layout.to_json(), **counts}
        group = canonical_json(group_metadata({**attributes, **own}, arrays))
        complete_group(self.folder, group, self._files, self.extent)
        self.folder.rename(self._final)
        self.folder = self._final
        self._close()
        flush_folder(self._final.parent)
        return ShardEntry(
            name=self.name,
            source=attributes["source"],
            part=attributes["part"],
            bytes=shard_bytes(self.layout, self.extent),
            **counts,
        )

    def discard(self) -> None:
        """Remove the working folder; does nothing after publication.

        What a failing disk keeps from being removed, the next run removes.
        """
        self._close()
        if self.folder != self._final:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_) -> None:
        self.discard()


def shard_bytes(layout: Layout, extent: Extent) -> int:
    """Total bytes of the chunk files of a shard, including holes."""
    arrays = layout.array_rows(extent)
    return sum(chunk_file(spec, rows).file_bytes for spec, rows in arrays.items())
