"""Access to URLs: tars as streams, packs through a cache of whole shards, and uploads.

obstore and botocore, of the extra `cloud`, are imported by `stores` alone, and when a URL of an
object store is first opened; https needs only the standard library (docs/decisions/0011).

Modules:
    attempts: how often a request is repeated, and after how long.
    web: a file of the web, continued where it breaks off.
    origin: a folder of files that is read, and what is fetched from there: ranges, digests.
    stores: object stores: credentials, and what their errors mean.
    bucket: a folder of a bucket: requests in one event loop; a tar read once, in ranges.
    cache: the folder of a cache: locks, limit, what is removed.
    upload: a pack that is made in a staging folder and uploaded.
    ranges, kept_ranges: ranges of files that are read by rows, and those that are kept.
    records: what a pack says of itself, for summaries.
    mirror, expected_files: a pack that is checked, and the files that it must have.
    packs: what the core calls: packs and features through a cache.
"""
