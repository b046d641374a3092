"""Completing the files of a group, of a shard or a part of a side array, before it is published."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.format.append_file import AppendFile
from sa1bpack.format.checksums import CHECKSUMS_NAME, format_checksums
from sa1bpack.format.files import flush_folder, write_durably
from sa1bpack.format.layout import ArraySpec, Extent
from sa1bpack.format.zarr_metadata import (
    METADATA_NAME,
    ChunkFile,
    array_metadata,
    canonical_json,
    chunk_file,
)


def complete_group(
    folder: Path, group: bytes, files: Mapping[ArraySpec, AppendFile], extent: Extent
) -> None:
    """Finish all files, write metadata and checksums, and flush everything.

    group   the group's own metadata
    files   to which the rows of each array were appended; that of an array without rows is removed
    extent  how many rows that are
    """
    digests = {METADATA_NAME: xxhash.xxh3_128_hexdigest(group)}
    for spec, file in files.items():
        count = spec.rows(extent)
        if count == 0:
            file.path.unlink()
        else:
            digests[spec.chunk_path] = _finish(file, chunk_file(spec, count))
        metadata = canonical_json(array_metadata(spec, count))
        digests[f"{spec.name}/{METADATA_NAME}"] = xxhash.xxh3_128_hexdigest(metadata)
        write_durably(folder / spec.name / METADATA_NAME, metadata)
        flush_folder(folder / spec.name)
    write_durably(folder / METADATA_NAME, group)
    write_durably(folder / CHECKSUMS_NAME, format_checksums(digests))
    flush_folder(folder)


def _finish(file: AppendFile, sizes: ChunkFile) -> str:
    """Complete a chunk file with its zero rows and its shard index; returns its digest."""
    zeros = sizes.padded_bytes - sizes.data_bytes
    file.skip(zeros)
    file.append(np.frombuffer(sizes.tail(), np.uint8)[zeros:])
    return file.finish()
