"""The on-disk format of a pack: writing, publishing, reading and checking it.

docs/format.md is the specification. A pack is a Zarr v3 group whose chunk files can be
memory-mapped as they are.

Modules:
    files: files and folders written completely or not at all; memory maps; checksum files.
    layout: the arrays of a shard: types, shapes, order; the bytes of an image; the checksum of a
        sample.
    arrays: chunk-file arithmetic and the metadata that describes it; both checked.
    shard_writer: rows of samples into a working folder, published by one rename; its files are
        written once, past the page cache, and hashed meanwhile.
    shard_reader: memory maps of a shard, and copies of rows compared with checksums.
    manifest: what a pack holds, and how much of it is published.
    index: where each sample of a pack is, and what identifies its shards; image ids held
        repeatedly; the crash-safe publication of index, manifest and checksums.
    problems: a check under way: the files that it reads, and what it finds.
    verify_shard: every byte of a shard, or of a feature shard.
    verify: every byte of a pack, and every rule of the format.
    selection: the file of a selection.
    side: arrays that were computed after packing.
"""
