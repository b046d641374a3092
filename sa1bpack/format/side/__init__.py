"""Features: arrays per image or per mask that were computed after packing, in their own folder.

docs/format.md, "Features", is the specification. A feature is a Zarr group with one part per
shard; a part is bound to its shard by the digest of the shard's checksum file.

    spec        what a feature holds, its manifest, and its parts: which shard each belongs to;
                memory maps, checked before the first view; rows of floats in scaled bytes
    writer      rows into a working folder, published by one rename
"""
