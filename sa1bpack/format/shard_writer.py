"""Writing a shard: one process appends samples to it and publishes it.

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

from sa1bpack.errors import FormatError, PackError
from sa1bpack.format.append_file import AppendFile, complete_group
from sa1bpack.format.files import TEMPORARY_PREFIX, byte_view, flush_folder
from sa1bpack.format.image_bytes import canvas_spans
from sa1bpack.format.layout import FORMAT_VERSION, ArraySpec, Extent, Layout
from sa1bpack.format.manifest import ShardEntry, check_shard_name
from sa1bpack.format.sample_rows import sample_extent, stored_height
from sa1bpack.format.zarr_metadata import canonical_json, chunk_file, group_metadata


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
