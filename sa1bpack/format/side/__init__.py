"""Features: arrays per image or per mask that were computed after packing, in their own folder.

docs/format.md, "Features", is the specification. A feature is a Zarr group with one feature shard
per shard of the pack, its rows for that shard, bound to it by the digest of its checksum file.

Modules:
    spec: what a feature holds, its manifest, and its feature shards: which shard each is for;
        memory maps, checked before the first view; rows of floats in scaled bytes.
    writer: rows into a working folder, published by one rename.
"""
