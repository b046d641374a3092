"""The on-disk format of a pack: writing, publishing, reading and checking it.

docs/format.md is the specification. A pack is a Zarr v3 group whose chunk files can be
memory-mapped as they are.

    layout          the arrays of a shard: types, shapes, order
    image_bytes     where the pixels of an image lie in its bytes
    zarr_metadata   chunk-file arithmetic and the metadata that describes it
    append_file     files that are written once, past the page cache, and hashed meanwhile
    shard_writer    samples into a working folder, published by one rename
    manifest        what a pack holds
    index           where each sample of a pack is, and what identifies its shards; its checks
    completeness    how much of a pack is published
    duplicates      sources and image ids that a pack holds more than once
    publish         index, manifest and checksums of a pack, in a crash-safe order
    shard_reader    memory maps of a shard, checked before the first view, and checked copies
    verify          every byte of a pack, and every rule of the format
"""
