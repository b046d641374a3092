"""The on-disk format of a pack: writing, publishing, reading and checking it.

docs/format.md is the specification. A pack is a Zarr v3 group whose chunk files can be
memory-mapped as they are.

    layout          the arrays of a shard: types, shapes, order
    image_bytes     where the pixels of an image lie in its bytes
    zarr_metadata   chunk-file arithmetic and the metadata that describes it
    files           files and folders written completely or not at all; memory maps
    checksums       checksum files, and the checksum of a sample
    append_file     files that are written once, past the page cache, and hashed meanwhile
    sample_rows     one sample to be written: its checked rows
    shard_writer    samples into a working folder, published by one rename
    manifest        what a pack holds
    index           where each sample of a pack is, and what identifies its shards; its checks
    completeness    how much of a pack is published
    duplicates      sources and image ids that a pack holds more than once
    publish         index, manifest and checksums of a pack, in a crash-safe order
    array_reader    a group and its arrays, checked before the first view
    shard_reader    memory maps of a shard, and copies of rows compared with checksums
    problems        a check under way: the files that it reads, and what it finds
    verify_shard    every byte of a shard
    verify          every byte of a pack, and every rule of the format
    selection       the file of a selection
    side            arrays that were computed after packing
"""
