"""Features made: by a function, shard by shard through the Loader, or from an existing array.

Modules:
    target: which feature shards there are to make, and where.
    run: `sa1bpack.derive`.
    attach: `sa1bpack.attach`.
    row_source: rows with ids: arrays, lists and dicts in memory, taken by position.
    sources: rows of files, tables and iterators.
"""
