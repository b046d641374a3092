"""Tars in, shards out: the plan, the work on one sample, and the engines that spread it.

The path of one sample, and the modules that it passes::

    source.PairReader ─ Pair ─▶ sample.make_sample ─ rows ─▶ unit.Unit ─▶ writers.ShardQueue
    (tar, spool, md5)           (JSON, RLE, JPEG)            (order)      (format.ShardWriter)

`run.pack` ties them together; `engines` decides which process does what.
"""
