"""Features: arrays per image or per mask that were computed after packing, in their own folder.

docs/format.md, "Features", is the specification. A feature is a Zarr group with one feature shard
per shard of the pack, its rows for that shard, bound to it by the digest of its checksum file.

Modules:
    spec: what the rows of a feature are.
    scaled: rows of floats in scaled bytes.
    manifest: the manifest of a feature, and its folder.
    shards: which shard each feature shard is for.
    rows: rows of any kind as they are stored, and their checksums.
    shard: a feature shard: memory maps, checked before the first view; rows that are read.
    writer: rows into a working folder, published by one rename.
"""
