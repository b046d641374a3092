"""What is at a URL? Tars as streams, packs through a cache of whole shards, and uploads.

    stores       object stores: credentials, errors, the event loop, folders of buckets
    remote_file  a file read once, of the web or an object store, continued where it breaks off
    upload       a pack that is made in a staging folder and uploaded
    origin       a folder of files that is read, and what is fetched from there: ranges, digests
    cache        the folder of a cache: locks, limit, what is removed
    packs        what the core calls: packs and features through a cache, and packs checked

obstore and botocore, of the extra `cloud`, are imported by `stores` alone, and when a URL of an
object store is first opened; https needs only the standard library (docs/decisions/0011).
"""
