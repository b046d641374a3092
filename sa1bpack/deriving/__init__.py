"""Features made: by a function, shard by shard through the Loader, or from an existing array.

Modules:
    target: which feature shards there are to make, and where.
    functions: the function that computes rows: its name, and what it may be called with.
    ranks: the share of one of several processes: its shards, and its device.
    maker: the rows of the shards, computed by a function of batches.
    shard_writers: the feature shards of one shard, written.
    run: `sa1bpack.derive`.
    attach: `sa1bpack.attach`.
    row_source: rows with ids: arrays, lists and dicts in memory, taken by position.
    sources: rows of files, tables and iterators.
"""
