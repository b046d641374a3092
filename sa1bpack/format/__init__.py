"""The on-disk format of a pack: writing, publishing, reading and checking it.

docs/format.md is the specification. A pack is a Zarr v3 group whose chunk files can be
memory-mapped as they are.

    layout          the arrays of a shard: types, shapes, order
    image_bytes     where the pixels of an image lie in its bytes
    zarr_metadata   chunk-file arithmetic and the metadata that describes it
    append_file     a file that is written once, past the page cache, and hashed meanwhile
    shard_writer    samples into a working folder, published by one rename
    manifest        what a pack holds
    index           where each sample of a pack is
    shard_digests   what identifies the content of each shard
    completeness    how much of a pack is published
    duplicates      sources and image ids that a pack holds more than once
    publish         index, manifest and checksums of a pack, in a crash-safe order
    shard_reader    memory maps of a shard, checked before the first view
    checked_rows    copies of a sample or an array, compared with checksums
    index_check     the index against its digests, or against the shards
    verify          every byte of a pack, and every rule of the format
"""

from sa1bpack.format.completeness import Completeness, completeness_of
from sa1bpack.format.index import Index, open_index
from sa1bpack.format.layout import ArraySpec, Extent, Layout
from sa1bpack.format.manifest import (
    Manifest,
    ShardEntry,
    make_manifest,
    read_manifest,
    write_manifest,
)
from sa1bpack.format.publish import publish, remove_stale, scan_shards
from sa1bpack.format.sample_rows import Sample, finished_rows, sample_checksum, sample_extent
from sa1bpack.format.shard_reader import Shard, open_shard
from sa1bpack.format.shard_writer import ShardWriter
from sa1bpack.format.verify import Problem, Report, verify

__all__ = [
    "ArraySpec",
    "Completeness",
    "Extent",
    "Index",
    "Layout",
    "Manifest",
    "Problem",
    "Report",
    "Sample",
    "Shard",
    "ShardEntry",
    "ShardWriter",
    "completeness_of",
    "finished_rows",
    "make_manifest",
    "open_index",
    "open_shard",
    "publish",
    "read_manifest",
    "remove_stale",
    "sample_checksum",
    "sample_extent",
    "scan_shards",
    "verify",
    "write_manifest",
]
