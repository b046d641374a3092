"""What is at a URL? Tars as streams, packs through a cache of whole shards, and uploads.

    scheme       what the core calls, see `sa1bpack.urls`
    web          one request over http or https
    stores       object stores: credentials, what is opened, what errors mean and may show
    bucket       a folder of a bucket, read and written; the event loop that waits for it
    remote_file  a file read once, of the web or an object store, continued where it breaks off
    upload       a pack that is made in a staging folder and uploaded
    origin       a folder of files that is read, and the threads that do
    fetch        a shard on its way: ranges, digests
    cache        the folder of a cache: locks, limit, what is removed
    packs        packs and side arrays through a cache
    verify       a pack in an object store, checked

obstore and botocore, of the extra `cloud`, are imported by `stores` alone, and when a URL of an
object store is first opened; https needs only the standard library (docs/decisions/0011).
"""
