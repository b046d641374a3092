"""Tars in, shards out.

The path of one sample, and the modules that it passes::

    source.pairs.PairReader    tar → pairs of a JPEG and a JSON record, digests
    source_packer              which pairs need work, and which shard each belongs to
    sample.make_sample         pair → the rows of one sample
    source_packer              samples in the order of the tar
                               its threads: rows → files (format.shard_writer), publication
    pack_state                 what the pack holds, manifest and index

`run.pack` ties them together. `workers` has the processes that make samples, where there is more
than one; `repair` replaces damaged shards by the same path.
"""
