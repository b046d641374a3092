"""Tars in, shards out.

`run.pack` ties the modules together, which are in the order that a sample passes them; `repair`
replaces damaged shards by the same path.

Modules:
    source.pairs: tar → pairs of an image and a JSON record, digests: `PairReader`.
    source_packer: which pairs need work, and which shard each belongs to.
    source_packer: pairs of a shard in groups.
    groups: group of pairs → what becomes of them; sample: pairs → the rows of their samples:
        `make_samples`.
    keep, keep_probe: which other keys of records are kept; kept_rows: their values → features.
    workers: the processes that make samples, where there is more than one.
    shard_builder: samples in the order of the tar, rows → files (`format.shard_writer`),
        publication; in a thread for each shard.
    ledger: what the pack holds.
    publishers: shards, manifest and index get their names, in a folder or for a part of a job.
"""
